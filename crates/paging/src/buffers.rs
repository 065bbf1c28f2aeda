//! A fixed number of page-aligned buffers, made once and locked away from nobody: who finds none waits for one.
//!
//! A thread takes at most one of a pool at a time, so waiting ends.

use crate::pages::BLOCK_BYTES;
use std::sync::{Condvar, Mutex, PoisonError};

/// Bytes of a buffer: those of a block, aligned to a page.
#[repr(C, align(4096))]
struct Bytes([u8; BLOCK_BYTES as usize]);

/// The pool.
pub(crate) struct Buffers {
    free: Mutex<Vec<Box<Bytes>>>,
    returned: Condvar,
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

/// A buffer until this is dropped.
pub(crate) struct Lent<'a> {
    pool: &'a Buffers,
    bytes: Option<Box<Bytes>>,
}

impl Buffers {
    /// `count` buffers, at least one, all of them touched.
    pub(crate) fn new(count: usize) -> Self {
        let buffer = |_| {
            let mut bytes = Box::<Bytes>::new_uninit();
            // SAFETY: the allocation has this many bytes; zeroes are a value of the type.
            unsafe { bytes.as_mut_ptr().cast::<u8>().write_bytes(0, size_of::<Bytes>()) };
            // SAFETY: all bytes were set above.
            unsafe { bytes.assume_init() }
        };
        Self { free: Mutex::new((0..count.max(1)).map(buffer).collect()), returned: Condvar::new() }
    }

    /// A buffer, when there is one.
    pub(crate) fn take(&self) -> Lent<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(bytes) = free.pop() {
                return Lent { pool: self, bytes: Some(bytes) };
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Lent<'_> {
    /// Its bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.bytes.as_mut().map_or(&mut [], |bytes| &mut bytes.0)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
            self.pool.returned.notify_one();
        }
    }
}
