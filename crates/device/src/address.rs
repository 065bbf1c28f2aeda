//! Addresses in device memory, and ranges of them.
//!
//! Plain numbers: arithmetic inside one allocation or range is valid, and nothing here reads the memory.

use crate::{Error, ErrorKind, Result};
use std::fmt;
use std::marker::PhantomData;

/// The unit of physical device memory that is mapped into address ranges: 2 MiB, the smallest
/// that `cuMemCreate` hands out on the GPUs of today. Frames are of one or several of these.
pub const FRAME_BYTES: u64 = 2 << 20;

/// An address in the memory of some device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    #[must_use]
    pub fn offset_by(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of device memory: a plain address and a length, borrowed from what owns the memory.
///
/// It knows whether the memory is *foreign*: a program's own, on which the program's default streams may still hold
/// work. Requests that name no stream begin after that work, as `cudaMemcpy` does; see [`crate::Device::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSlice<'a> {
    ptr: DevicePtr,
    len: u64,
    is_foreign: bool,
    owner: PhantomData<&'a ()>,
}

impl DeviceSlice<'_> {
    /// A range that somebody else owns, such as a tensor of the caller's. It is foreign: requests with it that name
    /// no stream begin after what the program's default streams hold.
    ///
    /// # Safety
    /// The range is valid memory of the device that it will be used with, for the slice's lifetime.
    pub unsafe fn from_raw(ptr: DevicePtr, len: u64) -> Self {
        Self { ptr, len, is_foreign: true, owner: PhantomData }
    }

    /// The same for memory whose work the caller orders by itself, or has waited for: it is not foreign.
    ///
    /// # Safety
    /// As for [`Self::from_raw`].
    pub unsafe fn from_raw_ordered(ptr: DevicePtr, len: u64) -> Self {
        Self { ptr, len, is_foreign: false, owner: PhantomData }
    }

    /// The same range, when the work that may still use it has been waited for.
    #[must_use]
    pub fn ordered(self) -> Self {
        Self { is_foreign: false, ..self }
    }

    /// The same range without the borrow, foreign or not as it was.
    ///
    /// # Safety
    /// The memory stays valid for as long as the result, or a copy of it, is used.
    pub unsafe fn lasting<'b>(self) -> DeviceSlice<'b> {
        DeviceSlice { ptr: self.ptr, len: self.len, is_foreign: self.is_foreign, owner: PhantomData }
    }

    /// Whether the program's default streams may hold work on it.
    pub fn is_foreign(self) -> bool {
        self.is_foreign
    }

    /// The first address.
    pub fn ptr(self) -> DevicePtr {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The part `offset..offset + len`; an error if it does not lie inside.
    pub fn part(self, offset: u64, len: u64) -> Result<Self> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self { ptr: self.ptr.offset_by(offset), len, ..self }),
            _ => Err(Error::new(
                ErrorKind::BadArgument,
                format!("{len} bytes at offset {offset} are outside the {} bytes of device memory", self.len),
            )),
        }
    }
}

/// Whether kernels may write through a mapping. On importers of a frame this protects nothing:
/// they always get write access from the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store faults.
    Read,
    /// Loads and stores.
    ReadWrite,
}
