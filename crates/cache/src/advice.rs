//! What will be acquired next: as programs say, or as a sequence of acquires shows.

use std::ops::Range;

/// Most bytes that are brought ahead of a sequence.
pub(crate) const WINDOW_BYTES_MAX: u64 = 16 << 20;

/// What is brought ahead of a sequence at first.
const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// What a program will do with a part of a mapping, as with `madvise(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Acquire it soon: it is brought in the background, as far as the budget has room for it.
    WillNeed,
    /// Not acquire it for a while: its memory is given back, after what was released of it has been written.
    /// What is acquired stays.
    DontNeed,
    /// Acquire it in any order: nothing is brought ahead, in all of the mapping.
    Random,
    /// Nothing is known: sequences are noticed, in all of the mapping.
    Normal,
}

/// A sequence of acquires of one mapping, each where the one before ended.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// Where the next begins if it goes on.
    next: u64,
    /// Up to where it was brought.
    brought: u64,
    window: u64,
    pub(crate) is_off: bool,
}

impl Sequence {
    /// Notes an acquire; what is to be brought ahead of the next one.
    pub(crate) fn acquired(&mut self, range: &Range<u64>, end: u64) -> Option<Range<u64>> {
        let goes_on = range.start == self.next && range.start > 0;
        self.next = range.end;
        if self.is_off || !goes_on {
            (self.window, self.brought) = (0, range.end);
            return None;
        }
        let len = range.end - range.start;
        self.window = (self.window * 2).max(WINDOW_BYTES_MIN).max(len).min(WINDOW_BYTES_MAX);
        let start = self.brought.max(range.end);
        let ahead = start..(range.end + self.window).min(end);
        // Half a window at least, so that short acquires do not make a request each.
        if ahead.start >= ahead.end || ahead.end - ahead.start < (self.window / 2).min(end - ahead.start) {
            return None;
        }
        self.brought = ahead.end;
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_along_a_sequence_and_end_with_it() {
        let (mut sequence, mib) = (Sequence::default(), 1 << 20);
        let end = 100 * mib;
        assert_eq!(sequence.acquired(&(0..mib), end), None, "one acquire is no sequence");
        assert_eq!(sequence.acquired(&(mib..2 * mib), end), Some(2 * mib..3 * mib));
        assert_eq!(sequence.acquired(&(2 * mib..3 * mib), end), Some(3 * mib..5 * mib));
        let mut at = 3 * mib;
        while at < 99 * mib {
            if let Some(ahead) = sequence.acquired(&(at..at + mib), end) {
                assert!(ahead.start >= at + mib && ahead.end <= end && ahead.end - at - mib <= WINDOW_BYTES_MAX);
            }
            at += mib;
        }
        assert_eq!(sequence.acquired(&(99 * mib..end), end), None, "there is nothing behind the end");
        assert_eq!(sequence.acquired(&(5 * mib..6 * mib), end), None);
        sequence.is_off = true;
        assert_eq!(sequence.acquired(&(6 * mib..7 * mib), end), None);
    }
}
