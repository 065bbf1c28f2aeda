//! Short requests: one piece of the file through one slot, on the calling thread. Starting engines
//! would cost more than they could gain.

use super::{ReadOptions, ReadReport, ResidencyReport, Router, SegmentReport};
use crate::file::PlainFile;
use crate::fill::{self, Filled};
use crate::{EngineKind, Error, Result};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Longer requests are worth a look at what is cached, and more than one thread.
const SHORT_BYTES_MAX: u64 = 256 << 10;

impl Router {
    /// Whether a request is read as one piece.
    pub(super) fn is_short(&self, range: &Range<u64>) -> bool {
        range.end - range.start <= SHORT_BYTES_MAX && fill::memory_for(range) <= self.pool.slot_bytes() as u64
    }

    /// Reads a short range to the start of `destination`.
    pub(super) fn read_short(
        &self,
        file: &Arc<PlainFile>,
        range: &Range<u64>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        started: Instant,
    ) -> Result<ReadReport> {
        let length = range.end - range.start;
        let costs = self.costs();
        let begin = fill::begin(file.part_cached(), length, &costs);
        let mut slot = self.pool.acquire().map_err(|error| Error::device(file.path(), error).at(range.start))?;
        let memory = slot.buffer().bytes_mut();
        let Filled { engine, residency } = fill::fill(file, &*self.storage, &costs, begin, range.clone(), memory)?;
        file.note_cached(residency.cached_bytes as f64 / length as f64);
        self.copy(file, range, &slot.buffer().bytes()[fill::first_of(range)..], destination, options)?;
        Ok(report(range, engine, residency, &costs, started.elapsed().as_secs_f64()))
    }

    /// Copies the bytes of a short range, the first of `bytes`, and waits until they are in place.
    pub(super) fn copy(
        &self,
        file: &PlainFile,
        range: &Range<u64>,
        bytes: &[u8],
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<()> {
        let length = range.end - range.start;
        assert!(bytes.len() as u64 >= length, "a fill has all of its range");
        let device_error = |error| Error::device(file.path(), error).at(range.start);
        let stream = self.streams.take().map_err(device_error)?;
        let place = destination.part(0, length).map_err(device_error)?;
        // SAFETY: the bytes are borrowed until the event is done, or the stream has run dry.
        let copied = unsafe { stream.copy_to_device(place, bytes.as_ptr()) };
        let landed = copied.and_then(|()| stream.record()).and_then(|event| event.wait());
        if let Err(error) = landed {
            let _ = stream.synchronize();
            return Err(device_error(error));
        }
        stream.declare_clean();
        options.progress.fetch_add(length, Ordering::Relaxed);
        Ok(())
    }
}

fn report(
    range: &Range<u64>,
    engine: EngineKind,
    residency: ResidencyReport,
    costs: &crate::Costs,
    seconds: f64,
) -> ReadReport {
    let length = range.end - range.start;
    let (predicted_s, reason) = match (engine, residency.cached_bytes) {
        (EngineKind::Cached, cached) if cached == length => (costs.cached.seconds(length), "short, and cached"),
        (EngineKind::Cached, _) => (costs.buffered.seconds(length), "short; the page cache alone is quickest"),
        (other, _) => (costs.of(other).seconds(length), "short; one read past the page cache is quickest"),
    };
    ReadReport {
        bytes: length,
        seconds,
        // Looking and reading are one: only what came before it was planning.
        plan_seconds: 0.0,
        planning_cpu_s: 0.0,
        predicted_s,
        reason: reason.to_owned(),
        residency: Some(residency),
        plan: vec![SegmentReport { engine, offset: range.start, length, predicted_s, actual_s: seconds, member: None }],
    }
}
