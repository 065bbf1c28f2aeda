//! One file: its pages and replicas, and what happens in which order. Everything here runs under the file's lock.

mod acquire;
mod flush;
mod release;

use crate::home::Home;
use crate::memory::Memory;
use crate::page::{Device, Page};
use crate::replica::Replica;
use crate::{Error, ErrorKind, Mode, Result};
use bifolio_device::DevicePtr;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

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
    /// By device: ranges that are acquired to be written.
    in_use: Vec<Vec<Range<u64>>>,
    /// By device: mappings that are open.
    mappings: Vec<u32>,
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
            in_use: vec![vec![]; devices],
            mappings: vec![0; devices],
            counts: Counts::default(),
        };
        state.resize(size);
        Ok(state)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn path(&self) -> &Path {
        self.home.path()
    }

    /// Follows the file's growth and truncation. A page whose end has moved has changed.
    pub(super) fn resize(&mut self, size: u64) {
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

    /// Follows a truncation, before something is written behind the new end.
    pub(super) fn follow_cut(&mut self) -> Result<()> {
        let size = self.home.file.size().map_err(|error| Error::reading(self.home.path(), error))?;
        if size < self.size {
            self.resize(size);
        }
        Ok(())
    }

    /// Makes a mapping of the first `len` bytes: where the device's replica begins.
    pub(crate) fn map_replica(&mut self, device: Device, memory: &Arc<Memory>, len: u64) -> Result<DevicePtr> {
        if self.replicas[device].as_ref().is_some_and(|replica| replica.len() < len) {
            if self.mappings[device] > 0 {
                let detail = format!(
                    "it has grown, and byte {} has no address beside those that are mapped on {}: close its other mappings there first",
                    len - 1,
                    memory.device.id()
                );
                return Err(Error::new(ErrorKind::BadUse, self.path(), detail));
            }
            self.drop_replica(device)?;
        }
        if self.replicas[device].is_none() {
            let replica = Replica::new(memory, self.page_bytes, self.size.max(1));
            self.replicas[device] = Some(replica.map_err(|error| Error::device(self.home.path(), error))?);
        }
        self.mappings[device] += 1;
        Ok(self.existing(device)?.address())
    }

    /// A mapping has ended.
    pub(crate) fn unmap_replica(&mut self, device: Device) {
        self.mappings[device] -= 1;
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

    pub(super) fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.page_bytes
            ..range.end.min(self.size).div_ceil(self.page_bytes).max(range.start / self.page_bytes)
    }

    pub(super) fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start * self.page_bytes..(pages.end * self.page_bytes).min(self.size)
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn page(&self, page: u64) -> &Page {
        &self.pages[page as usize]
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
    }

    /// Takes up to some frames away that nobody uses on a device; how many.
    pub(crate) fn give_room(&mut self, device: Device, frames: usize) -> usize {
        let mut given = 0;
        while given < frames
            && let Some(victim) = self.replicas[device].as_mut().and_then(Replica::victim)
            && self.evict(device, victim).is_ok()
        {
            given += 1;
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
