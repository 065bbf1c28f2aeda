//! Publishing what a device has changed, and taking back what it has not released.

use super::{State, chunks};
use crate::fault::{Point, step};
use crate::memory::{FLUSH_BYTES, Scratch};
use crate::page::Device;
use crate::replica::{Part, runs};
use crate::{Error, ErrorKind, Mode, Report, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

impl State {
    /// Publishes what a device has changed in a range. After a failure the range is acquired as before, and may be
    /// released again.
    pub(crate) fn release(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<Report> {
        let started = Instant::now();
        let before = self.counts;
        if writable {
            self.publish(device, range)?;
        }
        step(Point::Released, self.path())?;
        let replica = self.existing_mut(device)?;
        if !replica.unpin(replica.frames_of(range)) {
            let detail =
                format!("bytes {} to {} are released, and not all of them were acquired", range.start, range.end);
            return Err(Error::new(ErrorKind::BadUse, self.path(), detail));
        }
        self.forget_use(device, range, writable);
        Ok(Report::between(&before, &self.counts, started))
    }

    /// The same, and what was acquired stays so.
    pub(crate) fn publish(&mut self, device: Device, range: &Range<u64>) -> Result<()> {
        self.follow_cut()?;
        let memory = Arc::clone(&self.existing(device)?.memory);
        let changed = memory.with_scratch(|scratch| self.changed_since_release(device, range, scratch))?;
        step(Point::ReleaseCompared, self.path())?;
        if !changed.is_empty() {
            let (kept, direct) = self.find_room(device, &changed)?;
            step(Point::ReleaseRoom, self.path())?;
            memory.with_scratch(|scratch| {
                self.release_direct(device, &direct, scratch)?;
                self.release_kept(device, &kept, scratch)
            })?;
        }
        // That may be more than what has changed: what an earlier release could not write.
        if self.options.mode == Mode::Eager { self.flush_range(range) } else { Ok(()) }
    }

    /// Releases pages whose origin cannot be kept: nothing of them is released before home has it.
    fn release_direct(&mut self, device: Device, pages: &BTreeSet<u64>, scratch: &Scratch) -> Result<()> {
        for run in runs(pages.iter().copied()) {
            for chunk in chunks(&run, self.pages_at_a_time()) {
                let written = self.write_or_note(device, &chunk, [Part::Now, Part::Base], scratch);
                let written = written.and_then(|()| step(Point::DirectWritten, self.path()));
                // Also after a failure, which may have left some of it at home.
                self.note_released(device, chunk.clone());
                self.note_flushed(device, chunk.clone());
                self.forget_written(chunk.clone());
                written?;
            }
        }
        Ok(())
    }

    /// Releases pages that stay on the device.
    fn release_kept(&mut self, device: Device, pages: &BTreeSet<u64>, scratch: &Scratch) -> Result<()> {
        let fresh = pages.iter().copied().filter(|page| !self.pages[*page as usize].is_pending(device));
        self.copy_and_wait(device, fresh, [Part::Base, Part::Origin], scratch)?;
        step(Point::OriginKept, self.path())?;
        // As above.
        self.note_released(device, pages.iter().copied());
        step(Point::ReleaseNoted, self.path())?;
        self.copy_and_wait(device, pages.iter().copied(), [Part::Now, Part::Base], scratch)?;
        step(Point::ReleaseKept, self.path())
    }

    fn copy_and_wait(
        &self,
        device: Device,
        pages: impl IntoIterator<Item = u64>,
        [from, to]: [Part; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        let copied = self.existing(device)?.copy(&scratch.stream, pages, from, to);
        copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.device(error))
    }

    /// Changed pages whose origin can be kept, as there is memory for it, and the others.
    pub(super) fn find_room(
        &mut self,
        device: Device,
        changed: &BTreeSet<u64>,
    ) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
        let replica = self.existing(device)?;
        let frames: BTreeSet<usize> = changed.iter().map(|page| replica.frame_of(*page)).collect();
        for frame in frames {
            match self.map(device, Part::Origin, frame) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                outcome => outcome?,
            }
        }
        // Making room for one may have taken another's.
        let replica = self.existing(device)?;
        Ok(changed.iter().partition(|page| replica.has(Part::Origin, replica.frame_of(**page))))
    }

    pub(super) fn note_released(&mut self, device: Device, pages: impl IntoIterator<Item = u64>) {
        let devices = self.replicas.len();
        self.unsettle(Some(device));
        for page in pages {
            self.pages[page as usize].released(device, devices);
            self.counts.released += 1;
        }
    }

    pub(super) fn note_flushed(&mut self, device: Device, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            self.pages[page as usize].flushed(device);
            self.counts.flushed += 1;
        }
    }

    /// Pages whose bytes and masks are moved at a time.
    pub(super) fn pages_at_a_time(&self) -> u64 {
        FLUSH_BYTES / self.page_bytes
    }

    pub(super) fn changed_since_release(
        &self,
        device: Device,
        range: &Range<u64>,
        scratch: &Scratch,
    ) -> Result<BTreeSet<u64>> {
        let replica = self.existing(device)?;
        let with_twins =
            replica.frames_of(range).filter(|frame| replica.has(Part::Base, *frame)).map(|frame| frame as u64);
        let mut changed = BTreeSet::new();
        for frames in runs(with_twins) {
            let frames = replica.bytes_of(&frames);
            let bytes = frames.start.max(range.start / self.page_bytes * self.page_bytes)
                ..frames.end.min(range.end.next_multiple_of(self.page_bytes)).min(self.size);
            if bytes.start < bytes.end {
                let base = replica.slice(Part::Base, &bytes);
                let differ = self.differences(replica, Part::Now, &bytes, base, scratch)?;
                // What is in the place of a page that was never fetched is nobody's.
                changed.extend(differ.into_iter().filter(|page| self.pages[*page as usize].is_held_by(device)));
            }
        }
        Ok(changed)
    }

    /// A range that was acquired is in use no more.
    fn forget_use(&mut self, device: Device, range: &Range<u64>, writable: bool) {
        if let Some(at) = self.in_use[device].iter().position(|used| writable && used == range) {
            self.in_use[device].swap_remove(at);
        }
        self.forget_written(self.pages_of(range));
    }

    /// Takes back what a device has changed in an acquired range and not released, except for what it has acquired
    /// by other mappings as well.
    pub(crate) fn discard(&mut self, device: Device, range: &Range<u64>, writable: bool) {
        let Ok(replica) = self.existing_mut(device) else { return };
        replica.unpin(replica.frames_of(range));
        if !writable {
            return;
        }
        self.forget_use(device, range, writable);
        for part in without(range, &self.in_use[device]) {
            if let Ok(pages) = self.take_back(device, &part) {
                self.counts.discarded += pages;
                continue;
            }
            // The device's copy is not to be believed any more, save of what others have changed: they would lose that.
            for page in self.pages_of(&part) {
                if self.uses(device, page) == 0 {
                    self.pages[page as usize].dropped(device);
                }
            }
            self.settled[device] = None;
        }
    }

    /// How many pages had changes.
    fn take_back(&self, device: Device, part: &Range<u64>) -> Result<u64> {
        let replica = self.existing(device)?;
        replica.memory.with_scratch(|scratch| {
            let changed = self.changed_since_release(device, part, scratch)?;
            step(Point::DiscardCompared, self.path())?;
            let copy = |pages: Range<u64>| {
                let bytes = self.bytes_of(&pages);
                // The file may end before the part does, or before it begins.
                let bytes = bytes.start.max(part.start)..bytes.end.min(part.end);
                if bytes.is_empty() {
                    return Ok(());
                }
                let (to, from) = (replica.slice(Part::Now, &bytes), replica.slice(Part::Base, &bytes));
                // SAFETY: both have memory there, which stays until the stream is waited for.
                unsafe { scratch.stream.copy_on_device(to, from) }
            };
            let pages = changed.len() as u64;
            let copied = runs(changed).into_iter().try_for_each(copy);
            copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.device(error))?;
            Ok(pages)
        })
    }
}

/// What is left of a range without others.
fn without(range: &Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let cut = |left: Vec<Range<u64>>, other: &Range<u64>| {
        let pieces = |part: Range<u64>| {
            [part.start..part.end.min(other.start), part.start.max(other.end)..part.end]
                .into_iter()
                .filter(|piece| !piece.is_empty())
        };
        left.into_iter().flat_map(pieces).collect()
    };
    others.iter().fold(vec![range.clone()], cut)
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn what_is_left_of_a_range_is_outside_of_all_others() {
        assert_eq!(without(&(2..9), &[]), [2..9]);
        assert_eq!(without(&(2..9), &[4..5, 7..8]), [2..4, 5..7, 8..9]);
        assert_eq!(without(&(2..9), &[0..3, 8..20]), [3..8]);
        assert_eq!(without(&(2..9), &[9..10, 0..2]), [2..9]);
        assert_eq!(without(&(2..9), &[0..5, 5..9]), vec![]);
    }
}
