//! One file: its pages and replicas, and what happens in which order. Everything here runs under the file's lock.

mod acquire;
mod demand;
mod fetch;
mod flush;
mod host;
mod release;
mod written;

use crate::home::Home;
use crate::memory::Memory;
use crate::page::{Device, Page};
use crate::replica::{Part, Replica, runs};
use crate::{CacheOptions, Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use written::Written;

/// What has happened to pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Counts {
    /// Pages that were up to date when they were acquired.
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
    /// Pages that CPUs have read from a device, as they were not in the page cache.
    pub served: u64,
    /// Pages with changes that were not released when their mapping ended: these are gone.
    pub discarded: u64,
}

impl Counts {
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.with(other, |one, two| one + two)
    }

    pub(crate) fn minus(&self, before: &Self) -> Self {
        self.with(before, |now, before| now - before)
    }

    fn with(&self, other: &Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            hits: both(self.hits, other.hits),
            fetched: both(self.fetched, other.fetched),
            from_peers: both(self.from_peers, other.from_peers),
            merged: both(self.merged, other.merged),
            races: both(self.races, other.races),
            released: both(self.released, other.released),
            flushed: both(self.flushed, other.flushed),
            compared: both(self.compared, other.compared),
            evicted: both(self.evicted, other.evicted),
            served: both(self.served, other.served),
            discarded: both(self.discarded, other.discarded),
        }
    }
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
    options: CacheOptions,
    /// The file's pages that a replica has addresses for, and no others: a stranger can make a file longer than there
    /// is memory for its pages.
    pages: Vec<Page>,
    replicas: Vec<Option<Replica>>,
    /// Counts the times at which something unknown may have changed the file.
    doubt: u32,
    /// By device and page: up to which doubt its content was compared with home's.
    compared: Vec<Vec<u32>>,
    /// By device: a range that is up to date and mapped as of a doubt, so that acquiring it again looks at no
    /// page.
    settled: Vec<Option<Settled>>,
    /// By device: ranges that are acquired to be written.
    in_use: Vec<Vec<Range<u64>>>,
    written: Written,
    /// How often making the file durable has failed, and with what the last time.
    failed: (u64, Option<io::Error>),
    pub(crate) counts: Counts,
}

impl State {
    pub(crate) fn new(home: Home, devices: usize, options: CacheOptions) -> Result<Self> {
        let size = home.file.size().map_err(|error| Error::reading(home.path(), error))?;
        let replicas = (0..devices).map(|_| None).collect();
        let mut state = Self {
            home,
            size: 0,
            page_bytes: options.page_bytes,
            options,
            pages: vec![],
            replicas,
            doubt: 1,
            compared: vec![vec![]; devices],
            settled: vec![None; devices],
            in_use: vec![vec![]; devices],
            written: Written::default(),
            failed: (0, None),
            counts: Counts::default(),
        };
        state.resize(size)?;
        Ok(state)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn path(&self) -> &Path {
        self.home.path()
    }

    /// Follows the file's growth and truncation. A page whose end has moved has changed.
    pub(super) fn resize(&mut self, size: u64) -> Result<()> {
        if size == self.size {
            return Ok(());
        }
        let boundary = (self.size.min(size) / self.page_bytes) as usize;
        if size < self.size {
            self.blank(size..self.size)?;
        }
        self.size = size;
        self.fit_pages();
        if let Some(page) = self.pages.get_mut(boundary) {
            page.changed_at_home();
        }
        self.forget_written(self.pages.len() as u64..u64::MAX);
        self.settled.fill(None);
        Ok(())
    }

    /// Memory for the states of as many pages as a replica has addresses for, so that following the file's growth
    /// asks for none.
    fn make_room_for_pages(&mut self, len: u64) -> Result<()> {
        let pages = len.div_ceil(self.page_bytes) as usize;
        let mut room = self.pages.try_reserve_exact(pages.saturating_sub(self.pages.len()));
        for compared in &mut self.compared {
            room = room.and_then(|()| compared.try_reserve_exact(pages.saturating_sub(compared.len())));
        }
        room.map_err(|error| {
            let detail = format!(
                "its {} bytes have too many pages of {} bytes to be kept account of ({error}): use larger pages",
                self.size, self.page_bytes
            );
            Error::new(ErrorKind::OutOfMemory, self.home.path(), detail)
        })
    }

    /// Has as many pages as the file and the longest replica both have.
    fn fit_pages(&mut self) {
        let reserved = self.replicas.iter().flatten().map(Replica::len).max().unwrap_or(0);
        let pages = self.size.min(reserved).div_ceil(self.page_bytes) as usize;
        self.pages.resize_with(pages, Page::new);
        for compared in &mut self.compared {
            compared.resize(pages, 0);
        }
    }

    /// Follows a truncation, before something is written behind the new end.
    pub(super) fn follow_cut(&mut self) -> Result<()> {
        let size = self.home.size().map_err(|error| Error::reading(self.home.path(), error))?;
        if size < self.size { self.resize(size) } else { Ok(()) }
    }

    /// What was cut off reads as zeroes, as in a mapping of the file, and is nobody's change.
    fn blank(&self, range: Range<u64>) -> Result<()> {
        for replica in self.replicas.iter().flatten() {
            let frames = replica.frames_of(&range);
            replica.memory.with_scratch(|scratch| {
                for part in [Part::Now, Part::Base, Part::Origin] {
                    for run in runs(frames.clone().filter(|frame| replica.has(part, *frame)).map(|frame| frame as u64))
                    {
                        let bytes = replica.bytes_of(&run);
                        let cut = bytes.start.max(range.start)..bytes.end;
                        // SAFETY: the frames have memory, and the stream is waited for.
                        let filled = unsafe { scratch.stream.fill(replica.slice(part, &cut), 0) };
                        filled.map_err(|error| self.device(error))?;
                    }
                }
                scratch.stream.synchronize().map_err(|error| self.device(error))
            })?;
        }
        Ok(())
    }

    /// The device's replica, with addresses for all of the file, and one more user.
    pub(crate) fn attach(&mut self, device: Device, memory: &Arc<Memory>) -> Result<&Replica> {
        let len = self.size;
        if let Some(replica) = &self.replicas[device]
            && replica.len() < len
        {
            if replica.users > 0 {
                let detail = format!(
                    "it has grown to {len} bytes, beyond the {} that were reserved when it was first mapped on {}: close its other mappings there first",
                    replica.len(),
                    memory.device.id()
                );
                return Err(Error::new(ErrorKind::BadUse, self.path(), detail));
            }
            self.drop_replica(device)?;
        }
        if self.replicas[device].is_none() {
            let replica = Replica::new(memory, &self.options, len).map_err(|error| self.device(error))?;
            self.make_room_for_pages(replica.len())?;
            self.replicas[device] = Some(replica);
            self.fit_pages();
        }
        let replica = self.existing_mut(device)?;
        replica.users += 1;
        Ok(replica)
    }

    /// A mapping has ended.
    pub(crate) fn detach(&mut self, device: Device) {
        if let Ok(replica) = self.existing_mut(device) {
            replica.users -= 1;
        }
    }

    pub(super) fn existing(&self, device: Device) -> Result<&Replica> {
        self.replicas[device]
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::BadUse, self.path(), "nothing of it is mapped there"))
    }

    pub(super) fn existing_mut(&mut self, device: Device) -> Result<&mut Replica> {
        let missing = Error::new(ErrorKind::BadUse, self.home.path(), "nothing of it is mapped there");
        self.replicas[device].as_mut().ok_or(missing)
    }

    /// Keeps the memory of a range in place, besides whoever has acquired it: the frames.
    pub(crate) fn pin(&mut self, device: Device, range: &Range<u64>) -> Result<Range<usize>> {
        let replica = self.existing_mut(device)?;
        let frames = replica.frames_of(range);
        replica.pin(frames.clone());
        replica.users += 1;
        Ok(frames)
    }

    pub(crate) fn unpin(&mut self, device: Device, frames: Range<usize>) {
        if let Some(replica) = &mut self.replicas[device] {
            replica.unpin(frames);
            replica.users -= 1;
        }
    }

    /// The pages of a range that there are, as far as a device may have them.
    pub(super) fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        let first = range.start / self.page_bytes;
        let end = range.end.min(self.size).div_ceil(self.page_bytes).min(self.pages.len() as u64);
        first..end.max(first)
    }

    pub(super) fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start * self.page_bytes..(pages.end * self.page_bytes).min(self.size)
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn page(&self, page: u64) -> Option<&Page> {
        self.pages.get(page as usize)
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

    /// Nobody has it open any more: what was released reaches home, as far as home takes it.
    pub(crate) fn end(&mut self) {
        let _ = self.follow_cut();
        if self.flush_range(&(0..self.size)).is_err() {
            // Page by page, so that one that cannot be written keeps no other back.
            for page in 0..self.pages.len() as u64 {
                let _ = self.flush(&BTreeSet::from([page]));
            }
        }
        self.replicas.fill_with(|| None);
        self.settled.fill(None);
        self.written = Written::default();
    }

    /// Takes memory away on a device that nobody uses, up to some bytes; how many.
    pub(crate) fn give_room(&mut self, device: Device, bytes: u64) -> u64 {
        let mut given = 0;
        while given < bytes
            && let Some(replica) = self.replicas[device].as_mut()
            && let Some(victim) = replica.victim()
        {
            let frame_bytes = replica.frame_bytes();
            if self.evict(device, victim).is_err() {
                break;
            }
            given += frame_bytes;
        }
        given
    }

    pub(super) fn device(&self, error: bifolio_device::Error) -> Error {
        Error::device(self.path(), error)
    }
}

/// A run of pages in pieces of at most `most`.
fn chunks(run: &Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let run = run.clone();
    (run.start..run.end).step_by(most as usize).map(move |start| start..run.end.min(start + most))
}
