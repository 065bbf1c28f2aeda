//! Mappings: a range of a file at addresses of a device.

use crate::ahead::{Advice, Sequence};
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
    pub(crate) file: CachedFile,
    pub(crate) device: Device,
    pub(crate) range: Range<u64>,
    address: DevicePtr,
    pub(crate) writable: bool,
    is_open: bool,
    /// Ranges acquired and not released.
    acquired: Vec<Range<u64>>,
    sequence: Sequence,
}

/// Keeps the memory of a part of a mapping where it is, for arrays of a program's that may outlive a release and
/// the mapping itself: their addresses stay good. What is written there outside of an acquire and its release may
/// be lost, and what is read there may be old.
#[derive(Debug)]
pub struct Pin {
    file: CachedFile,
    device: Device,
    frames: Range<usize>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.file.shared.let_go(self.device, self.frames.clone());
    }
}

/// How often an acquire asks other files for memory.
const TRIES_MAX: u32 = 4;

/// What an acquire or a release has done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// To pages.
    pub counts: Counts,
    /// How long it took.
    pub seconds: f64,
}

impl Report {
    pub(crate) fn between(before: &Counts, after: &Counts, started: Instant) -> Self {
        Self { counts: after.minus(before), seconds: started.elapsed().as_secs_f64() }
    }
}

impl std::ops::Deref for Report {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

fn bad(kind: ErrorKind, detail: impl Into<String>) -> Error {
    Error::new(kind, Path::new("mapping"), detail)
}

/// The first byte of a range that none of the others has.
fn first_missing(range: &Range<u64>, others: &[Range<u64>]) -> Option<u64> {
    let mut at = range.start;
    while at < range.end {
        match others.iter().filter(|other| other.contains(&at)).map(|other| other.end).max() {
            Some(end) => at = end,
            None => return Some(at),
        }
    }
    None
}

impl Mapping {
    pub(crate) fn new(
        cache: &Arc<Inner>,
        file: &CachedFile,
        device: DeviceId,
        range: Range<u64>,
        writable: bool,
    ) -> Result<Self> {
        let number = cache.places.iter().position(|place| place.id == device);
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
        let Some(place) = cache.places.get(number) else {
            return Err(bad(ErrorKind::BadUse, format!("the cache has no device with the number {number}")));
        };
        let memory = place.memory(&cache.options)?;
        let mut state = file.shared.lock();
        // It may have another size by now.
        state.look()?;
        let range = range.start..range.end.min(state.size());
        if range.is_empty() {
            return Err(bad(
                ErrorKind::BadRange,
                format!("bytes {} to {} are none of the file's", range.start, range.end),
            ));
        }
        let replica = state.attach(number, &memory)?;
        let address = replica.address().offset_by(range.start);
        drop(state);
        cache.operated();
        Ok(Self {
            file: file.clone(),
            device: number,
            range,
            address,
            writable,
            is_open: true,
            acquired: vec![],
            sequence: Sequence::default(),
        })
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

    /// Whether a part was acquired as such.
    pub(crate) fn has_acquired(&self, part: &Range<u64>) -> bool {
        self.part(part).is_ok_and(|range| self.acquired.contains(&range))
    }

    /// Makes it as long, and as writable, as another one of the same bytes.
    pub(crate) fn widen(&mut self, other: &Self) {
        self.range.end = self.range.end.max(other.range.end);
        self.writable |= other.writable;
    }

    /// The bytes of the file that a part of the mapping is.
    pub(crate) fn part(&self, part: &Range<u64>) -> Result<Range<u64>> {
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
            let outcome = self.file.with(Some(self.device), |state| state.acquire(self.device, &range, self.writable));
            tries += 1;
            match outcome {
                // Others may take what becomes free here, and this file's lock is not held while they give it.
                Err(error) if error.kind() == ErrorKind::OutOfMemory && tries < TRIES_MAX => {
                    if !self.file.make_room(self.device, 2 * (range.end - range.start) + FRAME_BYTES) {
                        return Err(error);
                    }
                }
                outcome => break outcome?,
            }
        };
        if let Some(ahead) = self.sequence.acquired(&range, self.range.end) {
            self.bring(ahead);
        }
        self.acquired.push(range);
        Ok(report)
    }

    /// Says what will be done with a part.
    ///
    /// # Errors
    /// `BadRange`, `BadUse` after a close, `Write` if what was released of a part that is not needed cannot be
    /// written.
    pub fn advise(&mut self, part: Range<u64>, advice: Advice) -> Result<()> {
        let range = self.part(&part)?;
        match advice {
            Advice::WillNeed => self.bring(range),
            Advice::DontNeed => return self.file.shared.lock().give_back(self.device, &range),
            Advice::Random => self.sequence.is_off = true,
            Advice::Normal => self.sequence = Sequence::default(),
        }
        Ok(())
    }

    fn bring(&self, range: Range<u64>) {
        let file = Arc::downgrade(&self.file.shared);
        self.file.cache.ahead.bring(file, self.device, range, self.writable);
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
        let report = self.file.with(Some(self.device), |state| state.release(self.device, &range, self.writable))?;
        self.acquired.swap_remove(at);
        Ok(report)
    }

    /// Keeps the memory of a part where it is for as long as what is returned, beyond its release and a close. It
    /// counts against the budget.
    ///
    /// # Errors
    /// `BadUse` for a part that is not acquired, or after a close; `BadRange`.
    pub fn pin(&self, part: Range<u64>) -> Result<Pin> {
        let range = self.part(&part)?;
        if let Some(missing) = first_missing(&range, &self.acquired) {
            let detail = format!(
                "byte {} has no memory that stays, as bytes {} to {} were not acquired as a whole: acquire them first",
                missing - self.range.start,
                part.start,
                part.end
            );
            return Err(bad(ErrorKind::BadUse, detail));
        }
        let frames = self.file.shared.lock().pin(self.device, &range)?;
        Ok(Pin { file: self.file.clone(), device: self.device, frames })
    }

    /// Publishes what the device has changed in all that is acquired, which stays so, writes everything released
    /// to the file, by whatever device, and makes it durable.
    pub fn sync(&mut self) -> Result<()> {
        self.part(&(0..self.len()))?;
        self.file.with(Some(self.device), |state| {
            if self.writable {
                self.acquired.iter().try_for_each(|range| state.publish(self.device, range))?;
            }
            state.sync(&self.file.told)
        })
    }

    /// Ends it. What was changed and not released is discarded: the report says of how many pages.
    ///
    /// # Errors
    /// `BadUse` if it was closed before.
    pub fn close(&mut self) -> Result<Report> {
        self.part(&(0..self.len()))?;
        Ok(self.end())
    }

    fn end(&mut self) -> Report {
        self.is_open = false;
        let (device, writable, acquired) = (self.device, self.writable, std::mem::take(&mut self.acquired));
        self.file.with(Some(device), |state| {
            let (started, before) = (Instant::now(), state.counts);
            for range in &acquired {
                state.discard(device, range, writable);
            }
            state.detach(device);
            Report::between(&before, &state.counts, started)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_open {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_of_a_range_is_found() {
        let all = [0..10, 20..30, 8..20];
        assert_eq!(first_missing(&(0..30), &all), None);
        assert_eq!(first_missing(&(3..9), &all), None);
        assert_eq!(first_missing(&(3..31), &all), Some(30));
        assert_eq!(first_missing(&(5..12), &all[..2]), Some(10));
        assert_eq!(first_missing(&(5..6), &[]), Some(5));
    }
}
