//! A file, or a block device of the system's, as a [`BlockDevice`].

use crate::{BlockDevice, Error, ErrorKind, Geometry, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The smallest block of any medium.
const BLOCK_BYTES: u64 = 512;
/// Requests from here on reach a disk's full rate.
const OPTIMAL_BYTES: u64 = 1 << 20;

/// A file of fixed size. The page cache is used as for any other program.
#[derive(Debug)]
pub struct FileDevice {
    path: PathBuf,
    file: File,
    size: u64,
    is_writable: bool,
    /// A flush has failed: the kernel may have dropped what it could not write, and a second flush would
    /// succeed all the same (`fsync(2)`).
    is_broken: AtomicBool,
}

impl FileDevice {
    /// Opens an existing file.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `InUse` for a block device that the system uses and that is to be written, and `NotADevice`
    /// for what has no size, such as a directory or a pipe.
    pub fn open(path: impl AsRef<Path>, writable: bool) -> Result<Self> {
        let path = path.as_ref();
        let about = |error| Error::system(path.display(), "opening it", error);
        // Without waiting: a pipe is refused, and not waited for. A block device that the system itself uses (a mount, an
        // array, swap) is not written to; for files the flag has no meaning.
        let is_block_device = || path.metadata().is_ok_and(|there| there.file_type().is_block_device());
        let flags = if writable && is_block_device() { libc::O_NONBLOCK | libc::O_EXCL } else { libc::O_NONBLOCK };
        let file = OpenOptions::new().read(true).write(writable).custom_flags(flags).open(path).map_err(about)?;
        Self::of_file(file, path, writable)
    }

    /// The same for a file that is open already; the path is for errors.
    ///
    /// # Errors
    /// `NotADevice` for what has no size.
    pub fn of_file(file: File, path: &Path, writable: bool) -> Result<Self> {
        let about = |error| Error::system(path.display(), "asking for its size", error);
        let metadata = file.metadata().map_err(about)?;
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            let detail = "it is neither a file nor a block device";
            return Err(Error::new(ErrorKind::NotADevice, path.display(), detail));
        }
        let size = (&file).seek(SeekFrom::End(0)).map_err(about)?;
        Ok(Self { path: path.to_owned(), file, size, is_writable: writable, is_broken: AtomicBool::new(false) })
    }

    /// The same file as if it ended there, if it is longer: for what is about to be cut.
    #[must_use]
    pub fn cut_at(mut self, size: u64) -> Self {
        self.size = self.size.min(size);
        self
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The open file alone; a claim stays with it.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Makes sure that no other process of ours writes to it, for as long as it is open: two who keep their own idea of
    /// which sectors are in use would mix them. cryptsetup and QEMU have locks of their own, which this is not.
    ///
    /// # Errors
    /// `InUse` if somebody has claimed it.
    pub fn claim(&self) -> Result<()> {
        let lock = claim();
        // SAFETY: the descriptor is open, and the structure is read only.
        let done = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) if done != 0 => {
                let detail = "another bifolio has it open for writing; end that, or open it for reading only";
                Err(Error::new(ErrorKind::InUse, self.name(), detail))
            }
            // Some file systems have no locks.
            _ => Ok(()),
        }
    }

    /// Whether somebody else has claimed it.
    pub fn is_claimed(&self) -> bool {
        let mut lock = claim();
        // SAFETY: the descriptor is open, and the structure is writable.
        let done = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        done == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if !self.is_writable {
            return Err(Error::new(ErrorKind::ReadOnly, self.name(), "it was opened for reading only"));
        }
        Ok(())
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, block_bytes: BLOCK_BYTES, optimal_bytes: OPTIMAL_BYTES }
    }

    fn is_read_only(&self) -> bool {
        !self.is_writable
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(offset, buffer.len() as u64)?;
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let detail = format!(
                    "reading {} bytes at offset {offset} reached the end of the file: it was truncated while it was open",
                    buffer.len()
                );
                Error::new(ErrorKind::Read, self.name(), detail)
            }
            _ => Error::system(self.name(), format!("reading {} bytes at offset {offset}", buffer.len()), error),
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_write(offset, data.len() as u64)?;
        let doing = || format!("writing {} bytes at offset {offset}", data.len());
        self.file.write_all_at(data, offset).map_err(|error| Error::writing(self.name(), doing(), error))
    }

    fn flush(&self) -> Result<()> {
        if self.is_broken.load(Ordering::Acquire) {
            let detail = "an earlier flush failed, so what was written before it may be lost; open it again and check its \
                          content";
            return Err(Error::new(ErrorKind::Write, self.name(), detail));
        }
        if !self.is_writable {
            return Ok(());
        }
        self.file.sync_data().map_err(|error| {
            self.is_broken.store(true, Ordering::Release);
            Error::writing(self.name(), "flushing it", error)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no memory; the descriptor is open.
        let done = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset as i64, len as i64) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            _ if done == 0 => Ok(()),
            // Nothing was promised.
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV | libc::EINVAL) => Ok(()),
            _ => Err(Error::writing(self.name(), format!("discarding {len} bytes at offset {offset}"), error)),
        }
    }
}

/// The lock by which a file is claimed.
fn claim() -> libc::flock64 {
    libc::flock64 {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        // A byte that no file has, so that programs that lock parts of it are not in the way.
        l_start: i64::MAX - 1,
        l_len: 1,
        l_pid: 0,
    }
}
