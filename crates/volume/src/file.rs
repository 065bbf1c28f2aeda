//! A file, or a block device of the system's, as a [`BlockDevice`].

use crate::{BlockDevice, Error, ErrorKind, Geometry, Loader, Result};
use bifolio_device::DeviceSlice;
use bifolio_io::{Follow, OpenFile, ReadExtent, ReadOptions};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

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
    /// For device memory; opened by the first request for it.
    routed: OnceLock<OpenFile>,
}

impl FileDevice {
    /// Opens an existing file.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `InUse` for a block device that the system uses and that is to be written, and `NotAVolume`
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
    /// `NotAVolume` for what has no size.
    pub fn of_file(file: File, path: &Path, writable: bool) -> Result<Self> {
        let about = |error| Error::system(path.display(), "asking for its size", error);
        let metadata = file.metadata().map_err(about)?;
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            let detail = "it is neither a file nor a block device";
            return Err(Error::new(ErrorKind::NotAVolume, path.display(), detail));
        }
        let size = (&file).seek(SeekFrom::End(0)).map_err(about)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            size,
            is_writable: writable,
            is_broken: AtomicBool::new(false),
            routed: OnceLock::new(),
        })
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

    /// As the router wants it.
    fn routed(&self) -> Result<&OpenFile> {
        if let Some(routed) = self.routed.get() {
            return Ok(routed);
        }
        // It can be read as it is: that there is no second descriptor is no failure of the medium.
        let opened = OpenFile::of_descriptor(self.file.as_fd()).map_err(|error| {
            let detail = format!("opening it once more, for device memory, failed: {error}");
            Error::new(ErrorKind::Device, self.name(), detail).with_source(error)
        })?;
        Ok(self.routed.get_or_init(|| opened))
    }

    fn load_with(
        &self,
        loader: &Loader,
        offset: u64,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<()> {
        self.check_range(offset, destination.len())?;
        let (file, len) = (self.routed()?, destination.len());
        let report = loader.router().read(file, offset, Some(len), destination, options)?;
        self.check_whole(report.bytes, len, offset)
    }

    fn check_whole(&self, got: u64, wanted: u64, offset: u64) -> Result<()> {
        if got == wanted {
            return Ok(());
        }
        let detail = format!("it was cut while it was open: of {wanted} bytes from offset {offset} on {got} are left");
        Err(Error::new(ErrorKind::Read, self.name(), detail))
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
                let detail =
                    format!("it was cut while it was open: {} bytes at offset {offset} are gone", buffer.len());
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
            let detail = "an earlier flush has failed, so that what was written before it may be lost; open it again \
                          and check its content";
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

    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        self.load_with(loader, offset, destination, loader.options())
    }

    fn load_followed(
        &self,
        loader: &Loader,
        offset: u64,
        destination: DeviceSlice<'_>,
        follow: &Arc<dyn Follow>,
    ) -> Result<bool> {
        let options = ReadOptions { follow: Some(Arc::clone(follow)), ..loader.options().clone() };
        self.load_with(loader, offset, destination, &options).map(|()| true)
    }

    fn load_extents(&self, loader: &Loader, extents: &[ReadExtent], destination: DeviceSlice<'_>) -> Result<()> {
        extents.iter().try_for_each(|extent| self.check_range(extent.offset, extent.length))?;
        let Some(first) = extents.first() else { return Ok(()) };
        let report = loader.router().read_batch(self.routed()?, extents, destination, loader.options())?;
        let wanted = extents.iter().map(|extent| extent.length).sum();
        self.check_whole(report.bytes, wanted, first.offset)
    }
}
