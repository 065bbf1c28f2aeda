//! Which requests of a file follow each other, and what to read ahead for them. Pure.

use crate::options::Advice;
use std::ops::Range;

/// Sequential readers of one file that are followed at a time.
const STREAMS_MAX: usize = 8;

/// Requests that have followed each other before anything is read ahead: two neighbours are often
/// chance, three hardly.
const RUN_MIN: u32 = 2;

/// The first window, in requests, and its least size. Windows double from there.
const FIRST_WINDOW_REQUESTS: u64 = 4;
const FIRST_WINDOW_BYTES_MIN: u64 = 128 << 10;

/// A sequence of requests, each beginning where the one before ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// Where the next request begins if the sequence goes on.
    next: u64,
    /// How many requests have followed another.
    run: u32,
    /// Bytes of the latest request.
    request: u64,
    /// Bytes of the latest window, 0 before the first.
    window: u64,
    /// The end of what was read ahead.
    ahead: u64,
}

impl Sequence {
    /// A sequence that begins with `request`.
    pub(crate) fn starting(request: &Range<u64>) -> Self {
        Self { next: request.end, run: 0, request: request.end - request.start, window: 0, ahead: request.end }
    }

    /// Takes the next request; false if it does not follow.
    pub(crate) fn follow(&mut self, request: &Range<u64>) -> bool {
        if request.start != self.next {
            return false;
        }
        self.run = self.run.saturating_add(1);
        self.next = request.end;
        self.request = request.end - request.start;
        if self.ahead < self.next {
            // The reader has overtaken the windows.
            self.ahead = self.next;
        }
        true
    }

    /// The next window to read ahead, of at most `window_bytes_max` bytes and within a file of
    /// `size` bytes; none if this is no sequence (yet) or all is read. Its length is a multiple of
    /// the request's, so that requests of one size do not straddle windows.
    pub(crate) fn next_window(&mut self, advice: Advice, size: u64, window_bytes_max: u64) -> Option<Range<u64>> {
        let is_sequence = match advice {
            Advice::Random => false,
            Advice::Sequential => true,
            Advice::Normal => self.run >= RUN_MIN,
        };
        if !is_sequence || self.ahead >= size || self.request > window_bytes_max {
            return None;
        }
        let wanted = match self.window {
            0 => (self.request * FIRST_WINDOW_REQUESTS).max(FIRST_WINDOW_BYTES_MIN),
            before => before.saturating_mul(2),
        };
        let fits = wanted.min(window_bytes_max);
        self.window = (fits - fits % self.request).max(self.request);
        let range = self.ahead..self.ahead.saturating_add(self.window).min(size);
        self.ahead = range.end;
        Some(range)
    }

    /// Nothing is read ahead any more: windows are to begin at the next request again.
    pub(crate) fn restart(&mut self) {
        self.ahead = self.next;
    }

    /// Forgets a window that could not be read ahead after all.
    pub(crate) fn give_back(&mut self, window: &Range<u64>) {
        self.ahead = self.ahead.min(window.start);
    }
}

/// The sequences of one file, each with something attached.
#[derive(Debug)]
pub(crate) struct Sequences<T> {
    /// The most recently used last.
    list: Vec<(Sequence, T)>,
}

impl<T> Default for Sequences<T> {
    fn default() -> Self {
        Self { list: vec![] }
    }
}

impl<T: Default> Sequences<T> {
    /// The sequence that a request continues; otherwise a new one, in place of the one that was
    /// not used for the longest time.
    pub(crate) fn find(&mut self, request: &Range<u64>) -> &mut (Sequence, T) {
        let following = self.list.iter_mut().position(|(sequence, _)| sequence.follow(request));
        let entry = if let Some(at) = following {
            self.list.remove(at)
        } else {
            if self.list.len() >= STREAMS_MAX {
                self.list.remove(0);
            }
            (Sequence::starting(request), T::default())
        };
        self.list.push(entry);
        self.list.last_mut().expect("an entry was pushed")
    }

    /// The sequence whose latest request ended here.
    pub(crate) fn ending_at(&mut self, end: u64) -> Option<&mut (Sequence, T)> {
        self.list.iter_mut().rev().find(|(sequence, _)| sequence.next == end)
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_follow_each_other_cover_the_rest_and_grow_to_the_bound(
            request in 1_u64..100_000, start in 0_u64..1 << 20, size in 1_u64..1 << 26, bound_shift in 17_u32..23
        ) {
            let bound = 1_u64 << bound_shift;
            let mut sequence = Sequence::starting(&(start..start + request));
            let (mut ahead, mut latest) = (start + request, 0);
            while let Some(window) = sequence.next_window(Advice::Sequential, size, bound) {
                let len = window.end - window.start;
                prop_assert_eq!(window.start, ahead);
                prop_assert!(len > 0 && len <= bound.max(request) && window.end <= size);
                prop_assert!(len % request == 0 || window.end == size);
                prop_assert!(len >= latest || window.end == size, "windows do not shrink");
                (ahead, latest) = (window.end, len);
            }
            prop_assert!(ahead >= size);
        }

        #[test]
        fn several_readers_of_one_file_are_told_apart(readers in 1_usize..STREAMS_MAX, turns in proptest::collection::vec(0_usize..8, 50..200)) {
            let mut sequences = Sequences::<u32>::default();
            let mut at: Vec<u64> = (0..readers as u64).map(|reader| reader << 30).collect();
            for turn in turns {
                let reader = turn % readers;
                let request = at[reader]..at[reader] + 4096;
                at[reader] = request.end;
                sequences.find(&request).1 += 1;
            }
            prop_assert!(sequences.list.len() <= readers);
            for (sequence, requests) in &sequences.list {
                let reader = (sequence.next >> 30) as usize;
                prop_assert_eq!(sequence.next, at[reader]);
                prop_assert_eq!(u64::from(*requests) * 4096, at[reader] & ((1 << 30) - 1));
            }
        }
    }

    #[test]
    fn nothing_is_read_ahead_for_random_requests_or_against_advice() {
        let (mut sequences, mut random) = (Sequences::<()>::default(), fastrand::Rng::with_seed(1));
        for _ in 0..1000 {
            let start = random.u64(..1 << 44) & !4095;
            let (sequence, ()) = sequences.find(&(start..start + 4096));
            assert_eq!(sequence.next_window(Advice::Normal, u64::MAX, 1 << 20), None);
        }
        let mut sequential = Sequence::starting(&(0..4096));
        for start in [4096, 8192, 12_288] {
            assert!(sequential.follow(&(start..start + 4096)));
        }
        assert_eq!(sequential.next_window(Advice::Random, 1 << 30, 1 << 20), None);
        assert!(sequential.next_window(Advice::Normal, 1 << 30, 1 << 20).is_some());
    }
}
