//! Versions that readers keep. Who has acquired a frame to read it sees it as it was then: before it changes, the file gets
//! a copy of it on the device, and the frame itself is left to its readers until they release it. So no byte crosses a link
//! for that, and what has changed afterwards is brought as to any frame. Who acquires a frame that somebody else is writing
//! gets a copy of the twin, which has what was released and nothing else.
//!
//! ```text
//!   copied      a new frame has the content; nobody sees it
//!   left        the keeper knows who sees the old one
//!   exchanged   the file has the new one there: one number in its region
//! ```
//!
//! A process that ends in between leaves the old one in its place, and one of the two is forgotten. What is left to somebody
//! counts as used until he releases it.

use super::room::within_budget;
use super::{Directory, Locked};
use crate::copies::replica::Image;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, step};
use crate::frames::NumberedFrame;
use crate::page::Device;
use crate::ranges::intersection;
use crate::state::keeper::Reader;
use crate::state::lease::{Client, Grant, LeaseNumber, Use};
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

impl Directory {
    /// Somebody uses something no longer, nor needs the version of it that he has seen.
    pub(crate) fn end_lease(&mut self, client: Client, number: LeaseNumber) {
        self.versions.end_lease(client, number);
        self.asides.end(client, number);
    }
}

/// The frames of a range that clients have acquired to read, and see as the file has them; by whom.
pub(super) fn seen_by_others(
    directory: &Directory,
    device: Device,
    range: &Range<u64>,
    but: Option<Client>,
) -> BTreeMap<usize, Vec<Reader>> {
    let (Directory { versions, copies, asides, .. }, mut seen) = (directory, BTreeMap::<_, Vec<_>>::new());
    let Some(replica) = copies.get(device).filter(|replica| but != Some(0) && replica.memory.is_kept()) else {
        return seen;
    };
    // Of this process all have the same addresses.
    let is_read = |lease: &Grant| {
        let of_others = lease.client != 0 && Some(lease.client) != but;
        (lease.device, lease.what) == (device, Use::Read) && of_others
    };
    let wanted = replica.frames_of(range);
    for lease in versions.leases().filter(is_read) {
        let frames = replica.frames_of(&lease.bytes);
        for frame in frames.start.max(wanted.start)..frames.end.min(wanted.end) {
            let bytes = replica.bytes_of(&(frame as u64..frame as u64 + 1));
            let reader = Reader { client: lease.client, lease: lease.number, at: bytes.start };
            let is_written = || versions.in_use(device).iter().any(|used| !intersection(used, &bytes).is_empty());
            if replica.has(Image::Current, frame) && asides.seen(device, &reader).is_none() && !is_written() {
                seen.entry(frame).or_default().push(reader);
            }
        }
    }
    seen
}

/// Leaves frames to their readers: the file has copies there from now on. By whoever has locked them.
///
/// # Errors
/// `OutOfMemory` if the budget has no room for a copy; the frame is its readers' and the file's as before.
pub(super) fn set_aside(directory: &mut Locked<'_>, device: Device, seen: BTreeMap<usize, Vec<Reader>>) -> Result<()> {
    seen.into_iter().try_for_each(|(frame, readers)| set_frame_aside(directory, device, frame, &readers))
}

fn set_frame_aside(directory: &mut Locked<'_>, device: Device, frame: usize, readers: &[Reader]) -> Result<()> {
    let path = directory.path().to_owned();
    let copy = copy_of(directory, device, frame, Image::Current)?;
    let (memory, pages) = (directory.copies.memory(device)?, directory.pages_of_frame(device, frame)?);
    // Some may have released it while there was a disk to be waited for.
    let is_there = |reader: &&Reader| directory.versions.lease(reader.client, reader.lease).is_some();
    let readers: Vec<Reader> = readers.iter().filter(is_there).copied().collect();
    let replica = directory.copies.replica_mut(device)?;
    let number = replica.frame(Image::Current, frame).filter(|_| !readers.is_empty());
    let Some(number) = number else {
        memory.give_copy(copy);
        return Ok(());
    };
    let failed = |error: std::io::Error| unkept(&path, &error);
    let left = step(Point::AsideCopied, &path)
        .and_then(|()| readers.iter().try_for_each(|reader| memory.keeping().leave(number, *reader).map_err(failed)))
        .and_then(|()| step(Point::AsideLeft, &path));
    let exchanged = match left {
        Ok(()) => replica.exchange(frame, copy).map_err(|error| Error::device(&path, error)),
        Err(error) => {
            memory.give_copy(copy);
            Err(error)
        }
    };
    if let Err(error) = exchanged {
        for reader in readers {
            memory.keeping().end_left(number, reader);
        }
        return Err(error);
    }
    let bytes = replica.frame_bytes();
    for reader in &readers {
        directory.asides.note_left(&memory, device, number, bytes, reader);
    }
    directory.versions.counts.copied += pages.end - pages.start;
    step(Point::AsideExchanged, &path)
}

/// The frames of a range that other clients are writing, and a client is not.
pub(super) fn written_by_others(
    directory: &Directory,
    device: Device,
    range: &Range<u64>,
    client: Client,
) -> BTreeSet<usize> {
    let Directory { versions, copies, .. } = directory;
    let (mut others, mut own) = (BTreeSet::new(), BTreeSet::new());
    let Some(replica) = copies.get(device).filter(|replica| client != 0 && replica.memory.is_kept()) else {
        return others;
    };
    // Without a look at all leases, as a rule.
    if versions.in_use(device).is_empty() {
        return others;
    }
    let wanted = replica.frames_of(range);
    let is_written = |lease: &Grant| lease.client != 0 && (lease.device, lease.what) == (device, Use::Write);
    for lease in versions.leases().filter(is_written) {
        let frames = replica.frames_of(&lease.bytes);
        let written = frames.start.max(wanted.start)..frames.end.min(wanted.end);
        if lease.client == client { own.extend(written) } else { others.extend(written) }
    }
    &others - &own
}

/// Has a reader see what was released of the frames of a range that others are writing, by whoever has locked them and brought
/// them up to date.
///
/// # Errors
/// `OutOfMemory` if the budget has no room for copies. What was left to him so far ends with what he acquires.
pub(super) fn show_released(
    directory: &mut Locked<'_>,
    device: Device,
    range: &Range<u64>,
    (client, lease): (Client, LeaseNumber),
) -> Result<()> {
    for frame in written_by_others(directory, device, range, client) {
        let copy = copy_of(directory, device, frame, Image::Twin)?;
        let number = copy.number();
        let (memory, replica) = (directory.copies.memory(device)?, directory.copies.replica(device)?);
        let (bytes, pages) = (replica.frame_bytes(), replica.pages_of(frame));
        let reader = Reader { client, lease, at: frame as u64 * bytes };
        let left = step(Point::AsideCopied, directory.path())
            .and_then(|()| memory.keeping().leave(number, reader).map_err(|error| unkept(directory.path(), &error)));
        if let Err(error) = left {
            memory.give_copy(copy);
            return Err(error);
        }
        copy.into_number();
        directory.asides.note_left(&memory, device, number, bytes, &reader);
        directory.versions.counts.copied += pages.end - pages.start;
        step(Point::AsideLeft, directory.path())?;
    }
    Ok(())
}

/// A copy of an image of a frame, or of what kernels see where it has none.
fn copy_of(directory: &mut Locked<'_>, device: Device, frame: usize, image: Image) -> Result<NumberedFrame> {
    within_budget(directory, device, |directory| {
        let replica = directory.copies.replica(device)?;
        let image = if replica.is_filled(image, frame) { image } else { Image::Current };
        replica.copy_frame(image, frame).map_err(|error| Error::device(directory.path(), error))
    })
}

fn unkept(path: &Path, error: &std::io::Error) -> Error {
    let detail = format!("a version that readers keep cannot be kept for them: {error}");
    Error::new(ErrorKind::OutOfMemory, path, detail)
}

/// What another process has left to those who have acquired something, of whom some are there.
pub(super) fn find(directory: &mut Directory, leases: &[Grant]) {
    for device in 0..directory.copies.devices() {
        let Ok(memory) = directory.copies.memory(device) else { continue };
        let is_there = |reader: &Reader| {
            let is_it = |lease: &Grant| (lease.client, lease.number) == (reader.client, reader.lease);
            leases.iter().any(|lease| is_it(lease) && (lease.device, lease.what) == (device, Use::Read))
        };
        for (number, reader) in memory.keeping().take_readers(is_there) {
            let Some(replica) = directory.copies.get(device) else { continue };
            let frame = (reader.at / replica.frame_bytes()) as usize;
            let is_there = replica.has_addresses(&(reader.at..reader.at + 1));
            let is_exchanged = is_there && replica.frame(Image::Current, frame) != Some(number);
            let known = directory.asides.bytes_of(device, number);
            match is_exchanged.then(|| known.or_else(|| memory.adopt_left(number))).flatten() {
                Some(bytes) => directory.asides.note_left(&memory, device, number, bytes, &reader),
                None => memory.keeping().end_left(number, reader),
            }
        }
    }
}
