//! How long packets took: counts by classes of durations, which threads share.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Classes of an octave: durations are known to 3 %.
const PARTS: u32 = 32;
/// Octaves of nanoseconds: the longest are minutes.
const OCTAVES: u32 = 35;

/// Counts of durations. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Latencies {
    begin: Instant,
    counts: Arc<Vec<AtomicU64>>,
}

impl Default for Latencies {
    fn default() -> Self {
        let counts = (0..PARTS * OCTAVES).map(|_| AtomicU64::new(0)).collect();
        Self { begin: Instant::now(), counts: Arc::new(counts) }
    }
}

/// What of a distribution is told, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "units go last")]
pub(super) struct Percentiles {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
}

/// The class of a duration: exact below 32 ns, of 32 parts of an octave above.
fn class(ns: u64) -> usize {
    if ns < u64::from(PARTS) {
        return ns as usize;
    }
    let octave = ns.ilog2() - PARTS.ilog2();
    let class = (octave + 1) * PARTS + (ns >> octave) as u32 - PARTS;
    class.min(PARTS * OCTAVES - 1) as usize
}

/// The longest duration of a class.
fn upper_ns(class: usize) -> u64 {
    let (octave, part) = (class as u32 / PARTS, class as u64 % u64::from(PARTS));
    if octave == 0 { part } else { ((part + u64::from(PARTS) + 1) << (octave - 1)) - 1 }
}

impl Latencies {
    /// A moment, in nanoseconds from the beginning.
    pub(super) fn at(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.begin).as_nanos() as u64
    }

    /// Counts durations; those that are of one class and come together, together.
    pub(super) fn note(&self, durations_ns: impl Iterator<Item = u64>) {
        let (mut last, mut count) = (0, 0);
        for ns in durations_ns {
            let class = class(ns);
            if class != last {
                self.add(last, count);
                (last, count) = (class, 0);
            }
            count += 1;
        }
        self.add(last, count);
    }

    fn add(&self, class: usize, count: u64) {
        if count > 0 {
            self.counts[class].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// What is told of them; nothing of none.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let at = |share: f64| {
            let rank = ((all as f64 * share).ceil() as u64).clamp(1, all);
            let mut below = 0;
            let class = counts.iter().position(|count| {
                below += count;
                below >= rank
            });
            class.map_or(0.0, |class| upper_ns(class) as f64 / 1e3)
        };
        (all > 0).then(|| Percentiles { p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_durations() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let latencies = Latencies::default();
        assert_eq!(latencies.percentiles(), None);
        let mut duration = || random.u64(..) >> random.u32(30..63);
        let mut all: Vec<u64> = (0..5000).map(|_| duration()).collect();
        for some in all.chunks(77) {
            latencies.note(some.iter().copied());
        }
        all.sort_unstable();
        let told = latencies.percentiles().unwrap();
        for (told_us, rank) in [(told.p50_us, 2500), (told.p99_us, 4950), (told.max_us, 5000)] {
            let exact_us = all[rank - 1] as f64 / 1e3;
            assert!((exact_us..=exact_us * 1.04 + 1e-3).contains(&told_us), "{told_us} and {exact_us}");
        }
    }

    #[test]
    fn classes_follow_each_other_without_gaps() {
        for ns in (0..100_000).chain([u64::from(u32::MAX), u64::MAX]) {
            let class = class(ns);
            assert!(ns <= upper_ns(class) || class == (PARTS * OCTAVES) as usize - 1, "{ns}");
            assert!(class == 0 || ns > upper_ns(class - 1), "{ns}");
        }
    }
}
