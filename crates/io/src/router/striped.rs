//! Striped sets: a request becomes one part for each member, and the members' engines run at the same
//! time. The first failure stops all of them.

use super::read::{Planned, clamp};
use super::{
    BatchReport, EngineChoice, ReadExtent, ReadOptions, ReadReport, ResidencyReport, Router, SegmentReport,
    WriteOptions,
};
use crate::file::{PlainFile, Stamp};
use crate::job::{Placement, Together};
use crate::plan::Plan;
use crate::planner::Planner;
use crate::residency::Residency;
use crate::stripe::Layout;
use crate::workers;
use crate::{Error, ErrorKind, OpenFile, Result, Segment};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// One member's part of a request.
struct Part<'a> {
    member: usize,
    file: &'a Arc<PlainFile>,
    stamp: Stamp,
    range: Range<u64>,
}

impl Router {
    /// Reads a range of a striped set, which lies inside it.
    pub(super) fn read_striped(
        &self,
        file: &OpenFile,
        layout: Layout,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        let parts = parts(file, range)?;
        if let [part] = &parts[..]
            && layout.run_at(part.range.start) >= part.range.end - part.range.start
        {
            // Inside one chunk a set is a plain file.
            let report = self.read_range(part.file, part.stamp, &part.range, destination, options, started)?;
            return Ok(of_member(report, part.member));
        }
        match self.run_striped(&parts, layout, range, destination, options, started) {
            Err(error) if error.kind() == ErrorKind::DirectRefused && options.engine == EngineChoice::Auto => {
                // Which member it was does not matter: they are of one kind.
                for part in &parts {
                    part.file.refuse_direct(error.to_string());
                }
                self.run_striped(&parts, layout, range, destination, options, started)
            }
            outcome => outcome,
        }
    }

    fn run_striped(
        &self,
        parts: &[Part<'_>],
        layout: Layout,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        if parts.is_empty() {
            return Ok(ReadReport::empty(started));
        }
        let auto = options.engine == EngineChoice::Auto;
        let together = Together::new(parts.len());
        let mut planners = Vec::with_capacity(parts.len());
        for part in parts {
            planners.push(Planner::new(self, part.file, part.stamp, part.range.clone(), options));
        }
        let jobs = parts.iter().map(|part| {
            let placement = Placement::Striped { layout, member: part.member, base: range.start };
            self.job(part.file, part.stamp, placement, destination, options, together.clone())
        });
        let jobs: Vec<_> = jobs.collect();
        let mut planned: Vec<Planned<'_>> =
            jobs.iter().cloned().zip(planners.iter_mut().map(|planner| planner as _)).collect();
        self.execute_all(&mut planned, &|kind, job| self.start_engine(kind, job))?;
        let costs = self.costs();
        let mut report = ReadReport::empty(started);
        report.residency = None;
        planners.first().map_or("", |planner| planner.reason()).clone_into(&mut report.reason);
        for ((part, job), planner) in parts.iter().zip(&jobs).zip(&planners) {
            let segments = job.segments(&costs);
            let ran = segments.iter().map(SegmentReport::planned).collect();
            // Members work at the same time.
            report.predicted_s = report.predicted_s.max(Plan::merged(ran, "", &costs).predicted_s);
            report.bytes += segments.iter().map(|segment| segment.length).sum::<u64>();
            report.plan_seconds += planner.seconds_before_start();
            report.planning_cpu_s += planner.seconds();
            report.residency = sum(report.residency, planner.residency());
            if planner.reason() != report.reason {
                "members differ in what is cached".clone_into(&mut report.reason);
            }
            if auto {
                let seen = planner.residency();
                part.file
                    .note_cached(seen.map_or(0.0, |seen| seen.cached_bytes as f64 / seen.total_bytes.max(1) as f64));
                self.heat(part.file, &segments, part.stamp.size);
            }
            report.plan.extend(segments);
        }
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Plans a range of a striped set without reading it; offsets of segments and runs are those of
    /// the set, so that one chunk is one segment.
    pub(super) fn explain_striped(
        &self,
        file: &OpenFile,
        layout: Layout,
        range: &Range<u64>,
        engine: EngineChoice,
    ) -> Result<(Plan, Residency)> {
        let options = ReadOptions { engine, report_residency: true, ..ReadOptions::default() };
        let (mut segments, mut runs, mut source) = (vec![], vec![], None);
        for part in parts(file, range)? {
            let planner = Planner::new(self, part.file, part.stamp, part.range.clone(), &options);
            let (plan, residency) = planner.whole()?;
            source = source.max(Some(residency.source));
            for segment in plan.segments {
                let whole = segment.offset..segment.offset + segment.length;
                for (offset, length) in layout.chunks_of(part.member, &whole) {
                    let predicted_s = segment.predicted_s * length as f64 / segment.length as f64;
                    segments.push(Segment { engine: segment.engine, offset, length, predicted_s });
                }
            }
            for run in residency.cached() {
                runs.extend(layout.chunks_of(part.member, run).map(|(offset, length)| offset..offset + length));
            }
        }
        segments.sort_by_key(|segment| segment.offset);
        runs.sort_by_key(|run| run.start);
        let plan = Plan::merged(segments, "each member by its own plan", &self.costs());
        let source = source.unwrap_or(crate::residency::Source::Assumed);
        Ok((plan, Residency::new(source, range.clone(), runs)))
    }

    /// A batch on a striped set: extents are cut at chunks, and members work at the same time.
    pub(super) fn read_batch_striped(
        &self,
        file: &OpenFile,
        layout: Layout,
        extents: &[ReadExtent],
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<BatchReport> {
        let size = file.size()?;
        let mut report = BatchReport { bytes: 0, seconds: 0.0, cached_bytes: 0, short: vec![] };
        let mut of_members = vec![vec![]; layout.members()];
        for (number, extent) in extents.iter().enumerate() {
            let length = extent.length.min(size.saturating_sub(extent.offset));
            if length < extent.length {
                report.short.push((number, length));
            }
            let (mut at, end) = (extent.offset, extent.offset.saturating_add(length));
            while at < end {
                let (member, offset) = layout.locate(at);
                let length = layout.run_at(offset).min(end - at);
                of_members[member].push(ReadExtent { offset, length, place: extent.place + (at - extent.offset) });
                at += length;
            }
        }
        let read = |member: usize| {
            let extents = &of_members[member];
            self.read_batch_plain(&file.members()[member], extents, destination, options)
        };
        let busy: Vec<usize> = (0..layout.members()).filter(|member| !of_members[*member].is_empty()).collect();
        for outcome in at_once(&busy, read, file)? {
            report.bytes += outcome.bytes;
            report.cached_bytes += outcome.cached_bytes;
            if !outcome.short.is_empty() {
                let detail = "a member of the set was truncated while it was being read";
                return Err(Error::new(ErrorKind::Truncated, file.path(), detail));
            }
        }
        Ok(report)
    }

    /// One place after the other, each by all members.
    pub(super) fn read_vectored_striped(
        &self,
        file: &OpenFile,
        offset: u64,
        places: &[DeviceSlice<'_>],
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        let mut report = ReadReport::empty(started);
        let mut at = offset;
        // What follows, follows one range to one place.
        let options = &ReadOptions { follow: None, ..options.clone() };
        for place in places {
            let range = clamp(file.path(), file.size()?, at, Some(place.len()), place.len())?;
            let layout = file.layout().copied().unwrap_or_else(|| Layout::new(u64::MAX, 1));
            let part = self.read_striped(file, layout, &range, *place, options, Instant::now())?;
            at = range.end;
            report.bytes += part.bytes;
            report.predicted_s += part.predicted_s;
            report.residency = sum(report.residency, part.residency);
            report.reason = part.reason;
            report.plan.extend(part.plan);
        }
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Writes a range of a striped set, which lies inside it.
    pub(super) fn write_striped(
        &self,
        file: &OpenFile,
        layout: Layout,
        range: &Range<u64>,
        source: DeviceSlice<'_>,
        options: &WriteOptions,
    ) -> Result<(Vec<SegmentReport>, &'static str)> {
        let parts = parts(file, range)?;
        let together = Together::new(parts.len().max(1));
        let write = |number: usize| {
            let part = &parts[number];
            let placement = || Placement::Striped { layout, member: part.member, base: range.start };
            self.write_range(part.file, &part.range, &placement, source, options, &together)
        };
        let numbers: Vec<usize> = (0..parts.len()).collect();
        let (mut plan, mut reason) = (vec![], "nothing to write");
        for (segments, why) in at_once(&numbers, write, file)? {
            plan.extend(segments);
            reason = why;
        }
        Ok((plan, reason))
    }
}

/// Does something for several members at the same time; the first failure.
fn at_once<T: Send>(members: &[usize], work: impl Fn(usize) -> Result<T> + Sync, file: &OpenFile) -> Result<Vec<T>> {
    let panicked = || Error::new(ErrorKind::Panicked, file.path(), "a thread panicked; please report it");
    let outcomes = workers::at_once(members.len(), |number| work(members[number]));
    let mut outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(panicked()))).collect();
    // The failure that has stopped the others, and not theirs of being stopped.
    let cause = |outcome: &Result<T>| matches!(outcome, Err(error) if error.kind() != ErrorKind::Cancelled);
    if let Some(at) = outcomes.iter().position(cause) {
        outcomes.swap(0, at);
    }
    outcomes.into_iter().collect()
}

/// The members' parts of a range, each with the state of its file, which must still have all of it.
fn parts<'a>(file: &'a OpenFile, range: &Range<u64>) -> Result<Vec<Part<'a>>> {
    let part = |(member, range): (usize, Range<u64>)| {
        let plain = &file.members()[member];
        let stamp = plain.stamp()?;
        if stamp.size < range.end {
            let detail = format!(
                "as member {member} of {} it was truncated: it ends at {}, where more was expected",
                file.path().display(),
                stamp.size
            );
            return Err(Error::new(ErrorKind::Truncated, plain.path(), detail).at(stamp.size));
        }
        Ok(Part { member, file: plain, stamp, range })
    };
    file.parts(range).into_iter().map(part).collect()
}

fn of_member(mut report: ReadReport, member: usize) -> ReadReport {
    for segment in &mut report.plan {
        segment.member = Some(member);
    }
    report
}

fn sum(one: Option<ResidencyReport>, two: Option<ResidencyReport>) -> Option<ResidencyReport> {
    match (one, two) {
        (Some(one), Some(two)) => Some(ResidencyReport {
            source: one.source.max(two.source),
            cached_bytes: one.cached_bytes + two.cached_bytes,
            total_bytes: one.total_bytes + two.total_bytes,
        }),
        (one, two) => one.or(two),
    }
}
