//! Short requests: one piece of the file through one slot, on the calling thread. Starting engines
//! would cost more than they could gain.

use super::{After, ReadOptions, ReadReport, ResidencyReport, Router, SegmentReport};
use crate::file::PlainFile;
use crate::fill::{self, Filled};
use crate::{EngineKind, Error, Result, storage};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Longer requests are worth a look at what is cached, and more than one thread.
const SHORT_BYTES_MAX: u64 = 256 << 10;

/// Reads of so many bytes are tried out of the page cache by [`Router::read_cached`].
pub const READ_CACHED_BYTES_MAX: u64 = SHORT_BYTES_MAX;

/// From this length on a piece is copied to the device while the next is read: below, a second copy costs what it hides
/// (H200: 32 KiB 16.7 us in two pieces and 14.4 in one, 64 KiB 22.1 and 21.3, 256 KiB 48 and 57).
const PIECES_BYTES_MIN: u64 = 128 << 10;

fn piece_bytes(length: u64) -> u64 {
    if length < PIECES_BYTES_MIN { length } else { 64 << 10 }
}

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

    /// Reads what the page cache has of the next bytes of a descriptor of the program's, at `offset` or else at its
    /// position, which then moves: `destination.len()` bytes, or fewer at the end of the file or of what is cached.
    /// None where it has nothing of them, where more than [`READ_CACHED_BYTES_MAX`] are asked for, and for everything
    /// that the descriptor refuses. Nobody asks what the descriptor is: its kernel knows, and the program's own
    /// read through it would have had the same bytes.
    ///
    /// # Errors
    /// `Device`, after which the position is where it was.
    pub fn read_cached(
        &self,
        file: BorrowedFd<'_>,
        offset: Option<u64>,
        destination: DeviceSlice<'_>,
    ) -> Result<Option<u64>> {
        let length = destination.len();
        if self.birth.was_elsewhere()
            || length == 0
            || length > READ_CACHED_BYTES_MAX.min(self.pool.slot_bytes() as u64)
        {
            return Ok(None);
        }
        let path = Path::new("a descriptor of the program's");
        let device_error = |error| Error::device(path, error);
        let mut slot = self.pool.acquire().map_err(device_error)?;
        let memory = &mut slot.buffer().bytes_mut()[..length as usize];
        let mut moved = 0;
        let copied = self.copy_in_order(path, &After::DefaultStreams, &self.cancel, destination, |stream| {
            for piece in memory.chunks_mut(piece_bytes(length) as usize) {
                let wanted = piece.len() as u64;
                let got = storage::read_cached_by(file, piece, offset.map(|offset| offset + moved)).unwrap_or(0) as u64;
                if got == 0 && moved == 0 {
                    break;
                }
                let place = destination.part(moved, got).map_err(device_error)?;
                moved += got;
                let is_last = got < wanted || moved == length;
                // SAFETY: the slot is kept until the stream has run dry, which the last copy waits for.
                let copied = unsafe {
                    if is_last {
                        stream.copy_to_device_and_wait(place, piece.as_ptr())
                    } else {
                        stream.copy_to_device(place, piece.as_ptr())
                    }
                };
                copied.map_err(device_error)?;
                if is_last {
                    break;
                }
            }
            Ok(())
        });
        if copied.is_err() && offset.is_none() && moved > 0 {
            storage::move_back(file, moved);
        }
        copied.map(|()| (moved > 0).then_some(moved))
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
        let place = destination.part(0, length).map_err(device_error)?;
        self.copy_in_order(file.path(), &options.after, &options.cancel, place, |stream| {
            // SAFETY: the bytes are borrowed beyond the call.
            unsafe { stream.copy_to_device_and_wait(place, bytes.as_ptr()) }.map_err(device_error)
        })?;
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
