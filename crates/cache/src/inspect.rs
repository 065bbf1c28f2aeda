//! What tests look at and do that programs cannot.

use crate::cached_file::CachedFile;
use crate::directory::loss::{self, surviving};
use crate::directory::{flush, release, room};
use crate::error::Result;
use crate::mapping::Mapping;
use crate::page::{Device, Page};
use std::ops::Range;

/// What a device has of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageState {
    /// It has a replica.
    pub is_held: bool,
    /// The replica lacks changes of others.
    pub is_behind: bool,
    /// Home lacks changes that it has released.
    pub is_pending: bool,
}

impl CachedFile {
    /// What a device has of a page.
    pub fn page_state(&self, device: Device, page: u64) -> PageState {
        let directory = self.held.lock();
        let is = |what: &dyn Fn(&Page) -> bool| directory.versions.page(page).is_some_and(what);
        let is_held = is(&|page| page.is_held_by(device));
        let is_behind = is_held && is(&|page| page.is_behind(device));
        PageState { is_held, is_behind, is_pending: is(&|page| page.is_pending(device)) }
    }

    /// Writes to the file what it lacks of everything that was released, as a sync does that does not wait for the disk.
    pub fn flush(&self) -> Result<()> {
        let mut directory = self.held.lock();
        let size = directory.versions.size();
        surviving(&mut directory, |directory| flush::write_back(directory, &(0..size)))
    }

    /// Looks at the file, and follows what has become of its length.
    pub fn look(&self) {
        self.held.look();
    }

    /// Asks all devices of the file whether they are lost.
    pub fn find_losses(&self) -> bool {
        loss::find(&mut self.held.lock())
    }

    /// Takes a frame's memory away, acquired or not.
    pub fn evict(&self, device: Device, frame: usize) -> Result<()> {
        room::evict(&mut self.held.lock(), device, frame)
    }
}

impl Mapping {
    /// Publishes what the device has changed in a part, which stays as it is, acquired or not.
    pub fn publish(&mut self, part: &Range<u64>) -> Result<()> {
        let (file, device, range) = self.locate(part)?;
        surviving(&mut file.held.lock(), |directory| release::publish(directory, device, &range))
    }
}
