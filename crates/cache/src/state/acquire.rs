//! Bringing pages up to date: looking, comparing, fetching, merging, and making room.

use super::{Settled, State, chunks};
use crate::fault::{Point, step};
use crate::memory::Scratch;
use crate::page::Device;
use crate::replica::{Part, Replica, runs};
use crate::{Error, ErrorKind, Report, Result};
use bifolio_device::DeviceSlice;
use bifolio_kernels::page_diff;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Whether somebody waits for pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Acquired,
    Ahead,
}

impl State {
    /// Brings a range on a device up to date, and keeps it there until it is released.
    pub(crate) fn acquire(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<Report> {
        let started = Instant::now();
        let before = self.counts;
        self.look()?;
        step(Point::AcquireLooked, self.path())?;
        let replica = self.existing_mut(device)?;
        let frames = replica.frames_of(range);
        replica.pin(frames.clone());
        let outcome = self.bring(device, range, writable, When::Acquired);
        if outcome.is_err() {
            self.existing_mut(device)?.unpin(frames);
        } else if writable {
            self.in_use[device].push(range.clone());
        }
        outcome.map(|()| Report::between(&before, &self.counts, started))
    }

    /// Brings a range before it is acquired; false if there is no room for it, or it cannot be read.
    pub(crate) fn bring_ahead(&mut self, device: Device, range: &Range<u64>, writable: bool) -> bool {
        let range = range.start..range.end.min(self.size);
        if range.is_empty() || self.look().is_err() {
            return false;
        }
        let Ok(replica) = self.existing_mut(device) else { return false };
        let frames = replica.frames_of(&range);
        replica.pin(frames.clone());
        let outcome = self.bring(device, &range, writable, When::Ahead);
        if let Ok(replica) = self.existing_mut(device) {
            replica.unpin(frames);
        }
        outcome.is_ok()
    }

    /// Gives the memory of frames back that lie in a range and are not in use.
    pub(crate) fn give_back(&mut self, device: Device, range: &Range<u64>) -> Result<()> {
        let replica = self.existing(device)?;
        let inside = |frame: &usize| {
            let bytes = replica.bytes_of(&(*frame as u64..*frame as u64 + 1));
            range.start <= bytes.start && bytes.end.min(self.size) <= range.end
        };
        let idle = |frame: &usize| replica.has(Part::Now, *frame) && !replica.is_pinned(*frame);
        let frames: Vec<usize> = replica.frames_of(range).filter(inside).filter(idle).collect();
        frames.into_iter().try_for_each(|frame| self.evict(device, frame))
    }

    pub(super) fn bring(&mut self, device: Device, range: &Range<u64>, writable: bool, when: When) -> Result<()> {
        let pages = self.pages_of(range);
        if let Some(settled) = &self.settled[device]
            && settled.doubt == self.doubt
            && (settled.writable || !writable)
            && settled.range.start <= range.start
            && range.end <= settled.range.end
        {
            self.counts.hits += pages.end - pages.start;
            return Ok(());
        }
        let memory = Arc::clone(&self.existing(device)?.memory);
        memory.with_scratch(|scratch| self.compare_with_home(device, &pages, scratch))?;
        step(Point::AcquireCompared, self.path())?;
        let mut behind: Vec<u64> = pages.clone().filter(|page| self.pages[*page as usize].is_behind(device)).collect();
        let all_behind = behind.len();
        if when == When::Ahead {
            // Whoever uses a page brings it up to date when he acquires it again.
            behind.retain(|page| self.uses(device, *page) == 0);
        }
        let is_whole = behind.len() == all_behind;
        self.counts.hits += pages.end - pages.start - all_behind as u64;
        let is_pending = |page: &u64| self.pages[*page as usize].pending().next().is_some();
        let pending: BTreeSet<u64> = behind.iter().copied().filter(is_pending).collect();
        // Other devices' scratch memory is taken for it, so not while this one's is held.
        self.flush(&pending)?;
        step(Point::AcquireFlushed, self.path())?;
        let frames: Vec<usize> = self.existing(device)?.frames_of(range).collect();
        self.fetch(device, &frames, &behind, writable)?;
        step(Point::AcquireFetched, self.path())?;
        if is_whole {
            self.settled[device] = Some(Settled { range: range.clone(), doubt: self.doubt, writable });
        }
        Ok(())
    }

    /// How many parts of a page are acquired to be written.
    pub(super) fn uses(&self, device: Device, page: u64) -> usize {
        let bytes = page * self.page_bytes..(page + 1) * self.page_bytes;
        let is_there = |used: &&Range<u64>| used.start < bytes.end && bytes.start < used.end;
        self.in_use[device].iter().filter(is_there).count()
    }

    /// Somebody has changed pages: whoever was settled, except for who did it, has to look again.
    pub(super) fn unsettle(&mut self, except: Option<Device>) {
        for (device, settled) in self.settled.iter_mut().enumerate() {
            if Some(device) != except {
                *settled = None;
            }
        }
    }

    /// Twins are gone: whoever was settled for writing has to look again.
    fn unsettle_writers(&mut self, device: Device) {
        self.settled[device].take_if(|settled| settled.writable);
    }

    /// Looks whether something unknown has happened to the file.
    pub(crate) fn look(&mut self) -> Result<()> {
        let unchanged = self.home.look().map_err(|error| Error::reading(self.home.path(), error))?;
        if !unchanged {
            self.doubt += 1;
        }
        // Also where nothing has changed since: following it may have failed after the look that found it.
        let size = self.home.size().map_err(|error| Error::reading(self.home.path(), error))?;
        self.resize(size)
    }

    pub(super) fn map(&mut self, device: Device, part: Part, frame: usize) -> Result<()> {
        loop {
            let path = self.home.path().to_owned();
            let replica = self.existing_mut(device)?;
            if replica.map(part, frame).map_err(|error| Error::device(&path, error))? {
                return Ok(());
            }
            if let Some(idle) = replica.frame_with_idle_twin() {
                replica.unmap(Part::Base, idle).map_err(|error| Error::device(&path, error))?;
                self.unsettle_writers(device);
            } else if let Some(victim) = replica.victim() {
                self.evict(device, victim)?;
            } else if let Some(frame) = replica.frame_with_origin() {
                // What is in use stays, but not what was kept for writing it home later.
                let pages = self.existing(device)?.pages_of(frame);
                let is_pending =
                    |page: &u64| self.pages.get(*page as usize).is_some_and(|page| page.is_pending(device));
                let pending = pages.clone().filter(is_pending).collect();
                self.flush(&pending)?;
                self.drop_origins(device, &pages)?;
            } else {
                let detail = format!(
                    "the budget of {} bytes on {} is used up by what is acquired: release some of it, map smaller ranges, or raise the budget",
                    replica.memory.budget_bytes(),
                    replica.memory.device.id()
                );
                return Err(Error::new(ErrorKind::OutOfMemory, &path, detail));
            }
        }
    }

    /// Takes a frame's memory away. What is pending reaches home first.
    pub(crate) fn evict(&mut self, device: Device, frame: usize) -> Result<()> {
        let pages: Vec<u64> =
            self.existing(device)?.pages_of(frame).filter(|page| (*page as usize) < self.pages.len()).collect();
        let pending = pages.iter().copied().filter(|page| self.pages[*page as usize].is_pending(device)).collect();
        self.flush(&pending)?;
        step(Point::EvictFlushed, self.path())?;
        for page in pages {
            self.pages[page as usize].dropped(device);
            self.forget_written(page..page + 1);
            self.counts.evicted += 1;
        }
        step(Point::EvictDropped, self.path())?;
        self.settled[device] = None;
        let path = self.home.path().to_owned();
        let replica = self.existing_mut(device)?;
        for part in [Part::Origin, Part::Base, Part::Now] {
            replica.unmap(part, frame).map_err(|error| Error::device(&path, error))?;
        }
        Ok(())
    }

    /// Compares what the device has with home, where something unknown may have happened since the last time,
    /// at the rate of the link.
    pub(super) fn compare_with_home(&mut self, device: Device, pages: &Range<u64>, scratch: &Scratch) -> Result<()> {
        let doubtful = |page: &u64| {
            let state = &self.pages[*page as usize];
            state.is_held_by(device) && !state.is_behind(device) && self.compared[device][*page as usize] != self.doubt
        };
        let doubtful: Vec<u64> = pages.clone().filter(doubtful).collect();
        for run in runs(doubtful) {
            for chunk in chunks(&run, scratch.incoming.len() / self.page_bytes) {
                let changed = self.compare_chunk(device, &chunk, scratch)?;
                if !changed.is_empty() {
                    self.unsettle(None);
                }
                for page in chunk.clone() {
                    if changed.contains(&page) {
                        self.pages[page as usize].changed_at_home();
                    }
                    self.compared[device][page as usize] = self.doubt;
                }
                self.counts.compared += chunk.end - chunk.start;
            }
        }
        Ok(())
    }

    pub(super) fn compare_chunk(&self, device: Device, pages: &Range<u64>, scratch: &Scratch) -> Result<BTreeSet<u64>> {
        let bytes = self.bytes_of(pages);
        let incoming = self.read_home(device, &bytes, scratch)?;
        let replica = self.existing(device)?;
        let frames = replica.frames_of(&bytes);
        let mut changed = BTreeSet::new();
        // A frame has a twin or has none; those beside each other are compared at once.
        for part in [Part::Base, Part::Now] {
            let with_part = |frame: &usize| replica.has(Part::Base, *frame) == (part == Part::Base);
            for run in runs(frames.clone().filter(with_part).map(|frame| frame as u64)) {
                let run = replica.bytes_of(&run);
                let here = run.start.max(bytes.start)..run.end.min(bytes.end);
                let theirs = incoming.part(here.start - bytes.start, here.end - here.start);
                let theirs = theirs.map_err(|error| self.device(error))?;
                // What has been released and not been flushed differs from home by right: its origin does not.
                for page in self.differences(replica, part, &here, theirs, scratch)? {
                    let state = &self.pages[page as usize];
                    if !state.is_pending(device)
                        || self.origin_differs(replica, page, bytes.start, incoming, scratch)?
                    {
                        changed.insert(page);
                    }
                }
            }
        }
        Ok(changed)
    }

    pub(super) fn origin_differs(
        &self,
        replica: &Replica,
        page: u64,
        start: u64,
        incoming: DeviceSlice<'_>,
        scratch: &Scratch,
    ) -> Result<bool> {
        let bytes = self.bytes_of(&(page..page + 1));
        let theirs = incoming.part(bytes.start - start, bytes.end - bytes.start).map_err(|error| self.device(error))?;
        Ok(!self.differences(replica, Part::Origin, &bytes, theirs, scratch)?.is_empty())
    }

    /// Pages of a range of the replica that differ from other memory of the device.
    pub(super) fn differences(
        &self,
        replica: &Replica,
        part: Part,
        bytes: &Range<u64>,
        other: DeviceSlice<'_>,
        scratch: &Scratch,
    ) -> Result<BTreeSet<u64>> {
        let words = page_diff::bitmap_words(bytes.end - bytes.start);
        let run = || -> bifolio_device::Result<Vec<u8>> {
            let bitmap = Scratch::first(&scratch.results, words * 4)?;
            // SAFETY: the memory stays until the stream is waited for, and nobody writes to it.
            unsafe { replica.memory.kernels.page_diff(&scratch.stream, replica.slice(part, bytes), other, bitmap) }?;
            let mut host = vec![0; words as usize * 4];
            scratch.stream.download(&mut host, bitmap)?;
            Ok(host)
        };
        let bitmap = run().map_err(|error| self.device(error))?;
        let mut pages = BTreeSet::new();
        for (word, bits) in bitmap.chunks_exact(4).enumerate() {
            let mut bits = u32::from_ne_bytes([bits[0], bits[1], bits[2], bits[3]]);
            while bits != 0 {
                let at = (word as u64 * page_diff::PAGES_PER_WORD + u64::from(bits.trailing_zeros()))
                    * page_diff::PAGE_BYTES;
                pages.insert((bytes.start + at) / self.page_bytes);
                bits &= bits - 1;
            }
        }
        Ok(pages)
    }

    /// Reads some bytes of the file into scratch memory of a device.
    pub(super) fn read_home<'a>(
        &self,
        device: Device,
        bytes: &Range<u64>,
        scratch: &'a Scratch,
    ) -> Result<DeviceSlice<'a>> {
        let incoming =
            Scratch::first(&scratch.incoming, bytes.end - bytes.start).map_err(|error| self.device(error))?;
        self.source(device)?.read(&[(bytes.clone(), 0)], incoming)?;
        Ok(incoming)
    }
}
