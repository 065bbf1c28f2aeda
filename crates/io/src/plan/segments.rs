//! From a choice for every cached run to the segments of a plan.
//!
//! All ways to plan decide the same thing, which cached runs are read from the page cache; what lies
//! between those is one storage transfer each. Registered ranges and the direct path of a driver
//! are used here, in the same way for all of them.

use super::segment::{Offer, Segment};
use crate::EngineKind;
use crate::cost::Costs;
use crate::kind::MAPPED_BYTES_MIN;
use crate::residency::Residency;
use std::ops::Range;

/// Below this a direct path is not worth an extent of its own.
const P2P_BYTES_MIN: u64 = 1 << 20;

/// The segments of a request whose cached runs come from the page cache where `from_cache` says so,
/// asked once for every run in file order. Without a storage path everything goes through the cache.
pub fn assemble(
    residency: &Residency,
    costs: &Costs,
    offer: &Offer<'_>,
    mut from_cache: impl FnMut(usize, &Range<u64>) -> bool,
) -> Vec<Segment> {
    let range = residency.range();
    let mut segments = Segments { costs, list: Vec::with_capacity(16) };
    let mut stored = range.start;
    for (number, run) in residency.cached().iter().enumerate() {
        if from_cache(number, run) {
            segments.add_stored(stored..run.start, offer);
            segments.add_cached(run.clone(), offer.mapped);
            stored = run.end;
        }
    }
    segments.add_stored(stored..range.end, offer);
    segments.list
}

/// One segment of one engine.
pub(super) fn segment(engine: EngineKind, range: Range<u64>, costs: &Costs) -> Segment {
    let length = range.end - range.start;
    Segment { engine, offset: range.start, length, predicted_s: costs.of(engine).seconds(length) }
}

/// Segments in file order; neighbours of one engine become one.
pub(super) fn merge(segments: Vec<Segment>, costs: &Costs) -> Vec<Segment> {
    let mut merged = Segments { costs, list: Vec::new() };
    for segment in segments {
        merged.append(segment);
    }
    merged.list
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
