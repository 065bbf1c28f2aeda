//! The paper's greedy heuristic (SPIN, section 4.3.1), as a reference.
//!
//! In file order, with `a` the storage transfer that is open, `b` the next cached run and `c` the
//! uncached run behind it: `b` is read from storage if `|a| + |b|` is below the cutoff, where it is
//! free, or if one transfer of all three is quicker than `b` from the page cache between two.
//! The paper does not say whether `a` holds what was decided before; here it does, since that is
//! the transfer that `b` would become a part of. At the ends of the request, where `a` or `c` is
//! empty, only the comparison counts.

use super::strategy::{Strategy, storage_cost};
use bifolio_io::plan::{Offer, Plan, assemble};
use bifolio_io::{Costs, Residency};

/// The paper's heuristic.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Greedy;

impl Strategy for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn plan(&self, residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Plan {
        let Some(storage) = storage_cost(offer, costs) else {
            let all = assemble(residency, costs, offer, |_, _| true);
            return Plan::of(all, "the page cache is the only path", costs);
        };
        let (range, runs) = (residency.range(), residency.cached());
        let mut open = runs.first().map_or(0, |run| run.start - range.start);
        let all_cached = residency.cached_bytes() == range.end - range.start;
        let from_cache = |number: usize, run: &std::ops::Range<u64>| {
            let length = run.end - run.start;
            let next = runs.get(number + 1).map_or(range.end, |next| next.start) - run.end;
            let is_free = open > 0 && open + length < storage.cutoff_bytes;
            let apart_s = storage.seconds(open) + length as f64 / costs.cached.bytes_per_s + storage.seconds(next);
            let stored = !all_cached && (is_free || storage.seconds(open + length + next) < apart_s);
            open = if stored { open + length + next } else { next };
            !stored
        };
        Plan::of(assemble(residency, costs, offer, from_cache), "the paper's greedy heuristic", costs)
    }
}
