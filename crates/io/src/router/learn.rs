//! What a router learns from requests: what engines cost, and which ranges are worth a registration.

use super::Router;
use super::crowd::Watch;
use crate::engine::mapped::Windows;
use crate::file::PlainFile;
use crate::kind::EngineKind;
use crate::report::{ReadReport, SegmentReport};
use crate::workers::Group;
use std::sync::Arc;

impl Router {
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
