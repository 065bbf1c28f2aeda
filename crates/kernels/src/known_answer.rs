//! Seeded numbers for known-answer tests, so that a failure can be run again, and the comparison of
//! what a kernel wrote with its answer.

use bifolio_device::{Allocation, Result, Stream};
use std::fmt::LowerHex;
use std::time::{SystemTime, UNIX_EPOCH};

/// A stream of pseudo-random numbers (SplitMix64) that remembers its seed.
#[derive(Debug, Clone)]
pub struct Draw {
    seed: u64,
    state: u64,
}

impl Draw {
    /// The numbers of `seed`.
    pub fn from_seed(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// Numbers that differ from run to run: a wrong kernel cannot be right by habit.
    pub fn afresh() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::from_seed(since.as_nanos() as u64)
    }

    /// The seed, for messages.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }

    /// Lengths for a list of pages: all of `page_bytes`, but one in eight empty and the last one
    /// ragged.
    pub(crate) fn page_lengths(&mut self, count: usize, page_bytes: u64) -> Vec<u64> {
        let mut lens: Vec<_> = (0..count).map(|_| if self.below(8) == 0 { 0 } else { page_bytes }).collect();
        if let Some(last) = lens.last_mut() {
            *last = 1 + self.below(page_bytes);
        }
        lens
    }

    /// Places for pages of these lengths, in random order and at 16-byte boundaries, and the bytes
    /// that they take with some more behind.
    pub(crate) fn places(&mut self, lens: &[u64]) -> (Vec<u64>, u64) {
        let mut order: Vec<_> = (0..lens.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        let (mut places, mut end) = (vec![0; lens.len()], 0);
        for page in order {
            places[page] = end + self.below(3) * 16;
            end = (places[page] + lens[page]).next_multiple_of(16);
        }
        (places, end + 32)
    }
}

/// New memory that holds `bytes`.
pub(crate) fn on_device(stream: &Stream, bytes: &[u8]) -> Result<Allocation> {
    let memory = stream.device().alloc(bytes.len() as u64)?;
    stream.upload(memory.slice(), bytes).map(|()| memory)
}

/// All bytes of `memory`, once the stream's work is done.
pub(crate) fn content(stream: &Stream, memory: &Allocation) -> Result<Vec<u8>> {
    let mut bytes = vec![0; memory.len() as usize];
    stream.download(&mut bytes, memory.slice()).map(|()| bytes)
}

/// A sentence about the first of `found` that is not as `expected`.
pub(crate) fn compare<T: PartialEq + LowerHex>(what: &str, found: &[T], expected: &[T]) -> Result<(), String> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!("{what} {at} is {:#x} instead of {:#x}", found[at], expected[at])),
    }
}

/// The bytes of words of which every bit is wrong.
pub(crate) fn complement(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| (!word).to_ne_bytes()).collect()
}

/// The words in `bytes`.
pub(crate) fn u32s(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}
