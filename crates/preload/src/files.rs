//! Open files behind the program's descriptors, kept between calls.
//!
//! A file is known by device, inode and what it is opened for, and is looked up anew by each call, so that a
//! descriptor that means another file by now is no trouble. It is closed when the last descriptor that it was
//! used by is closed. One that ends in another way (`fclose`, `dup2`) leaves it open until there are too many,
//! and those are closed first that no descriptor of the program names any more: a program's record locks on a
//! file (`fcntl`) end when its process closes any descriptor of it.

use crate::log;
use bifolio_device::fork::Birth;
use bifolio_io::OpenFile;
use libc::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

/// From this many files on, those that no descriptor names any more are closed.
const FILES_MAX: usize = 256;
/// Descriptors up to this number are watched for their end.
const WATCHED_MAX: usize = 1 << 16;

/// A file by identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    device: u64,
    inode: u64,
    writable: bool,
}

/// An open file, and the order of calls that use its position.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) file: OpenFile,
    /// Held by calls that move a descriptor's position.
    pub(crate) position: Mutex<()>,
}

struct Entry {
    key: Key,
    kept: Arc<Kept>,
    descriptors: Vec<c_int>,
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) fd: c_int,
    /// `F_GETFL`.
    pub(crate) flags: c_int,
    stat: libc::stat,
}

/// Files, the latest used last.
static KEPT: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static WATCHED: [AtomicU64; WATCHED_MAX / 64] = [const { AtomicU64::new(0) }; WATCHED_MAX / 64];
/// Descriptors whose latest short read was cached: a hint, which a number that means another file by now may have
/// inherited.
static CACHED: [AtomicU64; WATCHED_MAX / 64] = [const { AtomicU64::new(0) }; WATCHED_MAX / 64];
static BIRTH: OnceLock<Birth> = OnceLock::new();
static PROCESS: OnceLock<c_int> = OnceLock::new();

/// Whether the latest short read of a descriptor was cached.
pub(crate) fn is_cached(fd: c_int) -> bool {
    CACHED.get(fd as usize / 64).is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0)
}

/// Notes whether it was.
pub(crate) fn note_cached(fd: c_int, is_cached: bool) {
    let Some(word) = CACHED.get(fd as usize / 64) else { return };
    let bit = 1 << (fd % 64);
    match word.load(Ordering::Relaxed) & bit != 0 {
        was if was == is_cached => {}
        true => _ = word.fetch_and(!bit, Ordering::Relaxed),
        false => _ = word.fetch_or(bit, Ordering::Relaxed),
    }
}

/// Whether this process was forked from one that used device memory.
pub(crate) fn was_forked() -> bool {
    BIRTH.get_or_init(Birth::here).was_elsewhere()
}

/// Whether this is the process that used device memory: a child of `vfork` shares its memory, and nobody tells.
fn is_ours() -> bool {
    // SAFETY: asks for a number.
    PROCESS.get().is_some_and(|pid| *pid == unsafe { libc::getpid() })
}

impl Key {
    /// Whether a descriptor of the program's is this file.
    fn is_named_by(&self, fd: c_int) -> bool {
        Descriptor::of(fd).is_ok_and(|now| (now.stat.st_dev, now.stat.st_ino) == (self.device, self.inode))
    }
}

impl Descriptor {
    /// Looks at a descriptor; errno where there is none.
    pub(crate) fn of(fd: c_int) -> Result<Self, c_int> {
        // SAFETY: `stat` is plain old data, for which zeroes are a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: asks about a number that may be a descriptor; `stat` is writable.
        let (flags, known) = unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::fstat(fd, &raw mut stat)) };
        if flags < 0 || known < 0 { Err(crate::real::errno()) } else { Ok(Self { fd, flags, stat }) }
    }

    pub(crate) fn may_read(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY && self.flags & libc::O_PATH == 0
    }

    pub(crate) fn may_write(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY && self.flags & libc::O_PATH == 0
    }

    /// Whether it has offsets that a router can read and write at.
    pub(crate) fn has_offsets(&self) -> bool {
        self.is_regular() || self.stat.st_mode & libc::S_IFMT == libc::S_IFBLK
    }

    /// Whether plain reads of it come out of the page cache.
    pub(crate) fn reads_the_cache(&self) -> bool {
        self.is_regular() && self.flags & libc::O_DIRECT == 0
    }

    /// Whether a short count of it means its end or a full disk.
    pub(crate) fn is_regular(&self) -> bool {
        self.stat.st_mode & libc::S_IFMT == libc::S_IFREG
    }

    /// The file behind it; none where that cannot be opened anew, such as a pipe, or a file that this process
    /// may not open any more.
    pub(crate) fn file(&self) -> Option<Arc<Kept>> {
        if !self.has_offsets() {
            return None;
        }
        let key = Key { device: self.stat.st_dev, inode: self.stat.st_ino, writable: self.may_write() };
        if let Some(kept) = find(key, self.fd) {
            return Some(kept);
        }
        // SAFETY: the program keeps its descriptor open during its call.
        let opened = OpenFile::of_descriptor(unsafe { BorrowedFd::borrow_raw(self.fd) });
        let file = opened.inspect_err(|error| log::say(format_args!("{error}; reading through host memory"))).ok()?;
        // SAFETY: asks for a number.
        PROCESS.get_or_init(|| unsafe { libc::getpid() });
        let kept = Arc::new(Kept { file, position: Mutex::default() });
        keep(Entry { key, kept: Arc::clone(&kept), descriptors: vec![] });
        find(key, self.fd)
    }
}

impl Descriptor {
    /// The file opened once more, after the program has closed our descriptor of it.
    pub(crate) fn anew(&self, file: &Arc<Kept>) -> Result<Arc<Kept>, c_int> {
        forget(file);
        self.file().ok_or(libc::EIO)
    }
}

fn find(key: Key, fd: c_int) -> Option<Arc<Kept>> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = kept.iter().position(|entry| entry.key == key)?;
    let last = kept.len() - 1;
    kept[at..].rotate_left(1);
    let entry = &mut kept[last];
    if !entry.descriptors.contains(&fd) {
        entry.descriptors.push(fd);
    }
    let found = Arc::clone(&entry.kept);
    drop(kept);
    if let Some(word) = WATCHED.get(fd as usize / 64) {
        word.fetch_or(1 << (fd % 64), Ordering::Relaxed);
    }
    Some(found)
}

fn keep(entry: Entry) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have come first.
    let spare = if kept.iter().any(|known| known.key == entry.key) {
        Some(entry)
    } else {
        let unused = |entry: &Entry| !entry.descriptors.iter().any(|fd| entry.key.is_named_by(*fd));
        let oldest = if kept.len() >= FILES_MAX { kept.iter().position(unused) } else { None };
        let oldest = oldest.map(|at| kept.remove(at));
        kept.push(entry);
        oldest
    };
    // Closing comes back to this module.
    drop(kept);
    drop(spare);
}

/// Forgets a file whose descriptor the program has closed: its number may be another file's by now.
pub(crate) fn forget(file: &Arc<Kept>) {
    std::mem::forget(Arc::clone(file));
    close(file);
}

/// Closes a file after a failed write, so that the next write is not refused for it.
pub(crate) fn close(file: &Arc<Kept>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = kept.iter().position(|entry| Arc::ptr_eq(&entry.kept, file));
    let closed = at.map(|at| kept.remove(at));
    drop(kept);
    drop(closed);
}

/// Notes that the program has closed a descriptor.
#[inline]
pub(crate) fn closed(fd: c_int) {
    let Some(word) = WATCHED.get(fd as usize / 64) else { return };
    if fd >= 0 && word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0 {
        word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
        end(fd);
    }
}

/// Closes everything, before the program closes numbers that are not its.
pub(crate) fn close_all() {
    if !is_ours() {
        return;
    }
    let Ok(mut kept) = KEPT.try_lock() else { return };
    let ended = std::mem::take(&mut *kept);
    drop(kept);
    drop(ended);
}

#[cold]
fn end(fd: c_int) {
    if !is_ours() {
        return;
    }
    let mut kept = match KEPT.try_lock() {
        Ok(kept) => kept,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // One of our own descriptors, or a race: the file stays until others need the room.
        Err(TryLockError::WouldBlock) => return,
    };
    let mut ended = Vec::new();
    for entry in &mut *kept {
        entry.descriptors.retain(|known| *known != fd);
    }
    while let Some(at) = kept.iter().position(|entry| entry.descriptors.is_empty()) {
        ended.push(kept.remove(at));
    }
    drop(kept);
    drop(ended);
}
