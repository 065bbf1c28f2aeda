//! The planner: which engine moves which bytes of a request. Pure: no file, no device, no clock.
//!
//! Cached runs come from the page cache, by DMA where they are registered; the rest comes from
//! storage. Both sides run at the same time, so a plan is judged by its makespan, the time of its
//! slowest engine, and not by the paper's sum. Short cached runs between uncached ones are read
//! from storage with their neighbours when that is quicker than starting one more extent (the
//! paper's interleaving problem, section 4.3.1). Finally the split is compared with one engine
//! for everything, which wins for short requests.

use crate::cost::Costs;
use crate::residency::Residency;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The ways in which bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Page cache, pinned slots, device.
    Cached,
    /// DMA straight out of registered page-cache pages.
    Mapped,
    /// Unbuffered reads, pinned slots, device.
    Direct,
    /// Storage to device without host memory.
    P2p,
}

impl EngineKind {
    /// All engines.
    pub const ALL: [Self; 4] = [Self::Cached, Self::Mapped, Self::Direct, Self::P2p];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Mapped => "mapped",
            Self::Direct => "direct",
            Self::P2p => "p2p",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|engine| engine.name() == text);
        known.ok_or_else(|| format!("\"{text}\" is not an engine: use cached, mapped, direct or p2p"))
    }
}

/// Bytes of the file that one engine moves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// The engine.
    pub engine: EngineKind,
    /// First byte, in the file.
    pub offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
    /// Seconds that the cost model expects for this segment by itself.
    pub predicted_s: f64,
}

impl Segment {
    /// Takes in a later segment of the same engine.
    pub(crate) fn join(&mut self, next: &Self, costs: &Costs) {
        let all_cached = self.is_all_cached(costs) && next.is_all_cached(costs);
        self.length += next.length;
        self.predicted_s = match self.engine {
            EngineKind::Cached if !all_cached => {
                self.predicted_s + (next.predicted_s - costs.cached.overhead_s).max(0.0)
            }
            engine => costs.of(engine).seconds(self.length),
        };
    }

    /// Whether its time is that of cached bytes. Parts of what goes through the page cache may come
    /// from storage, which the engine alone does not tell.
    fn is_all_cached(&self, costs: &Costs) -> bool {
        self.predicted_s <= costs.cached.seconds(self.length)
    }
}

/// How a request is served. Segments are in file order and cover it exactly.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The segments.
    pub segments: Vec<Segment>,
    /// Seconds expected for all of it, engines overlapped.
    pub predicted_s: f64,
    /// Why this plan, as a phrase.
    pub reason: &'static str,
}

/// What may be used for a request besides the page cache, which always may.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offer<'a> {
    /// Unbuffered reads work.
    pub direct: bool,
    /// A real direct path exists, for ranges aligned to this many bytes.
    pub p2p_alignment: Option<u64>,
    /// Registered ranges in file order, disjoint.
    pub mapped: &'a [Range<u64>],
}

/// Starting and joining a second engine (a thread's wake-up) costs about this.
const JOIN_S: f64 = 30e-6;

/// A storage path that fills the page cache evicts what others use; it must be clearly quicker.
pub(crate) const POLLUTION_FACTOR: f64 = 1.25;

/// Below this a direct path is not worth an extent of its own.
const P2P_BYTES_MIN: u64 = 1 << 20;

/// Below this a registered range is not: its engine would go through a slot as well.
const MAPPED_BYTES_MIN: u64 = crate::engine::mapped::COPY_BYTES_MIN;

/// Plans a request over the range that `residency` describes.
pub fn plan(residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Plan {
    let range = residency.range();
    let (cached, total) = (residency.cached_bytes(), range.end - range.start);
    if total == 0 {
        return Plan { segments: vec![], predicted_s: 0.0, reason: "nothing to read" };
    }
    let split = split(residency, costs, offer);
    let one_engine = |engine| vec![segment(engine, range.clone(), costs)];
    if cached == total || cached == 0 {
        let reason = if cached == 0 { "nothing is cached" } else { "everything is cached" };
        let buffered_s = costs.buffered.seconds(total);
        if cached == 0 && buffered_s * POLLUTION_FACTOR < makespan(&split, costs) {
            return through_cache(range, buffered_s, reason);
        }
        return finish(split, costs, reason);
    }
    let split_s = makespan(&split, costs) + JOIN_S;
    let through_cache_s = costs.cached.seconds(cached) + costs.buffered.seconds(total - cached) * POLLUTION_FACTOR;
    if offer.direct && costs.direct.seconds(total) < split_s.min(through_cache_s) {
        return finish(
            one_engine(EngineKind::Direct),
            costs,
            "partly cached; reading all of it from storage is quickest",
        );
    }
    if through_cache_s < split_s {
        let seconds = costs.cached.seconds(cached) + costs.buffered.seconds(total - cached);
        return through_cache(range, seconds, "partly cached; the page cache alone is quickest");
    }
    finish(split, costs, "partly cached; page cache and storage are read at the same time")
}

/// The plan that moves all of a range by one engine.
pub fn plan_with(engine: EngineKind, range: Range<u64>, costs: &Costs) -> Plan {
    let segments = if range.is_empty() { vec![] } else { vec![segment(engine, range, costs)] };
    finish(segments, costs, "the engine was chosen by the caller")
}

/// All of a range through the page cache, which the kernel fills on the way.
fn through_cache(range: Range<u64>, seconds: f64, reason: &'static str) -> Plan {
    let length = range.end - range.start;
    let segment = Segment { engine: EngineKind::Cached, offset: range.start, length, predicted_s: seconds };
    Plan { segments: vec![segment], predicted_s: seconds, reason }
}

fn finish(segments: Vec<Segment>, costs: &Costs, reason: &'static str) -> Plan {
    Plan { predicted_s: makespan(&segments, costs), segments, reason }
}

fn segment(engine: EngineKind, range: Range<u64>, costs: &Costs) -> Segment {
    let length = range.end - range.start;
    Segment { engine, offset: range.start, length, predicted_s: costs.of(engine).seconds(length) }
}

impl Plan {
    /// A plan of segments in file order; neighbours of one engine become one.
    pub(crate) fn merged(segments: Vec<Segment>, reason: &'static str, costs: &Costs) -> Self {
        let mut list = Segments { costs, list: Vec::new() };
        for segment in segments {
            list.append(segment);
        }
        finish(list.list, costs, reason)
    }
}

/// Seconds until the slowest engine is done, each engine working through its own segments.
fn makespan(segments: &[Segment], costs: &Costs) -> f64 {
    let time = |engine| {
        let mut of_engine = segments.iter().filter(|segment| segment.engine == engine);
        let Some(first) = of_engine.next() else { return 0.0 };
        let (mut all, mut further) = (first.clone(), 0.0);
        for segment in of_engine {
            all.join(segment, costs);
            further += extent_s(engine, costs);
        }
        all.predicted_s + further
    };
    EngineKind::ALL.into_iter().map(time).fold(0.0, f64::max)
}

/// Seconds for each further extent of an engine that is already running.
fn extent_s(engine: EngineKind, costs: &Costs) -> f64 {
    match engine {
        EngineKind::Direct | EngineKind::P2p => costs.direct_extent_s,
        EngineKind::Cached | EngineKind::Mapped => 1e-6,
    }
}

/// Cached runs from the page cache, the rest from storage, short cached runs with their
/// neighbours.
fn split(residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Vec<Segment> {
    // Reading these bytes from storage takes as long as starting one more extent.
    let bridge = if offer.direct { (costs.direct_extent_s * costs.direct.bytes_per_s) as u64 } else { 0 };
    let range = residency.range();
    let mut segments = Segments { costs, list: Vec::with_capacity(2 * residency.cached().len() + 1) };
    for (run, cached) in residency.runs() {
        let inside = run.start > range.start && run.end < range.end;
        let bridged = cached && inside && run.end - run.start <= bridge;
        if cached && !bridged {
            segments.add_cached(run, offer.mapped);
        } else {
            segments.add_stored(run, offer);
        }
    }
    segments.list
}

struct Segments<'a> {
    costs: &'a Costs,
    list: Vec<Segment>,
}

impl Segments<'_> {
    fn push(&mut self, engine: EngineKind, range: Range<u64>) {
        self.append(segment(engine, range, self.costs));
    }

    /// The same for bytes that are not cached.
    fn push_stored(&mut self, engine: EngineKind, range: Range<u64>) {
        let mut stored = segment(engine, range, self.costs);
        if engine == EngineKind::Cached {
            stored.predicted_s = self.costs.buffered.seconds(stored.length);
        }
        self.append(stored);
    }

    fn append(&mut self, segment: Segment) {
        match self.list.last_mut() {
            _ if segment.length == 0 => {}
            Some(last) if last.engine == segment.engine => last.join(&segment, self.costs),
            _ => self.list.push(segment),
        }
    }

    fn add_cached(&mut self, run: Range<u64>, mapped: &[Range<u64>]) {
        let mut at = run.start;
        for window in mapped.iter().filter(|window| window.start < run.end && window.end > run.start) {
            let part = window.start.max(run.start)..window.end.min(run.end);
            if part.end - part.start < MAPPED_BYTES_MIN {
                continue;
            }
            self.push(EngineKind::Cached, at..part.start);
            at = part.end;
            self.push(EngineKind::Mapped, part);
        }
        self.push(EngineKind::Cached, at..run.end);
    }

    fn add_stored(&mut self, run: Range<u64>, offer: &Offer<'_>) {
        let storage = if offer.direct { EngineKind::Direct } else { EngineKind::Cached };
        if let Some(alignment) = offer.p2p_alignment {
            let start = run.start.next_multiple_of(alignment);
            let end = run.end - run.end % alignment;
            let body = end.saturating_sub(start);
            let quicker = self.costs.p2p.seconds(body) < self.costs.direct.seconds(body);
            if body >= P2P_BYTES_MIN && (quicker || !offer.direct) {
                self.push_stored(storage, run.start..start);
                self.push_stored(EngineKind::P2p, start..end);
                self.push_stored(storage, end..run.end);
                return;
            }
        }
        self.push_stored(storage, run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::Source;
    use proptest::prelude::*;

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
