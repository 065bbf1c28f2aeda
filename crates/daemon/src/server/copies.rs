//! Memory of their own for those to whom no frame is lent: it holds what they have acquired, and zeroes around it.
//!
//! Such memory is made for one client and is nobody else's afterwards. It ends with the server, too: the client keeps what
//! it has mapped, and is given another one when it acquires something again.

use super::holding::Holding;
use bifolio_cache::{CachedFile, Error, ErrorKind, LeaseNumber, Result};
use bifolio_device::{Access, AddressRange, Device, Frame};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// One frame.
#[derive(Debug)]
struct Copy {
    number: u32,
    frame: Frame,
    range: AddressRange,
}

/// A client's, by file, device, and the byte of the file from which on they lie.
#[derive(Debug, Default)]
pub(super) struct Copies {
    frames: BTreeMap<(u64, usize, u64), Copy>,
}

impl Copies {
    /// Bytes of all.
    pub(super) fn bytes(&self) -> u64 {
        self.frames.values().map(|copy| copy.frame.len()).sum()
    }

    /// Copies what is acquired of a part under a number to the client's frame, and tells its number; none if nothing is
    /// acquired. `take` is asked for the bytes of a new one.
    pub(super) fn fill(
        &mut self,
        (file, cached): (u64, &CachedFile),
        (number, device): (usize, &Device),
        frame: &Range<u64>,
        (lease, part): (LeaseNumber, &Range<u64>),
        holding: &Holding,
        take: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Option<u32>> {
        let key = (file, number, frame.start);
        if let Some(copy) = self.frames.get(&key) {
            // SAFETY: a frame is mapped there as a whole.
            let place = unsafe { copy.range.slice() }.part(part.start - frame.start, part.end - part.start);
            let copied = cached.copy_acquired(number, lease, part, place.map_err(|error| failed(&error))?);
            return acquired(copied, copy.number);
        }
        let len = frame.end - frame.start;
        take(len)?;
        let made = Copy::new(device, len, holding)?;
        // SAFETY: as above.
        let copied = cached.copy_all_acquired(number, frame, unsafe { made.range.slice() });
        let shown = acquired(copied, made.number)?;
        if shown.is_some() {
            self.frames.insert(key, made);
        }
        Ok(shown)
    }

    /// The frame at `at`, if it has that number.
    pub(super) fn lend(&self, file: u64, device: usize, at: u64, number: u32) -> Result<Option<(u64, OwnedFd)>> {
        let Some(copy) = self.frames.get(&(file, device, at)).filter(|copy| copy.number == number) else {
            return Ok(None);
        };
        Ok(Some((copy.frame.len(), copy.frame.export().map_err(|error| failed(&error))?)))
    }

    /// Gives back what lies in none of the ranges that are mapped still.
    pub(super) fn retain(&mut self, file: u64, mapped: &[(usize, Range<u64>)]) {
        self.frames.retain(|(of, device, at), copy| {
            let meets = |range: &Range<u64>| range.start < *at + copy.frame.len() && *at < range.end;
            *of != file || mapped.iter().any(|(on, range)| on == device && meets(range))
        });
    }
}

impl Copy {
    /// Of zeroes.
    fn new(device: &Device, len: u64, holding: &Holding) -> Result<Self> {
        let frame = device.create_frame_of(len).map_err(|error| failed(&error))?;
        let range = device.reserve(len).map_err(|error| failed(&error))?;
        range.map(0, &frame, Access::ReadWrite).map_err(|error| failed(&error))?;
        if !device.zeroes_frames() {
            let stream = device.create_stream().map_err(|error| failed(&error))?;
            // SAFETY: the frame is mapped there until the stream has been waited for.
            let filled = unsafe { stream.fill(range.slice(), 0) };
            filled.and(stream.synchronize()).map_err(|error| failed(&error))?;
        }
        Ok(Self { number: holding.new_copy(), frame, range })
    }
}

fn acquired(copied: Result<()>, number: u32) -> Result<Option<u32>> {
    match copied {
        Ok(()) => Ok(Some(number)),
        Err(error) if error.kind() == ErrorKind::BadUse => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed(error: &bifolio_device::Error) -> Error {
    let kind = match error.kind() {
        bifolio_device::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
        _ => ErrorKind::Device,
    };
    Error::told(kind, "a private copy", error.to_string(), error.os_code())
}
