//! Warm bytes for the disk, where the page cache would be the slower of the two by far.

use super::objective::Share;
use crate::EngineKind;
use crate::cost::Costs;
use crate::residency::Residency;
use std::ops::Range;

/// The disk has other users. It is given warm bytes to even out the two sides only where the request
/// is predicted to be so much quicker; where the page cache is ten times as quick as the disk, that
/// is never.
const CLEARLY_QUICKER_FACTOR: f64 = 1.1;

/// Takes runs out of `kept`, those read from the page cache, until both sides take about the same
/// time: the shortest first, as each saves the price of an extent on both sides. O(runs).
pub(super) fn balance(kept: &mut [bool], residency: &Residency, costs: &Costs) {
    let before = Sides::of(kept, residency);
    if before.cache_s(costs) <= before.stored_s(costs) {
        return;
    }
    let before_s = before.cache_s(costs);
    let (mut now, mut now_s, mut moved) = (before, before_s, vec![]);
    for number in shortest_first(kept, residency.cached()) {
        let next = now.with_stored(&residency.cached()[number], residency);
        let (cache_s, stored_s) = (next.cache_s(costs), next.stored_s(costs));
        if cache_s.max(stored_s) < now_s {
            (now, now_s) = (next, cache_s.max(stored_s));
            moved.push(number);
            if cache_s <= stored_s {
                break;
            }
        }
    }
    if now_s * CLEARLY_QUICKER_FACTOR < before_s {
        for number in moved {
            kept[number] = false;
        }
    }
}

/// What page cache and storage have to do.
#[derive(Debug, Clone, Copy)]
struct Sides {
    cache: Share,
    stored: Share,
}

impl Sides {
    fn of(kept: &[bool], residency: &Residency) -> Self {
        let (range, cached) = (residency.range(), residency.cached());
        let bytes = residency.cached_bytes();
        let inside = cached.iter().filter(|run| is_inside(run, &range)).count();
        // Runs at an end of the request separate nothing.
        let gaps = 1 + inside as u64;
        let all = Self {
            cache: Share { extents: cached.len() as u64, bytes, fetched: 0 },
            stored: Share { extents: gaps, bytes: range.end - range.start - bytes, fetched: 0 },
        };
        let stored = cached.iter().zip(kept).filter(|(_, kept)| !**kept);
        stored.fold(all, |sides, (run, _)| sides.with_stored(run, residency))
    }

    /// The same with one run more read from storage, and the transfers on both sides of it joined.
    fn with_stored(self, run: &Range<u64>, residency: &Residency) -> Self {
        let (length, joins) = (run.end - run.start, u64::from(is_inside(run, &residency.range())));
        let cache = Share { extents: self.cache.extents - 1, bytes: self.cache.bytes - length, fetched: 0 };
        let stored = Share { extents: self.stored.extents - joins, bytes: self.stored.bytes + length, fetched: 0 };
        Self { cache, stored }
    }

    fn cache_s(&self, costs: &Costs) -> f64 {
        self.cache.seconds(EngineKind::Cached, costs)
    }

    fn stored_s(&self, costs: &Costs) -> f64 {
        self.stored.seconds(EngineKind::Direct, costs)
    }
}

fn is_inside(run: &Range<u64>, range: &Range<u64>) -> bool {
    run.start > range.start && run.end < range.end
}

/// Quarters of the powers of two.
const CLASSES: usize = 4 * u64::BITS as usize;

/// The numbers of the kept runs by rising length, within a quarter of an octave; in one pass, which
/// sorting would not be.
fn shortest_first(kept: &[bool], runs: &[Range<u64>]) -> Vec<usize> {
    let class = |number: &usize| {
        let length = runs[*number].end - runs[*number].start;
        let log = length.max(4).ilog2();
        4 * log as usize + (length.max(4) >> (log - 2) & 3) as usize
    };
    let numbers = || (0..runs.len()).filter(|number| kept[*number]);
    let mut ends = [0; CLASSES];
    numbers().for_each(|number| ends[class(&number)] += 1);
    let mut before = 0;
    for end in &mut ends {
        before += std::mem::replace(end, before);
    }
    let mut order = vec![0; before];
    for number in numbers() {
        let place = &mut ends[class(&number)];
        order[*place] = number;
        *place += 1;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::EngineCost;
    use crate::plan::objective::{JOIN_S, makespan_s};
    use crate::plan::overlapped::plan;
    use crate::plan::segment::Offer;
    use crate::plan::segments::assemble;
    use crate::residency::Source;
    use proptest::prelude::{any, prop_assert, proptest};

    const MIB: u64 = 1 << 20;
    const UNBUFFERED: Offer<'_> = Offer { direct: true, p2p_alignment: None, mapped: &[] };

    /// Warm to seven eighths, in runs of very different lengths.
    fn mostly_warm() -> Residency {
        let runs = [0..MIB, 2 * MIB..4 * MIB, 5 * MIB..12 * MIB, 12 * MIB + 65_536..16 * MIB];
        Residency::new(Source::Mincore, 0..16 * MIB, runs)
    }

    proptest! {
        #[test]
        fn what_the_sides_take_is_the_makespan_of_their_plan(
            runs in proptest::collection::vec((1_u64..100, 1_u64..100, any::<bool>()), 2..30), begins_cached in any::<bool>(), tail in 0_u64..3
        ) {
            let (mut at, mut cached) = (0, vec![]);
            for (gap, length, _) in &runs {
                at += if cached.is_empty() && begins_cached { 0 } else { gap * 4096 };
                cached.push(at..at + length * 4096);
                at += length * 4096;
            }
            let residency = Residency::new(Source::Mincore, 0..at + tail * 4096, cached);
            let kept: Vec<_> = runs.iter().map(|run| run.2).collect();
            let costs = Costs::default();
            let plan = assemble(&residency, &costs, &UNBUFFERED, |number, _| kept[number]);
            let join_s = if kept.contains(&true) { JOIN_S } else { 0.0 };
            let sides = Sides::of(&kept, &residency);
            let (sides_s, plan_s) = (sides.cache_s(&costs).max(sides.stored_s(&costs)), makespan_s(&plan, &residency, &costs));
            prop_assert!((sides_s + join_s - plan_s).abs() < 1e-12, "{sides_s} + {join_s} is not {plan_s}");
        }

        #[test]
        fn the_order_is_of_all_kept_runs_by_length(lengths in proptest::collection::vec((1_u64..1 << 40, any::<bool>()), 0..200)) {
            let runs: Vec<_> = lengths.iter().map(|(length, _)| 0..*length).collect();
            let kept: Vec<_> = lengths.iter().map(|(_, kept)| *kept).collect();
            let order = shortest_first(&kept, &runs);
            prop_assert!(order.windows(2).all(|pair| runs[pair[0]].end < runs[pair[1]].end * 5 / 4 + 4));
            let mut numbers = order;
            numbers.sort_unstable();
            prop_assert!(numbers.into_iter().eq((0..kept.len()).filter(|number| kept[*number])));
        }
    }

    #[test]
    fn a_page_cache_slower_than_the_disk_is_relieved() {
        let cached = EngineCost { overhead_s: 0.0, cutoff_bytes: 0, bytes_per_s: 1.7e9 };
        let direct = EngineCost { overhead_s: 584e-6, cutoff_bytes: 512 << 10, bytes_per_s: 2.65e9 };
        let costs = Costs { cached, direct, ..Costs::default() };
        let mut kept = [true; 4];
        balance(&mut kept, &mostly_warm(), &costs);
        assert!(kept.contains(&false) && kept.contains(&true), "{kept:?}");
        let plan = plan(&mostly_warm(), &costs, &UNBUFFERED);
        assert!(plan.predicted_s < 0.8 * costs.cached.seconds(mostly_warm().cached_bytes()), "{plan:?}");
    }

    #[test]
    fn a_page_cache_ten_times_as_quick_as_the_disk_keeps_all() {
        let mut costs = Costs::default();
        costs.cached.bytes_per_s = 10.0 * costs.direct.bytes_per_s;
        // Only one uncached page: the disk would be idle.
        let residency = Residency::new(Source::Mincore, 0..1 << 30, [0..1 << 29, (1 << 29) + 4096..1 << 30]);
        let mut kept = [true; 2];
        balance(&mut kept, &residency, &costs);
        assert_eq!(kept, [true; 2]);
    }
}
