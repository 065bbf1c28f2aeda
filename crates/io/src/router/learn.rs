//! What a router learns from requests: what engines cost, and which ranges are worth a registration.

use super::Router;
use super::crowd::Watch;
use crate::engine::mapped::Windows;
use crate::file::PlainFile;
use crate::kind::EngineKind;
use crate::report::{ReadReport, SegmentReport};
use crate::workers::Group;
use std::sync::Arc;
use std::time::Instant;

/// Gauging the processor takes 1 to 3 ms, which is little beside the time of so long a request.
const GAUGED_BYTES_MIN: u64 = 64 << 20;

/// Smaller slots stay in the processor's caches, and tell nothing of its memory.
const GAUGED_SLOT_BYTES_MIN: usize = 2 << 20;

/// Copies, of which the quickest counts: the first takes the pages of new slots.
const GAUGE_COPIES: usize = 3;

impl Router {
    /// Before a request of `bytes` is planned: where the device's copies are the processor's, their rate bounds every
    /// engine, and differs between machines by a factor of ten. It is measured on two slots, once, if nobody calibrated.
    pub(super) fn gauge(&self, bytes: u64) {
        let is_worth_it = bytes >= GAUGED_BYTES_MIN && self.pool.slot_bytes() >= GAUGED_SLOT_BYTES_MIN;
        if !is_worth_it || self.gauged.get().is_some() {
            return;
        }
        let (Ok(Some(mut from)), Ok(Some(mut to))) = (self.pool.try_acquire(), self.pool.try_acquire()) else { return };
        from.buffer().bytes_mut().fill(1);
        let copy = |_| {
            let started = Instant::now();
            to.buffer().bytes_mut().copy_from_slice(from.buffer().bytes());
            started.elapsed().as_secs_f64()
        };
        let seconds = (0..GAUGE_COPIES).map(copy).fold(f64::INFINITY, f64::min);
        if self.gauged.set(()).is_ok() && seconds > 0.0 {
            let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let mut costs = self.lock_costs();
            *costs = costs.bounded_by_processor(self.pool.slot_bytes() as f64 / seconds, cpus);
        }
    }

    /// Corrects the costs.
    pub(super) fn learn(&self, report: &ReadReport, watch: Watch) {
        let cached = report.residency.map_or(0, |seen| seen.cached_bytes);
        if let [only] = &report.plan[..]
            && self.crowd.was_alone(watch)
            && (cached == 0 || cached == report.bytes)
        {
            self.lock_costs().observe(only.engine, cached > 0, only.length, report.seconds);
        }
    }

    /// Registers ranges of a file of `size` bytes that are read again and again.
    pub(super) fn heat(&self, file: &Arc<PlainFile>, plan: &[SegmentReport], size: u64) {
        if !self.budget.is_open() {
            return;
        }
        for segment in plan.iter().filter(|segment| segment.engine == EngineKind::Cached) {
            for number in Windows::of(file).heat(segment.offset..segment.offset + segment.length, size) {
                let (file, device, budget) = (Arc::clone(file), self.device.clone(), Arc::clone(&self.budget));
                self.background
                    .run(&Group::default(), move || Windows::of(&file).keep(&file, &device, &budget, number));
            }
        }
    }
}
