//! Caches.

use crate::cached_file::CachedFile;
use crate::copies::home::Home;
use crate::directory::{Directory, cpu, recover};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::DeviceMemory;
use crate::open::OpenedFile;
use crate::options::CacheOptions;
use crate::page::DEVICES_MAX;
use crate::pool::Pool;
use crate::published::Published;
use crate::state::keeper::Keeper;
use crate::stats::{Counts, Stats};
use bifolio_device::DeviceId;
use bifolio_io::{EngineKind, OpenFile, Router};
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

    /// The same with somebody who keeps what must outlive this process: regions and frames. A file whose region is kept
    /// already, as the process that had it open has ended, goes on where it was: what was being done is done or was never
    /// begun, what was released is there, and what living clients have not released is where they stored it.
    ///
    /// # Errors
    /// As above; `Device` for a device whose memory cannot be exported.
    pub fn kept(routers: &[Arc<Router>], options: CacheOptions, keeper: Arc<dyn Keeper>) -> Result<Self> {
        let open = |(number, router): (usize, &Arc<Router>)| {
            if let Some(reason) = router.device().capabilities().export_fd.reason() {
                let detail = format!("memory of {} cannot outlive a process: {reason}", router.device().id());
                return Err(Error::new(ErrorKind::Device, "the cache", detail));
            }
            let device = DeviceMemory::open(Arc::clone(router)).kept_by(&keeper, number);
            device.memory(&options).map(|_| device)
        };
        let devices = routers.iter().enumerate().map(open).collect::<Result<_>>()?;
        Self::with(devices, options, Some(keeper))
    }

    /// The same over devices that are opened when something is first mapped there.
    pub(crate) fn over(devices: Vec<DeviceMemory>, options: CacheOptions) -> Result<Self> {
        Self::with(devices, options, None)
    }

    fn with(devices: Vec<DeviceMemory>, options: CacheOptions, keeper: Option<Arc<dyn Keeper>>) -> Result<Self> {
        options.check()?;
        if devices.is_empty() || devices.len() > DEVICES_MAX {
            let detail = format!("{} devices: a cache has 1 to {DEVICES_MAX}", devices.len());
            return Err(Error::new(ErrorKind::BadRange, "the cache", detail));
        }
        Ok(Self { pool: Arc::new(Pool::new(devices, options, keeper)) })
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
        let id = (metadata.dev(), metadata.ino());
        let held = self.pool.open(&id, |past| {
            let is_observable = file.is_observable();
            let home = Home::new(Arc::new(file));
            let Some(keeper) = &self.pool.keeper else {
                let directory = Directory::new(home, devices, options)?;
                return Ok(OpenedFile::new(directory, is_observable, devices, past));
            };
            let Some(region) = keeper.region(id) else {
                let directory = Directory::kept(home, devices, options, keeper, id)?;
                return Ok(OpenedFile::new(directory, is_observable, devices, past));
            };
            let (directory, found) = recover::find(home, region, options, (keeper, id), &self.pool.devices)?;
            let opened = OpenedFile::new(directory, is_observable, devices, past);
            opened.go_on(&found, &**keeper)?;
            Ok(opened)
        })?;
        Ok(CachedFile::new(&self.pool, held))
    }

    /// Gives frames back that a process has left which has ended, and that no file has: spare ones, and scratch memory. All
    /// files whose regions are kept have been opened by now.
    pub fn forget_left_frames(&self) {
        self.pool.devices.iter().filter_map(DeviceMemory::opened).for_each(|memory| memory.forget_left_frames());
    }

    /// What it holds, by device, of those that something was mapped on.
    pub fn stats(&self) -> Vec<Stats> {
        self.pool.stats()
    }

    /// Gives memory of a device back to it, up to some bytes, as somebody else needs it: what nobody uses, and the file or
    /// another device has as well. How many bytes were given. Frames that other processes have mapped are theirs as long.
    pub fn give_clean(&self, device: usize, bytes: u64) -> u64 {
        let Some(memory) = self.pool.devices.get(device).and_then(DeviceMemory::opened) else { return 0 };
        let before = memory.held_bytes();
        memory.give_spares(bytes);
        for file in self.pool.opened() {
            let given = before.saturating_sub(memory.held_bytes());
            if given >= bytes {
                break;
            }
            file.give_clean(device, bytes - given);
            memory.give_spares(bytes - given);
        }
        before.saturating_sub(memory.held_bytes())
    }

    /// Has no more than some bytes be taken of a device beyond what the cache has of it now.
    pub fn limit(&self, device: usize, more: u64) {
        if let Some(memory) = self.pool.devices.get(device).and_then(DeviceMemory::opened) {
            memory.limit(more);
        }
    }

    /// Bytes of a device that readers of other processes keep as their versions.
    pub fn left_bytes(&self, device: usize) -> u64 {
        self.pool.opened().iter().map(|file| file.left_bytes(device)).sum()
    }

    /// Bytes of files that were read into each device's memory, in the order of [`bifolio_io::EngineKind::ALL`]. The first
    /// two engines read from the page cache, the others from storage.
    pub fn read_bytes(&self) -> Vec<[u64; EngineKind::ALL.len()]> {
        let bytes =
            |device: &DeviceMemory| device.opened().map_or_else(Default::default, |memory| memory.traffic.bytes());
        self.pool.devices.iter().map(bytes).collect()
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
