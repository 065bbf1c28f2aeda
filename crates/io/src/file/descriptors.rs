//! The descriptors of an open file: the one that it was opened with, one for questions about single pages, and one for
//! unbuffered transfers. The others are opened when first needed, and name the same inode, whatever the path names by then.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Unbuffered reads when the kernel does not say (before 6.1): the page size suits every device.
const ALIGNMENT_FALLBACK: u64 = 4096;

/// The descriptors of one file.
#[derive(Debug)]
pub(super) struct Descriptors {
    buffered: Arc<File>,
    /// Whether it is opened for a program that does not know of it.
    is_guest: bool,
    is_writable: bool,
    direct: OnceLock<Result<Direct, String>>,
    /// Set when a transfer was refused although the open succeeded.
    direct_refused: Mutex<Option<String>>,
    /// For asking whether single pages are cached.
    probe: OnceLock<Arc<File>>,
}

/// A second descriptor for unbuffered reads.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) file: File,
    /// Offsets, lengths and addresses are multiples of this many bytes.
    pub(crate) alignment: u64,
}

/// Why there is no descriptor for unbuffered transfers.
enum Refusal {
    /// Descriptors have run out; later there may be some.
    ForNow(String),
    ForGood(String),
}

impl Descriptors {
    /// Those of a file that was opened by this one.
    pub(super) fn new(buffered: File, is_writable: bool, is_guest: bool) -> Self {
        Self {
            buffered: Arc::new(buffered),
            is_guest,
            is_writable,
            direct: OnceLock::new(),
            direct_refused: Mutex::default(),
            probe: OnceLock::new(),
        }
    }

    /// The one that the file was opened with.
    pub(super) fn buffered(&self) -> &File {
        &self.buffered
    }

    /// Whether it may be written by them.
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// A descriptor for `RWF_NOWAIT` questions. A "no" starts readahead in current kernels; advice
    /// of random access, which is kept apart from the readers' descriptor, limits it to the page.
    pub(super) fn probe(&self) -> &File {
        if self.probe.get().is_none()
            && let Ok(file) = self.again(|link| File::open(link))
        {
            // SAFETY: advice on an open descriptor.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
            let _ = self.probe.set(Arc::new(file));
        }
        self.probe.get().unwrap_or(&self.buffered)
    }

    /// The same descriptor, for owners of their own.
    pub(super) fn probe_shared(&self) -> Arc<File> {
        self.probe();
        Arc::clone(self.probe.get().unwrap_or(&self.buffered))
    }

    /// The descriptor for unbuffered reads, or why there is none; `path` is where the file was, for systems without `/proc`.
    pub(super) fn direct(&self, path: &Path) -> Result<&Direct, String> {
        if let Some(reason) = self.direct_refused.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Err(reason);
        }
        if let Some(known) = self.direct.get() {
            return known.as_ref().map_err(Clone::clone);
        }
        match self.open_direct(path) {
            Err(Refusal::ForNow(reason)) => Err(reason),
            Err(Refusal::ForGood(reason)) => self.direct.get_or_init(|| Err(reason)).as_ref().map_err(Clone::clone),
            Ok(direct) => self.direct.get_or_init(|| Ok(direct)).as_ref().map_err(Clone::clone),
        }
    }

    /// Remembers that the file system refused an unbuffered read after all.
    pub(super) fn refuse_direct(&self, reason: String) {
        *self.direct_refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    /// Opens the same inode once more, whatever its path names by now.
    fn again<T>(&self, open: impl FnOnce(&Path) -> T) -> T {
        let link = PathBuf::from(format!("/proc/self/fd/{}", self.buffered.as_raw_fd()));
        if self.is_guest { beyond_standard_streams(|| open(&link)) } else { open(&link) }
    }

    fn open_direct(&self, path: &Path) -> Result<Direct, Refusal> {
        let for_good = |reason: String| Err(Refusal::ForGood(reason));
        let alignment = direct_alignment(&self.buffered).map_err(Refusal::ForGood)?;
        // Through /proc the second descriptor is the same inode, whatever the path names by now.
        let open =
            |path: &Path| File::options().read(true).write(self.is_writable).custom_flags(libc::O_DIRECT).open(path);
        let file = match self.again(open).or_else(|_| open(path)) {
            Ok(file) => file,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Err(Refusal::ForNow(format!("a second descriptor for O_DIRECT cannot be opened: {error}")));
            }
            Err(error) => return for_good(format!("the file system refuses O_DIRECT: {error}")),
        };
        let same = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
        if same(&file) != same(&self.buffered) {
            return for_good("the path now names another file".to_owned());
        }
        Ok(Direct { file, alignment })
    }
}

/// Opens something with the numbers of standard streams taken: where a program has closed those, the lowest
/// free number is where others write what is meant for them. (Moving a descriptor afterwards would close the first,
/// and with it the program's record locks on the file.)
pub(super) fn beyond_standard_streams<T>(open: impl FnOnce() -> T) -> T {
    // SAFETY: a question about a number.
    let is_closed = |number: &i32| unsafe { libc::fcntl(*number, libc::F_GETFD) } < 0;
    let _taken: Vec<_> = (0..3).filter(is_closed).map(|_| File::open("/dev/null")).collect();
    open()
}

/// What unbuffered reads must be aligned to (`statx`, `STATX_DIOALIGN`, since Linux 6.1).
fn direct_alignment(file: &File) -> Result<u64, String> {
    // SAFETY: `statx` is plain old data, for which zeroes are a valid value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags, mask) = (file.as_raw_fd(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is an empty C string, `stat` is writable.
    let known = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut stat) } == 0;
    if !known || stat.stx_mask & mask == 0 {
        return Ok(ALIGNMENT_FALLBACK);
    }
    match (stat.stx_dio_offset_align, stat.stx_dio_mem_align) {
        (0, _) => Err("the file system does not offer O_DIRECT for this file".to_owned()),
        (offset, memory) => Ok(u64::from(offset.max(memory))),
    }
}
