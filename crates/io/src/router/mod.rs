//! The router: takes requests, plans them, runs their engines at the same time, and reports.
//!
//! Lock and drop order: queues, which may have pinned the pool's slots, go before the pool.
//! Concurrent requests share pool, workers and costs, and nothing else.

mod ahead;
mod options;
mod ordered;
mod read;
mod report;
mod scattered;
mod settle;
mod short;
mod striped;
mod submit;
mod write;

pub use options::{EngineChoice, Follow, ReadOptions, RouterOptions};
pub use ordered::OrderedReader;
pub(crate) use read::clamp;
pub use report::{ReadReport, ResidencyReport, SegmentReport};
pub use scattered::{BatchReport, ReadExtent};
pub use settle::After;
pub use short::READ_CACHED_BYTES_MAX;
pub use submit::PendingOnStream;
pub(crate) use write::DIRECT_BYTES_MIN;
pub use write::{WriteOptions, WriteReport};

use crate::cost::Costs;
use crate::engine::Streams;
use crate::engine::direct::Queues;
use crate::engine::mapped::Budget;
use crate::engine::p2p::DevicePath;
use crate::readahead::Prefetcher;
use crate::storage::Storage;
use crate::workers::Workers;
use crate::{Error, OpenFile, P2pDriver, Result};
use bifolio_device::Cancel;
use bifolio_device::fork::Birth;
use bifolio_device::{Device, PinnedPool, PoolStats, Stream};
use bifolio_kernels::{Kernels, scatter::Scatter};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Threads beside those that copy out of the page cache.
const STORAGE_THREADS: usize = 8;

/// Moves files into the memory of one device.
#[derive(Debug)]
pub struct Router {
    device: Device,
    costs: Mutex<Costs>,
    threads: usize,
    /// Requests whose engines run, which share the threads.
    crowd: Crowd,
    p2p: Option<Arc<dyn P2pDriver>>,
    cancel: Cancel,
    storage: Arc<dyn Storage>,
    budget: Arc<Budget>,
    prefetcher: Option<Prefetcher>,
    /// Loaded when a request first has use for them.
    kernels: OnceLock<Option<Arc<Kernels>>>,
    /// The stream of programs that name none, where the device has one.
    default_stream: OnceLock<Option<Stream>>,
    /// Short reads that copy at present.
    shorts: AtomicUsize,
    birth: Birth,
    abandoned: AtomicBool,
    // Dropped in this order: work first, then what it uses.
    background: Workers,
    workers: Workers,
    queues: Arc<Queues>,
    streams: Arc<Streams>,
    pool: Arc<PinnedPool>,
}

impl Router {
    /// A router for `device`. Threads start now; pinned memory is allocated when first needed.
    pub fn new(device: &Device, options: RouterOptions) -> Self {
        let slot_bytes = options.slot_bytes.clamp(64 << 10, 1 << 30).next_power_of_two();
        let slots = (options.pool_bytes / slot_bytes).max(2);
        let threads = options.threads.max(1);
        Self {
            device: device.clone(),
            costs: Mutex::new(options.costs.unwrap_or_default()),
            threads,
            crowd: Crowd::default(),
            p2p: options.p2p.or_else(|| DevicePath::of(device).map(|path| Arc::new(path) as _)),
            cancel: options.cancel,
            budget: Budget::new(if device.capabilities().host_register_read_only.is_yes() {
                options.mapped_bytes
            } else {
                0
            }),
            prefetcher: Prefetcher::new(device, &options.storage, options.readahead_bytes),
            storage: options.storage,
            kernels: OnceLock::new(),
            default_stream: OnceLock::new(),
            shorts: AtomicUsize::new(0),
            birth: Birth::here(),
            abandoned: AtomicBool::new(false),
            background: Workers::start(1),
            // The caller's thread works too. Engines that wait for disks need a thread each: one for a
            // plain file, one for each member of a striped set.
            workers: Workers::start(threads + STORAGE_THREADS),
            queues: Arc::default(),
            streams: Streams::new(device),
            pool: PinnedPool::new(device, slot_bytes, slots),
        }
    }

    /// Whether this process was forked from the one that made it, so that every request is refused.
    pub fn was_forked(&self) -> bool {
        self.birth.was_elsewhere()
    }

    /// Says that the device's context is gone, with everything in it: nothing of it is freed any more.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    /// The device that it reads into.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Opens a file for reading.
    pub fn open(&self, path: impl AsRef<std::path::Path>) -> Result<Arc<OpenFile>> {
        OpenFile::open(path).map(Arc::new).map_err(|error| error.into_device(self.device.id()))
    }

    /// Opens a file for reading and writing, creating it if that is asked for.
    pub fn open_for_writing(&self, path: impl AsRef<std::path::Path>, create: bool) -> Result<Arc<OpenFile>> {
        let opened = OpenFile::open_for_writing(path, create);
        opened.map(Arc::new).map_err(|error| error.from_device(self.device.id()))
    }

    /// Pinned memory in use: bytes with those for reading ahead, slots without.
    pub fn pool_stats(&self) -> PoolStats {
        let (stats, ahead) = (self.pool.stats(), self.prefetcher.as_ref().map(Prefetcher::stats));
        let (allocated, limit) = ahead.map_or((0, 0), |ahead| (ahead.allocated_bytes, ahead.limit_bytes));
        PoolStats {
            allocated_bytes: stats.allocated_bytes + allocated,
            limit_bytes: stats.limit_bytes + limit,
            ..stats
        }
    }

    /// The costs that plans are made with, as observed so far.
    pub fn costs(&self) -> Costs {
        *self.lock_costs()
    }

    /// The device's kernels; without them slots are shared out by copies.
    fn kernels(&self) -> Option<Arc<Kernels>> {
        self.kernels.get_or_init(|| Kernels::load(&self.device, &[&Scatter]).ok().map(Arc::new)).clone()
    }

    /// Threads for copying out of the page cache, for one of several jobs of a request. Of many requests at a
    /// time each gets few: their callers' threads copy beside each other, and waking more only costs.
    fn threads_of(&self, jobs: usize) -> usize {
        self.threads.div_ceil(jobs * self.crowd.size())
    }

    fn lock_costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads part of the file into host memory through the page cache, for comparisons.
    pub fn read_to_host(&self, file: &OpenFile, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut got = 0;
        while got < buffer.len() {
            let at = offset + got as u64;
            let (member, place, run) = file.locate(at);
            let end = buffer.len().min(got.saturating_add(usize::try_from(run).unwrap_or(usize::MAX)));
            match self.storage.read_at(member.buffered(), &mut buffer[got..end], place) {
                Ok(0) => break,
                Ok(read) => got += read,
                Err(error) => return Err(Error::system(member.path(), "reading it", error).at(place)),
            }
        }
        Ok(got)
    }
}

/// How many requests run at a time, of late: between two requests of a thread there are fewer for a moment.
#[derive(Debug)]
struct Crowd {
    running: AtomicUsize,
    /// Requests so far.
    joined: AtomicUsize,
    /// In sixteenths; goes down by one of sixteen with each request that ends.
    lately: AtomicUsize,
    /// When there were several for the last time, in microseconds from `began` on.
    crowded_us: AtomicU64,
    began: Instant,
}

/// So long after there were several requests, one is taken to be the only one: threads that make one after the
/// other pause for less.
const CROWD_FORGOTTEN_US: u64 = 1000;

/// How it was when a request began.
#[derive(Debug, Clone, Copy)]
struct Watch {
    nobody_ran: bool,
    joined: usize,
}

/// One request among those that run.
struct Counted<'a>(&'a Crowd);

impl Default for Crowd {
    fn default() -> Self {
        Self {
            running: AtomicUsize::default(),
            joined: AtomicUsize::default(),
            lately: AtomicUsize::default(),
            crowded_us: AtomicU64::default(),
            began: Instant::now(),
        }
    }
}

impl Crowd {
    /// Counts a request whose engines run, as long as the guard lives.
    fn join(&self) -> Counted<'_> {
        self.joined.fetch_add(1, Ordering::Relaxed);
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.lately.fetch_max(running * 16, Ordering::Relaxed);
        self.note_if_crowded(running);
        Counted(self)
    }

    /// Called before a request joins.
    fn watch(&self) -> Watch {
        let joined = self.joined.load(Ordering::Relaxed);
        Watch { nobody_ran: self.running.load(Ordering::Relaxed) == 0, joined }
    }

    /// Whether a request that is over had link, memory and disk for itself. What is seen of one that had not says
    /// little about what they cost.
    fn was_alone(&self, watch: Watch) -> bool {
        // Itself, if it has joined.
        watch.nobody_ran && self.joined.load(Ordering::Relaxed).wrapping_sub(watch.joined) <= 1
    }

    fn size(&self) -> usize {
        self.size_at(self.now_us())
    }

    fn size_at(&self, now_us: u64) -> usize {
        let is_forgotten = now_us.saturating_sub(self.crowded_us.load(Ordering::Relaxed)) > CROWD_FORGOTTEN_US;
        if is_forgotten {
            // Those that run go on running: only what was is forgotten.
            self.lately.store(self.running.load(Ordering::Relaxed) * 16, Ordering::Relaxed);
        }
        (self.lately.load(Ordering::Relaxed) / 16).max(1)
    }

    fn note_if_crowded(&self, running: usize) {
        if running > 1 {
            self.crowded_us.store(self.now_us(), Ordering::Relaxed);
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let running = self.0.running.fetch_sub(1, Ordering::Relaxed) - 1;
        // Two that end at once may lose a step, which the next makes up for.
        let lately = self.0.lately.load(Ordering::Relaxed);
        self.0.lately.store((lately - lately / 16).max(running * 16), Ordering::Relaxed);
        self.0.note_if_crowded(running + 1);
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() || self.abandoned.load(Ordering::Acquire) {
            // In a child, rings and streams are still the parent's, and their requests end there; of a context
            // that is gone, they are nobody's.
            let shared = (Arc::clone(&self.queues), Arc::clone(&self.streams), Arc::clone(&self.pool));
            std::mem::forget((shared, self.device.clone(), self.prefetcher.take()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_had_everything_for_itself_was_alone() {
        let crowd = Crowd::default();
        let first = crowd.watch();
        let running = crowd.join();
        assert!(crowd.was_alone(first));
        // One that begins meanwhile, and is over before the first: neither was alone.
        let second = crowd.watch();
        drop(crowd.join());
        assert!(!crowd.was_alone(second) && !crowd.was_alone(first));
        drop(running);
        let third = crowd.watch();
        drop(crowd.join());
        assert!(crowd.was_alone(third));
    }

    #[test]
    fn a_crowd_is_remembered_for_a_moment_and_then_forgotten() {
        let crowd = Crowd::default();
        let running: Vec<_> = (0..8).map(|_| crowd.join()).collect();
        assert_eq!(crowd.size(), 8);
        drop(running);
        let now = crowd.crowded_us.load(Ordering::Relaxed);
        let _alone = crowd.join();
        assert!(crowd.size_at(now + CROWD_FORGOTTEN_US) > 1, "between two requests of each thread");
        assert_eq!(crowd.size_at(now + CROWD_FORGOTTEN_US + 1), 1);
    }
}
