//! The planner: which engine moves which bytes of a request. Pure: no file, no device, no clock.
//!
//! Cached runs come from the page cache, by DMA where they are registered; the rest comes from
//! storage. Both sides run at the same time, so a plan is judged by its makespan, the time of its
//! slowest engine, and not by the paper's sum. Short cached runs between uncached ones are read
//! from storage with their neighbours when that is quicker than starting one more extent (the
//! paper's interleaving problem, section 4.3.1), and more of them where the page cache would be
//! clearly the slower side. Finally the split is compared with one engine for everything, which
//! wins for short requests.
//!
//! ```text
//!   overlapped    decides which cached runs come from the page cache
//!      balance    relieves a page cache that is slower than the disk
//!   segments      makes the segments of any such decision
//!   objective     what a plan costs
//!   segment       segments, plans, and what may be used for a request
//! ```
//!
//! The paper's heuristic, its exact optimum and the simulation that compares them with this planner are
//! measurements, and in the crate `bifolio-bench`.

mod balance;
pub mod objective;
mod overlapped;
mod segment;
mod segments;

pub use overlapped::plan;
pub use segment::{Offer, Plan, Segment};
pub use segments::assemble;

pub(crate) use objective::POLLUTION_FACTOR;

use crate::cost::Costs;
use crate::kind::EngineKind;
use std::ops::Range;

/// The plan that moves all of a range by one engine.
pub fn plan_with(engine: EngineKind, range: Range<u64>, costs: &Costs) -> Plan {
    let segments = if range.is_empty() { vec![] } else { vec![segments::segment(engine, range, costs)] };
    Plan::of(segments, "the engine was chosen by the caller", costs)
}

impl Plan {
    /// A plan of segments in file order that cover the request.
    pub fn of(segments: Vec<Segment>, reason: &'static str, costs: &Costs) -> Self {
        Self { predicted_s: objective::predicted_s(&segments, costs), segments, reason }
    }

    /// A plan of segments in file order; neighbours of one engine become one.
    pub(crate) fn merged(segments: Vec<Segment>, reason: &'static str, costs: &Costs) -> Self {
        Self::of(segments::merge(segments, costs), reason, costs)
    }
}

#[cfg(test)]
mod tests {
    use super::objective::JOIN_S;
    use super::{Costs, EngineKind, Offer, Plan, Range, plan, plan_with};
    use crate::residency::{Residency, Source};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    const MIB: u64 = 1 << 20;

    fn residency(range: Range<u64>, cached: &[Range<u64>]) -> Residency {
        Residency::new(Source::Mincore, range, cached.iter().cloned())
    }

    fn engines(plan: &Plan) -> Vec<EngineKind> {
        plan.segments.iter().map(|segment| segment.engine).collect()
    }

    const DIRECT: Offer<'_> = Offer { direct: true, p2p_alignment: None, mapped: &[] };

    proptest! {
        #[test]
        fn segments_cover_the_request_exactly_once(
            pages in proptest::collection::vec(any::<bool>(), 1..300), head in 0_u64..4096, tail in 0_u64..4096,
            run in 1_u64..80, direct in any::<bool>(), p2p in any::<bool>(), window in 0_u64..400
        ) {
            let end = pages.len() as u64 * 4096 * run;
            let range = head..(end - tail).max(head + 1);
            let cached: Vec<_> = pages.iter().enumerate().filter(|(_, cached)| **cached)
                .map(|(page, _)| page as u64 * 4096 * run..(page as u64 + 1) * 4096 * run).collect();
            let mapped = [window * 8192..(window + 600) * 8192];
            let offer = Offer { direct, p2p_alignment: p2p.then_some(4096), mapped: &mapped };
            let plan = plan(&residency(range.clone(), &cached), &Costs::default(), &offer);
            let mut at = range.start;
            for segment in &plan.segments {
                prop_assert_eq!(segment.offset, at);
                prop_assert!(segment.length > 0);
                prop_assert!(segment.engine != EngineKind::Direct || direct);
                if segment.engine == EngineKind::P2p {
                    prop_assert!(segment.offset % 4096 == 0 && segment.length % 4096 == 0);
                }
                if segment.engine == EngineKind::Mapped {
                    prop_assert!(segment.offset >= mapped[0].start && segment.offset + segment.length <= mapped[0].end);
                }
                at += segment.length;
            }
            prop_assert_eq!(at, range.end);
            prop_assert!(plan.segments.windows(2).all(|pair| pair[0].engine != pair[1].engine));
            prop_assert!(plan.predicted_s > 0.0 && plan.predicted_s.is_finite());
        }

        #[test]
        fn no_single_engine_is_predicted_to_be_quicker(pages in proptest::collection::vec(any::<bool>(), 1..200), run in 1_u64..300) {
            let range = 0..pages.len() as u64 * 4096 * run;
            let cached: Vec<_> = pages.iter().enumerate().filter(|(_, cached)| **cached)
                .map(|(page, _)| page as u64 * 4096 * run..(page as u64 + 1) * 4096 * run).collect();
            let costs = Costs::default();
            let plan = plan(&residency(range.clone(), &cached), &costs, &DIRECT);
            let direct = plan_with(EngineKind::Direct, range, &costs);
            prop_assert!(plan.predicted_s <= direct.predicted_s + JOIN_S, "{plan:?}");
        }
    }

    #[test]
    fn warm_cold_and_half_take_the_obvious_paths() {
        let (costs, range) = (Costs::default(), 0..64 * MIB);
        assert_eq!(
            engines(&plan(&residency(range.clone(), std::slice::from_ref(&range)), &costs, &DIRECT)),
            [EngineKind::Cached]
        );
        assert_eq!(engines(&plan(&residency(range.clone(), &[]), &costs, &DIRECT)), [EngineKind::Direct]);
        let half = plan(&residency(range, &[0..32 * MIB]), &costs, &DIRECT);
        assert_eq!(engines(&half), [EngineKind::Cached, EngineKind::Direct]);
        // Overlapped: the whole costs what the storage half costs, not the sum.
        assert!((half.predicted_s - costs.direct.seconds(32 * MIB)).abs() < 1e-9);
    }

    #[test]
    fn the_paper_s_example_of_five_pages_is_one_read() {
        let pages = [4096..8192, 12_288..16_384];
        let plan = plan(&residency(0..20_480, &pages), &Costs::default(), &DIRECT);
        assert_eq!(engines(&plan), [EngineKind::Direct]);
    }

    #[test]
    fn every_second_page_of_a_large_request_is_not_two_thousand_reads() {
        let pages: Vec<_> = (0..1024).map(|pair| pair * 8192..pair * 8192 + 4096).collect();
        let plan = plan(&residency(0..8 * MIB, &pages), &Costs::default(), &DIRECT);
        assert!(plan.segments.len() < 3, "{}", plan.segments.len());
    }

    #[test]
    fn without_unbuffered_reads_everything_goes_through_the_page_cache() {
        let plan = plan(&residency(0..64 * MIB, &[0..MIB]), &Costs::default(), &Offer::default());
        assert_eq!(engines(&plan), [EngineKind::Cached]);
    }

    /// Symptom: where `O_DIRECT` was missing, a cold GiB was predicted to take 0.07 s, and took ten
    /// times as long. Cause: the engine's cost for cached bytes was used for all of its bytes.
    #[test]
    fn cold_bytes_through_the_page_cache_are_predicted_at_the_storage_s_rate() {
        let costs = Costs::default();
        let cold = plan(&residency(0..64 * MIB, &[]), &costs, &Offer::default());
        assert!((cold.predicted_s - costs.buffered.seconds(64 * MIB)).abs() < 1e-9, "{cold:?}");
        let again = Plan::merged([cold.segments.clone(), cold.segments].concat(), "", &costs);
        assert!(again.predicted_s > 1.9 * costs.buffered.seconds(64 * MIB), "{again:?}");
    }

    /// Symptom: with a calibrated cutoff, a page cache in many runs was predicted to take almost no
    /// time. Cause: each joined run was granted the bytes below the cutoff anew.
    #[test]
    fn cached_runs_of_one_plan_pay_for_all_bytes_beyond_one_cutoff() {
        let mut costs = Costs::default();
        costs.cached.cutoff_bytes = MIB;
        let runs: Vec<_> = (0..32).map(|run| run * 2 * MIB..run * 2 * MIB + MIB).collect();
        let plan = plan(&residency(0..64 * MIB, &runs), &costs, &DIRECT);
        let cached = plan.segments.into_iter().filter(|segment| segment.engine == EngineKind::Cached).collect();
        let plan = Plan::merged(cached, "", &costs);
        assert!((plan.predicted_s - costs.cached.seconds(32 * MIB)).abs() < 1e-9, "{plan:?}");
    }

    #[test]
    fn registered_ranges_are_used_where_they_are_warm() {
        let window = [8 * MIB..32 * MIB];
        let offer = Offer { mapped: &window, ..DIRECT };
        let plan = plan(&residency(0..64 * MIB, &[0..64 * MIB]), &Costs::default(), &offer);
        assert_eq!(engines(&plan), [EngineKind::Cached, EngineKind::Mapped, EngineKind::Cached]);
    }
}
