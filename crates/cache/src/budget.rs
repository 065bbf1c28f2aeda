//! Frames of one device under a budget. Those that come back are kept, as creating one costs more than mapping it, and
//! with them whose bytes are in them: nobody else may see those.

use super::sync::{Mutex, MutexGuard, PoisonError};
use std::sync::atomic::{AtomicU64, Ordering};

/// What has a length.
pub(crate) trait Long {
    /// In bytes.
    fn bytes(&self) -> u64;
}

/// Who puts bytes into frames: one file on one device, for as long as it is there. No two have the same number, so that
/// one that is there again is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whose bytes are in a frame that somebody has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Those of who has taken it.
    Own,
    /// Somebody else's, or it is not known whose.
    Foreign,
    /// What the device puts into new frames.
    New,
}

#[derive(Debug)]
pub(crate) struct Budget<F> {
    bytes_max: u64,
    /// As long as others need the device's memory, no more than this.
    limit: AtomicU64,
    frames: Mutex<Frames<F>>,
}

#[derive(Debug)]
struct Frames<F> {
    /// In use, spare, or being created.
    bytes: u64,
    spare: Vec<Spare<F>>,
}

#[derive(Debug)]
struct Spare<F> {
    frame: F,
    /// Whose bytes are in it, if that is known.
    owner: Option<Owner>,
}

impl<F: Long> Budget<F> {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, limit: AtomicU64::new(u64::MAX), frames: Mutex::new(Frames { bytes: 0, spare: vec![] }) }
    }

    /// A frame of so many bytes that came back, one's own if there is one, or one that `create` creates; none if the
    /// budget is used up.
    pub(crate) fn take<E>(
        &self,
        owner: Owner,
        bytes: u64,
        create: impl FnOnce() -> Result<F, E>,
    ) -> Result<Option<(F, Content)>, E> {
        let mut dropped = vec![];
        {
            let mut frames = self.lock();
            if let Some(spare) = frames.take_spare(owner, bytes) {
                let content = if spare.owner == Some(owner) { Content::Own } else { Content::Foreign };
                return Ok(Some((spare.frame, content)));
            }
            let most = self.limit_bytes();
            while frames.bytes + bytes > most {
                // Those of other lengths are nobody's.
                let Some(other) = frames.spare.pop() else { return Ok(None) };
                frames.bytes -= other.frame.bytes();
                dropped.push(other);
            }
            frames.bytes += bytes;
        }
        // The device may take its time.
        drop(dropped);
        let created = create().inspect_err(|_| self.lock().bytes -= bytes)?;
        Ok(Some((created, Content::New)))
    }

    /// Takes a frame back, with whose bytes are in it; none where that is not known, as it was not cleared.
    pub(crate) fn give(&self, frame: F, owner: Option<Owner>) {
        self.lock().spare.push(Spare { frame, owner });
    }

    /// Counts a frame that somebody else has created, and that is in use: it may be more than the budget has room for.
    pub(crate) fn adopt(&self, bytes: u64) {
        self.lock().bytes += bytes;
    }

    /// Does not count frames in use any more, which are somebody else's.
    pub(crate) fn disown(&self, bytes: u64) {
        let mut frames = self.lock();
        frames.bytes = frames.bytes.saturating_sub(bytes);
    }

    /// Has no more than some bytes be created, so that together with what there is they are no more than these.
    pub(crate) fn limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// The most bytes that there may be now.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.bytes_max.min(self.limit.load(Ordering::Relaxed))
    }

    /// Takes frames out that came back, up to some bytes: they end with what is returned.
    pub(crate) fn take_spares(&self, bytes: u64) -> Vec<F> {
        let (mut frames, mut taken, mut all) = (self.lock(), vec![], 0);
        while all < bytes
            && let Some(spare) = frames.spare.pop()
        {
            all += spare.frame.bytes();
            taken.push(spare.frame);
        }
        frames.bytes -= all;
        taken
    }

    /// Bytes of all frames, also of those that nobody uses.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Bytes of frames in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        let frames = self.lock();
        frames.bytes - frames.spare.iter().map(|spare| spare.frame.bytes()).sum::<u64>()
    }

    fn lock(&self) -> MutexGuard<'_, Frames<F>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Long> Frames<F> {
    /// A spare frame of so many bytes: one's own need not be cleared.
    fn take_spare(&mut self, owner: Owner, bytes: u64) -> Option<Spare<F>> {
        let fits = |spare: &Spare<F>| spare.frame.bytes() == bytes;
        let own = self.spare.iter().rposition(|spare| fits(spare) && spare.owner == Some(owner));
        let at = own.or_else(|| self.spare.iter().rposition(fits))?;
        Some(self.spare.swap_remove(at))
    }
}
