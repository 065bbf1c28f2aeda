//! Reading one range: by one read where it is short, else by a plan and its engines.

use super::{EngineChoice, ReadOptions, ReadReport, Router, SegmentReport, Watch};
use crate::engine::Engine;
use crate::engine::cached::Cached;
use crate::engine::direct::Direct;
use crate::engine::mapped::{COPY_BYTES_MIN, Mapped};
use crate::engine::p2p::P2p;
use crate::file::{PlainFile, Stamp};
use crate::flight::{Flight, StartEngine};
use crate::job::{Job, Order, Placement, Together};
use crate::plan::{Offer, Plan, plan};
use crate::planner::Planner;
use crate::ranges::{Mode, Ticket};
use crate::readahead::REQUEST_BYTES_MAX;
use crate::residency::Residency;
use crate::storage::Storage;
use crate::workers::Group;
use crate::{EngineKind, Error, ErrorKind, OpenFile, Result, Segment};
use bifolio_device::Cancel;
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A job, and its segments as they are planned.
pub(super) type Planned<'a> = (Arc<Job>, &'a mut dyn Iterator<Item = Result<Vec<Segment>>>);

impl Router {
    /// Reads `length` bytes at `offset` (to the end of the file without a length, and never
    /// beyond it) to the start of `destination`. Returns when they are in place.
    ///
    /// # Errors
    /// `BadRange` for an offset beyond the end or an overflowing length, `BadDestination` for one
    /// that is too short, `Truncated`, `Read`, `Device`, `NoEngine`, `Cancelled`. After an error
    /// parts of the destination are overwritten, and nothing is in flight.
    pub fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        length: Option<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<ReadReport> {
        let turn = file.ticket(Mode::Read, offset, length);
        self.read_in_turn(file, offset, length, destination, options, turn.as_ref())
    }

    /// The same for a request whose place in the order of reads and writes was taken before.
    pub(super) fn read_in_turn(
        &self,
        file: &OpenFile,
        offset: u64,
        length: Option<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        turn: Option<&Ticket>,
    ) -> Result<ReadReport> {
        let started = Instant::now();
        self.begin(file, &options.cancel)
            .and_then(|()| {
                turn.inspect(|turn| turn.wait());
                if let Some(layout) = file.layout() {
                    let range = clamp(file.path(), file.size()?, offset, length, destination.len())?;
                    let destination = self.settle(file.path(), &options.after, &options.cancel, destination)?;
                    return self.read_striped(file, *layout, &range, destination, options, started);
                }
                let file = file.plain();
                let stamp = file.stamp()?;
                let range = clamp(file.path(), stamp.size, offset, length, destination.len())?;
                self.read_range(file, stamp, &range, destination, options, started)
            })
            .map_err(|error| error.into_device(self.device.id()))
    }

    /// Refuses what was cancelled before it began, and what nobody would carry out.
    pub(super) fn begin(&self, file: &OpenFile, cancel: &Cancel) -> Result<()> {
        if self.birth.was_elsewhere() {
            return Err(Error::forked(file.path()));
        }
        if self.cancel.is_cancelled() || cancel.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, file.path(), "the request was cancelled"));
        }
        Ok(())
    }

    /// One range of one plain file, to the start of `destination`.
    pub(super) fn read_range(
        &self,
        file: &Arc<PlainFile>,
        stamp: Stamp,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        if range.is_empty() {
            return Ok(ReadReport::empty(started));
        }
        let auto = options.engine == EngineChoice::Auto;
        if auto && range.end - range.start <= REQUEST_BYTES_MAX && !self.is_registered(file, &stamp, range) {
            return self.read_ahead_or_alone(file, &stamp, range, destination, options, started);
        }
        self.read_by_plan(file, stamp, range, destination, options, started)
    }

    /// The same by a plan.
    pub(super) fn read_by_plan(
        &self,
        file: &Arc<PlainFile>,
        stamp: Stamp,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        let placement = || Placement::Linear { base: range.start };
        let destination = self.settle(file.path(), &options.after, &options.cancel, destination)?;
        self.read_placed(file, stamp, range, &placement, destination, options, started)
    }

    /// The same to any places.
    #[allow(clippy::too_many_arguments, reason = "those of `run`")]
    pub(super) fn read_placed(
        &self,
        file: &Arc<PlainFile>,
        stamp: Stamp,
        range: &Range<u64>,
        placement: &dyn Fn() -> Placement,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        match self.run(file, stamp, range, placement, destination, options, started) {
            Err(error) if error.kind() == ErrorKind::DirectRefused && options.engine == EngineChoice::Auto => {
                // The open promised unbuffered reads and the read broke the promise: once more,
                // without them.
                file.refuse_direct(error.to_string());
                self.run(file, stamp, range, placement, destination, options, started)
            }
            Err(error) if error.kind() == ErrorKind::Changed => {
                // Its windows are gone. What changed comes through the page cache, which shows every change at once.
                let options = ReadOptions { engine: EngineChoice::Only(EngineKind::Cached), ..options.clone() };
                let stamp = file.stamp()?;
                if stamp.size < range.end {
                    let detail = "the file was truncated while it was being read";
                    return Err(Error::new(ErrorKind::Truncated, file.path(), detail).at(stamp.size));
                }
                self.run(file, stamp, range, placement, destination, &options, started)
            }
            outcome => outcome,
        }
    }

    /// Plans a range and runs its engines.
    #[allow(clippy::too_many_arguments, reason = "one caller; each argument once")]
    pub(super) fn run(
        &self,
        file: &Arc<PlainFile>,
        stamp: Stamp,
        range: &Range<u64>,
        placement: &dyn Fn() -> Placement,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        let auto = options.engine == EngineChoice::Auto;
        let watch = self.crowd.watch();
        let mut planner = Planner::new(self, file, stamp, range.clone(), options);
        if auto && file.was_cached() {
            planner.trust_the_cache();
        }
        let job = self.job(file, stamp, placement(), destination, options, Together::new(1));
        let (segments, predicted_s) = self.execute(&job, &mut planner)?;
        let residency = planner.residency();
        if auto {
            let part = residency.map_or(0.0, |seen| seen.cached_bytes as f64 / seen.total_bytes.max(1) as f64);
            file.note_cached(part);
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
        if auto {
            self.learn(file, &report, stamp.size, watch);
        }
        Ok(report)
    }

    /// A job of this router for one plain file.
    pub(crate) fn job(
        &self,
        file: &Arc<PlainFile>,
        stamp: Stamp,
        placement: Placement,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        together: Together,
    ) -> Arc<Job> {
        assert!(!destination.is_foreign(), "a request waits for the program's work before its engines start");
        let (cancel, progress) = (options.cancel.clone(), Arc::clone(&options.progress));
        let kernels = if placement.is_scattered() { self.kernels() } else { None };
        let follow = options.follow.clone().filter(|_| placement.is_linear());
        let order = Order { stamp, placement, destination, kernels, cancel, progress, follow, together };
        Arc::new(Job::new(file, &self.pool, &self.storage, &self.device, order))
    }

    /// Plans a request without running it.
    pub fn explain(
        &self,
        file: &OpenFile,
        offset: u64,
        length: Option<u64>,
        engine: EngineChoice,
    ) -> Result<(Plan, Residency)> {
        if let Some(layout) = file.layout() {
            let range = clamp(file.path(), file.size()?, offset, length, u64::MAX)?;
            return self.explain_striped(file, *layout, &range, engine);
        }
        let file = file.plain();
        let stamp = file.stamp()?;
        let range = clamp(file.path(), stamp.size, offset, length, u64::MAX)?;
        let options = ReadOptions { engine, report_residency: true, ..ReadOptions::default() };
        Planner::new(self, file, stamp, range, &options).whole()
    }

    /// Whether a request can be served from kept registrations alone.
    pub(crate) fn is_registered(&self, file: &PlainFile, stamp: &Stamp, range: &Range<u64>) -> bool {
        let long = range.end - range.start >= COPY_BYTES_MIN;
        long && self.budget.is_open() && file.windows.cover(self.device.id(), stamp, range)
    }

    /// The plan for what `residency` describes.
    pub(crate) fn plan_for(&self, file: &PlainFile, stamp: &Stamp, residency: &Residency) -> Plan {
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
    pub(crate) fn require(&self, file: &PlainFile, engine: EngineKind, range: &Range<u64>) -> Result<()> {
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
        job: &Arc<Job>,
        chunks: &mut dyn Iterator<Item = Result<Vec<Segment>>>,
    ) -> Result<(Vec<SegmentReport>, f64)> {
        self.execute_with(job, chunks, &|kind, job| self.start_engine(kind, job))
    }

    /// The same with engines of the caller's.
    pub(super) fn execute_with(
        &self,
        job: &Arc<Job>,
        chunks: &mut dyn Iterator<Item = Result<Vec<Segment>>>,
        start: &StartEngine<'_>,
    ) -> Result<(Vec<SegmentReport>, f64)> {
        self.execute_all(&mut [(Arc::clone(job), chunks)], start)?;
        let costs = self.costs();
        let segments = job.segments(&costs);
        let ran = segments.iter().map(SegmentReport::planned).collect();
        Ok((segments, Plan::merged(ran, "", &costs).predicted_s))
    }

    /// Runs the engines of several jobs of one request, each with its chunks, and waits until nothing
    /// is in flight.
    pub(super) fn execute_all(&self, jobs: &mut [Planned<'_>], start: &StartEngine<'_>) -> Result<()> {
        let _counted = self.crowd.join();
        let mut flight = Flight::new(&self.workers, start);
        let mut more = true;
        while more && !jobs.iter().any(|(job, _)| job.is_stopped()) {
            more = false;
            for (job, chunks) in &mut *jobs {
                let Some(chunk) = chunks.next() else { continue };
                if let Err(error) = chunk.and_then(|segments| flight.add(job, segments)) {
                    job.fail(error);
                }
                more |= chunks.size_hint().1 != Some(0);
            }
            // The last chunk is shared out by `finish`, which keeps a part for this thread.
            if more {
                flight.launch();
            }
        }
        flight.finish();
        let failure = jobs.iter().find_map(|(job, _)| job.take_failure());
        // A job that others have stopped has no failure of its own, and is not done either.
        let stopped = jobs.iter().find(|(job, _)| job.was_stopped());
        let stopped = || stopped.map(|(job, _)| job.error(ErrorKind::Cancelled, "another member of the set failed"));
        failure.or_else(stopped).map_or(Ok(()), Err)
    }

    pub(super) fn start_engine(&self, kind: EngineKind, job: &Arc<Job>) -> Result<Arc<dyn Engine>> {
        Ok(match kind {
            EngineKind::Cached => Arc::new(Cached::new(job, kind, &self.streams, self.threads_of(job.jobs()))?),
            EngineKind::Direct => Arc::new(Direct::new(job, &self.streams, &self.queues)?),
            EngineKind::Mapped => Arc::new(Mapped::new(job, &self.streams, &self.budget)?),
            EngineKind::P2p => Arc::new(P2p::new(job, self.p2p.as_ref())?),
        })
    }

    /// Corrects the costs, and notes what was read warm.
    pub(super) fn learn(&self, file: &Arc<PlainFile>, report: &ReadReport, size: u64, watch: Watch) {
        let cached = report.residency.map_or(0, |seen| seen.cached_bytes);
        if let [only] = &report.plan[..]
            && self.crowd.was_alone(watch)
            && (cached == 0 || cached == report.bytes)
        {
            self.lock_costs().observe(only.engine, cached > 0, only.length, report.seconds);
        }
        self.heat(file, &report.plan, size);
    }

    /// Registers ranges of a file of `size` bytes that are read again and again.
    pub(super) fn heat(&self, file: &Arc<PlainFile>, plan: &[SegmentReport], size: u64) {
        if !self.budget.is_open() {
            return;
        }
        for segment in plan.iter().filter(|segment| segment.engine == EngineKind::Cached) {
            for number in file.windows.heat(segment.offset..segment.offset + segment.length, size) {
                let (file, device, budget) = (Arc::clone(file), self.device.clone(), Arc::clone(&self.budget));
                self.background.run(&Group::default(), move || file.windows.keep(&file, &device, &budget, number));
            }
        }
    }
}

/// The part of a file of `size` bytes that a request means, which must fit into `room` bytes.
pub(crate) fn clamp(path: &Path, size: u64, offset: u64, length: Option<u64>, room: u64) -> Result<Range<u64>> {
    let bad = |detail: String| Error::new(ErrorKind::BadRange, path, detail).at(offset);
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
    if room < end - offset {
        let detail = format!("{} bytes do not fit into {room} bytes of device memory", end - offset);
        return Err(Error::new(ErrorKind::BadDestination, path, detail).at(offset));
    }
    Ok(offset..end)
}
