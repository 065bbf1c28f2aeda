//! Requests that run while the caller goes on, and reads that are ordered on a caller's stream
//! before their bytes have been read.
//!
//! Two sets of threads, shared by all routers of the process. *Requests* carry out whole requests,
//! in the order in which they were submitted. *Fills* only move bytes from files into slots and
//! open the gates that streams wait at. A fill never waits for a slot, a stream or a device, so a
//! gate is always opened, and slots behind gates always come back. For the same reason a fill owns no
//! device memory: freeing that may wait for the device.

use super::Router;
use super::request::{ReadRequest, WriteRequest, clamp};
use super::scattered::BatchRequest;
use super::write::ordered_range;
use crate::cost::Costs;
use crate::engine::fill::{self, BOUNDARY_BYTES};
use crate::file::{Mode, OpenFile, PlainFile, Ticket};
use crate::options::{After, ReadExtent, ReadOptions, WriteOptions};
use crate::pending::{Pending, Promise, promise};
use crate::report::{BatchReport, ReadReport, WriteReport};
use crate::storage::Storage;
use crate::workers::Workers;
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Buffer, Cancel, Event, Gate, Stream};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// Requests that run at a time; more wait their turn.
const REQUESTS_MAX: usize = 16;

/// Fills at a time.
const FILLS_MAX: usize = 8;

static REQUESTS: LazyLock<Workers> = LazyLock::new(|| Workers::start(REQUESTS_MAX));
static FILLS: LazyLock<Workers> = LazyLock::new(|| Workers::start(FILLS_MAX));

impl Router {
    /// [`Router::read`], carried out while the caller goes on. A router shared by `Arc` stays until
    /// its requests are over.
    pub fn submit_read(
        self: &Arc<Self>,
        file: &OpenFile,
        offset: u64,
        length: Option<u64>,
        destination: &Buffer,
        options: &ReadOptions,
    ) -> Pending<ReadReport> {
        let after = match self.remembered(file.path(), &options.after, destination.slice()) {
            Ok(after) => after,
            Err(error) => return refused(file, &options.cancel, error.into_device(self.device.id())),
        };
        let (options, destination) = (ReadOptions { after: after.clone(), ..options.clone() }, destination.clone());
        let _line = file.line_up();
        let turn = file.ticket(Mode::Read, offset, length);
        self.submit(file, &options.cancel.clone(), after, move |router, file| {
            let (destination, turn, started) = (destination.slice(), turn.as_ref(), Instant::now());
            let request = ReadRequest { file, offset, length, destination, options: &options, turn, started };
            router.serve(&request).map_err(|error| error.into_device(router.device.id()))
        })
    }

    /// [`Router::read_batch`], carried out while the caller goes on.
    pub fn submit_batch(
        self: &Arc<Self>,
        file: &OpenFile,
        extents: Vec<ReadExtent>,
        destination: &Buffer,
        options: &ReadOptions,
    ) -> Pending<BatchReport> {
        let after = match self.remembered(file.path(), &options.after, destination.slice()) {
            Ok(after) => after,
            Err(error) => return refused(file, &options.cancel, error.into_device(self.device.id())),
        };
        let (options, destination) = (ReadOptions { after: after.clone(), ..options.clone() }, destination.clone());
        let _line = file.line_up();
        let turn = file.ticket(Mode::Read, 0, None);
        self.submit(file, &options.cancel.clone(), after, move |router, file| {
            let (extents, destination, turn) = (&extents[..], destination.slice(), turn.as_ref());
            let request = BatchRequest { file, extents, destination, options: &options, turn };
            router.serve_batch(&request).map_err(|error| error.into_device(router.device.id()))
        })
    }

    /// [`Router::write`], carried out while the caller goes on. Requests submitted later for bytes of
    /// the same range, through the same handle, come after it.
    pub fn submit_write(
        self: &Arc<Self>,
        file: &OpenFile,
        offset: u64,
        source: &Buffer,
        options: &WriteOptions,
    ) -> Pending<WriteReport> {
        let after = match self.remembered(file.path(), &options.after, source.slice()) {
            Ok(after) => after,
            Err(error) => return refused(file, &options.cancel, error.from_device(self.device.id())),
        };
        let (options, source) = (WriteOptions { after: after.clone(), ..options.clone() }, source.clone());
        let _line = file.line_up();
        let turn = file.ticket_of(Mode::Write, ordered_range(file, offset, source.len(), options.engine));
        self.submit(file, &options.cancel.clone(), after, move |router, file| {
            let (source, turn, started) = (source.slice(), turn.as_ref(), Instant::now());
            let request = WriteRequest { file, offset, source, options: &options, turn, started };
            router.serve_write(&request).map_err(|error| error.from_device(router.device.id()))
        })
    }

    fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        file: &OpenFile,
        cancel: &Cancel,
        after: After,
        request: impl FnOnce(&Self, &OpenFile) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (promise, pending) = promise(file.path(), cancel);
        if self.birth.was_elsewhere() {
            promise.keep(Err(Error::forked(file.path()).into_device(self.device.id())));
            return pending;
        }
        let (router, file, cancel) = (Arc::clone(self), file.clone(), cancel.clone());
        REQUESTS.run_alone(move || {
            let reached = match &after {
                After::Event(work) => {
                    // For as long as a program's kernel runs: other requests do not wait behind it.
                    let _others = REQUESTS.stand_in();
                    router.wait_for(file.path(), work, &cancel)
                }
                After::DefaultStreams | After::Nothing => Ok(()),
            };
            let reached = reached.map_err(|error| error.into_device(router.device.id()));
            promise.keep(reached.and_then(|()| request(&router, &file)));
        });
        pending
    }

    /// Reads `length` bytes at `offset`, less beyond the end of the file, to the start of
    /// `destination`, in the order of `stream`: the bytes land after what is enqueued on it already
    /// and before what is enqueued later, although they have not been read yet when this returns.
    ///
    /// A read that is longer than the pool's free memory waits here for the stream to make progress.
    ///
    /// # Errors
    /// `BadRange`, `BadDestination`, `Device`, `NoEngine` for a stream of another device, before
    /// anything is enqueued or read; everything later is reported by the handle. After an error the
    /// destination holds anything, and the stream goes on.
    pub fn submit_read_on(
        &self,
        stream: &Stream,
        file: &OpenFile,
        offset: u64,
        length: Option<u64>,
        destination: &Buffer,
        options: &ReadOptions,
    ) -> Result<PendingOnStream> {
        self.begin(file, &options.cancel)
            .and_then(|()| self.enqueue_gated(stream, file, offset, length, destination, options))
            .map_err(|error| error.into_device(self.device.id()))
    }

    fn enqueue_gated(
        &self,
        stream: &Stream,
        file: &OpenFile,
        offset: u64,
        length: Option<u64>,
        destination: &Buffer,
        options: &ReadOptions,
    ) -> Result<PendingOnStream> {
        if stream.device().id() != self.device.id() {
            let detail = format!("the stream belongs to {}, not to this router's device", stream.device().id());
            return Err(Error::new(ErrorKind::NoEngine, file.path(), detail));
        }
        // Here and not in a fill: a write that comes first may itself need a slot.
        let turn = file.ticket(Mode::Read, offset, length);
        turn.as_ref().inspect(|turn| turn.wait());
        let range = clamp(file.path(), file.size()?, offset, length, destination.len())?;
        let device_error = |error| Error::device(file.path(), error).at(range.start);
        let step = self.pool.slot_bytes() as u64 - 2 * BOUNDARY_BYTES;
        let (promise, host) = promise(file.path(), &options.cancel);
        let parts = parts_of(file, &range, step);
        let request = Arc::new(Gated {
            router: Fills { storage: Arc::clone(&self.storage), costs: self.costs() },
            options: options.clone(),
            bytes: range.end - range.start,
            left: AtomicUsize::new(parts.len()),
            outcome: Mutex::new((Some(promise), None)),
            _turn: turn,
        });
        if parts.is_empty() {
            request.finish();
        }
        for part in parts {
            if let Err(error) = self.enqueue_part(stream, part, destination, &request) {
                // Parts that are enqueued already are filled and land; the others never will.
                let _ = stream.synchronize();
                return Err(device_error(error));
            }
        }
        let landed = stream.record().map_err(|error| {
            let _ = stream.synchronize();
            device_error(error)
        })?;
        let landing = Some(Landing { event: landed, destination: destination.clone(), file: file.clone() });
        Ok(PendingOnStream { host: Some(host), landing, path: file.path().into() })
    }

    /// A gate, the copy behind it, and a fill that opens it.
    fn enqueue_part(
        &self,
        stream: &Stream,
        part: Piece,
        destination: &Buffer,
        request: &Arc<Gated>,
    ) -> bifolio_device::Result<()> {
        let place = destination.slice().part(part.place, part.range.end - part.range.start)?;
        let mut slot = self.pool.acquire()?;
        let memory = Memory(slot.buffer().as_mut_ptr(), self.pool.slot_bytes());
        let gate = stream.gate()?;
        // SAFETY: the bytes lie inside the slot, which is retired with an event behind the copy; the
        // handle owns a share of the destination until the copy has landed.
        let copied = unsafe { stream.copy_to_device(place, slot.buffer().as_ptr().add(fill::first_of(&part.range))) };
        match copied.and_then(|()| stream.record()) {
            Ok(landed) => slot.retire(landed),
            Err(error) => {
                drop(gate);
                let _ = stream.synchronize();
                return Err(error);
            }
        }
        let request = Arc::clone(request);
        FILLS.run_alone(move || {
            let memory: Memory = memory;
            // SAFETY: nobody else touches the slot before the copy behind the gate is done.
            request.fill(part, unsafe { memory.bytes() }, gate);
        });
        Ok(())
    }
}

/// A request that is over before it began.
fn refused<T>(file: &OpenFile, cancel: &Cancel, error: Error) -> Pending<T> {
    let (promise, pending) = promise(file.path(), cancel);
    promise.keep(Err(error));
    pending
}

/// A piece of a read that fits into a slot: of which plain file, and where it goes.
#[derive(Debug)]
struct Piece {
    file: Arc<PlainFile>,
    range: Range<u64>,
    place: u64,
}

/// The pieces of a range, of at most `step` bytes.
fn parts_of(file: &OpenFile, range: &Range<u64>, step: u64) -> Vec<Piece> {
    let (mut parts, mut at) = (vec![], range.start);
    while at < range.end {
        let (member, start, run) = file.locate(at);
        let length = run.min(step).min(range.end - at);
        parts.push(Piece { file: Arc::clone(member), range: start..start + length, place: at - range.start });
        at += length;
    }
    parts
}

/// A read that is ordered on a stream.
///
/// The request's share of the destination is given up when the bytes have landed, also where the
/// handle is dropped before.
#[derive(Debug)]
#[must_use = "a request under way reports its failure here and nowhere else"]
pub struct PendingOnStream {
    /// There until it is taken.
    host: Option<Pending<u64>>,
    landing: Option<Landing>,
    path: Box<Path>,
}

/// The last copy of a read on a stream, the memory that it writes to, and the file, whose registrations
/// end with it.
#[derive(Debug)]
struct Landing {
    event: Event,
    destination: Buffer,
    file: OpenFile,
}

/// Waits for landings that nobody else waits for, one after the other: neither their owners, who have
/// gone on, nor fills may wait for a device.
static LANDINGS: LazyLock<Workers> = LazyLock::new(|| Workers::start(1));

impl PendingOnStream {
    /// Whether the bytes are in place, or will never be.
    pub fn is_done(&self) -> bool {
        let landed = self.landing.as_ref().is_none_or(|landing| landing.event.query().unwrap_or(true));
        self.host.as_ref().is_none_or(Pending::is_done) && landed
    }

    /// Blocks until the bytes are in place: how many there are.
    pub fn wait(mut self) -> Result<u64> {
        let read = self.host.take().expect("the host's part is there until the handle is consumed").wait();
        let landed = self.landing.as_ref().map_or(Ok(()), |landing| landing.event.wait());
        self.landing = None;
        read.and_then(|bytes| landed.map(|()| bytes).map_err(|error| Error::device(&self.path, error)))
    }

    /// Asks the request to end early; what has not been read then lands as it is.
    pub fn cancel(&self) {
        if let Some(host) = &self.host {
            host.cancel();
        }
    }

    /// The part that the host does, to be awaited: how many bytes there will be once the stream has
    /// done its part.
    pub fn into_host(mut self) -> Pending<u64> {
        self.host.take().expect("the host's part is there until the handle is consumed")
    }
}

impl Drop for PendingOnStream {
    fn drop(&mut self) {
        let Some(landing) = self.landing.take() else { return };
        if !landing.event.query().unwrap_or(true) {
            LANDINGS.run_alone(move || {
                let _ = landing.event.wait();
                drop((landing.destination, landing.file));
            });
        }
    }
}

/// What fills need of a router.
#[derive(Debug)]
struct Fills {
    storage: Arc<dyn Storage>,
    costs: Costs,
}

/// A read on a stream, shared by its fills.
#[derive(Debug)]
struct Gated {
    router: Fills,
    options: ReadOptions,
    bytes: u64,
    /// Parts that are not filled.
    left: AtomicUsize,
    /// What the last of them keeps, and the first failure.
    outcome: Mutex<(Option<Promise<u64>>, Option<Error>)>,
    _turn: Option<Ticket>,
}

impl Gated {
    /// Fills a part and opens its gate, whatever happens.
    fn fill(&self, part: Piece, memory: &mut [u8], gate: Gate) {
        let Piece { file, range, .. } = part;
        let length = range.end - range.start;
        let filled = if self.options.cancel.is_cancelled() {
            let detail = "cancelled; the device memory holds parts of what was to be read";
            Err(Error::new(ErrorKind::Cancelled, file.path(), detail))
        } else {
            let begin = fill::begin(file.part_cached(), length, &self.router.costs);
            fill::fill(&file, &*self.router.storage, &self.router.costs, begin, range, memory)
        };
        match filled {
            Ok(filled) => {
                file.note_cached(filled.residency.cached_bytes as f64 / length as f64);
                self.options.progress.fetch_add(length, Ordering::Relaxed);
            }
            Err(error) => _ = self.lock().1.get_or_insert(error),
        }
        // The handle's share outlives the gate; the last one may end registrations with the device.
        drop(file);
        gate.open();
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish();
        }
    }

    fn finish(&self) {
        let (promise, failure) = std::mem::take(&mut *self.lock());
        if let Some(promise) = promise {
            promise.keep(failure.map_or(Ok(self.bytes), Err));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Option<Promise<u64>>, Option<Error>)> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a slot that is being copied from as soon as its gate opens.
struct Memory(*mut u8, usize);

// SAFETY: an address; who may touch it when is the contract of `bytes`.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    /// The slot is in its pool's hands with an event that is not done, and nobody else uses it.
    unsafe fn bytes<'a>(self) -> &'a mut [u8] {
        // SAFETY: the caller's promise; slots stay in place for the life of their pool, which the
        // event of the slot keeps alive on its stream.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}
