//! Short reads of CPUs that follow each other: what comes next is brought from the device with the first of them, as a copy
//! of a page across the link takes as long as one of a hundred.

use std::ops::Range;

/// Longer reads are copied by themselves.
const READ_BYTES_MAX: u64 = 256 << 10;

/// Bytes that are kept at most.
const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// Where a file is read, and what comes next as home has it.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Where the latest read has ended.
    next: u64,
    /// Bytes to bring with the next one that begins there.
    window: u64,
    /// The first byte that is kept, and which state of the pages it is of.
    at: u64,
    edition: u64,
    kept: Vec<u8>,
}

impl ReadAhead {
    /// What is kept of some bytes, if that is all of them, of a state of the pages; else how many to bring from their
    /// first on, which are more than those if they follow a read.
    pub(super) fn look(&mut self, bytes: &Range<u64>, edition: u64) -> Result<&[u8], u64> {
        let len = bytes.end - bytes.start;
        let follows = bytes.start == self.next && len <= READ_BYTES_MAX;
        self.next = bytes.end;
        let is_kept =
            edition == self.edition && self.at <= bytes.start && bytes.end <= self.at + self.kept.len() as u64;
        if is_kept && len <= READ_BYTES_MAX {
            let from = (bytes.start - self.at) as usize;
            return Ok(&self.kept[from..from + len as usize]);
        }
        self.window = if follows { (2 * self.window).clamp(4 * len, WINDOW_BYTES_MAX).max(len) } else { 0 };
        Err(self.window.max(len))
    }

    /// Memory for what is brought, from a byte on; nothing is kept while it is filled.
    pub(super) fn fill(&mut self, at: u64, len: u64) -> &mut [u8] {
        (self.at, self.edition) = (at, u64::MAX);
        self.kept.resize(len as usize, 0);
        &mut self.kept
    }

    /// It is filled, of a state of the pages.
    pub(super) fn filled(&mut self, edition: u64) {
        self.edition = edition;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads; how much was brought for it.
    fn read(ahead: &mut ReadAhead, bytes: &Range<u64>, edition: u64) -> u64 {
        match ahead.look(bytes, edition) {
            Ok(kept) => {
                assert!(kept.len() as u64 == bytes.end - bytes.start);
                assert!(kept.iter().zip(bytes.start..).all(|(byte, at)| *byte == at as u8));
                0
            }
            Err(len) => {
                ahead.fill(bytes.start, len).iter_mut().zip(bytes.start..).for_each(|(byte, at)| *byte = at as u8);
                ahead.filled(edition);
                len
            }
        }
    }

    #[test]
    fn reads_that_follow_each_other_bring_more_and_more() {
        let mut ahead = ReadAhead::default();
        let reads = (0..16 << 20).step_by(4096).map(|at| at..at + 4096);
        let brought: Vec<u64> = reads.map(|bytes| read(&mut ahead, &bytes, 1)).filter(|len| *len > 0).collect();
        assert_eq!(brought[..3], [16 << 10, 32 << 10, 64 << 10], "{brought:?}");
        assert!(brought[6..].iter().all(|len| *len == WINDOW_BYTES_MAX), "{brought:?}");
    }

    #[test]
    fn what_is_kept_is_of_one_state_of_the_pages() {
        let mut ahead = ReadAhead::default();
        assert!(read(&mut ahead, &(0..4096), 1) >= 4096);
        assert!(ahead.look(&(100..200), 1).is_ok());
        assert!(ahead.look(&(100..200), 2).is_err());
        ahead.fill(0, 4096);
        assert!(ahead.look(&(100..200), 1).is_err(), "it is not filled");
    }

    #[test]
    fn reads_at_random_and_long_ones_bring_what_they_ask_for() {
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.look(&(5 << 20..(5 << 20) + 4096), 1), Err(4096));
        assert_eq!(ahead.look(&(9 << 20..(9 << 20) + 4096), 1), Err(4096));
        let long = READ_BYTES_MAX + 1;
        assert_eq!(ahead.look(&((9 << 20) + 4096..(9 << 20) + 4096 + long), 1), Err(long));
    }
}
