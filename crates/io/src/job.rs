//! One request while it runs: what the engines share, and how the first failure stops them all.

use crate::batch::Piece;
use crate::plan::{Plan, Segment};
use crate::storage::Storage;
use crate::{EngineKind, Error, ErrorKind, OpenFile};
use bifolio_device::{Device, DeviceSlice, PinnedPool};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Asks a running request to stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks; the request ends with `ErrorKind::Cancelled` once what is in flight has landed.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request being served.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) device: Device,
    pub(crate) pool: Arc<PinnedPool>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) plan: Plan,
    /// The file offset that lands at the start of `destination`.
    base: u64,
    destination: DeviceSlice,
    cancel: Cancel,
    progress: Arc<AtomicU64>,
    stopped: AtomicBool,
    failure: Mutex<Option<Error>>,
    started: Instant,
    clocks: Vec<Clock>,
}

/// When a segment's first read began and its last copy was issued, in nanoseconds of the job.
#[derive(Debug)]
struct Clock {
    first: AtomicU64,
    last: AtomicU64,
}

impl Job {
    #[allow(clippy::too_many_arguments, reason = "one constructor, one caller, each argument once")]
    pub(crate) fn new(
        file: &Arc<OpenFile>,
        pool: &Arc<PinnedPool>,
        storage: &Arc<dyn Storage>,
        device: &Device,
        plan: Plan,
        base: u64,
        destination: DeviceSlice,
        cancel: Cancel,
        progress: Arc<AtomicU64>,
    ) -> Self {
        let clock = |_: &Segment| Clock { first: AtomicU64::new(u64::MAX), last: AtomicU64::new(0) };
        Self {
            file: Arc::clone(file),
            device: device.clone(),
            pool: Arc::clone(pool),
            storage: Arc::clone(storage),
            clocks: plan.segments.iter().map(clock).collect(),
            plan,
            base,
            destination,
            cancel,
            progress,
            stopped: AtomicBool::new(false),
            failure: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// The segments of one engine, with their numbers in the plan.
    pub(crate) fn segments_of(&self, engine: EngineKind) -> Vec<(usize, Segment)> {
        let numbered = self.plan.segments.iter().enumerate();
        numbered
            .filter(|(_, segment)| segment.engine == engine)
            .map(|(number, segment)| (number, segment.clone()))
            .collect()
    }

    /// Where bytes of the file land.
    pub(crate) fn place(&self, offset: u64, len: u64) -> crate::Result<DeviceSlice> {
        self.destination.part(offset - self.base, len).map_err(|error| self.device_error(error).at(offset))
    }

    /// Whether engines should stop handing out work: a failure, or the caller's wish.
    pub(crate) fn is_stopped(&self) -> bool {
        if self.cancel.is_cancelled() && !self.stopped.load(Ordering::Relaxed) {
            self.fail(self.error(ErrorKind::Cancelled, "the read was cancelled; the device memory holds parts of it"));
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// Keeps the first failure and stops the others.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error.into_device(self.device.id()));
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// The first failure, once all engines are done.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn begin_segment(&self, segment: usize) {
        let now = self.started.elapsed().as_nanos() as u64;
        self.clocks[segment].first.fetch_min(now, Ordering::Relaxed);
    }

    /// A piece of `len` bytes is on its way to the device.
    pub(crate) fn end_piece(&self, segment: usize, len: u64) {
        let now = self.started.elapsed().as_nanos() as u64;
        self.clocks[segment].last.fetch_max(now, Ordering::Relaxed);
        self.progress.fetch_add(len, Ordering::Relaxed);
    }

    /// All copies of an engine have landed: its latest segment ends now.
    pub(crate) fn end_engine(&self, engine: EngineKind) {
        let of_engine = |(number, segment): (usize, &Segment)| (segment.engine == engine).then_some(number);
        let numbers = self.plan.segments.iter().enumerate().filter_map(of_engine);
        if let Some(latest) = numbers.max_by_key(|number| self.clocks[*number].last.load(Ordering::Relaxed)) {
            self.clocks[latest].last.fetch_max(self.started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Seconds from a segment's first read to its last copy.
    pub(crate) fn segment_seconds(&self, segment: usize) -> f64 {
        let Clock { first, last } = &self.clocks[segment];
        last.load(Ordering::Relaxed).saturating_sub(first.load(Ordering::Relaxed)) as f64 * 1e-9
    }

    pub(crate) fn error(&self, kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error::new(kind, self.file.path(), detail).into_device(self.device.id())
    }

    pub(crate) fn device_error(&self, error: bifolio_device::Error) -> Error {
        Error::device(self.file.path(), error).into_device(self.device.id())
    }

    pub(crate) fn read_error(&self, error: std::io::Error, offset: u64) -> Error {
        let doing = format!("reading at offset {offset}");
        Error::system(self.file.path(), doing, error).at(offset).into_device(self.device.id())
    }

    /// The file ended before a piece was complete: `got` bytes of its read arrived.
    pub(crate) fn truncated(&self, piece: &Piece, got: u64) -> Error {
        let end = piece.read_offset + got;
        let detail = format!(
            "the file was truncated while it was being read: it ends at {end}, where {} bytes more were expected",
            piece.offset + piece.len - end.min(piece.offset + piece.len)
        );
        self.error(ErrorKind::Truncated, detail).at(end.max(piece.offset))
    }
}
