//! Fetching pages: memory is made for them, and what the device has of them is looked at, while earlier ones
//! are read.

use super::State;
use crate::fault::{Point, step};
use crate::memory::Scratch;
use crate::page::{Device, Page};
use crate::replica::{Part, runs};
use crate::{Error, ErrorKind, Result};
use bifolio_device::DeviceSlice;
use bifolio_io::{OpenFile, ReadExtent, ReadOptions, Router};
use bifolio_kernels::{Addressing, merge};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread;

/// Bytes whose frames are prepared at first; the others are, while these are read. Long requests are read best.
const FIRST_PORTION_BYTES: u64 = 64 << 20;

/// Less than this is read by the thread that acquires, as starting another costs more.
const ALONE_BYTES_MAX: u64 = 16 << 20;

/// Runs of pages that are shorter than this are read together.
const BATCHED_BYTES_MAX: u64 = 256 << 10;

/// Pages are merged by multiples of this.
const WORD_BYTES: u64 = 16;

/// Bytes of the file, and where they go.
type Read = (Range<u64>, u64);

/// Where pages are read from.
pub(super) struct Source {
    router: Arc<Router>,
    file: Arc<OpenFile>,
}

impl Source {
    /// Reads bytes of the file to places in a device's memory: long runs each by a request, many short ones by
    /// one for all.
    pub(super) fn read(&self, list: &[Read], to: DeviceSlice<'_>) -> Result<()> {
        let total: u64 = list.iter().map(|(bytes, _)| bytes.end - bytes.start).sum();
        if !is_scattered(list.len(), total) {
            return list.iter().try_for_each(|(bytes, place)| self.read_run(bytes, *place, to));
        }
        let extent =
            |(bytes, place): &Read| ReadExtent { offset: bytes.start, length: bytes.end - bytes.start, place: *place };
        let extents: Vec<_> = list.iter().map(extent).collect();
        let report = self.router.read_batch(&self.file, &extents, to, &ReadOptions::default());
        match report.map_err(|error| Error::reading(self.file.path(), error))?.bytes {
            read if read == total => Ok(()),
            read => Err(self.shorter(read, total, list[0].0.start)),
        }
    }

    fn read_run(&self, bytes: &Range<u64>, place: u64, to: DeviceSlice<'_>) -> Result<()> {
        let length = bytes.end - bytes.start;
        let to = to.part(place, length).map_err(|error| Error::device(self.file.path(), error))?;
        let report = self.router.read(&self.file, bytes.start, Some(length), to, &ReadOptions::default());
        match report.map_err(|error| Error::reading(self.file.path(), error))?.bytes {
            read if read == length => Ok(()),
            read => Err(self.shorter(read, length, bytes.start)),
        }
    }

    fn shorter(&self, read: u64, wanted: u64, at: u64) -> Error {
        let detail = format!("it has become shorter: {read} of {wanted} bytes were there from {at} on; acquire again");
        Error::new(ErrorKind::Read, self.file.path(), detail)
    }
}

/// Whether runs are too short to be read one by one.
fn is_scattered(runs: usize, bytes: u64) -> bool {
    runs > 1 && bytes / (runs as u64) < BATCHED_BYTES_MAX
}

/// What is done with pages once they are read.
#[derive(Debug, Default)]
struct Plan {
    /// Pages that are read to their places, and of those the ones of which the device had something.
    direct: Vec<u64>,
    held: Vec<u64>,
    /// Pages with changes of the device's own, or that may have them: they are merged.
    own: Vec<u64>,
    /// Frames whose twins are new.
    fresh: Vec<u64>,
    /// Frames whose memory is, with what somebody else has left there.
    new: Vec<u64>,
}

impl State {
    pub(super) fn source(&self, device: Device) -> Result<Source> {
        let router = Arc::clone(&self.existing(device)?.memory.router);
        Ok(Source { router, file: Arc::clone(&self.home.file) })
    }

    /// Gives frames memory, and twins if they are written, and fetches those of their pages that are behind, both
    /// in ascending order; nothing of them is pending.
    pub(super) fn fetch(&mut self, device: Device, frames: &[usize], behind: &[u64], writable: bool) -> Result<()> {
        let mut plan = Plan::default();
        let outcome = self.prepare_and_read(device, frames, behind, writable, &mut plan);
        let memory = Arc::clone(&self.existing(device)?.memory);
        let outcome = outcome.and_then(|()| step(Point::FillRead, self.path()));
        if let Err(error) = outcome {
            self.undo(device, &plan);
            return Err(error);
        }
        let outcome = memory.with_scratch(|scratch| self.finish(device, &plan, scratch));
        let outcome = outcome.and_then(|()| step(Point::FetchRead, self.path()));
        if outcome.is_err() {
            self.undo(device, &plan);
        }
        outcome?;
        for page in behind {
            self.pages[*page as usize].fetched(device);
            self.compared[device][*page as usize] = self.doubt;
        }
        if let (Some(first), Some(last)) = (behind.first(), behind.last()) {
            self.forget_written(*first..*last + 1);
        }
        self.counts.fetched += behind.len() as u64;
        Ok(())
    }

    fn prepare_and_read(
        &mut self,
        device: Device,
        frames: &[usize],
        behind: &[u64],
        writable: bool,
        plan: &mut Plan,
    ) -> Result<()> {
        let source = self.source(device)?;
        let replica = self.existing(device)?;
        let frame_bytes = replica.frame_bytes();
        // SAFETY: the range of addresses stays as long as the file's lock is held, and only parts of it are used
        // in which memory was mapped before; their frames are pinned.
        let all = unsafe { replica.all() };
        if behind.len() as u64 * self.page_bytes <= ALONE_BYTES_MAX {
            let list = self.prepare(device, frames, behind, writable, plan)?;
            return source.read(&list, all);
        }
        thread::scope(|scope| {
            let (to_read, lists) = mpsc::channel::<Vec<Read>>();
            let reader = scope.spawn(move || lists.into_iter().try_for_each(|list| source.read(&list, all)));
            let first = (FIRST_PORTION_BYTES / frame_bytes).max(1) as usize;
            let (first, rest) = frames.split_at(first.min(frames.len()));
            let prepared = [first, rest].into_iter().try_for_each(|portion| {
                let list = self.prepare(device, portion, behind, writable, plan)?;
                // A reader that has failed has said so.
                let _ = list.is_empty() || to_read.send(list).is_ok();
                Ok(())
            });
            drop(to_read);
            let panicked = |_| Err(Error::new(ErrorKind::Device, self.path(), "a reading thread panicked"));
            let read = reader.join().unwrap_or_else(panicked);
            prepared.and(read)
        })
    }

    /// Gives frames memory, and finds out what is to be done with those of their pages that are behind: what is
    /// to be read to its place.
    fn prepare(
        &mut self,
        device: Device,
        frames: &[usize],
        behind: &[u64],
        writable: bool,
        plan: &mut Plan,
    ) -> Result<Vec<Read>> {
        let (Some(&first), Some(&last)) = (frames.first(), frames.last()) else { return Ok(vec![]) };
        for &frame in frames {
            step(Point::AcquireMapped, self.path())?;
            if !self.existing(device)?.has(Part::Now, frame) {
                self.map(device, Part::Now, frame)?;
                plan.new.push(frame as u64);
            }
            if writable && !self.existing(device)?.has(Part::Base, frame) {
                self.map(device, Part::Base, frame)?;
                plan.fresh.push(frame as u64);
            }
        }
        let replica = self.existing(device)?;
        let bytes = replica.bytes_of(&(first as u64..last as u64 + 1));
        let pages = bytes.start / self.page_bytes..bytes.end / self.page_bytes;
        let at = |page: u64| behind.partition_point(|other| *other < page);
        let here = &behind[at(pages.start)..at(pages.end)];
        // Without a twin there are no changes to keep.
        let is_held = |page: &&u64| {
            let frame = replica.frame_of(**page);
            let has_twin = replica.has(Part::Base, frame) && plan.fresh.binary_search(&(frame as u64)).is_err();
            self.pages[**page as usize].is_held_by(device) && has_twin
        };
        let held: Vec<u64> = here.iter().filter(is_held).copied().collect();
        let mut own = self.with_own_changes(device, &held)?;
        // A kernel of another mapping's may be storing into those at this moment.
        own.extend(held.iter().filter(|page| self.uses(device, **page) > 0));
        let (mut from_home, mut previous) = (Vec::new(), held.iter().copied().peekable());
        for run in runs(here.iter().copied().filter(|page| !own.contains(page))) {
            let bytes = self.bytes_of(&run);
            while previous.next_if(|page| *page < run.start).is_some() {}
            let is_held = previous.peek().is_some_and(|page| *page < run.end);
            match self.peer_with(device, &run).filter(|_| !is_held) {
                Some(peer) => {
                    let memory = Arc::clone(&self.existing(device)?.memory);
                    memory.with_scratch(|scratch| self.copy_from_peer(device, peer, &bytes, scratch))?;
                    self.counts.from_peers += run.end - run.start;
                }
                None => from_home.push((bytes.clone(), bytes.start)),
            }
            plan.direct.extend(run);
        }
        plan.held.extend(held.iter().filter(|page| !own.contains(page)));
        plan.own.extend(own);
        Ok(from_home)
    }

    /// Those of some pages, with twins, that the device has changed since its last release; all of them where
    /// merging costs no more than finding out.
    fn with_own_changes(&self, device: Device, held: &[u64]) -> Result<BTreeSet<u64>> {
        let (Some(first), Some(last)) = (held.first(), held.last()) else { return Ok(BTreeSet::new()) };
        if is_scattered(runs(held.iter().copied()).len(), held.len() as u64 * self.page_bytes) {
            return Ok(held.iter().copied().collect());
        }
        let hull = self.bytes_of(&(*first..last + 1));
        let memory = &self.existing(device)?.memory;
        let mut changed = memory.with_scratch(|scratch| self.changed_since_release(device, &hull, scratch))?;
        changed.retain(|page| held.binary_search(page).is_ok());
        Ok(changed)
    }

    /// Twins of what was read, and the pages that are merged.
    fn finish(&mut self, device: Device, plan: &Plan, scratch: &Scratch) -> Result<()> {
        for group in plan.own.chunks((scratch.incoming.len() / self.page_bytes) as usize) {
            self.merge(device, group, scratch)?;
        }
        let replica = self.existing(device)?;
        let finish = || -> bifolio_device::Result<()> {
            // Bytes of the last page behind the end of the file are zeroes, as in a mapping of it.
            let last = plan.direct.last().max(plan.own.last());
            let end = last.map_or(0, |page| (page + 1) * self.page_bytes).min(replica.len());
            if self.size < end {
                let tail = self.size..end;
                for part in [Part::Now, Part::Base] {
                    if replica.has(part, replica.frame_of(self.size / self.page_bytes)) {
                        // SAFETY: the page has memory.
                        unsafe { scratch.stream.fill(replica.slice(part, &tail), 0) }?;
                    }
                }
            }
            // And so is what was acquired behind it.
            for run in runs(plan.new.iter().copied()) {
                let all = replica.bytes_of(&run);
                let behind = all.start.max(self.size.next_multiple_of(self.page_bytes))..all.end;
                if !behind.is_empty() {
                    // SAFETY: the frames have memory, and the stream is waited for.
                    unsafe { scratch.stream.fill(replica.slice(Part::Now, &behind), 0) }?;
                }
            }
            for run in runs(plan.fresh.iter().copied()) {
                let all = replica.bytes_of(&run);
                let (to, from) = (replica.slice(Part::Base, &all), replica.slice(Part::Now, &all));
                // SAFETY: both are mapped, and the stream is waited for.
                unsafe { scratch.stream.copy_on_device(to, from) }?;
            }
            let with_older_twin = |page: &u64| {
                let frame = replica.frame_of(*page);
                replica.has(Part::Base, frame) && plan.fresh.binary_search(&(frame as u64)).is_err()
            };
            let direct = plan.direct.iter().copied().filter(with_older_twin);
            replica.copy(&scratch.stream, direct, Part::Now, Part::Base)?;
            scratch.stream.synchronize()
        };
        finish().map_err(|error| self.device(error))
    }

    /// After a failure: what was not read in full must not look like changes of the device's own.
    fn undo(&mut self, device: Device, plan: &Plan) {
        let Ok(replica) = self.existing_mut(device) else { return };
        // A device that fails here has nothing left to publish.
        for frame in &plan.fresh {
            let _ = replica.unmap(Part::Base, *frame as usize);
        }
        for frame in &plan.new {
            let _ = replica.unmap(Part::Now, *frame as usize);
        }
        let memory = Arc::clone(&replica.memory);
        let _ = memory.with_scratch(|scratch| {
            let held = plan.held.iter().copied();
            let copied = self.existing(device)?.copy(&scratch.stream, held, Part::Base, Part::Now);
            copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.device(error))
        });
    }

    fn copy_from_peer(&self, device: Device, peer: Device, bytes: &Range<u64>, scratch: &Scratch) -> Result<()> {
        let (mine, theirs) = (self.existing(device)?, self.existing(peer)?);
        let copy = || -> bifolio_device::Result<()> {
            for part in [Part::Base, Part::Now] {
                let with_part = |frame: &usize| theirs.has(Part::Base, *frame) == (part == Part::Base);
                for run in runs(theirs.frames_of(bytes).filter(with_part).map(|frame| frame as u64)) {
                    let run = theirs.bytes_of(&run);
                    let here = run.start.max(bytes.start)..run.end.min(bytes.end);
                    let (to, from) = (mine.slice(Part::Now, &here), theirs.slice(part, &here));
                    // SAFETY: both have memory there, and the file's lock keeps it until the stream is waited for.
                    unsafe { scratch.stream.copy_from_peer(to, &theirs.memory.device, from) }?;
                }
            }
            scratch.stream.synchronize()
        };
        copy().map_err(|error| self.device(error))
    }

    /// Another device of the same kind that has all of some pages as they are at home.
    fn peer_with(&self, device: Device, pages: &Range<u64>) -> Option<Device> {
        let backend = |device: Device| Some(self.replicas[device].as_ref()?.memory.device.id().backend);
        let is_peer = |other: &Device| *other != device && backend(*other) == backend(device);
        let has_all = |other: &Device| pages.clone().all(|page| self.is_up_to_date(*other, page));
        (0..self.replicas.len()).filter(is_peer).find(has_all)
    }

    /// Whether a device has a page as it is at home, with what it has itself released, as far as is known at the
    /// latest look.
    pub(super) fn is_up_to_date(&self, device: Device, page: u64) -> bool {
        let is_current = |state: &Page| state.is_held_by(device) && !state.is_behind(device);
        self.pages.get(page as usize).is_some_and(is_current) && self.compared[device][page as usize] == self.doubt
    }

    /// Pages that the device may have changed since its last release: its bytes stay on top.
    fn merge(&mut self, device: Device, pages: &[u64], scratch: &Scratch) -> Result<()> {
        let place = |number: usize| number as u64 * self.page_bytes;
        let mut list: Vec<Read> = Vec::new();
        for (number, page) in pages.iter().enumerate() {
            let bytes = self.bytes_of(&(*page..page + 1));
            match list.last_mut() {
                Some((run, _)) if run.end == bytes.start => run.end = bytes.end,
                _ => list.push((bytes, place(number))),
            }
        }
        self.source(device)?.read(&list, scratch.incoming.slice())?;
        step(Point::MergeRead, self.path())?;
        let replica = self.existing(device)?;
        let entries: Vec<_> = pages
            .iter()
            .enumerate()
            .map(|(number, page)| {
                let here = self.bytes_of(&(*page..page + 1));
                let [current, twin] = [Part::Now, Part::Base].map(|part| replica.slice(part, &here).ptr().0);
                let incoming = scratch.incoming.ptr().0 + place(number);
                // By whole words, as kernels may be storing there; behind the end of the file all is zeroes.
                merge::Entry { current, twin, incoming, len: (here.end - here.start).next_multiple_of(WORD_BYTES) }
            })
            .collect();
        if let Some((bytes, at)) = list.last() {
            let end = at + (bytes.end - bytes.start);
            let rest = end.next_multiple_of(WORD_BYTES) - end;
            if rest > 0 {
                let tail = scratch.incoming.slice().part(end, rest).map_err(|error| self.device(error))?;
                // SAFETY: scratch memory, and the stream is waited for.
                unsafe { scratch.stream.fill(tail, 0) }.map_err(|error| self.device(error))?;
            }
        }
        let run = || -> bifolio_device::Result<Vec<u8>> {
            let table = merge::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            scratch.stream.upload(place, &table)?;
            let flags = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            let all = Addressing::Absolute;
            let operands = merge::Operands { current: all, twin: all, incoming: all };
            // SAFETY: the entries are pages of the replica and of scratch memory, which stay until the stream is
            // waited for; what kernels of the program's store there meanwhile stays.
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
}
