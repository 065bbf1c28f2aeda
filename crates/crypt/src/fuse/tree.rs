//! What requests do, by nodes and plain names.

use super::attr::attr;
use super::folders::Folders;
use super::nodes::{Key, Link, Node, Nodes};
use super::outcome::{Failure, Outcome};
use crate::dir::CipherDir;
use crate::file::CryptFile;
use crate::folder::{Folder, Listed};
use crate::format::Format;
use crate::names::CipherName;
use crate::{content::layout, sys};
use fuser::FileAttr;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Who asks; what is made becomes theirs where the process may give it away.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// What is changed of a file's state.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) mode: Option<u32>,
    pub(super) owner: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) times: Option<sys::Times>,
}

/// A node that the kernel is told of.
pub(super) struct Entered {
    pub(super) node: Arc<Node>,
    pub(super) attr: FileAttr,
}

/// A directory that is to be opened.
struct Step {
    node: Arc<Node>,
    links: Vec<Link>,
}

impl Step {
    fn new(node: &Arc<Node>) -> Self {
        let mut links = node.links();
        // The first one is tried first.
        links.reverse();
        Self { node: Arc::clone(node), links }
    }
}

pub(super) struct Tree {
    format: Arc<Format>,
    root: Arc<Folder>,
    nodes: Nodes,
    folders: Folders,
    is_privileged: bool,
}

impl Tree {
    /// `descriptors` is how many the process may have.
    pub(super) fn new(dir: &CipherDir, descriptors: u64) -> std::io::Result<Self> {
        let root = Arc::clone(dir.root());
        let key = Key::of(&sys::stat_of(root.fd())?);
        let is_privileged = sys::is_root();
        let format = Arc::clone(dir.format());
        Ok(Self { format, root, nodes: Nodes::new(key), folders: Folders::new(descriptors), is_privileged })
    }

    pub(super) fn node(&self, id: u64) -> Outcome<Arc<Node>> {
        self.nodes.get(id).ok_or(Failure::Number(libc::ESTALE))
    }

    pub(super) fn forget(&self, id: u64, lookups: u64) {
        self.nodes.forget(id, lookups);
    }

    /// The id of an entry, for listings.
    pub(super) fn id_of(&self, inode: u64) -> u64 {
        let Some(root) = self.nodes.get(super::nodes::ROOT) else { return inode };
        self.nodes.id_of(Key { device: root.key.device, inode })
    }

    pub(super) fn lookup(&self, parent: &Arc<Node>, name: &[u8]) -> Outcome<Entered> {
        let folder = self.folder(parent)?;
        let name = self.name(&folder, name)?;
        self.enter(parent, &folder, &name.entry, false)
    }

    /// As a lookup of an entry that was listed.
    pub(super) fn enter_listed(&self, parent: &Arc<Node>, listed: &Listed) -> Outcome<Entered> {
        let folder = self.folder(parent)?;
        self.enter(parent, &folder, &listed.entry.name, false)
    }

    pub(super) fn attr(&self, node: &Arc<Node>) -> Outcome<FileAttr> {
        if let Some(file) = node.opened() {
            let state = file.with_file(|file| sys::stat_of(file.as_fd()))?;
            return Ok(attr(node.id, &state, layout::plain_len(state.st_size as u64)));
        }
        if node.is_dir {
            let folder = self.folder(node)?;
            let state = sys::stat_of(folder.fd())?;
            return Ok(attr(node.id, &state, state.st_size as u64));
        }
        let (folder, entry, state) = self.find(node)?;
        Ok(attr(node.id, &state, self.size(&folder, &entry, &state)))
    }

    pub(super) fn change(&self, node: &Arc<Node>, change: &Change) -> Outcome<FileAttr> {
        if let Some(size) = change.size {
            self.open(node, true)?.set_len(size)?;
        }
        if change.mode.is_some() || change.owner.is_some() || change.group.is_some() || change.times.is_some() {
            self.with_descriptor(node, |fd| {
                if change.owner.is_some() || change.group.is_some() {
                    sys::chown(fd, change.owner, change.group)?;
                }
                // Behind the owner, since a new one takes bits away.
                if let Some(mode) = change.mode {
                    sys::chmod(fd, mode & 0o7777)?;
                }
                if let Some(times) = &change.times {
                    sys::utimens(fd, times)?;
                }
                Ok(())
            })?;
        }
        self.attr(node)
    }

    /// The file, open. All who have it open share it.
    pub(super) fn open(&self, node: &Arc<Node>, is_writable: bool) -> Outcome<Arc<CryptFile>> {
        node.open(|opened, links| {
            if let Some(file) = opened {
                if is_writable && !file.is_writable() {
                    file.make_writable(File::from(self.open_at(node, &links, libc::O_RDWR)?));
                }
                return Ok(file);
            }
            let flags = if is_writable { libc::O_RDWR } else { libc::O_RDONLY };
            let fd = self.open_at(node, &links, flags)?;
            Ok(Arc::new(self.file(node, fd, is_writable, &links[0].entry)))
        })
    }

    pub(super) fn create(
        &self,
        parent: &Arc<Node>,
        name: &[u8],
        mode: u32,
        caller: Caller,
    ) -> Outcome<(Entered, Arc<CryptFile>)> {
        let folder = self.folder(parent)?;
        let name = self.name(&folder, name)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let fd = self.with_whole(&folder, &name, || sys::open(folder.fd(), &name.entry, flags, mode & 0o7777))?;
        if let Some((owner, group)) = self.new_owner(&folder, caller)? {
            sys::chown(fd.as_fd(), Some(owner), group)?;
        }
        let entered = self.enter(parent, &folder, &name.entry, true)?;
        let file = entered.node.open(|_, _| Ok(Arc::new(self.file(&entered.node, fd, true, &name.entry))))?;
        Ok((entered, file))
    }

    pub(super) fn mkdir(&self, parent: &Arc<Node>, name: &[u8], mode: u32, caller: Caller) -> Outcome<Entered> {
        let folder = self.folder(parent)?;
        let name = self.name(&folder, name)?;
        let mode = mode & 0o7777;
        // The IV has to be written into it.
        self.with_whole(&folder, &name, || sys::mkdir(folder.fd(), &name.entry, mode | 0o700))?;
        let child = self.with_room(|| {
            let child = folder.child(&name.entry)?;
            child.create_iv(&self.format)?;
            Ok(child)
        });
        // Without its IV it would be a damaged one.
        let child = child.inspect_err(|_| {
            let _ = sys::unlink(folder.fd(), &name.entry, true);
            folder.remove_whole(&name);
        })?;
        if let Some((owner, group)) = self.new_owner(&folder, caller)? {
            sys::chown(child.fd(), Some(owner), group)?;
            if self.format.features.dir_iv {
                sys::chown_entry(child.fd(), crate::names::DIR_IV_NAME.as_bytes(), owner, group)?;
            }
        }
        if mode | 0o700 != mode {
            // What the directory inherited from its parent stays.
            let inherited = sys::stat_of(child.fd())?.st_mode & 0o7000;
            sys::chmod(child.fd(), mode | inherited)?;
        }
        self.enter(parent, &folder, &name.entry, true)
    }

    pub(super) fn mknod(
        &self,
        parent: &Arc<Node>,
        name: &[u8],
        mode: u32,
        device: u64,
        caller: Caller,
    ) -> Outcome<Entered> {
        self.make(parent, name, caller, |folder, entry| sys::mknod(folder.fd(), entry, mode, device))
    }

    pub(super) fn symlink(&self, parent: &Arc<Node>, name: &[u8], target: &[u8], caller: Caller) -> Outcome<Entered> {
        let stored = self.format.seal_target(target);
        self.make(parent, name, caller, |folder, entry| sys::symlink(&stored, folder.fd(), entry))
    }

    pub(super) fn readlink(&self, node: &Arc<Node>) -> Outcome<Vec<u8>> {
        let (folder, entry, _) = self.find(node)?;
        let stored = sys::readlink(folder.fd(), &entry)?;
        self.format.open_target(&stored).ok_or_else(|| {
            let subject = String::from_utf8_lossy(&entry).into_owned();
            let detail = "the target of this symbolic link does not decrypt: it was changed";
            Failure::Sentence(crate::Error::new(crate::ErrorKind::Corrupt, subject, detail))
        })
    }

    pub(super) fn link(&self, node: &Arc<Node>, parent: &Arc<Node>, name: &[u8]) -> Outcome<Entered> {
        let (from, entry, _) = self.find(node)?;
        let folder = self.folder(parent)?;
        let name = self.name(&folder, name)?;
        self.with_whole(&folder, &name, || sys::link((from.fd(), &entry), (folder.fd(), &name.entry)))?;
        self.enter(parent, &folder, &name.entry, false)
    }

    pub(super) fn unlink(&self, parent: &Arc<Node>, name: &[u8]) -> Outcome<()> {
        let folder = self.folder(parent)?;
        let name = self.name(&folder, name)?;
        let state = sys::stat(folder.fd(), &name.entry)?;
        sys::unlink(folder.fd(), &name.entry, false)?;
        folder.remove_whole(&name);
        self.nodes.remove(Key::of(&state), parent, &name.entry, state.st_nlink <= 1);
        Ok(())
    }

    pub(super) fn rmdir(&self, parent: &Arc<Node>, name: &[u8]) -> Outcome<()> {
        let folder = self.folder(parent)?;
        let name = self.name(&folder, name)?;
        let state = sys::stat(folder.fd(), &name.entry)?;
        self.with_room(|| Ok(folder.remove_dir(&self.format, &name.entry)?))?;
        folder.remove_whole(&name);
        self.nodes.remove(Key::of(&state), parent, &name.entry, true);
        Ok(())
    }

    /// Renames with the flags of `renameat2`.
    pub(super) fn rename(
        &self,
        (parent, name): (&Arc<Node>, &[u8]),
        (new_parent, new_name): (&Arc<Node>, &[u8]),
        flags: u32,
    ) -> Outcome<()> {
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err(Failure::Number(libc::EINVAL));
        }
        let is_exchange = flags & libc::RENAME_EXCHANGE != 0;
        let (folder, new_folder) = (self.folder(parent)?, self.folder(new_parent)?);
        let (name, new_name) = (self.name(&folder, name)?, self.name(&new_folder, new_name)?);
        let source = sys::stat(folder.fd(), &name.entry)?;
        let target = sys::stat(new_folder.fd(), &new_name.entry).ok();
        if target.as_ref().is_some_and(|target| Key::of(target) == Key::of(&source)) && flags == 0 {
            // Two names of one file stay as they are.
            return Ok(());
        }
        let rename = || {
            let (from, to) = ((folder.fd(), &name.entry[..]), (new_folder.fd(), &new_name.entry[..]));
            sys::rename(from, to, flags)
        };
        let is_dir = |state: &libc::stat| state.st_mode & libc::S_IFMT == libc::S_IFDIR;
        self.with_whole(&new_folder, &new_name, || match rename() {
            Err(error)
                if flags == 0
                    && matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST))
                    && target.as_ref().is_some_and(is_dir) =>
            {
                // An empty directory is not empty below: it has its IV.
                new_folder.remove_dir(&self.format, &new_name.entry)?;
                rename()
            }
            done => done,
        })?;
        let link =
            |parent: &Arc<Node>, name: &CipherName| Link { parent: Arc::clone(parent), entry: name.entry.clone() };
        if let Some(target) = &target {
            let key = Key::of(target);
            if is_exchange {
                self.nodes.rename(key, (new_parent, &new_name.entry), link(parent, &name));
            } else {
                let is_last = is_dir(target) || target.st_nlink <= 1;
                self.nodes.remove(key, new_parent, &new_name.entry, is_last);
            }
        }
        self.nodes.rename(Key::of(&source), (parent, &name.entry), link(new_parent, &new_name));
        if !is_exchange {
            folder.remove_whole(&name);
        }
        Ok(())
    }

    pub(super) fn list(&self, node: &Arc<Node>, warn: &dyn Fn(&str)) -> Outcome<Vec<Listed>> {
        let folder = self.folder(node)?;
        self.with_room(|| Ok(folder.list(&self.format, warn)?))
    }

    pub(super) fn sync_folder(&self, node: &Arc<Node>) -> Outcome<()> {
        let folder = self.folder(node)?;
        let fd = self.with_room(|| Ok(sys::open(folder.fd(), b".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?))?;
        Ok(sys::sync(fd.as_fd())?)
    }

    pub(super) fn state_of_all(&self) -> Outcome<libc::statvfs> {
        Ok(sys::statvfs(self.root.fd())?)
    }

    /// A directory's node, opened. What is not open yet on the way to it is opened from above, in steps: trees are as
    /// deep as people make them.
    fn folder(&self, node: &Arc<Node>) -> Outcome<Arc<Folder>> {
        if let Some(folder) = self.opened(node) {
            return Ok(folder);
        }
        // From the node up, each with the names by which it is still to be looked for.
        let mut way = vec![Step::new(node)];
        // What is on the way, and what was not found: somebody may have moved two directories into each other below.
        let mut passed = HashSet::from([node.id_of_folder()]);
        // The directory that the last step looks in.
        let mut above = None;
        while let Some(step) = way.last_mut() {
            let Some(link) = step.links.last() else {
                // Not found by any name; what is below it may have others.
                way.pop();
                way.last_mut().map(|below| below.links.pop());
                continue;
            };
            let parent = &link.parent;
            let Some(folder) = above.take().or_else(|| self.opened(parent)) else {
                if passed.insert(parent.id_of_folder()) {
                    let next = Step::new(parent);
                    way.push(next);
                } else {
                    step.links.pop();
                }
                continue;
            };
            match self.child_of(&folder, link, &step.node)? {
                None => {
                    step.links.pop();
                }
                Some(found) => {
                    let id = step.node.id_of_folder();
                    self.folders.keep(id, Arc::clone(&found));
                    passed.remove(&id);
                    way.pop();
                    if way.is_empty() {
                        return Ok(found);
                    }
                    above = Some(found);
                }
            }
        }
        Err(Failure::Number(libc::ESTALE))
    }

    /// A directory's node, if it is open.
    fn opened(&self, node: &Node) -> Option<Arc<Folder>> {
        if node.is_root() { Some(Arc::clone(&self.root)) } else { self.folders.get(node.id_of_folder()) }
    }

    /// The directory at a link, if it is there and is the node's.
    fn child_of(&self, folder: &Folder, link: &Link, node: &Node) -> Outcome<Option<Arc<Folder>>> {
        let opened = self.with_room(|| Ok(folder.child(&link.entry)?));
        let child = match opened {
            Err(Failure::Number(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => return opened.map(|_| None),
            Err(_) => return Ok(None),
            Ok(child) => child,
        };
        let is_it = Key::of(&sys::stat_of(child.fd())?) == node.key;
        Ok(is_it.then(|| Arc::new(child)))
    }

    fn name(&self, folder: &Folder, plain: &[u8]) -> Outcome<CipherName> {
        self.with_room(|| Ok(folder.cipher_name(&self.format, plain)?))
    }

    /// Where a file is now, and its state.
    fn find(&self, node: &Arc<Node>) -> Outcome<(Arc<Folder>, Vec<u8>, libc::stat)> {
        for link in node.links() {
            let folder = self.folder(&link.parent)?;
            if let Ok(state) = sys::stat(folder.fd(), &link.entry)
                && Key::of(&state) == node.key
            {
                return Ok((folder, link.entry, state));
            }
        }
        Err(Failure::Number(libc::ESTALE))
    }

    /// Opens a node's file, and checks that it is the one.
    fn open_at(&self, node: &Node, links: &[Link], flags: i32) -> Outcome<OwnedFd> {
        let mut failure = Failure::Number(libc::ESTALE);
        for link in links {
            let folder = self.folder(&link.parent)?;
            // What was put in its place may be a FIFO.
            match self.with_room(|| Ok(sys::open(folder.fd(), &link.entry, flags | libc::O_NONBLOCK, 0)?)) {
                Ok(fd) if Key::of(&sys::stat_of(fd.as_fd())?) == node.key => return Ok(fd),
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn with_descriptor(
        &self,
        node: &Arc<Node>,
        work: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> Outcome<()> {
        if let Some(file) = node.opened() {
            return Ok(file.with_file(|file| work(file.as_fd()))?);
        }
        if node.is_dir {
            return Ok(work(self.folder(node)?.fd())?);
        }
        let fd = self.open_at(node, &node.links(), libc::O_PATH)?;
        Ok(work(fd.as_fd())?)
    }

    fn make(
        &self,
        parent: &Arc<Node>,
        name: &[u8],
        caller: Caller,
        make: impl Fn(&Folder, &[u8]) -> std::io::Result<()>,
    ) -> Outcome<Entered> {
        let folder = self.folder(parent)?;
        let name = self.name(&folder, name)?;
        self.with_whole(&folder, &name, || make(&folder, &name.entry))?;
        if let Some((owner, group)) = self.new_owner(&folder, caller)? {
            sys::chown_entry(folder.fd(), &name.entry, owner, group)?;
        }
        self.enter(parent, &folder, &name.entry, true)
    }

    fn enter(&self, parent: &Arc<Node>, folder: &Arc<Folder>, entry: &[u8], is_new: bool) -> Outcome<Entered> {
        let state = sys::stat(folder.fd(), entry)?;
        let size = self.size(folder, entry, &state);
        let link = Link { parent: Arc::clone(parent), entry: entry.to_vec() };
        let is_dir = state.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let node = self.nodes.enter(Key::of(&state), link, is_dir, is_new);
        Ok(Entered { attr: attr(node.id, &state, size), node })
    }

    /// The plain size of a file.
    fn size(&self, folder: &Folder, entry: &[u8], state: &libc::stat) -> u64 {
        let bytes = state.st_size as u64;
        match state.st_mode & libc::S_IFMT {
            libc::S_IFREG => layout::plain_len(bytes),
            libc::S_IFLNK => {
                let target = sys::readlink(folder.fd(), entry).ok();
                target.and_then(|stored| self.format.open_target(&stored)).map_or(bytes, |plain| plain.len() as u64)
            }
            _ => bytes,
        }
    }

    /// The owner of what a caller makes, where the process has to give it away; the group only if the directory does
    /// not say which.
    fn new_owner(&self, folder: &Folder, caller: Caller) -> Outcome<Option<(u32, Option<u32>)>> {
        if !self.is_privileged || (caller.user == 0 && caller.group == 0) {
            return Ok(None);
        }
        let is_inherited = sys::stat_of(folder.fd())?.st_mode & libc::S_ISGID != 0;
        Ok(Some((caller.user, (!is_inherited).then_some(caller.group))))
    }

    fn file(&self, node: &Node, fd: OwnedFd, is_writable: bool, entry: &[u8]) -> CryptFile {
        let subject = String::from_utf8_lossy(entry).into_owned();
        CryptFile::new(Arc::clone(&self.format.content), File::from(fd), is_writable, subject)
            .with_mark_of_holes(Arc::clone(&node.has_read_holes))
    }

    /// Makes an entry. The file with the whole of its name comes first, and goes if the entry did not come.
    fn with_whole<T>(&self, folder: &Folder, name: &CipherName, make: impl Fn() -> std::io::Result<T>) -> Outcome<T> {
        let is_new = self.with_room(|| Ok(folder.write_whole(name)?))?;
        self.with_room(|| Ok(make()?)).inspect_err(|_| {
            if is_new {
                folder.remove_whole(name);
            }
        })
    }

    /// Does what opens something, again without the directories that are kept open where descriptors ran out. `work`
    /// leaves nothing behind when it finds none.
    fn with_room<T>(&self, work: impl Fn() -> Outcome<T>) -> Outcome<T> {
        match work() {
            Err(Failure::Number(libc::EMFILE | libc::ENFILE)) if self.folders.close() => work(),
            outcome => outcome,
        }
    }
}
