//! Sizes, and sets of pages within a block.
//!
//! Paging moves pages of 4 KiB, in clusters: written together, and read back 1 to 8 at a time. So device memory is handed
//! out in slots of one block (16 pages), which keeps neighbours together for one copy and tables small, and what of a
//! block is there, changed or of no use is known for every page.

use std::ops::Range;

/// The unit in which content is known: reads and writes of whole pages need not read first.
pub const PAGE_BYTES: u64 = 4096;
/// Pages of a block.
pub const BLOCK_PAGES: u32 = 16;
/// The unit in which device memory is handed out.
pub const BLOCK_BYTES: u64 = PAGE_BYTES * BLOCK_PAGES as u64;

/// Some pages of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pages(pub u16);

impl Pages {
    /// None of them.
    pub const NONE: Self = Self(0);

    /// Those from `range.start` to before `range.end`, at most [`BLOCK_PAGES`].
    pub fn of(range: &Range<u32>) -> Self {
        let below = |end: u32| ((1_u32 << end) - 1) as u16;
        Self(below(range.end) & !below(range.start))
    }

    /// Those in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether a page is among them.
    pub fn has(self, page: u32) -> bool {
        self.0 >> page & 1 == 1
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    pub fn count(self) -> u64 {
        u64::from(self.0.count_ones())
    }

    /// Neighbours among them, each run once, ascending.
    pub fn runs(self) -> impl Iterator<Item = Range<u32>> {
        let mut left = u32::from(self.0);
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let start = left.trailing_zeros();
            let end = start + (left >> start).trailing_ones();
            left &= !((1_u32 << end) - 1);
            Some(start..end)
        })
    }
}

/// The part of a request that lies in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The block.
    pub block: u32,
    /// Bytes of the block.
    pub bytes: Range<u64>,
    /// Where they lie in the request.
    pub at: usize,
}

impl Part {
    /// The pages that it touches.
    pub fn pages(&self) -> Range<u32> {
        (self.bytes.start / PAGE_BYTES) as u32..self.bytes.end.div_ceil(PAGE_BYTES) as u32
    }

    /// What of a run of pages lies in the part: bytes of the block, and where they lie in the request.
    pub fn cut(&self, run: &Range<u32>) -> (Range<u64>, Range<usize>) {
        let start = self.bytes.start.max(u64::from(run.start) * PAGE_BYTES);
        let end = self.bytes.end.min(u64::from(run.end) * PAGE_BYTES);
        let at = self.at + (start - self.bytes.start) as usize;
        (start..end, at..at + (end - start) as usize)
    }
}

/// A request in parts.
pub fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let (end, mut now) = (offset + len, offset);
    std::iter::from_fn(move || {
        if now >= end {
            return None;
        }
        let block = now / BLOCK_BYTES;
        let stop = end.min((block + 1) * BLOCK_BYTES);
        let base = block * BLOCK_BYTES;
        let part = Part { block: block as u32, bytes: now - base..stop - base, at: (now - offset) as usize };
        now = stop;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_pages_in_order() {
        for bits in 0..=u16::MAX {
            let pages = Pages(bits);
            let joined = pages.runs().fold(Pages::NONE, |all, run| {
                assert!(run.start < run.end && run.end <= BLOCK_PAGES);
                assert!(run.end == BLOCK_PAGES || !pages.has(run.end), "a run ends where the pages end");
                assert!(all.and(Pages::of(&run)).is_empty());
                all.or(Pages::of(&run))
            });
            assert_eq!(joined, pages);
        }
    }

    #[test]
    fn parts_cover_a_request_once() {
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..2000 {
            let (offset, len) = (draw.u64(..4 * BLOCK_BYTES), draw.u64(..4 * BLOCK_BYTES));
            let mut at = 0;
            for part in parts(offset, len) {
                assert_eq!(part.at as u64, at);
                assert_eq!(u64::from(part.block) * BLOCK_BYTES + part.bytes.start, offset + at);
                let cut: u64 = Pages::of(&part.pages()).runs().map(|run| part.cut(&run).1.len() as u64).sum();
                assert_eq!(cut, part.bytes.end - part.bytes.start);
                at += cut;
            }
            assert_eq!(at, len);
        }
    }
}
