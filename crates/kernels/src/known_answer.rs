//! Seeded numbers for known-answer tests, so that a failure can be run again.

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
}
