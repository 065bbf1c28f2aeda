//! One file: its pages and replicas, and what happens in which order. Everything here runs under the file's lock.

use crate::home::{Home, write_masked};
use crate::memory::{INCOMING_BYTES, Memory, Scratch};
use crate::page::{Device, Flush, Page};
use crate::replica::{Part, Replica, runs};
use crate::{Error, ErrorKind, Mode, Report, Result};
use bifolio_device::{DeviceSlice, FRAME_BYTES};
use bifolio_io::{ReadExtent, ReadOptions};
use bifolio_kernels::{Base, byte_mask, merge, page_diff};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Runs of pages that are shorter than this are read together.
const BATCHED_BYTES_MAX: u64 = 256 << 10;

/// What has happened to pages, for [`crate::Stats`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) fetched: u64,
    pub(crate) from_peers: u64,
    pub(crate) merged: u64,
    pub(crate) races: u64,
    pub(crate) released: u64,
    pub(crate) flushed: u64,
    pub(crate) compared: u64,
    pub(crate) evicted: u64,
}

#[derive(Debug, Clone)]
struct Settled {
    range: Range<u64>,
    doubt: u32,
    writable: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    home: Home,
    size: u64,
    page_bytes: u64,
    mode: Mode,
    pages: Vec<Page>,
    replicas: Vec<Option<Replica>>,
    /// Counts the times at which something unknown may have changed the file.
    doubt: u32,
    /// By device and page: up to which doubt its content was compared with home's.
    compared: Vec<Vec<u32>>,
    /// By device: a range that is up to date and mapped as of a doubt, so that acquiring it again looks at no
    /// page.
    settled: Vec<Option<Settled>>,
    pub(crate) counts: Counts,
}

impl State {
    pub(crate) fn new(home: Home, devices: usize, page_bytes: u64, mode: Mode) -> Result<Self> {
        let size = home.file.size().map_err(|error| Error::reading(home.path(), error))?;
        let replicas = (0..devices).map(|_| None).collect();
        let mut state = Self {
            home,
            size: 0,
            page_bytes,
            mode,
            pages: vec![],
            replicas,
            doubt: 1,
            compared: vec![vec![]; devices],
            settled: vec![None; devices],
            counts: Counts::default(),
        };
        state.resize(size);
        Ok(state)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        self.home.path()
    }

    /// Follows the file's growth and truncation. A page whose end has moved has changed.
    fn resize(&mut self, size: u64) {
        let pages = size.div_ceil(self.page_bytes) as usize;
        let boundary = (self.size.min(size) / self.page_bytes) as usize;
        self.pages.resize_with(pages, Page::new);
        for compared in &mut self.compared {
            compared.resize(pages, 0);
        }
        if self.size != size
            && let Some(page) = self.pages.get_mut(boundary)
        {
            page.changed_at_home();
            self.settled.fill(None);
        }
        self.size = size;
    }

    /// The device's replica, with addresses for all of the file.
    pub(crate) fn replica(&mut self, device: Device, memory: &Arc<Memory>, len: u64) -> Result<&Replica> {
        if self.replicas[device].is_none() {
            let replica = Replica::new(memory, self.page_bytes, len.max(1));
            self.replicas[device] = Some(replica.map_err(|error| Error::device(self.home.path(), error))?);
        }
        self.existing(device)
    }

    fn existing(&self, device: Device) -> Result<&Replica> {
        self.replicas[device]
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::BadUse, self.path(), "nothing of it is mapped there"))
    }

    fn existing_mut(&mut self, device: Device) -> Result<&mut Replica> {
        let missing = Error::new(ErrorKind::BadUse, self.home.path(), "nothing of it is mapped there");
        self.replicas[device].as_mut().ok_or(missing)
    }

    fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.page_bytes
            ..range.end.min(self.size).div_ceil(self.page_bytes).max(range.start / self.page_bytes)
    }

    fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start * self.page_bytes..(pages.end * self.page_bytes).min(self.size)
    }

    // --- acquire -------------------------------------------------------------------------------------------

    /// Brings a range on a device up to date, and keeps it there until it is released.
    pub(crate) fn acquire(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<Report> {
        let started = Instant::now();
        let before = self.counts;
        self.look()?;
        let frames = Replica::frames_of(range);
        self.existing_mut(device)?.pin(frames.clone());
        let outcome = self.bring(device, range, writable);
        if outcome.is_err() {
            self.existing_mut(device)?.unpin(frames);
        }
        outcome.map(|()| Report::between(&before, &self.counts, started))
    }

    fn bring(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<()> {
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
        memory.with_scratch(|scratch| self.compare_with_home(device, &pages, scratch))?;
        let behind: BTreeSet<u64> = pages.clone().filter(|page| self.pages[*page as usize].is_behind(device)).collect();
        self.counts.hits += pages.end - pages.start - behind.len() as u64;
        if !behind.is_empty() {
            let is_pending = |page: &u64| self.pages[*page as usize].pending().next().is_some();
            let pending = behind.iter().copied().filter(is_pending).collect();
            // Other devices' scratch memory is taken for it, so not while this one's is held.
            self.flush(&pending)?;
            memory.with_scratch(|scratch| self.fetch(device, &behind, scratch))?;
        }
        if writable {
            self.make_twins(device, range)?;
        }
        self.settled[device] = Some(Settled { range: range.clone(), doubt: self.doubt, writable });
        Ok(())
    }

    /// Somebody has changed pages: whoever was settled, except for who did it, has to look again.
    fn unsettle(&mut self, except: Option<Device>) {
        for (device, settled) in self.settled.iter_mut().enumerate() {
            if Some(device) != except {
                *settled = None;
            }
        }
    }

    /// Looks whether something unknown has happened to the file.
    fn look(&mut self) -> Result<()> {
        let unchanged = self.home.look().map_err(|error| Error::reading(self.home.path(), error))?;
        if !unchanged {
            self.doubt += 1;
            let size = self.home.file.size().map_err(|error| Error::reading(self.home.path(), error))?;
            self.resize(size);
        }
        Ok(())
    }

    fn map(&mut self, device: Device, part: Part, frame: usize) -> Result<()> {
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
    fn evict(&mut self, device: Device, frame: usize) -> Result<()> {
        let pages: Vec<u64> =
            self.existing(device)?.pages_of(frame).filter(|page| (*page as usize) < self.pages.len()).collect();
        let pending = pages.iter().copied().filter(|page| self.pages[*page as usize].is_pending(device)).collect();
        self.flush(&pending)?;
        for page in pages {
            self.pages[page as usize].dropped(device);
            self.counts.evicted += 1;
        }
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
    fn compare_with_home(&mut self, device: Device, pages: &Range<u64>, scratch: &Scratch) -> Result<()> {
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

    fn compare_chunk(&self, device: Device, pages: &Range<u64>, scratch: &Scratch) -> Result<BTreeSet<u64>> {
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

    fn origin_differs(
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
    fn differences(
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
    fn read_home<'a>(&self, device: Device, bytes: &Range<u64>, scratch: &'a Scratch) -> Result<DeviceSlice<'a>> {
        let incoming =
            Scratch::first(&scratch.incoming, bytes.end - bytes.start).map_err(|error| self.device(error))?;
        self.read_into(device, bytes, incoming)?;
        Ok(incoming)
    }

    fn read_into(&self, device: Device, bytes: &Range<u64>, to: DeviceSlice<'_>) -> Result<()> {
        let router = &self.existing(device)?.memory.router;
        let length = bytes.end - bytes.start;
        let report = router.read(&self.home.file, bytes.start, Some(length), to, &ReadOptions::default());
        match report.map_err(|error| Error::reading(self.path(), error))?.bytes {
            read if read == length => Ok(()),
            read => Err(self.shorter(read, length, bytes.start)),
        }
    }

    fn shorter(&self, read: u64, wanted: u64, at: u64) -> Error {
        let detail = format!("it has become shorter: {read} of {wanted} bytes were there from {at} on; acquire again");
        Error::new(ErrorKind::Read, self.path(), detail)
    }

    /// Fetches pages that are behind; nothing of them is pending.
    fn fetch(&mut self, device: Device, pages: &BTreeSet<u64>, scratch: &Scratch) -> Result<()> {
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
        for page in pages {
            self.pages[*page as usize].fetched(device);
            self.compared[device][*page as usize] = self.doubt;
        }
        self.counts.fetched += pages.len() as u64;
        Ok(())
    }

    /// Reads pages of the file to places in a device's memory: long runs each by a request, many short ones by
    /// one for all.
    fn read_pages(&self, device: Device, list: &[(Range<u64>, u64)], to: DeviceSlice<'_>) -> Result<()> {
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
    fn fill(&mut self, device: Device, pages: &BTreeSet<u64>, scratch: &Scratch) -> Result<()> {
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

    fn copy_from_peer(&self, device: Device, peer: Device, bytes: &Range<u64>, scratch: &Scratch) -> Result<()> {
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
    fn peer_with(&self, device: Device, pages: &Range<u64>) -> Option<Device> {
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
    fn has_twins_or_none(&self, device: Device, pages: &Range<u64>) -> bool {
        let Some(replica) = &self.replicas[device] else { return false };
        pages.clone().all(|page| replica.has(Part::Now, replica.frame_of(page)))
    }

    /// Pages that the device may have changed since its last release: its bytes stay on top.
    fn merge(&mut self, device: Device, pages: &[u64], scratch: &Scratch) -> Result<()> {
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
    fn make_twins(&mut self, device: Device, range: &Range<u64>) -> Result<()> {
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

    // --- release -------------------------------------------------------------------------------------------

    /// Publishes what a device has changed in a range.
    pub(crate) fn release(&mut self, device: Device, range: &Range<u64>, writable: bool) -> Result<Report> {
        let started = Instant::now();
        let before = self.counts;
        let outcome = if writable { self.publish(device, range) } else { Ok(()) };
        let frames = Replica::frames_of(range);
        if !self.existing_mut(device)?.unpin(frames) {
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
                    let copied =
                        self.existing(device)?.copy(&scratch.stream, &chunk.clone().collect(), Part::Now, Part::Base);
                    copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.device(error))
                })?;
                self.note_released(device, chunk.clone());
                self.note_flushed(device, chunk);
            }
        }
        memory.with_scratch(|scratch| {
            let fresh = kept.iter().copied().filter(|page| !self.pages[*page as usize].is_pending(device)).collect();
            let replica = self.existing(device)?;
            let copy = || -> bifolio_device::Result<()> {
                replica.copy(&scratch.stream, &fresh, Part::Base, Part::Origin)?;
                replica.copy(&scratch.stream, &kept, Part::Now, Part::Base)?;
                scratch.stream.synchronize()
            };
            copy().map_err(|error| self.device(error))
        })?;
        self.note_released(device, kept.iter().copied());
        if self.mode == Mode::Eager { self.flush(&kept) } else { Ok(()) }
    }

    /// Changed pages whose origin can be kept, as there is memory for it, and the others.
    fn find_room(&mut self, device: Device, changed: &BTreeSet<u64>) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
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

    fn note_released(&mut self, device: Device, pages: impl IntoIterator<Item = u64>) {
        let devices = self.replicas.len();
        self.unsettle(Some(device));
        for page in pages {
            self.pages[page as usize].released(device, devices);
            self.counts.released += 1;
        }
    }

    fn note_flushed(&mut self, device: Device, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            self.pages[page as usize].flushed(device);
            self.counts.flushed += 1;
        }
    }

    /// Pages whose bytes and masks are moved at a time.
    fn pages_at_a_time(&self) -> u64 {
        (INCOMING_BYTES / self.page_bytes / 4).max(1)
    }

    fn changed_since_release(&self, device: Device, range: &Range<u64>, scratch: &Scratch) -> Result<BTreeSet<u64>> {
        let replica = self.existing(device)?;
        let with_twins =
            Replica::frames_of(range).filter(|frame| replica.has(Part::Base, *frame)).map(|frame| frame as u64);
        let mut changed = BTreeSet::new();
        for frames in runs(with_twins) {
            let bytes = (frames.start * FRAME_BYTES).max(range.start / self.page_bytes * self.page_bytes)
                ..(frames.end * FRAME_BYTES).min(self.size);
            if bytes.start < bytes.end {
                let base = replica.slice(Part::Base, &bytes);
                changed.extend(self.differences(replica, Part::Now, &bytes, base, scratch)?);
            }
        }
        Ok(changed)
    }

    /// Takes back what a device has changed in an acquired range and not released.
    pub(crate) fn discard(&mut self, device: Device, range: &Range<u64>, writable: bool) {
        let Ok(replica) = self.existing_mut(device) else { return };
        replica.unpin(Replica::frames_of(range));
        if !writable {
            return;
        }
        let (memory, frames) = (Arc::clone(&replica.memory), Replica::frames_of(range));
        // A failure of the device leaves nothing to take back.
        let _ = memory.with_scratch(|scratch| {
            let changed = self.changed_since_release(device, range, scratch)?;
            let copied = self.existing(device)?.copy(&scratch.stream, &changed, Part::Base, Part::Now);
            copied.map_err(|error| self.device(error))
        });
        debug_assert!(!frames.is_empty());
    }

    // --- home ----------------------------------------------------------------------------------------------

    /// Writes to the file what was released of some pages, by all devices, in their order. After a failure what
    /// was not written stays pending.
    pub(crate) fn flush(&mut self, pages: &BTreeSet<u64>) -> Result<()> {
        for device in 0..self.replicas.len() {
            let mine: BTreeSet<u64> =
                pages.iter().copied().filter(|page| self.pages[*page as usize].is_pending(device)).collect();
            if mine.is_empty() {
                continue;
            }
            let memory = Arc::clone(&self.existing(device)?.memory);
            for run in runs(mine) {
                for chunk in chunks(&run, self.pages_at_a_time()) {
                    memory.with_scratch(|scratch| self.flush_chunk(device, &chunk, scratch))?;
                }
            }
        }
        Ok(())
    }

    fn flush_chunk(&mut self, device: Device, pages: &Range<u64>, scratch: &Scratch) -> Result<()> {
        self.write_home(device, pages, [Part::Base, Part::Origin], scratch)?;
        self.note_flushed(device, pages.clone());
        self.drop_origins(device, pages)
    }

    /// Writes to the file the bytes in which two parts of a replica differ, from the first of them.
    fn write_home(&mut self, device: Device, pages: &Range<u64>, parts: [Part; 2], scratch: &Scratch) -> Result<()> {
        let bytes = self.bytes_of(pages);
        let (content, mut masks) = self.released_bytes(device, pages, parts, scratch)?;
        for page in pages.clone().filter(|page| self.pages[*page as usize].how_to_flush(device) == Flush::Careful) {
            let here = self.bytes_of(&(page..page + 1));
            let origin = self.download(device, parts[1], &here, scratch)?;
            let mut home = vec![0; origin.len()];
            let read = std::os::unix::fs::FileExt::read_exact_at(self.home.file.buffered(), &mut home, here.start);
            read.map_err(|error| Error::writing(self.path(), error))?;
            let first = ((here.start - bytes.start) / 8) as usize;
            for at in (0..origin.len()).filter(|at| origin[*at] != home[*at]) {
                masks[first + at / 8] &= !(1 << (at % 8));
            }
        }
        let path = self.path().to_owned();
        let written = self.home.write(|file| write_masked(file, bytes.start, &content, &masks));
        written.map_err(|error| Error::writing(&path, error))
    }

    /// What a device has released of some pages, and which bytes of it home lacks.
    fn released_bytes(
        &self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        scratch: &Scratch,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let replica = self.existing(device)?;
        let bytes = self.bytes_of(pages);
        let mask_bytes = byte_mask::mask_bytes(self.page_bytes);
        let entries: Vec<_> = pages
            .clone()
            .map(|page| {
                let here = self.bytes_of(&(page..page + 1));
                let [current, twin] = parts.map(|part| replica.slice(part, &here).ptr().0);
                let mask = scratch.incoming.ptr().0 + (page - pages.start) * mask_bytes;
                byte_mask::Entry { current, twin, mask, len: here.end - here.start }
            })
            .collect();
        let run = || -> bifolio_device::Result<Vec<u8>> {
            let table = byte_mask::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            scratch.stream.upload(place, &table)?;
            let counts = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            let all = Base::Addresses;
            let operands = byte_mask::Operands { current: all, twin: all, mask: all };
            // SAFETY: as for `merge`; the masks lie in scratch memory.
            unsafe { replica.memory.kernels.byte_mask(&scratch.stream, operands, place, counts) }?;
            let mut masks = vec![0; (bytes.end - bytes.start).div_ceil(8) as usize];
            scratch
                .stream
                .download(&mut masks, Scratch::first(&scratch.incoming, (bytes.end - bytes.start).div_ceil(8))?)?;
            Ok(masks)
        };
        let masks = run().map_err(|error| self.device(error))?;
        Ok((self.download(device, parts[0], &bytes, scratch)?, masks))
    }

    fn download(&self, device: Device, part: Part, bytes: &Range<u64>, scratch: &Scratch) -> Result<Vec<u8>> {
        let mut host = vec![0; (bytes.end - bytes.start) as usize];
        let copied = scratch.stream.download(&mut host, self.existing(device)?.slice(part, bytes));
        copied.map_err(|error| self.device(error))?;
        Ok(host)
    }

    /// Gives the memory of origins back that no pending page needs.
    fn drop_origins(&mut self, device: Device, pages: &Range<u64>) -> Result<()> {
        let replica = self.existing(device)?;
        let frames: BTreeSet<usize> = pages.clone().map(|page| replica.frame_of(page)).collect();
        for frame in frames {
            let mut of_frame =
                self.existing(device)?.pages_of(frame).filter(|page| (*page as usize) < self.pages.len());
            if of_frame.all(|page| !self.pages[page as usize].is_pending(device)) {
                let path = self.home.path().to_owned();
                self.existing_mut(device)?.unmap(Part::Origin, frame).map_err(|error| Error::device(&path, error))?;
            }
        }
        Ok(())
    }

    /// Everything that was released of a range reaches the file.
    pub(crate) fn flush_range(&mut self, range: &Range<u64>) -> Result<()> {
        let pages = self.pages_of(range);
        let pending = pages.filter(|page| self.pages[*page as usize].pending().next().is_some()).collect();
        self.flush(&pending)
    }

    /// Makes the file durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.flush_range(&(0..self.size))?;
        let path = self.path().to_owned();
        self.home.file.buffered().sync_data().map_err(|error| Error::writing(&path, error))
    }

    /// A CPU's read: what was released is home by then.
    pub(crate) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.look()?;
        let end = offset.saturating_add(buffer.len() as u64).min(self.size);
        if offset >= end {
            return Ok(0);
        }
        self.flush_range(&(offset..end))?;
        let wanted = (end - offset) as usize;
        let read = std::os::unix::fs::FileExt::read_exact_at(self.home.file.buffered(), &mut buffer[..wanted], offset);
        let path = self.path();
        read.map_err(|error| {
            Error::new(ErrorKind::Read, path, format!("reading {wanted} bytes at {offset} failed: {error}"))
        })?;
        Ok(wanted)
    }

    /// A CPU's write, page by page known.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.look()?;
        let path = self.path().to_owned();
        let written = self.home.write(|file| std::os::unix::fs::FileExt::write_all_at(file, bytes, offset));
        written.map_err(|error| {
            Error::new(ErrorKind::Write, &path, format!("writing {} bytes at {offset} failed: {error}", bytes.len()))
        })?;
        if end > self.size {
            self.resize(end);
        }
        self.unsettle(None);
        for page in self.pages_of(&(offset..end)) {
            self.pages[page as usize].changed_at_home();
        }
        Ok(())
    }

    /// Pages by state on a device: held, behind, pending.
    pub(crate) fn pages_by_state(&self, device: Device) -> (u64, u64, u64) {
        let count = |is: &dyn Fn(&Page) -> bool| self.pages.iter().filter(|page| is(page)).count() as u64;
        (
            count(&|page| page.is_held_by(device)),
            count(&|page| page.is_held_by(device) && page.is_behind(device)),
            count(&|page| page.is_pending(device)),
        )
    }

    /// Drops a device's replica; what was released reaches home first.
    pub(crate) fn drop_replica(&mut self, device: Device) -> Result<()> {
        if self.replicas[device].is_none() {
            return Ok(());
        }
        for frame in self.existing(device)?.mapped_frames() {
            self.evict(device, frame)?;
        }
        self.replicas[device] = None;
        Ok(())
    }

    fn device(&self, error: bifolio_device::Error) -> Error {
        Error::device(self.path(), error)
    }
}

/// A run of pages in pieces of at most `most`.
fn chunks(run: &Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let run = run.clone();
    (run.start..run.end).step_by(most as usize).map(move |start| start..run.end.min(start + most))
}
