//! One open file as the engines see it: what it is, how large, and how it may be read unbuffered.

use crate::readahead::{Advice, Readahead};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{DeviceId, DirectFile};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

/// Kernels before 6.13 stamp changes with the time of the latest tick, 10 ms at the coarsest.
const CHANGE_GRANULARITY: Duration = Duration::from_millis(20);

/// The block layer gives a request up after this time, where nobody has set another.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// An open for writing is refused while somebody takes and gives back a read lease, as our own readahead
/// does; that takes microseconds.
const LEASES_MAX: u32 = 100;
const LEASE_PAUSE: Duration = Duration::from_millis(1);

/// `fcntl(2)`: which signal tells that a lease is to be given back (`asm-generic/fcntl.h`).
const F_SETSIG: i32 = 10;

/// Unbuffered reads when the kernel does not say (before 6.1): the page size suits every device.
const ALIGNMENT_FALLBACK: u64 = 4096;

/// The latest request counts for one part in so many of what is expected of the next.
const LATEST_WEIGHT: i64 = 4;

/// A file, or a block device, opened for reading. It may grow or shrink while it is open.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each asked by its name")]
#[derive(Debug)]
pub struct PlainFile {
    path: PathBuf,
    buffered: Arc<File>,
    is_block_device: bool,
    in_memory: bool,
    direct: OnceLock<std::result::Result<Direct, String>>,
    /// Set when a read was refused although the open succeeded.
    direct_refused: Mutex<Option<String>>,
    /// The file as the driver of one device's direct path knows it; attached when first asked for.
    pub(crate) direct_path: OnceLock<std::result::Result<(DeviceId, DirectFile), String>>,
    /// For asking whether single pages are cached; opened when first needed.
    probe: OnceLock<Arc<File>>,
    /// Which part of the latest requests was cached, of `u32::MAX`, and whether the latest was.
    part_cached: AtomicU32,
    latest_cached: AtomicBool,
    /// Ranges registered for copies straight out of the page cache.
    pub(crate) windows: crate::engine::mapped::Windows,
    /// Device and inode.
    identity: (u64, u64),
    /// Whether it is opened for a program that does not know of it.
    is_guest: bool,
    /// Whether it was opened for writing, and the first failed write after that.
    writable: bool,
    latched: OnceLock<String>,
    /// Shared by writes while they run; a failed one that cuts the file back waits for the others.
    writing: RwLock<()>,
    /// Its sequential readers.
    pub(crate) readahead: Readahead,
}

/// Why there is no descriptor for unbuffered transfers.
enum Refusal {
    /// Descriptors have run out; later there may be some.
    ForNow(String),
    ForGood(String),
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
    /// The same, of a new file if there is none.
    Create,
}

/// What tells that a file may have been cut and written anew: size, and times of the latest
/// change of content and of the inode (always 0 for block devices, which cannot be cut).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    changed: [i64; 4],
}

impl Stamp {
    /// Since the latest change.
    fn age(&self) -> Duration {
        let changed = Duration::new(self.changed[2].max(0) as u64, self.changed[3].max(0) as u32);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(changed)
    }
}

/// What a file looked like at some moment.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    stamp: Stamp,
    /// Whether a later change would show.
    is_sure: bool,
}

impl Observation {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }
}

/// A second descriptor for unbuffered reads.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) file: File,
    /// Offsets, lengths and addresses are multiples of this many bytes.
    pub(crate) alignment: u64,
}

impl PlainFile {
    /// Opens a regular file or a block device.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), Access::Read)
    }

    /// The file behind a descriptor, opened anew.
    pub(crate) fn of_descriptor(descriptor: BorrowedFd<'_>) -> Result<Self> {
        let link = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        // SAFETY: asks for the flags of an open descriptor.
        let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(Error::system(&link, "asking for its flags", io::Error::last_os_error()));
        }
        let access = if flags & libc::O_ACCMODE == libc::O_RDONLY { Access::Read } else { Access::Write };
        let mut file = beyond_standard_streams(|| Self::open_with(&link, access))?;
        file.is_guest = true;
        // For messages; what is opened later is opened through the descriptors at hand.
        file.path = std::fs::read_link(&link).unwrap_or(link);
        Ok(file)
    }

    /// Opens a regular file or a block device.
    pub(crate) fn open_with(path: &Path, access: Access) -> Result<Self> {
        // Looked at before it is opened: opening a pipe would wait for its writer.
        match std::fs::metadata(path) {
            Ok(before) => refuse_others(path, before.file_type())?,
            Err(error) if access == Access::Create && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(open_error(path, error)),
        }
        let mut options = File::options();
        options.read(true).write(access != Access::Read).create(access == Access::Create);
        let mut opened = options.custom_flags(libc::O_NONBLOCK).open(path);
        for _ in 0..LEASES_MAX {
            match &opened {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LEASE_PAUSE),
                _ => break,
            }
            opened = options.open(path);
        }
        let buffered = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if access == Access::Create => {
                Error::new(ErrorKind::NotFound, path, "the folder that it should be in does not exist")
                    .with_source(error)
            }
            _ => open_error(path, error),
        })?;
        let metadata = buffered.metadata().map_err(|error| open_error(path, error))?;
        refuse_others(path, metadata.file_type())?;
        let file = Self {
            path: path.to_owned(),
            is_block_device: metadata.file_type().is_block_device(),
            identity: (metadata.dev(), metadata.ino()),
            is_guest: false,
            // A device node lives on devtmpfs, its content does not.
            in_memory: !metadata.file_type().is_block_device() && lives_in_memory(&buffered),
            buffered: Arc::new(buffered),
            direct: OnceLock::new(),
            direct_refused: Mutex::default(),
            direct_path: OnceLock::new(),
            probe: OnceLock::new(),
            part_cached: AtomicU32::new(u32::MAX),
            latest_cached: AtomicBool::new(false),
            windows: crate::engine::mapped::Windows::default(),
            writable: access != Access::Read,
            latched: OnceLock::new(),
            writing: RwLock::default(),
            readahead: Readahead::default(),
        };
        file.refuse_sizeless(&metadata)?;
        Ok(file)
    }

    /// The path under which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor for reads through the page cache.
    pub fn buffered(&self) -> &File {
        &self.buffered
    }

    /// Its size, or none if its descriptor is not its own any more: a program that closes numbers that are not
    /// its may have put another file there.
    pub(crate) fn size_if_intact(&self) -> Option<u64> {
        let metadata = self.buffered.metadata().ok()?;
        let is_intact = (metadata.dev(), metadata.ino()) == self.identity;
        if is_intact && self.is_block_device { self.size().ok() } else { is_intact.then_some(metadata.len()) }
    }

    /// Whether both are the same file, under whatever names.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
        let mine = identity(&self.buffered);
        mine.is_some() && mine == identity(&other.buffered)
    }

    /// Whether it is a block device, which has a fixed size.
    pub(crate) fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Whether it was opened for writing, too.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Refuses writes to a file that was opened for reading, or where one has failed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if !self.writable {
            let detail = "it was opened for reading only; open it for writing";
            return Err(Error::new(ErrorKind::ReadOnly, &self.path, detail));
        }
        match self.latched.get() {
            None => Ok(()),
            Some(first) => {
                let detail = format!(
                    "an earlier write failed ({first}), so later ones are refused; check the file, and open it again"
                );
                Err(Error::new(ErrorKind::Latched, &self.path, detail))
            }
        }
    }

    /// Remembers that a write has failed; the first failure counts.
    pub(crate) fn latch(&self, error: &Error) {
        let _ = self.latched.set(error.to_string());
    }

    /// Held by a write while it runs.
    pub(crate) fn writing(&self) -> RwLockReadGuard<'_, ()> {
        self.writing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same without waiting.
    pub(crate) fn try_writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.writing.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes back what a failed write up to `end` has added to the file, unless somebody else has
    /// written beyond it.
    pub(crate) fn cut_back(&self, size: u64, end: u64) {
        // Nobody of ours may write beyond the end between the look and the cut.
        let _alone = self.writing.write().unwrap_or_else(PoisonError::into_inner);
        if !self.is_block_device && self.size().is_ok_and(|now| now > size && now <= end) {
            // A failure leaves allocated zeroes behind, which the error of the write covers.
            let _ = self.buffered.set_len(size);
        }
    }

    /// Says how it will be read.
    pub(crate) fn advise(&self, advice: Advice) {
        let to_kernel = match advice {
            Advice::Normal => libc::POSIX_FADV_NORMAL,
            Advice::Sequential => libc::POSIX_FADV_SEQUENTIAL,
            Advice::Random => libc::POSIX_FADV_RANDOM,
        };
        // SAFETY: advice on an open descriptor; a file system that does not take it does without.
        unsafe { libc::posix_fadvise(self.buffered.as_raw_fd(), 0, 0, to_kernel) };
        self.readahead.advise(advice);
    }

    /// Size in bytes at this moment.
    pub fn size(&self) -> Result<u64> {
        let size = if self.is_block_device {
            let mut end = &*self.buffered;
            io::Seek::seek(&mut end, io::SeekFrom::End(0))
        } else {
            self.buffered.metadata().map(|metadata| metadata.len())
        };
        size.map_err(|error| Error::system(&self.path, "asking for its size", error))
    }

    /// Size and times of change at this moment.
    pub(crate) fn stamp(&self) -> Result<Stamp> {
        if self.is_block_device {
            return Ok(Stamp { size: self.size()?, changed: [0; 4] });
        }
        let metadata = self.buffered.metadata();
        let metadata = metadata.map_err(|error| Error::system(&self.path, "asking for its size", error))?;
        let changed = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        Ok(Stamp { size: metadata.len(), changed })
    }

    /// Whether registrations of it may be kept. A block device has no times that tell of a write
    /// past the page cache by somebody else, which replaces its pages. Times of change have the
    /// granularity of a clock tick, so a state that is younger may be two; and such a write moves them
    /// when it begins, and the pages when it ends. So either nobody has the file open for writing,
    /// or its latest write began so long ago that a disk has done it or given up.
    pub(crate) fn may_keep_registrations(&self, stamp: &Stamp) -> bool {
        let age = stamp.age();
        !self.is_block_device && (age > WRITE_TIME_MAX || age > CHANGE_GRANULARITY && self.has_no_writers())
    }

    /// Whether the file lives in the page cache only (tmpfs, ramfs).
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// The part of the latest requests' bytes, 0 to 1, that was found in the page cache, later requests
    /// counting more; 1 before the first.
    pub(crate) fn part_cached(&self) -> f64 {
        f64::from(self.part_cached.load(Ordering::Relaxed)) / f64::from(u32::MAX)
    }

    /// Whether all of the latest request was.
    pub(crate) fn was_cached(&self) -> bool {
        self.latest_cached.load(Ordering::Relaxed)
    }

    /// Notes which part of a request, 0 to 1, was in the page cache.
    pub(crate) fn note_cached(&self, part: f64) {
        self.latest_cached.store(part >= 1.0, Ordering::Relaxed);
        // Lost updates of concurrent requests do no harm: it is an estimate.
        let before = self.part_cached.load(Ordering::Relaxed);
        let target = (part * f64::from(u32::MAX)) as u32;
        let step = (i64::from(target) - i64::from(before)) / LATEST_WEIGHT;
        self.part_cached.store((i64::from(before) + step) as u32, Ordering::Relaxed);
    }

    /// A descriptor for `RWF_NOWAIT` questions. A "no" starts readahead in current kernels; advice
    /// of random access, which is kept apart from the readers' descriptor, limits it to the page.
    pub(crate) fn probe(&self) -> &File {
        if self.probe.get().is_none()
            && let Ok(file) = self.again(|link| File::open(link))
        {
            // SAFETY: advice on an open descriptor.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
            let _ = self.probe.set(Arc::new(file));
        }
        self.probe.get().unwrap_or(&self.buffered)
    }

    /// Whether nobody can change the file without its stamp telling: it is not open for writing
    /// anywhere, and `stamp` is older than a clock tick. A store into a mapping moves the times of
    /// change when it first touches a page, so only mappings that exist already would escape.
    pub(crate) fn is_unchanging(&self, stamp: &Stamp) -> bool {
        !self.is_block_device && stamp.age() > CHANGE_GRANULARITY && !self.in_memory && self.has_no_writers()
    }

    /// What it looks like now, to be asked later whether it has changed.
    pub(crate) fn observe(&self) -> Result<Observation> {
        let stamp = self.stamp()?;
        let age = stamp.age();
        let is_settled = age > CHANGE_GRANULARITY || has_fine_times() && !self.in_memory;
        Ok(Observation {
            stamp,
            is_sure: is_settled && !self.is_block_device && !self.in_memory && self.has_no_writers(),
        })
    }

    /// Whether it is certain that nobody has changed it since: size and times are the same, and nobody had it
    /// open for writing, mapped included, then or has now. Times move with every write, and with the first
    /// store to a page through a mapping, for which it must have been open; not so in memory (tmpfs).
    pub(crate) fn is_unchanged_since(&self, then: &Observation) -> Result<bool> {
        Ok(then.is_sure && self.stamp()? == then.stamp && self.has_no_writers())
    }

    /// Asks by taking a read lease, which the kernel grants only on files that nobody has open for
    /// writing, and giving it back. False also where it may not be asked: the lease of a file of
    /// somebody else, file systems without leases.
    fn has_no_writers(&self) -> bool {
        let fd = self.probe().as_raw_fd();
        // SAFETY: requests on an open descriptor of ours. If somebody opens the file for writing in
        // between, the kernel tells by a signal; SIGURG is one that is ignored by default, where
        // its usual SIGIO would end the process.
        unsafe {
            libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
        }
    }

    /// The same descriptor, for owners of their own.
    pub(crate) fn probe_shared(&self) -> Arc<File> {
        self.probe();
        Arc::clone(self.probe.get().unwrap_or(&self.buffered))
    }

    /// The descriptor for unbuffered reads, or why there is none.
    pub(crate) fn direct(&self) -> std::result::Result<&Direct, String> {
        if let Some(reason) = self.direct_refused.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Err(reason);
        }
        if let Some(known) = self.direct.get() {
            return known.as_ref().map_err(Clone::clone);
        }
        match self.open_direct() {
            Err(Refusal::ForNow(reason)) => Err(reason),
            Err(Refusal::ForGood(reason)) => self.direct.get_or_init(|| Err(reason)).as_ref().map_err(Clone::clone),
            Ok(direct) => self.direct.get_or_init(|| Ok(direct)).as_ref().map_err(Clone::clone),
        }
    }

    /// Remembers that the file system refused an unbuffered read after all.
    pub(crate) fn refuse_direct(&self, reason: String) {
        *self.direct_refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    /// Opens the same inode once more, whatever its path names by now.
    fn again<T>(&self, open: impl FnOnce(&Path) -> T) -> T {
        let link = PathBuf::from(format!("/proc/self/fd/{}", self.buffered.as_raw_fd()));
        if self.is_guest { beyond_standard_streams(|| open(&link)) } else { open(&link) }
    }

    fn open_direct(&self) -> std::result::Result<Direct, Refusal> {
        let for_good = |reason: String| Err(Refusal::ForGood(reason));
        if self.in_memory {
            let reason = "the file system keeps the file in memory; there is nothing below the page cache";
            return for_good(reason.to_owned());
        }
        let alignment = direct_alignment(&self.buffered).map_err(Refusal::ForGood)?;
        // Through /proc the second descriptor is the same inode, whatever the path names by now.
        let open =
            |path: &Path| File::options().read(true).write(self.writable).custom_flags(libc::O_DIRECT).open(path);
        let file = match self.again(open).or_else(|_| open(&self.path)) {
            Ok(file) => file,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Err(Refusal::ForNow(format!("a second descriptor for O_DIRECT cannot be opened: {error}")));
            }
            Err(error) => return for_good(format!("the file system refuses O_DIRECT: {error}")),
        };
        let same = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
        if same(&file) != same(&self.buffered) {
            return for_good("the path names another file by now".to_owned());
        }
        Ok(Direct { file, alignment })
    }

    /// Files of /proc report no size but have content, and those of /sys report a page; neither can
    /// be planned for.
    fn refuse_sizeless(&self, metadata: &std::fs::Metadata) -> Result<()> {
        if file_system_type(&self.buffered) == Some(libc::SYSFS_MAGIC as u32) {
            let detail = "files of /sys do not report their size; copy it to a regular file first";
            return Err(Error::new(ErrorKind::NotAFile, &self.path, detail));
        }
        if self.is_block_device || metadata.len() > 0 {
            return Ok(());
        }
        let mut byte = [0];
        let read = std::os::unix::fs::FileExt::read_at(&*self.buffered, &mut byte, 0);
        if matches!(read, Ok(1)) && self.size()? == 0 {
            let detail = "the file reports no size although it has content, as files of /proc do; copy it to a regular file first";
            return Err(Error::new(ErrorKind::NotAFile, &self.path, detail));
        }
        Ok(())
    }
}

fn open_error(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, path, "there is no such file").with_source(error),
        _ => Error::system(path, "opening it", error),
    }
}

/// Opens something with the numbers of standard streams taken: where a program has closed those, the lowest
/// free number is where others write what is meant for them. (Moving a descriptor afterwards would close the first,
/// and with it the program's record locks on the file.)
fn beyond_standard_streams<T>(open: impl FnOnce() -> T) -> T {
    // SAFETY: a question about a number.
    let is_closed = |number: &i32| unsafe { libc::fcntl(*number, libc::F_GETFD) } < 0;
    let _taken: Vec<_> = (0..3).filter(is_closed).map(|_| File::open("/dev/null")).collect();
    open()
}

/// Whether the kernel gives a change that follows a look at the times a time of its own (multigrain
/// timestamps, since Linux 6.13).
fn has_fine_times() -> bool {
    static FINE: OnceLock<bool> = OnceLock::new();
    *FINE.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 13)
    })
}

fn refuse_others(path: &Path, kind: std::fs::FileType) -> Result<()> {
    let what = if kind.is_dir() {
        "is a directory; name a file in it"
    } else if kind.is_fifo() {
        "is a pipe, which has no offsets; write it to a file first"
    } else if kind.is_socket() {
        "is a socket, which has no offsets"
    } else if kind.is_char_device() {
        "is a character device, which has no offsets"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::NotAFile, path, what))
}

/// `f_type` of ramfs (`linux/magic.h`).
const RAMFS_MAGIC: u32 = 0x8584_58f6;

fn lives_in_memory(file: &File) -> bool {
    let in_memory = [libc::TMPFS_MAGIC as u32, libc::HUGETLBFS_MAGIC as u32, RAMFS_MAGIC];
    file_system_type(file).is_some_and(|kind| in_memory.contains(&kind))
}

/// `f_type` of the file system that holds a file.
fn file_system_type(file: &File) -> Option<u32> {
    // SAFETY: `statfs` is plain old data, for which zeroes are a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) } == 0;
    known.then_some(stat.f_type as u32)
}

/// What unbuffered reads must be aligned to (`statx`, `STATX_DIOALIGN`, since Linux 6.1).
fn direct_alignment(file: &File) -> std::result::Result<u64, String> {
    // SAFETY: `statx` is plain old data, for which zeroes are a valid value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags, mask) = (file.as_raw_fd(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is an empty C string, `stat` is writable.
    let known = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut stat) } == 0;
    if !known || stat.stx_mask & mask == 0 {
        return Ok(ALIGNMENT_FALLBACK);
    }
    match (stat.stx_dio_offset_align, stat.stx_dio_mem_align) {
        (0, _) => Err("the file system does not offer unbuffered reads of this file".to_owned()),
        (offset, memory) => Ok(u64::from(offset.max(memory))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        PlainFile::open(path).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_file_is_refused_with_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(refusal(&fifo).contains("is a pipe"));
        assert!(refusal(dir.path()).contains("is a directory"));
        assert!(refusal(Path::new("/dev/null")).contains("character device"));
        assert!(refusal(Path::new("/proc/self/status")).contains("reports no size"));
        if Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            assert!(refusal(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")).contains("files of /sys"));
        }
        assert!(refusal(&dir.path().join("absent")).contains("there is no such file"));
    }

    #[test]
    fn a_file_in_memory_has_no_unbuffered_reads() {
        let path = Path::new("/dev/shm").join(format!("bifolio-{}", std::process::id()));
        if std::fs::write(&path, b"x").is_err() {
            println!("skipped: /dev/shm is not writable here");
            return;
        }
        let file = PlainFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(file.is_in_memory());
        assert!(file.direct().unwrap_err().contains("in memory"));
    }

    #[test]
    fn size_follows_the_file() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        let file = PlainFile::open(temporary.path()).unwrap();
        assert_eq!(file.size().unwrap(), 0);
        temporary.as_file().set_len(12_345).unwrap();
        assert_eq!(file.size().unwrap(), 12_345);
    }
}
