//! Frames under the budget: memory for an image, and whose memory is taken for it.

use super::flush::{drop_bases, flush};
use super::wait::{with_free_frame, with_pages};
use super::{Directory, Locked};
use crate::copies::replica::Image;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, step};
use crate::monitor::Hold;
use crate::page::Device;
use std::ops::Range;

/// Gives a frame memory for an image. What is in use stays; what goes first is what can be made again on the device,
/// then what was not used for long, then what was kept for writing it home later.
///
/// What other operations have locked at the moment is left alone.
///
/// # Errors
/// `OutOfMemory` if all that there may be is in use; a passing one, if operations that have not ended hold some of it.
pub(super) fn map(directory: &mut Locked<'_>, device: Device, image: Image, frame: usize) -> Result<()> {
    within_budget(directory, device, |directory| {
        let is_mapped = directory.copies.map(device, image, frame)?;
        Ok(is_mapped.then_some(()))
    })
}

/// Has `take` take memory until there is some for it, in the same order.
///
/// # Errors
/// As above.
pub(super) fn within_budget<T>(
    directory: &mut Locked<'_>,
    device: Device,
    mut take: impl FnMut(&mut Directory) -> Result<Option<T>>,
) -> Result<T> {
    loop {
        if let Some(taken) = take(directory)? {
            return Ok(taken);
        }
        let (Directory { versions, copies, .. }, others) = directory.with_others();
        let is_free = |bytes: &Range<u64>| !others.hold(bytes);
        let replica = copies.replica_mut(device)?;
        if let Some(idle) = replica.frame_with_idle_twin(is_free) {
            copies.unmap(device, Image::Twin, idle)?;
            versions.unsettle_writers(device);
        } else if let Some(victim) = replica.victim(is_free) {
            evict_unused(directory, device, victim)?;
        } else if let Some(frame) = replica.frame_with_base(is_free) {
            with_free_frame(directory, device, frame, |directory| write_bases(directory, device, frame))?;
        } else {
            let is_passing = replica.has_memory_where(|bytes| others.hold(bytes));
            let (budget, id) = (replica.memory.budget_bytes(), replica.memory.device.id());
            let needed = match replica.memory.limit_bytes() {
                limit if limit < budget => format!(", of which others leave {limit} now,"),
                _ => String::new(),
            };
            let left = match directory.asides.bytes(device) {
                0 => String::new(),
                bytes => format!(" ({bytes} of them versions that readers keep)"),
            };
            let detail = format!(
                "the budget of {budget} bytes on {id}{needed} is used up by what is acquired{left}: release some of it, map smaller ranges, or raise the budget"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, directory.path(), detail).passing(is_passing));
        }
    }
}

/// Has the file get what a frame's bases were kept for, and gives their memory back.
fn write_bases(directory: &mut Locked<'_>, device: Device, frame: usize) -> Result<()> {
    let pages = directory.pages_of_frame(device, frame)?;
    let pending = directory.versions.pending_on(device, pages);
    flush(directory, &pending)?;
    let pages = directory.copies.replica(device)?.pages_of(frame);
    drop_bases(directory, device, &pages)
}

/// Takes a frame's memory away that nobody else has locked, unless somebody acquires it before; whether it did.
fn evict_unused(directory: &mut Locked<'_>, device: Device, frame: usize) -> Result<bool> {
    let evicted = with_free_frame(directory, device, frame, |directory| {
        write_out(directory, device, frame)?;
        let is_unused = !directory.copies.replica(device)?.is_pinned(frame);
        if is_unused {
            drop_frame(directory, device, frame)?;
        }
        Ok(is_unused)
    });
    Ok(evicted? == Some(true))
}

/// Takes a frame's memory away, in use or not, by whoever has locked it. What is pending reaches home first.
fn evict_locked(directory: &mut Locked<'_>, device: Device, frame: usize) -> Result<()> {
    write_out(directory, device, frame)?;
    drop_frame(directory, device, frame)
}

/// The same, once nobody else has locked it.
#[cfg(feature = "fault-injection")]
pub(crate) fn evict(directory: &mut Locked<'_>, device: Device, frame: usize) -> Result<()> {
    let bytes = directory.copies.replica(device)?.bytes_of(&(frame as u64..frame as u64 + 1));
    with_pages(directory, &bytes, Hold::Change, |directory| evict_locked(directory, device, frame))
}

fn write_out(directory: &mut Locked<'_>, device: Device, frame: usize) -> Result<()> {
    let pages = directory.pages_of_frame(device, frame)?;
    let pending = directory.versions.pending_on(device, pages);
    flush(directory, &pending)?;
    step(Point::EvictFlushed, directory.path())
}

fn drop_frame(directory: &mut Directory, device: Device, frame: usize) -> Result<()> {
    let pages: Vec<u64> = directory.pages_of_frame(device, frame)?.collect();
    directory.versions.note_evicted(device, &pages);
    step(Point::EvictDropped, directory.path())?;
    directory.versions.unsettle_device(device);
    Image::ALL.into_iter().rev().try_for_each(|image| directory.copies.unmap(device, image, frame))
}

/// Gives the memory of frames back that lie in a range and are not in use.
pub(crate) fn give_back(directory: &mut Locked<'_>, device: Device, range: &Range<u64>) -> Result<()> {
    with_pages(directory, range, Hold::Write, |directory| {
        let (replica, size) = (directory.copies.replica(device)?, directory.versions.size());
        let inside = |frame: &usize| {
            let bytes = replica.bytes_of(&(*frame as u64..*frame as u64 + 1));
            range.start <= bytes.start && bytes.end.min(size) <= range.end
        };
        let idle = |frame: &usize| replica.has(Image::Current, *frame) && !replica.is_pinned(*frame);
        let frames: Vec<usize> = replica.frames_of(range).filter(inside).filter(idle).collect();
        frames.into_iter().try_for_each(|frame| evict_unused(directory, device, frame).map(|_| ()))
    })
}

/// Takes memory away on a device that nobody uses, up to some bytes: how many, and whether there is more in the hands of
/// operations that have not ended.
pub(crate) fn give_room(directory: &mut Locked<'_>, device: Device, bytes: u64) -> (u64, bool) {
    let mut given = 0;
    while given < bytes {
        let (Directory { copies, .. }, others) = directory.with_others();
        let Some(replica) = copies.get_mut(device) else { return (given, false) };
        let frame_bytes = replica.frame_bytes();
        let Some(victim) = replica.victim(|bytes| !others.hold(bytes)) else {
            return (given, replica.has_memory_where(|bytes| others.hold(bytes)));
        };
        match evict_unused(directory, device, victim) {
            Ok(is_evicted) => given += if is_evicted { frame_bytes } else { 0 },
            Err(_) => break,
        }
    }
    (given, false)
}

/// Takes memory away on a device that nobody uses and whose content is elsewhere as well, up to some bytes: how many. Nothing
/// is written for it.
pub(crate) fn give_clean(directory: &mut Locked<'_>, device: Device, bytes: u64) -> Result<u64> {
    let mut given = 0;
    while given < bytes {
        let (Directory { versions, copies, .. }, others) = directory.with_others();
        let Some(replica) = copies.get_mut(device) else { break };
        let (frame_bytes, page_bytes) = (replica.frame_bytes(), versions.page_bytes());
        if let Some(idle) = replica.frame_with_idle_twin(|bytes| !others.hold(bytes)) {
            copies.unmap(device, Image::Twin, idle)?;
            versions.unsettle_writers(device);
            given += frame_bytes;
            continue;
        }
        let is_clean = |bytes: &Range<u64>| {
            let pages = bytes.start / page_bytes..(bytes.end / page_bytes).min(versions.len());
            versions.pending_on(device, pages.start.min(pages.end)..pages.end).is_empty()
        };
        let Some(victim) = replica.victim(|bytes| !others.hold(bytes) && is_clean(bytes)) else { break };
        let dropped = with_free_frame(directory, device, victim, |directory| drop_frame(directory, device, victim))?;
        given += dropped.map_or(0, |()| frame_bytes);
    }
    Ok(given)
}

/// Takes the memory of some addresses of a device away, by whoever has locked their bytes; what was released there
/// reaches home first.
pub(super) fn evict_window(directory: &mut Locked<'_>, device: Device, bytes: &Range<u64>) -> Result<()> {
    let frames = directory.copies.replica(device)?.mapped_frames(bytes);
    frames.into_iter().try_for_each(|frame| evict_locked(directory, device, frame))
}
