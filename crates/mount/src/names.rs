//! What requests do to names: files are found, made, removed and renamed, each once.
//!
//! A server may be killed between the change and its answer. The request comes again, and whoever gets it looks whether it
//! was done: while one is at work, the kernel lets nobody else change these names through the mount.
//!
//! ```text
//!   make     the name is there, and was not: it was made
//!   remove   the name stands for another file, or none: it was removed
//!   rename   the new name stands for the file, and the old one does not: it was renamed
//! ```

use crate::attr::attr;
use crate::caller::Caller;
use crate::opens::Backing;
use crate::replicas::FileKey;
use crate::server::{Entry, Opened, Server};
use crate::state::{Before, Turn};
use crate::sync::lock;
use crate::sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

fn number(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Whether a predecessor has made a file: it was not there before.
fn is_made(turn: &Turn<'_>, folder: BorrowedFd<'_>, name: &[u8]) -> bool {
    turn.before() == Some(Before::Begun(0, 0)) && sys::inode_of(folder, name).is_ok()
}

impl Server {
    /// The file of a name, which the kernel is told of once more, by the answer to a request.
    pub(crate) fn lookup(&self, parent: u64, name: &[u8], unique: u64) -> io::Result<Entry> {
        let parent = self.nodes.get(parent)?;
        self.find(self.nodes.file(&parent)?.as_fd(), name, unique)
    }

    /// The same by a descriptor; `unique` is 0 where one answer tells of several files.
    pub(crate) fn find(&self, parent: BorrowedFd<'_>, name: &[u8], unique: u64) -> io::Result<Entry> {
        if name == b"." || name == b".." {
            return Err(number(libc::ENOENT));
        }
        let file = sys::keep(parent, name)?;
        let state = sys::stat(file.as_fd())?;
        let node = self.nodes.enter(file, &state, unique)?;
        Ok(Entry { attr: attr(node.id, &state), generation: node.generation })
    }

    /// Makes a file by `make`, and finds it.
    pub(crate) fn make(
        &self,
        turn: &Turn<'_>,
        parent: u64,
        name: &[u8],
        make: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<Entry> {
        let parent = self.nodes.get(parent)?;
        let folder = self.nodes.file(&parent)?;
        let folder = folder.as_fd();
        if !turn.was_done(|| is_made(turn, folder, name))? {
            turn.begin(sys::inode_of(folder, name).unwrap_or(0), 0);
            turn.done(make(folder))?;
        }
        self.find(folder, name, turn.unique())
    }

    pub(crate) fn link(&self, turn: &Turn<'_>, node: u64, parent: u64, name: &[u8]) -> io::Result<Entry> {
        let node = self.nodes.get(node)?;
        let file = self.nodes.file(&node)?;
        self.make(turn, parent, name, |folder| sys::link(file.as_fd(), folder, name))
    }

    pub(crate) fn remove(&self, turn: &Turn<'_>, parent: u64, name: &[u8], is_dir: bool) -> io::Result<()> {
        let parent = self.nodes.get(parent)?;
        let folder = self.nodes.file(&parent)?;
        let folder = folder.as_fd();
        // Its number is no other file's meanwhile, as the kernel knows it, and so it is kept here.
        let inode = || sys::inode_of(folder, name).unwrap_or(0);
        if turn.was_done(|| !matches!(turn.before(), Some(Before::Begun(before, _)) if before == inode()))? {
            return Ok(());
        }
        self.keep_nameless(folder, name);
        turn.begin(inode(), 0);
        turn.done(sys::unlink(folder, name, is_dir))
    }

    pub(crate) fn rename(&self, turn: &Turn<'_>, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> io::Result<()> {
        let (old, new) = (self.nodes.get(from.0)?, self.nodes.get(to.0)?);
        let (old, new) = (self.nodes.file(&old)?, self.nodes.file(&new)?);
        let (from, to) = ((old.as_fd(), from.1), (new.as_fd(), to.1));
        let inode = |(folder, name)| sys::inode_of(folder, name).unwrap_or(0);
        let is_renamed = || match turn.before() {
            Some(Before::Begun(before, _)) => before == inode(to) && before != inode(from),
            _ => false,
        };
        if turn.was_done(is_renamed)? {
            return Ok(());
        }
        self.keep_nameless(to.0, to.1);
        turn.begin(inode(from), 0);
        turn.done(sys::rename(from, to, flags))
    }

    /// A file that loses its name is found by its descriptor alone.
    fn keep_nameless(&self, folder: BorrowedFd<'_>, name: &[u8]) {
        if self.nodes.is_over_bound()
            && let Ok(state) = sys::keep(folder, name).and_then(|file| sys::stat(file.as_fd()))
        {
            self.nodes.keep(FileKey::of(&state));
        }
    }

    /// The opening of a file that a predecessor has made and opened, where its mode lets nobody open it so again.
    fn made_before(&self, state: &libc::stat, access: i32) -> Option<OwnedFd> {
        let mut made = lock(&self.made);
        let is_its = |file: &OwnedFd| {
            sys::access_of(file.as_fd()) == Some(access)
                && sys::stat(file.as_fd()).is_ok_and(|of| FileKey::of(&of) == FileKey::of(state))
        };
        made.iter().position(is_its).map(|place| made.swap_remove(place))
    }

    /// Makes a file, or opens the one that is there, as `open` does with `O_CREAT`.
    pub(crate) fn create(
        &self,
        turn: &Turn<'_>,
        (parent, name): (u64, &[u8]),
        (mode, mask, flags): (u32, u32, i32),
        caller: Caller,
        backing: impl FnOnce(BorrowedFd<'_>) -> io::Result<Backing>,
    ) -> io::Result<(Entry, Opened)> {
        if let Some((file, opened)) = self.opened_before(turn.unique()) {
            let state = sys::stat(file.as_fd())?;
            let entry = Entry { attr: attr(file.node.id, &state), generation: file.node.generation };
            return Ok((entry, opened));
        }
        let parent = self.nodes.get(parent)?;
        let folder = self.nodes.file(&parent)?;
        let folder = folder.as_fd();
        let access = flags & libc::O_ACCMODE;
        let make = || {
            if turn.was_done(|| is_made(turn, folder, name))? {
                return Ok(None);
            }
            let make = |mode| sys::open(folder, name, access | libc::O_CREAT | libc::O_EXCL, mode);
            turn.begin(sys::inode_of(folder, name).unwrap_or(0), 0);
            turn.done(caller.make(mode, mask, make)).map(Some)
        };
        let made = match make() {
            // Somebody beside the mount was quicker, now or when a server that was killed tried it.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) && flags & libc::O_EXCL == 0 => None,
            made => made?,
        };
        let kept = match &made {
            Some(made) => sys::reopen(made.as_fd(), libc::O_PATH)?,
            None => sys::keep(folder, name)?,
        };
        let state = sys::stat(kept.as_fd())?;
        let made = made.or_else(|| turn.before().and_then(|_| self.made_before(&state, access)));
        if state.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(number(if state.st_mode & libc::S_IFMT == libc::S_IFLNK { libc::ELOOP } else { libc::EEXIST }));
        }
        let node = self.nodes.enter(kept, &state, turn.unique())?;
        let is_cut = made.is_none() && flags & libc::O_TRUNC != 0;
        let opened = || {
            let kept = self.nodes.file(&node)?;
            if is_cut {
                caller.change(|| self.resize(&node, kept.as_fd(), None, 0))?;
            }
            self.open_by(&node, kept.as_fd(), access, (made, turn.unique()), backing)
        };
        match opened() {
            Ok(opened) => Ok((Entry { attr: attr(node.id, &state), generation: node.generation }, opened)),
            Err(error) => {
                self.nodes.untell(&node, turn.unique());
                Err(error)
            }
        }
    }
}
