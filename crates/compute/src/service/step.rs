//! A service with what one request asks of it, whatever the service's type: what queues hold.

use super::{Batch, Completed, Data, Entry, Launch, Prepared, Service, Shape};
use crate::Result;
use crate::cost::Kind;
use bifolio_device::{Device, DeviceSlice};
use std::any::Any;
use std::sync::Arc;

/// One step of a request: made by [`crate::Handle::step`].
#[derive(Debug, Clone)]
pub struct Step(Arc<dyn Erased>);

/// A step's share of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'a> {
    pub(crate) step: &'a Step,
    pub(crate) input: DeviceSlice<'a>,
    pub(crate) output: DeviceSlice<'a>,
    pub(crate) results_at: u64,
}

trait Erased: std::fmt::Debug + Send + Sync {
    fn kind(&self) -> &Arc<Kind>;
    /// Tells service objects apart.
    fn service(&self) -> *const ();
    fn params(&self) -> &dyn Any;
    fn shape(&self, input: u64) -> Result<Shape>;
    fn travels(&self, input: u64) -> u64;
    fn cut(&self, at_most: u64) -> u64;
    fn split(&self, at: u64) -> (Step, Step);
    fn on_cpu(&self, data: Data<'_>, results: &mut [u8]) -> Result<()>;
    fn prepare(&self, device: &Device, placed: &[Placed<'_>], batch: Batch<'_>) -> Result<Prepared>;
    /// # Safety
    /// As [`Service::launch`].
    unsafe fn launch(&self, placed: &[Placed<'_>], launch: &Launch<'_>) -> Result<()>;
    fn complete(&self, results: &mut [u8]) -> Completed;
}

#[derive(Debug)]
struct Bound<S: Service> {
    service: Arc<S>,
    kind: Arc<Kind>,
    params: S::Params,
}

impl Step {
    pub(crate) fn new<S: Service>(service: &Arc<S>, kind: &Arc<Kind>, params: S::Params) -> Self {
        Self(Arc::new(Bound { service: Arc::clone(service), kind: Arc::clone(kind), params }))
    }

    pub(crate) fn kind(&self) -> &Arc<Kind> {
        self.0.kind()
    }

    /// Whether both are work for one service object.
    pub(crate) fn joins(&self, other: &Self) -> bool {
        std::ptr::eq(self.0.service(), other.0.service())
    }

    /// Lengths for so much input, or why that is no work for the service.
    ///
    /// # Errors
    /// [`crate::ErrorKind::BadArgument`].
    pub fn shape(&self, input: u64) -> Result<Shape> {
        self.0.shape(input).map_err(|error| error.of(self.kind().name()))
    }

    pub(crate) fn travels(&self, input: u64) -> u64 {
        self.0.travels(input).min(input)
    }

    pub(crate) fn cut(&self, at_most: u64) -> u64 {
        self.0.cut(at_most)
    }

    pub(crate) fn split(&self, at: u64) -> (Self, Self) {
        self.0.split(at)
    }

    pub(crate) fn on_cpu(&self, data: Data<'_>, results: &mut [u8]) -> Result<()> {
        self.0.on_cpu(data, results).map_err(|error| error.of(self.kind().name()))
    }

    pub(crate) fn prepare(&self, device: &Device, placed: &[Placed<'_>], batch: Batch<'_>) -> Result<Prepared> {
        self.0.prepare(device, placed, batch).map_err(|error| error.of(self.kind().name()))
    }

    /// # Safety
    /// As [`Service::launch`].
    pub(crate) unsafe fn launch(&self, placed: &[Placed<'_>], launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.launch(placed, launch) }.map_err(|error| error.of(self.kind().name()))
    }

    pub(crate) fn complete(&self, results: &mut [u8]) -> Completed {
        let completed = self.0.complete(results);
        Completed { error: completed.error.map(|error| error.of(self.kind().name())), ..completed }
    }
}

impl<S: Service> Bound<S> {
    fn bind(&self, params: S::Params) -> Step {
        Step::new(&self.service, &self.kind, params)
    }

    fn entries<'a>(placed: &[Placed<'a>]) -> Vec<Entry<'a, S::Params>> {
        let entry = |placed: &Placed<'a>| {
            let Placed { step, input, output, results_at } = *placed;
            let params = step.0.params().downcast_ref().expect("a batch has steps of one service");
            Entry { params, input, output, results_at }
        };
        placed.iter().map(entry).collect()
    }
}

impl<S: Service> Erased for Bound<S> {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    fn service(&self) -> *const () {
        Arc::as_ptr(&self.service).cast()
    }

    fn params(&self) -> &dyn Any {
        &self.params
    }

    fn shape(&self, input: u64) -> Result<Shape> {
        self.service.shape(&self.params, input)
    }

    fn travels(&self, input: u64) -> u64 {
        self.service.travels(&self.params, input)
    }

    fn cut(&self, at_most: u64) -> u64 {
        self.service.cut(&self.params, at_most)
    }

    fn split(&self, at: u64) -> (Step, Step) {
        let (head, tail) = self.service.split(&self.params, at);
        (self.bind(head), self.bind(tail))
    }

    fn on_cpu(&self, data: Data<'_>, results: &mut [u8]) -> Result<()> {
        self.service.on_cpu(&self.params, data, results)
    }

    fn prepare(&self, device: &Device, placed: &[Placed<'_>], batch: Batch<'_>) -> Result<Prepared> {
        self.service.prepare(device, &Self::entries(placed), batch)
    }

    unsafe fn launch(&self, placed: &[Placed<'_>], launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.service.launch(&Self::entries(placed), launch) }
    }

    fn complete(&self, results: &mut [u8]) -> Completed {
        self.service.complete(&self.params, results)
    }
}
