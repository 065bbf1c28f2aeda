//! What is counted, in shared words: `swap status` reads them while the cache serves, and a successor goes on counting.
//!
//! Times go into a histogram of powers of two, each in four parts, so that a percentile is known to within a quarter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Requests to read.
    Reads,
    /// Bytes that were read.
    ReadBytes,
    /// Pages that were read from device memory.
    HitPages,
    /// Pages that were read from the backing.
    MissPages,
    /// Pages that were read as zeroes, as they were discarded.
    ZeroPages,
    /// Requests to write.
    Writes,
    /// Bytes that were written.
    WrittenBytes,
    /// Pages that writes did not bring into device memory.
    BypassPages,
    /// Bytes that were discarded.
    DiscardedBytes,
    /// Blocks that left for others.
    Evictions,
    /// Pages that were written back.
    WrittenBackPages,
    /// Failures of the device.
    DeviceErrors,
    /// Pages whose only copy went with the device.
    LostPages,
    /// The longest request, in nanoseconds.
    LongestNs,
}

/// Words for counters.
const COUNTERS: usize = 32;
/// Parts of a power of two.
const PARTS: usize = 4;
/// Words of a histogram: up to 2^40 ns, which is 18 minutes.
const BUCKETS: usize = 40 * PARTS;
/// Words of all.
pub const STATS_WORDS: usize = COUNTERS + 2 * BUCKETS;

/// Counters and histograms in [`STATS_WORDS`] words.
#[derive(Debug, Clone, Copy)]
pub struct Stats<'a>(pub &'a [AtomicU64]);

/// Which requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

impl Stats<'_> {
    /// Counts.
    pub fn add(self, counter: Counter, count: u64) {
        if count > 0 {
            self.0[counter as usize].fetch_add(count, Relaxed);
        }
    }

    /// What was counted.
    pub fn get(self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Counts a request that took this long.
    pub fn took(self, side: Side, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.histogram(side)[bucket(ns)].fetch_add(1, Relaxed);
        self.0[Counter::LongestNs as usize].fetch_max(ns, Relaxed);
    }

    /// The time in which `share` of the requests (0 to 1) were done; none without requests.
    pub fn percentile(self, side: Side, share: f64) -> Option<Duration> {
        let counts = self.histogram(side);
        let all: u64 = counts.iter().map(|count| count.load(Relaxed)).sum();
        let wanted = (all as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = counts.iter().position(|count| {
            seen += count.load(Relaxed);
            seen >= wanted
        })?;
        Some(Duration::from_nanos(upper_ns(at)))
    }

    fn histogram(&self, side: Side) -> &[AtomicU64] {
        let first = COUNTERS + if side == Side::Read { 0 } else { BUCKETS };
        &self.0[first..first + BUCKETS]
    }
}

fn bucket(ns: u64) -> usize {
    let power = ns.max(4).ilog2() as usize;
    let part = (ns.max(4) >> (power - 2)) as usize & (PARTS - 1);
    (power * PARTS + part).min(BUCKETS - 1)
}

fn upper_ns(bucket: usize) -> u64 {
    let (power, part) = (bucket / PARTS, bucket % PARTS);
    (1_u64 << power) + ((part as u64 + 1) << power.max(2) >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_at_most_a_quarter_too_long() {
        for ns in (2..36).flat_map(|power| [0, 1, 3, 5, 7].map(|more| (1_u64 << power) + (more << power >> 3))) {
            let words: Vec<AtomicU64> = (0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect();
            let stats = Stats(&words);
            assert_eq!(stats.percentile(Side::Read, 0.5), None);
            stats.took(Side::Read, Duration::from_nanos(ns));
            stats.took(Side::Write, Duration::from_secs(1));
            let told = stats.percentile(Side::Read, 0.99).unwrap().as_nanos() as u64;
            assert!(told >= ns && told <= ns + ns / 4 + 1, "{ns} ns were told as {told}");
            assert_eq!(stats.get(Counter::LongestNs), ns.max(1_000_000_000));
        }
    }
}
