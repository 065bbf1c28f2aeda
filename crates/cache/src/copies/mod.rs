//! The copies of one file: its home, and its replicas in the memories of devices. Whatever moves, compares or writes
//! bytes of a file is here, and nothing here decides what must happen: who has which version, and what comes before
//! what, is the directory's (`directory/`).
//!
//! ```text
//!   Copies ── home        the file: what changed, and writing single bytes (fragments: many short runs)
//!      |  └── replica     one device's: its images and their frames    window   where they have addresses
//!      |
//!   plan        what is to be done: extents, a fetch, a fold
//!   source      home -> device              compare    which pages of two images, or of an image and home, differ
//!   merge       home under own changes      masks      which bytes of two images differ, into host memory
//!   take        home, where a comparison has read it, under own changes
//!   places      where pages lie, for kernels over lists of them
//!   fold        home, on a device, and what others have released, under own changes
//!   transfer    image -> image, peer -> device           fetch      twins and zeroes that complete one, or its end
//!   download    device -> any host memory
//! ```
//!
//! Everything runs under the file's lock, and waits for the device's work before it returns. Only who reads and writes
//! home waits for a disk, and takes along what he needs for it (`source`, `home`), as the lock is given up meanwhile.
//! What is asked of the replica of a lost device is refused with one sentence.

mod compare;
mod download;
mod fetch;
pub(crate) mod fold;
pub(crate) mod fragments;
pub(crate) mod home;
mod masks;
mod merge;
mod places;
pub(crate) mod plan;
pub(crate) mod replica;
mod source;
pub(crate) mod take;
mod transfer;
mod window;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::page::Device;
use home::Home;
use replica::{Image, Replica};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) home: Home,
    page_bytes: u64,
    replicas: Vec<Option<Replica>>,
    lost: Vec<Lost>,
}

/// What was on a device that is lost.
#[derive(Debug)]
struct Lost {
    device: Device,
    /// Its addresses are those of its mappings for as long as these are there, and nobody else's.
    replica: Replica,
    /// What mappings there are told.
    why: String,
    detail: String,
}

impl Copies {
    /// Home alone.
    pub(crate) fn new(home: Home, devices: usize, page_bytes: u64) -> Self {
        Self { home, page_bytes, replicas: (0..devices).map(|_| None).collect(), lost: vec![] }
    }

    pub(crate) fn path(&self) -> &Path {
        self.home.path()
    }

    /// The file's size now.
    pub(crate) fn size(&self) -> Result<u64> {
        self.home.size().map_err(Error::reading)
    }

    /// How many devices may have a replica.
    pub(crate) fn devices(&self) -> usize {
        self.replicas.len()
    }

    /// A device's replica.
    pub(crate) fn replica(&self, device: Device) -> Result<&Replica> {
        self.replicas[device].as_ref().ok_or_else(|| self.unmapped(device))
    }

    pub(crate) fn replica_mut(&mut self, device: Device) -> Result<&mut Replica> {
        match &mut self.replicas[device] {
            Some(replica) => Ok(replica),
            None => Err(unmapped(self.home.path(), &self.lost, device)),
        }
    }

    /// The same, if there is one.
    pub(crate) fn get(&self, device: Device) -> Option<&Replica> {
        self.replicas[device].as_ref()
    }

    pub(crate) fn get_mut(&mut self, device: Device) -> Option<&mut Replica> {
        self.replicas[device].as_mut()
    }

    pub(crate) fn insert(&mut self, device: Device, replica: Replica) {
        self.replicas[device] = Some(replica);
    }

    pub(crate) fn remove(&mut self, device: Device) {
        self.replicas[device] = None;
    }

    /// The devices with a replica of which something is so.
    pub(crate) fn devices_where(&self, is: impl Fn(&Memory) -> bool) -> Vec<Device> {
        let has = |device: &Device| self.get(*device).is_some_and(|replica| is(&replica.memory));
        (0..self.devices()).filter(has).collect()
    }

    /// What was on a device is gone: from now on mappings there are told so, and nobody asks the device.
    pub(crate) fn lose(&mut self, device: Device, detail: String) {
        if let Some(replica) = self.replicas[device].take() {
            let why = replica.memory.loss().unwrap_or_default().to_owned();
            self.lost.push(Lost { device, replica, why, detail });
        }
    }

    /// How many replicas were lost so.
    pub(crate) fn losses(&self) -> usize {
        self.lost.len()
    }

    /// Gives replicas up, and leaves their frames to whoever finds them.
    pub(crate) fn abandon(&mut self) {
        self.replicas.iter_mut().filter_map(Option::take).for_each(Replica::abandon);
    }

    /// Gives a frame of a replica memory for an image; false if the budget is used up.
    pub(crate) fn map(&mut self, device: Device, image: Image, frame: usize) -> Result<bool> {
        let mapped = self.replica_mut(device)?.map(image, frame);
        mapped.map_err(|error| self.failed(error))
    }

    /// Images of frames that were mapped anew have their content.
    pub(crate) fn fill(&mut self, device: Device, image: Image, frames: impl IntoIterator<Item = usize>) -> Result<()> {
        let replica = self.replica_mut(device)?;
        frames.into_iter().for_each(|frame| replica.fill(image, frame));
        Ok(())
    }

    /// Gives the memory of an image of a frame back.
    pub(crate) fn unmap(&mut self, device: Device, image: Image, frame: usize) -> Result<()> {
        let unmapped = self.replica_mut(device)?.unmap(image, frame);
        unmapped.map_err(|error| self.failed(error))
    }

    /// Keeps the memory of a range of a replica in place: its frames.
    pub(crate) fn pin(&mut self, device: Device, range: &Range<u64>) -> Result<Range<usize>> {
        let replica = self.replica_mut(device)?;
        if !replica.has_addresses(range) {
            return Err(self.unmapped(device));
        }
        let frames = replica.frames_of(range);
        replica.pin(frames.clone());
        Ok(frames)
    }

    /// False if one of the frames was not pinned.
    pub(crate) fn unpin(&mut self, device: Device, frames: Range<usize>) -> bool {
        self.get_mut(device).is_some_and(|replica| replica.unpin(frames))
    }

    /// Where what has addresses on some device ends.
    pub(crate) fn reserved(&self) -> u64 {
        self.replicas.iter().flatten().map(Replica::end).max().unwrap_or(0)
    }

    /// The memory of a device that has a replica.
    pub(crate) fn memory(&self, device: Device) -> Result<Arc<Memory>> {
        Ok(Arc::clone(&self.replica(device)?.memory))
    }

    fn unmapped(&self, device: Device) -> Error {
        unmapped(self.path(), &self.lost, device)
    }

    /// A device's error, about this file.
    pub(crate) fn failed(&self, error: bifolio_device::Error) -> Error {
        Error::device(self.path(), error)
    }
}

fn unmapped(path: &Path, lost: &[Lost], device: Device) -> Error {
    if let Some(Lost { replica, why, detail, .. }) = lost.iter().rfind(|lost| lost.device == device) {
        return Error::lost(path, replica.memory.device.id(), why, detail);
    }
    Error::new(ErrorKind::BadUse, path, "nothing of it is mapped on this device")
}
