//! Device memory that frees itself.

use crate::fork::Birth;
use crate::{Device, DevicePtr, DeviceSlice, Result};

impl Device {
    /// Allocates `len` bytes (none for 0). May synchronise the device.
    pub fn alloc(&self, len: u64) -> Result<Allocation> {
        let ptr = match len {
            0 => DevicePtr(0),
            _ => self.backend().alloc(len).map_err(|error| self.name(error))?,
        };
        Ok(Allocation { device: self.clone(), ptr, len, birth: Birth::here() })
    }
}

/// Device memory that frees itself.
#[derive(Debug)]
pub struct Allocation {
    device: Device,
    ptr: DevicePtr,
    len: u64,
    birth: Birth,
}

impl Allocation {
    /// All of it.
    pub fn slice(&self) -> DeviceSlice<'_> {
        // SAFETY: the allocation owns the bytes for as long as it is borrowed.
        unsafe { DeviceSlice::from_raw_ordered(self.ptr, self.len) }
    }

    /// The first address.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A child's copy is not its own, and a thread of the parent's may have held a lock.
        if self.len > 0 && !self.birth.was_elsewhere() {
            // SAFETY: the address came from `alloc` and this is its only owner. A failure means
            // that the context is gone, and the memory with it.
            let _ = unsafe { self.device.backend().free(self.ptr) };
        }
    }
}
