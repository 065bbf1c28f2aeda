//! Words in page-locked memory that streams wait for: what most gates are made of.
//!
//! Words are used again. Each wait of a word is for a value one higher than the last, and ends at
//! any value from there on; a word goes back to the pool when its gate is opened. So it belongs to
//! one closed gate at a time, and a stream that comes late to an opened gate passes it whatever the
//! word's next gate does (until 2^31 gates later, when the comparison comes round).

use super::abi::{HOST_DEVICE_MAP, HOST_PORTABLE};
use super::status::no_pinned_memory;
use super::sys::Cuda;
use crate::Result;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Page-locked memory that is allocated at a time. Allocating may wait for closed gates, so the
/// first block has more words than anybody closes gates.
const BLOCK_BYTES: usize = 64 << 10;

/// The words of one context.
#[derive(Debug, Default)]
pub(super) struct Words(Mutex<Pool>);

#[derive(Debug, Default)]
struct Pool {
    spare: Vec<Word>,
    blocks: Vec<NonNull<c_void>>,
}

// SAFETY: blocks are page-locked memory that any thread may use and free.
unsafe impl Send for Pool {}

/// A word, and the value that its present or latest gate waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    pub(super) host: NonNull<AtomicU32>,
    pub(super) device: u64,
    pub(super) value: u32,
}

// SAFETY: the word is an atomic in memory that any thread may use.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Words {
    /// A word that belongs to the caller, with a value that it has not held yet. The context is
    /// entered.
    pub(super) fn take(&self, cuda: &Cuda) -> Result<Word> {
        let mut pool = self.lock();
        if pool.spare.is_empty() {
            pool.grow(cuda)?;
        }
        let word = pool.spare.pop().expect("a block has words");
        Ok(Word { value: word.value.wrapping_add(1), ..word })
    }

    pub(super) fn give_back(&self, word: Word) {
        self.lock().spare.push(word);
    }

    /// Frees the memory, when no gate is closed any more. The context is entered.
    pub(super) fn free(self, cuda: &Cuda) {
        let pool = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if pool.blocks.is_empty() {
            return;
        }
        // A stream may not have reached a gate that is open already.
        // SAFETY: the call takes no pointers. A failure means that nothing runs any more.
        unsafe { (cuda.cuCtxSynchronize)() };
        for block in pool.blocks {
            // SAFETY: allocated in `grow`; the work that read it is done.
            unsafe { (cuda.cuMemFreeHost)(block.as_ptr()) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn grow(&mut self, cuda: &Cuda) -> Result<()> {
        let doing = format_args!("page-locking {BLOCK_BYTES} bytes for the gates of streams");
        let mut ptr = std::ptr::null_mut();
        let flags = HOST_PORTABLE | HOST_DEVICE_MAP;
        // SAFETY: the driver stores one address.
        cuda.check(unsafe { (cuda.cuMemHostAlloc)(&raw mut ptr, BLOCK_BYTES, flags) }, doing)?;
        let Some(block) = NonNull::new(ptr) else { return Err(no_pinned_memory(doing)) };
        // From here on the block is freed with the others.
        self.blocks.push(block);
        let mut device = 0;
        // SAFETY: the block was allocated to be mapped; the driver stores one address.
        cuda.check(unsafe { (cuda.cuMemHostGetDevicePointer_v2)(&raw mut device, ptr, 0) }, doing)?;
        // SAFETY: the block has this many bytes, and nobody else uses it yet.
        unsafe { block.cast::<u8>().write_bytes(0, BLOCK_BYTES) };
        self.spare.extend(words_of(block, device));
        Ok(())
    }
}

/// The words of a zeroed block.
fn words_of(block: NonNull<c_void>, device: u64) -> impl Iterator<Item = Word> {
    (0..BLOCK_BYTES / size_of::<u32>()).map(move |index| {
        // SAFETY: the word lies inside the block.
        let host = unsafe { block.cast::<AtomicU32>().add(index) };
        Word { host, device: device + (index * size_of::<u32>()) as u64, value: 0 }
    })
}

#[cfg(test)]
mod tests;
