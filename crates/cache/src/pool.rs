//! What all files of a cache share: devices and their memories, and what is open.

use crate::ahead::Ahead;
use crate::directory::failures::Unwritten;
use crate::error::Result;
use crate::kept::Kept;
use crate::memory::{DeviceMemory, Memory};
use crate::open::{Key, OpenedFile, Past, Summary, now};
use crate::options::CacheOptions;
use crate::page::Device;
use crate::published::Published;
use crate::state::keeper::Keeper;
use crate::stats::{Counts, Snapshot, Stats};
use crate::table::{Opened, Table};
use crate::write_back::WriteBack;
use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A file as long as somebody has it open.
pub(crate) type Held = Opened<Key, Holder>;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) devices: Vec<DeviceMemory>,
    pub(crate) options: CacheOptions,
    pub(crate) ahead: Ahead,
    pub(crate) write_back: WriteBack,
    /// Files that nobody holds and that could not be written.
    kept: Arc<Kept>,
    /// Who keeps what must outlive the process.
    pub(crate) keeper: Option<Arc<dyn Keeper>>,
    past: Arc<Mutex<Past>>,
    files: Arc<Table<Key, Holder>>,
    /// Files that are open or end.
    opened: Mutex<Vec<Weak<OpenedFile>>>,
    /// Where other processes read its statistics, if it is the cache of this process.
    published: OnceLock<Published>,
}

/// Whether other files have given memory.
pub(crate) enum Room {
    Made,
    /// An operation on a file that has not ended holds some.
    Awaited(Arc<OpenedFile>),
    None,
}

/// The holders of a file together. It ends with the last of them, and not with somebody who only looks at it.
#[derive(Debug)]
pub(crate) struct Holder {
    key: Key,
    pub(crate) file: Arc<OpenedFile>,
    pool: Weak<Pool>,
    has_ended: AtomicBool,
}

impl Deref for Holder {
    type Target = Arc<OpenedFile>;

    fn deref(&self) -> &Arc<OpenedFile> {
        &self.file
    }
}

impl Holder {
    /// Nobody holds the file any more. What cannot be written stays with the cache.
    pub(crate) fn end(&self) -> Result<()> {
        self.has_ended.store(true, Ordering::Relaxed);
        let ended = self.file.end();
        if let Some(pool) = self.pool.upgrade() {
            // What somebody keeps beyond the process is found there.
            if ended.is_err() && pool.keeper.is_none() && pool.kept.keep(self.key, &self.file) {
                pool.write_back.note(&self.file);
            }
            pool.operated();
        }
        ended.map_err(Unwritten::told)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if !self.has_ended.load(Ordering::Relaxed) {
            let _ = self.end();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.kept.end();
    }
}

impl Pool {
    pub(crate) fn new(devices: Vec<DeviceMemory>, options: CacheOptions, keeper: Option<Arc<dyn Keeper>>) -> Self {
        let past = Arc::new(Mutex::new(Past::new(devices.len())));
        let (files, opened) = (Table::new(), Mutex::default());
        let (ahead, kept) = (Ahead::default(), Kept::new());
        let write_back = WriteBack::new(options.write_back_after, &kept);
        Self { devices, options, ahead, write_back, kept, keeper, past, files, opened, published: OnceLock::new() }
    }

    /// A file that is open, or that `make` opens.
    pub(crate) fn open(
        self: &Arc<Self>,
        key: &Key,
        make: impl FnOnce(&Arc<Mutex<Past>>) -> Result<OpenedFile>,
    ) -> Result<Arc<Held>> {
        let was_kept = Cell::new(false);
        let open = || -> Result<Arc<OpenedFile>> {
            if let Some(file) = self.kept.take(key) {
                was_kept.set(true);
                return Ok(file);
            }
            let file = Arc::new(make(&self.past)?);
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            opened.retain(|file| file.strong_count() > 0);
            opened.push(Arc::downgrade(&file));
            Ok(file)
        };
        let has_ended = AtomicBool::new(false);
        let held =
            self.files.open(key, || Ok(Holder { key: *key, file: open()?, pool: Arc::downgrade(self), has_ended }))?;
        // Outside of the table: the thread that writes back may be at work on it, and others open other files.
        if was_kept.get() {
            held.look();
        }
        Ok(held)
    }

    /// All files that are open or end.
    pub(crate) fn opened(&self) -> Vec<Arc<OpenedFile>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes memory on a device from files other than this one, where nobody uses it.
    pub(crate) fn make_room(&self, device: Device, bytes: u64, except: &Arc<OpenedFile>) -> Room {
        let (mut given, mut room) = (0, Room::None);
        for file in self.opened().into_iter().filter(|file| !Arc::ptr_eq(file, except)) {
            if given < bytes {
                let (more, is_busy) = file.give_room(device, bytes - given);
                given += more;
                if is_busy {
                    room = Room::Awaited(file);
                }
            }
        }
        if given > 0 { Room::Made } else { room }
    }
}

/// What it holds, and what has happened.
impl Pool {
    /// By device, of those that something was mapped on.
    pub(crate) fn stats(&self) -> Vec<Stats> {
        let summaries: Vec<_> = self.opened().iter().map(|file| file.summary()).collect();
        let memories: Vec<_> = self.devices.iter().map(DeviceMemory::opened).collect();
        self.stats_of(&memories, &summaries)
    }

    /// What has happened to pages, of all files that there were.
    pub(crate) fn counts(&self) -> Counts {
        let files = self.opened();
        let past = self.past().closed;
        files.iter().fold(past, |sum, file| sum.plus(&file.counts()))
    }

    /// Lets other processes see its statistics from now on.
    pub(crate) fn publish(&self, published: Published) {
        if self.published.set(published).is_ok() {
            self.operated();
        }
    }

    /// Tells who looks from outside what has changed, unless that would take too long now.
    pub(crate) fn operated(&self) {
        if let Some(published) = self.published.get() {
            published.operated(|| self.snapshot());
        }
    }

    /// What there is at the moment; none while somebody works on a file, who tells of it himself.
    fn snapshot(&self) -> Option<Snapshot> {
        let files: Vec<_> = now(&self.opened)?.iter().filter_map(Weak::upgrade).collect();
        let summaries: Vec<_> = files.iter().map(|file| file.summary_now()).collect::<Option<_>>()?;
        let memories: Vec<_> = self.devices.iter().map(DeviceMemory::opened_now).collect::<Result<_, ()>>().ok()?;
        let counts = summaries.iter().fold(self.past().closed, |sum, (_, counts)| sum.plus(counts));
        Some(Snapshot { counts, devices: self.stats_of(&memories, &summaries) })
    }

    fn stats_of(&self, memories: &[Option<Arc<Memory>>], files: &[Summary]) -> Vec<Stats> {
        let by_device = self.past().by_device.clone();
        let of_device = |(number, device): (usize, &DeviceMemory)| {
            let memory = memories[number].as_ref()?;
            let add = |(pages, behind, pending), file: &Summary| {
                let (held, late, unwritten) = file.0[number];
                (pages + held, behind + late, pending + unwritten)
            };
            let (pages, behind, pending) = files.iter().fold((0, 0, 0), add);
            let (used_bytes, budget_bytes) = (memory.used_bytes(), memory.budget_bytes());
            let (device, counts) = (device.id, by_device[number]);
            Some(Stats { device, used_bytes, budget_bytes, pages, behind, pending, counts })
        };
        self.devices.iter().enumerate().filter_map(of_device).collect()
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
