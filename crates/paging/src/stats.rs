//! What is counted, in shared words: `swap status` reads them while the cache serves, and a successor goes on counting.
//!
//! Times go into histograms of powers of two, each in four parts, so that a percentile is known to within a quarter. Lengths
//! are counted for every number of pages.

use crate::pages::PAGE_BYTES;
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
/// Requests are counted by their length in pages up to this one, which is 1 MiB; longer ones count as it.
pub const PAGES_MAX: usize = 256;
/// The first word of the lengths.
const LENGTHS: usize = COUNTERS + SIDES.len() * BUCKETS;
/// Words of all.
pub const STATS_WORDS: usize = LENGTHS + 2 * PAGES_MAX;

/// Counters and histograms in [`STATS_WORDS`] words.
#[derive(Debug, Clone, Copy)]
pub struct Stats<'a>(pub &'a [AtomicU64]);

/// Which requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Side {
    /// Reads that the backing had no part in.
    Hit,
    /// Reads that waited for the backing.
    Miss,
    /// Writes.
    Write,
}

const SIDES: [Side; 3] = [Side::Hit, Side::Miss, Side::Write];
/// All reads.
pub const READS: &[Side] = &[Side::Hit, Side::Miss];
/// All writes.
pub const WRITES: &[Side] = &[Side::Write];

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

    /// Counts a request of so many bytes that took this long.
    pub fn took(self, side: Side, bytes: u64, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.histogram(side)[bucket(ns)].fetch_add(1, Relaxed);
        self.0[Counter::LongestNs as usize].fetch_max(ns, Relaxed);
        let pages = (bytes.div_ceil(PAGE_BYTES) as usize).clamp(1, PAGES_MAX);
        self.lengths(side == Side::Write)[pages - 1].fetch_add(1, Relaxed);
    }

    /// Requests by their length, the first of one page; writes or reads.
    pub fn lengths(&self, are_writes: bool) -> &[AtomicU64] {
        let first = LENGTHS + usize::from(are_writes) * PAGES_MAX;
        &self.0[first..first + PAGES_MAX]
    }

    /// The time in which `share` of these requests (0 to 1) were done; none without requests.
    pub fn percentile(self, sides: &[Side], share: f64) -> Option<Duration> {
        percentile(&self.times(sides), share)
    }

    /// Requests by the time that they took, for [`percentile`].
    pub fn times(self, sides: &[Side]) -> Vec<u64> {
        let at = |bucket: usize| sides.iter().map(|side| self.histogram(*side)[bucket].load(Relaxed)).sum();
        (0..BUCKETS).map(at).collect()
    }

    fn histogram(&self, side: Side) -> &[AtomicU64] {
        let first = COUNTERS + side as usize * BUCKETS;
        &self.0[first..first + BUCKETS]
    }
}

/// The time in which `share` (0 to 1) of the requests of [`Stats::times`] were done, or of a difference of two of them.
pub fn percentile(times: &[u64], share: f64) -> Option<Duration> {
    let wanted = (times.iter().sum::<u64>() as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    let at = times.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    Some(Duration::from_nanos(upper_ns(at)))
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
            assert_eq!(stats.percentile(READS, 0.5), None);
            stats.took(Side::Hit, 4096, Duration::from_nanos(ns));
            stats.took(Side::Write, 1 << 30, Duration::from_secs(1));
            let told = stats.percentile(READS, 0.99).unwrap().as_nanos() as u64;
            assert!(told >= ns && told <= ns + ns / 4 + 1, "{ns} ns were told as {told}");
            assert_eq!(stats.get(Counter::LongestNs), ns.max(1_000_000_000));
            assert_eq!(stats.percentile(&[Side::Miss], 0.5), None);
            let lengths = [false, true].map(|are_writes| {
                stats.lengths(are_writes).iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>()
            });
            assert_eq!((lengths[0][0], lengths[1][PAGES_MAX - 1]), (1, 1));
            assert_eq!(lengths.iter().flatten().sum::<u64>(), 2);
        }
    }
}
