//! Publishing what a device has changed, and taking back what it has not released.

use super::{State, chunks};
use crate::memory::{FLUSH_BYTES, Scratch};
use crate::page::Device;
use crate::replica::{Part, runs};
use crate::{Error, ErrorKind, Mode, Report, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

impl State {
    /// Publishes what a device has changed in a range.
    pub(crate) fn release(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<Report> {
        let started = Instant::now();
        let before = self.counts;
        let outcome = if writable { self.publish(device, range) } else { Ok(()) };
        let replica = self.existing_mut(device)?;
        if !replica.unpin(replica.frames_of(range)) {
            let detail =
                format!("bytes {} to {} are released, and not all of them were acquired", range.start, range.end);
            return Err(Error::new(ErrorKind::BadUse, self.path(), detail));
        }
        outcome.map(|()| Report::between(&before, &self.counts, started))
    }

    /// The same, and what was acquired stays so.
    pub(crate) fn publish(&mut self, device: Device, range: &Range<u64>) -> Result<()> {
        let memory = Arc::clone(&self.existing(device)?.memory);
        let changed = memory.with_scratch(|scratch| self.changed_since_release(device, range, scratch))?;
        if changed.is_empty() {
            return Ok(());
        }
        let (kept, direct) = self.find_room(device, &changed)?;
        // Nothing of what cannot be kept is released before home has it.
        for run in runs(direct.iter().copied()) {
            for chunk in chunks(&run, self.pages_at_a_time()) {
                memory.with_scratch(|scratch| {
                    self.write_home(device, &chunk, [Part::Now, Part::Base], scratch)?;
                    let copied = self.existing(device)?.copy(&scratch.stream, chunk.clone(), Part::Now, Part::Base);
                    copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.device(error))
                })?;
                self.note_released(device, chunk.clone());
                self.note_flushed(device, chunk);
            }
        }
        memory.with_scratch(|scratch| {
            let fresh = kept.iter().copied().filter(|page| !self.pages[*page as usize].is_pending(device));
            let replica = self.existing(device)?;
            let copy = || -> bifolio_device::Result<()> {
                replica.copy(&scratch.stream, fresh.clone(), Part::Base, Part::Origin)?;
                replica.copy(&scratch.stream, kept.iter().copied(), Part::Now, Part::Base)?;
                scratch.stream.synchronize()
            };
            copy().map_err(|error| self.device(error))
        })?;
        self.note_released(device, kept.iter().copied());
        if self.options.mode == Mode::Eager { self.flush(&kept) } else { Ok(()) }
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

    /// Takes back what a device has changed in an acquired range and not released.
    pub(crate) fn discard(&mut self, device: Device, range: &Range<u64>, writable: bool) {
        let Ok(replica) = self.existing_mut(device) else { return };
        replica.unpin(replica.frames_of(range));
        if !writable {
            return;
        }
        let memory = Arc::clone(&replica.memory);
        // A failure of the device leaves nothing to take back.
        let _ = memory.with_scratch(|scratch| {
            let changed = self.changed_since_release(device, range, scratch)?;
            let copied = self.existing(device)?.copy(&scratch.stream, changed, Part::Base, Part::Now);
            copied.map_err(|error| self.device(error))
        });
    }
}
