//! Segments on their way from the planner to one engine.
//!
//! A long request is planned in chunks while its engines already run, so an engine takes batches
//! from a feed: it waits when it has caught up with the planner, and ends when the feed is closed
//! and empty.

use super::batch::{Batches, Numbered, Piece};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A queue of segments, handed out as batches.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<Queue>,
    changed: Condvar,
    pace: Pace,
}

#[derive(Debug)]
struct Queue {
    batches: Batches,
    closed: bool,
    /// Batches handed out, and bytes that are left to hand out.
    handed: u64,
    left: u64,
}

/// How large batches are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// As large as a slot.
    Whole,
    /// Growing at the start, from `smallest`, and shrinking towards the end: the device has
    /// something to fetch early, long requests get whole slots, and the threads finish together.
    Ramp { smallest: u64, threads: u64 },
}

/// What an engine gets when it does not want to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A batch.
    Batch,
    /// Nothing yet; the planner is still at work.
    Later,
    /// Nothing any more.
    End,
}

impl Feed {
    /// A feed of batches within `limits`: bytes of a slot, and pieces.
    pub(crate) fn new(limits: (u64, usize), alignment: u64, pace: Pace) -> Self {
        let state = Queue { batches: Batches::new(limits, alignment), closed: false, handed: 0, left: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new(), pace }
    }

    /// Adds a segment.
    pub(crate) fn push(&self, segment: Numbered) {
        let mut state = self.lock();
        state.left += segment.1.length;
        state.batches.push(segment);
        self.changed.notify_all();
    }

    /// Adds many segments.
    pub(crate) fn push_all(&self, segments: Vec<Numbered>) {
        let mut state = self.lock();
        for segment in segments {
            state.left += segment.1.length;
            state.batches.push(segment);
        }
        self.changed.notify_all();
    }

    /// Says that nothing more comes.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Whether there is a batch; nothing is taken.
    pub(crate) fn peek(&self) -> Next {
        let state = self.lock();
        match (state.batches.is_empty(), state.closed) {
            (false, _) => Next::Batch,
            (true, false) => Next::Later,
            (true, true) => Next::End,
        }
    }

    /// Blocks while the feed is empty and the planner at work.
    pub(crate) fn wait_for_planner(&self) {
        let mut state = self.lock();
        while state.batches.is_empty() && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the planner, but not for long: whether there is a batch now, or never will be.
    pub(crate) fn wait_briefly(&self, time: Duration) -> bool {
        let is_waiting = |state: &mut Queue| state.batches.is_empty() && !state.closed;
        let waited = self.changed.wait_timeout_while(self.lock(), time, is_waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Writes the next batch to `pieces`, without waiting for the planner.
    pub(crate) fn poll(&self, pieces: &mut Vec<Piece>) -> Next {
        self.take(&mut self.lock(), pieces)
    }

    /// Writes the next batch to `pieces`, waiting for the planner; false at the end.
    pub(crate) fn wait(&self, pieces: &mut Vec<Piece>) -> bool {
        let mut state = self.lock();
        loop {
            match self.take(&mut state, pieces) {
                Next::Batch => return true,
                Next::End => return false,
                Next::Later => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The next whole segment, waiting for the planner; none at the end.
    pub(crate) fn wait_segment(&self) -> Option<Numbered> {
        let mut state = self.lock();
        loop {
            match state.batches.pop_segment() {
                Some(segment) => return Some(segment),
                None if state.closed => return None,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn take(&self, state: &mut Queue, pieces: &mut Vec<Piece>) -> Next {
        let limit = match self.pace {
            Pace::Whole => u64::MAX,
            Pace::Ramp { smallest, threads } => {
                let growing = smallest << (state.handed / threads).min(16);
                let even = (state.left / threads).next_multiple_of(64 << 10);
                // While the planner is at work, what is left is not known.
                let shrinking = if state.closed { even } else { u64::MAX };
                growing.min(shrinking).max(smallest)
            }
        };
        if state.batches.next(limit, pieces) {
            state.handed += 1;
            state.left -= pieces.iter().map(|piece| piece.len).sum::<u64>();
            return Next::Batch;
        }
        if state.closed { Next::End } else { Next::Later }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::EngineKind;
    use crate::plan::Segment;

    fn segment(number: u64) -> Numbered {
        (
            number as usize,
            Segment { engine: EngineKind::Cached, offset: number << 20, length: 1 << 20, predicted_s: 0.0 },
        )
    }

    #[test]
    fn readers_wait_for_the_planner_and_end_with_it() {
        let feed = Feed::new((1 << 18, usize::MAX), 1, Pace::Ramp { smallest: 1 << 16, threads: 4 });
        let total: u64 = std::thread::scope(|scope| {
            let read = || {
                let (mut pieces, mut bytes) = (Vec::new(), 0);
                while feed.wait(&mut pieces) {
                    bytes += pieces.iter().map(|piece| piece.len).sum::<u64>();
                }
                bytes
            };
            let readers: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
            for number in 0..20 {
                feed.push(segment(number));
                std::thread::yield_now();
            }
            feed.close();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        assert_eq!(total, 20 << 20);
    }

    #[test]
    fn a_poll_tells_a_slow_planner_from_the_end() {
        let (feed, mut pieces) = (Feed::new((1 << 20, usize::MAX), 4096, Pace::Whole), Vec::new());
        assert_eq!(feed.poll(&mut pieces), Next::Later);
        assert!(!feed.wait_briefly(Duration::from_millis(1)));
        feed.push(segment(0));
        assert!(feed.wait_briefly(Duration::from_secs(60)));
        assert_eq!(feed.poll(&mut pieces), Next::Batch);
        feed.close();
        assert_eq!(feed.poll(&mut pieces), Next::End);
        assert!(feed.wait_briefly(Duration::from_secs(60)), "nothing to wait for");
    }
}
