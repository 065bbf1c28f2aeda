//! What a plan is made of, and what it may be made of.

use crate::EngineKind;
use crate::cost::Costs;
use serde::Serialize;
use std::ops::Range;

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
