//! One request while it runs: what the engines share, and how the first failure stops them all.

use super::batch::{Numbered, Piece};
use crate::cost::Costs;
use crate::file::stripe::Layout;
use crate::file::{PlainFile, Stamp};
use crate::kind::EngineKind;
use crate::options::OnArrival;
use crate::plan::{Plan, Segment};
use crate::report::SegmentReport;
use crate::storage::Storage;
use crate::{Error, ErrorKind};
use bifolio_device::Cancel;
use bifolio_device::{Device, DeviceSlice, PinnedPool};
use bifolio_kernels::Kernels;
use bifolio_kernels::scatter::EXTENT_BYTES;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A scatter's table lies at the end of its slot, at a boundary that every device accepts.
pub(crate) const TABLE_ALIGNMENT: u64 = 4096;

/// Bytes of a slot that are kept for it, where the slot is large: 2,560 extents.
const TABLE_BYTES_MAX: u64 = 64 << 10;

/// Shorter chunks of a striped set are shared out by a kernel rather than by a copy each.
pub(crate) const SCATTERED_CHUNK_BYTES_MAX: u64 = 128 << 10;

/// A request being served.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) file: Arc<PlainFile>,
    pub(crate) device: Device,
    pub(crate) pool: Arc<PinnedPool>,
    pub(crate) storage: Arc<dyn Storage>,
    /// What the file was when the request began.
    pub(crate) stamp: Stamp,
    placement: Placement,
    /// Borrowed for as long as the request runs, which outlives the job's work (`Flight`).
    pub(crate) destination: DeviceSlice<'static>,
    /// For slots whose content goes to many places.
    pub(crate) kernels: Option<Arc<Kernels>>,
    cancel: Cancel,
    progress: Arc<AtomicU64>,
    /// Is told of bytes as they arrive.
    pub(crate) on_arrival: Option<Arc<dyn OnArrival>>,
    together: Together,
    failure: Mutex<Option<Error>>,
    started: Instant,
    entries: Mutex<Vec<Entry>>,
}

/// Where the bytes of a request land in its destination. Copies of one share its list.
#[derive(Debug, Clone)]
pub(crate) enum Placement {
    /// One after the other; the file's byte `base` is the first.
    Linear { base: u64 },
    /// Chunks of one member of a striped set, where the set's byte `base` is the first.
    Striped { layout: Layout, member: usize, base: u64 },
    /// In several places, one after the other in file order.
    Vectored(Arc<[Landing]>),
    /// Each segment at a place of its own, by its number.
    Extents(Arc<[Landing]>),
}

impl Placement {
    /// Whether all bytes go to one place, one after the other.
    pub(crate) fn is_linear(&self) -> bool {
        matches!(self, Self::Linear { .. })
    }

    /// Whether a slot's bytes go to more places than copies are good for.
    pub(crate) fn is_scattered(&self) -> bool {
        match self {
            Self::Linear { .. } | Self::Vectored(_) => false,
            Self::Striped { layout, .. } => layout.chunk_bytes() < SCATTERED_CHUNK_BYTES_MAX,
            Self::Extents(_) => true,
        }
    }
}

/// Where one extent lands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Landing {
    /// Its first byte, in the file.
    pub(crate) offset: u64,
    /// Its place; borrowed as the job's destination is.
    pub(crate) place: DeviceSlice<'static>,
}

/// What a job is made of besides its file.
pub(crate) struct Order<'a> {
    pub(crate) stamp: Stamp,
    pub(crate) placement: Placement,
    pub(crate) destination: DeviceSlice<'a>,
    pub(crate) kernels: Option<Arc<Kernels>>,
    pub(crate) cancel: Cancel,
    pub(crate) progress: Arc<AtomicU64>,
    pub(crate) on_arrival: Option<Arc<dyn OnArrival>>,
    /// The jobs of one request stop together.
    pub(crate) together: Together,
}

/// Jobs of one request: how many there are, which share its memory, and whether they are to stop.
#[derive(Debug, Clone)]
pub(crate) struct Together {
    pub(crate) jobs: usize,
    stopped: Arc<AtomicBool>,
}

impl Together {
    pub(crate) fn new(jobs: usize) -> Self {
        Self { jobs, stopped: Arc::default() }
    }
}

/// A segment, and when its first read began and its last copy was issued, in seconds of the job.
#[derive(Debug)]
struct Entry {
    segment: Segment,
    first: f64,
    last: f64,
}

impl Job {
    pub(crate) fn new(
        file: &Arc<PlainFile>,
        pool: &Arc<PinnedPool>,
        storage: &Arc<dyn Storage>,
        device: &Device,
        order: Order<'_>,
    ) -> Self {
        let Order { stamp, placement, destination, kernels, cancel, progress, on_arrival, together } = order;
        if let Some(on_arrival) = &on_arrival {
            on_arrival.begin();
        }
        Self {
            file: Arc::clone(file),
            device: device.clone(),
            pool: Arc::clone(pool),
            storage: Arc::clone(storage),
            stamp,
            entries: Mutex::default(),
            placement,
            kernels,
            // SAFETY: whoever made the job has borrowed the memory and returns, or unwinds, only when no
            // engine of this job is at work any more (`Flight`).
            destination: unsafe { destination.lasting() },
            cancel,
            progress,
            on_arrival,
            together,
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

    /// How many jobs share the request's memory and threads.
    pub(crate) fn jobs(&self) -> usize {
        self.together.jobs
    }

    /// Where bytes of a segment land: a place for the first of them, and as many as follow there.
    pub(crate) fn place(&self, segment: usize, offset: u64, len: u64) -> crate::Result<DeviceSlice<'_>> {
        let place = match &self.placement {
            Placement::Linear { base } => self.destination.part(offset - base, len),
            Placement::Striped { layout, member, base } => {
                let run = len.min(layout.run_at(offset));
                self.destination.part(layout.offset_of(*member, offset).wrapping_sub(*base), run)
            }
            Placement::Vectored(landings) => {
                let at = landings.partition_point(|landing| landing.offset <= offset).saturating_sub(1);
                let Landing { offset: first, place } = landings[at];
                place.part(offset - first, len.min((first + place.len()).saturating_sub(offset)))
            }
            Placement::Extents(landings) => {
                let Landing { offset: first, place } = landings[segment];
                place.part(offset - first, len)
            }
        };
        place.map_err(|error| self.device_error(error).at(offset))
    }

    /// Whether what lands at equal distances lies in one allocation, what is between it included.
    pub(crate) fn lands_in_rows(&self) -> bool {
        matches!(self.placement, Placement::Striped { .. })
    }

    /// How small batches begin, given how small they may: slots with extents that are shared out by a kernel
    /// have a price of their own on the device, so that many bytes begin with larger ones.
    pub(crate) fn batch_min(&self, smallest: u64, threads: u64) -> u64 {
        match &self.placement {
            Placement::Extents(landings) => {
                let bytes: u64 = landings.iter().map(|landing| landing.place.len()).sum();
                let even = (bytes / threads / 8).clamp(smallest, 4 * smallest);
                1 << even.ilog2()
            }
            _ => smallest,
        }
    }

    /// Bytes of a slot that may be read into, the rest being kept for the table of a scatter, and
    /// the most pieces that it may hold.
    pub(crate) fn slot_limits(&self) -> (u64, usize) {
        let slot = self.pool.slot_bytes() as u64;
        match self.placement {
            Placement::Striped { layout, .. } if layout.chunk_bytes() < SCATTERED_CHUNK_BYTES_MAX => {
                (slot - TABLE_BYTES_MAX.min(slot / 4), usize::MAX)
            }
            Placement::Linear { .. } | Placement::Striped { .. } | Placement::Vectored(_) => (slot, usize::MAX),
            Placement::Extents(_) => {
                let table = TABLE_BYTES_MAX.min(slot / 4);
                (slot - table, ((table - TABLE_ALIGNMENT) / EXTENT_BYTES) as usize)
            }
        }
    }

    /// Whether engines should stop handing out work: a failure, or the caller's wish.
    pub(crate) fn is_stopped(&self) -> bool {
        if self.cancel.is_cancelled() && !self.together.stopped.load(Ordering::Relaxed) {
            self.fail(self.error(ErrorKind::Cancelled, "cancelled; parts of the request are done"));
        }
        self.together.stopped.load(Ordering::Relaxed)
    }

    /// Whether this job or one that stops with it has failed.
    pub(crate) fn was_stopped(&self) -> bool {
        self.together.stopped.load(Ordering::Relaxed)
    }

    /// Keeps the first failure and stops the others.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error.into_device(self.device.id()));
        self.together.stopped.store(true, Ordering::Relaxed);
    }

    /// The first failure, once all engines are done.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reading for a segment begins, or goes on.
    pub(crate) fn begin_segment(&self, segment: usize) {
        if self.is_tracked() {
            let now = self.started.elapsed().as_secs_f64();
            let entry = &mut self.lock_entries()[segment];
            entry.first = entry.first.min(now);
        }
    }

    /// A piece of `len` bytes is on its way to the device.
    pub(crate) fn end_piece(&self, segment: usize, len: u64) {
        if self.is_tracked() {
            let now = self.started.elapsed().as_secs_f64();
            self.lock_entries()[segment].last = now;
        }
        self.progress.fetch_add(len, Ordering::Relaxed);
    }

    /// Extents of a batch are many and short: their times by themselves would say little and cost
    /// much.
    fn is_tracked(&self) -> bool {
        !matches!(self.placement, Placement::Extents(_))
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

    /// The segments as they ran, and the seconds that the model predicts for all of them. Neighbours of one engine,
    /// which only the planner's chunks had separated, are one.
    pub(crate) fn segments(&self, costs: &Costs) -> (Vec<SegmentReport>, f64) {
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
        let report = |(segment, first, last): &(Segment, f64, f64)| SegmentReport {
            engine: segment.engine,
            offset: segment.offset,
            length: segment.length,
            predicted_s: segment.predicted_s,
            actual_s: (last - first).max(0.0),
            member: None,
        };
        let reports = merged.iter().map(report).collect();
        let segments = merged.into_iter().map(|(segment, ..)| segment).collect();
        (reports, Plan::merged(segments, "", costs).predicted_s)
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
        Error::system(self.file.path(), "read", error).at(offset).into_device(self.device.id())
    }

    pub(crate) fn write_error(&self, error: std::io::Error, offset: u64) -> Error {
        Error::writing(self.file.path(), error).at(offset).into_device(self.device.id())
    }

    /// The file ended before a piece was complete: `got` bytes of its read arrived.
    pub(crate) fn truncated(&self, piece: &Piece, got: u64) -> Error {
        let end = piece.read_offset + got;
        let detail = format!(
            "the file was truncated during the read: it ends at {end}, {} bytes short",
            piece.offset + piece.len - end.min(piece.offset + piece.len)
        );
        self.error(ErrorKind::Truncated, detail).at(end.max(piece.offset))
    }
}
