//! One request while it runs: what the engines share, and how the first failure stops them all.

use crate::batch::Numbered;
use crate::batch::Piece;
use crate::cost::Costs;
use crate::file::Stamp;
use crate::plan::Segment;
use crate::storage::Storage;
use crate::{EngineKind, Error, ErrorKind, OpenFile, SegmentReport};
use bifolio_device::{Device, DeviceSlice, PinnedPool};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// What the file was when the request began.
    pub(crate) stamp: Stamp,
    /// The file offset that lands at the start of `destination`.
    base: u64,
    /// Borrowed for as long as the request runs, which outlives the job's work (`Flight`).
    destination: DeviceSlice<'static>,
    cancel: Cancel,
    progress: Arc<AtomicU64>,
    stopped: AtomicBool,
    failure: Mutex<Option<Error>>,
    started: Instant,
    entries: Mutex<Vec<Entry>>,
}

/// A segment, and when its first read began and its last copy was issued, in seconds of the job.
#[derive(Debug)]
struct Entry {
    segment: Segment,
    first: f64,
    last: f64,
}

impl Job {
    #[allow(clippy::too_many_arguments, reason = "one constructor, one caller, each argument once")]
    pub(crate) fn new(
        file: &Arc<OpenFile>,
        pool: &Arc<PinnedPool>,
        storage: &Arc<dyn Storage>,
        device: &Device,
        stamp: Stamp,
        base: u64,
        destination: DeviceSlice<'_>,
        cancel: Cancel,
        progress: Arc<AtomicU64>,
    ) -> Self {
        Self {
            file: Arc::clone(file),
            device: device.clone(),
            pool: Arc::clone(pool),
            storage: Arc::clone(storage),
            stamp,
            entries: Mutex::default(),
            base,
            // SAFETY: `Router::execute` has borrowed the memory and returns, or unwinds, only when no
            // engine of this job is at work any more (`Flight`).
            destination: unsafe { DeviceSlice::from_raw(destination.ptr(), destination.len()) },
            cancel,
            progress,
            stopped: AtomicBool::new(false),
            failure: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// Adds a planned segment, behind the others in file order; the number names it from now on.
    pub(crate) fn add(&self, segment: Segment) -> Numbered {
        let mut entries = self.lock_entries();
        entries.push(Entry { segment: segment.clone(), first: f64::INFINITY, last: 0.0 });
        (entries.len() - 1, segment)
    }

    /// Where bytes of the file land.
    pub(crate) fn place(&self, offset: u64, len: u64) -> crate::Result<DeviceSlice<'_>> {
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

    /// Reading for a segment begins, or goes on.
    pub(crate) fn begin_segment(&self, segment: usize) {
        let now = self.started.elapsed().as_secs_f64();
        let entry = &mut self.lock_entries()[segment];
        entry.first = entry.first.min(now);
    }

    /// A piece of `len` bytes is on its way to the device.
    pub(crate) fn end_piece(&self, segment: usize, len: u64) {
        let now = self.started.elapsed().as_secs_f64();
        self.lock_entries()[segment].last = now;
        self.progress.fetch_add(len, Ordering::Relaxed);
    }

    /// All copies of an engine have landed: its latest segment ends now.
    pub(crate) fn end_engine(&self, engine: EngineKind) {
        let now = self.started.elapsed().as_secs_f64();
        let mut entries = self.lock_entries();
        let of_engine = entries.iter_mut().filter(|entry| entry.segment.engine == engine);
        if let Some(latest) = of_engine.max_by(|one, two| one.last.total_cmp(&two.last)) {
            latest.last = now;
        }
    }

    /// The segments as they ran. Neighbours of one engine, which only the planner's chunks had
    /// separated, are one.
    pub(crate) fn segments(&self, costs: &Costs) -> Vec<SegmentReport> {
        let mut merged: Vec<(Segment, f64, f64)> = Vec::new();
        for Entry { segment, first, last } in &*self.lock_entries() {
            match merged.last_mut() {
                Some((before, begun, ended)) if before.engine == segment.engine => {
                    before.join(segment, costs);
                    (*begun, *ended) = (begun.min(*first), ended.max(*last));
                }
                _ => merged.push((segment.clone(), *first, *last)),
            }
        }
        let report = |(segment, first, last): (Segment, f64, f64)| SegmentReport {
            engine: segment.engine,
            offset: segment.offset,
            length: segment.length,
            predicted_s: segment.predicted_s,
            actual_s: (last - first).max(0.0),
        };
        merged.into_iter().map(report).collect()
    }

    fn lock_entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn error(&self, kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error::new(kind, self.file.path(), detail).into_device(self.device.id())
    }

    pub(crate) fn device_error(&self, error: bifolio_device::Error) -> Error {
        Error::device(self.file.path(), error).into_device(self.device.id())
    }

    pub(crate) fn read_error(&self, error: std::io::Error, offset: u64) -> Error {
        Error::system(self.file.path(), "reading it", error).at(offset).into_device(self.device.id())
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
