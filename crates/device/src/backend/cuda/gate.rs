//! Gates: a stream waits for a word in page-locked memory that the host writes.
//!
//! The GPU's own front end does the waiting (`cuStreamWaitValue32`), so a closed gate costs no
//! thread and holds up no other stream's callbacks. Where a GPU or driver cannot do it, a host
//! function waits instead: the driver runs those one after the other, so that there gates of
//! several streams open in the order in which the streams reach them.
//!
//! Words are used again. Each wait of a word is for a value one higher than the last, and ends at
//! any value from there on; a word goes back to the pool when its gate is opened. So it belongs to
//! one closed gate at a time, and a stream that comes late to an opened gate passes it whatever the
//! word's next gate does (until 2^31 gates later, when the comparison comes round).

use super::context::Context;
use super::sys::{self, Cuda, NOT_SUPPORTED, StreamHandle};
use crate::Result;
use crate::backend::RawGate;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Page-locked memory that is allocated at a time. Allocating may wait for closed gates, so the
/// first block has more words than anybody closes gates.
const BLOCK_BYTES: usize = 64 << 10;

/// Closes a gate on a stream of `context`, which is entered.
pub(super) fn close(context: &Arc<Context>, stream: StreamHandle) -> Result<Box<dyn RawGate>> {
    match WordGate::close(context, stream)? {
        Some(gate) => Ok(Box::new(gate)),
        None => Ok(Box::new(FunctionGate::close(context.cuda, stream)?)),
    }
}

/// The words of one context.
#[derive(Debug, Default)]
pub(super) struct Words(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    spare: Vec<Word>,
    blocks: Vec<NonNull<c_void>>,
}

// SAFETY: blocks are page-locked memory that any thread may use and free.
unsafe impl Send for State {}

/// A word, and the value that its present or latest gate waits for.
#[derive(Debug, Clone, Copy)]
struct Word {
    host: NonNull<AtomicU32>,
    device: u64,
    value: u32,
}

// SAFETY: the word is an atomic in memory that any thread may use.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Words {
    /// A word that belongs to the caller, with a value that it has not held yet. The context is
    /// entered.
    fn take(&self, cuda: &Cuda) -> Result<Word> {
        let mut state = self.lock();
        if state.spare.is_empty() {
            state.grow(cuda)?;
        }
        let word = state.spare.pop().expect("a block has words");
        Ok(Word { value: word.value.wrapping_add(1), ..word })
    }

    fn give_back(&self, word: Word) {
        self.lock().spare.push(word);
    }

    /// Frees the memory, when no gate is closed any more. The context is entered.
    pub(super) fn free(self, cuda: &Cuda) {
        let state = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if state.blocks.is_empty() {
            return;
        }
        // A stream may not have reached a gate that is open already.
        // SAFETY: the call takes no pointers. A failure means that nothing runs any more.
        unsafe { (cuda.cuCtxSynchronize)() };
        for block in state.blocks {
            // SAFETY: allocated in `grow`; the work that read it is done.
            unsafe { (cuda.cuMemFreeHost)(block.as_ptr()) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn grow(&mut self, cuda: &Cuda) -> Result<()> {
        let doing = format_args!("page-locking {BLOCK_BYTES} bytes for the gates of streams");
        let mut ptr = std::ptr::null_mut();
        let flags = sys::HOST_PORTABLE | sys::HOST_DEVICE_MAP;
        // SAFETY: the driver stores one address.
        cuda.check(unsafe { (cuda.cuMemHostAlloc)(&raw mut ptr, BLOCK_BYTES, flags) }, doing)?;
        let Some(block) = NonNull::new(ptr) else { return Err(super::no_pinned_memory(doing)) };
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

/// A gate that is a word.
#[derive(Debug)]
struct WordGate {
    context: Arc<Context>,
    word: Word,
}

impl WordGate {
    /// None where the GPU or the driver does not wait for words.
    fn close(context: &Arc<Context>, stream: StreamHandle) -> Result<Option<Self>> {
        let (Some(words), Some(wait)) = (context.words(), context.cuda.cuStreamWaitValue32_v2) else {
            return Ok(None);
        };
        // The gate owns the word from here on, so that a failure below gives it back.
        let gate = Self { context: context.clone(), word: words.take(context.cuda)? };
        // SAFETY: the stream is live, and the word stays mapped until the context is dropped,
        // which the gate and whatever owns the stream hold.
        let status = unsafe { wait(stream, gate.word.device, gate.word.value, sys::WAIT_AT_LEAST) };
        if status == NOT_SUPPORTED {
            return Ok(None);
        }
        context.cuda.check(status, format_args!("making a stream wait for a gate"))?;
        Ok(Some(gate))
    }
}

impl RawGate for WordGate {}

impl Drop for WordGate {
    fn drop(&mut self) {
        // SAFETY: the word lies in a block that the context keeps. What this thread wrote before
        // is to be seen by the work behind the gate, hence `Release`.
        unsafe { self.word.host.as_ref() }.store(self.word.value, Ordering::Release);
        if let Some(words) = self.context.words() {
            words.give_back(self.word);
        }
    }
}

/// A gate that is a host function which waits.
#[derive(Debug)]
struct FunctionGate {
    latch: Arc<Latch>,
}

#[derive(Debug, Default)]
struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap_or_else(PoisonError::into_inner));
    }
}

impl FunctionGate {
    fn close(cuda: &Cuda, stream: StreamHandle) -> Result<Self> {
        let gate = Self { latch: Arc::default() };
        let data = Arc::into_raw(gate.latch.clone());
        // SAFETY: the stream is live; the function gets the reference that it takes.
        let status = unsafe { (cuda.cuLaunchHostFunc)(stream, wait_for_latch, data.cast_mut().cast()) };
        cuda.check(status, format_args!("making a stream wait for a gate")).inspect_err(|_| {
            // SAFETY: the function was not enqueued, so the reference is still ours.
            drop(unsafe { Arc::from_raw(data) });
        })?;
        Ok(gate)
    }
}

/// Runs on a thread of the driver's, where calls of CUDA are forbidden.
unsafe extern "C" fn wait_for_latch(data: *mut c_void) {
    // SAFETY: `data` is the reference that `FunctionGate::close` passed, once.
    unsafe { Arc::from_raw(data.cast_const().cast::<Latch>()) }.wait();
}

impl RawGate for FunctionGate {}

impl Drop for FunctionGate {
    fn drop(&mut self) {
        self.latch.open();
    }
}

#[cfg(test)]
mod tests;
