//! Pages that are locked, and waiting for a disk meanwhile.
//!
//! An operation that changes something of pages, or has them written, locks them first, by their bytes. Ranges conflict
//! by whole frames, the longest that any device has: who gives a frame memory, or takes it away, has all of it to
//! himself. While an operation waits for a disk it holds its ranges, scratch memory that it reads into or pinned memory
//! that it writes from, and at most one turn of those of a file (`copies/home.rs`); everything else it has given up.
//!
//! ```text
//!   look     a cut, or growth: waits for who holds what is behind the end, and is over before anything else is locked
//!   ranges   waited for by who holds none; further ones (a victim's) are taken if they are free, or not at all
//!   a turn   to write to a file, or to make it durable
//!   memory   for what goes to a file, then scratch memory
//!   mutex    of the directory: taken last, and given up whenever any of the others is waited for
//! ```
//!
//! Who has something of a later line waits for nothing of an earlier one. Scratch memory for work of a device alone is
//! the exception that is waited for under the mutex: whoever has some gives it back without waiting for a disk or a mutex
//! (`lending`).

use super::Locked;
use crate::copies::fragments::Fragments;
use crate::copies::home::write_by_itself;
use crate::copies::plan::Extent;
use crate::error::Result;
use crate::fault::{Point, step};
use crate::lending::Use;
use crate::memory::{Borrowed, Memory};
use crate::monitor::Hold;
use crate::page::Device;
use bifolio_device::DeviceSlice;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// Does something with the pages of a range while they are locked.
pub(super) fn with_pages<T>(
    directory: &mut Locked<'_>,
    range: &Range<u64>,
    hold: Hold,
    work: impl FnOnce(&mut Locked<'_>) -> T,
) -> T {
    let range = directory.versions.whole_pages(range);
    with_ranges(directory, [range], hold, work)
}

/// The same with several ranges, which are locked all at once.
pub(super) fn with_ranges<T>(
    directory: &mut Locked<'_>,
    ranges: impl IntoIterator<Item = Range<u64>>,
    hold: Hold,
    work: impl FnOnce(&mut Locked<'_>) -> T,
) -> T {
    directory.take(ranges, hold);
    // What is read from now on is as new as the latest look.
    directory.versions.know_as_of_now();
    let outcome = work(directory);
    directory.give_all();
    outcome
}

/// The same with a frame of a device, unless somebody else has something of it.
pub(super) fn with_free_frame<T>(
    directory: &mut Locked<'_>,
    device: Device,
    frame: usize,
    work: impl FnOnce(&mut Locked<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let bytes = directory.copies.replica(device)?.bytes_of(&(frame as u64..frame as u64 + 1));
    let Some(key) = directory.try_take(bytes, Hold::Write) else { return Ok(None) };
    let outcome = work(directory);
    directory.give(&key);
    outcome.map(Some)
}

/// Scratch memory that something is read into.
pub(super) fn scratch_to_read<'a>(directory: &mut Locked<'_>, memory: &'a Memory) -> Result<Borrowed<'a>> {
    directory.wait(|| memory.borrow_scratch(Use::Slow))
}

/// Reads home into memory of a device's.
pub(super) fn read_home(
    directory: &mut Locked<'_>,
    device: Device,
    list: &[Extent],
    to: DeviceSlice<'_>,
) -> Result<()> {
    let source = directory.copies.source(device)?;
    directory.wait(|| {
        step(Point::HomeRead, source.path())?;
        source.read(list, to)
    })
}

/// Lets `work` write to the file, whose turn is the caller's.
pub(super) fn write_home(directory: &mut Locked<'_>, work: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    directory.copies.home.begin_write()?;
    let file = Arc::clone(&directory.copies.home.file);
    let outcome = directory.wait(|| write_by_itself(&file, work));
    directory.copies.home.end_write(outcome.is_ok());
    outcome
}

/// Does something with the file while it is the caller's turn to write to it.
pub(super) fn with_turn_to_write<T>(
    directory: &mut Locked<'_>,
    work: impl FnOnce(&mut Locked<'_>, &mut Option<Fragments>) -> T,
) -> T {
    let turns = Arc::clone(&directory.copies.home.turns);
    let mut turn = directory.wait(|| turns.writing.lock().unwrap_or_else(PoisonError::into_inner));
    work(directory, &mut turn)
}
