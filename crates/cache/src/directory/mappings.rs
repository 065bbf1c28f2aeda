//! Who holds addresses of the file: mappings, pins that outlive them, and the end of the last of its holders.

use super::failures::Unwritten;
use super::flush::flush_each;
use super::fold::fold_at_home;
use super::look::follow_cut;
use super::loss::surviving;
use super::room::evict_window;
use super::wait::with_pages;
use super::{Directory, Locked, no_memory};
use crate::copies::replica::{Image, Replica};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::monitor::Hold;
use crate::page::Device;
use crate::state::layout::PAGES_MAX;
use crate::state::replicas::Content;
use bifolio_device::DevicePtr;
use std::ops::Range;
use std::sync::Arc;

/// All that may be locked.
const ALL: Range<u64> = 0..u64::MAX;

/// Has one more mapping of a range on a device: the address of its first byte.
pub(crate) fn attach(
    directory: &mut Locked<'_>,
    device: Device,
    memory: &Arc<Memory>,
    range: &Range<u64>,
) -> Result<DevicePtr> {
    let len = directory.versions.size();
    make_way(directory, device, range)?;
    if directory.copies.get(device).is_none() {
        // Who has asked for its memory before it was lost would make a replica there again and again.
        memory.refuse_lost()?;
        let content = Content::of(directory.versions.region(), device);
        let content = content.map_err(|error| no_memory(directory.path(), &error))?;
        let replica = Replica::new(memory, &directory.options, content, len);
        directory.copies.insert(device, replica);
    }
    let unit = directory.copies.replica(device)?.frame_bytes();
    directory.widen_unit(unit);
    let replica = directory.copies.replica(device)?;
    if !replica.has_addresses(range) {
        let bytes = replica.window_for(range, len);
        reserve(directory, &bytes)?;
        let added = directory.copies.replica_mut(device)?.add_window(bytes);
        added.map_err(|error| directory.copies.failed(error))?;
        let reserved = directory.copies.reserved();
        directory.versions.fit(reserved);
    }
    Ok(directory.copies.replica_mut(device)?.hold(range.start))
}

/// Takes addresses away that nobody uses, where a range lies in them in part: its bytes have to lie beside each other.
/// Whoever brings something there ahead comes to his end before.
fn make_way(directory: &mut Locked<'_>, device: Device, range: &Range<u64>) -> Result<()> {
    let in_the_way = windows_in_the_way(directory, device, range);
    let Some(locked) = in_the_way.iter().map(|(bytes, _)| bytes.clone()).reduce(hull) else { return Ok(()) };
    with_pages(directory, &locked, Hold::Change, |directory| clear_away(directory, device, range))
}

/// None where the range has addresses as a whole.
fn windows_in_the_way(directory: &Directory, device: Device, range: &Range<u64>) -> Vec<(Range<u64>, bool)> {
    let replica = directory.copies.get(device).filter(|replica| !replica.has_addresses(range));
    replica.map_or(vec![], |replica| replica.windows_in(range))
}

fn hull(one: Range<u64>, other: Range<u64>) -> Range<u64> {
    one.start.min(other.start)..one.end.max(other.end)
}

fn clear_away(directory: &mut Locked<'_>, device: Device, range: &Range<u64>) -> Result<()> {
    let in_the_way = windows_in_the_way(directory, device, range);
    refuse_used(directory, device, range, &in_the_way)?;
    for (bytes, _) in &in_the_way {
        evict_window(directory, device, bytes)?;
    }
    // Somebody may have mapped them meanwhile.
    let in_the_way = windows_in_the_way(directory, device, range);
    refuse_used(directory, device, range, &in_the_way)?;
    let Some(replica) = directory.copies.get_mut(device) else { return Ok(()) };
    for (bytes, _) in &in_the_way {
        replica.remove_window(bytes);
    }
    // Anew, with frames for the length that it has now.
    if replica.end() == 0 {
        directory.copies.remove(device);
    }
    Ok(())
}

fn refuse_used(
    directory: &Directory,
    device: Device,
    range: &Range<u64>,
    in_the_way: &[(Range<u64>, bool)],
) -> Result<()> {
    let Some((bytes, _)) = in_the_way.iter().find(|(_, is_used)| *is_used) else { return Ok(()) };
    let detail = format!(
        "cannot map bytes {} to {}: on {} addresses were reserved for bytes {} to {} when some of them were first mapped: close its other mappings there first",
        range.start,
        range.end,
        directory.copies.replica(device)?.memory.device.id(),
        bytes.start,
        bytes.end
    );
    Err(Error::new(ErrorKind::BadUse, directory.path(), detail))
}

/// Memory to keep account of pages, so that following the file's growth asks for none.
fn reserve(directory: &mut Directory, bytes: &Range<u64>) -> Result<()> {
    let (size, page_bytes) = (directory.versions.size(), directory.versions.page_bytes());
    let pages = bytes.end.div_ceil(page_bytes);
    let reserved = if pages <= PAGES_MAX {
        directory.versions.reserve(bytes).map_err(|error| error.to_string())
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

/// Where a byte has its address, of what is mapped.
pub(crate) fn address(directory: &Directory, device: Device, at: u64) -> Result<DevicePtr> {
    let replica = directory.copies.replica(device)?;
    // SAFETY: only the address is used.
    Ok(unsafe { replica.all(at) }.ptr().offset_by(replica.place(at)))
}

/// Keeps the memory of a range in place, besides whoever has acquired it.
pub(crate) fn pin(directory: &mut Directory, device: Device, range: &Range<u64>) -> Result<()> {
    directory.copies.pin(device, range)?;
    directory.copies.replica_mut(device)?.hold(range.start);
    Ok(())
}

pub(crate) fn unpin(directory: &mut Directory, device: Device, range: &Range<u64>) {
    let Some(replica) = directory.copies.get_mut(device) else { return };
    replica.unpin(replica.frames_of(range));
    replica.let_go(range.start);
}

/// The frames that what kernels see of a range is in, with the byte of the file from which on each of them lies, and how
/// long they are.
pub(crate) fn frames(directory: &Directory, device: Device, range: &Range<u64>) -> Result<(u64, Vec<(u64, u32)>)> {
    let replica = directory.copies.replica(device)?;
    let number = |frame: usize| Some((frame as u64 * replica.frame_bytes(), replica.frame(Image::Current, frame)?));
    Ok((replica.frame_bytes(), replica.frames_of(range).filter_map(number).collect()))
}

/// Nobody has it open any more: what was released reaches the file, and all memory is given back but that of what does not.
pub(crate) fn end(directory: &mut Locked<'_>) -> Result<(), Unwritten> {
    let written = write_out(directory);
    match directory.keeper.take() {
        // What could not be written is there for whoever opens the file next, in whichever process.
        Some(_) if written.is_err() => directory.abandon(),
        Some((keeper, id)) => {
            keeper.drop_region(id);
            give_back_unused(directory);
        }
        None => give_back_unused(directory),
    }
    directory.versions.end();
    written
}

/// What was released reaches the file, as far as the file takes it.
pub(crate) fn write_out(directory: &mut Locked<'_>) -> Result<(), Unwritten> {
    let _ = follow_cut(directory, &ALL);
    fold_at_home(directory, &(0..directory.versions.size()));
    let outcome = surviving(directory, |directory| with_pages(directory, &ALL, Hold::Write, flush_all));
    // Some of it may have been written after the error.
    let left: Vec<u64> = directory.versions.pending(0..directory.versions.len()).into_iter().collect();
    match outcome {
        Err(error) if !left.is_empty() => Err(Unwritten::new(&directory.versions, &left, error)),
        _ => Ok(()),
    }
}

fn flush_all(directory: &mut Locked<'_>) -> Result<()> {
    let pending = directory.versions.pending(0..directory.versions.len());
    flush_each(directory, &pending)
}

/// Gives the memory of devices back on which nothing is mapped, but where there is something that the file lacks.
pub(crate) fn give_back_unused(directory: &mut Locked<'_>) {
    with_pages(directory, &ALL, Hold::Change, |directory| {
        (0..directory.copies.devices()).for_each(|device| drop_settled(directory, device));
    });
}

fn drop_settled(directory: &mut Directory, device: Device) {
    let Some(replica) = directory.copies.get(device).filter(|replica| !replica.is_in_use()) else { return };
    for frame in replica.mapped_frames(&(0..replica.end())) {
        let Ok(pages) = directory.pages_of_frame(device, frame) else { return };
        if directory.versions.pending_on(device, pages.clone()).is_empty() {
            pages.for_each(|page| directory.versions.note_dropped(device, page));
            directory.versions.unsettle_device(device);
            // Of a device that takes no memory back there is none to give.
            let _ = Image::ALL.into_iter().try_for_each(|image| directory.copies.unmap(device, image, frame));
        }
    }
    if !directory.versions.is_any_held_by(device) {
        directory.copies.remove(device);
    }
}
