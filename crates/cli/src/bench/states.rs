//! Setting up the cache state of a file before every run, and looking at what was reached.

use crate::args::CacheState;
use crate::exit::Failure;
use bifolio_io::cache_state::{evict, load};
use bifolio_io::{EngineChoice, OpenFile, Router};
use std::ops::Range;
use std::sync::Arc;

/// Whether a state can be had at all for this file.
pub(super) fn is_possible(file: &OpenFile, state: CacheState) -> Result<(), String> {
    match state {
        CacheState::Cold | CacheState::Half if file.is_in_memory() => {
            Err("the file system keeps the file in memory, so nothing is ever cold".to_owned())
        }
        _ => Ok(()),
    }
}

/// Brings `range` of the file into a state.
pub(super) fn set_up(file: &OpenFile, state: CacheState, range: Range<u64>, stripe: u64) -> Result<(), Failure> {
    match state {
        CacheState::Warm | CacheState::Again => load(file, range)?,
        CacheState::Cold => evict(file, range)?,
        CacheState::Half => {
            evict(file, range.clone())?;
            for part in stripes(range, stripe) {
                load(file, part)?;
            }
        }
    }
    Ok(())
}

/// The part of `range` that is cached in a state, 0 to 1.
pub(super) fn cached_part(state: CacheState, range: Range<u64>, stripe: u64) -> f64 {
    match state {
        CacheState::Warm | CacheState::Again => 1.0,
        CacheState::Cold => 0.0,
        CacheState::Half => {
            let bytes = (range.end - range.start).max(1);
            stripes(range, stripe).map(|part| part.end - part.start).sum::<u64>() as f64 / bytes as f64
        }
    }
}

/// Every second stripe, from the first; short ranges have shorter stripes, so that there are two.
fn stripes(range: Range<u64>, stripe: u64) -> impl Iterator<Item = Range<u64>> {
    let half = (range.end - range.start).div_ceil(2);
    let stripe = stripe.min(half).max(4096).checked_next_multiple_of(4096).unwrap_or(4096);
    let starts = (0..).map_while(move |number: u64| number.checked_mul(2 * stripe)?.checked_add(range.start));
    starts.take_while(move |start| *start < range.end).map(move |start| start..(start + stripe).min(range.end))
}

/// The part of `range` that is cached now, 0 to 1, and who says so.
pub(super) fn look(router: &Router, file: &Arc<OpenFile>, range: &Range<u64>) -> Result<(f64, &'static str), Failure> {
    let (_, residency) = router.explain(file, range.start, Some(range.end - range.start), EngineChoice::Auto)?;
    let bytes = (range.end - range.start).max(1);
    Ok((residency.cached_bytes() as f64 / bytes as f64, residency.source.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    }
}
