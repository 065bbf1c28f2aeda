//! All strategies and both optima against every possible choice of cached runs.

use super::exact::Exact;
use super::greedy::Greedy;
use super::optimum::optimum_s;
use super::simulate;
use super::strategy::{Overlapped, Strategy, sum_s};
use bifolio_io::cost::EngineCost;
use bifolio_io::plan::objective::{JOIN_S, makespan_s};
use bifolio_io::plan::{Offer, Plan, Segment, assemble, plan_with};
use bifolio_io::residency::Source;
use bifolio_io::{Costs, EngineKind, Residency};
use proptest::prelude::{Just, Strategy as Generator, any, prop_assert, prop_oneof, proptest};
use std::ops::Range;

const UNBUFFERED: Offer<'_> = Offer { direct: true, p2p_alignment: None, mapped: &[] };

/// Pages of up to 12 cached runs and of the uncached ones between them, and whether the request
/// begins and ends with a cached one.
fn residencies() -> impl Generator<Value = Residency> {
    let runs = proptest::collection::vec((1_u64..200, 1_u64..200), 1..12);
    (runs, any::<bool>(), any::<bool>(), 0_u64..4).prop_map(|(runs, begins_cached, ends_cached, shift)| {
        let (mut at, mut cached) = (0, vec![]);
        let count = runs.len();
        for (number, (gap, length)) in runs.into_iter().enumerate() {
            // Short gaps and runs, where choices are close, as often as long ones.
            let (gap, length) = ((gap >> (2 * shift)).max(1) * 4096, (length >> shift).max(1) * 4096);
            at += if number == 0 && begins_cached { 0 } else { gap };
            cached.push(at..at + length);
            at += length;
            if number + 1 == count && !ends_cached {
                at += gap;
            }
        }
        Residency::new(Source::Mincore, 0..at, cached)
    })
}

fn costs() -> impl Generator<Value = Costs> {
    let engine = |overhead_us: Range<f64>, gb_per_s: Range<f64>| {
        (overhead_us, prop_oneof![Just(0_u64), 1_u64..1 << 21], gb_per_s).prop_map(
            |(overhead_us, cutoff_bytes, gb_per_s)| EngineCost {
                overhead_s: overhead_us * 1e-6,
                cutoff_bytes,
                bytes_per_s: gb_per_s * 1e9,
            },
        )
    };
    let extent_us = 0.0..100.0_f64;
    (engine(0.0..50.0, 1.0..60.0), engine(0.0..600.0, 0.2..5.0), engine(0.0..600.0, 0.5..8.0), extent_us).prop_map(
        |(cached, buffered, direct, extent_us)| Costs {
            cached,
            buffered,
            direct,
            direct_extent_s: extent_us * 1e-6,
            ..Costs::default()
        },
    )
}

/// Every plan that there is for these runs.
fn all_plans(residency: &Residency, costs: &Costs) -> Vec<Vec<Segment>> {
    let runs = residency.cached().len();
    (0..1_u32 << runs).map(|chosen| assemble(residency, costs, &UNBUFFERED, |run, _| chosen >> run & 1 == 1)).collect()
}

fn least(plans: &[Vec<Segment>], seconds: impl Fn(&[Segment]) -> f64) -> f64 {
    plans.iter().map(|segments| seconds(segments)).fold(f64::INFINITY, f64::min)
}

fn is_close(one: f64, two: f64) -> bool {
    (one - two).abs() <= 1e-9 * one.abs().max(two.abs())
}

proptest! {
    #[test]
    fn both_optima_are_those_of_all_choices(residency in residencies(), costs in costs()) {
        let plans = all_plans(&residency, &costs);
        let exact = Exact.plan(&residency, &costs, &UNBUFFERED);
        let (found, least_sum_s) = (sum_s(&exact.segments, &residency, &costs), least(&plans, |plan| sum_s(plan, &residency, &costs)));
        prop_assert!(is_close(found, least_sum_s), "sum: {found} where {least_sum_s} is possible: {exact:?}");

        let range = residency.range();
        let through_cache = plan_with(EngineKind::Cached, range, &costs).segments;
        let least_makespan_s = least(&plans, |plan| makespan_s(plan, &residency, &costs)).min(makespan_s(&through_cache, &residency, &costs));
        let found = optimum_s(&residency, &costs);
        prop_assert!(is_close(found, least_makespan_s), "makespan: {found} where {least_makespan_s} is possible");
    }

    #[test]
    fn every_strategy_covers_the_request_exactly_once(residency in residencies(), costs in costs()) {
        for strategy in [&Greedy as &dyn Strategy, &Exact, &Overlapped] {
            let plan = strategy.plan(&residency, &costs, &UNBUFFERED);
            let mut at = residency.range().start;
            for segment in &plan.segments {
                prop_assert!(segment.offset == at && segment.length > 0, "{}: {plan:?}", strategy.name());
                at += segment.length;
            }
            prop_assert!(at == residency.range().end && plan.predicted_s > 0.0, "{}: {plan:?}", strategy.name());
            prop_assert!(plan.segments.windows(2).all(|pair| pair[0].engine != pair[1].engine));
        }
    }

    #[test]
    fn no_strategy_beats_an_optimum(residency in residencies(), costs in costs()) {
        let least_makespan_s = optimum_s(&residency, &costs);
        let exact = Exact.plan(&residency, &costs, &UNBUFFERED);
        let least_sum_s = sum_s(&exact.segments, &residency, &costs);
        for strategy in [&Greedy as &dyn Strategy, &Exact, &Overlapped] {
            let plan = strategy.plan(&residency, &costs, &UNBUFFERED);
            let seconds = makespan_s(&plan.segments, &residency, &costs);
            prop_assert!(seconds >= least_makespan_s * (1.0 - 1e-9), "{}: {seconds} < {least_makespan_s}", strategy.name());
            // Going through the page cache is no choice of the paper's objective.
            let goes_through_cache = plan.segments.iter().all(|segment| segment.engine == EngineKind::Cached)
                && residency.cached_bytes() < residency.range().end;
            let seconds = sum_s(&plan.segments, &residency, &costs);
            prop_assert!(goes_through_cache || seconds >= least_sum_s * (1.0 - 1e-9), "{}: {seconds} < {least_sum_s}", strategy.name());
        }
    }

    #[test]
    fn a_plan_s_own_prediction_is_its_makespan_before_joining(residency in residencies(), costs in costs()) {
        for segments in all_plans(&residency, &costs).into_iter().take(64) {
            let engines = EngineKind::ALL.into_iter().filter(|engine| segments.iter().any(|segment| segment.engine == *engine));
            let join_s = if engines.count() > 1 { JOIN_S } else { 0.0 };
            let (predicted_s, makespan_s) = (Plan::of(segments.clone(), "", &costs).predicted_s, makespan_s(&segments, &residency, &costs));
            prop_assert!(is_close(predicted_s + join_s, makespan_s), "{predicted_s} + {join_s} is not {makespan_s}: {segments:?}");
        }
    }
}

#[test]
fn the_paper_s_example_of_five_pages_has_the_three_schedules_of_the_paper() {
    // 20 KiB, the second and the fourth page cached: three reads of 4 KiB, one of 20 KiB, or 12 and 4.
    let residency = Residency::new(Source::Mincore, 0..20_480, [4096..8192, 12_288..16_384]);
    let costs = simulate::paper_costs(simulate::PAPER_CACHE_BYTES_PER_S);
    let stored = |segments: &[Segment]| -> Vec<u64> {
        segments.iter().filter(|segment| segment.engine == EngineKind::Direct).map(|segment| segment.length).collect()
    };
    let schedules: Vec<_> = all_plans(&residency, &costs).iter().map(|plan| stored(plan)).collect();
    assert_eq!(schedules, [vec![20_480], vec![4096, 12_288], vec![12_288, 4096], vec![4096, 4096, 4096]]);
    for strategy in [&Greedy as &dyn Strategy, &Exact] {
        assert_eq!(stored(&strategy.plan(&residency, &costs, &UNBUFFERED).segments), [20_480], "{}", strategy.name());
    }
}

#[test]
fn the_greedy_heuristic_keeps_a_long_cached_run_between_two_long_uncached_ones() {
    // Reading 4 MiB from the page cache at 10 GB/s takes 0.4 ms, and the second transfer 0.4 ms more
    // than its bytes would in one; from storage the same bytes take 1.6 ms.
    let mib = 1 << 20;
    let residency = Residency::new(Source::Mincore, 0..12 * mib, [4 * mib..8 * mib]);
    let costs = simulate::paper_costs(simulate::PAPER_TABLE_3_BYTES_PER_S);
    let engines = |plan: Plan| plan.segments.into_iter().map(|segment| segment.engine).collect::<Vec<_>>();
    let apart = [EngineKind::Direct, EngineKind::Cached, EngineKind::Direct];
    assert_eq!(engines(Greedy.plan(&residency, &costs, &UNBUFFERED)), apart);
    let short = Residency::new(Source::Mincore, 0..9 * mib, [4 * mib..5 * mib]);
    assert_eq!(engines(Greedy.plan(&short, &costs, &UNBUFFERED)), [EngineKind::Direct]);
}
