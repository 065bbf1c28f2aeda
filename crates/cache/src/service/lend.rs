//! What another process is given of a file: descriptors of frames, or a copy of what it has acquired.
//!
//! Whoever imports a frame may write to it for as long as it likes, whatever it has acquired: the drivers know no other
//! way. So a frame that was lent is never another's, nor another part's: it is given back to the device when it goes.

use super::Lender;
use crate::cached_file::CachedFile;
use crate::directory::{Directory, Locked, mappings, recover};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Device;
use crate::ranges::intersection;
use crate::state::keeper::Reader;
use crate::state::lease::{Client, Grant, LeaseNumber, Use};
use crate::state::replicas::FrameNumber;
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::os::fd::OwnedFd;

impl Lender for CachedFile {
    fn lend(&self, device: Device, at: u64, number: FrameNumber) -> Result<Option<(u64, OwnedFd)>> {
        self.check_device(device)?;
        let directory = self.held.lock();
        let (frame_bytes, frames) = mappings::frames(&directory, device, &(at..at.saturating_add(1)))?;
        refuse_unused(&directory, self.client, device, &(at..at.saturating_add(frame_bytes)), false)?;
        if !frames.contains(&(at, number)) && !directory.asides.is_left_to(self.client, device, at, number) {
            return Ok(None);
        }
        Ok(directory.memory_of(device)?.lend_frame(number))
    }
}

impl CachedFile {
    /// Copies all that its client has acquired of some bytes, which are a frame, to other memory of the device.
    ///
    /// # Errors
    /// `BadUse` if nothing of them is acquired, `Device`.
    pub fn copy_all_acquired(&self, device: usize, bytes: &Range<u64>, to: DeviceSlice<'_>) -> Result<()> {
        self.check_device(device)?;
        let directory = self.held.lock();
        refuse_unused(&directory, self.client, device, bytes, false)?;
        let is_own = |lease: &Grant| (lease.client, lease.device) == (self.client, device) && lease.what != Use::Mapped;
        let own: Vec<Grant> = directory.versions.leases().filter(is_own).collect();
        for lease in own {
            let part = intersection(&lease.bytes, bytes);
            if !part.is_empty() {
                let place = to.part(part.start - bytes.start, part.end - part.start);
                let place = place.map_err(|error| Error::device("mapping", error))?;
                self.copy(&directory, device, lease.number, &part, place)?;
            }
        }
        Ok(())
    }

    /// Copies bytes of a frame that its client has acquired under a number to other memory of the device, and waits until
    /// they are there.
    ///
    /// # Errors
    /// `BadUse` for bytes that are not acquired, `Device`.
    pub fn copy_acquired(
        &self,
        device: usize,
        lease: LeaseNumber,
        part: &Range<u64>,
        to: DeviceSlice<'_>,
    ) -> Result<()> {
        self.check_device(device)?;
        let directory = self.held.lock();
        refuse_unused(&directory, self.client, device, part, true)?;
        self.copy(&directory, device, lease, part, to)
    }

    /// The part is acquired, and lies in one frame.
    fn copy(
        &self,
        directory: &Locked<'_>,
        device: Device,
        lease: LeaseNumber,
        part: &Range<u64>,
        to: DeviceSlice<'_>,
    ) -> Result<()> {
        let (frame_bytes, _) = mappings::frames(directory, device, &(part.start..part.start + 1))?;
        let reader = Reader { client: self.client, lease, at: part.start / frame_bytes * frame_bytes };
        let (memory, len) = (directory.memory_of(device)?, part.end - part.start);
        let failed = |error| Error::device(directory.path(), error);
        if let Some(number) = directory.asides.seen(device, &reader) {
            let is_copied = memory.copy_left(number, part.start - reader.at, to).map_err(failed)?;
            return if is_copied { Ok(()) } else { Err(refused(directory, part)) };
        }
        let from = mappings::address(directory, device, part.start)?;
        // SAFETY: the part is acquired, and so it has memory until the lease ends, which takes the lock.
        let from = unsafe { DeviceSlice::from_raw(from, len) };
        memory.with_scratch(|scratch| {
            // SAFETY: both are there until the stream is waited for.
            let copied = unsafe { scratch.stream.copy_on_device(to, from) };
            copied.and(scratch.stream.synchronize()).map_err(failed)
        })
    }

    /// Ends what its client uses, who has gone: what it has changed and not released is taken back.
    pub fn end_leases(&self) {
        let mut directory = self.held.lock();
        let leases: Vec<Grant> = directory.versions.leases().filter(|lease| lease.client == self.client).collect();
        leases.iter().rev().for_each(|lease| recover::end(&mut directory, lease));
        drop(directory);
        self.pool.operated();
    }

    /// What its client uses on which device: numbers, bytes, and whether they are acquired or pinned, or only mapped.
    pub fn leases(&self) -> Vec<(LeaseNumber, usize, Range<u64>, bool)> {
        let directory = self.held.lock();
        let own = directory.versions.leases().filter(|lease| lease.client == self.client);
        own.map(|lease| (lease.number, lease.device, lease.bytes, lease.what != Use::Mapped)).collect()
    }
}

/// Refuses bytes of which the client has acquired none, or not all.
fn refuse_unused(
    directory: &Locked<'_>,
    client: Client,
    device: Device,
    bytes: &Range<u64>,
    is_all: bool,
) -> Result<()> {
    let is_used = |lease: Grant| {
        let covers = lease.bytes.start <= bytes.start && bytes.end <= lease.bytes.end;
        let meets = lease.bytes.start < bytes.end && bytes.start < lease.bytes.end;
        (lease.client, lease.device) == (client, device)
            && lease.what != Use::Mapped
            && if is_all { covers } else { meets }
    };
    if bytes.start < bytes.end && directory.versions.leases().any(is_used) {
        return Ok(());
    }
    Err(refused(directory, bytes))
}

fn refused(directory: &Directory, bytes: &Range<u64>) -> Error {
    let detail = format!("bytes {} to {} are not acquired by who asks for their memory", bytes.start, bytes.end);
    Error::new(ErrorKind::BadUse, directory.path(), detail)
}
