//! Frames of one device under a budget. Those that come back are kept, as creating one costs more than mapping it.

use crate::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(crate) struct Budget<F> {
    frames_max: u64,
    frames: Mutex<Frames<F>>,
}

#[derive(Debug)]
struct Frames<F> {
    /// In use, spare, or being created.
    count: u64,
    spare: Vec<F>,
}

impl<F> Budget<F> {
    pub(crate) fn new(frames_max: u64) -> Self {
        Self { frames_max, frames: Mutex::new(Frames { count: 0, spare: vec![] }) }
    }

    /// A frame that came back, or one that `create` creates; none if the budget is used up.
    pub(crate) fn take<E>(&self, create: impl FnOnce() -> Result<F, E>) -> Result<Option<F>, E> {
        {
            let mut frames = self.lock();
            if let Some(frame) = frames.spare.pop() {
                return Ok(Some(frame));
            }
            if frames.count == self.frames_max {
                return Ok(None);
            }
            frames.count += 1;
        }
        // The device may take its time.
        create().map(Some).inspect_err(|_| self.lock().count -= 1)
    }

    pub(crate) fn give(&self, frame: F) {
        self.lock().spare.push(frame);
    }

    /// Frames in use.
    pub(crate) fn used(&self) -> u64 {
        let frames = self.lock();
        frames.count - frames.spare.len() as u64
    }

    fn lock(&self) -> MutexGuard<'_, Frames<F>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
