//! Caches.

use crate::cached_file::CachedFile;
use crate::copies::home::Home;
use crate::directory::{Directory, cpu};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::DeviceMemory;
use crate::open::OpenedFile;
use crate::options::CacheOptions;
use crate::page::DEVICES_MAX;
use crate::pool::Pool;
use crate::published::Published;
use crate::stats::{Counts, Stats};
use bifolio_device::DeviceId;
use bifolio_io::{OpenFile, Router};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Files as pages that live where they are used, on several devices and the CPUs at once.
#[derive(Debug, Clone)]
pub struct Cache {
    pool: Arc<Pool>,
}

impl Cache {
    /// A cache over the memories of some devices; the routers' order is that of the devices.
    ///
    /// # Errors
    /// `BadRange` for an impossible size of pages or frames, `Device` for a device without virtual memory management.
    pub fn new(routers: &[Arc<Router>], options: CacheOptions) -> Result<Self> {
        let open = |router: &Arc<Router>| {
            let device = DeviceMemory::open(Arc::clone(router));
            device.memory(&options).map(|_| device)
        };
        Self::over(routers.iter().map(open).collect::<Result<_>>()?, options)
    }

    /// The same over devices that are opened when something is first mapped there.
    pub(crate) fn over(devices: Vec<DeviceMemory>, options: CacheOptions) -> Result<Self> {
        options.check()?;
        if devices.is_empty() || devices.len() > DEVICES_MAX {
            let detail = format!("{} devices: a cache has 1 to {DEVICES_MAX}", devices.len());
            return Err(Error::new(ErrorKind::BadRange, "the cache", detail));
        }
        Ok(Self { pool: Arc::new(Pool::new(devices, options)) })
    }

    /// Lets other processes see its statistics from now on.
    pub(crate) fn publish(&self, published: Published) {
        self.pool.publish(published);
    }

    /// Its devices, in the order in which races are won: the later beats the earlier.
    pub fn devices(&self) -> Vec<DeviceId> {
        self.pool.devices.iter().map(|device| device.id).collect()
    }

    /// Opens a file, which others may have open already.
    ///
    /// # Errors
    /// `Read` if it cannot be opened.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<CachedFile> {
        self.share(OpenFile::open(path.as_ref()).map_err(Error::reading)?)
    }

    /// The same for a file that a program has open by itself; the descriptor may be closed afterwards.
    ///
    /// # Errors
    /// `Read` for a descriptor of something else than a regular file, or one that cannot be read.
    pub fn open_descriptor(&self, descriptor: BorrowedFd<'_>) -> Result<CachedFile> {
        self.share(OpenFile::of_descriptor(descriptor).map_err(Error::reading)?)
    }

    /// The file's one directory.
    fn share(&self, file: OpenFile) -> Result<CachedFile> {
        let path = file.path();
        if file.layout().is_some() {
            return Err(Error::new(ErrorKind::BadUse, path, "striped sets cannot be cached: open the members"));
        }
        let metadata = file
            .buffered()
            .metadata()
            .map_err(|error| Error::new(ErrorKind::Read, path, format!("stat failed: {error}")).with_cause(error))?;
        let (devices, options) = (self.pool.devices.len(), self.pool.options);
        let held = self.pool.open(&(metadata.dev(), metadata.ino()), |past| {
            let is_observable = file.is_observable();
            let directory = Directory::new(Home::new(Arc::new(file)), devices, options)?;
            Ok(OpenedFile::new(directory, is_observable, devices, past))
        })?;
        Ok(CachedFile::new(&self.pool, held))
    }

    /// What it holds, by device, of those that something was mapped on.
    pub fn stats(&self) -> Vec<Stats> {
        self.pool.stats()
    }

    /// What has happened to pages since the cache was made.
    pub fn counts(&self) -> Counts {
        self.pool.counts()
    }

    /// Writes everything that was released to the files, of all that are open, and makes it durable, as before the
    /// end of a process.
    ///
    /// # Errors
    /// Of the first file that could not be written; the others are.
    pub fn sync(&self) -> Result<()> {
        let sync = |file: &Arc<OpenedFile>| cpu::sync(&mut file.lock(), &file.told);
        self.pool.opened().iter().map(sync).fold(Ok(()), Result::and)
    }
}
