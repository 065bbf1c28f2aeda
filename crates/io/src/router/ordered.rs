//! Reads that are complete in the order of a caller's stream: when a call returns, its copy is
//! enqueued, and whatever is enqueued on the stream afterwards sees the bytes.
//!
//! Sequential reads go on while the device still copies, and cost one call to the driver each: the
//! bytes were read ahead.

use super::Router;
use super::request::clamp;
use crate::engine::fill::{self, Filled};
use crate::file::{Mode, OpenFile, PlainFile, Stamp};
use crate::readahead::{Sequence, Windows};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{DeviceSlice, Stream};
use std::ops::Range;
use std::sync::Arc;

/// A reader of one file on one stream.
///
/// Dropping it does not wait for the copies; the stream has them in its order.
#[derive(Debug)]
pub struct OrderedReader<'a> {
    router: &'a Router,
    handle: OpenFile,
    members: Vec<MemberReader<'a>>,
}

/// A reader of one plain file.
#[derive(Debug)]
struct MemberReader<'a> {
    router: &'a Router,
    file: Arc<PlainFile>,
    stream: &'a Stream,
    sequence: Option<Sequence>,
    /// Windows from which copies may be in flight are retired with an event, never dropped.
    windows: Windows,
}

impl Router {
    /// A reader of `file` whose reads are ordered on `stream`, a stream of the router's device.
    ///
    /// # Errors
    /// `NoEngine` for a stream of another device.
    pub fn ordered<'a>(&'a self, file: &OpenFile, stream: &'a Stream) -> Result<OrderedReader<'a>> {
        self.begin(file, &self.cancel)?;
        if stream.device().id() != self.device.id() {
            let detail = format!("the stream belongs to {}, not to this router's device", stream.device().id());
            return Err(Error::new(ErrorKind::NoEngine, file.path(), detail).into_device(self.device.id()));
        }
        let reader = |file: &Arc<PlainFile>| {
            let file = Arc::clone(file);
            MemberReader { router: self, file, stream, sequence: None, windows: Windows::new() }
        };
        let members = file.members().iter().map(reader).collect();
        Ok(OrderedReader { router: self, handle: file.clone(), members })
    }
}

impl OrderedReader<'_> {
    /// Reads `length` bytes at `offset`, less beyond the end of the file, to the start of
    /// `destination`: how many there are. Returns when the copy is enqueued.
    ///
    /// # Errors
    /// As [`Router::read`]. After an error parts of the destination may be overwritten.
    ///
    /// # Safety
    /// `destination` is memory of the stream's device and stays valid until the stream has done the
    /// work enqueued here.
    pub unsafe fn read(&mut self, offset: u64, length: u64, destination: DeviceSlice<'_>) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(offset, length, destination) }.map_err(|error| error.into_device(self.router.device.id()))
    }

    /// See [`Self::read`].
    unsafe fn enqueue(&mut self, offset: u64, length: u64, destination: DeviceSlice<'_>) -> Result<u64> {
        let turn = self.handle.ticket(Mode::Read, offset, Some(length));
        turn.as_ref().inspect(|turn| turn.wait());
        let Some(layout) = self.handle.layout().copied() else {
            // SAFETY: the caller's promise.
            return unsafe { self.members[0].enqueue(offset, length, destination) };
        };
        let size = self.handle.size()?;
        let range = clamp(self.handle.path(), size, offset, Some(length), destination.len())?;
        let mut at = range.start;
        while at < range.end {
            let (member, place) = layout.locate(at);
            let length = layout.run_at(place).min(range.end - at);
            let part = destination.part(at - range.start, length);
            let part = part.map_err(|error| Error::device(self.handle.path(), error).at(at))?;
            // SAFETY: the caller's promise.
            let got = unsafe { self.members[member].enqueue(place, length, part) }?;
            if got < length {
                let detail = "a member of the set was truncated during the read";
                return Err(Error::new(ErrorKind::Truncated, self.handle.path(), detail).at(at + got));
            }
            at += length;
        }
        Ok(range.end - range.start)
    }
}

impl MemberReader<'_> {
    /// One read.
    ///
    /// # Safety
    /// As for [`OrderedReader::read`].
    unsafe fn enqueue(&mut self, offset: u64, length: u64, destination: DeviceSlice<'_>) -> Result<u64> {
        let stamp = self.file.stamp()?;
        let range = clamp(self.file.path(), stamp.size, offset, Some(length), destination.len())?;
        if range.is_empty() {
            return Ok(0);
        }
        self.follow(&stamp, &range)?;
        let place = destination.part(0, range.end - range.start).map_err(|error| self.device_error(error, &range))?;
        // SAFETY: the caller's promise.
        let served = unsafe { self.copy_from_window(&range, place) };
        match served {
            Some(outcome) => outcome?,
            // SAFETY: the caller's promise.
            None => unsafe { self.read_alone(&range, place) }?,
        }
        if let (Some(prefetcher), Some(sequence)) = (&self.router.prefetcher, &mut self.sequence) {
            prefetcher.top_up(&self.file, &stamp, sequence, &mut self.windows, &self.router.costs());
        }
        Ok(range.end - range.start)
    }

    /// Notes the request; windows that it is beyond, or that show another state of the file, go.
    fn follow(&mut self, stamp: &Stamp, range: &Range<u64>) -> Result<()> {
        let follows = self.sequence.as_mut().is_some_and(|sequence| sequence.follow(range));
        if !follows {
            self.sequence = Some(Sequence::starting(range));
        }
        let changed = self.windows.front().is_some_and(|window| window.stamp != *stamp);
        while let Some(window) = self.windows.front()
            && (!follows || changed || window.range.end <= range.start)
        {
            self.retire_first().map_err(|error| self.device_error(error, range))?;
        }
        if self.windows.is_empty()
            && let Some(sequence) = &mut self.sequence
        {
            sequence.restart();
        }
        Ok(())
    }

    /// Enqueues the copy out of the first window; none if the bytes are not in it.
    ///
    /// # Safety
    /// As for [`OrderedReader::read`].
    unsafe fn copy_from_window(&self, range: &Range<u64>, place: DeviceSlice<'_>) -> Option<Result<()>> {
        let window = self.windows.front()?;
        if window.range.start > range.start || window.range.end < range.end {
            return None;
        }
        window.with_content(|content| {
            let first = fill::first_of(&window.range) + (range.start - window.range.start) as usize;
            let bytes = &content.slot.buffer().bytes()[first..first + place.len() as usize];
            // SAFETY: the slot is retired with an event behind this copy (`retire_first`), and the
            // caller vouches for the destination.
            unsafe { self.stream.copy_to_device(place, bytes.as_ptr()) }
                .map_err(|error| self.device_error(error, range))
        })
    }

    /// Reads the range through slots of the router's pool.
    ///
    /// # Safety
    /// As for [`OrderedReader::read`].
    unsafe fn read_alone(&self, range: &Range<u64>, destination: DeviceSlice<'_>) -> Result<()> {
        let (router, file) = (self.router, &*self.file);
        // Half a slot, so that there is room for the boundaries of unbuffered reads.
        let step = router.pool.slot_bytes() as u64 / 2;
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at + step);
            let failed = |error| self.device_error(error, &part);
            let costs = router.costs();
            let begin = fill::begin(file.part_cached(), part.end - part.start, &costs);
            let mut slot = router.pool.acquire().map_err(failed)?;
            let memory = slot.buffer().bytes_mut();
            let Filled { residency, .. } = fill::fill(file, &*router.storage, &costs, begin, part.clone(), memory)?;
            file.note_cached(residency.part_cached());
            let place = destination.part(at - range.start, part.end - part.start).map_err(failed)?;
            // SAFETY: the slot is retired with an event behind the copy, or the stream has run dry;
            // the caller vouches for the destination.
            let copied =
                unsafe { self.stream.copy_to_device(place, slot.buffer().as_ptr().add(fill::first_of(&part))) };
            match copied.and_then(|()| self.stream.record()) {
                Ok(event) => slot.retire(event),
                Err(error) => {
                    let _ = self.stream.synchronize();
                    return Err(failed(error));
                }
            }
            at = part.end;
        }
        Ok(())
    }

    /// Lets go of the first window; its slot is used again once the copies out of it are done.
    fn retire_first(&mut self) -> bifolio_device::Result<()> {
        let Some(window) = self.windows.pop_front() else { return Ok(()) };
        // While it is being filled nothing was copied out of it.
        let Some(content) = window.take_content() else { return Ok(()) };
        match self.stream.record() {
            Ok(event) => content.slot.retire(event),
            Err(error) => {
                // A stream that cannot even record: nothing may be in flight when the slot goes.
                let _ = self.stream.synchronize();
                drop(content);
                return Err(error);
            }
        }
        Ok(())
    }

    fn device_error(&self, error: bifolio_device::Error, range: &Range<u64>) -> Error {
        Error::device(self.file.path(), error).at(range.start)
    }
}

impl Drop for MemberReader<'_> {
    fn drop(&mut self) {
        while !self.windows.is_empty() {
            // An error stays on the stream, where its owner meets it.
            let _ = self.retire_first();
        }
    }
}
