//! What the requests of the kernel do to the source.
//!
//! Files are reached by the descriptors of their nodes and by single names below them, so that no symbolic link of the
//! source is followed, and nothing outside of it is reached. What a caller may do the kernel has checked.

use crate::attr::attr;
use crate::caller::{Caller, without_set_id};
use crate::given::Shared;
use crate::locks::Locks;
use crate::nodes::{Node, Nodes, ROOT};
use crate::openings::{Handle, OpenFile, Openings, To};
use crate::opens::{Backing, Way};
use crate::replicas::{FileKey, Recall, Replicas};
use crate::state::{Base, Before, State, Turn, Word};
use crate::sync::lock;
use crate::sys;
use fuser::{FileAttr, FopenFlags, INodeNo, Notifier};
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub(crate) struct Server {
    pub(crate) nodes: Nodes,
    pub(crate) openings: Openings,
    pub(crate) locks: Locks,
    pub(crate) state: Arc<State>,
    replicas: Arc<dyn Replicas>,
    pub(crate) is_root: bool,
    /// Whether files are passed to the source by the kernel.
    pub(crate) can_pass: AtomicBool,
    /// What a predecessor has opened for who may not open it again, as it had just been made ([`sys::is_closed_to`]), and whose
    /// request has not come again.
    pub(crate) made: Mutex<Vec<OwnedFd>>,
    /// There from when it is mounted.
    pub(crate) notifier: OnceLock<Notifier>,
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
    pub(crate) backing: Option<Arc<Backing>>,
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

impl Server {
    /// With what the state has of predecessors; of those, what is passed and shared is taken over by
    /// [`Server::adopt_passed`] and [`Server::adopt_shared`].
    pub(crate) fn new(nodes: Nodes, state: Arc<State>, replicas: Arc<dyn Replicas>) -> Self {
        Self {
            openings: Openings::adopt(Arc::clone(&state), &nodes),
            nodes,
            locks: Locks::adopt(Arc::clone(&state.locks)),
            state,
            replicas,
            is_root: sys::is_root(),
            can_pass: AtomicBool::new(false),
            made: Mutex::default(),
            notifier: OnceLock::new(),
        }
    }

    /// Who has files open, of predecessors; `device` is the connection to the kernel.
    pub(crate) fn adopt_passed(&self, device: &Arc<OwnedFd>) {
        for file in self.openings.files() {
            let mut opens = lock(&file.node.opens);
            *if file.is_past { &mut opens.past } else { &mut opens.served } += 1;
        }
        for node in self.nodes.all() {
            let Some(number) = node.backing() else { continue };
            let backing = Backing::new(number, BackingOfDevice { device: Arc::clone(device), number });
            let mut opens = lock(&node.opens);
            if opens.past > 0 {
                opens.backing = Some(Arc::new(backing));
            } else {
                node.set_backing(None);
            }
        }
    }

    /// The files that devices share, of predecessors: by the openings, and by what the daemon has told meanwhile.
    pub(crate) fn adopt_shared(&self) {
        for file in self.openings.files() {
            let mut opens = lock(&file.node.opens);
            let is_shared = file.is_direct || self.replicas.is_wanted(file.node.key);
            if opens.served == 0 || opens.shared.is_some() || !is_shared {
                continue;
            }
            let source = self.nodes.file(&file.node).and_then(|kept| sys::reopen(kept.as_fd(), libc::O_RDONLY));
            // One that cannot be shared any more is written as it is.
            let Ok(shared) = source.and_then(|source| self.shared(&file.node, source.as_fd(), true)) else { continue };
            opens.shared = Some(Arc::new(shared));
        }
        let mut bases: HashMap<u64, Vec<(u64, Base)>> = HashMap::new();
        self.state.bases.all().into_iter().for_each(|(node, page, base)| {
            bases.entry(node).or_default().push((page, base));
        });
        for (node, pages) in bases {
            let shared = self.nodes.get(node).ok().and_then(|node| lock(&node.opens).shared.clone());
            match shared {
                Some(shared) => shared.adopt(pages),
                None => self.state.bases.remove(pages.into_iter().map(|(_, base)| base)),
            }
        }
    }

    /// Has the kernel return what programs have stored into their mappings of all files that devices share. Not by a thread
    /// that serves.
    pub(crate) fn recall_all(&self) {
        for node in self.nodes.all() {
            let is_shared = lock(&node.opens).shared.is_some();
            if is_shared {
                // Where the kernel does not answer any more, there is nothing to be had.
                let _ = self.recall(node.key, 0..i64::MAX as u64);
            }
        }
    }

    fn shared(&self, node: &Node, source: BorrowedFd<'_>, had_unknown: bool) -> io::Result<Shared> {
        let file = self.replicas.open(source)?;
        Ok(Shared::new(file, node.id, Arc::clone(&self.state.bases), had_unknown))
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

    pub(crate) fn resize(&self, node: &Node, file: BorrowedFd<'_>, handle: Option<u64>, size: u64) -> io::Result<()> {
        let shared = lock(&node.opens).shared.clone();
        let open = handle.and_then(|handle| self.openings.file(handle).ok());
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
        turn: &Turn<'_>,
    ) -> io::Result<()> {
        self.with_attributes(node, |file| {
            let mut found = vec![0; value.len()];
            let mut is_set =
                || sys::get_attribute(file, key, &mut found).is_ok_and(|len| len == value.len() && found == value);
            let is_there = || sys::get_attribute(file, key, &mut []).is_ok();
            if turn.was_done(|| turn.before() == Some(Before::Begun(0, 0)) && is_set())? {
                return Ok(());
            }
            turn.begin(is_there().into(), 0);
            turn.done(caller.change(|| sys::set_attribute(file, key, value, flags)))
        })
    }

    pub(crate) fn remove_attribute(&self, node: u64, key: &CStr, turn: &Turn<'_>) -> io::Result<()> {
        self.with_attributes(node, |file| {
            let is_there = || sys::get_attribute(file, key, &mut []).is_ok();
            if turn.was_done(|| turn.before() == Some(Before::Begun(1, 0)) && !is_there())? {
                return Ok(());
            }
            turn.begin(is_there().into(), 0);
            turn.done(sys::remove_attribute(file, key))
        })
    }

    // Openings.

    /// Opens a file of the source; `backing` has the kernel pass it.
    pub(crate) fn open(
        &self,
        node: &Arc<Node>,
        flags: i32,
        unique: u64,
        backing: impl FnOnce(BorrowedFd<'_>) -> io::Result<Backing>,
    ) -> io::Result<Opened> {
        if let Some((_, opened)) = self.opened_before(unique) {
            return Ok(opened);
        }
        let kept = self.nodes.file(node)?;
        self.open_by(node, kept.as_fd(), flags & libc::O_ACCMODE, (None, unique), backing)
    }

    /// What a predecessor has opened for a request that comes again.
    pub(crate) fn opened_before(&self, unique: u64) -> Option<(Arc<OpenFile>, Opened)> {
        let (handle, Handle::File(file)) = self.openings.before(unique)? else { return None };
        let flags = if file.is_direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
        let backing = if file.is_past { lock(&file.node.opens).backing.clone() } else { None };
        Some((file, Opened { handle, flags, backing }))
    }

    pub(crate) fn open_by(
        &self,
        node: &Arc<Node>,
        kept: BorrowedFd<'_>,
        access: i32,
        (made, unique): (Option<OwnedFd>, u64),
        backing: impl FnOnce(BorrowedFd<'_>) -> io::Result<Backing>,
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
                    opens.shared = Some(Arc::new(self.shared(node, file.as_fd(), opens.served > 0)?));
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
                    node.set_backing(opens.backing.as_ref().map(|backing| backing.number));
                }
                let is_past = opens.backing.is_some();
                (file, FopenFlags::empty(), is_past)
            }
        };
        let backing = if is_past { opens.backing.clone() } else { None };
        let is_direct = flags.contains(FopenFlags::FOPEN_DIRECT_IO);
        let file = OpenFile { node: Arc::clone(node), file: file.into(), is_past, is_direct };
        let handle = self.openings.hold(Handle::File(Arc::new(file)), unique)?;
        if is_past {
            opens.past += 1;
        } else {
            opens.served += 1;
        }
        Ok(Opened { handle, flags, backing })
    }

    /// Whether the kernel passes a file. One that it cannot pass at all is served, and so are all others from then on if it
    /// does not let this process.
    fn passed(&self, backing: io::Result<Backing>) -> Option<Backing> {
        let error = match backing {
            Ok(backing) => return Some(backing),
            Err(error) => error,
        };
        if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP)) {
            self.can_pass.store(false, Ordering::Relaxed);
            self.state.set(Word::CannotPass, 1);
        }
        None
    }

    /// Writes, as [`OpenFile::write`]; `is_killing` says that the bits go that have a program run as another user. The kernel
    /// does not look at the mode afterwards by itself.
    pub(crate) fn write(
        &self,
        handle: u64,
        (to, bytes): (To, &[u8]),
        is_killing: bool,
        turn: &Turn<'_>,
    ) -> io::Result<usize> {
        let file = self.openings.file(handle)?;
        if !is_killing {
            return file.write(to, bytes, turn);
        }
        let has_set_id = sys::stat(file.as_fd())?.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        let written = without_set_id(self.is_root, || file.write(to, bytes, turn));
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

    pub(crate) fn open_folder_of(&self, node: u64, unique: u64) -> io::Result<u64> {
        if let Some((handle, _)) = self.openings.before(unique) {
            return Ok(handle);
        }
        let node = self.nodes.get(node)?;
        let file = sys::reopen(self.nodes.file(&node)?.as_fd(), libc::O_RDONLY | libc::O_DIRECTORY)?;
        self.openings.hold(Handle::of_folder(node, file), unique)
    }

    pub(crate) fn release(&self, handle: u64) {
        if let Ok(file) = self.openings.file(handle) {
            // Before it is noted no longer: a successor that does not know of it would leave them.
            self.locks.released(file.node.id, handle);
        }
        if let Some(Handle::File(file)) = self.openings.release(handle) {
            let mut opens = lock(&file.node.opens);
            let gone = opens.closed(file.is_past);
            if gone.0.is_some() {
                file.node.set_backing(None);
            }
            drop(opens);
            // Closing takes its time, and the node is free meanwhile.
            drop(gone);
        }
    }
}

/// Has the kernel forget a file that it passed, by the connection that a predecessor had.
struct BackingOfDevice {
    device: Arc<OwnedFd>,
    number: u32,
}

impl Drop for BackingOfDevice {
    fn drop(&mut self) {
        sys::close_backing(self.device.as_fd(), self.number);
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
                opens.shared = Some(Arc::new(self.shared(&node, source.as_fd(), true)?));
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
            self.state.while_recalling(|| notifier.inval_inode(INodeNo(node.id), range.start as i64, len))?;
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
