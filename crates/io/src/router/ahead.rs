//! Short requests of sequential readers: served from what was read ahead.

use super::Router;
use super::request::{Part, Parts, ReadRequest};
use super::short::copy;
use crate::Result;
use crate::engine::fill;
use crate::kind::EngineKind;
use crate::report::{ReadReport, ResidencyReport, SegmentReport};
use crate::residency::Source;

impl Router {
    /// A request that may be read ahead: out of a window where there is one, else by itself; then
    /// windows are read ahead of it. Where everything is cached nothing is: a window would save one system call and
    /// cost a copy.
    pub(super) fn read_with_windows(&self, request: &ReadRequest<'_>, part: &Part<'_>) -> Result<ReadReport> {
        let prefetcher = self.prefetcher.as_ref().filter(|_| !part.file.is_in_memory());
        let window = prefetcher.and_then(|prefetcher| prefetcher.note(part.file, &part.stamp, &part.range));
        // Before the window is held: the wait may be long, and other readers want it.
        let way = match &window {
            Some(_) => {
                let (after, cancel) = (&request.options.after, &request.options.cancel);
                Some(self.way_for(part.file.path(), after, cancel, request.destination)?)
            }
            None => None,
        };
        let served = window.as_ref().zip(way).and_then(|(window, way)| {
            window.with_content(|content| {
                let first = fill::first_of(&window.range) + (part.range.start - window.range.start) as usize;
                copy(request, part, &content.slot.buffer().bytes()[first..], way)
            })
        });
        let was_ahead = served.is_some();
        let report = match served {
            Some(outcome) => outcome.map(|()| self.report_ahead(request, part))?,
            None if self.is_short(part) => self.read_short(request, part)?,
            None => self.read_planned(request, Parts::One([part.clone()]))?,
        };
        let missed = !was_ahead && report.residency.is_some_and(|seen| seen.cached_bytes < seen.total_bytes);
        // Pages that a window has brought into the page cache are no reason to stop.
        let goes_on = missed || window.is_some_and(|window| !window.was_cached());
        if let Some(prefetcher) = prefetcher.filter(|_| goes_on) {
            prefetcher.read_ahead(part.file, &part.stamp, &part.range, &self.costs());
        }
        Ok(report)
    }

    fn report_ahead(&self, request: &ReadRequest<'_>, part: &Part<'_>) -> ReadReport {
        let (length, seconds) = (part.length(), request.started.elapsed().as_secs_f64());
        let predicted_s = self.costs().cached.seconds(length);
        ReadReport {
            bytes: length,
            seconds,
            plan_seconds: 0.0,
            planning_cpu_s: 0.0,
            predicted_s,
            reason: "sequential, and read ahead".to_owned(),
            residency: Some(ResidencyReport { source: Source::ReadAhead, cached_bytes: 0, total_bytes: length }),
            plan: vec![SegmentReport {
                engine: EngineKind::Direct,
                offset: part.range.start,
                length,
                predicted_s,
                actual_s: seconds,
                member: part.member,
            }],
        }
    }
}
