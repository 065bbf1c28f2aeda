//! Short requests of sequential readers: served from what was read ahead.

use super::short::copy;
use super::{ReadOptions, ReadReport, ResidencyReport, Router, SegmentReport};
use crate::file::{PlainFile, Stamp};
use crate::fill;
use crate::residency::Source;
use crate::{EngineKind, Result};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

impl Router {
    /// A request that may be read ahead: out of a window where there is one, else by itself; then
    /// windows are read ahead of it. Where everything is cached nothing is: a window would save one system call and
    /// cost a copy.
    pub(super) fn read_ahead_or_alone(
        &self,
        file: &Arc<PlainFile>,
        stamp: &Stamp,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        let Some(prefetcher) = self.prefetcher.as_ref().filter(|_| !file.is_in_memory()) else {
            return self.read_alone(file, stamp, range, destination, options, started);
        };
        let window = prefetcher.note(file, stamp, range);
        // Before the window is held: the wait may be long, and other readers want it.
        let way = match &window {
            Some(_) => Some(self.way_for(file.path(), &options.after, &options.cancel, destination)?),
            None => None,
        };
        let served = window.as_ref().zip(way).and_then(|(window, way)| {
            window.with_content(|content| {
                let first = fill::first_of(&window.range) + (range.start - window.range.start) as usize;
                let bytes = &content.slot.buffer().bytes()[first..];
                copy(file, range, bytes, destination, way, options)
            })
        });
        let (report, goes_on) = match (served, window) {
            (Some(outcome), Some(window)) => {
                outcome?;
                (self.report_ahead(range, started), !window.was_cached())
            }
            (_, window) => {
                let report = self.read_alone(file, stamp, range, destination, options, started)?;
                let missed = report.residency.is_some_and(|seen| seen.cached_bytes < seen.total_bytes);
                // Pages that a window has brought into the page cache are no reason to stop.
                (report, missed || window.is_some_and(|window| !window.was_cached()))
            }
        };
        if goes_on {
            prefetcher.read_ahead(file, stamp, range, &self.costs());
        }
        Ok(report)
    }

    fn read_alone(
        &self,
        file: &Arc<PlainFile>,
        stamp: &Stamp,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        if !self.is_short(range) {
            return self.read_by_plan(file, *stamp, range, destination, options, started);
        }
        let watch = self.crowd.watch();
        let report = self.read_short(file, range, destination, options, started)?;
        self.learn(file, &report, stamp.size, watch);
        Ok(report)
    }

    fn report_ahead(&self, range: &Range<u64>, started: Instant) -> ReadReport {
        let (length, seconds) = (range.end - range.start, started.elapsed().as_secs_f64());
        let predicted_s = self.costs().cached.seconds(length);
        let engine = EngineKind::Direct;
        ReadReport {
            bytes: length,
            seconds,
            plan_seconds: 0.0,
            planning_cpu_s: 0.0,
            predicted_s,
            reason: "sequential, and read ahead".to_owned(),
            residency: Some(ResidencyReport { source: Source::ReadAhead, cached_bytes: 0, total_bytes: length }),
            plan: vec![SegmentReport {
                engine,
                offset: range.start,
                length,
                predicted_s,
                actual_s: seconds,
                member: None,
            }],
        }
    }
}
