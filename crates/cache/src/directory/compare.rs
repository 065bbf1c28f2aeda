//! Finding out what has changed: in the file, where nobody tells, and on a device since its latest release.

use super::flush::{drop_bases, flush};
use super::wait::{read_home, scratch_to_read};
use super::{Directory, Locked};
use crate::copies::replica::Image;
use crate::copies::take::Taken;
use crate::error::Result;
use crate::fault::{Point, step};
use crate::memory::{Memory, Scratch};
use crate::page::{Device, Home};
use crate::page_set::PageSet;
use crate::ranges::{chunks, runs};
use std::ops::Range;

/// What is read ends with the file, and what lies behind that, in the last word, is zeroes.
const ROOM_BYTES: u64 = 16;

/// Who asks for a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// The device acquires the pages: what others have written is seen there from now on.
    Acquires,
    /// Nobody sees anything by it.
    Looks,
}

/// Compares the file with what it had, where something unknown may have happened since the last time, at the rate of the
/// link: pages that a device is about to use as they are, and those whose home is a device, which knows what the file
/// had. What has changed follows the file at once, as its content is on the device: in what acquires it, and at home,
/// which lays what it has for the file on that. Where that cannot be done the file is home again, and devices' changes are
/// laid over what it has now. How many of the device's pages have followed.
pub(super) fn compare_with_file(
    directory: &mut Locked<'_>,
    device: Device,
    asker: Asker,
    pages: &Range<u64>,
) -> Result<u64> {
    let mut all_taken = 0;
    for (asked, doubtful) in directory.versions.doubtful(device, pages) {
        let memory = directory.copies.memory(asked)?;
        let at_a_time = memory.incoming_bytes() / directory.versions.page_bytes();
        let acquires = asker == Asker::Acquires && asked == device;
        for chunk in runs(doubtful).iter().flat_map(|run| chunks(run, at_a_time)) {
            let (mut changed, taken) = look_and_take(directory, asked, acquires, &chunk, &memory)?;
            changed.retain(|page| !taken.contains(*page));
            all_taken += if asked == device { taken.len() } else { 0 };
            let pending = directory.versions.pending(changed.iter());
            flush(directory, &pending)?;
            directory.versions.note_changed(changed);
            taken.runs().iter().try_for_each(|run| drop_bases(directory, asked, run))?;
            directory.versions.note_compared(asked, &chunk);
        }
    }
    Ok(all_taken)
}

/// Those of some pages in which the file differs from what a device knows of it, and those of them that it has taken.
fn look_and_take(
    directory: &mut Locked<'_>,
    device: Device,
    acquires: bool,
    pages: &Range<u64>,
    memory: &Memory,
) -> Result<(PageSet, PageSet)> {
    let scratch = scratch_to_read(directory, memory)?;
    let bytes = directory.versions.bytes_of(pages);
    let incoming = scratch.incoming.slice().part(0, (bytes.end - bytes.start).next_multiple_of(ROOM_BYTES));
    let incoming = incoming.map_err(|error| directory.copies.failed(error))?;
    read_home(directory, device, &[(bytes.clone(), 0)], incoming)?;
    let Directory { versions, copies, .. } = &**directory;
    let is_pending = |page| versions.is_pending(device, page);
    let part = incoming.part(0, bytes.end - bytes.start).map_err(|error| copies.failed(error))?;
    let changed = copies.differ_from_home(device, &bytes, is_pending, part, &scratch)?;
    let mut all_taken = PageSet::new();
    for taken in [Taken::Behind, Taken::Home] {
        let here = taking(directory, device, taken, acquires, &changed, &scratch)?;
        if here.is_empty() {
            continue;
        }
        let pages_here: Vec<u64> = here.iter().collect();
        let (folded, outcome) = directory.copies.take(device, &pages_here, taken, (&bytes, incoming), &scratch)?;
        let outcome = outcome.and_then(|()| step(Point::FoldMerged, directory.path()));
        for (page, folded) in here.iter().zip(folded) {
            if taken == Taken::Home {
                directory.versions.note_rebased(device, page, folded);
            } else {
                directory.versions.note_taken(device, page, folded);
            }
        }
        outcome?;
        all_taken.extend(here);
    }
    Ok((changed, all_taken))
}

/// Those of some pages in which the file has changed that a device takes from it at once. One that is home and does not
/// acquire them lays nothing under kernels of a program's, nor under what it has not released: that would count as newer
/// than what a CPU has written.
fn taking(
    directory: &Directory,
    device: Device,
    taken: Taken,
    acquires: bool,
    changed: &PageSet,
    scratch: &Scratch,
) -> Result<PageSet> {
    let Directory { versions, copies, .. } = directory;
    let replica = copies.replica(device)?;
    // What another process may have to end goes by ways that leave a record.
    if replica.memory.is_kept() {
        return Ok(PageSet::new());
    }
    let is_taken = |page: &u64| match (versions.home(*page), taken) {
        (Home::File, Taken::Behind) => {
            acquires && versions.is_settled(*page) && !versions.behind(device, [*page]).contains(page)
        }
        (Home::Device(home), Taken::Home) => {
            let frame = replica.frame_of(*page);
            home == device
                && versions.uses(device, *page) == 0
                && replica.has(Image::Twin, frame)
                && replica.has(Image::Base, frame)
        }
        _ => false,
    };
    let mut pages = changed.filtered(is_taken);
    if let (Taken::Home, false, Some(hull)) = (taken, acquires, pages.hull()) {
        let hull = versions.bytes_of(&hull);
        let own = changed_since_release(directory, device, &hull, scratch)?;
        pages.retain(|page| !own.contains(*page));
    }
    Ok(pages)
}

/// Pages of a range that the device has changed since its latest release.
pub(super) fn changed_since_release(
    directory: &Directory,
    device: Device,
    range: &Range<u64>,
    scratch: &Scratch,
) -> Result<PageSet> {
    let Directory { versions, copies, .. } = directory;
    let mut changed = copies.changed_since_release(device, range, versions.size(), scratch)?;
    // What is in the place of a page that was never fetched is nobody's.
    changed.retain(|page| versions.is_held_by(device, *page));
    Ok(changed)
}
