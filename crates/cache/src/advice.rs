//! What will be acquired next: as programs say, or as a sequence of acquires shows.

use crate::stats::Report;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most bytes that are brought ahead of a sequence of shorter acquires, and at a time.
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
    tempo: Tempo,
    pub(crate) is_off: bool,
}

/// How fast acquires bring what they ask for, and how long the program does something else between two of them.
#[derive(Debug, Default)]
pub(crate) struct Tempo {
    returned: Option<Instant>,
    pause: Duration,
    bytes_per_s: f64,
}

impl Tempo {
    /// An acquire begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.pause = self.returned.map_or(Duration::ZERO, |returned| now.duration_since(returned));
    }

    /// An acquire of some bytes ends. What was there already says nothing of the rate.
    pub(crate) fn end(&mut self, now: Instant, bytes: u64, report: &Report) {
        self.returned = Some(now);
        let (fetched, hits) = (report.fetched as f64, report.hits as f64);
        if fetched > hits && report.seconds > 0.0 {
            self.bytes_per_s = bytes as f64 * fetched / (fetched + hits) / report.seconds;
        }
    }

    /// Bytes that can be brought while the program does something else, if it does so for as long as before.
    fn bytes_in_a_pause(&self) -> u64 {
        (self.pause.as_secs_f64() * self.bytes_per_s) as u64
    }
}

impl Sequence {
    /// How its acquires follow each other.
    pub(crate) fn tempo(&mut self) -> &mut Tempo {
        &mut self.tempo
    }

    /// Notes an acquire; what is to be brought ahead of the next one.
    ///
    /// Of long acquires only what can be brought in the pause between two of them: the next would wait for the rest, and
    /// several requests take longer than one.
    pub(crate) fn acquired(&mut self, range: &Range<u64>, end: u64) -> Option<Range<u64>> {
        let goes_on = range.start == self.next && range.start > 0;
        self.next = range.end;
        if self.is_off || !goes_on {
            (self.window, self.brought) = (0, range.end);
            return None;
        }
        let len = range.end - range.start;
        self.window = if len > WINDOW_BYTES_MAX {
            self.tempo.bytes_in_a_pause().min(len) / WINDOW_BYTES_MAX * WINDOW_BYTES_MAX
        } else {
            (self.window * 2).max(WINDOW_BYTES_MIN).max(len).min(WINDOW_BYTES_MAX)
        };
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
    use crate::stats::Counts;

    /// Two acquires after each other, each of which brings all of its bytes in `took`, and what follows the second.
    fn long_acquires(len: u64, took: Duration, pause: Duration) -> Option<Range<u64>> {
        let (mut sequence, start, end) = (Sequence::default(), Instant::now(), 10 * len);
        let counts = Counts { fetched: len >> 16, ..Counts::default() };
        let report = Report { counts, seconds: took.as_secs_f64(), always_compared: false };
        let mut at = start;
        (0..2).fold(None, |_, number| {
            sequence.tempo().begin(at);
            sequence.tempo().end(at + took, len, &report);
            at += took + pause;
            sequence.acquired(&(number * len..(number + 1) * len), end)
        })
    }

    #[test]
    fn of_long_acquires_what_fits_into_the_pause_is_brought() {
        let (len, ms) = (256 << 20, Duration::from_millis);
        assert_eq!(long_acquires(len, ms(8), ms(0)), None);
        assert_eq!(long_acquires(len, ms(8), Duration::from_micros(400)), None, "less than a window");
        assert_eq!(long_acquires(len, ms(8), ms(4)), Some(2 * len..2 * len + len / 2));
        assert_eq!(long_acquires(len, ms(8), ms(80)), Some(2 * len..3 * len), "as much as the next asks for");
    }

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
