//! What tests look at and do that programs cannot.

use crate::cached_file::CachedFile;
use crate::directory::loss::{self, surviving};
use crate::directory::{flush, mappings, release, room};
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::page::{Device, Page};
use crate::service::wire::Wire;
use crate::service::{Served, Service};
use crate::state::layout::Part;
use crate::state::lease::{Grant, Use};
use std::ops::Range;
use std::sync::Arc;

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

    /// A mapping of a client that has outlived the process which served it: it has acquired what it had acquired.
    pub fn resume(&self, device: Device, range: Range<u64>, acquired: Vec<Range<u64>>) -> Result<Mapping> {
        let directory = self.held.lock();
        let address = mappings::address(&directory, device, range.start)?;
        let number = |what: &dyn Fn(&Grant) -> bool| {
            let mut leases = directory.versions.leases();
            leases.find(|lease| lease.client == self.client && lease.device == device && what(lease))
        };
        let number = |what: &dyn Fn(&Grant) -> bool| number(what).map_or(0, |lease| lease.number);
        let mapped = number(&|lease| lease.what == Use::Mapped);
        let of = |range: Range<u64>| (range.clone(), number(&|lease| lease.what == Use::Write && lease.bytes == range));
        let acquired = acquired.into_iter().map(of).collect();
        let own = directory.versions.leases().filter(|lease| lease.client == self.client);
        own.for_each(|lease| crate::mapping::pass_lease(lease.number));
        drop(directory);
        Ok(Mapping::resumed(self, device, range, Served(address), (mapped, acquired)))
    }

    /// Maps a range as another process would: what is asked for and answered crosses as bytes, and what kernels see are
    /// frames that `on` imports by their numbers. Of a cache whose frames somebody keeps.
    pub fn map_apart(
        &self,
        device: Device,
        on: &bifolio_device::Device,
        range: Range<u64>,
        writable: bool,
    ) -> Result<Mapping> {
        if self.pool.keeper.is_none() {
            return Err(Error::bad_use("nobody keeps the frames of this cache"));
        }
        let service: Arc<dyn Service> = Arc::new(Wire(Arc::new(self.clone())));
        Mapping::apart(service, Arc::new(self.clone()), (device, on), range, writable)
    }

    /// Whether what is known of every page can be so.
    pub fn is_sound(&self) -> bool {
        let directory = self.held.lock();
        let versions = &directory.versions;
        let devices = self.pool.devices.len();
        (0..versions.len()).all(|page| versions.page(page).is_some_and(|page| page.is_sound(devices)))
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

/// Where records of operations, and marks of pages, begin in a region.
pub fn records_and_marks() -> (u64, u64) {
    (Part::Records.offset(), Part::Marks.offset())
}
