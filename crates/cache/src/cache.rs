//! Caches and cached files.

use crate::home::Home;
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::page::DEVICES_MAX;
use crate::state::State;
use crate::table::{Opened, Table};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{DeviceId, FRAME_BYTES};
use bifolio_io::Router;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When released bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// When somebody needs them: another device, a CPU's read through the cache, eviction, sync.
    #[default]
    Lazy,
    /// At once, for files that CPU processes read by themselves.
    Eager,
}

/// Choices for a cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheOptions {
    /// Bytes of a page, the unit of coherence: a power of two from 4 KiB to 2 MiB.
    pub page_bytes: u64,
    /// Bytes of each device's memory for cached files and their twins.
    pub budget_bytes: u64,
    /// When released bytes move.
    pub mode: Mode,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { page_bytes: 64 << 10, budget_bytes: 1 << 30, mode: Mode::Lazy }
    }
}

/// Files as pages that live where they are used, on several devices and the CPUs at once.
#[derive(Debug, Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) devices: Vec<Arc<Memory>>,
    options: CacheOptions,
    files: Arc<Table<Key, Shared>>,
}

/// Device and inode.
type Key = (u64, u64);

/// One file, shared by everybody who opened it.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
}

/// An open file of a cache. Clones share it.
#[derive(Debug, Clone)]
pub struct CachedFile {
    cache: Arc<Inner>,
    pub(crate) shared: Arc<Opened<Key, Shared>>,
}

/// What a cache holds on one device, and what has happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// The device.
    pub device: DeviceId,
    /// Bytes of frames in use, twins included, and the most there may be.
    pub used_bytes: u64,
    /// See there.
    pub budget_bytes: u64,
    /// Pages with a replica on the device.
    pub pages: u64,
    /// Of those, pages that others have changed.
    pub behind: u64,
    /// Of those, pages with released changes that home lacks.
    pub pending: u64,
}

impl Cache {
    /// A cache over the memories of some devices; the routers' order is that of the devices.
    ///
    /// # Errors
    /// `BadRange` for a page size that is none, `Device` for a device without virtual memory management.
    pub fn new(routers: &[Arc<Router>], options: CacheOptions) -> Result<Self> {
        let nowhere = Path::new("the cache");
        let bad = |detail: String| Err(Error::new(ErrorKind::BadRange, nowhere, detail));
        if !options.page_bytes.is_power_of_two() || !(4096..=FRAME_BYTES).contains(&options.page_bytes) {
            return bad(format!(
                "pages of {} bytes: use a power of two from 4096 to {FRAME_BYTES}",
                options.page_bytes
            ));
        }
        if routers.is_empty() || routers.len() > DEVICES_MAX {
            return bad(format!("{} devices: a cache has 1 to {DEVICES_MAX}", routers.len()));
        }
        let memory = |router: &Arc<Router>| {
            let device = router.device();
            if let Some(reason) = device.capabilities().virtual_memory.reason() {
                let detail = format!("{} cannot hold cached files: {reason}", device.id());
                return Err(Error::new(ErrorKind::Device, nowhere, detail));
            }
            let memory = Memory::new(device, Arc::clone(router), options.budget_bytes);
            memory.map(Arc::new).map_err(|error| Error::device(nowhere, error))
        };
        let devices = routers.iter().map(memory).collect::<Result<_>>()?;
        Ok(Self { inner: Arc::new(Inner { devices, options, files: Table::new() }) })
    }

    /// Opens a file, which others may have open already.
    ///
    /// # Errors
    /// `Read` if it cannot be opened.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<CachedFile> {
        let path = path.as_ref();
        let reading = |error| Error::reading(path, error);
        let file = self.inner.devices[0].router.open(path).map_err(reading)?;
        if file.layout().is_some() {
            return Err(Error::new(ErrorKind::BadUse, path, "striped sets are not cached yet: open its members"));
        }
        let metadata = file
            .buffered()
            .metadata()
            .map_err(|error| Error::new(ErrorKind::Read, path, format!("asking what it is failed: {error}")))?;
        let Inner { devices, options, files } = &*self.inner;
        let shared = files.open(&(metadata.dev(), metadata.ino()), || {
            let state = State::new(Home::new(file), devices.len(), options.page_bytes, options.mode)?;
            Ok(Shared { state: Mutex::new(state) })
        })?;
        Ok(CachedFile { cache: Arc::clone(&self.inner), shared })
    }

    /// What it holds, by device.
    pub fn stats(&self) -> Vec<Stats> {
        let files = self.inner.files.all();
        let of_device = |(number, memory): (usize, &Arc<Memory>)| {
            let (mut pages, mut behind, mut pending) = (0, 0, 0);
            for file in &files {
                let (held, late, unwritten) = file.lock().pages_by_state(number);
                (pages, behind, pending) = (pages + held, behind + late, pending + unwritten);
            }
            let (used_bytes, budget_bytes) = (memory.used_bytes(), memory.budget_bytes());
            Stats { device: memory.device.id(), used_bytes, budget_bytes, pages, behind, pending }
        };
        self.inner.devices.iter().enumerate().map(of_device).collect()
    }
}

impl Inner {
    /// Takes memory on a device from files other than this one, where nobody uses it; whether there was any.
    fn make_room(&self, device: usize, frames: usize, except: &Arc<Opened<Key, Shared>>) -> bool {
        let mut given = 0;
        for file in self.files.all() {
            if given < frames && !Arc::ptr_eq(&file, except) {
                given += file.lock().give_room(device, frames - given);
            }
        }
        given > 0
    }
}

impl CachedFile {
    /// Its size when it was last looked at.
    pub fn size(&self) -> u64 {
        self.shared.lock().size()
    }

    pub(crate) fn make_room(&self, device: usize, frames: usize) -> bool {
        self.cache.make_room(device, frames, &self.shared)
    }

    /// Maps a range of it on a device of the cache: the bytes have addresses there, and come when they are
    /// acquired. Without an end, to the end of the file.
    ///
    /// # Errors
    /// `BadRange` for a range that is empty or lies beyond the end of the file, `BadUse` for one that the file did
    /// not have when it was first mapped on the device, while other mappings of it are open there.
    pub fn map(&self, device: DeviceId, range: Range<u64>, writable: bool) -> Result<Mapping> {
        Mapping::new(&self.cache, self, device, range, writable)
    }

    /// The same on the device with this number: a cache may have a device several times, for programs that
    /// share one as if they did not.
    pub fn map_on(&self, device: usize, range: Range<u64>, writable: bool) -> Result<Mapping> {
        Mapping::on(&self.cache, self, device, range, writable)
    }

    /// Reads as a CPU: everything that devices have released is seen. Less than was asked for at the end of
    /// the file.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.shared.lock().read(offset, buffer)
    }

    /// Writes as a CPU; devices see it from their next acquire on, and only the pages that it touched move.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.shared.lock().write(offset, bytes)
    }

    /// Writes everything that was released to the file, and makes it durable.
    pub fn sync(&self) -> Result<()> {
        self.shared.lock().sync()
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whoever wants to know of failures syncs before.
        self.lock().end();
    }
}
