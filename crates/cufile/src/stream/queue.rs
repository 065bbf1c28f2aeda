//! Lanes: what a stream needs so that requests happen in its order, with parameters that are known late.
//!
//! ```text
//!   stream   ... | reached | gate | slot -> staging | scatter | ... | gate | slot -> staging | scatter | ...
//!   thread         waits for "reached", reads the parameters
//!   fills                  file -> slot, table; open      ...    the last: result; open              a read
//!
//!   stream   ... | reached | gate | table -> staging | gather | staging -> slot | done | gate | ...   a write
//!   thread         waits for "reached", table; open             waits for "done"
//!   fills                                                                  slot -> file ... result; open
//! ```
//!
//! How many bytes go where is known only when the stream is there, and its commands are enqueued long
//! before. So a slot crosses the link as it is, with a table of extents, and the `scatter` kernel does what
//! the table says; for writes it gathers, with the roles of its buffers exchanged. Tables are empty until
//! the parameters are known, and stay so after a failure. The last gate of a read opens when all of its chunks
//! are read and the result is stored; a write has a gate of its own for that.
//!
//! Invariants: a lane's thread waits for points of its own stream only, each before every gate that is
//! closed then, so whatever streams share a queue of the driver, the gate that is first in it is opened.
//! Fills never wait for a device. What opens a gate is on its way before anything is enqueued behind the gate, as
//! a driver may wait for each launch (`CUDA_LAUNCH_BLOCKING`). A gate is opened whatever happens. Staging
//! memory is one buffer for each stream, which its commands use one after the other.
//!
//! A request waits while it is being submitted only where its stream has as many closed gates as drivers take
//! ([`traffic`]), never for another stream.

mod request;
mod ring;
mod traffic;

pub(crate) use request::{Late, Pointers};

use crate::abi::CUfileOpError::{CU_FILE_ASYNC_NOT_SUPPORTED, CU_FILE_INTERNAL_ERROR};
use crate::buffer::Memory;
use crate::driver::Active;
use crate::stats::{self, Flow};
use crate::status::{Failure, Outcome};
use crate::threads::FILLS;
use crate::transfer::{self, Direction};
use bifolio_device::pointer::locate_stream;
use bifolio_device::{Allocation, BackendKind, DeviceChoice, DeviceId, DeviceSlice, Event, Stream, without_signals};
use bifolio_io::{Cancel, Router, process};
use bifolio_kernels::Kernels;
use bifolio_kernels::scatter::{EXTENT_BYTES, Scatter};
use request::{Resolved, Running};
use ring::{InUse, Ring};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use traffic::{Closed, Traffic};

/// Data of a slot.
const CHUNK_BYTES: usize = 4 << 20;
/// One extent of the table: short enough that a long chunk keeps the whole device busy.
const PIECE_BYTES: usize = 32 << 10;
/// The table lies before the data, which so begin at a page.
const TABLE_BYTES: usize = 4096;
/// Lanes at most, unless more are in use: programs may make streams without end and register none.
const LANES_MAX: usize = 16;
/// `CU_STREAM_PER_THREAD`: one handle for a stream of each thread.
const STREAM_PER_THREAD: usize = 2;

const _: () = assert!(CHUNK_BYTES.div_ceil(PIECE_BYTES) * EXTENT_BYTES as usize <= TABLE_BYTES);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the lanes of a device share.
#[derive(Debug)]
struct Supplies {
    /// None where `scatter` does not run on the device: its host path would wait for closed gates.
    kernels: Option<Kernels>,
    /// Slots of all lanes.
    slots: AtomicUsize,
    router: Arc<Router>,
}

impl Drop for Supplies {
    fn drop(&mut self) {
        if !self.router.device().is_alive() {
            // The program has reset the device, and the module went with it.
            std::mem::forget(self.kernels.take());
        }
    }
}

/// What a lane needs to move bytes of a device.
#[derive(Debug)]
struct Staging {
    memory: Allocation,
    ring: Ring,
    supplies: Arc<Supplies>,
}

/// One lane.
#[derive(Debug)]
struct Lane {
    // First, as work on it uses the staging memory.
    stream: Stream,
    router: Arc<Router>,
    staging: Option<Staging>,
    traffic: Arc<Traffic>,
    thread: Option<(Sender<Step>, JoinHandle<()>)>,
}

/// What a lane's thread does, one after the other.
type Step = Box<dyn FnOnce() + Send>;

/// A part of a request that fits into a slot.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    number: usize,
    start: usize,
    len: usize,
}

/// The chunks of a request of at most so many bytes.
fn chunks(most: usize) -> impl DoubleEndedIterator<Item = Chunk> + ExactSizeIterator {
    let chunk = move |number| {
        let start = number * CHUNK_BYTES;
        Chunk { number, start, len: CHUNK_BYTES.min(most - start) }
    };
    (0..most.div_ceil(CHUNK_BYTES)).map(chunk)
}

/// A stream: its device, the address of the router of its context, its handle, and the thread where that is a
/// part of it. Whoever has such a key keeps the router.
type Key = (DeviceId, usize, u64, Option<ThreadId>);

type Lanes = HashMap<Key, Arc<Mutex<Lane>>>;

/// By the address of the router, which they keep.
type AllSupplies = HashMap<usize, Arc<Supplies>>;

static LANES: LazyLock<Mutex<Lanes>> = LazyLock::new(Mutex::default);
static SUPPLIES: LazyLock<Mutex<AllSupplies>> = LazyLock::new(Mutex::default);

/// The device of a request's stream: that of its memory, else that of the stream, else the embedded one, for
/// programs without a driver.
fn home_of(memory: &Memory, stream: usize) -> Outcome<(Key, Arc<Router>)> {
    let located = memory.located.or_else(|| locate_stream(stream as u64));
    let thread = (stream == STREAM_PER_THREAD).then(|| std::thread::current().id());
    let router = match located {
        Some(located) => process::router_of(&located)?,
        None => process::router(DeviceChoice::Exactly(DeviceId::HOST))?,
    };
    Ok(((router.device().id(), Arc::as_ptr(&router).addr(), stream as u64, thread), router))
}

/// Enqueues a request on a stream.
pub(crate) fn enqueue(late: Late, stream: usize) -> Outcome<()> {
    let (key, router) = home_of(&late.memory, stream)?;
    let lane = lane_of(key, router)?;
    let mut lane = lock(&lane);
    if lane.stream.is_capturing()? {
        let text = "the stream is being captured into a graph, which cannot wait for a file: submit the request \
                    outside of the capture";
        return Err(Failure::new(CU_FILE_ASYNC_NOT_SUPPORTED, text));
    }
    if late.memory.located.is_none() {
        return lane.enqueue_on_host(late);
    }
    lane.stage(chunks(late.most).len())?;
    if lane.staging.as_ref().is_some_and(|staging| staging.supplies.kernels.is_none()) {
        return lane.wait_and_run(&late);
    }
    lane.enqueue_on_device(late)
}

fn lane_of(key: Key, router: Arc<Router>) -> Outcome<Arc<Mutex<Lane>>> {
    let mut lanes = lock(&LANES);
    if let Some(lane) = lanes.get(&key) {
        return Ok(Arc::clone(lane));
    }
    let mut given_up = vec![];
    if lanes.len() >= LANES_MAX {
        let idle = |lane: &Arc<Mutex<Lane>>| Arc::strong_count(lane) == 1 && lock(lane).traffic.is_idle();
        given_up = lanes.extract_if(|_, lane| idle(lane)).collect();
    }
    let lane = Arc::new(Mutex::new(Lane::open(key, router)?));
    lanes.insert(key, Arc::clone(&lane));
    drop(lanes);
    // Freeing their memory may wait for the device, and others are waiting for the list.
    drop(given_up);
    Ok(lane)
}

/// Gives up the lanes of a stream, once their requests are over.
pub(crate) fn forget(stream: usize) {
    let given_up: Vec<_> = lock(&LANES).extract_if(|key, _| key.2 == stream as u64).collect();
    drop(given_up);
}

/// Gives up all lanes, on which nothing is under way, and what they shared.
pub(crate) fn forget_all() {
    let given_up = std::mem::take(&mut *lock(&LANES));
    drop(given_up);
    let unused: Vec<_> = lock(&SUPPLIES).extract_if(|_, supplies| Arc::strong_count(supplies) == 1).collect();
    drop(unused);
}

impl Lane {
    fn open((device, _, stream, _): Key, router: Arc<Router>) -> Outcome<Self> {
        let stream = match device.backend {
            // Programs without a driver have no streams; their handles are names of ours.
            BackendKind::Host => router.device().create_stream()?,
            // SAFETY: the program keeps its stream alive while it enqueues on it.
            _ => unsafe { router.device().adopt_stream(stream) }?,
        };
        let (sender, steps) = channel::<Step>();
        let work = move || steps.into_iter().for_each(|step| _ = catch_unwind(AssertUnwindSafe(step)));
        let thread = std::thread::Builder::new().name("bifolio-cufile-lane".to_owned());
        let thread = without_signals(|| thread.spawn(work)).map_err(|error| {
            Failure::new(CU_FILE_ASYNC_NOT_SUPPORTED, format!("no thread for requests on a stream: {error}"))
        })?;
        Ok(Self { stream, router, staging: None, traffic: Arc::default(), thread: Some((sender, thread)) })
    }

    /// Allocates what moving so many chunks of a device needs. Allocating, and loading kernels, waits for
    /// closed gates; no thread that opens one does it.
    fn stage(&mut self, chunks: usize) -> Outcome<()> {
        let device = self.router.device();
        let staging = match self.staging.take() {
            Some(staging) => staging,
            None => Staging {
                memory: device.alloc((TABLE_BYTES + CHUNK_BYTES) as u64)?,
                ring: Ring::default(),
                supplies: supplies_of(&self.router),
            },
        };
        let staging = self.staging.insert(staging);
        staging.ring.grow(device, chunks, &staging.supplies.slots)
    }

    fn step(&self, step: impl FnOnce() + Send + 'static) {
        if let Some((sender, _)) = &self.thread {
            // The thread goes on until the sender is gone.
            let _ = sender.send(Box::new(step));
        }
    }

    /// Closes a gate of the stream, once there is room for it.
    fn gate(&self) -> Outcome<Closed> {
        let room = self.traffic.room();
        Ok(room.by(self.stream.gate()?))
    }

    /// Begins a request, whose parameters are read when the stream is here.
    fn begin(&self, late: Late) -> Outcome<Arc<Running>> {
        let running = Running::new(late, &self.router, self.traffic.begin());
        let reached =
            self.stream.record().map_err(Failure::from).inspect_err(|failure| running.fail(failure.clone()))?;
        let share = Arc::clone(&running);
        self.step(move || {
            // Work before it that failed is the program's; the request comes after it all the same.
            let _ = reached.wait();
            share.resolve();
        });
        Ok(running)
    }

    /// Has the stream wait here for the end of the request.
    fn end(&self, running: Arc<Running>) -> Outcome<()> {
        let gate = self.gate().map(|gate| running.ends_at(gate));
        self.step(move || drop(running));
        gate
    }

    fn enqueue_on_host(&self, late: Late) -> Outcome<()> {
        let running = self.begin(late)?;
        let share = Arc::clone(&running);
        self.step(move || FILLS.run(move || share.on_host()));
        self.end(running)
    }

    fn enqueue_on_device(&mut self, late: Late) -> Outcome<()> {
        let (direction, mut chunks) = (late.direction, chunks(late.most));
        // A read that has chunks ends with its last one.
        let last = if direction == Direction::Read { chunks.next_back() } else { None };
        let running = self.begin(late)?;
        for chunk in chunks {
            let enqueued = match direction {
                Direction::Read => self.enqueue_read(Arc::clone(&running), chunk, false),
                Direction::Write => self.enqueue_write(&running, chunk),
            };
            if let Err(failure) = enqueued {
                // What is enqueued already comes to its end, and so does the request.
                running.fail(failure.clone());
                self.end(running)?;
                return Err(failure);
            }
        }
        let Some(chunk) = last else { return self.end(running) };
        let share = Arc::downgrade(&running);
        self.enqueue_read(running, chunk, true).inspect_err(|failure| {
            // It may be over by now; then only the return says so.
            share.upgrade().inspect(|running| running.fail(failure.clone()));
        })
    }

    /// The staging memory: the table of a chunk, its data, and the program's memory beyond the base.
    fn areas(&self, memory: &Memory, len: usize) -> Outcome<Areas<'_>> {
        let staging = self.staging.as_ref().ok_or_else(missing)?;
        let kernels = staging.supplies.kernels.as_ref().ok_or_else(missing)?;
        let (base, rest) = memory.rest().ok_or_else(missing)?;
        let table_bytes = len.div_ceil(PIECE_BYTES) as u64 * EXTENT_BYTES;
        let all = staging.memory.slice();
        Ok(Areas {
            stream: &self.stream,
            kernels,
            all: all.part(0, (TABLE_BYTES + len) as u64)?,
            table: all.part(0, table_bytes)?,
            data: all.part(TABLE_BYTES as u64, len as u64)?,
            // SAFETY: the program keeps its memory until the stream is past the request.
            program: unsafe { DeviceSlice::from_raw_ordered(base, rest) },
        })
    }

    fn ring(&mut self) -> Outcome<&mut Ring> {
        self.staging.as_mut().map(|staging| &mut staging.ring).ok_or_else(missing)
    }

    /// Enqueues a chunk of a read. The share of the request is given to its fill: a driver that waits for each
    /// launch would wait for the end of the request, which the last gate belongs to.
    fn enqueue_read(&mut self, running: Arc<Running>, chunk: Chunk, is_last: bool) -> Outcome<()> {
        let memory = running.late().memory;
        let mut gate = Some(self.gate().inspect_err(|failure| running.fail(failure.clone()))?);
        let (mut slot, before) = self.ring()?.take(chunk.number).ok_or_else(missing)?;
        let (address, (threads, is_filled)) = (slot.address(), channel());
        if is_last {
            gate.take().into_iter().for_each(|gate| running.ends_at(gate));
        }
        self.step(move || {
            before.into_iter().for_each(InUse::wait);
            // SAFETY: the slot is nobody else's until the copy behind the gate is done.
            unsafe { slot.bytes() }.0.fill(0);
            FILLS.run(move || {
                // SAFETY: as above.
                running.fill(chunk.start, unsafe { slot.bytes() });
                drop((threads, gate));
            });
        });
        // SAFETY: the slot is in use until an event behind the copy; staging and the program's memory stay, and
        // the table names bytes inside both, or none.
        let landed = self.areas(&memory, chunk.len).and_then(|to| unsafe { to.bring(address) });
        match landed {
            Ok(landed) => {
                self.ring()?.keep(chunk.number, InUse { threads: is_filled, stream: Some(landed) });
                Ok(())
            }
            Err(failure) => Err(self.keep_after_failure(chunk, is_filled, failure)),
        }
    }

    fn enqueue_write(&mut self, running: &Arc<Running>, chunk: Chunk) -> Outcome<()> {
        let memory = running.late().memory;
        let gate = self.gate()?;
        let (mut slot, before) = self.ring()?.take(chunk.number).ok_or_else(missing)?;
        let (address, (threads, is_written)) = (slot.address(), channel());
        let (share, (table, sent)) = (Arc::clone(running), channel());
        self.step(move || {
            before.into_iter().for_each(InUse::wait);
            // SAFETY: the slot is nobody else's, and the copies of it are behind the gate.
            let bytes = unsafe { slot.bytes() }.0;
            bytes.fill(0);
            share.gather(chunk.start, bytes);
            drop(gate);
            // The step below goes on with it.
            let _ = table.send((slot, threads));
        });
        // SAFETY: the slot is in use until the threads are done with it; the rest as for reads, with the roles
        // of staging and the program's memory exchanged.
        let fetched = self.areas(&memory, chunk.len).and_then(|from| unsafe { from.fetch(address) });
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(failure) => return Err(self.keep_after_failure(chunk, is_written, failure)),
        };
        self.ring()?.keep(chunk.number, InUse { threads: is_written, stream: None });
        let running = Arc::clone(running);
        self.step(move || {
            let Ok((slot, threads)) = sent.recv() else { return };
            match fetched.wait() {
                Ok(()) => FILLS.run(move || {
                    running.write(chunk.start, &slot);
                    drop(threads);
                }),
                Err(error) => running.fail(error.into()),
            }
        });
        Ok(())
    }

    /// A part of a chunk's commands may be on the stream, behind a gate that opens all the same.
    fn keep_after_failure(&mut self, chunk: Chunk, threads: Receiver<()>, failure: Failure) -> Failure {
        if let Some(staging) = &mut self.staging {
            staging.ring.keep_after_failure(chunk.number, &self.stream, threads);
        }
        failure
    }

    /// Without a kernel: waits here until the stream is there.
    fn wait_and_run(&self, late: &Late) -> Outcome<()> {
        let _active = Active::begin();
        self.stream.record()?.wait()?;
        let run = |Resolved { offset, place, .. }: Resolved| {
            transfer::run(&late.file, late.direction, offset, place, &Cancel::default())
        };
        let flow = Flow::of(late.direction);
        let outcome = stats::counted_request(flow, late.most, || late.resolve().and_then(run));
        let result = outcome.as_ref().map_or_else(Failure::in_memory, |moved| *moved as isize);
        // SAFETY: the stream is here, and the program keeps the place until it is past.
        unsafe { late.pointers.done.write_volatile(result) };
        outcome.map(drop)
    }
}

impl Drop for Lane {
    /// Waits until requests are over and their commands done, as the memory of both is freed then.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            let _ = thread.join();
        }
        self.traffic.wait_for_end();
        let Some(mut staging) = self.staging.take() else { return };
        let slots = staging.ring.wait();
        staging.supplies.slots.fetch_sub(slots, Ordering::Relaxed);
        if !self.router.device().is_alive() {
            // The program has reset the device, and the memory went with it.
            std::mem::forget((staging.memory, staging.ring));
        }
    }
}

fn missing() -> Failure {
    Failure::new(CU_FILE_INTERNAL_ERROR, "a bug in Bifolio, please report it: a lane without its staging memory")
}

/// What the lanes of a router share, made for the first of them.
fn supplies_of(router: &Arc<Router>) -> Arc<Supplies> {
    let mut all = lock(&SUPPLIES);
    let is_over = |supplies: &Arc<Supplies>| Arc::strong_count(supplies) == 1 && !supplies.router.device().is_alive();
    let over: Vec<_> = all.extract_if(|_, supplies| is_over(supplies)).collect();
    let supplies = all.entry(Arc::as_ptr(router).addr()).or_insert_with(|| {
        let device = router.device();
        let kernels = Kernels::load(device, &[&Scatter]).ok();
        let on_host = device.id().backend == BackendKind::Host;
        let runs = |kernels: &Kernels| on_host || kernels.runs_on_device(&Scatter);
        let (kernels, router) = (kernels.filter(runs), Arc::clone(router));
        Arc::new(Supplies { kernels, slots: AtomicUsize::new(0), router })
    });
    let supplies = Arc::clone(supplies);
    drop(all);
    drop(over);
    supplies
}

/// Memory that the commands of one chunk use, and their stream.
struct Areas<'a> {
    stream: &'a Stream,
    kernels: &'a Kernels,
    all: DeviceSlice<'a>,
    table: DeviceSlice<'a>,
    data: DeviceSlice<'a>,
    program: DeviceSlice<'a>,
}

impl Areas<'_> {
    /// Enqueues what brings a slot to the program's memory: the event behind it.
    ///
    /// # Safety
    /// The slot, staging and the program's memory stay until then, and the table that is in the slot when its
    /// turn comes names bytes inside the latter two.
    unsafe fn bring(&self, slot: *const u8) -> Outcome<Event> {
        // SAFETY: the caller's promise.
        unsafe {
            self.stream.copy_to_device(self.all, slot)?;
            self.kernels.scatter(self.stream, self.data, self.table, self.program)?;
        }
        Ok(self.stream.record()?)
    }

    /// Enqueues what fetches the program's memory to a slot: the event behind it.
    ///
    /// # Safety
    /// As for `bring`.
    unsafe fn fetch(&self, slot: *mut u8) -> Outcome<Event> {
        // SAFETY: the caller's promise.
        unsafe {
            self.stream.copy_to_device(self.table, slot)?;
            self.kernels.scatter(self.stream, self.program, self.table, self.data)?;
            self.stream.copy_to_host(slot.wrapping_add(TABLE_BYTES), self.data)?;
        }
        Ok(self.stream.record()?)
    }
}

#[cfg(test)]
mod tests;
