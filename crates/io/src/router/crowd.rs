//! How many requests run at a time: they share threads, link and memory, and what is seen of one that does says little
//! about what it costs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// How many requests run at a time, of late: between two requests of a thread there are fewer for a moment.
#[derive(Debug)]
pub(super) struct Crowd {
    running: AtomicUsize,
    /// Requests so far.
    joined: AtomicUsize,
    /// In sixteenths; goes down by one of sixteen with each request that ends.
    lately: AtomicUsize,
    /// When there were several for the last time, in microseconds from `began` on.
    crowded_us: AtomicU64,
    began: Instant,
}

/// So long after there were several requests, one is taken to be the only one: threads that make one after the
/// other pause for less.
const CROWD_FORGOTTEN_US: u64 = 1000;

/// How it was when a request began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch {
    nobody_ran: bool,
    joined: usize,
}

/// One request among those that run.
pub(super) struct Counted<'a>(&'a Crowd);

impl Default for Crowd {
    fn default() -> Self {
        Self {
            running: AtomicUsize::default(),
            joined: AtomicUsize::default(),
            lately: AtomicUsize::default(),
            crowded_us: AtomicU64::default(),
            began: Instant::now(),
        }
    }
}

impl Crowd {
    /// Counts a request whose engines run, as long as the guard lives.
    pub(super) fn join(&self) -> Counted<'_> {
        self.joined.fetch_add(1, Ordering::Relaxed);
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.lately.fetch_max(running * 16, Ordering::Relaxed);
        self.note_if_crowded(running);
        Counted(self)
    }

    /// Called before a request joins.
    pub(super) fn watch(&self) -> Watch {
        let joined = self.joined.load(Ordering::Relaxed);
        Watch { nobody_ran: self.running.load(Ordering::Relaxed) == 0, joined }
    }

    /// Whether a request that is over had link, memory and disk for itself. What is seen of one that had not says
    /// little about what they cost.
    pub(super) fn was_alone(&self, watch: Watch) -> bool {
        // Itself, if it has joined.
        watch.nobody_ran && self.joined.load(Ordering::Relaxed).wrapping_sub(watch.joined) <= 1
    }

    pub(super) fn size(&self) -> usize {
        self.size_at(self.now_us())
    }

    fn size_at(&self, now_us: u64) -> usize {
        let is_forgotten = now_us.saturating_sub(self.crowded_us.load(Ordering::Relaxed)) > CROWD_FORGOTTEN_US;
        if is_forgotten {
            // Those that run go on running: only what was is forgotten.
            self.lately.store(self.running.load(Ordering::Relaxed) * 16, Ordering::Relaxed);
        }
        (self.lately.load(Ordering::Relaxed) / 16).max(1)
    }

    fn note_if_crowded(&self, running: usize) {
        if running > 1 {
            self.crowded_us.store(self.now_us(), Ordering::Relaxed);
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let running = self.0.running.fetch_sub(1, Ordering::Relaxed) - 1;
        // Two that end at once may lose a step, which the next makes up for.
        let lately = self.0.lately.load(Ordering::Relaxed);
        self.0.lately.store((lately - lately / 16).max(running * 16), Ordering::Relaxed);
        self.0.note_if_crowded(running + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_had_everything_for_itself_was_alone() {
        let crowd = Crowd::default();
        let first = crowd.watch();
        let running = crowd.join();
        assert!(crowd.was_alone(first));
        // One that begins meanwhile, and is over before the first: neither was alone.
        let second = crowd.watch();
        drop(crowd.join());
        assert!(!crowd.was_alone(second) && !crowd.was_alone(first));
        drop(running);
        let third = crowd.watch();
        drop(crowd.join());
        assert!(crowd.was_alone(third));
    }

    #[test]
    fn a_crowd_is_remembered_for_a_moment_and_then_forgotten() {
        let crowd = Crowd::default();
        let running: Vec<_> = (0..8).map(|_| crowd.join()).collect();
        assert_eq!(crowd.size(), 8);
        drop(running);
        let now = crowd.crowded_us.load(Ordering::Relaxed);
        let _alone = crowd.join();
        assert!(crowd.size_at(now + CROWD_FORGOTTEN_US) > 1, "between two requests of each thread");
        assert_eq!(crowd.size_at(now + CROWD_FORGOTTEN_US + 1), 1);
    }
}
