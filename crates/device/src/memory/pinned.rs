//! Page-locked host memory that frees itself.

use crate::fork::Birth;
use crate::{Device, Result};
use std::ptr::NonNull;
use std::slice;

impl Device {
    /// Allocates `len > 0` bytes of page-locked host memory, zeroed.
    pub fn alloc_pinned(&self, len: usize) -> Result<PinnedBuffer> {
        assert!(len > 0, "a pinned buffer has a length");
        let ptr = self.backend().alloc_pinned(len).map_err(|error| self.name(error))?;
        // SAFETY: the backend just handed out `len` bytes at `ptr` to us alone.
        unsafe { ptr.as_ptr().write_bytes(0, len) };
        Ok(PinnedBuffer { device: self.clone(), ptr, len, birth: Birth::here() })
    }
}

/// Page-locked host memory that frees itself.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Device,
    ptr: NonNull<u8>,
    len: usize,
    birth: Birth,
}

// SAFETY: the buffer is plain memory with one owner; the pointer is not tied to a thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// The first byte, for readers that fill the buffer by address (`io_uring`, a device copy).
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` initialised bytes at `ptr` (zeroed on allocation).
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            return;
        }
        // SAFETY: pointer and length are those of the allocation; owners keep the buffer until
        // the copies that use it are complete (the pool waits for its events).
        let _ = unsafe { self.device.backend().free_pinned(self.ptr, self.len) };
    }
}
