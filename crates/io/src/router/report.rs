//! What requests report.

use crate::residency::{Residency, Source};
use crate::{EngineKind, Segment};
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
    pub(super) fn empty(started: Instant) -> Self {
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

impl SegmentReport {
    pub(super) fn planned(&self) -> Segment {
        let Self { engine, offset, length, predicted_s, .. } = *self;
        Segment { engine, offset, length, predicted_s }
    }
}

impl ResidencyReport {
    pub(crate) fn of(residency: &Residency) -> Self {
        let range = residency.range();
        Self { source: residency.source, cached_bytes: residency.cached_bytes(), total_bytes: range.end - range.start }
    }
}
