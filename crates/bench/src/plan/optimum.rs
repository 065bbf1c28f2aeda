//! The optimum of our objective, exactly: a reference for the simulator and the tests, far too slow
//! to plan with.
//!
//! Both engines' times depend on two numbers only: how many bytes come from the page cache, and in
//! how many runs. For a given number of bytes fewer runs are better for both, so it is enough to
//! know the least number of runs for every possible number of bytes: a knapsack over the lengths
//! of the runs, in units of their greatest common divisor, hence without rounding. Runs at the ends
//! of the request are tried both ways by themselves: they save no storage extent.

use bifolio_io::plan::objective::{JOIN_S, POLLUTION_FACTOR, Share};
use bifolio_io::{Costs, EngineKind, Residency};

/// No choice of runs has so many bytes.
const IMPOSSIBLE: u16 = u16::MAX;

/// The least [`makespan_s`](bifolio_io::plan::objective::makespan_s) of any plan that reads every cached run
/// either from the page cache or by the direct engine, or everything through the page cache.
///
/// Takes time and memory in proportion to the cached bytes over their unit; for up to 65,534 runs.
pub(super) fn optimum_s(residency: &Residency, costs: &Costs) -> f64 {
    let range = residency.range();
    let (total, cached) = (range.end - range.start, residency.cached_bytes());
    if total == 0 {
        return 0.0;
    }
    let through_cache_s = costs.cached.seconds(cached) + costs.buffered.seconds(total - cached) * POLLUTION_FACTOR;
    let (mut ends, mut inside) = (vec![], vec![]);
    for run in residency.cached() {
        let at_an_end = run.start == range.start || run.end == range.end;
        if at_an_end { &mut ends } else { &mut inside }.push(run.end - run.start);
    }
    let unit = inside.iter().copied().fold(0, gcd).max(1);
    let fewest = fewest_runs(&inside, unit);
    let mut best_s = through_cache_s.min(costs.direct.seconds(total));
    for chosen in 0..1_u32 << ends.len() {
        let kept = ends.iter().enumerate().filter(|(number, _)| chosen >> number & 1 == 1);
        let (ends_kept, ends_bytes) = kept.fold((0, 0), |(count, bytes), (_, length)| (count + 1, bytes + length));
        for (units, &runs) in fewest.iter().enumerate().filter(|(_, runs)| **runs != IMPOSSIBLE) {
            let bytes = units as u64 * unit + ends_bytes;
            let extents = u64::from(runs) + ends_kept;
            let cache = Share { extents, bytes, fetched: 0 };
            // Every run inside cuts the stored bytes once more; a run at an end does not.
            let stored =
                Share { extents: u64::from(total > bytes) * (u64::from(runs) + 1), bytes: total - bytes, fetched: 0 };
            let join_s = if extents > 0 && total > bytes { JOIN_S } else { 0.0 };
            let slowest_s = cache.seconds(EngineKind::Cached, costs).max(stored.seconds(EngineKind::Direct, costs));
            best_s = best_s.min(slowest_s + join_s);
        }
    }
    best_s
}

/// For every number of units, the fewest runs that have so many together.
fn fewest_runs(lengths: &[u64], unit: u64) -> Vec<u16> {
    let units = (lengths.iter().sum::<u64>() / unit) as usize;
    let mut fewest = vec![IMPOSSIBLE; units + 1];
    fewest[0] = 0;
    let mut before = fewest.clone();
    let mut reached = 0;
    for length in lengths {
        let length = (length / unit) as usize;
        reached += length;
        before[..=reached].copy_from_slice(&fewest[..=reached]);
        // Two slices of their own, so that the compiler uses vector instructions.
        for (runs, without) in fewest[length..=reached].iter_mut().zip(&before) {
            *runs = (*runs).min(without.saturating_add(1));
        }
    }
    fewest
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
