//! The engines of one router: which of them a request may use, what their jobs are made of, and how they start.

use super::Router;
use super::request::Part;
use crate::engine::Engine;
use crate::engine::cached::Cached;
use crate::engine::direct::Direct;
use crate::engine::flight;
use crate::engine::job::{Job, Order, Placement, Together};
use crate::engine::mapped::{Mapped, Windows};
use crate::engine::p2p::P2p;
use crate::file::{PlainFile, Stamp};
use crate::kind::{EngineKind, MAPPED_BYTES_MIN};
use crate::options::ReadOptions;
use crate::plan::{Offer, Plan, Segment, plan};
use crate::residency::Residency;
use crate::storage::Storage;
use crate::{Error, ErrorKind, Result};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::sync::Arc;

impl Router {
    /// A job of this router for one part of a request, whose jobs stop together.
    pub(super) fn job(
        &self,
        part: &Part<'_>,
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
        together: &Together,
    ) -> Arc<Job> {
        assert!(!destination.is_foreign(), "a request waits for the program's work before its engines start");
        let placement = part.placement.clone();
        let order = Order {
            stamp: part.stamp,
            kernels: if placement.is_scattered() { self.kernels() } else { None },
            on_arrival: options.on_arrival.clone().filter(|_| placement.is_linear()),
            placement,
            destination,
            cancel: options.cancel.clone(),
            progress: Arc::clone(&options.progress),
            together: together.clone(),
        };
        Arc::new(Job::new(part.file, &self.pool, &self.storage, &self.device, order))
    }

    /// Whether a request can be served from kept registrations alone.
    pub(crate) fn is_registered(&self, file: &PlainFile, stamp: &Stamp, range: &Range<u64>) -> bool {
        let long = range.end - range.start >= MAPPED_BYTES_MIN;
        long && self.budget.is_open() && Windows::of(file).cover(self.device.id(), stamp, range)
    }

    /// The plan for what `residency` describes.
    pub(crate) fn plan_for(&self, file: &PlainFile, stamp: &Stamp, residency: &Residency) -> Plan {
        let range = residency.range();
        let all_cached = residency.cached_bytes() == range.end - range.start;
        let mapped = Windows::of(file).ready(self.device.id(), stamp);
        let p2p_alignment = self.p2p.as_ref().and_then(|driver| driver.path_to(file).ok());
        // Opening the second descriptor is for requests that have a use for it.
        let direct = !all_cached && file.direct().is_ok();
        plan(residency, &self.costs(), &Offer { direct, p2p_alignment, mapped: &mapped })
    }

    /// How files are read.
    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Why an engine that the caller insists on cannot do it.
    pub(crate) fn require(&self, file: &PlainFile, engine: EngineKind, range: &Range<u64>) -> Result<()> {
        let problem = match engine {
            EngineKind::Cached => return Ok(()),
            EngineKind::Direct => file.direct().err(),
            EngineKind::Mapped => self.device.capabilities().host_register_read_only.reason().map(str::to_owned),
            EngineKind::P2p => match &self.p2p {
                None => Some("no driver reports a direct path between storage and the device".to_owned()),
                Some(driver) => match driver.path_to(file) {
                    Err(reason) => Some(reason),
                    Ok(alignment) if !range.start.is_multiple_of(alignment) || !range.end.is_multiple_of(alignment) => {
                        Some(format!(
                            "the direct path only moves multiples of {alignment} bytes; use auto, which reads the edges by other engines"
                        ))
                    }
                    Ok(_) => None,
                },
            },
        };
        match problem {
            None => Ok(()),
            Some(reason) => {
                let detail = format!("engine {engine} cannot be used: {reason}");
                Err(Error::new(ErrorKind::NoEngine, file.path(), detail).at(range.start))
            }
        }
    }

    pub(super) fn start_engine(&self, kind: EngineKind, job: &Arc<Job>) -> Result<Arc<dyn Engine>> {
        Ok(match kind {
            EngineKind::Cached => Arc::new(Cached::new(job, kind, &self.streams, self.threads_of(job.jobs()))?),
            EngineKind::Direct => Arc::new(Direct::new(job, &self.streams, &self.queues)?),
            EngineKind::Mapped => Arc::new(Mapped::new(job, &self.streams, &self.budget)?),
            EngineKind::P2p => Arc::new(P2p::new(job, self.p2p.as_ref())?),
        })
    }

    /// Reads given segments of a file, each to the place that it has in the file, and waits for them: for measurements.
    pub(crate) fn run_segments(
        &self,
        file: &Arc<PlainFile>,
        segments: Vec<Segment>,
        destination: DeviceSlice<'_>,
    ) -> Result<()> {
        let (stamp, placement) = (file.stamp()?, Placement::Linear { base: 0 });
        let part = Part { file, member: None, stamp, range: 0..stamp.size, placement };
        let job = self.job(&part, destination, &ReadOptions::default(), &Together::new(1));
        let _counted = self.crowd.join();
        let mut once = std::iter::once(Ok(segments));
        flight::run(&self.workers, &|kind, job| self.start_engine(kind, job), &mut [(job, &mut once)])
    }
}
