//! Bringing pages up to date: what the file has is fetched from it, and what it lacks is folded from the devices that
//! have it.

use super::Locked;
use super::fetch::{Request, fetch};
use super::flush::flush;
use super::fold::fold;
use super::room::map;
use crate::copies::replica::Image;
use crate::error::{ErrorKind, Result};
use crate::fault::{Point, step};
use crate::page::Device;
use crate::page_set::PageSet;

/// Brings pages up to date that a device is behind in, and gives all frames of the request memory.
pub(super) fn bring(directory: &mut Locked<'_>, request: &Request<'_>) -> Result<()> {
    let unsettled = directory.versions.pending(request.behind.iter().copied());
    let settled: Vec<u64> = request.behind.iter().copied().filter(|page| !unsettled.contains(*page)).collect();
    fetch(directory, &Request { behind: &settled, ..*request })?;
    if unsettled.is_empty() {
        return Ok(());
    }
    let roomless = keep_bases(directory, request.device, &unsettled)?;
    flush(directory, &roomless)?;
    step(Point::AcquireFlushed, directory.path())?;
    // Making room has written some of the others to the file, too.
    let unsettled_now = directory.versions.pending(unsettled.iter());
    let settled: Vec<u64> = unsettled.iter().filter(|page| !unsettled_now.contains(*page)).collect();
    fetch(directory, &Request { behind: &settled, ..*request })?;
    fold(directory, request.device, &unsettled_now.into_iter().collect::<Vec<_>>())
}

/// Gives the frames of some pages memory for bases, and for twins, as far as there is any. The pages that have none.
fn keep_bases(directory: &mut Locked<'_>, device: Device, pages: &PageSet) -> Result<PageSet> {
    let replica = directory.copies.replica(device)?;
    let mut frames: Vec<usize> = pages.iter().map(|page| replica.frame_of(page)).collect();
    frames.dedup();
    for frame in frames {
        match keep_twin(directory, device, frame).and_then(|()| map(directory, device, Image::Base, frame)) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
            outcome => outcome?,
        }
    }
    // Making room for one may have taken another's.
    let replica = directory.copies.replica(device)?;
    let is_kept = |frame| replica.has(Image::Base, frame) && replica.has(Image::Twin, frame);
    Ok(pages.filtered(|page| !is_kept(replica.frame_of(*page))))
}

/// Gives a frame a twin, also where nobody writes: it is what others take from home, and no stray store gets into it.
fn keep_twin(directory: &mut Locked<'_>, device: Device, frame: usize) -> Result<()> {
    if directory.copies.replica(device)?.has(Image::Twin, frame) {
        return Ok(());
    }
    map(directory, device, Image::Twin, frame)?;
    let pages = directory.pages_of_frame(device, frame)?;
    let copies = &mut directory.copies;
    let copied = copies
        .memory(device)?
        .with_scratch(|scratch| copies.copy(device, pages, [Image::Current, Image::Twin], scratch));
    if copied.is_err() {
        copies.unmap(device, Image::Twin, frame)?;
    }
    copied.and_then(|()| copies.fill(device, Image::Twin, [frame]))
}
