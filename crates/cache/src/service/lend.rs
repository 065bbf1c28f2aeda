//! What another process is given of a file: descriptors of frames, or a copy of what it has acquired.
//!
//! Whoever imports a frame may write to it for as long as it likes, whatever it has acquired: the drivers know no other
//! way. So a frame that was lent is never another's, nor another part's: it is given back to the device when it goes.

use super::Lender;
use crate::cached_file::CachedFile;
use crate::directory::{Directory, Locked, mappings, recover};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Device;
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
        if !frames.contains(&(at, number)) {
            return Ok(None);
        }
        Ok(directory.memory_of(device)?.lend_frame(number, self.client))
    }
}

impl CachedFile {
    /// Copies all that its client has acquired of some bytes to other memory of the device, from its first byte on.
    ///
    /// # Errors
    /// `BadUse` if nothing of them is acquired, `Device`.
    pub fn copy_all_acquired(&self, device: usize, bytes: &Range<u64>, to: DeviceSlice<'_>) -> Result<()> {
        self.check_device(device)?;
        let parts: Vec<Range<u64>> = {
            let directory = self.held.lock();
            refuse_unused(&directory, self.client, device, bytes, false)?;
            let is_own =
                |lease: &Grant| (lease.client, lease.device) == (self.client, device) && lease.what != Use::Mapped;
            let within = |lease: Grant| lease.bytes.start.max(bytes.start)..lease.bytes.end.min(bytes.end);
            directory.versions.leases().filter(is_own).map(within).filter(|part| part.start < part.end).collect()
        };
        for part in parts {
            let place = to.part(part.start - bytes.start, part.end - part.start);
            self.copy_acquired(device, &part, place.map_err(|error| Error::device("mapping", error))?)?;
        }
        Ok(())
    }

    /// Copies bytes that its client has acquired to other memory of the device, which waits until they are there.
    ///
    /// # Errors
    /// `BadUse` for bytes that are not acquired, `Device`.
    pub fn copy_acquired(&self, device: usize, part: &Range<u64>, to: DeviceSlice<'_>) -> Result<()> {
        self.check_device(device)?;
        let directory = self.held.lock();
        refuse_unused(&directory, self.client, device, part, true)?;
        let (memory, len) = (directory.memory_of(device)?, part.end - part.start);
        let from = mappings::address(&directory, device, part.start)?;
        // SAFETY: the part is acquired, and so it has memory until the lease ends, which takes the lock.
        let from = unsafe { DeviceSlice::from_raw(from, len) };
        memory.with_scratch(|scratch| {
            // SAFETY: both are there until the stream is waited for.
            let copied = unsafe { scratch.stream.copy_on_device(to, from) };
            copied.and(scratch.stream.synchronize()).map_err(|error| Error::device(directory.path(), error))
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
