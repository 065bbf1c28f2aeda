//! Ways to plan, as references for the one that the router uses.

use crate::harness::cache_state::cached_bytes_of;
use bifolio_io::cost::EngineCost;
use bifolio_io::plan::{Offer, Plan, Segment, plan};
use bifolio_io::{Costs, EngineKind, Residency};

/// A way to plan. They differ in which cached runs they read from storage with their neighbours; what all plans have
/// in common is that they cover the request exactly once, in file order.
pub(super) trait Strategy {
    /// A short name for reports.
    fn name(&self) -> &'static str;

    /// Plans a request over the range that `residency` describes. Pure.
    fn plan(&self, residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Plan;
}

/// What the router plans with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Overlapped;

impl Strategy for Overlapped {
    fn name(&self) -> &'static str {
        "overlapped"
    }

    fn plan(&self, residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Plan {
        plan(residency, costs, offer)
    }
}

/// The cost of a transfer from storage past the page cache; none where there is no such path.
pub(super) fn storage_cost<'c>(offer: &Offer<'_>, costs: &'c Costs) -> Option<&'c EngineCost> {
    match (offer.direct, offer.p2p_alignment) {
        (true, _) => Some(&costs.direct),
        (false, Some(_)) => Some(&costs.p2p),
        (false, None) => None,
    }
}

/// The paper's objective (section 4.3.1): transfers one after another. A transfer from storage takes
/// what equation 1 says for it, one from the page cache its size over the bandwidth.
pub(super) fn sum_s(segments: &[Segment], residency: &Residency, costs: &Costs) -> f64 {
    let seconds = |segment: &Segment| match segment.engine {
        EngineKind::Cached => {
            let cached = cached_bytes_of(residency, &(segment.offset..segment.offset + segment.length));
            cached as f64 / costs.cached.bytes_per_s + costs.buffered.seconds(segment.length - cached)
        }
        engine => costs.of(engine).seconds(segment.length),
    };
    segments.iter().map(seconds).sum()
}
