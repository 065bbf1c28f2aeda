//! Flushing: writing what was released to the file.

use super::fold::fold_at_home;
use super::record::begin;
use super::wait::{with_ranges, with_turn_to_write, write_home};
use super::{Directory, Locked};
use crate::copies::fragments::Fragments;
use crate::copies::home::{read, write_masked};
use crate::copies::replica::Image;
use crate::error::{Error, Result};
use crate::fault::{Point, at, step};
use crate::memory::{FLUSH_BYTES, Memory};
use crate::monitor::Hold;
use crate::page::{Device, Home};
use crate::page_set::PageSet;
use crate::ranges::{chunks, intersection};
use crate::state::record::{Operation, RecordNumber, Transition};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Bytes whose homes are looked at before they are written, at a time.
const LOOK_BYTES: u64 = 1 << 20;

/// Everything that was released of a range reaches the file, part by part: who works with the file waits for no more
/// than one of them.
pub(crate) fn write_back(directory: &mut Locked<'_>, range: &Range<u64>) -> Result<()> {
    let mut at = range.start;
    while let Some(first) = directory.versions.first_unsettled(&(at..range.end)) {
        let part = first.max(at)..range.end.min(first + FLUSH_BYTES);
        fold_at_home(directory, &part);
        let locked = unsettled(directory, &part);
        with_ranges(directory, locked.iter().cloned(), Hold::Write, |directory| {
            locked.iter().try_for_each(|range| flush_range(directory, range))
        })?;
        at = part.end;
    }
    Ok(())
}

/// Where a range has pages that the file lacks something of: what has to be locked for them, as ranges conflict by that.
fn unsettled(directory: &Locked<'_>, range: &Range<u64>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = vec![];
    let mut at = range.start;
    while let Some(first) = directory.versions.first_unsettled(&(at..range.end)) {
        let whole = intersection(&directory.whole(&(first..first + 1)), range);
        at = whole.end;
        match all.last_mut() {
            Some(last) if last.end == whole.start => last.end = whole.end,
            _ => all.push(whole),
        }
    }
    all
}

/// The same at once, by whoever has locked it.
pub(super) fn flush_range(directory: &mut Locked<'_>, range: &Range<u64>) -> Result<()> {
    let pending = directory.versions.pending(directory.versions.pages_of(range));
    flush(directory, &pending)
}

/// Writes to the file what it lacks of some pages: what home has, and then what donors have released, who count from
/// its content. After a failure what was not written stays pending. The pages are locked.
pub(super) fn flush(directory: &mut Locked<'_>, pages: &PageSet) -> Result<()> {
    let devices = directory.copies.devices();
    for device in 0..devices {
        let is_home = |page: &u64| directory.versions.home(*page) == Home::Device(device);
        let pages = pages.filtered(is_home);
        flush_of(directory, device, &pages, 0)?;
    }
    (0..devices).try_for_each(|device| {
        let is_donor = |page: &u64| directory.versions.page(*page).is_some_and(|page| page.is_donor(device));
        let pages = pages.filtered(is_donor);
        flush_of(directory, device, &pages, 0)
    })
}

/// The same as far as it goes: page by page after a failure, so that one that cannot be written keeps no other back.
pub(super) fn flush_each(directory: &mut Locked<'_>, pages: &PageSet) -> Result<()> {
    let outcome = flush(directory, pages);
    if outcome.is_err() {
        for page in pages.iter() {
            let _ = flush(directory, &[page].into_iter().collect());
        }
    }
    outcome
}

/// The same of what one device has, from a byte of the file on: what lies before it is written.
pub(super) fn flush_of(directory: &mut Locked<'_>, device: Device, pages: &PageSet, from: u64) -> Result<()> {
    for run in pages.runs() {
        // Where nobody writes there are no twins.
        let bytes = directory.versions.bytes_of(run);
        for (image, part) in directory.copies.replica(device)?.settled_images(&bytes) {
            let pages = directory.versions.pages_of(&part);
            for chunk in chunks(&pages, pages_at_a_time(directory)) {
                flush_chunk(directory, device, &chunk, image, from)?;
            }
        }
    }
    Ok(())
}

/// What is known of a flush to whoever finds it half done, and from where on it is to be done.
#[derive(Debug, Default)]
pub(super) struct Begun {
    record: Option<RecordNumber>,
    from: u64,
}

/// Pages whose bytes and masks are moved at a time.
pub(super) fn pages_at_a_time(directory: &Directory) -> u64 {
    FLUSH_BYTES / directory.versions.page_bytes()
}

fn flush_chunk(directory: &mut Locked<'_>, device: Device, pages: &Range<u64>, image: Image, from: u64) -> Result<()> {
    let flush = Transition { bytes: from..u64::MAX, ..Transition::of(Operation::Flush, device) };
    let begun = Begun { record: begin(directory, &flush, pages.clone())?, from };
    let written = write_and_note(directory, device, pages, [image, Image::Base], &begun);
    let written = written.and_then(|lost| step(Point::FlushWritten, directory.path()).map(|()| lost));
    if let Ok(lost) = &written {
        directory.versions.note_flushed(device, pages, lost);
    }
    directory.versions.finish(begun.record, pages.clone());
    written?;
    step(Point::FlushNoted, directory.path())?;
    drop_bases(directory, device, pages)
}

/// Writes to the file, and notes in the second image what was written: of a base after a failure, so that a later flush
/// does not take it for somebody else's; of a twin always. The pages of which something was left out, as somebody else
/// was first.
pub(super) fn write_and_note(
    directory: &mut Locked<'_>,
    device: Device,
    pages: &Range<u64>,
    images: [Image; 2],
    begun: &Begun,
) -> Result<PageSet> {
    let mut done = 0;
    let versions = &directory.versions;
    let is_shared = images[0] == Image::Current && pages.clone().any(|page| versions.uses(device, page) > 1);
    let outcome = with_turn_to_write(directory, |directory, fragments| {
        write_differing(directory, device, pages, images, is_shared, (fragments, begun), &mut done)
    });
    let is_noted = if images[1] == Image::Base { outcome.is_err() } else { !is_shared };
    if outcome.is_err() && done > 0 {
        directory.versions.note_half_flushed(pages);
    }
    if is_noted && done > 0 {
        let start = directory.versions.bytes_of(pages).start;
        let copies = &directory.copies;
        let written = start..start + done as u64;
        copies.memory(device)?.with_scratch(|scratch| copies.copy_bytes(device, [written], images, scratch))?;
    }
    outcome
}

/// Writes to the file the bytes in which two images of a replica differ, from the first of them, and leaves those
/// that somebody else has written since the second was home's. Where the first is shared with kernels that may be
/// storing into it, all of this is done with one copy, which becomes the second.
fn write_differing(
    directory: &mut Locked<'_>,
    device: Device,
    pages: &Range<u64>,
    images: [Image; 2],
    is_shared: bool,
    (fragments, begun): (&mut Option<Fragments>, &Begun),
    done: &mut usize,
) -> Result<PageSet> {
    let memory = directory.copies.memory(device)?;
    let mut pinned = directory.wait(|| memory.borrow_outgoing())?;
    let bytes = directory.versions.bytes_of(pages);
    let len = (bytes.end - bytes.start) as usize;
    let (content, masks) = pinned.bytes_mut().split_at_mut(len);
    let masks = &mut masks[..len.div_ceil(8)];
    let copies = &directory.copies;
    memory.with_scratch(|scratch| {
        if is_shared {
            copies.differing_bytes_of_copies(device, &bytes, images, scratch, (content, masks))
        } else {
            copies.differing_bytes(device, &bytes, images, scratch, (content, masks))
        }
    })?;
    clear_before(masks, begun.from.saturating_sub(bytes.start) as usize);
    step(Point::FlushRead, directory.path())?;
    let is_certain = directory.versions.is_file_as_seen(device, pages) && directory.copies.home.is_unchanged();
    let mut lost = PageSet::new();
    // Where the file is looked at before, there is little between the look and the write.
    let page_bytes = directory.versions.page_bytes();
    let at_a_time = if is_certain { pages.end - pages.start } else { (LOOK_BYTES / page_bytes).max(1) };
    for piece in chunks(pages, at_a_time) {
        let here = directory.versions.bytes_of(&piece);
        let [from, to] = [here.start, here.end].map(|at| (at - bytes.start) as usize);
        let (content, masks) = (&content[from..to], &mut masks[from / 8..to.div_ceil(8)]);
        if !is_certain {
            lost.extend(leave_what_others_wrote(directory, device, &memory, &piece, images[1], (content, masks))?);
        }
        let mut written = 0;
        let outcome =
            write_home(directory, |file| write_masked(file, here.start, content, masks, &mut written, fragments));
        *done = from + written;
        if is_shared {
            let copies = &directory.copies;
            let to = copies.replica(device)?.slice(images[1], &(here.start..here.start + written as u64));
            memory.with_scratch(|scratch| {
                scratch.stream.upload(to, &content[..written]).map_err(|error| copies.failed(error))
            })?;
        }
        outcome.map_err(|error| Error::flushing(directory.path(), error))?;
        directory.versions.advance(begun.record, here.end);
    }
    Ok(lost)
}

/// Clears the bits of the first bytes.
fn clear_before(mask: &mut [u8], bytes: usize) {
    let whole = (bytes / 8).min(mask.len());
    mask[..whole].fill(0);
    if let Some(bits) = mask.get_mut(whole) {
        *bits &= 0xff << (bytes % 8);
    }
}

/// Takes those bytes out of the masks of some pages that somebody else has written to the file since it had what an image
/// has: they stay. The pages with such bytes that were to become something else.
fn leave_what_others_wrote(
    directory: &mut Locked<'_>,
    device: Device,
    memory: &Memory,
    pages: &Range<u64>,
    base: Image,
    (content, masks): (&[u8], &mut [u8]),
) -> Result<PageSet> {
    // From the first change to the last.
    let Some(first) = masks.iter().position(|bits| *bits != 0) else { return Ok(PageSet::new()) };
    let last = masks.iter().rposition(|bits| *bits != 0).unwrap_or(first);
    let hull = first * 8..(last * 8 + 8).min(content.len());
    let (masks, content) = (&mut masks[first..=last], &content[hull.clone()]);
    let page_bytes = directory.versions.page_bytes();
    let start = pages.start * page_bytes + hull.start as u64;
    let (mut old, mut home) = (vec![0; content.len()], vec![0; content.len()]);
    let copies = &directory.copies;
    let image = copies.replica(device)?.slice(base, &(start..start + content.len() as u64));
    memory.with_scratch(|scratch| scratch.stream.download(&mut old, image).map_err(|error| copies.failed(error)))?;
    let file = Arc::clone(&copies.home.file);
    let there = directory.wait(|| at(Point::HomeRead).and_then(|()| read(&file, &mut home, start)));
    let there = there.map_err(|error| Error::flushing(directory.path(), error))?;
    // What is not there any more is not written either.
    home[there..].copy_from_slice(&old[there..]);
    let page_of = |at: usize| (start + at as u64) / page_bytes;
    Ok(leave_others(masks, [content, &old, &home]).into_iter().map(page_of).collect())
}

/// Clears the bits of bytes that home has otherwise than the base of a flush: somebody else has written them. Which of
/// those were to become something else.
fn leave_others(mask: &mut [u8], [content, base, home]: [&[u8]; 3]) -> Vec<usize> {
    let mut left = vec![];
    for (number, bits) in mask.iter_mut().enumerate().filter(|(_, bits)| **bits != 0) {
        let here = number * 8..(number * 8 + 8).min(content.len());
        if base[here.clone()] == home[here.clone()] {
            continue;
        }
        for at in here.filter(|at| base[*at] != home[*at]) {
            let bit = 1 << (at % 8);
            if *bits & bit != 0 && home[at] != content[at] {
                left.push(at);
            }
            *bits &= !bit;
        }
    }
    left
}

/// Gives the memory of bases back that no pending page needs.
pub(super) fn drop_bases(directory: &mut Directory, device: Device, pages: &Range<u64>) -> Result<()> {
    let replica = directory.copies.replica(device)?;
    let frames: BTreeSet<usize> = pages.clone().map(|page| replica.frame_of(page)).collect();
    for frame in frames {
        let pages = directory.pages_of_frame(device, frame)?;
        if directory.versions.pending_on(device, pages).is_empty() {
            directory.copies.unmap(device, Image::Base, frame)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_has_written_is_left() {
        let (base, home) = (*b"....................", *b"..C.C...........C..=");
        let content = *b"1111111111111111111=";
        let leave = |mut mask: [u8; 3]| {
            let left = leave_others(&mut mask, [&content, &base, &home]);
            (mask, left)
        };
        // The last is there already.
        assert_eq!(leave([0xff, 0xff, 0x0f]), ([0b1110_1011, 0xff, 0b0000_0110], vec![2, 4, 16]));
        assert_eq!(leave([0, 0, 0b1000]), ([0; 3], vec![]));
    }
}
