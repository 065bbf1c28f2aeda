//! A file, or a block device of the system's, that the router brings into device memory.

use super::device::Load;
use super::loader::Loader;
use crate::{Error, ErrorKind, Result};
use bifolio_block::{BlockDevice, FileDevice, Geometry, Result as BlockResult};
use bifolio_device::DeviceSlice;
use bifolio_io::{OnArrival, OpenFile, ReadExtent, ReadOptions};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A [`FileDevice`] with what the router knows of it: pages that were registered for one load serve the next.
#[derive(Debug)]
pub struct RoutedFile {
    file: FileDevice,
    /// Opened by the first request for device memory.
    routed: OnceLock<OpenFile>,
}

impl RoutedFile {
    /// The same file, with a way into device memory.
    pub fn new(file: FileDevice) -> Self {
        Self { file, routed: OnceLock::new() }
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`].
    pub fn open(path: impl AsRef<Path>, writable: bool) -> Result<Self> {
        Ok(Self::new(FileDevice::open(path, writable)?))
    }

    /// As the router wants it.
    fn routed(&self) -> Result<&OpenFile> {
        if let Some(routed) = self.routed.get() {
            return Ok(routed);
        }
        // It can be read as it is: that there is no second descriptor is no failure of the medium.
        let opened = OpenFile::of_descriptor(self.file.file().as_fd()).map_err(|error| {
            let detail = format!("cannot reopen it for reads into device memory: {error}");
            Error::new(ErrorKind::Device, self.name(), detail).with_cause(error)
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
        let detail = format!(
            "reading {wanted} bytes at offset {offset} reached the end of the file after {got}: it was truncated while it was open"
        );
        Err(Error::new(ErrorKind::Read, self.name(), detail))
    }
}

/// Its path, its descriptor and its claim.
impl Deref for RoutedFile {
    type Target = FileDevice;

    fn deref(&self) -> &FileDevice {
        &self.file
    }
}

impl BlockDevice for RoutedFile {
    fn name(&self) -> String {
        self.file.name()
    }

    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> BlockResult<()> {
        self.file.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> BlockResult<()> {
        self.file.write(offset, data)
    }

    fn flush(&self) -> BlockResult<()> {
        self.file.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> BlockResult<()> {
        self.file.discard(offset, len)
    }
}

impl Load for RoutedFile {
    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        self.load_with(loader, offset, destination, loader.options())
    }

    fn load_followed(
        &self,
        loader: &Loader,
        offset: u64,
        destination: DeviceSlice<'_>,
        follow: &Arc<dyn OnArrival>,
    ) -> Result<bool> {
        let options = ReadOptions { on_arrival: Some(Arc::clone(follow)), ..loader.options().clone() };
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
