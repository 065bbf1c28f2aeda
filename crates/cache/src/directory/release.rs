//! Publishing what a device has changed, and taking back what it has not released.

use super::compare::{Asker, changed_since_release, compare_with_file};
use super::flush::{Begun, flush, flush_range, pages_at_a_time, write_and_note};
use super::fold::fold;
use super::look::follow_cut;
use super::record::begin;
use super::room::map;
use super::wait::with_pages;
use super::{Directory, Locked};
use crate::copies::replica::Image;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, step};
use crate::memory::Scratch;
use crate::monitor::Hold;
use crate::options::Mode;
use crate::page::{BeforeRelease, Device};
use crate::page_set::PageSet;
use crate::ranges::{chunks, intersection, runs, without};
use crate::state::record::{Operation, Transition};
use crate::stats::Report;
use std::ops::Range;
use std::time::Instant;

/// Publishes what a device has changed in a range. After a failure the range is acquired as before, and may be
/// released again.
pub(crate) fn release(
    directory: &mut Locked<'_>,
    device: Device,
    range: &Range<u64>,
    writable: bool,
) -> Result<Report> {
    let started = Instant::now();
    let before = directory.versions.counts;
    if writable {
        publish(directory, device, range)?;
    }
    step(Point::Released, directory.path())?;
    let frames = directory.copies.replica(device)?.frames_of(range);
    if !directory.copies.unpin(device, frames) {
        let detail = format!("cannot release bytes {} to {}: not acquired", range.start, range.end);
        return Err(Error::new(ErrorKind::BadUse, directory.path(), detail));
    }
    if writable {
        directory.versions.end_use(device, range);
    }
    Ok(Report::between(&before, &directory.versions.counts, started))
}

/// The same, and what was acquired stays so.
pub(crate) fn publish(directory: &mut Locked<'_>, device: Device, range: &Range<u64>) -> Result<()> {
    follow_cut(directory, range)?;
    with_pages(directory, range, Hold::Change, |directory| publish_locked(directory, device, range))
}

fn publish_locked(directory: &mut Locked<'_>, device: Device, range: &Range<u64>) -> Result<()> {
    let memory = directory.copies.memory(device)?;
    let changed = memory.with_scratch(|scratch| changed_since_release(directory, device, range, scratch))?;
    step(Point::ReleaseCompared, directory.path())?;
    if !changed.is_empty() {
        bring_before(directory, device, &changed)?;
        let (kept, direct) = find_room(directory, device, &changed)?;
        step(Point::ReleaseRoom, directory.path())?;
        // These count from the file's content.
        let pending = directory.versions.pending(direct.iter());
        flush(directory, &pending)?;
        release_direct(directory, device, &direct)?;
        memory.with_scratch(|scratch| release_kept(directory, device, &kept, scratch))?;
    }
    // That may be more than what has changed: what an earlier release could not write.
    if directory.options.mode == Mode::Eager { flush_range(directory, range) } else { Ok(()) }
}

/// Pages whose base is kept in case another device is lost are acquired or flushed first: their base cannot tell the
/// new change from what home has by now.
fn bring_before(directory: &mut Locked<'_>, device: Device, changed: &PageSet) -> Result<()> {
    let wanting = |directory: &Directory, what: BeforeRelease| -> PageSet {
        let versions = &directory.versions;
        let is = |page: &u64| versions.page(*page).is_some_and(|page| page.before_release(device) == what);
        changed.filtered(is)
    };
    let brought = wanting(directory, BeforeRelease::Bring);
    if !brought.is_empty() && !directory.copies.home.look().map_err(Error::reading)?.is_unchanged {
        // What a CPU has written since the device acquired them is not to come under its release.
        directory.versions.doubt();
    }
    // They may be flushed by that, and lend nothing any more.
    for run in brought.runs() {
        compare_with_file(directory, device, Asker::Looks, run)?;
    }
    let flushed = wanting(directory, BeforeRelease::Flush);
    flush(directory, &flushed)?;
    let brought: Vec<u64> = wanting(directory, BeforeRelease::Bring).into_iter().collect();
    fold(directory, device, &brought)
}

/// Changed pages whose base can be kept, as there is memory for it, and the others.
fn find_room(directory: &mut Locked<'_>, device: Device, changed: &PageSet) -> Result<(PageSet, PageSet)> {
    let replica = directory.copies.replica(device)?;
    let mut frames: Vec<usize> = changed.iter().map(|page| replica.frame_of(page)).collect();
    frames.dedup();
    for frame in frames {
        match map(directory, device, Image::Base, frame) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
            outcome => outcome?,
        }
    }
    // Making room for one may have taken another's.
    let replica = directory.copies.replica(device)?;
    let has_room = |page: &u64| replica.has(Image::Base, replica.frame_of(*page));
    Ok((changed.filtered(has_room), changed.filtered(|page| !has_room(page))))
}

/// Releases pages whose base cannot be kept: nothing of them is released before home has it.
fn release_direct(directory: &mut Locked<'_>, device: Device, pages: &PageSet) -> Result<()> {
    for run in pages.runs() {
        for chunk in chunks(run, pages_at_a_time(directory)) {
            let written = write_and_note(directory, device, &chunk, [Image::Current, Image::Twin], &Begun::default());
            let written = written.and_then(|lost| step(Point::DirectWritten, directory.path()).map(|()| lost));
            // Also after a failure, which may have left some of it in the file.
            let lost = written.as_ref().ok().cloned().unwrap_or_default();
            directory.versions.note_written(device, &chunk, &lost);
            written?;
        }
    }
    Ok(())
}

/// Releases pages that stay on the device.
fn release_kept(directory: &mut Directory, device: Device, pages: &PageSet, scratch: &Scratch) -> Result<()> {
    let versions = &directory.versions;
    let fresh = pages.iter().filter(|page| !versions.is_pending(device, *page));
    directory.copies.copy(device, fresh, [Image::Twin, Image::Base], scratch)?;
    step(Point::BaseKept, directory.path())?;
    let release = Transition::of(Operation::Release, device);
    let record = begin(directory, &release, pages.iter())?;
    let outcome = release_noted(directory, device, pages, scratch);
    directory.versions.finish(record, pages.iter());
    outcome
}

/// The same, of pages with bases. It may have been begun before.
pub(super) fn release_noted(
    directory: &mut Directory,
    device: Device,
    pages: &PageSet,
    scratch: &Scratch,
) -> Result<()> {
    // Also after a failure: what the twin has got by then is released.
    directory.versions.note_released(device, pages.iter());
    step(Point::ReleaseNoted, directory.path())?;
    directory.copies.copy(device, pages.iter(), [Image::Current, Image::Twin], scratch)?;
    step(Point::ReleaseKept, directory.path())
}

/// Takes back what a device has changed in an acquired range and not released, except for what it has acquired
/// by other mappings as well.
pub(crate) fn discard(directory: &mut Locked<'_>, device: Device, range: &Range<u64>, writable: bool) {
    if writable {
        with_pages(directory, range, Hold::Change, |directory| discard_locked(directory, device, range));
    }
    let Ok(replica) = directory.copies.replica(device) else { return };
    let frames = replica.frames_of(range);
    directory.copies.unpin(device, frames);
}

fn discard_locked(directory: &mut Locked<'_>, device: Device, range: &Range<u64>) {
    directory.versions.end_use(device, range);
    for part in without(range, directory.versions.in_use(device)) {
        if let Ok(pages) = take_back(directory, device, &part) {
            directory.versions.counts.discarded += pages;
            continue;
        }
        // The device's copy is not to be believed any more, save of what others have changed: they would lose that.
        for page in directory.versions.pages_of(&part) {
            if directory.versions.uses(device, page) > 0 {
                continue;
            }
            // What it has released is not taken back with the rest.
            let pending = directory.versions.pending_on(device, [page]);
            if flush(directory, &pending).is_ok() {
                directory.versions.note_dropped(device, page);
            } else {
                directory.versions.note_changed([page]);
            }
        }
        directory.versions.unsettle_device(device);
    }
}

/// How many pages had changes.
fn take_back(directory: &Directory, device: Device, part: &Range<u64>) -> Result<u64> {
    let Directory { versions, copies, .. } = directory;
    copies.memory(device)?.with_scratch(|scratch| {
        let changed = changed_since_release(directory, device, part, scratch)?;
        step(Point::DiscardCompared, directory.path())?;
        let pages = changed.len();
        // The file may end before the part does, or before it begins.
        let bytes = runs(changed).into_iter().map(|pages| intersection(&versions.bytes_of(&pages), part));
        copies.copy_bytes(device, bytes.filter(|bytes| !bytes.is_empty()), [Image::Twin, Image::Current], scratch)?;
        Ok(pages)
    })
}
