//! What a plan is judged by, as a function of what it does to the request, and not of what it says about
//! itself.

use super::segment::Segment;
use crate::EngineKind;
use crate::cost::Costs;
use crate::residency::Residency;
use std::ops::Range;

/// Starting and joining a second engine (a thread's wake-up) costs about this.
pub const JOIN_S: f64 = 30e-6;

/// A storage path that fills the page cache evicts what others use; it must be clearly quicker.
pub const POLLUTION_FACTOR: f64 = 1.25;

/// Our objective: engines run at the same time, each through its own segments as through one
/// transfer that pays for every further extent, and the slowest counts. A second engine must be
/// joined. Bytes that the page cache must fetch first weigh more than their time, as they evict
/// others.
pub fn makespan_s(segments: &[Segment], residency: &Residency, costs: &Costs) -> f64 {
    let mut runs = residency.cached();
    let mut shares = [Share::default(); EngineKind::ALL.len()];
    for segment in segments {
        let share = &mut shares[segment.engine as usize];
        share.extents += 1;
        share.bytes += segment.length;
        if segment.engine == EngineKind::Cached {
            share.fetched += segment.length - cached_bytes(&mut runs, segment);
        }
    }
    let engines = EngineKind::ALL.into_iter().zip(shares).filter(|(_, share)| share.extents > 0);
    let join_s = if engines.clone().count() > 1 { JOIN_S } else { 0.0 };
    engines.map(|(engine, share)| share.seconds(engine, costs)).fold(0.0, f64::max) + join_s
}

/// What one engine has to do of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    /// Its segments.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that are not cached but go through the page cache.
    pub fetched: u64,
}

impl Share {
    /// Seconds that an engine takes for it.
    pub fn seconds(&self, engine: EngineKind, costs: &Costs) -> f64 {
        let further = self.extents.saturating_sub(1) as f64 * extent_s(engine, costs);
        let fetched_s = costs.buffered.seconds(self.fetched) * POLLUTION_FACTOR;
        costs.of(engine).seconds(self.bytes - self.fetched) + fetched_s + further
    }
}

/// Seconds until the slowest engine is done, as the segments predict, before joining.
pub(super) fn predicted_s(segments: &[Segment], costs: &Costs) -> f64 {
    // Each engine's segments as one, and how many they are.
    let mut joined: [Option<(Segment, u64)>; EngineKind::ALL.len()] = Default::default();
    for segment in segments {
        match &mut joined[segment.engine as usize] {
            Some((all, extents)) => {
                all.join(segment, costs);
                *extents += 1;
            }
            none => *none = Some((segment.clone(), 1)),
        }
    }
    let time = |(all, extents): (Segment, u64)| all.predicted_s + (extents - 1) as f64 * extent_s(all.engine, costs);
    joined.into_iter().flatten().map(time).fold(0.0, f64::max)
}

/// Seconds for each further extent of an engine that is already running.
fn extent_s(engine: EngineKind, costs: &Costs) -> f64 {
    match engine {
        EngineKind::Direct | EngineKind::P2p => costs.direct_extent_s,
        EngineKind::Cached | EngineKind::Mapped => 1e-6,
    }
}

/// Cached bytes of a segment. `runs` begins with the first run that may touch it, and is moved on.
fn cached_bytes(runs: &mut &[Range<u64>], segment: &Segment) -> u64 {
    let (start, end) = (segment.offset, segment.offset + segment.length);
    let passed = runs.partition_point(|run| run.end <= start);
    *runs = &runs[passed..];
    let touching = runs.iter().take_while(|run| run.start < end);
    touching.map(|run| run.end.min(end) - run.start.max(start)).sum()
}
