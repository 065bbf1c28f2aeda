//! Demand mode: pages by their numbers, in frames that a session pins one by one.

use super::bring::bring;
use super::compare::{Asker, compare_with_file};
use super::fetch::Request;
use super::look::look;
use super::room::map;
use super::wait::with_ranges;
use super::{Directory, Locked};
use crate::copies::replica::Image;
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::Hold;
use crate::page::Device;
use crate::page_set::PageSet;
use crate::ranges::runs;
use std::ops::Range;
use std::path::PathBuf;

/// A device that something of the file is mapped on, and the file's name for messages.
pub(crate) fn device_and_path(directory: &Directory, device: Device) -> Result<(bifolio_device::Device, PathBuf)> {
    Ok((directory.copies.replica(device)?.memory.device.clone(), directory.path().to_owned()))
}

/// How many pages a frame holds on a device.
pub(crate) fn pages_per_frame(directory: &Directory, device: Device) -> Result<u64> {
    let pages = directory.copies.replica(device)?.pages_of(0);
    Ok(pages.end - pages.start)
}

/// Looks at the file, and tells which pages of a range are up to date on a device without anything being done. Those
/// about which there is doubt are not: they are compared when they are brought.
pub(crate) fn up_to_date(directory: &mut Locked<'_>, device: Device, range: &Range<u64>) -> Result<Vec<u64>> {
    look(directory, range)?;
    let versions = &directory.versions;
    Ok(versions.pages_of(range).filter(|page| versions.is_up_to_date(device, *page)).collect())
}

/// Does something with pages while they are locked.
pub(crate) fn with_pages<T>(directory: &mut Locked<'_>, pages: &PageSet, work: impl FnOnce(&mut Locked<'_>) -> T) -> T {
    let page_bytes = directory.versions.page_bytes();
    let bytes = pages.runs().iter().map(|run| run.start * page_bytes..run.end * page_bytes);
    with_ranges(directory, bytes, Hold::Change, work)
}

/// Pins a frame, which gets memory if it has none.
///
/// # Errors
/// `OutOfMemory` if all memory that there may be is pinned; then nothing is.
pub(crate) fn pin_frame(directory: &mut Locked<'_>, device: Device, frame: usize) -> Result<()> {
    directory.copies.replica_mut(device)?.pin(frame..frame + 1);
    let mapped = map(directory, device, Image::Current, frame);
    if mapped.is_err() {
        unpin_frame(directory, device, frame);
    }
    mapped
}

pub(crate) fn unpin_frame(directory: &mut Directory, device: Device, frame: usize) {
    directory.copies.unpin(device, frame..frame + 1);
}

/// Brings pages up to date whose frames are pinned, all of them in one go. Nobody looks whether the file has changed
/// since the session began. The pages are locked. The bytes that were fetched.
pub(crate) fn bring_pages(directory: &mut Locked<'_>, device: Device, pages: &PageSet) -> Result<u64> {
    refuse_cut(directory, pages)?;
    let mut taken = 0;
    for run in pages.runs() {
        taken += compare_with_file(directory, device, Asker::Acquires, run)?;
    }
    let behind = directory.versions.behind(device, pages.iter());
    directory.versions.counts.hits += (pages.len() - behind.len() as u64).saturating_sub(taken);
    if behind.is_empty() {
        return Ok(0);
    }
    let replica = directory.copies.replica(device)?;
    let mut frames: Vec<usize> = behind.iter().map(|page| replica.frame_of(*page)).collect();
    frames.dedup();
    bring(directory, &Request { device, frames: &frames, writable: false, behind: &behind })?;
    let bytes = |run: &Range<u64>| {
        let bytes = directory.versions.bytes_of(run);
        bytes.end - bytes.start
    };
    Ok(runs(behind).iter().map(bytes).sum())
}

/// The file may have been cut since the session began.
fn refuse_cut(directory: &Directory, pages: &PageSet) -> Result<()> {
    let versions = &directory.versions;
    let Some(page) = pages.iter().find(|page| *page >= versions.len()) else { return Ok(()) };
    let (start, size) = (page * versions.page_bytes(), versions.size());
    let detail = format!("the file has become shorter: byte {start} lies behind its end at {size}; map it again");
    Err(Error::new(ErrorKind::Read, directory.path(), detail))
}
