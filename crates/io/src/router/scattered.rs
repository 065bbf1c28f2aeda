//! Many extents by one request, and one range into many places.
//!
//! A batch is gathered into slots, each slot crosses the link by one copy, and a kernel shares it
//! out. Threads read what is cached; what they do not find goes to the storage engine, which works
//! beside them. Nobody looks at the whole batch first: asking about an extent costs as much as
//! reading it.

use super::Router;
use super::request::{Part, Parts, ReadRequest, clamp};
use crate::engine::Engine;
use crate::engine::cached::{Cached, Misses};
use crate::engine::direct::Direct;
use crate::engine::fill::{self, Begin};
use crate::engine::flight::work;
use crate::engine::job::{Job, Landing, Placement, Together};
use crate::file::{Mode, OpenFile, PlainFile, Ticket};
use crate::kind::{EngineChoice, EngineKind};
use crate::options::{After, ReadExtent, ReadOptions};
use crate::plan::Segment;
use crate::report::{BatchReport, ReadReport};
use crate::workers::Group;
use crate::{Error, ErrorKind, Result};
use bifolio_device::DeviceSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Extents of one file, and where they go.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchRequest<'a> {
    pub(super) file: &'a OpenFile,
    pub(super) extents: &'a [ReadExtent],
    pub(super) destination: DeviceSlice<'a>,
    pub(super) options: &'a ReadOptions,
    /// Its place in the order of reads and writes; none where nobody writes.
    pub(super) turn: Option<&'a Ticket>,
}

impl Router {
    /// Reads many extents of a file to their places. Returns when all are in place.
    ///
    /// Extents may share bytes of the file; in the destination they must not overlap. Those beyond
    /// the end of the file are cut short, as `pread` would.
    ///
    /// # Errors
    /// `BadRange` for an extent that overflows, `BadDestination` for one that does not fit or
    /// overlaps another, `NoEngine` for engines other than `cached` and `direct`, and those of
    /// [`Router::read`]. After an error some extents are overwritten, and nothing is in flight.
    pub fn read_batch(
        &self,
        file: &OpenFile,
        extents: &[ReadExtent],
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<BatchReport> {
        // Before its turn: writers behind it would wait for the program's work as well.
        let settled = self
            .begin(file, &options.cancel)
            .and_then(|()| self.settle(file.path(), &options.after, &options.cancel, destination))
            .map_err(|error| error.into_device(self.device.id()))?;
        let turn = file.ticket(Mode::Read, 0, None);
        self.serve_batch(&BatchRequest { file, extents, destination: settled, options, turn: turn.as_ref() })
            .map_err(|error| error.into_device(self.device.id()))
    }

    /// Serves a batch in its turn.
    pub(super) fn serve_batch(&self, request: &BatchRequest<'_>) -> Result<BatchReport> {
        let started = Instant::now();
        let BatchRequest { file, extents, destination, options, turn } = *request;
        self.begin(file, &options.cancel)?;
        check(file.path(), extents, destination.len())?;
        let destination = self.settle(file.path(), &options.after, &options.cancel, destination)?;
        turn.inspect(|turn| turn.wait());
        let mut report = match file.layout() {
            None => self.read_batch_plain(file.plain(), extents, destination, options)?,
            Some(layout) => self.read_batch_striped(file, *layout, extents, destination, options)?,
        };
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// A batch on one plain file.
    pub(super) fn read_batch_plain(
        &self,
        file: &Arc<PlainFile>,
        extents: &[ReadExtent],
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<BatchReport> {
        let stamp = file.stamp()?;
        let (batch, short) = Batch::new(extents, stamp.size, destination);
        let placement = Placement::Extents(batch.landings.clone().into());
        let part = Part { file, member: None, stamp, range: 0..stamp.size, placement };
        let cached_bytes = match self.run_batch(&part, &batch, destination, options) {
            Err(error) if error.kind() == ErrorKind::DirectRefused && options.engine == EngineChoice::Auto => {
                // The open promised unbuffered reads and the read broke the promise.
                file.refuse_direct(error.detail().to_owned());
                self.run_batch(&part, &batch, destination, options)?
            }
            outcome => outcome?,
        };
        Ok(BatchReport { bytes: batch.bytes, seconds: 0.0, cached_bytes, short })
    }

    /// Reads one range of a file into several places, one after the other, as `preadv` does.
    ///
    /// # Errors
    /// Those of [`Router::read`].
    pub fn read_vectored(
        &self,
        file: &OpenFile,
        offset: u64,
        places: &[DeviceSlice<'_>],
        options: &ReadOptions,
    ) -> Result<ReadReport> {
        let started = Instant::now();
        let room = places.iter().try_fold(0_u64, |sum, place| sum.checked_add(place.len())).unwrap_or(u64::MAX);
        let read = || {
            self.begin(file, &options.cancel)?;
            // The default streams are asked once for all places.
            let foreign = places.iter().find(|place| place.is_foreign() && !place.is_empty());
            if let Some(place) = foreign.or(places.first()) {
                self.settle(file.path(), &options.after, &options.cancel, *place)?;
            }
            let places: Vec<_> = places.iter().map(|place| place.ordered()).filter(|place| !place.is_empty()).collect();
            let options = &ReadOptions { after: After::Nothing, ..options.clone() };
            let turn = file.ticket(Mode::Read, offset, Some(room));
            turn.as_ref().inspect(|turn| turn.wait());
            let length = Some(room);
            let Some(destination) = places.first().copied() else {
                return clamp(file.path(), file.size()?, offset, length, room).map(|_| ReadReport::empty(started));
            };
            let request = ReadRequest { file, offset, length, destination, options, turn: None, started };
            if file.layout().is_some() {
                self.read_vectored_striped(&request, &places)
            } else {
                self.read_vectored_plain(&request, &places, room)
            }
        };
        read().map_err(|error| error.into_device(self.device.id()))
    }

    /// The same of a plain file, all places by one set of engines.
    fn read_vectored_plain(
        &self,
        request: &ReadRequest<'_>,
        places: &[DeviceSlice<'_>],
        room: u64,
    ) -> Result<ReadReport> {
        let file = request.file.plain();
        let stamp = file.stamp()?;
        let range = clamp(file.path(), stamp.size, request.offset, Some(room), room)?;
        if range.is_empty() {
            return Ok(ReadReport::empty(request.started));
        }
        let mut at = range.start;
        let landing = |place: &DeviceSlice<'_>| {
            let landing = Landing { offset: at, place: forever(*place) };
            at += place.len();
            landing
        };
        let placement = Placement::Vectored(places.iter().map(landing).collect());
        self.read_planned(request, Parts::One([Part { file, member: None, stamp, range, placement }]))
    }

    /// Runs the engines of a batch; the bytes that were cached.
    fn run_batch(
        &self,
        part: &Part<'_>,
        batch: &Batch,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<u64> {
        if batch.bytes == 0 {
            return Ok(0);
        }
        let file = part.file;
        let job = self.job(part, destination, options, &Together::new(1));
        let cached_bytes = match options.engine {
            EngineChoice::Only(kind @ (EngineKind::Cached | EngineKind::Direct)) => {
                self.require(file, kind, &part.range)?;
                let engine = self.start_engine(kind, &job)?;
                self.run_alone(&engine, &job, batch.segments(kind), batch.bytes);
                if kind == EngineKind::Cached { batch.bytes } else { 0 }
            }
            EngineChoice::Only(other) => {
                let detail = format!("engine {other} cannot read batches; use auto, cached or direct");
                return Err(Error::new(ErrorKind::NoEngine, file.path(), detail));
            }
            EngineChoice::Auto => self.run_both(file, &job, batch)?,
        };
        match job.take_failure() {
            Some(error) => Err(error),
            None => Ok(cached_bytes),
        }
    }

    /// One engine for all extents.
    fn run_alone(&self, engine: &Arc<dyn Engine>, job: &Arc<Job>, segments: Vec<(usize, Segment)>, bytes: u64) {
        engine.feed().push_all(segments);
        engine.feed().close();
        let group = Group::default();
        for _ in 1..engine.threads(bytes) {
            let (engine, job) = (Arc::clone(engine), Arc::clone(job));
            self.workers.run(&group, move || work(&*engine, &job));
        }
        work(&**engine, job);
        self.workers.wait(&group);
        engine.finish();
    }

    /// The page cache first, and storage beside it for what is not there.
    fn run_both(&self, file: &Arc<PlainFile>, job: &Arc<Job>, batch: &Batch) -> Result<u64> {
        let _counted = self.crowd.join();
        let storage_kind = if file.direct().is_ok() { EngineKind::Direct } else { EngineKind::Cached };
        let storage: Arc<dyn Engine> = match storage_kind {
            EngineKind::Direct => Arc::new(Direct::new(job, &self.streams, &self.queues)?),
            _ => self.start_engine(EngineKind::Cached, job)?,
        };
        let begin = fill::begin(file.part_cached(), batch.bytes / batch.landings.len() as u64, &self.costs());
        let misses = Arc::new(Misses::new(&storage, begin));
        let cached: Arc<dyn Engine> =
            Arc::new(Cached::new(job, EngineKind::Cached, &self.streams, self.threads_of(1))?.with_misses(&misses));
        let group = Group::default();
        let start_storage = || {
            let (storage, job) = (Arc::clone(&storage), Arc::clone(job));
            self.workers.run(&group, move || work(&*storage, &job));
        };
        let expects_misses = begin == Begin::ByAsking;
        if expects_misses {
            start_storage();
        }
        self.run_alone(&cached, job, batch.segments(EngineKind::Cached), batch.bytes);
        storage.feed().close();
        if !expects_misses && misses.bytes() > 0 {
            (0..storage.threads(misses.bytes())).for_each(|_| start_storage());
        }
        self.workers.wait(&group);
        storage.finish();
        let cached_bytes = batch.bytes - misses.bytes();
        file.note_cached(cached_bytes as f64 / batch.bytes as f64);
        Ok(cached_bytes)
    }
}

/// The extents of a batch that have bytes, neighbours merged.
struct Batch {
    landings: Vec<Landing>,
    lengths: Vec<u64>,
    bytes: u64,
}

impl Batch {
    /// The batch for a file of `size` bytes, and the extents that it cuts short.
    fn new(extents: &[ReadExtent], size: u64, destination: DeviceSlice<'_>) -> (Self, Vec<(usize, u64)>) {
        let (mut batch, mut short) = (Self { landings: vec![], lengths: vec![], bytes: 0 }, vec![]);
        batch.landings.reserve(extents.len());
        batch.lengths.reserve(extents.len());
        for (number, extent) in extents.iter().enumerate() {
            let length = extent.length.min(size.saturating_sub(extent.offset));
            if length < extent.length {
                short.push((number, length));
            }
            batch.push(extent.offset, length, destination.ptr().offset_by(extent.place));
        }
        (batch, short)
    }

    fn push(&mut self, offset: u64, length: u64, ptr: bifolio_device::DevicePtr) {
        self.bytes += length;
        if let (Some(landing), Some(last)) = (self.landings.last_mut(), self.lengths.last_mut())
            && landing.offset + *last == offset
            && landing.place.ptr().offset_by(*last) == ptr
        {
            *last += length;
            // SAFETY: both parts lie in the destination, one behind the other.
            landing.place = unsafe { DeviceSlice::from_raw_ordered(landing.place.ptr(), *last) };
            return;
        }
        if length > 0 {
            // SAFETY: `check` saw that the extent lies inside the destination, which the job borrows.
            self.landings.push(Landing { offset, place: unsafe { DeviceSlice::from_raw_ordered(ptr, length) } });
            self.lengths.push(length);
        }
    }

    fn segments(&self, engine: EngineKind) -> Vec<(usize, Segment)> {
        let segment =
            |(landing, &length): (&Landing, &u64)| Segment { engine, offset: landing.offset, length, predicted_s: 0.0 };
        self.landings.iter().zip(&self.lengths).map(segment).enumerate().collect()
    }
}

/// Refuses extents that overflow, that do not fit into the destination, or that overlap there.
fn check(path: &Path, extents: &[ReadExtent], room: u64) -> Result<()> {
    let mut ascending = true;
    let mut before = 0;
    for extent in extents {
        let ReadExtent { offset, length, place } = *extent;
        if offset.checked_add(length).is_none_or(|end| i64::try_from(end).is_err()) {
            let detail = format!("an extent of {length} bytes at this offset overflows");
            return Err(Error::new(ErrorKind::BadRange, path, detail).at(offset));
        }
        let end = place.checked_add(length).filter(|end| *end <= room).ok_or_else(|| {
            let detail =
                format!("an extent of {length} bytes does not fit at {place} of {room} bytes of device memory");
            Error::new(ErrorKind::BadDestination, path, detail).at(offset)
        })?;
        ascending &= place >= before || length == 0;
        before = before.max(end);
    }
    if ascending {
        return Ok(());
    }
    let mut sorted: Vec<&ReadExtent> = extents.iter().filter(|extent| extent.length > 0).collect();
    sorted.sort_unstable_by_key(|extent| extent.place);
    match sorted.windows(2).find(|pair| pair[0].place + pair[0].length > pair[1].place) {
        None => Ok(()),
        Some(pair) => {
            let detail = format!(
                "two extents of the batch overlap in device memory: {} bytes at {} and {} bytes at {}",
                pair[0].length, pair[0].place, pair[1].length, pair[1].place
            );
            Err(Error::new(ErrorKind::BadDestination, path, detail).at(pair[1].offset))
        }
    }
}

/// The same place without its borrow, which the request keeps until its job is over.
fn forever(place: DeviceSlice<'_>) -> DeviceSlice<'static> {
    // SAFETY: see above; a job does not outlive the request that borrowed its destination.
    unsafe { place.lasting() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(offset: u64, length: u64, place: u64) -> ReadExtent {
        ReadExtent { offset, length, place }
    }

    proptest! {
        #[test]
        fn overlaps_are_found_exactly_where_two_extents_share_a_byte(
            list in proptest::collection::vec((0_u64..200, 0_u64..20), 0..12)
        ) {
            let extents: Vec<_> = list.iter().map(|(place, length)| extent(7, *length, *place)).collect();
            let mut seen = std::collections::HashSet::new();
            let distinct = extents.iter().flat_map(|e| e.place..e.place + e.length).all(|byte| seen.insert(byte));
            prop_assert_eq!(check(Path::new("x"), &extents, 1000).is_ok(), distinct);
        }
    }

    #[test]
    fn extents_that_overflow_or_do_not_fit_are_refused_with_their_offset() {
        let refused = |extent| check(Path::new("x"), &[extent], 100).unwrap_err();
        assert_eq!(refused(extent(u64::MAX, 2, 0)).kind(), ErrorKind::BadRange);
        assert_eq!(refused(extent(5, 2, 99)).kind(), ErrorKind::BadDestination);
        assert_eq!(refused(extent(5, 2, u64::MAX)).offset(), Some(5));
    }
}
