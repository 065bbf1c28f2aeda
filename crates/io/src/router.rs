//! The router: takes requests, plans them, runs their engines at the same time, and reports.
//!
//! Lock and drop order: queues, which may have pinned the pool's slots, go before the pool.
//! Concurrent requests share pool, workers and costs, and nothing else.

use crate::cost::Costs;
use crate::engine::cached::Cached;
use crate::engine::direct::{Direct, Queues};
use crate::engine::mapped::Mapped;
use crate::engine::mapped::{Budget, COPY_BYTES_MIN};
use crate::engine::p2p::{DevicePath, P2p};
use crate::engine::{Engine, Streams};
use crate::file::{Latest, Stamp};
use crate::flight::Flight;
use crate::job::{Cancel, Job};
use crate::plan::{Offer, Plan, plan};
use crate::planner::Planner;
use crate::residency::{Residency, Source};
use crate::storage::{OsStorage, Storage};
use crate::workers::{Group, Workers};
use crate::{EngineKind, Error, ErrorKind, OpenFile, P2pDriver, Result, Segment};
use bifolio_device::{Device, DeviceSlice, PinnedPool, PoolStats};
use serde::Serialize;
use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Up to this size a request is first tried as one read of what is cached (`RWF_NOWAIT`): asking
/// for the residency first would cost a noticeable part of so short a read.
const OPTIMISTIC_BYTES_MAX: u64 = 256 << 10;

/// Choices for a router.
#[derive(Debug, Clone)]
pub struct RouterOptions {
    /// Threads that copy out of the page cache for one request.
    pub threads: usize,
    /// Bytes of a pinned slot, a power of two from 64 KiB.
    pub slot_bytes: usize,
    /// Pinned bytes at most.
    pub pool_bytes: usize,
    /// Page-cache bytes that may be pinned for ranges that are read again and again; 0 for none.
    pub mapped_bytes: u64,
    /// Measured costs, as from a [`crate::Profile`]; without them defaults, corrected by what is
    /// observed.
    pub costs: Option<Costs>,
    /// The driver of the direct path; by default the device's own, where it reports one.
    pub p2p: Option<Arc<dyn P2pDriver>>,
    /// Stops every further request of the router: for work that is many requests, such as a
    /// calibration.
    pub cancel: Cancel,
    /// How files are read; a fault injector in tests.
    pub storage: Arc<dyn Storage>,
}

impl Default for RouterOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            threads: cpus.min(8),
            slot_bytes: 4 << 20,
            pool_bytes: 64 << 20,
            mapped_bytes: physical_memory() / 4,
            costs: None,
            p2p: None,
            cancel: Cancel::default(),
            storage: Arc::new(OsStorage),
        }
    }
}

fn physical_memory() -> u64 {
    // SAFETY: plain questions to the C library.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

/// Who chooses the engine of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The planner.
    #[default]
    Auto,
    /// The caller: all bytes by this engine, or an error.
    Only(EngineKind),
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Only)
            .map_err(|_| format!("\"{text}\" is not an engine: use auto, cached, mapped, direct or p2p"))
    }
}

impl std::fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(engine) => engine.fmt(f),
        }
    }
}

/// Choices for one request.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Who chooses the engine.
    pub engine: EngineChoice,
    /// Look at the residency even where the plan does not need it (an engine was chosen).
    pub report_residency: bool,
    /// Stops the request.
    pub cancel: Cancel,
    /// Counts bytes on their way to the device while the request runs.
    pub progress: Arc<AtomicU64>,
}

/// What a request did.
#[derive(Debug, Clone, Serialize)]
pub struct ReadReport {
    /// Bytes now in device memory. Less than asked for only at the end of the file.
    pub bytes: u64,
    /// Seconds from the call to the last byte in place.
    pub seconds: f64,
    /// The part of them before the first engine started: looking at the residency and planning.
    pub plan_seconds: f64,
    /// Seconds spent on planning in all; beyond `plan_seconds` the engines were running already.
    pub planning_cpu_s: f64,
    /// Seconds that the plan predicted.
    pub predicted_s: f64,
    /// Why this plan, as a phrase.
    pub reason: String,
    /// What was cached; none where nobody looked.
    pub residency: Option<ResidencyReport>,
    /// Every segment.
    pub plan: Vec<SegmentReport>,
}

/// What of a request was cached when it was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ResidencyReport {
    /// Which source was believed.
    pub source: Source,
    /// Bytes in the page cache.
    pub cached_bytes: u64,
    /// Bytes asked about.
    pub total_bytes: u64,
}

/// One segment of a plan, after it ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SegmentReport {
    /// The engine.
    pub engine: EngineKind,
    /// First byte, in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Seconds that the cost model expected.
    pub predicted_s: f64,
    /// Seconds from its first read to its last copy.
    pub actual_s: f64,
}

/// Moves files into the memory of one device.
#[derive(Debug)]
pub struct Router {
    device: Device,
    costs: Mutex<Costs>,
    threads: usize,
    p2p: Option<Arc<dyn P2pDriver>>,
    cancel: Cancel,
    storage: Arc<dyn Storage>,
    budget: Arc<Budget>,
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
            p2p: options.p2p.or_else(|| DevicePath::of(device).map(|path| Arc::new(path) as _)),
            cancel: options.cancel,
            storage: options.storage,
            budget: Budget::new(if device.capabilities().host_register_read_only.is_yes() {
                options.mapped_bytes
            } else {
                0
            }),
            background: Workers::start(1),
            // The caller's thread works too; a second engine of the same request needs one more.
            workers: Workers::start(threads + 1),
            queues: Arc::default(),
            streams: Streams::new(device),
            pool: PinnedPool::new(device, slot_bytes, slots),
        }
    }

    /// The device that it reads into.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Opens a file for reading.
    pub fn open(&self, path: impl AsRef<std::path::Path>) -> Result<Arc<OpenFile>> {
        OpenFile::open(path).map(Arc::new).map_err(|error| error.into_device(self.device.id()))
    }

    /// Pinned memory in use.
    pub fn pool_stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// The costs that plans are made with, as observed so far.
    pub fn costs(&self) -> Costs {
        *self.lock_costs()
    }

    /// Reads `length` bytes at `offset` (to the end of the file without a length, and never
    /// beyond it) to the start of `destination`. Returns when they are in place.
    ///
    /// # Errors
    /// `BadRange` for an offset beyond the end or an overflowing length, `BadDestination` for one
    /// that is too short, `Truncated`, `Read`, `Device`, `NoEngine`, `Cancelled`. After an error
    /// parts of the destination are overwritten, and nothing is in flight.
    pub fn read(
        &self,
        file: &Arc<OpenFile>,
        offset: u64,
        length: Option<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<ReadReport> {
        let started = Instant::now();
        let on_device = |error: Error| error.into_device(self.device.id());
        if self.cancel.is_cancelled() || options.cancel.is_cancelled() {
            return Err(on_device(Error::new(ErrorKind::Cancelled, file.path(), "the request was cancelled")));
        }
        let stamp = file.stamp().map_err(on_device)?;
        let range = Self::clamp(file, stamp.size, offset, length, destination).map_err(on_device)?;
        if range.is_empty() {
            return Ok(ReadReport::empty(started));
        }
        let registered = self.is_registered(file, &stamp, &range);
        let mut tried = false;
        let expected =
            if options.engine == EngineChoice::Auto && !registered { file.latest() } else { Latest::NotCached };
        if expected != Latest::NotCached
            && range.end - range.start <= OPTIMISTIC_BYTES_MAX.min(self.pool.slot_bytes() as u64)
        {
            if let Some(report) = self.read_if_cached(file, &range, destination, started).map_err(on_device)? {
                file.note_latest(Latest::Cached);
                options.progress.fetch_add(report.bytes, Ordering::Relaxed);
                return Ok(report);
            }
            tried = true;
        }
        let mut planner = Planner::new(self, file, stamp, range.clone(), options);
        if expected == Latest::Cached && !tried {
            planner.trust_the_cache();
        }
        let outcome = self.execute(file, stamp, range.start, destination, options, &mut planner);
        let (segments, predicted_s) = match outcome {
            Err(error) if error.kind() == ErrorKind::DirectRefused && options.engine == EngineChoice::Auto => {
                // The open promised unbuffered reads and the read broke the promise: once more,
                // without them.
                file.refuse_direct(error.to_string());
                return self.read(file, offset, length, destination, options);
            }
            other => other?,
        };
        let residency = planner.residency();
        if options.engine == EngineChoice::Auto {
            // A refused attempt has made the kernel read ahead: what is cached now proves nothing.
            let cached = !tried && residency.is_some_and(|seen| seen.cached_bytes == seen.total_bytes);
            file.note_latest(if cached { Latest::Cached } else { Latest::NotCached });
        }
        let report = ReadReport {
            bytes: segments.iter().map(|segment| segment.length).sum(),
            seconds: started.elapsed().as_secs_f64(),
            plan_seconds: planner.seconds_before_start(),
            planning_cpu_s: planner.seconds(),
            predicted_s,
            reason: planner.reason().to_owned(),
            residency,
            plan: segments,
        };
        self.learn(file, &report, stamp.size, options);
        Ok(report)
    }

    /// Plans a request without running it.
    pub fn explain(
        &self,
        file: &Arc<OpenFile>,
        offset: u64,
        length: Option<u64>,
        engine: EngineChoice,
    ) -> Result<(Plan, Residency)> {
        // SAFETY: the slice is only measured, never used.
        let anywhere = unsafe { DeviceSlice::from_raw(bifolio_device::DevicePtr(0), u64::MAX) };
        let stamp = file.stamp()?;
        let range = Self::clamp(file, stamp.size, offset, length, anywhere)?;
        let options = ReadOptions { engine, report_residency: true, ..ReadOptions::default() };
        Planner::new(self, file, stamp, range, &options).whole()
    }

    /// The part of the file that a request means.
    fn clamp(
        file: &OpenFile,
        size: u64,
        offset: u64,
        length: Option<u64>,
        destination: DeviceSlice<'_>,
    ) -> Result<Range<u64>> {
        let bad = |detail: String| Error::new(ErrorKind::BadRange, file.path(), detail).at(offset);
        if offset > size {
            return Err(bad(format!("the offset is beyond the end of the file ({size} bytes)")));
        }
        let end = match length {
            None => size,
            Some(length) => {
                let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
                end.ok_or_else(|| bad(format!("a length of {length} bytes from there overflows")))?.min(size)
            }
        };
        if destination.len() < end - offset {
            let detail = format!("{} bytes do not fit into {} bytes of device memory", end - offset, destination.len());
            return Err(Error::new(ErrorKind::BadDestination, file.path(), detail).at(offset));
        }
        Ok(offset..end)
    }

    /// Short requests: one read of what is cached, which is the whole request when it is warm.
    fn read_if_cached(
        &self,
        file: &Arc<OpenFile>,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        started: Instant,
    ) -> Result<Option<ReadReport>> {
        let length = range.end - range.start;
        let device_error = |error| Error::device(file.path(), error).at(range.start);
        let mut slot = self.pool.acquire().map_err(device_error)?;
        let buffer = &mut slot.buffer().bytes_mut()[..length as usize];
        // Through the descriptor that is advised of random access: what is missing is then read as
        // asked for, and not a whole readahead window.
        match self.storage.read_cached_at(file.probe(), buffer, range.start) {
            Ok(got) if got as u64 == length => {}
            // Not (all) cached, or the file system cannot say: the long way finds out.
            _ => return Ok(None),
        }
        let stream = self.streams.take().map_err(device_error)?;
        let place = destination.part(0, length).map_err(device_error)?;
        // SAFETY: the slot is not touched before the event is done, or the stream has run dry.
        let copied = unsafe { stream.copy_to_device(place, slot.buffer().as_ptr()) };
        let landed = copied.and_then(|()| stream.record()).and_then(|event| event.wait());
        if let Err(error) = landed {
            let _ = stream.synchronize();
            return Err(device_error(error));
        }
        stream.declare_clean();
        let seconds = started.elapsed().as_secs_f64();
        let predicted_s = self.lock_costs().cached.seconds(length);
        Ok(Some(ReadReport {
            bytes: length,
            seconds,
            // The read was the question; only what came before it was planning.
            plan_seconds: 0.0,
            planning_cpu_s: 0.0,
            predicted_s,
            reason: "short, and cached".to_owned(),
            residency: Some(ResidencyReport { source: Source::Nowait, cached_bytes: length, total_bytes: length }),
            plan: vec![SegmentReport {
                engine: EngineKind::Cached,
                offset: range.start,
                length,
                predicted_s,
                actual_s: seconds,
            }],
        }))
    }

    /// Whether a request can be served from kept registrations alone.
    pub(crate) fn is_registered(&self, file: &OpenFile, stamp: &Stamp, range: &Range<u64>) -> bool {
        let long = range.end - range.start >= COPY_BYTES_MIN;
        long && self.budget.is_open() && file.windows.cover(self.device.id(), stamp, range)
    }

    /// The plan for what `residency` describes.
    pub(crate) fn plan_for(&self, file: &OpenFile, stamp: &Stamp, residency: &Residency) -> Plan {
        let range = residency.range();
        let all_cached = residency.cached_bytes() == range.end - range.start;
        let mapped = file.windows.ready(self.device.id(), stamp);
        let p2p_alignment = self.p2p.as_ref().and_then(|driver| driver.path_to(file).ok());
        // Opening the second descriptor is for requests that have a use for it.
        let direct = !all_cached && file.direct().is_ok();
        plan(residency, &self.costs(), &Offer { direct, p2p_alignment, mapped: &mapped })
    }

    /// How files are read.
    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Why an engine that the caller insists on cannot do it.
    pub(crate) fn require(&self, file: &OpenFile, engine: EngineKind, range: &Range<u64>) -> Result<()> {
        let problem = match engine {
            EngineKind::Cached => return Ok(()),
            EngineKind::Direct => file.direct().err(),
            EngineKind::Mapped => self.device.capabilities().host_register_read_only.reason().map(str::to_owned),
            EngineKind::P2p => match &self.p2p {
                None => Some("no driver here reports a direct path between storage and device".to_owned()),
                Some(driver) => match driver.path_to(file) {
                    Err(reason) => Some(reason),
                    Ok(alignment) if !range.start.is_multiple_of(alignment) || !range.end.is_multiple_of(alignment) => {
                        Some(format!(
                            "the direct path moves multiples of {alignment} bytes; auto serves the edges by other engines"
                        ))
                    }
                    Ok(_) => None,
                },
            },
        };
        match problem {
            None => Ok(()),
            Some(reason) => {
                let detail = format!("the engine {engine} cannot be used: {reason}");
                Err(Error::new(ErrorKind::NoEngine, file.path(), detail).at(range.start))
            }
        }
    }

    /// Runs the engines of a request as its chunks are planned, and waits until nothing is in
    /// flight: the segments as they ran, and the seconds that the model predicts for them.
    pub(crate) fn execute(
        &self,
        file: &Arc<OpenFile>,
        stamp: Stamp,
        base: u64,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        chunks: &mut dyn Iterator<Item = Result<Vec<Segment>>>,
    ) -> Result<(Vec<SegmentReport>, f64)> {
        let job = Arc::new(Job::new(
            file,
            &self.pool,
            &self.storage,
            &self.device,
            stamp,
            base,
            destination,
            options.cancel.clone(),
            Arc::clone(&options.progress),
        ));
        let start = |kind, job: &Arc<Job>| self.start_engine(kind, job);
        let mut flight = Flight::new(&job, &self.workers, &start);
        while let Some(chunk) = chunks.next() {
            if let Err(error) = chunk.and_then(|segments| flight.add(segments)) {
                job.fail(error);
            }
            if job.is_stopped() {
                break;
            }
            // The last chunk is shared out by `finish`, which keeps a part for this thread.
            if chunks.size_hint().1 != Some(0) {
                flight.launch();
            }
        }
        flight.finish();
        if let Some(error) = job.take_failure() {
            return Err(error);
        }
        let costs = self.costs();
        let segments = job.segments(&costs);
        let ran = segments.iter().map(SegmentReport::planned).collect();
        Ok((segments, Plan::merged(ran, "", &costs).predicted_s))
    }

    fn start_engine(&self, kind: EngineKind, job: &Arc<Job>) -> Result<Arc<dyn Engine>> {
        Ok(match kind {
            EngineKind::Cached => Arc::new(Cached::new(job, kind, &self.streams, self.threads)?),
            EngineKind::Direct => Arc::new(Direct::new(job, &self.streams, &self.queues)?),
            EngineKind::Mapped => Arc::new(Mapped::new(job, &self.streams, &self.budget)?),
            EngineKind::P2p => Arc::new(P2p::new(job, self.p2p.as_ref())?),
        })
    }

    /// Corrects the costs, and registers ranges that are read again and again.
    fn learn(&self, file: &Arc<OpenFile>, report: &ReadReport, size: u64, options: &ReadOptions) {
        if options.engine != EngineChoice::Auto {
            return;
        }
        let cached = report.residency.map_or(0, |seen| seen.cached_bytes);
        if let [only] = &report.plan[..]
            && (cached == 0 || cached == report.bytes)
        {
            self.lock_costs().observe(only.engine, cached > 0, only.length, report.seconds);
        }
        if !self.budget.is_open() {
            return;
        }
        for segment in report.plan.iter().filter(|segment| segment.engine == EngineKind::Cached) {
            for number in file.windows.heat(segment.offset..segment.offset + segment.length, size) {
                let (file, device, budget) = (Arc::clone(file), self.device.clone(), Arc::clone(&self.budget));
                self.background.run(&Group::default(), move || file.windows.keep(&file, &device, &budget, number));
            }
        }
    }

    fn lock_costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads part of the file into host memory through the page cache, for comparisons.
    pub fn read_to_host(&self, file: &OpenFile, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut got = 0;
        while got < buffer.len() {
            match self.storage.read_at(file.buffered(), &mut buffer[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(read) => got += read,
                Err(error) => return Err(Error::system(file.path(), "reading it", error).at(offset + got as u64)),
            }
        }
        Ok(got)
    }
}

impl ReadReport {
    fn empty(started: Instant) -> Self {
        Self {
            bytes: 0,
            seconds: started.elapsed().as_secs_f64(),
            plan_seconds: 0.0,
            planning_cpu_s: 0.0,
            predicted_s: 0.0,
            reason: "nothing to read".to_owned(),
            residency: Some(ResidencyReport { source: Source::Cachestat, cached_bytes: 0, total_bytes: 0 }),
            plan: vec![],
        }
    }
}

impl SegmentReport {
    fn planned(&self) -> Segment {
        let Self { engine, offset, length, predicted_s, .. } = *self;
        Segment { engine, offset, length, predicted_s }
    }
}

impl ResidencyReport {
    pub(crate) fn of(residency: &Residency) -> Self {
        let range = residency.range();
        Self { source: residency.source, cached_bytes: residency.cached_bytes(), total_bytes: range.end - range.start }
    }
}
