//! Frames under the budget: memory for an image, and whose memory is taken for it.

use super::Directory;
use super::flush::{drop_bases, flush};
use crate::copies::replica::Image;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, step};
use crate::page::Device;
use std::ops::Range;

/// Gives a frame memory for an image. What is in use stays; what goes first is what can be made again on the device,
/// then what was not used for long, then what was kept for writing it home later.
///
/// # Errors
/// `OutOfMemory` if all that there may be is in use.
pub(super) fn map(directory: &mut Directory, device: Device, image: Image, frame: usize) -> Result<()> {
    loop {
        if directory.copies.map(device, image, frame)? {
            return Ok(());
        }
        let replica = directory.copies.replica_mut(device)?;
        if let Some(idle) = replica.frame_with_idle_twin() {
            directory.copies.unmap(device, Image::Twin, idle)?;
            directory.versions.unsettle_writers(device);
        } else if let Some(victim) = replica.victim() {
            evict(directory, device, victim)?;
        } else if let Some(frame) = replica.frame_with_base() {
            let pages = directory.pages_of_frame(device, frame)?;
            let pending = directory.versions.pending_on(device, pages);
            flush(directory, &pending)?;
            let pages = directory.copies.replica(device)?.pages_of(frame);
            drop_bases(directory, device, &pages)?;
        } else {
            let detail = format!(
                "the budget of {} bytes on {} is used up by what is acquired: release some of it, map smaller ranges, or raise the budget",
                replica.memory.budget_bytes(),
                replica.memory.device.id()
            );
            return Err(Error::new(ErrorKind::OutOfMemory, directory.path(), detail));
        }
    }
}

/// Takes a frame's memory away. What is pending reaches home first.
pub(crate) fn evict(directory: &mut Directory, device: Device, frame: usize) -> Result<()> {
    let pages: Vec<u64> = directory.pages_of_frame(device, frame)?.collect();
    let pending = directory.versions.pending_on(device, pages.iter().copied());
    flush(directory, &pending)?;
    step(Point::EvictFlushed, directory.path())?;
    directory.versions.note_evicted(device, &pages);
    step(Point::EvictDropped, directory.path())?;
    directory.versions.unsettle_device(device);
    Image::ALL.into_iter().rev().try_for_each(|image| directory.copies.unmap(device, image, frame))
}

/// Gives the memory of frames back that lie in a range and are not in use.
pub(crate) fn give_back(directory: &mut Directory, device: Device, range: &Range<u64>) -> Result<()> {
    let (replica, size) = (directory.copies.replica(device)?, directory.versions.size());
    let inside = |frame: &usize| {
        let bytes = replica.bytes_of(&(*frame as u64..*frame as u64 + 1));
        range.start <= bytes.start && bytes.end.min(size) <= range.end
    };
    let idle = |frame: &usize| replica.has(Image::Current, *frame) && !replica.is_pinned(*frame);
    let frames: Vec<usize> = replica.frames_of(range).filter(inside).filter(idle).collect();
    frames.into_iter().try_for_each(|frame| evict(directory, device, frame))
}

/// Takes memory away on a device that nobody uses, up to some bytes; how many.
pub(crate) fn give_room(directory: &mut Directory, device: Device, bytes: u64) -> u64 {
    let mut given = 0;
    while given < bytes
        && let Some(replica) = directory.copies.get_mut(device)
        && let Some(victim) = replica.victim()
    {
        let frame_bytes = replica.frame_bytes();
        if evict(directory, device, victim).is_err() {
            break;
        }
        given += frame_bytes;
    }
    given
}

/// Takes the addresses of some bytes away on a device; what was released there reaches home first.
pub(super) fn drop_window(directory: &mut Directory, device: Device, bytes: &Range<u64>) -> Result<()> {
    for frame in directory.copies.replica(device)?.mapped_frames(bytes) {
        evict(directory, device, frame)?;
    }
    directory.copies.replica_mut(device)?.remove_window(bytes);
    Ok(())
}
