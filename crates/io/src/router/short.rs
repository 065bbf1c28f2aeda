//! Short requests: one piece of the file through one slot, on the calling thread. Starting engines
//! would cost more than they could gain.

use super::Router;
use super::request::{Part, ReadRequest};
use super::settle::Way;
use crate::cost::Costs;
use crate::engine::fill::{self, Filled};
use crate::kind::EngineKind;
use crate::options::After;
use crate::report::{ReadReport, SegmentReport};
use crate::{Error, Result, storage};
use bifolio_device::DeviceSlice;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Longer requests are worth a look at what is cached, and more than one thread.
const SHORT_BYTES_MAX: u64 = 256 << 10;

/// Reads of so many bytes are tried out of the page cache by [`Router::read_cached`].
pub const READ_CACHED_BYTES_MAX: u64 = SHORT_BYTES_MAX;

impl Router {
    /// Whether a part is read as one piece.
    pub(super) fn is_short(&self, part: &Part<'_>) -> bool {
        part.length() <= SHORT_BYTES_MAX && fill::memory_for(&part.range) <= self.pool.slot_bytes() as u64
    }

    /// Reads a short part to the start of the destination.
    pub(super) fn read_short(&self, request: &ReadRequest<'_>, part: &Part<'_>) -> Result<ReadReport> {
        let (file, range, length) = (part.file, &part.range, part.length());
        let watch = self.crowd.watch();
        let costs = self.costs();
        let begin = fill::begin(file.part_cached(), length, &costs);
        let way = self.way_for(file.path(), &request.options.after, &request.options.cancel, request.destination)?;
        let mut slot = self.pool.acquire().map_err(|error| Error::device(file.path(), error).at(range.start))?;
        let memory = slot.buffer().bytes_mut();
        let filled = fill::fill(file, &*self.storage, &costs, begin, range.clone(), memory)?;
        file.note_cached(filled.residency.part_cached());
        copy(request, part, &slot.buffer().bytes()[fill::first_of(range)..], way)?;
        let report = report(part, filled, &costs, request.started.elapsed().as_secs_f64());
        self.learn(&report, watch);
        self.heat(file, &report.plan, part.stamp.size);
        Ok(report)
    }

    /// Reads what the page cache has at `offset` of a descriptor of the program's: `destination.len()` bytes, or fewer
    /// at the end of the file or of what is cached. None where it has nothing there, where more than
    /// [`READ_CACHED_BYTES_MAX`] are asked for, and for everything that the descriptor refuses. Nobody asks what the
    /// descriptor is: its kernel knows, and the program's own read through it would have had the same bytes.
    ///
    /// # Errors
    /// `Device`.
    pub fn read_cached(&self, file: BorrowedFd<'_>, offset: u64, destination: DeviceSlice<'_>) -> Result<Option<u64>> {
        let length = destination.len();
        if self.birth.was_elsewhere()
            || length == 0
            || length > READ_CACHED_BYTES_MAX.min(self.pool.slot_bytes() as u64)
        {
            return Ok(None);
        }
        let path = Path::new("a descriptor of the program's");
        let device_error = |error| Error::device(path, error);
        let way = self.way_for(path, &After::DefaultStreams, &self.cancel, destination)?;
        let mut slot = self.pool.acquire().map_err(device_error)?;
        let memory = &mut slot.buffer().bytes_mut()[..length as usize];
        let got = storage::read_cached_by(file, memory, offset).unwrap_or(0);
        if got == 0 {
            return Ok(None);
        }
        let place = destination.part(0, got as u64).map_err(device_error)?;
        way.copy(place, &memory[..got]).map_err(device_error)?;
        Ok(Some(got as u64))
    }
}

/// Copies the bytes of a short part, the first of `bytes`, and waits until they are in place.
pub(super) fn copy(request: &ReadRequest<'_>, part: &Part<'_>, bytes: &[u8], way: Way<'_>) -> Result<()> {
    let length = part.length();
    let device_error = |error| Error::device(part.file.path(), error).at(part.range.start);
    let place = request.destination.part(0, length).map_err(device_error)?;
    way.copy(place, &bytes[..length as usize]).map_err(device_error)?;
    request.options.progress.fetch_add(length, Ordering::Relaxed);
    Ok(())
}

fn report(part: &Part<'_>, filled: Filled, costs: &Costs, seconds: f64) -> ReadReport {
    let (length, Filled { engine, residency }) = (part.length(), filled);
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
        plan: vec![SegmentReport {
            engine,
            offset: part.range.start,
            length,
            predicted_s,
            actual_s: seconds,
            member: part.member,
        }],
    }
}
