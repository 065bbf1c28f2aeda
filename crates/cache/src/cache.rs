//! Caches and cached files.

use crate::home::Home;
use crate::mapping::Mapping;
use crate::memory::Place;
use crate::page::{DEVICES_MAX, Device};
use crate::state::{Counts, State};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{DeviceId, FRAME_BYTES};
use bifolio_io::{OpenFile, Router};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    /// Bytes of each device's memory for cached files and their twins; see [`CacheOptions::BY_DEVICE`].
    pub budget_bytes: u64,
    /// When released bytes move.
    pub mode: Mode,
}

impl CacheOptions {
    /// Leaves the budget to the device: half of what is free on a GPU when it is opened, 1 GiB of a host.
    pub const BY_DEVICE: u64 = 0;
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
    pub(crate) places: Vec<Place>,
    pub(crate) options: CacheOptions,
    /// What has happened to files that nobody has open any more.
    past: Arc<Mutex<Counts>>,
    /// Open files by device and inode.
    files: Mutex<HashMap<(u64, u64), Weak<Shared>>>,
}

/// One file, shared by everybody who opened it.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    devices: usize,
    past: Arc<Mutex<Counts>>,
    /// Frames that are kept no longer, noted without waiting for the state.
    let_go: Mutex<Vec<(Device, Range<usize>)>>,
}

/// An open file of a cache. Clones share it.
#[derive(Debug, Clone)]
pub struct CachedFile {
    cache: Arc<Inner>,
    pub(crate) shared: Arc<Shared>,
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
        let place = |router: &Arc<Router>| {
            let place = Place::open(Arc::clone(router));
            place.memory(&options).map(|_| place)
        };
        Self::over(routers.iter().map(place).collect::<Result<_>>()?, options)
    }

    /// The same over devices that are opened when something is first mapped there.
    pub(crate) fn over(places: Vec<Place>, options: CacheOptions) -> Result<Self> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadRange, Path::new("the cache"), detail));
        if !options.page_bytes.is_power_of_two() || !(4096..=FRAME_BYTES).contains(&options.page_bytes) {
            return bad(format!(
                "pages of {} bytes: use a power of two from 4096 to {FRAME_BYTES}",
                options.page_bytes
            ));
        }
        if places.is_empty() || places.len() > DEVICES_MAX {
            return bad(format!("{} devices: a cache has 1 to {DEVICES_MAX}", places.len()));
        }
        let (files, past) = (Mutex::default(), Arc::default());
        Ok(Self { inner: Arc::new(Inner { places, options, past, files }) })
    }

    /// Its devices, in the order in which races are won: the later beats the earlier.
    pub fn devices(&self) -> Vec<DeviceId> {
        self.inner.places.iter().map(|place| place.id).collect()
    }

    /// Opens a file, which others may have open already.
    ///
    /// # Errors
    /// `Read` if it cannot be opened.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<CachedFile> {
        let path = path.as_ref();
        self.share(OpenFile::open(path).map_err(|error| Error::reading(path, error))?)
    }

    /// The same for a file that a program has open by itself; the descriptor may be closed afterwards.
    ///
    /// # Errors
    /// `Read` for a descriptor of something else than a regular file, or one that cannot be read.
    pub fn open_descriptor(&self, descriptor: BorrowedFd<'_>) -> Result<CachedFile> {
        let name = format!("descriptor {}", descriptor.as_raw_fd());
        self.share(OpenFile::of_descriptor(descriptor).map_err(|error| Error::reading(name.as_ref(), error))?)
    }

    /// The file's one state.
    fn share(&self, file: OpenFile) -> Result<CachedFile> {
        let path = file.path();
        if file.layout().is_some() {
            return Err(Error::new(ErrorKind::BadUse, path, "striped sets are not cached yet: open its members"));
        }
        let metadata = file
            .buffered()
            .metadata()
            .map_err(|error| Error::new(ErrorKind::Read, path, format!("asking what it is failed: {error}")))?;
        let key = (metadata.dev(), metadata.ino());
        let mut files = self.inner.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|_, known| known.strong_count() > 0);
        let shared = if let Some(shared) = files.get(&key).and_then(Weak::upgrade) {
            shared
        } else {
            let Inner { places, options, past, .. } = &*self.inner;
            let state = State::new(Home::new(Arc::new(file)), places.len(), options.page_bytes, options.mode)?;
            let (devices, past) = (places.len(), Arc::clone(past));
            let shared = Arc::new(Shared { state: Mutex::new(state), devices, past, let_go: Mutex::default() });
            files.insert(key, Arc::downgrade(&shared));
            shared
        };
        Ok(CachedFile { cache: Arc::clone(&self.inner), shared })
    }

    /// What it holds, by device, of those that something was mapped on.
    pub fn stats(&self) -> Vec<Stats> {
        let files = self.open_files();
        let of_device = |(number, place): (usize, &Place)| {
            let memory = place.opened()?;
            let (mut pages, mut behind, mut pending) = (0, 0, 0);
            for file in &files {
                let (held, late, unwritten) = file.lock().pages_by_state(number);
                (pages, behind, pending) = (pages + held, behind + late, pending + unwritten);
            }
            let (used_bytes, budget_bytes) = (memory.used_bytes(), memory.budget_bytes());
            Some(Stats { device: place.id, used_bytes, budget_bytes, pages, behind, pending })
        };
        self.inner.places.iter().enumerate().filter_map(of_device).collect()
    }

    /// What has happened to pages since the cache was made.
    pub fn counts(&self) -> Counts {
        let files = self.open_files();
        let past = *self.inner.past.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().fold(past, |sum, file| sum.plus(&file.lock().counts))
    }

    /// Writes everything that was released to the files, of all that are open, and makes it durable, as before the
    /// end of a process.
    ///
    /// # Errors
    /// Of the first file that could not be written; the others are.
    pub fn sync(&self) -> Result<()> {
        self.open_files().iter().map(|file| file.lock().sync()).fold(Ok(()), Result::and)
    }

    fn open_files(&self) -> Vec<Arc<Shared>> {
        let files = self.inner.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.values().filter_map(Weak::upgrade).collect()
    }
}

impl CachedFile {
    /// Its size when it was last looked at.
    pub fn size(&self) -> u64 {
        self.shared.lock().size()
    }

    /// Maps a range of it on a device of the cache: the bytes have addresses there, and come when they are
    /// acquired. Without an end, to the end of the file.
    ///
    /// # Errors
    /// `BadRange` for a range that is empty, begins inside a page, or lies beyond the end of the file.
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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (device, frames) in self.let_go.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            state.unpin(device, frames);
        }
        state
    }

    /// Has frames unpinned by whoever uses the state next.
    pub(crate) fn let_go(&self, device: Device, frames: Range<usize>) {
        self.let_go.lock().unwrap_or_else(PoisonError::into_inner).push((device, frames));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut state = self.lock();
        for device in 0..self.devices {
            // Whoever wants to know of failures syncs before.
            let _ = state.drop_replica(device);
        }
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        *past = past.plus(&state.counts);
    }
}
