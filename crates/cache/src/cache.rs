//! Caches and cached files.

use crate::ahead::Ahead;
use crate::home::Home;
use crate::mapping::Mapping;
use crate::memory::{Memory, Place};
use crate::page::{DEVICES_MAX, Device};
use crate::process::published::{Published, Snapshot};
use crate::state::{Counts, State};
use crate::table::{Opened, Table};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{DeviceId, FRAME_BYTES};
use bifolio_io::{OpenFile, Router};
use serde::Serialize;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

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
    /// Bytes of a frame, the unit of device memory: a power of two from 2 MiB to 1 GiB, or 0 for what fits the
    /// budget and the file, up to 32 MiB.
    pub frame_bytes: u64,
}

impl CacheOptions {
    /// Leaves the budget to the device: half of what is free on a GPU when it is opened, 1 GiB of a host.
    pub const BY_DEVICE: u64 = 0;
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { page_bytes: 64 << 10, budget_bytes: 1 << 30, mode: Mode::Lazy, frame_bytes: 0 }
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
    past: Arc<Mutex<Past>>,
    pub(crate) ahead: Ahead,
    files: Arc<Table<Key, Shared>>,
    /// What is kept of files that are open or end.
    kept: Mutex<Vec<Weak<Kept>>>,
    /// Where other processes read its statistics, if it is the cache of this process.
    pub(crate) published: OnceLock<Published>,
}

/// Device and inode.
pub(crate) type Key = (u64, u64);

/// What has happened to pages.
#[derive(Debug, Default)]
struct Past {
    /// Of files that nobody has open any more.
    closed: Counts,
    /// By device, for which it was done, of all files.
    by_device: Vec<Counts>,
}

/// One file, shared by everybody who opened it: it ends with the last of them, and not with somebody who only looks
/// at what is kept of it.
#[derive(Debug)]
pub(crate) struct Shared {
    kept: Arc<Kept>,
    cache: Weak<Inner>,
}

/// What is kept of a file.
#[derive(Debug)]
struct Kept {
    state: Mutex<State>,
    devices: usize,
    past: Arc<Mutex<Past>>,
    /// Failures of syncs that syncs of the whole cache have told of.
    told: AtomicU64,
    /// Frames that are kept no longer, noted without waiting for the state.
    let_go: Mutex<Vec<(Device, Range<usize>)>>,
}

/// An open file of a cache. Clones share it.
#[derive(Debug)]
pub struct CachedFile {
    pub(crate) cache: Arc<Inner>,
    pub(crate) shared: Arc<Opened<Key, Shared>>,
    /// Failures of syncs that its holder knows of.
    pub(crate) told: AtomicU64,
}

impl Clone for CachedFile {
    fn clone(&self) -> Self {
        let told = AtomicU64::new(self.told.load(Ordering::Relaxed));
        Self { cache: Arc::clone(&self.cache), shared: Arc::clone(&self.shared), told }
    }
}

/// What a cache holds on one device, and what has happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
    /// What has been done for the device since the cache was made; what was done for CPUs is no device's.
    pub counts: Counts,
}

/// What a file has on each device, as [`State::pages_by_state`] says it, and its counts.
type Summary = (Vec<(u64, u64, u64)>, Counts);

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
        let frame_bytes = options.frame_bytes;
        if frame_bytes != 0 && !(frame_bytes.is_power_of_two() && (FRAME_BYTES..=1 << 30).contains(&frame_bytes)) {
            return bad(format!(
                "frames of {frame_bytes} bytes: use a power of two from {FRAME_BYTES} to {}, or 0",
                1 << 30
            ));
        }
        if places.is_empty() || places.len() > DEVICES_MAX {
            return bad(format!("{} devices: a cache has 1 to {DEVICES_MAX}", places.len()));
        }
        let by_device = vec![Counts::default(); places.len()];
        let past = Arc::new(Mutex::new(Past { by_device, ..Past::default() }));
        let (files, kept) = (Table::new(), Mutex::default());
        let (ahead, published) = (Ahead::default(), OnceLock::new());
        Ok(Self { inner: Arc::new(Inner { places, options, past, ahead, files, kept, published }) })
    }

    /// Lets other processes see its statistics from now on.
    pub(crate) fn publish(&self, published: Published) {
        if self.inner.published.set(published).is_ok() {
            self.inner.operated();
        }
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
        let Inner { places, options, past, files, kept, .. } = &*self.inner;
        let shared = files.open(&(metadata.dev(), metadata.ino()), || {
            let state = State::new(Home::new(Arc::new(file)), places.len(), *options)?;
            let (state, past, let_go) = (Mutex::new(state), Arc::clone(past), Mutex::default());
            let told = AtomicU64::new(0);
            let made = Arc::new(Kept { state, devices: places.len(), past, told, let_go });
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.retain(|file| file.strong_count() > 0);
            kept.push(Arc::downgrade(&made));
            Ok(Shared { kept: made, cache: Arc::downgrade(&self.inner) })
        })?;
        let told = AtomicU64::new(shared.lock().failures());
        Ok(CachedFile { cache: Arc::clone(&self.inner), shared, told })
    }

    /// What it holds, by device, of those that something was mapped on.
    pub fn stats(&self) -> Vec<Stats> {
        let summaries: Vec<_> = self.inner.open_files().iter().map(|file| file.summary(&file.lock())).collect();
        let memories: Vec<_> = self.inner.places.iter().map(Place::opened).collect();
        self.inner.stats_of(&memories, &summaries)
    }

    /// What has happened to pages since the cache was made.
    pub fn counts(&self) -> Counts {
        let files = self.inner.open_files();
        let past = self.inner.past().closed;
        files.iter().fold(past, |sum, file| sum.plus(&file.lock().counts))
    }
}

impl Cache {
    /// Writes everything that was released to the files, of all that are open, and makes it durable, as before the
    /// end of a process.
    ///
    /// # Errors
    /// Of the first file that could not be written; the others are.
    pub fn sync(&self) -> Result<()> {
        self.inner.open_files().iter().map(|file| file.lock().sync(&file.told)).fold(Ok(()), Result::and)
    }
}

impl Inner {
    fn open_files(&self) -> Vec<Arc<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes memory on a device from files other than this one, where nobody uses it; whether there was any.
    fn make_room(&self, device: Device, bytes: u64, except: &Arc<Kept>) -> bool {
        let mut given = 0;
        for file in self.open_files().iter().filter(|file| !Arc::ptr_eq(file, except)) {
            if given < bytes {
                given += file.lock().give_room(device, bytes - given);
            }
        }
        given > 0
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats_of(&self, memories: &[Option<Arc<Memory>>], files: &[Summary]) -> Vec<Stats> {
        let by_device = self.past().by_device.clone();
        let of_device = |(number, place): (usize, &Place)| {
            let memory = memories[number].as_ref()?;
            let add = |(pages, behind, pending), file: &Summary| {
                let (held, late, unwritten) = file.0[number];
                (pages + held, behind + late, pending + unwritten)
            };
            let (pages, behind, pending) = files.iter().fold((0, 0, 0), add);
            let (used_bytes, budget_bytes) = (memory.used_bytes(), memory.budget_bytes());
            Some(Stats {
                device: place.id,
                used_bytes,
                budget_bytes,
                pages,
                behind,
                pending,
                counts: by_device[number],
            })
        };
        self.places.iter().enumerate().filter_map(of_device).collect()
    }

    /// Tells who looks from outside what has changed, unless that would take too long now.
    pub(crate) fn operated(&self) {
        if let Some(published) = self.published.get() {
            published.operated(|| self.snapshot());
        }
    }

    /// What there is at the moment; none while somebody works on a file, who tells of it himself.
    fn snapshot(&self) -> Option<Snapshot> {
        let files: Vec<_> = now(&self.kept)?.iter().filter_map(Weak::upgrade).collect();
        let summaries: Vec<_> =
            files.iter().map(|file| Some(file.summary(&*now(&file.state)?))).collect::<Option<_>>()?;
        let memories: Vec<_> = self.places.iter().map(Place::opened_now).collect::<Result<_, ()>>().ok()?;
        let counts = summaries.iter().fold(self.past().closed, |sum, (_, counts)| sum.plus(counts));
        Some(Snapshot { counts, devices: self.stats_of(&memories, &summaries) })
    }
}

/// A lock, if nobody has it.
fn now<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl CachedFile {
    /// Its size when it was last looked at.
    pub fn size(&self) -> u64 {
        self.shared.lock().size()
    }

    pub(crate) fn make_room(&self, device: Device, bytes: u64) -> bool {
        self.cache.make_room(device, bytes, &self.shared.kept)
    }

    /// Maps a range of it on a device of the cache: the bytes have addresses there, and come when they are
    /// acquired. Without an end, to the end of the file.
    ///
    /// # Errors
    /// `BadRange` for a range that is empty or lies beyond the end of the file, `BadUse` for one beyond what was
    /// reserved when the file was first mapped on the device, while other mappings of it are open there.
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
        self.with(None, |state| state.read(offset, buffer))
    }

    /// Writes as a CPU; devices see it from their next acquire on, and only the pages that it touched move.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.with(None, |state| state.write(offset, bytes))
    }

    /// Writes everything that was released to the file, and makes it durable.
    ///
    /// # Errors
    /// `Write`. If the disk has failed since this holder of the file last asked, whoever's sync found out, that is
    /// told once.
    pub fn sync(&self) -> Result<()> {
        self.with(None, |state| state.sync(&self.told))
    }

    /// Works on the file under its lock, for a device or a CPU, and tells of it.
    pub(crate) fn with<T>(&self, device: Option<Device>, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.shared.lock();
        let before = state.counts;
        let outcome = work(&mut state);
        let done = state.counts.minus(&before);
        drop(state);
        if let Some(device) = device {
            self.shared.kept.note(device, &done);
        }
        self.cache.operated();
        outcome
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.kept.lock()
    }

    /// Has frames unpinned by whoever uses the state next.
    pub(crate) fn let_go(&self, device: Device, frames: Range<usize>) {
        self.kept.let_go.lock().unwrap_or_else(PoisonError::into_inner).push((device, frames));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.kept.end();
        if let Some(cache) = self.cache.upgrade() {
            cache.operated();
        }
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (device, frames) in self.let_go.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            state.unpin(device, frames);
        }
        state
    }

    fn summary(&self, state: &State) -> Summary {
        ((0..self.devices).map(|device| state.pages_by_state(device)).collect(), state.counts)
    }

    fn note(&self, device: Device, done: &Counts) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.by_device[device] = past.by_device[device].plus(done);
    }

    /// Takes everything from the devices. What was released reaches the file.
    fn end(&self) {
        let mut state = self.lock();
        // Whoever wants to know of failures syncs before.
        state.end();
        let counts = std::mem::take(&mut state.counts);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.closed = past.closed.plus(&counts);
    }
}
