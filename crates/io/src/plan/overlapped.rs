//! Ours: page cache and storage at the same time, judged by the makespan, in O(runs).
//!
//! ```text
//!   bridge    cached runs inside that are shorter than one more storage extent costs
//!   balance   where the page cache would still be the slower side: more of the short runs
//!   compare   with one engine for everything, which wins for short requests
//! ```

use super::balance::balance;
use super::objective::{JOIN_S, POLLUTION_FACTOR, predicted_s};
use super::segment::{Offer, Plan, Segment};
use super::segments::{assemble, segment};
use crate::EngineKind;
use crate::cost::Costs;
use crate::residency::Residency;
use std::ops::Range;

/// Plans a request over the range that `residency` describes, as the router does.
pub fn plan(residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Plan {
    let range = residency.range();
    let (cached, total) = (residency.cached_bytes(), range.end - range.start);
    if total == 0 {
        return Plan { segments: vec![], predicted_s: 0.0, reason: "nothing to read" };
    }
    let segments = split(residency, costs, offer);
    let split = |reason| Plan { predicted_s: predicted_s(&segments, costs), segments, reason };
    if cached == total {
        return split("everything is cached");
    }
    if cached == 0 {
        let reason = "nothing is cached";
        let (split, buffered_s) = (split(reason), costs.buffered.seconds(total));
        let is_clear = buffered_s * POLLUTION_FACTOR < split.predicted_s;
        return if is_clear { through_cache(range, buffered_s, reason) } else { split };
    }
    let split = split("partly cached; page cache and storage are read at the same time");
    let split_s = split.predicted_s + JOIN_S;
    let through_cache_s = costs.cached.seconds(cached) + costs.buffered.seconds(total - cached) * POLLUTION_FACTOR;
    if offer.direct && costs.direct.seconds(total) < split_s.min(through_cache_s) {
        let all = vec![segment(EngineKind::Direct, range, costs)];
        return Plan {
            predicted_s: predicted_s(&all, costs),
            segments: all,
            reason: "partly cached; reading all of it from storage is quickest",
        };
    }
    if through_cache_s < split_s {
        let seconds = costs.cached.seconds(cached) + costs.buffered.seconds(total - cached);
        return through_cache(range, seconds, "partly cached; the page cache alone is quickest");
    }
    split
}

/// All of a range through the page cache, which the kernel fills on the way.
fn through_cache(range: Range<u64>, seconds: f64, reason: &'static str) -> Plan {
    let length = range.end - range.start;
    let segment = Segment { engine: EngineKind::Cached, offset: range.start, length, predicted_s: seconds };
    Plan { segments: vec![segment], predicted_s: seconds, reason }
}

/// Cached runs from the page cache, the rest from storage, short cached runs with their
/// neighbours.
fn split(residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Vec<Segment> {
    // Reading these bytes from storage takes as long as starting one more extent.
    let bridge = if offer.direct { (costs.direct_extent_s * costs.direct.bytes_per_s) as u64 } else { 0 };
    let range = residency.range();
    let is_bridged = |run: &Range<u64>| run.start > range.start && run.end < range.end && run.end - run.start <= bridge;
    let mut kept: Vec<bool> = residency.cached().iter().map(|run| !is_bridged(run)).collect();
    // Registered ranges and direct paths are engines of their own, beside the two that are balanced;
    // and what is all cached stays off the disk.
    let uncached = residency.cached_bytes() < range.end - range.start;
    if uncached && offer.direct && offer.mapped.is_empty() && offer.p2p_alignment.is_none() {
        balance(&mut kept, residency, costs);
    }
    assemble(residency, costs, offer, |number, _| kept[number])
}
