//! Reserved ranges of device addresses, into which frames are mapped.

use super::frame::Frame;
use crate::{Access, Device, DeviceId, DevicePtr, DeviceSlice, Error, ErrorKind, FRAME_BYTES, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

impl Device {
    /// Reserves an address range of at least `len` bytes, rounded up to whole frames.
    pub fn reserve(&self, len: u64) -> Result<AddressRange> {
        let len = len.max(1).checked_next_multiple_of(FRAME_BYTES).ok_or_else(|| {
            Error::new(ErrorKind::BadArgument, format!("an address range of {len} bytes is too long")).on(self.id())
        })?;
        let ptr = self.backend().reserve(len).map_err(|error| self.name(error))?;
        Ok(AddressRange { device: self.clone(), ptr, len, mapped: Mutex::default() })
    }
}

/// A reserved range of device addresses with frames mapped into it.
#[derive(Debug)]
pub struct AddressRange {
    device: Device,
    ptr: DevicePtr,
    len: u64,
    /// Frames by offset; held so that a mapping never outlives its frame.
    mapped: Mutex<BTreeMap<u64, Mapped>>,
}

#[derive(Debug)]
struct Mapped {
    frame: Frame,
    /// Other devices whose kernels may read it here, as far as was asked.
    readers: Vec<DeviceId>,
}

impl AddressRange {
    /// The whole range, mapped or not.
    ///
    /// # Safety
    /// Only parts in which frames are mapped, and stay mapped, are used.
    pub unsafe fn slice(&self) -> DeviceSlice<'_> {
        // SAFETY: the range is reserved for as long as it is borrowed, and the caller vouches for what is mapped.
        unsafe { DeviceSlice::from_raw_ordered(self.ptr, self.len) }
    }

    /// Length in bytes, a multiple of [`FRAME_BYTES`].
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offsets at which frames are mapped, ascending.
    pub fn mapped(&self) -> Vec<u64> {
        self.lock().keys().copied().collect()
    }

    /// Maps `frame` at `offset`, a multiple of [`FRAME_BYTES`] from which on nothing is mapped for its length.
    pub fn map(&self, offset: u64, frame: &Frame, access: Access) -> Result<()> {
        let mut mapped = self.lock();
        let end = offset.checked_add(frame.len()).filter(|end| offset.is_multiple_of(FRAME_BYTES) && *end <= self.len);
        let Some(end) = end else { return Err(self.bad(offset, "is misaligned, or the frame ends outside the range")) };
        let before = mapped.range(..end).next_back();
        if before.is_some_and(|(at, other)| at + other.frame.len() > offset) {
            return Err(self.bad(offset, "already has a frame mapped"));
        }
        let place = self.ptr.offset_by(offset);
        // SAFETY: the offset is a free frame-aligned place of this range, and the map keeps the
        // frame until it is unmapped.
        unsafe { self.device.backend().map_frame(place, frame.raw(), frame.len(), access) }
            .map_err(|error| self.device.name(error))?;
        mapped.insert(offset, Mapped { frame: frame.clone(), readers: vec![] });
        Ok(())
    }

    /// Lets kernels of `peer` read some bytes of the range, by the same addresses, from now on until their frames are
    /// unmapped. False where they cannot: devices of two backends, GPUs without a link between them, bytes without a
    /// frame.
    pub fn let_read(&self, bytes: Range<u64>, peer: &Device) -> Result<bool> {
        let mut mapped = self.lock();
        let mut at = mapped.range(..=bytes.start).next_back().map_or(bytes.start, |(first, _)| *first);
        while at < bytes.end {
            let Some(Mapped { frame, readers }) = mapped.get_mut(&at) else { return Ok(false) };
            if !readers.contains(&peer.id()) {
                let place = self.ptr.offset_by(at);
                // SAFETY: the frame is mapped there.
                let reads = unsafe { self.device.backend().let_read(place, frame.len(), &**peer.backend()) };
                if !reads.map_err(|error| self.device.name(error))? {
                    return Ok(false);
                }
                readers.push(peer.id());
            }
            at += frame.len();
        }
        Ok(true)
    }

    /// Unmaps the frame at `offset` and returns it. The caller has waited for the work that uses
    /// it; work on other frames of the range may go on.
    ///
    /// # Safety
    /// No work in flight uses the frame through this range.
    pub unsafe fn unmap(&self, offset: u64) -> Result<Frame> {
        let mut mapped = self.lock();
        let Some(len) = mapped.get(&offset).map(|mapped| mapped.frame.len()) else {
            return Err(self.bad(offset, "has no frame mapped"));
        };
        // SAFETY: a frame is mapped there, and the caller vouches for the work.
        unsafe { self.device.backend().unmap_frame(self.ptr.offset_by(offset), len) }
            .map_err(|error| self.device.name(error))?;
        let removed = mapped.remove(&offset).map(|mapped| mapped.frame);
        removed.ok_or_else(|| self.bad(offset, "has no frame mapped"))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bad(&self, offset: u64, why: &str) -> Error {
        let detail = format!("offset {offset} of an address range of {} bytes {why}", self.len);
        Error::new(ErrorKind::BadArgument, detail).on(self.device.id())
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let mapped = std::mem::take(self.mapped.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (offset, Mapped { frame, .. }) in &mapped {
            // SAFETY: the frame is mapped there, and dropping the range says that its work is
            // over. Failures mean that the context is gone.
            let _ = unsafe { self.device.backend().unmap_frame(self.ptr.offset_by(*offset), frame.len()) };
        }
        // SAFETY: the range came from `reserve`, and nothing is mapped any more.
        let _ = unsafe { self.device.backend().unreserve(self.ptr, self.len) };
    }
}
