//! Requests on their way through the router: what was asked for, and the parts of it that plain files have.

use crate::engine::job::Placement;
use crate::file::{OpenFile, PlainFile, Stamp, Ticket};
use crate::options::{ReadOptions, WriteOptions};
use crate::{Error, ErrorKind, Result};
use bifolio_device::DeviceSlice;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A read of one range of a file to one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadRequest<'a> {
    pub(super) file: &'a OpenFile,
    /// First byte, in the file.
    pub(super) offset: u64,
    /// Bytes; up to the end of the file without.
    pub(super) length: Option<u64>,
    pub(super) destination: DeviceSlice<'a>,
    pub(super) options: &'a ReadOptions,
    /// Its place in the order of reads and writes; none where nobody writes.
    pub(super) turn: Option<&'a Ticket>,
    pub(super) started: Instant,
}

/// A write of a source to one range of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteRequest<'a> {
    pub(super) file: &'a OpenFile,
    /// First byte, in the file.
    pub(super) offset: u64,
    pub(super) source: DeviceSlice<'a>,
    pub(super) options: &'a WriteOptions,
    /// Its place in the order of reads and writes.
    pub(super) turn: Option<&'a Ticket>,
    pub(super) started: Instant,
}

/// A range of one plain file, and where its bytes lie on the device.
#[derive(Debug, Clone)]
pub(super) struct Part<'a> {
    pub(super) file: &'a Arc<PlainFile>,
    /// The member of a striped set that it is; none for plain files.
    pub(super) member: Option<usize>,
    /// What the file was when the request began.
    pub(super) stamp: Stamp,
    pub(super) range: Range<u64>,
    pub(super) placement: Placement,
}

/// The parts of one request: none of an empty range, one without an allocation.
#[derive(Debug)]
pub(super) enum Parts<'a> {
    One([Part<'a>; 1]),
    Several(Vec<Part<'a>>),
}

impl<'a> Deref for Parts<'a> {
    type Target = [Part<'a>];

    fn deref(&self) -> &[Part<'a>] {
        match self {
            Self::One(part) => part,
            Self::Several(parts) => parts,
        }
    }
}

impl DerefMut for Parts<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::One(part) => part,
            Self::Several(parts) => parts,
        }
    }
}

impl<'a> ReadRequest<'a> {
    /// The parts of its range, which must fit into the destination.
    pub(super) fn parts(&self) -> Result<Parts<'a>> {
        let (path, room) = (self.file.path(), self.destination.len());
        if self.file.layout().is_some() {
            return parts(self.file, &clamp(path, self.file.size()?, self.offset, self.length, room)?);
        }
        let file = self.file.plain();
        let stamp = file.stamp()?;
        let range = clamp(path, stamp.size, self.offset, self.length, room)?;
        if range.is_empty() {
            return Ok(Parts::Several(vec![]));
        }
        let placement = Placement::Linear { base: range.start };
        Ok(Parts::One([Part { file, member: None, stamp, range, placement }]))
    }
}

impl Part<'_> {
    /// Bytes.
    pub(super) fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether all of it goes to one place, one byte after the other.
    pub(super) fn is_linear(&self) -> bool {
        self.placement.is_linear()
    }

    /// Whether it lies in several chunks of a striped set.
    pub(super) fn is_striped(&self) -> bool {
        matches!(self.placement, Placement::Striped { .. })
    }
}

/// The parts of a range that lies inside the file; their files must still have all of it.
pub(super) fn parts<'a>(file: &'a OpenFile, range: &Range<u64>) -> Result<Parts<'a>> {
    let part = |(member, part): (usize, Range<u64>)| {
        let plain = &file.members()[member];
        let stamp = plain.stamp()?;
        let Some(layout) = file.layout() else {
            let placement = Placement::Linear { base: range.start };
            return Ok(Part { file: plain, member: None, stamp, range: part, placement });
        };
        if stamp.size < part.end {
            let detail = format!(
                "the file was truncated: member {member} of {} ends at {}, which is too short",
                file.path().display(),
                stamp.size
            );
            return Err(Error::new(ErrorKind::Truncated, plain.path(), detail).at(stamp.size));
        }
        // Inside one chunk a set is a plain file.
        let is_all = part.end - part.start == range.end - range.start;
        let placement = if is_all && layout.run_at(part.start) >= part.end - part.start {
            Placement::Linear { base: part.start }
        } else {
            Placement::Striped { layout: *layout, member, base: range.start }
        };
        Ok(Part { file: plain, member: Some(member), stamp, range: part, placement })
    };
    let mut parts = file.parts(range).into_iter().filter(|(_, part)| !part.is_empty()).map(part);
    match (parts.next().transpose()?, parts.next().transpose()?) {
        (Some(only), None) => Ok(Parts::One([only])),
        (first, second) => {
            let mut several: Vec<_> = first.into_iter().chain(second).collect();
            several.extend(parts.collect::<Result<Vec<_>>>()?);
            Ok(Parts::Several(several))
        }
    }
}

/// The part of a file of `size` bytes that a request means, which must fit into `room` bytes.
pub(crate) fn clamp(path: &Path, size: u64, offset: u64, length: Option<u64>, room: u64) -> Result<Range<u64>> {
    let bad = |detail: String| Error::new(ErrorKind::BadRange, path, detail).at(offset);
    if offset > size {
        return Err(bad(format!("offset is beyond the end of the file ({size} bytes)")));
    }
    let end = match length {
        None => size,
        Some(length) => {
            let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
            end.ok_or_else(|| bad(format!("a length of {length} bytes at this offset overflows")))?.min(size)
        }
    };
    if room < end - offset {
        let detail = format!("{} bytes do not fit into {room} bytes of device memory", end - offset);
        return Err(Error::new(ErrorKind::BadDestination, path, detail).at(offset));
    }
    Ok(offset..end)
}
