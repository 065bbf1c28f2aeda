//! Demand mode: pages by their numbers, in frames that a session pins one by one.

use super::State;
use crate::page::Device;
use crate::replica::{Part, runs};
use crate::{Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

impl State {
    /// Looks at the file, and tells which pages of a range are up to date on a device without anything being
    /// done. Those about which there is doubt are not: they are compared when they are brought.
    pub(crate) fn up_to_date(&mut self, device: Device, range: &Range<u64>) -> Result<Vec<u64>> {
        self.look()?;
        Ok(self.pages_of(range).filter(|page| self.is_up_to_date(device, *page)).collect())
    }

    /// Pins a frame, which gets memory if it has none.
    ///
    /// # Errors
    /// `OutOfMemory` if all memory that there may be is pinned; then nothing is.
    pub(crate) fn pin_frame(&mut self, device: Device, frame: usize) -> Result<()> {
        self.existing_mut(device)?.pin(frame..frame + 1);
        let mapped = self.map(device, Part::Now, frame);
        if mapped.is_err() {
            self.unpin_frame(device, frame);
        }
        mapped
    }

    pub(crate) fn unpin_frame(&mut self, device: Device, frame: usize) {
        if let Ok(replica) = self.existing_mut(device) {
            replica.unpin(frame..frame + 1);
        }
    }

    /// Brings pages up to date whose frames are pinned, all of them in one go. Nobody looks whether the file has
    /// changed since the session began. The bytes that were fetched.
    pub(crate) fn bring_pages(&mut self, device: Device, pages: &BTreeSet<u64>) -> Result<u64> {
        if let Some(page) = pages.iter().find(|page| **page as usize >= self.pages.len()) {
            let detail = format!(
                "it has become shorter: byte {} lies beyond its {} bytes; map it anew",
                page * self.page_bytes,
                self.size
            );
            return Err(Error::new(ErrorKind::Read, self.path(), detail));
        }
        let memory = Arc::clone(&self.existing(device)?.memory);
        memory.with_scratch(|scratch| {
            let runs = runs(pages.iter().copied());
            runs.iter().try_for_each(|run| self.compare_with_home(device, run, scratch))
        })?;
        let is_behind = |page: &u64| self.pages[*page as usize].is_behind(device);
        let behind: Vec<u64> = pages.iter().copied().filter(is_behind).collect();
        self.counts.hits += (pages.len() - behind.len()) as u64;
        if behind.is_empty() {
            return Ok(0);
        }
        let is_pending = |page: &u64| self.pages[*page as usize].pending().next().is_some();
        let pending = behind.iter().copied().filter(is_pending).collect();
        self.flush(&pending)?;
        let replica = self.existing(device)?;
        let mut frames: Vec<usize> = behind.iter().map(|page| replica.frame_of(*page)).collect();
        frames.dedup();
        self.fetch(device, &frames, &behind, false)?;
        let bytes = |run: &Range<u64>| {
            let bytes = self.bytes_of(run);
            bytes.end - bytes.start
        };
        Ok(runs(behind).iter().map(bytes).sum())
    }

    /// A device that something of the file is mapped on, and the file's name for messages.
    pub(crate) fn device_and_path(&self, device: Device) -> Result<(bifolio_device::Device, PathBuf)> {
        Ok((self.existing(device)?.memory.device.clone(), self.path().to_owned()))
    }

    /// How many pages a frame holds on a device.
    pub(crate) fn pages_of_frame(&self, device: Device) -> Result<u64> {
        let pages = self.existing(device)?.pages_of(0);
        Ok(pages.end - pages.start)
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }
}
