//! Where an encrypted file has data and where it has holes, by plain offsets: `SEEK_DATA` and `SEEK_HOLE`.
//!
//! ```text
//!   file system below   ....|data data|..................................|data|....     holes of its own blocks
//!   encrypted blocks    18 |  block 0  |  block 1  |  block 2  |  block 3  |  block 4
//!   plain               data            hole        hole        data        data
//! ```
//!
//! A hole here is a whole encrypted block of zeroes, so that it is one for certain where it lies in a hole below. What
//! a hole below covers in part is data, and so is a last block that is not whole. Holes may be called data, which costs
//! time; data is never called a hole.

use crate::content::layout::{self, CIPHER_BLOCK_BYTES, HEADER_BYTES};
use std::io;

/// Holes below that are looked at for one answer. Behind as many that are too small, everything is called data.
const STEPS_MAX: usize = 1 << 16;

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    Data,
    Hole,
}

/// The first plain offset from `offset` on that has what is sought; none where there is none, which is said of every
/// offset behind the end. The end counts as a hole. `below` says the same of the encrypted file of `cipher_len` bytes.
pub(crate) fn next(
    sought: Sought,
    offset: u64,
    cipher_len: u64,
    below: impl Fn(Sought, u64) -> io::Result<Option<u64>>,
) -> io::Result<Option<u64>> {
    if offset >= layout::plain_len(cipher_len) {
        return Ok(None);
    }
    let below = |sought, at| Ok(below(sought, at)?.filter(|found| (at..cipher_len).contains(found)));
    match sought {
        Sought::Data => next_data(offset, cipher_len, below),
        Sought::Hole => next_hole(offset, cipher_len, below).map(Some),
    }
}

fn next_data(
    offset: u64,
    cipher_len: u64,
    below: impl Fn(Sought, u64) -> io::Result<Option<u64>>,
) -> io::Result<Option<u64>> {
    let last = (cipher_len - HEADER_BYTES) / CIPHER_BLOCK_BYTES;
    let block = match below(Sought::Data, layout::cipher_offset(layout::block_of(offset)))? {
        Some(at) => (at - HEADER_BYTES) / CIPHER_BLOCK_BYTES,
        // Whole blocks up to the end of the file.
        None if layout::cipher_offset(last) == cipher_len => return Ok(None),
        None => last,
    };
    Ok(Some(offset.max(layout::plain_offset(block))))
}

fn next_hole(offset: u64, cipher_len: u64, below: impl Fn(Sought, u64) -> io::Result<Option<u64>>) -> io::Result<u64> {
    let mut at = layout::cipher_offset(layout::block_of(offset));
    for _ in 0..STEPS_MAX {
        let Some(begin) = below(Sought::Hole, at)? else { break };
        let end = below(Sought::Data, begin)?.unwrap_or(cipher_len);
        let block = (begin - HEADER_BYTES).div_ceil(CIPHER_BLOCK_BYTES);
        if layout::cipher_offset(block + 1) <= end {
            return Ok(offset.max(layout::plain_offset(block)));
        }
        if end <= at {
            break;
        }
        at = end;
    }
    Ok(layout::plain_len(cipher_len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BELOW: u64 = 4096;

    /// A file system that stores blocks of 4096 bytes, each of which is there or is a hole.
    fn answer(stored: &[bool], len: u64, sought: Sought, from: u64) -> Option<u64> {
        let is_stored = |at: u64| stored.get((at / BELOW) as usize).copied().unwrap_or(false);
        let starts = std::iter::once(from).chain((from / BELOW + 1..).map(|block| block * BELOW));
        let mut inside = starts.take_while(|at| *at < len);
        match sought {
            Sought::Data => inside.find(|at| is_stored(*at)),
            Sought::Hole => Some(inside.find(|at| !is_stored(*at)).unwrap_or(len)),
        }
    }

    /// For each plain block, whether all of its encrypted bytes are in holes below and it is whole.
    fn holes(stored: &[bool], len: u64) -> Vec<bool> {
        let blocks = len.saturating_sub(HEADER_BYTES).div_ceil(CIPHER_BLOCK_BYTES);
        let is_hole = |block: u64| {
            let range = layout::cipher_range(block..block + 1);
            range.end <= len
                && (range.start / BELOW..=(range.end - 1) / BELOW).all(|at| !stored.get(at as usize).unwrap_or(&false))
        };
        (0..blocks).map(is_hole).collect()
    }

    proptest! {
        #[test]
        fn every_offset_is_answered_as_the_blocks_are(
            stored in proptest::collection::vec(proptest::bool::weighted(0.3), 0..30),
            cut in 0..BELOW,
            offset in 0..130_000_u64,
        ) {
            let len = (stored.len() as u64 * BELOW).saturating_sub(cut);
            let plain_len = layout::plain_len(len);
            let holes = holes(&stored, len);
            let below = |sought, from| Ok(answer(&stored, len, sought, from));
            let oracle = |wanted: bool| {
                let starts = (offset / 4096..holes.len() as u64).filter(|block| holes[*block as usize] == wanted);
                starts.map(|block| offset.max(block * 4096)).next()
            };
            let data = next(Sought::Data, offset, len, below).unwrap();
            let hole = next(Sought::Hole, offset, len, below).unwrap();
            if offset >= plain_len {
                prop_assert_eq!((data, hole), (None, None));
            } else {
                prop_assert_eq!(data, oracle(false));
                prop_assert_eq!(hole, Some(oracle(true).unwrap_or(plain_len)));
            }
        }
    }

    #[test]
    fn answers_from_below_that_cannot_be_end_the_search() {
        let len = layout::cipher_len(100 * 4096);
        for wrong in [0, 5, u64::MAX] {
            assert_eq!(next(Sought::Hole, 5000, len, |_, _| Ok(Some(wrong))).unwrap(), Some(100 * 4096));
            assert_eq!(next(Sought::Data, 5000, len, |_, _| Ok(Some(wrong))).unwrap(), None);
        }
        // Everything is a hole and data at once: no step forward.
        assert_eq!(next(Sought::Hole, 5000, len, |_, at| Ok(Some(at))).unwrap(), Some(100 * 4096));
    }
}
