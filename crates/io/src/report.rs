//! What requests report.

use crate::kind::EngineKind;
use crate::residency::{Residency, Source};
use serde::Serialize;
use std::time::Instant;

/// What a request did.
#[derive(Debug, Clone, Serialize)]
pub struct ReadReport {
    /// Bytes now in device memory. Less than asked for only at the end of the file.
    pub bytes: u64,
    /// Seconds from the call to the last byte in place.
    pub seconds: f64,
    /// The part of them before the first engine started: looking at the residency and planning.
    pub plan_seconds: f64,
    /// Seconds spent on planning in all; beyond `plan_seconds` the engines were running already.
    pub planning_cpu_s: f64,
    /// Seconds that the plan predicted.
    pub predicted_s: f64,
    /// Why this plan, as a phrase.
    pub reason: String,
    /// What was cached; none where nobody looked.
    pub residency: Option<ResidencyReport>,
    /// Every segment.
    pub plan: Vec<SegmentReport>,
}

/// What a write did.
#[derive(Debug, Clone, Serialize)]
pub struct WriteReport {
    /// Bytes written: all that were asked for.
    pub bytes: u64,
    /// Seconds from the call to its end.
    pub seconds: f64,
    /// Whether the data were made durable.
    pub durable: bool,
    /// Why these engines, as a phrase.
    pub reason: &'static str,
    /// Every segment.
    pub plan: Vec<SegmentReport>,
}

/// What a batch did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchReport {
    /// Bytes now in device memory.
    pub bytes: u64,
    /// Seconds from the call to the last byte in place.
    pub seconds: f64,
    /// Bytes that came from the page cache; the others came from storage.
    pub cached_bytes: u64,
    /// Extents that the end of the file cut short: their numbers, and how many bytes they got.
    pub short: Vec<(usize, u64)>,
}

/// What of a request was cached when it was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ResidencyReport {
    /// Which source was believed.
    pub source: Source,
    /// Bytes in the page cache.
    pub cached_bytes: u64,
    /// Bytes asked about.
    pub total_bytes: u64,
}

/// One segment of a plan, after it ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SegmentReport {
    /// The engine.
    pub engine: EngineKind,
    /// First byte, in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Seconds that the cost model expected.
    pub predicted_s: f64,
    /// Seconds from its first read to its last copy.
    pub actual_s: f64,
    /// The member of a striped set whose offset this is; none for plain files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<usize>,
}

impl ReadReport {
    pub(crate) fn empty(started: Instant) -> Self {
        Self {
            bytes: 0,
            seconds: started.elapsed().as_secs_f64(),
            plan_seconds: 0.0,
            planning_cpu_s: 0.0,
            predicted_s: 0.0,
            reason: "nothing to read".to_owned(),
            residency: Some(ResidencyReport { source: Source::Cachestat, cached_bytes: 0, total_bytes: 0 }),
            plan: vec![],
        }
    }
}

impl ResidencyReport {
    pub(crate) fn of(residency: &Residency) -> Self {
        let range = residency.range();
        Self { source: residency.source, cached_bytes: residency.cached_bytes(), total_bytes: range.end - range.start }
    }

    /// The part of the bytes that was cached, 0 to 1.
    pub(crate) fn part_cached(&self) -> f64 {
        self.cached_bytes as f64 / self.total_bytes.max(1) as f64
    }

    /// What is known of two parts of a request together.
    pub(crate) fn joined(one: Option<Self>, two: Option<Self>) -> Option<Self> {
        match (one, two) {
            (Some(one), Some(two)) => Some(Self {
                // The most indirect source is the one to know about.
                source: one.source.max(two.source),
                cached_bytes: one.cached_bytes + two.cached_bytes,
                total_bytes: one.total_bytes + two.total_bytes,
            }),
            (one, two) => one.or(two),
        }
    }
}
