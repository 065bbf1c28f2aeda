//! Seeded numbers for known-answer tests, so that a failure can be run again, and the comparison of
//! what a kernel wrote with its answer.

use crate::launch::download;
use bifolio_device::{Allocation, DeviceSlice, Result, Stream};
use std::fmt::LowerHex;

/// A stream of pseudo-random numbers that remembers its seed. Nothing secret is drawn from it.
#[derive(Debug, Clone)]
pub struct Draw {
    seed: u64,
    numbers: fastrand::Rng,
}

impl Draw {
    /// The numbers of `seed`.
    pub fn from_seed(seed: u64) -> Self {
        Self { seed, numbers: fastrand::Rng::with_seed(seed) }
    }

    /// Numbers that differ from run to run: a wrong kernel cannot be right by habit.
    pub fn afresh() -> Self {
        Self::from_seed(fastrand::u64(..))
    }

    /// The seed, for messages.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.numbers.u64(..)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.numbers.u64(..limit)
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.numbers.fill(&mut bytes);
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

/// What is behind the first `bytes` of `memory`.
pub(crate) fn behind(memory: &Allocation, bytes: usize) -> Result<DeviceSlice<'_>> {
    memory.slice().part(bytes as u64, memory.len() - bytes as u64)
}

/// All bytes of `memory`, once the stream's work is done.
pub(crate) fn content(stream: &Stream, memory: &Allocation) -> Result<Vec<u8>> {
    download(stream, memory.slice())
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
