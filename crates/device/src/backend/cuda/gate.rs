//! Gates: a stream waits for a word in page-locked memory that the host writes.
//!
//! The GPU's own front end does the waiting (`cuStreamWaitValue32`), so a closed gate costs no
//! thread and holds up no other stream's callbacks. Where a GPU or driver cannot do it, a host
//! function waits instead: the driver runs those one after the other, so that there gates of
//! several streams open in the order in which the streams reach them.

use super::abi::{NOT_SUPPORTED, StreamHandle, WAIT_AT_LEAST};
use super::context::Context;
use super::sys::Cuda;
use super::words::Word;
use crate::Result;
use crate::backend::RawGate;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Closes a gate on a stream of `context`, which is entered.
pub(super) fn close(context: &Arc<Context>, stream: StreamHandle) -> Result<Box<dyn RawGate>> {
    match WordGate::close(context, stream)? {
        Some(gate) => Ok(Box::new(gate)),
        None => Ok(Box::new(FunctionGate::close(context.cuda, stream)?)),
    }
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
        let status = unsafe { wait(stream, gate.word.device, gate.word.value, WAIT_AT_LEAST) };
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
