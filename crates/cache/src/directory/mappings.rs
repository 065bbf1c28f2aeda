//! Who holds addresses of the file: mappings, pins that outlive them, and the end of the last of its holders.

use super::Directory;
use super::flush::{flush, flush_range};
use super::look::follow_cut;
use super::room::drop_replica;
use crate::copies::replica::Replica;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::page::Device;
use bifolio_device::DevicePtr;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Has one more mapping on a device, with addresses for all of the file: that of its first byte.
pub(crate) fn attach(directory: &mut Directory, device: Device, memory: &Arc<Memory>) -> Result<DevicePtr> {
    let len = directory.versions.size();
    if let Some(replica) = directory.copies.get(device)
        && replica.len() < len
    {
        if replica.users > 0 {
            let detail = format!(
                "the file has grown to {len} bytes, and {} were reserved when it was first mapped on {}: close its other mappings there first",
                replica.len(),
                memory.device.id()
            );
            return Err(Error::new(ErrorKind::BadUse, directory.path(), detail));
        }
        drop_replica(directory, device)?;
    }
    if directory.copies.get(device).is_none() {
        let replica = Replica::new(memory, &directory.options, len);
        let replica = replica.map_err(|error| directory.copies.failed(error))?;
        reserve(directory, replica.len())?;
        directory.copies.insert(device, replica);
        directory.versions.fit(directory.copies.reserved());
    }
    let replica = directory.copies.replica_mut(device)?;
    replica.users += 1;
    Ok(replica.address())
}

fn reserve(directory: &mut Directory, len: u64) -> Result<()> {
    directory.versions.reserve(len).map_err(|error| {
        let (size, page_bytes) = (directory.versions.size(), directory.versions.page_bytes());
        let detail = format!(
            "no memory to keep account of a file of {size} bytes in pages of {page_bytes} ({error}): use larger pages"
        );
        Error::new(ErrorKind::OutOfMemory, directory.path(), detail)
    })
}

/// A mapping has ended.
pub(crate) fn detach(directory: &mut Directory, device: Device) {
    if let Some(replica) = directory.copies.get_mut(device) {
        replica.users -= 1;
    }
}

/// Keeps the memory of a range in place, besides whoever has acquired it: the frames.
pub(crate) fn pin(directory: &mut Directory, device: Device, range: &Range<u64>) -> Result<Range<usize>> {
    let frames = directory.copies.pin(device, range)?;
    directory.copies.replica_mut(device)?.users += 1;
    Ok(frames)
}

pub(crate) fn unpin(directory: &mut Directory, device: Device, frames: Range<usize>) {
    directory.copies.unpin(device, frames);
    detach(directory, device);
}

/// Nobody has it open any more: what was released reaches home, as far as home takes it.
pub(crate) fn end(directory: &mut Directory) {
    let _ = follow_cut(directory);
    let size = directory.versions.size();
    if flush_range(directory, &(0..size)).is_err() {
        // Page by page, so that one that cannot be written keeps no other back.
        for page in 0..directory.versions.len() {
            let _ = flush(directory, &BTreeSet::from([page]));
        }
    }
    (0..directory.copies.devices()).for_each(|device| directory.copies.remove(device));
    directory.versions.end();
}
