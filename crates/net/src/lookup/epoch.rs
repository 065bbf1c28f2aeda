//! When memory that readers may still look at can be used again.
//!
//! Writers unlink memory first, and use it again only after they advanced the epoch. A reader that finds the epoch changed
//! may have followed an old link into memory with a new meaning, and looks again. Epochs advance rarely (once for thousands
//! of updates), so readers hardly ever do.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Counts reuse of memory.
#[derive(Debug, Default)]
pub(super) struct Epoch(AtomicU32);

/// How often a reader looks again before it keeps writers out.
const ATTEMPTS: usize = 16;

impl Epoch {
    /// From now on, memory that was unlinked before may be written.
    pub(super) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Release);
        // Pairs with the fence of `read`: a reader that sees what is written after this sees the new epoch, too.
        fence(Ordering::Release);
    }

    /// What `look` finds while no memory changes its meaning. `calm` runs its argument while there are no writers.
    #[inline]
    pub(super) fn read<R>(&self, mut look: impl FnMut() -> R, calm: impl FnOnce(&mut dyn FnMut() -> R) -> R) -> R {
        for _ in 0..ATTEMPTS {
            let before = self.0.load(Ordering::Acquire);
            let found = look();
            fence(Ordering::Acquire);
            if self.0.load(Ordering::Relaxed) == before {
                return found;
            }
        }
        calm(&mut look)
    }
}
