//! What a router learns from requests: what engines cost, and which ranges are worth a registration.

use super::Router;
use super::crowd::Watch;
use crate::engine::mapped::Windows;
use crate::file::PlainFile;
use crate::kind::EngineKind;
use crate::report::{ReadReport, SegmentReport};
use crate::workers::Group;
use bifolio_device::DeviceSlice;
use std::sync::Arc;
use std::time::Instant;

/// Shorter requests are not worth the few milliseconds that gauging takes.
const GAUGED_BYTES_MIN: u64 = 256 << 20;

/// What is copied to gauge: more than the processor's own caches hold.
const GAUGE_BYTES: u64 = 16 << 20;

impl Router {
    /// Before a request of `bytes` to `destination` is planned: where the device's copies are the processor's, their rate
    /// bounds every engine, and differs between machines by a factor of ten. If nobody calibrated it is measured, once, by
    /// copies to the start of the destination, which the request overwrites; by the first request that has the memory for
    /// itself meanwhile.
    pub(super) fn gauge(&self, destination: DeviceSlice<'_>, bytes: u64) {
        let is_short = bytes < GAUGED_BYTES_MIN || destination.len() < GAUGE_BYTES;
        if is_short || self.gauged.get().is_some() {
            return;
        }
        let watch = self.crowd.watch();
        if !self.crowd.was_alone(watch) {
            return;
        }
        // Of two that gauge at a time, neither was alone.
        let _counted = self.crowd.join();
        let (Ok(Some(mut slot)), Ok(stream)) = (self.pool.try_acquire(), self.streams.take()) else { return };
        let slot_bytes = self.pool.slot_bytes() as u64;
        slot.buffer().bytes_mut().fill(1);
        let mut copy = || -> bifolio_device::Result<()> {
            let mut copied = 0;
            while copied < GAUGE_BYTES {
                let place = destination.part(copied, slot_bytes.min(GAUGE_BYTES - copied))?;
                // SAFETY: the slot has so many bytes, and is this thread's until the copy, which is waited for, is done.
                unsafe { stream.copy_to_device_and_wait(place, slot.buffer().as_ptr()) }?;
                copied += place.len();
            }
            Ok(())
        };
        // Not timed: memory that nobody has touched yet gets its pages now.
        if copy().is_err() {
            return;
        }
        let started = Instant::now();
        if copy().is_err() {
            return;
        }
        let seconds = started.elapsed().as_secs_f64();
        stream.declare_clean();
        if self.crowd.was_alone(watch) && self.gauged.set(()).is_ok() && seconds > 0.0 {
            let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let mut costs = self.lock_costs();
            *costs = costs.bounded_by_processor(GAUGE_BYTES as f64 / seconds, cpus);
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
