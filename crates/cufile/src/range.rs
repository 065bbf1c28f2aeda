//! What a request is about: which way the bytes go, where they are in the file, and where in memory.

use crate::status::{Failure, Outcome};
use bifolio_device::pointer::Located;
use bifolio_device::{DeviceId, DeviceSlice};

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A range of memory: of a device, or of the CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MemoryRange {
    Device(Located, DeviceSlice<'static>),
    Host(*mut u8, usize),
}

// SAFETY: an address; whoever uses it is allowed to by the request that it belongs to.
unsafe impl Send for MemoryRange {}
// SAFETY: as above.
unsafe impl Sync for MemoryRange {}

impl MemoryRange {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Device(_, memory) => memory.len() as usize,
            Self::Host(_, len) => *len,
        }
    }
}

/// What two ranges of device memory have in common if one router moves the bytes of both.
pub(crate) fn router_key(located: &Located) -> (DeviceId, u64, u64) {
    (located.device, located.context, located.incarnation)
}

/// An offset in a file.
pub(crate) fn offset_of(offset: i64) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Failure::argument(format!("the offset in the file is negative ({offset})")))
}

/// How many bytes of a range have offsets: a file that is read ends before, and cannot be written beyond.
pub(crate) fn in_offsets(direction: Direction, offset: u64, bytes: u64) -> Outcome<u64> {
    let room = (i64::MAX as u64).saturating_sub(offset);
    if direction == Direction::Write && bytes > room {
        return Err(Failure::argument(format!("{bytes} bytes at {offset} end beyond the largest offset of a file")));
    }
    Ok(bytes.min(room))
}
