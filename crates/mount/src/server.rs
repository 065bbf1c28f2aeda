//! What the requests of the kernel do to the source.
//!
//! Files are reached by the descriptors of their nodes and by single names below them, so that no symbolic link of the
//! source is followed, and nothing outside of it is reached. What a caller may do the kernel has checked.

use crate::attr::attr;
use crate::caller::{Caller, without_set_id};
use crate::given::Shared;
use crate::locks::Locks;
use crate::nodes::{Node, Nodes, ROOT};
use crate::opens::Way;
use crate::replicas::{FileKey, Recall, Replicas};
use crate::sync::lock;
use crate::sys;
use fuser::{BackingId, FileAttr, FopenFlags, INodeNo, Notifier};
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

pub(crate) struct Server {
    pub(crate) nodes: Nodes,
    pub(crate) locks: Locks,
    replicas: Arc<dyn Replicas>,
    handles: RwLock<HashMap<u64, Handle>>,
    next_handle: AtomicU64,
    pub(crate) is_root: bool,
    /// Whether files are passed to the source by the kernel.
    pub(crate) can_pass: AtomicBool,
    /// There from when it is mounted.
    pub(crate) notifier: OnceLock<Notifier>,
}

#[derive(Clone)]
enum Handle {
    File(Arc<OpenFile>),
    Folder(Arc<OpenFolder>),
}

/// An opening of a file.
pub(crate) struct OpenFile {
    pub(crate) node: Arc<Node>,
    /// The source's, for what the program may do; for reading where devices share the file.
    file: std::fs::File,
    is_past: bool,
    /// The kernel keeps nothing of what is written by it.
    is_direct: bool,
}

/// An opening of a directory.
pub(crate) struct OpenFolder {
    pub(crate) node: Arc<Node>,
    pub(crate) file: OwnedFd,
    /// Held by who reads it, as it has one position.
    pub(crate) reading: std::sync::Mutex<()>,
}

/// A file as the kernel is told of it.
pub(crate) struct Entry {
    pub(crate) attr: FileAttr,
    pub(crate) generation: u64,
}

/// A new opening as the kernel is told of it.
pub(crate) struct Opened {
    pub(crate) handle: u64,
    pub(crate) flags: FopenFlags,
    pub(crate) backing: Option<Arc<BackingId>>,
}

/// What is to be changed of a file.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) mode: Option<u32>,
    pub(crate) owner: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) times: Option<sys::Times>,
}

fn number(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Server {
    pub(crate) fn new(nodes: Nodes, replicas: Arc<dyn Replicas>) -> Self {
        Self {
            nodes,
            locks: Locks::default(),
            replicas,
            handles: RwLock::default(),
            next_handle: AtomicU64::new(1),
            is_root: sys::is_root(),
            can_pass: AtomicBool::new(false),
            notifier: OnceLock::new(),
        }
    }

    fn hold(&self, handle: Handle) -> u64 {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.write().unwrap_or_else(PoisonError::into_inner).insert(number, handle);
        number
    }

    fn handle(&self, handle: u64) -> io::Result<Handle> {
        let handles = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        handles.get(&handle).cloned().ok_or_else(|| number(libc::EBADF))
    }

    pub(crate) fn open_file(&self, handle: u64) -> io::Result<Arc<OpenFile>> {
        match self.handle(handle)? {
            Handle::File(file) => Ok(file),
            Handle::Folder(_) => Err(number(libc::EISDIR)),
        }
    }

    pub(crate) fn open_folder(&self, handle: u64) -> io::Result<Arc<OpenFolder>> {
        match self.handle(handle)? {
            Handle::Folder(folder) => Ok(folder),
            Handle::File(_) => Err(number(libc::ENOTDIR)),
        }
    }

    // Names.

    /// The file of a name, which the kernel is told of once more.
    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> io::Result<Entry> {
        let parent = self.nodes.get(parent)?;
        self.find(self.nodes.file(&parent)?.as_fd(), name)
    }

    pub(crate) fn find(&self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<Entry> {
        if name == b"." || name == b".." {
            return Err(number(libc::ENOENT));
        }
        let file = sys::keep(parent, name)?;
        let state = sys::stat(file.as_fd())?;
        let node = self.nodes.enter(file, &state);
        Ok(Entry { attr: attr(node.id, &state), generation: node.generation })
    }

    /// Makes a file by `make`, and finds it.
    pub(crate) fn make(
        &self,
        parent: u64,
        name: &[u8],
        make: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<Entry> {
        let parent = self.nodes.get(parent)?;
        let folder = self.nodes.file(&parent)?;
        make(folder.as_fd())?;
        self.find(folder.as_fd(), name)
    }

    pub(crate) fn link(&self, node: u64, parent: u64, name: &[u8]) -> io::Result<Entry> {
        let node = self.nodes.get(node)?;
        let file = self.nodes.file(&node)?;
        self.make(parent, name, |folder| sys::link(file.as_fd(), folder, name))
    }

    pub(crate) fn remove(&self, parent: u64, name: &[u8], is_dir: bool) -> io::Result<()> {
        let parent = self.nodes.get(parent)?;
        let folder = self.nodes.file(&parent)?;
        self.keep_nameless(folder.as_fd(), name);
        sys::unlink(folder.as_fd(), name, is_dir)
    }

    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> io::Result<()> {
        let (old, new) = (self.nodes.get(from.0)?, self.nodes.get(to.0)?);
        let (old, new) = (self.nodes.file(&old)?, self.nodes.file(&new)?);
        self.keep_nameless(new.as_fd(), to.1);
        sys::rename((old.as_fd(), from.1), (new.as_fd(), to.1), flags)
    }

    /// A file that loses its name is found by its descriptor alone.
    fn keep_nameless(&self, folder: BorrowedFd<'_>, name: &[u8]) {
        if self.nodes.is_over_bound()
            && let Ok(state) = sys::keep(folder, name).and_then(|file| sys::stat(file.as_fd()))
        {
            self.nodes.keep(FileKey::of(&state));
        }
    }

    // Attributes.

    pub(crate) fn attr(&self, node: u64) -> io::Result<FileAttr> {
        let node = self.nodes.get(node)?;
        let state = sys::stat(self.nodes.file(&node)?.as_fd())?;
        let mut attr = attr(node.id, &state);
        // What programs see as the root's number is the source's.
        attr.ino = INodeNo(if node.id == ROOT { state.st_ino } else { node.id });
        Ok(attr)
    }

    pub(crate) fn change(
        &self,
        node: u64,
        handle: Option<u64>,
        change: &Change,
        caller: Caller,
    ) -> io::Result<FileAttr> {
        let id = node;
        let node = self.nodes.get(node)?;
        let file = self.nodes.file(&node)?;
        if let Some(mode) = change.mode {
            sys::chmod(file.as_fd(), mode & 0o7777)?;
        }
        if change.owner.is_some() || change.group.is_some() {
            sys::chown(file.as_fd(), change.owner, change.group)?;
        }
        if let Some(size) = change.size {
            caller.change(|| self.resize(&node, file.as_fd(), handle, size))?;
        }
        if let Some(times) = &change.times {
            sys::set_times(file.as_fd(), times)?;
        }
        self.attr(id)
    }

    fn resize(&self, node: &Node, file: BorrowedFd<'_>, handle: Option<u64>, size: u64) -> io::Result<()> {
        let shared = lock(&node.opens).shared.clone();
        let open = handle.and_then(|handle| self.open_file(handle).ok());
        match open {
            // An opening for writing may change a file that may not be opened so by now.
            Some(open) if shared.is_none() => sys::truncate(open.file.as_fd(), size)?,
            _ => sys::truncate(sys::reopen(file, libc::O_WRONLY)?.as_fd(), size)?,
        }
        shared.map_or(Ok(()), |shared| shared.changed(Some(size)))
    }

    pub(crate) fn readlink(&self, node: u64) -> io::Result<Vec<u8>> {
        let node = self.nodes.get(node)?;
        sys::readlink(self.nodes.file(&node)?.as_fd())
    }

    pub(crate) fn state_of_all(&self, node: u64) -> io::Result<libc::statvfs> {
        let node = self.nodes.get(node)?;
        sys::statvfs(self.nodes.file(&node)?.as_fd())
    }

    /// Works on the extended attributes of a file.
    pub(crate) fn with_attributes<T>(
        &self,
        node: u64,
        work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let node = self.nodes.get(node)?;
        work(self.nodes.file(&node)?.as_fd())
    }

    /// The names of extended attributes. Those that only root may read are not named to others.
    pub(crate) fn attribute_names(&self, node: u64, caller: Caller) -> io::Result<Vec<u8>> {
        let list = self.with_attributes(node, |file| {
            let mut list = vec![0; 64 << 10];
            let len = sys::list_attributes(file, &mut list)?;
            list.truncate(len);
            Ok(list)
        })?;
        if caller.is_root() {
            return Ok(list);
        }
        let names = list.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(b"trusted."));
        Ok(names.flatten().copied().collect())
    }

    pub(crate) fn set_attribute(
        &self,
        node: u64,
        key: &CStr,
        value: &[u8],
        flags: i32,
        caller: Caller,
    ) -> io::Result<()> {
        self.with_attributes(node, |file| caller.change(|| sys::set_attribute(file, key, value, flags)))
    }

    // Openings.

    /// Opens a file of the source; `backing` has the kernel pass it.
    pub(crate) fn open(
        &self,
        node: &Arc<Node>,
        flags: i32,
        backing: impl FnOnce(BorrowedFd<'_>) -> io::Result<BackingId>,
    ) -> io::Result<Opened> {
        let kept = self.nodes.file(node)?;
        self.open_by(node, kept.as_fd(), flags & libc::O_ACCMODE, None, backing)
    }

    fn open_by(
        &self,
        node: &Arc<Node>,
        kept: BorrowedFd<'_>,
        access: i32,
        made: Option<OwnedFd>,
        backing: impl FnOnce(BorrowedFd<'_>) -> io::Result<BackingId>,
    ) -> io::Result<Opened> {
        let open = |flags| sys::reopen(kept, flags);
        let own = |made: Option<OwnedFd>| made.map_or_else(|| open(access), Ok);
        // Whoever writes to a file that is passed does it without the right to leave the bits by which a program runs as
        // another user: one that has them is served, so that they stay where root writes.
        let can_pass =
            self.can_pass.load(Ordering::Relaxed) && sys::stat(kept)?.st_mode & (libc::S_ISUID | libc::S_ISGID) == 0;
        let mut opens = lock(&node.opens);
        let way = opens.way(self.replicas.is_wanted(node.key), can_pass);
        let (file, flags, is_past) = match way {
            Way::Shared => {
                drop(made);
                let file = open(libc::O_RDONLY)?;
                if opens.shared.is_none() {
                    let shared = Shared::new(self.replicas.open(file.as_fd())?, opens.served > 0);
                    opens.shared = Some(Arc::new(shared));
                }
                (file, FopenFlags::FOPEN_DIRECT_IO, false)
            }
            Way::Served => (own(made)?, FopenFlags::empty(), false),
            Way::Past => {
                let file = own(made)?;
                if opens.backing.is_none() {
                    // What the kernel does with it later it does with the rights of this moment: writes take the bits away
                    // that have a program run as another user.
                    let found = without_set_id(self.is_root, || {
                        if access == libc::O_RDONLY {
                            backing(file.as_fd())
                        } else {
                            backing(open(libc::O_RDONLY)?.as_fd())
                        }
                    });
                    opens.backing = self.passed(found).map(Arc::new);
                }
                let is_past = opens.backing.is_some();
                (file, FopenFlags::empty(), is_past)
            }
        };
        if is_past {
            opens.past += 1;
        } else {
            opens.served += 1;
        }
        let backing = if is_past { opens.backing.clone() } else { None };
        drop(opens);
        let is_direct = flags.contains(FopenFlags::FOPEN_DIRECT_IO);
        let file = OpenFile { node: Arc::clone(node), file: file.into(), is_past, is_direct };
        Ok(Opened { handle: self.hold(Handle::File(Arc::new(file))), flags, backing })
    }

    /// Whether the kernel passes a file. One that it cannot pass at all is served, and so are all others from then on if it
    /// does not let this process.
    fn passed(&self, backing: io::Result<BackingId>) -> Option<BackingId> {
        let error = match backing {
            Ok(backing) => return Some(backing),
            Err(error) => error,
        };
        if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP)) {
            self.can_pass.store(false, Ordering::Relaxed);
        }
        None
    }

    /// Makes a file, or opens the one that is there, as `open` does with `O_CREAT`.
    pub(crate) fn create(
        &self,
        (parent, name): (u64, &[u8]),
        (mode, mask, flags): (u32, u32, i32),
        caller: Caller,
        backing: impl FnOnce(BorrowedFd<'_>) -> io::Result<BackingId>,
    ) -> io::Result<(Entry, Opened)> {
        let parent = self.nodes.get(parent)?;
        let folder = self.nodes.file(&parent)?;
        let access = flags & libc::O_ACCMODE;
        let made = caller
            .make(mode, mask, |mode| sys::open(folder.as_fd(), name, access | libc::O_CREAT | libc::O_EXCL, mode));
        let made = match made {
            Ok(made) => Some(made),
            // Somebody beside the mount was quicker.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) && flags & libc::O_EXCL == 0 => None,
            Err(error) => return Err(error),
        };
        let kept = match &made {
            Some(made) => sys::reopen(made.as_fd(), libc::O_PATH)?,
            None => sys::keep(folder.as_fd(), name)?,
        };
        let state = sys::stat(kept.as_fd())?;
        if state.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(number(if state.st_mode & libc::S_IFMT == libc::S_IFLNK { libc::ELOOP } else { libc::EEXIST }));
        }
        let node = self.nodes.enter(kept, &state);
        let is_cut = made.is_none() && flags & libc::O_TRUNC != 0;
        let opened = || {
            let kept = self.nodes.file(&node)?;
            if is_cut {
                caller.change(|| self.resize(&node, kept.as_fd(), None, 0))?;
            }
            self.open_by(&node, kept.as_fd(), access, made, backing)
        };
        match opened() {
            Ok(opened) => Ok((Entry { attr: attr(node.id, &state), generation: node.generation }, opened)),
            Err(error) => {
                self.nodes.forget(node.id, 1);
                Err(error)
            }
        }
    }

    /// Writes, as [`OpenFile::write`]; `is_killing` says that the bits go that have a program run as another user. The kernel
    /// does not look at the mode afterwards by itself.
    pub(crate) fn write(
        &self,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        (comes_back, is_append, is_killing): (bool, bool, bool),
    ) -> io::Result<usize> {
        let file = self.open_file(handle)?;
        if !is_killing {
            return file.write(offset, bytes, comes_back, is_append);
        }
        let has_set_id = sys::stat(file.as_fd())?.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        let written = without_set_id(self.is_root, || file.write(offset, bytes, comes_back, is_append));
        if has_set_id && file.shared().is_some() {
            // Whoever writes it for this process may leave them.
            self.take_set_id(&file)?;
        }
        if let Some(notifier) = self.notifier.get().filter(|_| has_set_id) {
            // Of attributes alone, which waits for nothing.
            let _ = notifier.inval_inode(INodeNo(file.node.id), -1, 0);
        }
        written
    }

    fn take_set_id(&self, file: &OpenFile) -> io::Result<()> {
        let kept = self.nodes.file(&file.node)?;
        let mode = sys::stat(kept.as_fd())?.st_mode;
        let is_group = mode & libc::S_IXGRP != 0;
        let without = mode & !libc::S_ISUID & if is_group { !libc::S_ISGID } else { !0 };
        if without == mode { Ok(()) } else { sys::chmod(kept.as_fd(), without & 0o7777) }
    }

    pub(crate) fn open_folder_of(&self, node: u64) -> io::Result<u64> {
        let node = self.nodes.get(node)?;
        let file = sys::reopen(self.nodes.file(&node)?.as_fd(), libc::O_RDONLY | libc::O_DIRECTORY)?;
        Ok(self.hold(Handle::Folder(Arc::new(OpenFolder { node, file, reading: std::sync::Mutex::default() }))))
    }

    pub(crate) fn release(&self, handle: u64) {
        let released = self.handles.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        if let Some(Handle::File(file)) = released {
            self.locks.released(file.node.id, handle);
            let gone = lock(&file.node.opens).closed(file.is_past);
            // Closing takes its time, and the node is free meanwhile.
            drop(gone);
        }
    }
}

impl OpenFile {
    pub(crate) fn shared(&self) -> Option<Arc<Shared>> {
        lock(&self.node.opens).shared.clone()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads; `is_kept` says that the kernel keeps the pages.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8], is_kept: bool) -> io::Result<usize> {
        match self.shared() {
            Some(shared) if is_kept => shared.give(offset, buffer),
            Some(shared) => shared.read(offset, buffer),
            None => {
                let mut read = 0;
                while read < buffer.len() {
                    match self.file.read_at(&mut buffer[read..], offset + read as u64) {
                        Ok(0) => break,
                        Ok(more) => read += more,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) if read > 0 => break,
                        Err(error) => return Err(error),
                    }
                }
                Ok(read)
            }
        }
    }

    /// Writes; `comes_back` says that these are pages that the kernel has kept.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8], comes_back: bool, is_append: bool) -> io::Result<usize> {
        match self.shared() {
            Some(shared) if comes_back => shared.take_back(offset, bytes)?,
            Some(shared) if is_append => {
                let _turn = lock(&shared.appending);
                shared.write(self.file.metadata()?.len(), bytes, !self.is_direct)?;
            }
            Some(shared) => shared.write(offset, bytes, !self.is_direct)?,
            None if is_append && !comes_back => return sys::append(self.file.as_fd(), bytes),
            None => return self.file.write_at(bytes, offset),
        }
        Ok(bytes.len())
    }

    pub(crate) fn sync(&self, is_data_only: bool) -> io::Result<()> {
        if let Some(shared) = self.shared() {
            shared.sync()?;
        }
        sys::sync(self.file.as_fd(), is_data_only)
    }

    /// Where data begins, or a hole.
    pub(crate) fn seek(&self, offset: i64, whence: i32) -> io::Result<i64> {
        if let Some(shared) = self.shared() {
            shared.sync()?;
        }
        sys::seek(self.file.as_fd(), offset, whence)
    }

    pub(crate) fn allocate(&self, nodes: &Nodes, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let Some(shared) = self.shared() else { return sys::allocate(self.file.as_fd(), mode, offset, len) };
        // What devices have released of it must not come after it.
        shared.sync()?;
        let file = sys::reopen(nodes.file(&self.node)?.as_fd(), libc::O_RDWR)?;
        sys::allocate(file.as_fd(), mode, offset, len)?;
        shared.changed(None)
    }

    /// Copies inside the source; other files are copied by reading and writing.
    pub(crate) fn copy(&self, offset: u64, to: &Self, to_offset: u64, len: u64) -> io::Result<usize> {
        if self.shared().is_some() || to.shared().is_some() {
            return Err(number(libc::EXDEV));
        }
        sys::copy((self.file.as_fd(), offset), (to.file.as_fd(), to_offset), len.min(1 << 30))
    }
}

impl Recall for Server {
    fn recall(&self, file: FileKey, range: Range<u64>) -> io::Result<()> {
        let Some(node) = self.nodes.by_key(file) else { return Ok(()) };
        let shared = {
            let mut opens = lock(&node.opens);
            if opens.served == 0 {
                return Ok(());
            }
            if opens.shared.is_none() {
                let source = sys::reopen(self.nodes.file(&node)?.as_fd(), libc::O_RDONLY)?;
                opens.shared = Some(Arc::new(Shared::new(self.replicas.open(source.as_fd())?, true)));
            }
            opens.shared.clone()
        };
        let Some(shared) = shared else { return Ok(()) };
        let Some(notifier) = self.notifier.get() else { return Ok(()) };
        // What the kernel was given before the file was shared has no base.
        let is_all = shared.had_unknown.load(Ordering::SeqCst);
        let range = if is_all { 0..i64::MAX as u64 } else { range };
        let recall = shared.recall();
        let len = if is_all { 0 } else { range.end.saturating_sub(range.start) as i64 };
        if is_all || len > 0 {
            notifier.inval_inode(INodeNo(node.id), range.start as i64, len)?;
            shared.recalled(recall, &range);
            if is_all {
                shared.had_unknown.store(false, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    fn is_open_past(&self, file: FileKey) -> bool {
        self.nodes.by_key(file).is_some_and(|node| lock(&node.opens).past > 0)
    }
}
