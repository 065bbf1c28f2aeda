//! The router: takes requests, plans them, runs their engines at the same time, and reports.
//!
//! Lock and drop order: queues, which may have pinned the pool's slots, go before the pool.
//! Concurrent requests share pool, workers and costs, and nothing else.

mod ahead;
mod crowd;
mod engines;
mod explain;
mod gauge;
mod learn;
mod options;
mod ordered;
mod read;
mod request;
mod scattered;
mod settle;
mod short;
mod striped;
mod submit;
mod write;

pub use options::RouterOptions;
pub use ordered::OrderedReader;
pub(crate) use request::clamp;
pub use short::READ_CACHED_BYTES_MAX;
pub use submit::PendingOnStream;

use crate::cost::Costs;
use crate::engine::Queues;
use crate::engine::mapped::Budget;
use crate::engine::p2p::{DevicePath, P2pDriver};
use crate::engine::streams::Streams;
use crate::file::OpenFile;
use crate::readahead::Prefetcher;
use crate::storage::Storage;
use crate::workers::Workers;
use crate::{Error, Result};
use bifolio_device::Cancel;
use bifolio_device::fork::Birth;
use bifolio_device::{Device, PinnedPool, PoolStats, Stream};
use bifolio_kernels::{Kernels, scatter::Scatter};
use crowd::Crowd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Threads beside those that copy out of the page cache.
const STORAGE_THREADS: usize = 8;

/// Moves files into the memory of one device.
#[derive(Debug)]
pub struct Router {
    device: Device,
    costs: Mutex<Costs>,
    /// Set where costs were given, are an accelerator's, or hold what this machine's processor can do.
    gauged: OnceLock<()>,
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
        let is_known = options.costs.is_some() || device.info().is_accelerator;
        Self {
            device: device.clone(),
            gauged: if is_known { OnceLock::from(()) } else { OnceLock::new() },
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
                Err(error) => return Err(Error::system(member.path(), "read", error).at(place)),
            }
        }
        Ok(got)
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
