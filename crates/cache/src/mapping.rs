//! Mappings: a range of a file at addresses of a device.

use crate::cache::{CachedFile, Inner};
use crate::page::Device;
use crate::state::Counts;
use crate::{Error, ErrorKind, Result};
use bifolio_device::{DeviceId, DevicePtr, FRAME_BYTES};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A range of a file at addresses of a device.
///
/// Bytes are there between an acquire and the release that belongs to it. Kernels on a range have come to their
/// end before it is acquired again or released: neither waits for streams of the program's. What was changed
/// and not released when a mapping is closed or dropped is discarded. Kernels must not write through a mapping
/// that is not writable: nothing notices, and the bytes are never written to the file.
#[derive(Debug)]
pub struct Mapping {
    file: CachedFile,
    device: Device,
    range: Range<u64>,
    address: DevicePtr,
    writable: bool,
    is_open: bool,
    /// Ranges acquired and not released.
    acquired: Vec<Range<u64>>,
}

/// How often an acquire asks other files for memory.
const TRIES_MAX: u32 = 4;

/// What an acquire or a release has done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Pages that were up to date.
    pub hits: u64,
    /// Pages that were fetched, from the file or another device.
    pub fetched: u64,
    /// Of those, pages that came from another device.
    pub from_peers: u64,
    /// Of those, pages that had changes of the device's own.
    pub merged: u64,
    /// Of those, pages with bytes that both sides had changed.
    pub races: u64,
    /// Pages that were released.
    pub released: u64,
    /// Pages that were written to the file.
    pub flushed: u64,
    /// Pages that were compared with the file, as something unknown may have changed it.
    pub compared: u64,
    /// Pages whose memory was needed.
    pub evicted: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Report {
    pub(crate) fn between(before: &Counts, after: &Counts, started: Instant) -> Self {
        Self {
            hits: after.hits - before.hits,
            fetched: after.fetched - before.fetched,
            from_peers: after.from_peers - before.from_peers,
            merged: after.merged - before.merged,
            races: after.races - before.races,
            released: after.released - before.released,
            flushed: after.flushed - before.flushed,
            compared: after.compared - before.compared,
            evicted: after.evicted - before.evicted,
            seconds: started.elapsed().as_secs_f64(),
        }
    }
}

fn bad(kind: ErrorKind, detail: impl Into<String>) -> Error {
    Error::new(kind, Path::new("mapping"), detail)
}

impl Mapping {
    pub(crate) fn new(
        cache: &Arc<Inner>,
        file: &CachedFile,
        device: DeviceId,
        range: Range<u64>,
        writable: bool,
    ) -> Result<Self> {
        let number = cache.devices.iter().position(|memory| memory.device.id() == device);
        let number = number.ok_or_else(|| bad(ErrorKind::BadUse, format!("{device} is no device of this cache")))?;
        Self::on(cache, file, number, range, writable)
    }

    pub(crate) fn on(
        cache: &Arc<Inner>,
        file: &CachedFile,
        number: Device,
        range: Range<u64>,
        writable: bool,
    ) -> Result<Self> {
        let Some(memory) = cache.devices.get(number) else {
            return Err(bad(ErrorKind::BadUse, format!("the cache has no device with the number {number}")));
        };
        let mut state = file.shared.lock();
        let range = range.start..range.end.min(state.size());
        if range.is_empty() {
            return Err(bad(
                ErrorKind::BadRange,
                format!("bytes {} to {} are none of the file's", range.start, range.end),
            ));
        }
        let address = state.map_replica(number, memory, range.end)?.offset_by(range.start);
        drop(state);
        Ok(Self { file: file.clone(), device: number, range, address, writable, is_open: true, acquired: vec![] })
    }

    /// The address of its first byte.
    pub fn ptr(&self) -> DevicePtr {
        self.address
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it has no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes of the file that a part of the mapping is.
    fn part(&self, part: &Range<u64>) -> Result<Range<u64>> {
        if !self.is_open {
            return Err(bad(ErrorKind::BadUse, "it is closed"));
        }
        if part.start >= part.end || part.end > self.len() {
            let detail = format!("bytes {} to {} are no part of {} mapped bytes", part.start, part.end, self.len());
            return Err(bad(ErrorKind::BadRange, detail));
        }
        Ok(self.range.start + part.start..self.range.start + part.end)
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn place_of(&self, part: &Range<u64>) -> Result<(&CachedFile, Device, Range<u64>)> {
        Ok((&self.file, self.device, self.part(part)?))
    }

    /// Brings a part up to date: what others have released, and CPU processes have written, is seen; what this
    /// device has changed and not released stays. The bytes stay where they are until they are released.
    ///
    /// # Errors
    /// `BadRange`, `BadUse` after a close, `OutOfMemory` if more is acquired than the budget holds, `Read`,
    /// `Write` if what others have released cannot be written to the file, `Device`.
    pub fn acquire(&mut self, part: Range<u64>) -> Result<Report> {
        let range = self.part(&part)?;
        let mut tries = 0;
        let report = loop {
            let outcome = self.file.shared.lock().acquire(self.device, &range, self.writable);
            tries += 1;
            match outcome {
                // Others may take what becomes free here, and this file's lock is not held while they give it.
                Err(error) if error.kind() == ErrorKind::OutOfMemory && tries < TRIES_MAX => {
                    let frames = (range.end - range.start).div_ceil(FRAME_BYTES) as usize + 1;
                    if !self.file.make_room(self.device, 2 * frames) {
                        return Err(error);
                    }
                }
                outcome => break outcome?,
            }
        };
        self.acquired.push(range);
        Ok(report)
    }

    /// Publishes what the device has changed in a part that was acquired, and gives the memory free for
    /// eviction.
    ///
    /// # Errors
    /// `BadUse` for a part that was not acquired as a whole, `Write` if bytes that have to go to the file now
    /// cannot be written, `Device`. After `Write` and `Device` the part is acquired as before: nothing is lost, and
    /// releasing it again publishes and writes what is missing.
    pub fn release(&mut self, part: Range<u64>) -> Result<Report> {
        let range = self.part(&part)?;
        let Some(at) = self.acquired.iter().position(|acquired| *acquired == range) else {
            let detail = format!("bytes {} to {} are released, and were not acquired as such", part.start, part.end);
            return Err(bad(ErrorKind::BadUse, detail));
        };
        let report = self.file.shared.lock().release(self.device, &range, self.writable)?;
        self.acquired.swap_remove(at);
        Ok(report)
    }

    /// Publishes what the device has changed in all that is acquired, which stays so, writes everything released
    /// to the file, by whatever device, and makes it durable.
    pub fn sync(&mut self) -> Result<()> {
        self.part(&(0..self.len()))?;
        let mut state = self.file.shared.lock();
        if self.writable {
            self.acquired.iter().try_for_each(|range| state.publish(self.device, range))?;
        }
        state.sync()
    }

    /// Ends it. What was changed and not released is discarded.
    ///
    /// # Errors
    /// `BadUse` if it was closed before.
    pub fn close(&mut self) -> Result<()> {
        self.part(&(0..self.len()))?;
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        self.is_open = false;
        let mut state = self.file.shared.lock();
        for range in self.acquired.drain(..) {
            state.discard(self.device, &range, self.writable);
        }
        state.unmap_replica(self.device);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_open {
            self.end();
        }
    }
}
