//! Frames of one device under a budget. Those that come back are kept, as creating one costs more than mapping it.

use super::sync::{Mutex, MutexGuard, PoisonError};

/// What has a length.
pub(crate) trait Long {
    /// In bytes.
    fn bytes(&self) -> u64;
}

#[derive(Debug)]
pub(crate) struct Budget<F> {
    bytes_max: u64,
    frames: Mutex<Frames<F>>,
}

#[derive(Debug)]
struct Frames<F> {
    /// In use, spare, or being created.
    bytes: u64,
    spare: Vec<F>,
}

impl<F: Long> Budget<F> {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, frames: Mutex::new(Frames { bytes: 0, spare: vec![] }) }
    }

    /// A frame of so many bytes that came back, or one that `create` creates; none if the budget is used up.
    pub(crate) fn take<E>(&self, bytes: u64, create: impl FnOnce() -> Result<F, E>) -> Result<Option<F>, E> {
        let mut dropped = vec![];
        {
            let mut frames = self.lock();
            if let Some(at) = frames.spare.iter().rposition(|frame| frame.bytes() == bytes) {
                return Ok(Some(frames.spare.swap_remove(at)));
            }
            while frames.bytes + bytes > self.bytes_max {
                // Those of other lengths are nobody's.
                let Some(other) = frames.spare.pop() else { return Ok(None) };
                frames.bytes -= other.bytes();
                dropped.push(other);
            }
            frames.bytes += bytes;
        }
        // The device may take its time.
        drop(dropped);
        create().map(Some).inspect_err(|_| self.lock().bytes -= bytes)
    }

    pub(crate) fn give(&self, frame: F) {
        self.lock().spare.push(frame);
    }

    /// Bytes of frames in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        let frames = self.lock();
        frames.bytes - frames.spare.iter().map(Long::bytes).sum::<u64>()
    }

    fn lock(&self) -> MutexGuard<'_, Frames<F>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
