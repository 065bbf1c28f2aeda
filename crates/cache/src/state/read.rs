//! A CPU's reads through the cache. What the page cache has comes from there, and what it lacks and a device has
//! comes from the device, before the disk is asked.

use super::State;
use crate::page::Device;
use crate::replica::Part;
use crate::{Error, ErrorKind, Result};
use bifolio_io::residency::{self, Residency};
use bifolio_io::storage::OsStorage;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Where some pages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The file, after what was released of them is home.
    Home,
    /// A device's memory.
    Device(Device, Part),
}

impl State {
    /// Reads as a CPU: everything that was released is seen.
    pub(crate) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.look()?;
        let end = offset.saturating_add(buffer.len() as u64).min(self.size);
        if offset >= end {
            return Ok(0);
        }
        for (source, bytes) in self.sources(offset..end) {
            let buffer = &mut buffer[(bytes.start - offset) as usize..(bytes.end - offset) as usize];
            match source {
                Source::Home => self.read_from_home(&bytes, buffer)?,
                Source::Device(device, part) => self.read_from_device(device, part, &bytes, buffer)?,
            }
        }
        Ok((end - offset) as usize)
    }

    /// Where the parts of a range come from.
    fn sources(&self, range: Range<u64>) -> Vec<(Source, Range<u64>)> {
        let pages = self.pages_of(&range);
        // Where no device has anything, the page cache need not be asked.
        let cached = if pages.clone().any(|page| self.holder(page).is_some()) {
            residency::query(&self.home.file.members()[0], &OsStorage, range.clone()).ok()
        } else {
            None
        };
        let is_cached = |bytes: &Range<u64>| {
            let runs = cached.as_ref().map(Residency::cached);
            runs.is_none_or(|runs| {
                let run = runs.get(runs.partition_point(|run| run.end < bytes.end));
                run.is_some_and(|run| run.start <= bytes.start)
            })
        };
        let mut sources: Vec<(Source, Range<u64>)> = Vec::new();
        for page in pages {
            let bytes = self.bytes_of(&(page..page + 1));
            let bytes = bytes.start.max(range.start)..bytes.end.min(range.end);
            let holder = self.holder(page).filter(|_| !is_cached(&bytes));
            let source = holder.map_or(Source::Home, |(device, part)| Source::Device(device, part));
            match sources.last_mut() {
                Some((last, run)) if *last == source => run.end = bytes.end,
                _ => sources.push((source, bytes)),
            }
        }
        sources
    }

    /// A device whose page is up to date, which so has everything that was released, also what is not home yet;
    /// and the part of the replica that nobody writes to.
    fn holder(&self, page: u64) -> Option<(Device, Part)> {
        let state = &self.pages[page as usize];
        let has_all = |device: &Device| {
            state.is_held_by(*device)
                && !state.is_behind(*device)
                && self.compared[*device][page as usize] == self.doubt
        };
        let device = (0..self.replicas.len()).find(has_all)?;
        let replica = self.replicas[device].as_ref()?;
        let part = if replica.has(Part::Base, replica.frame_of(page)) { Part::Base } else { Part::Now };
        Some((device, part))
    }

    fn read_from_home(&mut self, bytes: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
        self.flush_range(bytes)?;
        let (length, offset) = (buffer.len(), bytes.start);
        self.home.file.buffered().read_exact_at(buffer, offset).map_err(|error| {
            Error::new(ErrorKind::Read, self.path(), format!("reading {length} bytes at {offset} failed: {error}"))
        })
    }

    fn read_from_device(&self, device: Device, part: Part, bytes: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
        let replica = self.existing(device)?;
        let memory = Arc::clone(&replica.memory);
        memory.with_scratch(|scratch| {
            scratch.stream.download(buffer, replica.slice(part, bytes)).map_err(|error| self.device(error))
        })
    }
}
