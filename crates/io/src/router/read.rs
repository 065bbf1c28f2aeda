//! Reading one range: by one read where it is short, out of what was read ahead, or by a plan and its engines.

use super::Router;
use super::crowd::Watch;
use super::request::{Part, Parts, ReadRequest};
use crate::engine::flight::{self, Planned};
use crate::engine::job::{Job, Together};
use crate::file::{Mode, OpenFile};
use crate::kind::{EngineChoice, EngineKind};
use crate::options::ReadOptions;
use crate::planner::Planner;
use crate::readahead::REQUEST_BYTES_MAX;
use crate::report::{ReadReport, ResidencyReport};
use crate::{Error, ErrorKind, Result};
use bifolio_device::Cancel;
use bifolio_device::DeviceSlice;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

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
        let (turn, started) = (turn.as_ref(), Instant::now());
        self.serve(&ReadRequest { file, offset, length, destination, options, turn, started })
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

    /// Serves a request, in its turn, by the shortest way that there is for it.
    pub(super) fn serve(&self, request: &ReadRequest<'_>) -> Result<ReadReport> {
        self.begin(request.file, &request.options.cancel)?;
        request.turn.inspect(|turn| turn.wait());
        let parts = request.parts()?;
        match &*parts {
            [] => Ok(ReadReport::empty(request.started)),
            [part] if self.may_be_read_ahead(request, part) => self.read_with_windows(request, part),
            _ => self.read_planned(request, parts),
        }
    }

    /// Whether a part is so short that its readers, if they are sequential, are read ahead of. What is registered needs
    /// no reading ahead.
    fn may_be_read_ahead(&self, request: &ReadRequest<'_>, part: &Part<'_>) -> bool {
        request.options.engine == EngineChoice::Auto
            && part.is_linear()
            && part.length() <= REQUEST_BYTES_MAX
            && !self.is_registered(part.file, &part.stamp, &part.range)
    }

    /// Reads parts by plans, whose engines run at the same time; once more where the first attempt teaches how.
    pub(super) fn read_planned(&self, request: &ReadRequest<'_>, mut parts: Parts<'_>) -> Result<ReadReport> {
        let mut options = Cow::Borrowed(request.options);
        let destination = self.settle(request.file.path(), &options.after, &options.cancel, request.destination)?;
        self.gauge(destination, parts.iter().map(Part::length).sum());
        let mut is_first = true;
        loop {
            let watch = self.crowd.watch();
            let mut planners: Vec<_> = parts.iter().map(|part| self.planner(part, &parts, &options)).collect();
            let jobs = self.jobs(&parts, destination, &options);
            let mut planned: Vec<Planned<'_>> =
                jobs.iter().cloned().zip(planners.iter_mut().map(|planner| planner as _)).collect();
            let ran = {
                let _counted = self.crowd.join();
                flight::run(&self.workers, &|kind, job| self.start_engine(kind, job), &mut planned)
            };
            match ran {
                Ok(()) => {
                    let request = &ReadRequest { options: &options, ..*request };
                    return Ok(self.conclude(request, &parts, &jobs, &planners, watch));
                }
                Err(error) if is_first => options.to_mut().engine = mended(error, &options, &mut parts)?,
                Err(error) => return Err(error),
            }
            is_first = false;
        }
    }

    fn planner<'a>(&'a self, part: &Part<'a>, parts: &[Part<'a>], options: &'a ReadOptions) -> Planner<'a> {
        let mut planner = Planner::new(self, part.file, part.stamp, part.range.clone(), options);
        if parts.len() == 1 && options.engine == EngineChoice::Auto && part.file.was_cached() {
            planner.trust_the_cache();
        }
        planner
    }

    fn jobs(&self, parts: &[Part<'_>], destination: DeviceSlice<'_>, options: &ReadOptions) -> Vec<Arc<Job>> {
        let together = Together::new(parts.len());
        parts.iter().map(|part| self.job(part, destination, options, &together)).collect()
    }

    /// What a request whose engines have run reports, and what is learnt from it.
    fn conclude(
        &self,
        request: &ReadRequest<'_>,
        parts: &[Part<'_>],
        jobs: &[Arc<Job>],
        planners: &[Planner<'_>],
        watch: Watch,
    ) -> ReadReport {
        let costs = self.costs();
        let mut report = ReadReport::empty(request.started);
        report.residency = None;
        planners.first().map_or("", |planner| planner.reason()).clone_into(&mut report.reason);
        for ((part, job), planner) in parts.iter().zip(jobs).zip(planners) {
            let (mut segments, predicted_s) = job.segments(&costs);
            for segment in &mut segments {
                segment.member = part.member;
            }
            // Members work at the same time.
            report.predicted_s = report.predicted_s.max(predicted_s);
            report.bytes += segments.iter().map(|segment| segment.length).sum::<u64>();
            report.plan_seconds += planner.seconds_before_start();
            report.planning_cpu_s += planner.seconds();
            report.residency = ResidencyReport::joined(report.residency, planner.residency());
            if planner.reason() != report.reason {
                "members differ in what is cached".clone_into(&mut report.reason);
            }
            if request.options.engine == EngineChoice::Auto {
                part.file.note_cached(planner.residency().map_or(0.0, |seen| seen.part_cached()));
                self.heat(part.file, &segments, part.stamp.size);
            }
            report.plan.extend(segments);
        }
        report.seconds = request.started.elapsed().as_secs_f64();
        if request.options.engine == EngineChoice::Auto && !parts.iter().any(Part::is_striped) {
            self.learn(&report, watch);
        }
        report
    }
}

/// The engine with which a request that failed is run once more, or its error where that would not help.
fn mended(error: Error, options: &ReadOptions, parts: &mut [Part<'_>]) -> Result<EngineChoice> {
    match error.kind() {
        // The open promised unbuffered reads and the read broke the promise: once more, without them. Which member of a
        // set it was does not matter: they are of one kind.
        ErrorKind::DirectRefused if options.engine == EngineChoice::Auto => {
            for part in parts {
                part.file.refuse_direct(error.detail().to_owned());
            }
            Ok(options.engine)
        }
        // Registrations are gone. What changed comes through the page cache, which shows every change at once.
        ErrorKind::Changed => {
            for part in parts {
                part.stamp = part.file.stamp()?;
                if part.stamp.size < part.range.end {
                    let detail = "the file was truncated during the read";
                    return Err(Error::new(ErrorKind::Truncated, part.file.path(), detail).at(part.stamp.size));
                }
            }
            Ok(EngineChoice::Only(EngineKind::Cached))
        }
        _ => Err(error),
    }
}
