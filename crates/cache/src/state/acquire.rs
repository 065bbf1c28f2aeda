//! Bringing pages up to date: looking, comparing, fetching, merging, and making room.

use super::{Settled, State, chunks};
use crate::fault::{Point, step};
use crate::memory::{INCOMING_BYTES, Scratch};
use crate::page::Device;
use crate::replica::{Part, Replica, runs};
use crate::{Error, ErrorKind, Report, Result};
use bifolio_device::{DeviceSlice, FRAME_BYTES};
use bifolio_io::{ReadExtent, ReadOptions};
use bifolio_kernels::{Base, merge, page_diff};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Runs of pages that are shorter than this are read together.
const BATCHED_BYTES_MAX: u64 = 256 << 10;

impl State {
    /// Brings a range on a device up to date, and keeps it there until it is released.
    pub(crate) fn acquire(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<Report> {
        let started = Instant::now();
        let before = self.counts;
        self.look()?;
        step(Point::AcquireLooked, self.path())?;
        let frames = Replica::frames_of(range);
        self.existing_mut(device)?.pin(frames.clone());
        let outcome = self.bring(device, range, writable);
        if outcome.is_err() {
            self.existing_mut(device)?.unpin(frames);
        } else if writable {
            self.in_use[device].push(range.clone());
        }
        outcome.map(|()| Report::between(&before, &self.counts, started))
    }

    pub(super) fn bring(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<()> {
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
        for frame in Replica::frames_of(range) {
            self.map(device, Part::Now, frame)?;
        }
        step(Point::AcquireMapped, self.path())?;
        memory.with_scratch(|scratch| self.compare_with_home(device, &pages, scratch))?;
        step(Point::AcquireCompared, self.path())?;
        let behind: BTreeSet<u64> = pages.clone().filter(|page| self.pages[*page as usize].is_behind(device)).collect();
        self.counts.hits += pages.end - pages.start - behind.len() as u64;
        if !behind.is_empty() {
            let is_pending = |page: &u64| self.pages[*page as usize].pending().next().is_some();
            let pending = behind.iter().copied().filter(is_pending).collect();
            // Other devices' scratch memory is taken for it, so not while this one's is held.
            self.flush(&pending)?;
            step(Point::AcquireFlushed, self.path())?;
            memory.with_scratch(|scratch| self.fetch(device, &behind, scratch))?;
        }
        step(Point::AcquireFetched, self.path())?;
        if writable {
            self.make_twins(device, range)?;
        }
        step(Point::AcquireTwinned, self.path())?;
        self.settled[device] = Some(Settled { range: range.clone(), doubt: self.doubt, writable });
        Ok(())
    }

    /// Somebody has changed pages: whoever was settled, except for who did it, has to look again.
    pub(super) fn unsettle(&mut self, except: Option<Device>) {
        for (device, settled) in self.settled.iter_mut().enumerate() {
            if Some(device) != except {
                *settled = None;
            }
        }
    }

    /// Looks whether something unknown has happened to the file.
    pub(super) fn look(&mut self) -> Result<()> {
        let unchanged = self.home.look().map_err(|error| Error::reading(self.home.path(), error))?;
        if !unchanged {
            self.doubt += 1;
            let size = self.home.file.size().map_err(|error| Error::reading(self.home.path(), error))?;
            self.resize(size);
        }
        Ok(())
    }

    pub(super) fn map(&mut self, device: Device, part: Part, frame: usize) -> Result<()> {
        loop {
            let path = self.home.path().to_owned();
            let replica = self.existing_mut(device)?;
            if frame as u64 * FRAME_BYTES >= replica.len() {
                let detail = format!(
                    "byte {} lies beyond what was reserved when it was mapped: map it anew",
                    frame as u64 * FRAME_BYTES
                );
                return Err(Error::new(ErrorKind::BadRange, &path, detail));
            }
            if replica.map(part, frame).map_err(|error| Error::device(&path, error))? {
                return Ok(());
            }
            if let Some(victim) = replica.victim() {
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
            for chunk in chunks(&run, INCOMING_BYTES / self.page_bytes) {
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
        let frames = Replica::frames_of(&bytes);
        let mut changed = BTreeSet::new();
        // A frame has a twin or has none; those beside each other are compared at once.
        for part in [Part::Base, Part::Now] {
            let with_part = |frame: &usize| replica.has(Part::Base, *frame) == (part == Part::Base);
            for run in runs(frames.clone().filter(with_part).map(|frame| frame as u64)) {
                let here = (run.start * FRAME_BYTES).max(bytes.start)..(run.end * FRAME_BYTES).min(bytes.end);
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
        self.read_into(device, bytes, incoming)?;
        Ok(incoming)
    }

    pub(super) fn read_into(&self, device: Device, bytes: &Range<u64>, to: DeviceSlice<'_>) -> Result<()> {
        let router = &self.existing(device)?.memory.router;
        let length = bytes.end - bytes.start;
        let report = router.read(&self.home.file, bytes.start, Some(length), to, &ReadOptions::default());
        match report.map_err(|error| Error::reading(self.path(), error))?.bytes {
            read if read == length => Ok(()),
            read => Err(self.shorter(read, length, bytes.start)),
        }
    }

    pub(super) fn shorter(&self, read: u64, wanted: u64, at: u64) -> Error {
        let detail = format!("it has become shorter: {read} of {wanted} bytes were there from {at} on; acquire again");
        Error::new(ErrorKind::Read, self.path(), detail)
    }

    /// Fetches pages that are behind; nothing of them is pending.
    pub(super) fn fetch(&mut self, device: Device, pages: &BTreeSet<u64>, scratch: &Scratch) -> Result<()> {
        let replica = self.existing(device)?;
        // Without a twin there are no changes to keep.
        let (held, absent): (BTreeSet<u64>, BTreeSet<u64>) = pages.iter().partition(|page| {
            self.pages[**page as usize].is_held_by(device) && replica.has(Part::Base, replica.frame_of(**page))
        });
        self.fill(device, &absent, scratch)?;
        let held: Vec<u64> = held.into_iter().collect();
        for group in held.chunks((INCOMING_BYTES / self.page_bytes) as usize) {
            self.merge(device, group, scratch)?;
        }
        self.clear_tail(device, &held, scratch)?;
        step(Point::FetchRead, self.path())?;
        for page in pages {
            self.pages[*page as usize].fetched(device);
            self.compared[device][*page as usize] = self.doubt;
        }
        self.counts.fetched += pages.len() as u64;
        Ok(())
    }

    /// What a merge has left behind the end of the file: it may have been longer.
    fn clear_tail(&self, device: Device, merged: &[u64], scratch: &Scratch) -> Result<()> {
        let tail = merged.last().map_or(0..0, |page| self.size..(page + 1) * self.page_bytes);
        if tail.is_empty() {
            return Ok(());
        }
        let replica = self.existing(device)?;
        let clear = |part| {
            // SAFETY: the page has memory, which stays until the stream is waited for.
            unsafe { scratch.stream.fill(replica.slice(part, &tail), 0) }
        };
        let cleared = clear(Part::Now).and_then(|()| clear(Part::Base)).and_then(|()| scratch.stream.synchronize());
        cleared.map_err(|error| self.device(error))
    }

    /// Reads pages of the file to places in a device's memory: long runs each by a request, many short ones by
    /// one for all.
    pub(super) fn read_pages(&self, device: Device, list: &[(Range<u64>, u64)], to: DeviceSlice<'_>) -> Result<()> {
        let total: u64 = list.iter().map(|(bytes, _)| bytes.end - bytes.start).sum();
        if list.len() > 1 && total / (list.len() as u64) < BATCHED_BYTES_MAX {
            let extent = |(bytes, place): &(Range<u64>, u64)| ReadExtent {
                offset: bytes.start,
                length: bytes.end - bytes.start,
                place: *place,
            };
            let extents: Vec<_> = list.iter().map(extent).collect();
            let router = &self.existing(device)?.memory.router;
            let report = router.read_batch(&self.home.file, &extents, to, &ReadOptions::default());
            return match report.map_err(|error| Error::reading(self.path(), error))?.bytes {
                read if read == total => Ok(()),
                read => Err(self.shorter(read, total, list[0].0.start)),
            };
        }
        list.iter().try_for_each(|(bytes, place)| {
            let part = to.part(*place, bytes.end - bytes.start).map_err(|error| self.device(error))?;
            self.read_into(device, bytes, part)
        })
    }

    /// Pages that the device has nothing of its own in.
    pub(super) fn fill(&mut self, device: Device, pages: &BTreeSet<u64>, scratch: &Scratch) -> Result<()> {
        let mut from_home = Vec::new();
        for run in runs(pages.iter().copied()) {
            let bytes = self.bytes_of(&run);
            if let Some(peer) = self.peer_with(device, &run) {
                self.copy_from_peer(device, peer, &bytes, scratch)?;
                self.counts.from_peers += run.end - run.start;
            } else {
                from_home.push((bytes.clone(), bytes.start));
            }
        }
        let replica = self.existing(device)?;
        if !from_home.is_empty() {
            let all = replica.slice(Part::Now, &(0..replica.len()));
            self.read_pages(device, &from_home, all)?;
        }
        step(Point::FillRead, self.path())?;
        let finish = || -> bifolio_device::Result<()> {
            let (size, last) = (self.size, pages.last().map_or(0, |page| (page + 1) * self.page_bytes));
            let end = last.min(replica.len());
            // Bytes of the last page behind the end of the file are zeroes, as in a mapping of it.
            if size < end {
                // SAFETY: the page has memory.
                unsafe { scratch.stream.fill(replica.slice(Part::Now, &(size..end)), 0) }?;
            }
            let with_twins = pages.iter().copied().filter(|page| replica.has(Part::Base, replica.frame_of(*page)));
            replica.copy(&scratch.stream, &with_twins.collect(), Part::Now, Part::Base)?;
            scratch.stream.synchronize()
        };
        finish().map_err(|error| self.device(error))
    }

    pub(super) fn copy_from_peer(
        &self,
        device: Device,
        peer: Device,
        bytes: &Range<u64>,
        scratch: &Scratch,
    ) -> Result<()> {
        let (mine, theirs) = (self.existing(device)?, self.existing(peer)?);
        let copy = || -> bifolio_device::Result<()> {
            for part in [Part::Base, Part::Now] {
                let with_part = |frame: &usize| theirs.has(Part::Base, *frame) == (part == Part::Base);
                for run in runs(Replica::frames_of(bytes).filter(with_part).map(|frame| frame as u64)) {
                    let here = (run.start * FRAME_BYTES).max(bytes.start)..(run.end * FRAME_BYTES).min(bytes.end);
                    let (to, from) = (mine.slice(Part::Now, &here), theirs.slice(part, &here));
                    // SAFETY: both have memory there, and the file's lock keeps it until the stream is waited for.
                    unsafe { scratch.stream.copy_from_peer(to, &theirs.memory.device, from) }?;
                }
            }
            scratch.stream.synchronize()
        };
        copy().map_err(|error| self.device(error))
    }

    /// Another device that has all of some pages as they are at home.
    pub(super) fn peer_with(&self, device: Device, pages: &Range<u64>) -> Option<Device> {
        let has_all = |other: &Device| {
            *other != device
                && pages.clone().all(|page| {
                    let state = &self.pages[page as usize];
                    state.is_held_by(*other)
                        && !state.is_behind(*other)
                        && self.compared[*other][page as usize] == self.doubt
                })
        };
        let is_peer = |other: &Device| {
            let mine = self.replicas[device].as_ref().map(|replica| replica.memory.device.id().backend);
            let theirs = self.replicas[*other].as_ref().map(|replica| replica.memory.device.id().backend);
            mine.is_some() && mine == theirs
        };
        (0..self.replicas.len()).find(|other| has_all(other) && is_peer(other) && self.has_twins_or_none(*other, pages))
    }

    /// Whether what a device shows of some pages is what it has released: without a twin nobody writes there.
    pub(super) fn has_twins_or_none(&self, device: Device, pages: &Range<u64>) -> bool {
        let Some(replica) = &self.replicas[device] else { return false };
        pages.clone().all(|page| replica.has(Part::Now, replica.frame_of(page)))
    }

    /// Pages that the device may have changed since its last release: its bytes stay on top.
    pub(super) fn merge(&mut self, device: Device, pages: &[u64], scratch: &Scratch) -> Result<()> {
        let place = |number: usize| number as u64 * self.page_bytes;
        let mut list: Vec<(Range<u64>, u64)> = Vec::new();
        for (number, page) in pages.iter().enumerate() {
            let bytes = self.bytes_of(&(*page..page + 1));
            match list.last_mut() {
                Some((run, _)) if run.end == bytes.start => run.end = bytes.end,
                _ => list.push((bytes, place(number))),
            }
        }
        self.read_pages(device, &list, scratch.incoming.slice())?;
        step(Point::MergeRead, self.path())?;
        let replica = self.existing(device)?;
        let entries: Vec<_> = pages
            .iter()
            .enumerate()
            .map(|(number, page)| {
                let here = self.bytes_of(&(*page..page + 1));
                let [current, twin] = [Part::Now, Part::Base].map(|part| replica.slice(part, &here).ptr().0);
                let incoming = scratch.incoming.ptr().0 + place(number);
                merge::Entry { current, twin, incoming, len: here.end - here.start }
            })
            .collect();
        let run = || -> bifolio_device::Result<Vec<u8>> {
            let table = merge::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            scratch.stream.upload(place, &table)?;
            let flags = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            let all = Base::Addresses;
            let operands = merge::Operands { current: all, twin: all, incoming: all };
            // SAFETY: the entries are pages of the replica and of scratch memory, which stay until the stream is
            // waited for; no kernel of the program's runs on the range meanwhile, as it is being acquired.
            unsafe { replica.memory.kernels.merge(&scratch.stream, operands, place, flags) }?;
            let mut host = vec![0; entries.len() * 4];
            scratch.stream.download(&mut host, flags)?;
            Ok(host)
        };
        let flags = run().map_err(|error| self.device(error))?;
        for flags in flags.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])) {
            self.counts.merged += u64::from(flags & merge::OWN_CHANGED != 0);
            self.counts.races += u64::from(flags & merge::RACE != 0);
        }
        Ok(())
    }

    /// Pages that are written get twins.
    pub(super) fn make_twins(&mut self, device: Device, range: &Range<u64>) -> Result<()> {
        let mut fresh = Vec::new();
        for frame in Replica::frames_of(range) {
            if !self.existing(device)?.has(Part::Base, frame) {
                self.map(device, Part::Base, frame)?;
                fresh.push(frame as u64);
            }
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let replica = self.existing(device)?;
        replica.memory.with_scratch(|scratch| {
            for run in runs(fresh.iter().copied()) {
                let all = run.start * FRAME_BYTES..run.end * FRAME_BYTES;
                let (to, from) = (replica.slice(Part::Base, &all), replica.slice(Part::Now, &all));
                // SAFETY: both are mapped, and the stream is waited for.
                unsafe { scratch.stream.copy_on_device(to, from) }.map_err(|error| self.device(error))?;
            }
            scratch.stream.synchronize().map_err(|error| self.device(error))
        })
    }
}
