//! One open file as the engines see it: what it is, how large, and how it may be read unbuffered.

use super::attachments::{Attachments, Kept};
use super::descriptors::{Descriptors, Direct, beyond_standard_streams};
use super::file_system::{self, Times};
use crate::options::Advice;
use crate::{Error, ErrorKind, Result};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

/// An open for writing is refused while somebody takes and gives back a read lease, as our own readahead
/// does; that takes microseconds.
const LEASES_MAX: u32 = 100;
const LEASE_PAUSE: Duration = Duration::from_millis(1);

/// The latest request counts for one part in so many of what is expected of the next.
const LATEST_WEIGHT: i64 = 4;

/// A file, or a block device, opened for reading. It may grow or shrink while it is open.
#[derive(Debug)]
pub struct PlainFile {
    path: PathBuf,
    descriptors: Descriptors,
    is_block_device: bool,
    in_memory: bool,
    /// Found out when it is first asked for.
    times: OnceLock<Times>,
    /// Device and inode.
    identity: (u64, u64),
    /// Which part of the latest requests was cached, of `u32::MAX`, and whether the latest was.
    part_cached: AtomicU32,
    latest_cached: AtomicBool,
    advice: AtomicU8,
    /// The first failed write.
    latched: OnceLock<String>,
    /// Shared by writes while they run; a failed one that cuts the file back waits for the others.
    writing: RwLock<()>,
    attachments: Attachments,
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

impl PlainFile {
    /// Opens a regular file or a block device.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), Access::Read)
    }

    /// Opens a regular file or a block device.
    pub(crate) fn open_with(path: &Path, access: Access) -> Result<Self> {
        Self::open_for(path, access, false)
    }

    /// The file behind a descriptor, opened anew.
    pub(crate) fn of_descriptor(descriptor: BorrowedFd<'_>) -> Result<Self> {
        let link = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        // SAFETY: asks for the flags of an open descriptor.
        let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(Error::system(&link, "reading its flags", io::Error::last_os_error()));
        }
        let access = if flags & libc::O_ACCMODE == libc::O_RDONLY { Access::Read } else { Access::Write };
        let mut file = beyond_standard_streams(|| Self::open_for(&link, access, true))?;
        // For messages; what is opened later is opened through the descriptors at hand.
        file.path = std::fs::read_link(&link).unwrap_or(link);
        Ok(file)
    }

    fn open_for(path: &Path, access: Access, is_guest: bool) -> Result<Self> {
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
                Error::new(ErrorKind::NotFound, path, "its directory does not exist").with_cause(error)
            }
            _ => open_error(path, error),
        })?;
        let metadata = buffered.metadata().map_err(|error| open_error(path, error))?;
        refuse_others(path, metadata.file_type())?;
        let file = Self {
            path: path.to_owned(),
            is_block_device: metadata.file_type().is_block_device(),
            identity: (metadata.dev(), metadata.ino()),
            // A device node lives on devtmpfs, its content does not.
            in_memory: !metadata.file_type().is_block_device() && file_system::lives_in_memory(&buffered),
            times: OnceLock::new(),
            descriptors: Descriptors::new(buffered, access != Access::Read, is_guest),
            part_cached: AtomicU32::new(u32::MAX),
            latest_cached: AtomicBool::new(false),
            advice: AtomicU8::new(Advice::Normal as u8),
            latched: OnceLock::new(),
            writing: RwLock::default(),
            attachments: Attachments::default(),
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
        self.descriptors.buffered()
    }

    /// A descriptor for `RWF_NOWAIT` questions.
    pub(crate) fn probe(&self) -> &File {
        self.descriptors.probe()
    }

    /// The same descriptor, for owners of their own.
    pub(crate) fn probe_shared(&self) -> Arc<File> {
        self.descriptors.probe_shared()
    }

    /// The descriptor for unbuffered transfers, or why there is none.
    pub(crate) fn direct(&self) -> std::result::Result<&Direct, String> {
        if self.in_memory {
            return Err("the file system keeps the file in memory; there is nothing below the page cache".to_owned());
        }
        self.descriptors.direct(&self.path)
    }

    /// Remembers that the file system refused an unbuffered transfer after all.
    pub(crate) fn refuse_direct(&self, reason: String) {
        self.descriptors.refuse_direct(reason);
    }

    /// What `T` keeps with this file, made when it is first asked for.
    pub(crate) fn kept<T: Kept>(&self) -> &T {
        self.attachments.get()
    }

    /// Whoever keeps pages of it, registered or copied, lets them go: they may show what was there before a write, and
    /// would stay when the page cache is to drop them.
    pub(crate) fn release_pages(&self) {
        for kept in self.attachments.iter() {
            kept.release_pages();
        }
    }

    /// Its size, or none if its descriptor is not its own any more: a program that closes numbers that are not
    /// its may have put another file there.
    pub(crate) fn size_if_intact(&self) -> Option<u64> {
        let metadata = self.buffered().metadata().ok()?;
        let is_intact = self.is_intact(&metadata);
        if is_intact && self.is_block_device { self.size().ok() } else { is_intact.then_some(metadata.len()) }
    }

    /// Whether what its descriptor names is the file that was opened.
    pub(super) fn is_intact(&self, metadata: &Metadata) -> bool {
        (metadata.dev(), metadata.ino()) == self.identity
    }

    /// Whether both are the same file, under whatever names.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
        let mine = identity(self.buffered());
        mine.is_some() && mine == identity(other.buffered())
    }

    /// Whether it is a block device, which has a fixed size.
    pub(crate) fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Whether it was opened for writing, too.
    pub(crate) fn is_writable(&self) -> bool {
        self.descriptors.is_writable()
    }

    /// Refuses writes to a file that was opened for reading, or where one has failed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if !self.is_writable() {
            let detail = "opened for reading only; open it for writing";
            return Err(Error::new(ErrorKind::ReadOnly, &self.path, detail));
        }
        match self.latched.get() {
            None => Ok(()),
            Some(first) => {
                let detail =
                    format!("an earlier write failed ({first}); writes are refused until the file is opened again");
                Err(Error::new(ErrorKind::Latched, &self.path, detail))
            }
        }
    }

    /// Remembers that a write has failed; the first failure counts.
    pub(crate) fn latch(&self, error: &Error) {
        let _ = self.latched.set(error.detail().to_owned());
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
            let _ = self.buffered().set_len(size);
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
        unsafe { libc::posix_fadvise(self.buffered().as_raw_fd(), 0, 0, to_kernel) };
        self.advice.store(advice as u8, Ordering::Relaxed);
        for kept in self.attachments.iter() {
            kept.advised(advice);
        }
    }

    /// What was said last.
    pub(crate) fn advice(&self) -> Advice {
        match self.advice.load(Ordering::Relaxed) {
            advice if advice == Advice::Sequential as u8 => Advice::Sequential,
            advice if advice == Advice::Random as u8 => Advice::Random,
            _ => Advice::Normal,
        }
    }

    /// Size in bytes at this moment.
    pub fn size(&self) -> Result<u64> {
        let size = if self.is_block_device {
            let mut end = self.buffered();
            io::Seek::seek(&mut end, io::SeekFrom::End(0))
        } else {
            self.buffered().metadata().map(|metadata| metadata.len())
        };
        size.map_err(|error| Error::system(&self.path, "reading its size", error))
    }

    /// Whether the file lives in the page cache only (tmpfs, ramfs).
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// What its times tell of changes.
    pub(crate) fn times(&self) -> Times {
        *self.times.get_or_init(|| file_system::times(self.buffered()))
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

    /// Files of /proc report no size but have content, and those of /sys report a page; neither can
    /// be planned for.
    fn refuse_sizeless(&self, metadata: &Metadata) -> Result<()> {
        if file_system::is_sysfs(self.buffered()) {
            let detail = "files in /sys do not report their size; copy it to a regular file first";
            return Err(Error::new(ErrorKind::NotAFile, &self.path, detail));
        }
        if self.is_block_device || metadata.len() > 0 {
            return Ok(());
        }
        let mut byte = [0];
        let read = std::os::unix::fs::FileExt::read_at(self.buffered(), &mut byte, 0);
        if matches!(read, Ok(1)) && self.size()? == 0 {
            let detail =
                "the file reports size 0 but has content, like those in /proc; copy it to a regular file first";
            return Err(Error::new(ErrorKind::NotAFile, &self.path, detail));
        }
        Ok(())
    }
}

fn open_error(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, path, "no such file or directory").with_cause(error),
        _ => Error::system(path, "open", error),
    }
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
        assert!(refusal(Path::new("/proc/self/status")).contains("reports size 0"));
        if Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            assert!(refusal(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")).contains("files in /sys"));
        }
        assert!(refusal(&dir.path().join("absent")).contains("no such file or directory"));
    }

    #[test]
    fn a_file_in_memory_has_no_unbuffered_reads() {
        let path = Path::new("/dev/shm").join(format!("bifolio-{}", std::process::id()));
        if std::fs::write(&path, b"x").is_err() {
            return bifolio_testing::skip("/dev/shm is not writable here");
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
