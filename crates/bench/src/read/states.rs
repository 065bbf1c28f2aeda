//! The cache state of a region before every run: what should be cached, and how to get there.

use super::choices::RegionState;
use super::options::Options;
use crate::error::Result;
use bifolio_io::OpenFile;
use bifolio_io::cache_state::arrange;
use fastrand::Rng;
use std::ops::Range;

/// Cells of a region at least, where pages allow: fewer could not hold most percentages.
const CELLS_MIN: u64 = 100;

/// So many neighbouring cells hold the percentage by themselves, as nearly as they can: a run that
/// ends by its time has read a part like the whole.
const BLOCK: usize = 20;

/// Whether a state can be had at all for this file.
pub(super) fn is_possible(file: &OpenFile, state: RegionState) -> Result<(), String> {
    match state {
        RegionState::Warm | RegionState::Again | RegionState::Percent(100) => Ok(()),
        _ if file.is_in_memory() => Err("the file system keeps the file in memory, so nothing is ever cold".to_owned()),
        _ => Ok(()),
    }
}

/// A region, and what of it should be cached.
#[derive(Debug)]
pub(super) struct Wanted {
    region: Range<u64>,
    /// In file order and disjoint.
    cached: Vec<Range<u64>>,
}

impl Wanted {
    /// What a state means for a region.
    pub(super) fn new(state: RegionState, region: Range<u64>, options: &Options) -> Self {
        let cached = match state {
            RegionState::Warm | RegionState::Again => vec![region.clone()],
            RegionState::Cold => vec![],
            RegionState::Half => stripes(region.clone(), options.stripe_bytes).collect(),
            RegionState::Percent(percent) => cells(region.clone(), options.cell_bytes, percent, options.seed),
        };
        Self { region, cached }
    }

    /// The part of the region that should be cached, 0 to 1.
    pub(super) fn part(&self) -> f64 {
        let bytes = (self.region.end - self.region.start).max(1);
        self.cached.iter().map(|run| run.end - run.start).sum::<u64>() as f64 / bytes as f64
    }

    /// Brings the file there, by reading and dropping what differs.
    pub(super) fn set_up(&self, file: &OpenFile) -> Result<()> {
        Ok(arrange(file, self.region.clone(), &self.cached)?)
    }
}

/// Every second stripe, from the first; short ranges have shorter stripes, so that there are two.
fn stripes(range: Range<u64>, stripe: u64) -> impl Iterator<Item = Range<u64>> {
    let half = (range.end - range.start).div_ceil(2);
    let stripe = stripe.min(half).max(4096).checked_next_multiple_of(4096).unwrap_or(4096);
    let starts = (0..).map_while(move |number: u64| number.checked_mul(2 * stripe)?.checked_add(range.start));
    starts.take_while(move |start| *start < range.end).map(move |start| start..(start + stripe).min(range.end))
}

/// So many percent of the cells of `range`, neighbours joined. With one seed, what is cached at
/// some percentage is cached at every higher one, so that the next state is near.
fn cells(range: Range<u64>, cell: u64, percent: u8, seed: u64) -> Vec<Range<u64>> {
    let bytes = range.end - range.start;
    let cell = cell.min(bytes / CELLS_MIN / 4096 * 4096).max(4096);
    let mut chosen = order(bytes.div_ceil(cell), seed);
    chosen.truncate((chosen.len() * usize::from(percent) + 50) / 100);
    chosen.sort_unstable();
    let runs = chosen.chunk_by(|one, two| one + 1 == *two);
    runs.map(|run| range.start + run[0] * cell..(range.start + (run[run.len() - 1] + 1) * cell).min(range.end))
        .collect()
}

/// All cells in the order in which a rising percentage takes them: at random, and evenly.
fn order(cells: u64, seed: u64) -> Vec<u64> {
    // Places of requests are drawn from the same seed and must not follow the cells.
    let mut random = Rng::with_seed(seed ^ 0x5eed_ce11);
    let all: Vec<u64> = (0..cells).collect();
    let mut ranked = vec![];
    for block in all.chunks(BLOCK) {
        let mut block = block.to_vec();
        random.shuffle(&mut block);
        let len = block.len();
        ranked.extend(block.into_iter().enumerate().map(|(rank, cell)| (rank * BLOCK / len, random.u64(..), cell)));
    }
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, cell)| cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::cache_state::cached_bytes_of;
    use bifolio_io::Residency;
    use bifolio_io::residency::Source;
    use proptest::prelude::*;

    fn sum(runs: &[Range<u64>]) -> u64 {
        runs.iter().map(|run| run.end - run.start).sum()
    }

    proptest! {
        #[test]
        fn stripes_are_disjoint_inside_the_range_and_about_half_of_it(
            start in 0_u64..1 << 20, len in 1_u64..1 << 26, stripe in 1_u64..1 << 22
        ) {
            let range = start..start + len;
            let (mut at, mut sum) = (start, 0);
            for part in stripes(range.clone(), stripe) {
                prop_assert!(part.start >= at && part.end <= range.end && !part.is_empty());
                (at, sum) = (part.end, sum + part.end - part.start);
            }
            prop_assert!(sum.abs_diff(len - sum) <= (stripe + 4096).min(len));
        }

        #[test]
        fn cells_hit_the_percentage_everywhere_and_grow_with_it(
            len in 1_u64..1 << 28, cell in 1_u64..512, percent in 0_u8..=100, seed in any::<u64>()
        ) {
            let (cell, range) = (cell * 4096, 0..len);
            let drawn = cells(range.clone(), cell, percent, seed);
            prop_assert!(drawn.iter().all(|run| !run.is_empty() && run.end <= len && run.start % 4096 == 0));
            prop_assert!(drawn.windows(2).all(|pair| pair[0].end < pair[1].start));
            // Half a cell for rounding, and the last cell may be short.
            let cell = cell.min(len / CELLS_MIN / 4096 * 4096).max(4096);
            let wanted = len as f64 * f64::from(percent) / 100.0;
            prop_assert!((sum(&drawn) as f64 - wanted).abs() <= 1.5 * cell as f64, "{} of {}", sum(&drawn), wanted);
            // Every block is like the whole.
            let residency = Residency::new(Source::Cachestat, range.clone(), drawn.clone());
            let block = cell * BLOCK as u64;
            for start in (0..len / block).map(|number| number * block) {
                let cached = cached_bytes_of(&residency, &(start..start + block));
                prop_assert!((cached as f64 - block as f64 * f64::from(percent) / 100.0).abs() <= 2.0 * cell as f64);
            }
            if percent < 100 {
                let more = cells(range.clone(), cell, percent + 1, seed);
                let held = Residency::new(Source::Cachestat, range, more);
                prop_assert!(drawn.iter().all(|run| cached_bytes_of(&held, run) == run.end - run.start));
            }
        }
    }

    #[test]
    fn the_seed_draws_the_cells() {
        let draw = |seed| cells(0..64 << 20, 256 << 10, 50, seed);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).len() > 40, "cells are scattered");
        assert_eq!((cells(0..100, 4096, 0, 1).len(), cells(0..100, 4096, 100, 1)), (0, vec![0..100]));
    }
}
