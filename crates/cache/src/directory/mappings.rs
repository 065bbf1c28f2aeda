//! Who holds addresses of the file: mappings, pins that outlive them, and the end of the last of its holders.

use super::Directory;
use super::flush::{flush, flush_range};
use super::look::follow_cut;
use super::room::drop_window;
use crate::copies::replica::Replica;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::page::Device;
use bifolio_device::DevicePtr;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Most pages of a file that account is kept of, from its first one to the last that is mapped: of 16 TiB in pages of
/// 64 KiB, which takes some gigabytes of the host's memory.
const PAGES_MAX: u64 = 1 << 28;

/// Has one more mapping of a range on a device: the address of its first byte.
pub(crate) fn attach(
    directory: &mut Directory,
    device: Device,
    memory: &Arc<Memory>,
    range: &Range<u64>,
) -> Result<DevicePtr> {
    let len = directory.versions.size();
    make_way(directory, device, range)?;
    if directory.copies.get(device).is_none() {
        directory.copies.insert(device, Replica::new(memory, &directory.options, len));
    }
    let replica = directory.copies.replica(device)?;
    if !replica.has_addresses(range) {
        let bytes = replica.window_for(range, len);
        reserve(directory, bytes.end)?;
        let added = directory.copies.replica_mut(device)?.add_window(bytes);
        added.map_err(|error| directory.copies.failed(error))?;
        directory.versions.fit(directory.copies.reserved());
    }
    Ok(directory.copies.replica_mut(device)?.hold(range.start))
}

/// Takes addresses away that nobody uses, where a range lies in them in part: its bytes have to lie beside each other.
fn make_way(directory: &mut Directory, device: Device, range: &Range<u64>) -> Result<()> {
    let Some(replica) = directory.copies.get(device).filter(|replica| !replica.has_addresses(range)) else {
        return Ok(());
    };
    let in_the_way = replica.windows_in(range);
    if let Some((bytes, _)) = in_the_way.iter().find(|(_, is_used)| *is_used) {
        let detail = format!(
            "cannot map bytes {} to {}: on {} addresses were reserved for bytes {} to {} when some of them were first mapped: close its other mappings there first",
            range.start,
            range.end,
            replica.memory.device.id(),
            bytes.start,
            bytes.end
        );
        return Err(Error::new(ErrorKind::BadUse, directory.path(), detail));
    }
    for (bytes, _) in &in_the_way {
        drop_window(directory, device, bytes)?;
    }
    // Anew, with frames for the length that it has now.
    if directory.copies.replica(device)?.end() == 0 {
        directory.copies.remove(device);
    }
    Ok(())
}

/// Memory to keep account of pages, so that following the file's growth asks for none.
fn reserve(directory: &mut Directory, end: u64) -> Result<()> {
    let (size, page_bytes) = (directory.versions.size(), directory.versions.page_bytes());
    let pages = end.div_ceil(page_bytes);
    let reserved = if pages <= PAGES_MAX {
        directory.versions.reserve(end).map_err(|error| error.to_string())
    } else {
        Err(format!("{PAGES_MAX} at most, and {pages} lie before the end of what is mapped"))
    };
    reserved.map_err(|why| {
        let detail = format!(
            "no memory to keep account of a file of {size} bytes in pages of {page_bytes} ({why}): use larger pages"
        );
        Error::new(ErrorKind::OutOfMemory, directory.path(), detail)
    })
}

/// A mapping whose first byte is at `at` has ended.
pub(crate) fn detach(directory: &mut Directory, device: Device, at: u64) {
    if let Some(replica) = directory.copies.get_mut(device) {
        replica.let_go(at);
    }
}

/// Keeps the memory of a range in place, besides whoever has acquired it: the frames.
pub(crate) fn pin(directory: &mut Directory, device: Device, range: &Range<u64>) -> Result<Range<usize>> {
    let frames = directory.copies.pin(device, range)?;
    directory.copies.replica_mut(device)?.hold(range.start);
    Ok(frames)
}

pub(crate) fn unpin(directory: &mut Directory, device: Device, frames: Range<usize>) {
    let first = frames.start as u64;
    directory.copies.unpin(device, frames);
    if let Some(replica) = directory.copies.get_mut(device) {
        replica.let_go(replica.bytes_of(&(first..first)).start);
    }
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
