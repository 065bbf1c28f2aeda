//! The paper's evaluation of its heuristic (SPIN, section 4.3.1), repeated for all strategies: random
//! residencies of one request, each plan compared with the optimum.
//!
//! The paper does not say how its vectors are drawn. Here each vector has a cached fraction, uniform
//! in (0, 1), and a mean length of cached runs, log-uniform from 1 to 256 pages; pages then follow a
//! Markov chain of two states with these two properties. Where the uncached runs between would have
//! to be shorter than a page on average, they have one page and the cached runs are longer. Vectors
//! that are all or nothing, which leave nothing to decide, are drawn again.

use super::exact::Exact;
use super::greedy::Greedy;
use super::optimum::optimum_s;
use super::strategy::{Overlapped, Strategy, sum_s};
use crate::harness::session::Session;
use bifolio_io::cost::EngineCost;
use bifolio_io::plan::Offer;
use bifolio_io::plan::objective::makespan_s;
use bifolio_io::residency::Source;
use bifolio_io::{Costs, Residency};
use fastrand::Rng;
use serde::Serialize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Pages of a request, 8 MiB as in the paper.
pub(super) const PAGES: u64 = 2048;

const PAGE_BYTES: u64 = 4096;

/// The longest mean run of a vector, in pages.
const MEAN_RUN_MAX: f64 = 256.0;

/// The result that the paper reports for its heuristic: optimal over greedy time, on average.
pub(super) const PAPER_GREEDY: f64 = 0.989;

/// The paper's bandwidth of its page cache: 249 pages in the 584 us of one P2P transfer ("Parameter
/// fitting").
pub(super) const PAPER_CACHE_BYTES_PER_S: f64 = 249.0 * 4096.0 / 584e-6;

/// What its table 3 gives for reading a cached file with four threads.
pub(super) const PAPER_TABLE_3_BYTES_PER_S: f64 = 10.13e9;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// Random residencies.
    pub(super) vectors: u64,
    /// Seed; the same one gives the same vectors, whatever the number of threads.
    pub(super) seed: u64,
    /// Threads.
    pub(super) threads: usize,
}

/// Costs with a name.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// Where the costs come from.
    pub(super) name: String,
    /// The costs.
    pub(super) costs: Costs,
}

/// How the strategies did under one setting.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    /// Where the costs come from.
    pub(super) setting: String,
    /// The strategies.
    pub(super) rows: Vec<Row>,
}

/// How one strategy did.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// The strategy.
    pub(super) planner: &'static str,
    /// Under the paper's objective.
    pub(super) sum: Quality,
    /// Under ours.
    pub(super) makespan: Quality,
    /// Time of one plan, every call timed by itself.
    pub(super) planning_us_median: f64,
    /// 99 % of the plans took at most so long.
    pub(super) planning_us_p99: f64,
}

/// Time of the optimum over time of the plan: 1 is optimal.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Quality {
    /// Over all vectors.
    pub(super) mean: f64,
    /// The best of the worst hundredth of the vectors.
    pub(super) worst_1_percent: f64,
}

/// The paper's costs with a page cache of so many bytes a second: one P2P transfer as equation 1 and
/// its fit have it. What the paper does not need and so does not give is assumed: a further extent
/// in a full queue costs what our defaults say, and a read through the page cache is one from storage
/// and then one from the cache.
pub(super) fn paper_costs(cache_bytes_per_s: f64) -> Costs {
    let storage = EngineCost { overhead_s: 584e-6, cutoff_bytes: 512 << 10, bytes_per_s: 2.65e9 };
    let cache = EngineCost { overhead_s: 0.0, cutoff_bytes: 0, bytes_per_s: cache_bytes_per_s };
    let buffered_bytes_per_s = (cache_bytes_per_s.recip() + storage.bytes_per_s.recip()).recip();
    Costs {
        cached: cache,
        buffered: EngineCost { bytes_per_s: buffered_bytes_per_s, ..storage },
        direct: storage,
        mapped: cache,
        p2p: storage,
        ..Costs::default()
    }
}

/// Plans every vector by every strategy under every setting, and counts vectors in the session's progress: the
/// number of vectors and how the strategies did on them, which is fewer than were asked for where it is interrupted.
pub(super) fn simulate(settings: &[Setting], options: &Options, session: &Session) -> (u64, Vec<Outcome>) {
    let next = AtomicU64::new(0);
    let samples = Mutex::new((0, vec![Samples::default(); settings.len() * STRATEGIES.len()]));
    let work = || {
        let mut mine = vec![Samples::default(); settings.len() * STRATEGIES.len()];
        let mut done = 0;
        while !session.cancel().is_cancelled() {
            let first = next.fetch_add(BLOCK, Ordering::Relaxed);
            let block = first..options.vectors.min(first.saturating_add(BLOCK));
            if block.is_empty() {
                break;
            }
            for number in block.clone() {
                try_vector(&draw(options.seed, number), settings, &mut mine);
            }
            done += block.end - block.start;
            session.advance(block.end - block.start);
        }
        let mut all = samples.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 += done;
        all.1.iter_mut().zip(mine).for_each(|(all, mine)| all.append(mine));
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(work);
        }
    });
    let (done, samples) = samples.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut samples = samples.into_iter();
    let rows = |samples: &mut dyn Iterator<Item = Samples>| {
        STRATEGIES.iter().zip(samples).map(|(strategy, samples)| samples.row(strategy.name())).collect()
    };
    let outcome = |setting: &Setting| Outcome { setting: setting.name.clone(), rows: rows(&mut samples) };
    (done, settings.iter().map(outcome).collect())
}

/// Vectors that a thread takes at a time.
const BLOCK: u64 = 64;

const STRATEGIES: [&(dyn Strategy + Sync); 3] = [&Greedy, &Exact, &Overlapped];

/// The offer of every simulated request: unbuffered reads.
const OFFER: Offer<'_> = Offer { direct: true, p2p_alignment: None, mapped: &[] };

fn try_vector(residency: &Residency, settings: &[Setting], samples: &mut [Samples]) {
    for (setting, samples) in settings.iter().zip(samples.chunks_mut(STRATEGIES.len())) {
        let costs = &setting.costs;
        let plans = STRATEGIES.map(|strategy| {
            let started = Instant::now();
            let plan = strategy.plan(residency, costs, &OFFER);
            (plan, started.elapsed())
        });
        let sums = plans.each_ref().map(|(plan, _)| sum_s(&plan.segments, residency, costs));
        let (least_sum_s, least_makespan_s) = (sums[1], optimum_s(residency, costs));
        for ((samples, (plan, took)), sum_s) in samples.iter_mut().zip(&plans).zip(sums) {
            samples.sum.push((least_sum_s / sum_s) as f32);
            samples.makespan.push((least_makespan_s / makespan_s(&plan.segments, residency, costs)) as f32);
            samples.planning_us.push(took.as_secs_f32() * 1e6);
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Samples {
    sum: Vec<f32>,
    makespan: Vec<f32>,
    planning_us: Vec<f32>,
}

impl Samples {
    fn append(&mut self, other: Self) {
        self.sum.extend(other.sum);
        self.makespan.extend(other.makespan);
        self.planning_us.extend(other.planning_us);
    }

    fn row(mut self, planner: &'static str) -> Row {
        let quality = |ratios: &mut Vec<f32>| Quality {
            mean: ratios.iter().map(|ratio| f64::from(*ratio)).sum::<f64>() / ratios.len().max(1) as f64,
            worst_1_percent: quantile(ratios, 0.01),
        };
        Row {
            planner,
            sum: quality(&mut self.sum),
            makespan: quality(&mut self.makespan),
            planning_us_median: quantile(&mut self.planning_us, 0.5),
            planning_us_p99: quantile(&mut self.planning_us, 0.99),
        }
    }
}

fn quantile(values: &mut [f32], part: f64) -> f64 {
    let rank = (values.len().saturating_sub(1) as f64 * part).round() as usize;
    if values.is_empty() { 0.0 } else { f64::from(*values.select_nth_unstable_by(rank, f32::total_cmp).1) }
}

/// The vector of a number, the same for every setting.
fn draw(seed: u64, number: u64) -> Residency {
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut random = Rng::with_seed(seed);
    loop {
        let fraction = unit(&mut random);
        let cached_mean = (unit(&mut random) * MEAN_RUN_MAX.ln()).exp().max(fraction / (1.0 - fraction));
        let uncached_mean = (cached_mean * (1.0 - fraction) / fraction).max(1.0);
        let runs = draw_runs(&mut random, fraction, cached_mean, uncached_mean);
        let residency = Residency::new(Source::Mincore, 0..PAGES * PAGE_BYTES, runs);
        if (1..PAGES * PAGE_BYTES).contains(&residency.cached_bytes()) {
            return residency;
        }
    }
}

fn draw_runs(random: &mut Rng, fraction: f64, cached_mean: f64, uncached_mean: f64) -> Vec<Range<u64>> {
    let (mut runs, mut at, mut is_cached) = (vec![], 0, unit(random) < fraction);
    while at < PAGES {
        let length = run_length(random, if is_cached { cached_mean } else { uncached_mean });
        let end = PAGES.min(at.saturating_add(length));
        if is_cached {
            runs.push(at * PAGE_BYTES..end * PAGE_BYTES);
        }
        (at, is_cached) = (end, !is_cached);
    }
    runs
}

/// Uniform in (0, 1), without both ends.
fn unit(random: &mut Rng) -> f64 {
    ((random.u64(..) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// The length of a run, geometric with this mean, at least 1.
fn run_length(random: &mut Rng, mean: f64) -> u64 {
    if mean <= 1.0 {
        return 1;
    }
    // The chain leaves its state with probability 1 / mean after every page.
    1 + (unit(random).ln() / (1.0 - mean.recip()).ln()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(vectors: u64, seed: u64, threads: usize) -> Vec<Outcome> {
        let costs = [paper_costs(PAPER_CACHE_BYTES_PER_S), paper_costs(PAPER_TABLE_3_BYTES_PER_S), Costs::default()];
        let settings = costs.map(|costs| Setting { name: String::new(), costs });
        let session = Session::default();
        let (done, outcomes) = simulate(&settings, &Options { vectors, seed, threads }, &session);
        assert_eq!((done, session.progress().steps().0), (vectors, vectors));
        outcomes
    }

    fn qualities(outcomes: &[Outcome]) -> Vec<(f64, f64)> {
        let rows = outcomes.iter().flat_map(|outcome| &outcome.rows);
        rows.map(|row| (row.sum.worst_1_percent, row.makespan.worst_1_percent)).collect()
    }

    #[test]
    fn every_strategy_is_near_the_optimum_of_its_own_objective() {
        for outcome in run(3000, 7, 2) {
            let [greedy, exact, ours] = outcome.rows.as_slice() else { panic!("three strategies") };
            assert!(greedy.sum.mean > 0.98 && greedy.sum.mean <= 1.0, "{greedy:?}");
            assert!((exact.sum.worst_1_percent - 1.0).abs() < 1e-6, "{exact:?}");
            assert!(ours.makespan.mean > 0.99 && ours.makespan.mean <= 1.0, "{ours:?}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_vectors_whatever_the_threads() {
        assert_eq!(qualities(&run(300, 3, 1)), qualities(&run(300, 3, 3)));
        assert_ne!(qualities(&run(300, 3, 1)), qualities(&run(300, 4, 1)));
    }

    #[test]
    fn vectors_have_every_cached_fraction_and_run_length() {
        let vectors: Vec<_> = (0..4000).map(|number| draw(1, number)).collect();
        let fractions: Vec<_> =
            vectors.iter().map(|vector| vector.cached_bytes() as f64 / (PAGES * PAGE_BYTES) as f64).collect();
        for tenth in 0..10 {
            let share = fractions.iter().filter(|fraction| (**fraction * 10.0) as u64 == tenth).count();
            assert!(share > 200, "{share} vectors of 4000 are cached to {tenth} tenths");
        }
        let runs = |count: Range<usize>| vectors.iter().filter(|vector| count.contains(&vector.cached().len())).count();
        assert!(runs(1..5) > 200 && runs(20..100) > 200 && runs(300..1025) > 200);
    }

    #[test]
    fn an_interrupted_simulation_says_how_far_it_came() {
        let session = Session::default();
        session.cancel().cancel();
        let options = Options { vectors: 10, seed: 1, threads: 1 };
        let settings = [Setting { name: String::new(), costs: Costs::default() }];
        let (done, outcomes) = simulate(&settings, &options, &session);
        assert_eq!((done, outcomes.len()), (0, 1));
    }

    #[test]
    fn the_paper_s_page_cache_reads_249_pages_in_the_time_of_one_transfer() {
        let costs = paper_costs(PAPER_CACHE_BYTES_PER_S);
        assert!((costs.cached.seconds(249 * 4096) - costs.direct.seconds(4096)).abs() < 1e-12);
        assert!(costs.are_sane());
    }
}
