//! Reading ahead of sequential short requests.
//!
//! ```text
//!   requests ──detect──> sequence ──> windows, growing, a few at a time ──> threads fill them
//!                                         |
//!                    private: a pinned slot, past the page cache, which stays as it was
//!                    shared:  the page cache; pages that were not there leave it after use
//! ```
//!
//! Bytes in a slot do not follow the file, and a read must return what `pread` could have returned
//! during the call. So a window is private only where nobody can change the file unnoticed: no
//! process has it open for writing when the window is read (asked by a read lease that is given
//! back at once), and its size and times of change, which every later opening, store or write
//! moves, are the same when the window is used. Everywhere else (no right to a lease, block
//! devices, a file changed within the last clock tick) windows are shared.
//!
//! This is SPIN's read-ahead cache (section 4.3.2) as far as user space can be it: what reads ahead
//! through the page cache is bounded, and only pages of its own are dropped.

mod detect;
mod window;

pub(crate) use detect::{Sequence, Sequences};
pub(crate) use window::{Content, Window};

use crate::cost::Costs;
use crate::engine::fill::{self, Begin};
use crate::file::{Attachment, Keeper, Kept, PlainFile, Stamp};
use crate::options::Advice;
use crate::residency;
use crate::storage::Storage;
use crate::workers::Workers;
use bifolio_device::{Device, PinnedPool, PoolStats, Slot};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use window::{Outcome, Partition};

/// Bytes of a slot for windows: four of the longest requests that are read ahead.
const SLOT_BYTES: usize = 2 << 20;

/// The longest request that is read ahead: longer ones keep a disk busy by themselves. It is the
/// usual bound of the kernel's readahead, and so SPIN's.
pub(crate) const REQUEST_BYTES_MAX: u64 = 512 << 10;

/// Windows of one sequence that are read, or being read, at a time.
const WINDOWS_MAX: usize = 4;

/// Threads that fill windows; each has one read at a time in flight.
const THREADS: usize = 4;

/// What a router needs to read ahead.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    /// Tells the windows of this router from those of others.
    id: u64,
    storage: Arc<dyn Storage>,
    /// Filled windows of files, oldest first: a slot is taken from them when there is no other.
    filled: Mutex<VecDeque<Weak<Window>>>,
    // Dropped in this order: the threads use the pool.
    workers: Workers,
    pool: Arc<PinnedPool>,
}

/// The windows of one sequence, in file order.
pub(crate) type Windows = VecDeque<Arc<Window>>;

/// What one open file knows about its readers.
#[derive(Debug, Default)]
struct Readahead {
    /// The router that the windows belong to, 0 for none yet.
    owner: AtomicU64,
    sequences: Mutex<Sequences<Windows>>,
}

impl Attachment for Readahead {
    fn release_pages(&self) {
        self.clear();
    }

    fn advised(&self, advice: Advice) {
        if advice == Advice::Random {
            self.clear();
        }
    }
}

impl Kept for Readahead {
    const KEEPER: Keeper = Keeper::Readahead;
}

impl Readahead {
    /// Drops all windows.
    fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Sequences<Windows>> {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prefetcher {
    /// A prefetcher with `bytes` of pinned memory at most, none of it allocated yet; none for less
    /// than two slots.
    pub(crate) fn new(device: &Device, storage: &Arc<dyn Storage>, bytes: usize) -> Option<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let slots = bytes / SLOT_BYTES;
        (slots >= 2).then(|| Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            storage: Arc::clone(storage),
            filled: Mutex::default(),
            workers: Workers::start(THREADS),
            pool: PinnedPool::new(device, SLOT_BYTES, slots),
        })
    }

    /// Pinned memory for windows.
    pub(crate) fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Notes a request, and finds the window that has all of its bytes.
    pub(crate) fn note(&self, file: &Arc<PlainFile>, stamp: &Stamp, request: &Range<u64>) -> Option<Arc<Window>> {
        if file.advice() == Advice::Random {
            return None;
        }
        let readahead = file.kept::<Readahead>();
        if !self.owns(readahead) {
            return None;
        }
        let mut sequences = readahead.lock();
        let (sequence, windows) = sequences.find(request);
        let window = window_at(windows, stamp, request);
        if windows.is_empty() {
            sequence.restart();
        }
        window
    }

    /// Reads ahead of a request that was just served, if it is one of a sequence. `costs` are those
    /// of now.
    pub(crate) fn read_ahead(&self, file: &Arc<PlainFile>, stamp: &Stamp, request: &Range<u64>, costs: &Costs) {
        let readahead = file.kept::<Readahead>();
        if !self.owns(readahead) || file.is_in_memory() {
            return;
        }
        let mut sequences = readahead.lock();
        let Some((sequence, windows)) = sequences.ending_at(request.end) else { return };
        let started = self.top_up(file, stamp, sequence, windows, costs);
        if !started.is_empty() {
            let mut filled = lock(&self.filled);
            filled.retain(|window| window.strong_count() > 0);
            filled.extend(started.iter().map(Arc::downgrade));
        }
    }

    /// Starts windows of a sequence until enough are ahead; those that were started.
    pub(crate) fn top_up(
        &self,
        file: &Arc<PlainFile>,
        stamp: &Stamp,
        sequence: &mut Sequence,
        windows: &mut Windows,
        costs: &Costs,
    ) -> Vec<Arc<Window>> {
        let mut started = Vec::new();
        while windows.len() < WINDOWS_MAX {
            // A window that begins between boundaries needs room around it.
            let room = SLOT_BYTES as u64 - 2 * fill::BOUNDARY_BYTES;
            let Some(range) = sequence.next_window(file.advice(), stamp.size, room) else { break };
            let Some(window) = self.start(file, stamp, range.clone(), costs) else {
                sequence.give_back(&range);
                break;
            };
            windows.push_back(Arc::clone(&window));
            started.push(window);
        }
        started
    }

    /// Reads a window on another thread; none where there is no memory for it.
    fn start(&self, file: &Arc<PlainFile>, stamp: &Stamp, range: Range<u64>, costs: &Costs) -> Option<Arc<Window>> {
        let is_private = file.is_unchanging(stamp);
        let slot = if is_private { Some(self.slot()?) } else { None };
        let window = Window::new(range, *stamp);
        let (filling, file, storage, costs) =
            (Filling(Arc::clone(&window)), Arc::clone(file), Arc::clone(&self.storage), *costs);
        self.workers.run_alone(move || match slot {
            Some(slot) => filling.privately(&file, &*storage, &costs, slot),
            None => filling.shared(&file, &*storage),
        });
        Some(window)
    }

    /// A slot: a free one, or that of the oldest window that nobody is filling.
    fn slot(&self) -> Option<Slot> {
        if let Ok(Some(slot)) = self.pool.try_acquire() {
            return Some(slot);
        }
        let mut filled = lock(&self.filled);
        // Those that are being filled keep their place.
        filled.retain(|window| window.strong_count() > 0);
        let found = filled.iter().enumerate().find_map(|(at, window)| Some((at, window.upgrade()?.take_content()?)));
        let (at, content) = found?;
        filled.remove(at);
        Some(content.slot)
    }

    /// Whether the windows of a file are this router's: the first to come has them.
    fn owns(&self, readahead: &Readahead) -> bool {
        let owner = readahead.owner.compare_exchange(0, self.id, Ordering::Relaxed, Ordering::Relaxed);
        owner.map_or_else(|other| other == self.id, |_| true)
    }
}

/// The window with all bytes of a request; windows before it are done with, and all are once the
/// file has changed.
pub(crate) fn window_at(windows: &mut Windows, stamp: &Stamp, request: &Range<u64>) -> Option<Arc<Window>> {
    if windows.front().is_some_and(|window| window.stamp != *stamp) {
        windows.clear();
    }
    while windows.front().is_some_and(|window| window.range.end <= request.start) {
        windows.pop_front();
    }
    let holds = |window: &&Arc<Window>| window.range.start <= request.start && window.range.end >= request.end;
    windows.front().filter(holds).cloned()
}

/// A window in the hands of the thread that fills it; one that is given up fails.
struct Filling(Arc<Window>);

impl Filling {
    fn privately(self, file: &PlainFile, storage: &dyn Storage, costs: &Costs, mut slot: Slot) {
        let (range, memory) = (self.0.range.clone(), slot.buffer().bytes_mut());
        // An error is not reported here: the request itself will meet it, or not.
        if let Ok(filled) = fill::fill(file, storage, costs, Begin::ByAsking, range, memory) {
            let was_cached = filled.residency.cached_bytes == filled.residency.total_bytes;
            self.0.settle(Outcome::Private(Content { slot, was_cached }));
        }
    }

    fn shared(self, file: &PlainFile, storage: &dyn Storage) {
        let Ok(residency) = residency::query(file, storage, self.0.range.clone()) else { return };
        let missing = residency.runs().filter(|(_, is_cached)| !is_cached).map(|(run, _)| run);
        let partition = Partition { file: file.probe_shared(), pages: missing.collect() };
        for run in &partition.pages {
            let (fd, offset, len) = (partition.file.as_raw_fd(), run.start as i64, (run.end - run.start) as i64);
            // SAFETY: advice on an open descriptor.
            unsafe { libc::posix_fadvise(fd, offset, len, libc::POSIX_FADV_WILLNEED) };
        }
        self.0.settle(Outcome::Shared(partition));
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.0.fail_if_filling();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
