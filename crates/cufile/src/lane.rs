//! Lanes: what a stream needs so that requests happen in its order, with parameters that are known late.
//!
//! ```text
//!   stream   ... | reached | gate | slot -> staging | scatter | ... | gate | ...         a read
//!   thread         waits for "reached", reads the parameters
//!   fills                      file -> slot, table; open          ... result; open
//!
//!   stream   ... | reached | gate | table -> staging | gather | staging -> slot | done | gate | ...   a write
//!   thread         waits for "reached", table; open             waits for "done"
//!   fills                                                                  slot -> file ... result; open
//! ```
//!
//! How many bytes go where is known only when the stream is there, and its commands are enqueued long
//! before. So a slot crosses the link as it is, with a table of extents, and the `scatter` kernel does what
//! the table says; for writes it gathers, with the roles of its buffers exchanged. Tables are empty until
//! the parameters are known, and stay so after a failure.
//!
//! Invariants: a lane's thread waits for points of its own stream only, each before every gate that is
//! closed then, so whatever streams share a queue of the driver, the gate that is first in it is opened.
//! Fills never wait for a device. A gate is opened whatever happens. Staging memory is one buffer for each
//! stream, which its commands use one after the other.

use crate::abi::CUfileOpError::{CU_FILE_ASYNC_NOT_SUPPORTED, CU_FILE_INTERNAL_ERROR};
use crate::abi::{CU_FILE_STREAM_FIXED_BUF_OFFSET, CU_FILE_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_SIZE};
use crate::buffer::{Memory, Place};
use crate::driver::Active;
use crate::handle::Registered;
use crate::status::{Failure, Outcome, note};
use crate::threads::{ENDINGS, FILLS};
use crate::transfer::{self, Direction, offset_of};
use bifolio_device::pointer::locate_stream;
use bifolio_device::{
    Allocation, BackendKind, DeviceChoice, DeviceId, DeviceSlice, Gate, PinnedPool, Slot, Stream, without_signals,
};
use bifolio_io::{Cancel, Router, process};
use bifolio_kernels::scatter::{EXTENT_BYTES, Extent};
use bifolio_kernels::{KernelPath, Kernels};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, ThreadId};

/// Data of a slot.
const CHUNK_BYTES: usize = 4 << 20;
/// One extent of the table: short enough that a long chunk keeps the whole device busy.
const PIECE_BYTES: usize = 32 << 10;
/// The table lies before the data, which so begin at a page.
const TABLE_BYTES: usize = 4096;
/// Slots of a device; fewer than a stream may have closed gates.
const SLOTS_MAX: usize = 16;
/// Lanes at most, unless more are in use: programs may make streams without end and register none.
const LANES_MAX: usize = 16;
/// `CU_STREAM_PER_THREAD`: one handle for a stream of each thread.
const STREAM_PER_THREAD: usize = 2;

const _: () = assert!(CHUNK_BYTES.div_ceil(PIECE_BYTES) * EXTENT_BYTES as usize <= TABLE_BYTES);

/// Where the parameters of a request are, and where its result goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pointers {
    pub(crate) size: *const usize,
    pub(crate) offset: *const i64,
    pub(crate) place: *const i64,
    pub(crate) done: *mut isize,
}

// SAFETY: the program keeps what they point to until the stream is past the request.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

impl Pointers {
    pub(crate) fn are_there(&self) -> bool {
        !(self.size.is_null() || self.offset.is_null() || self.place.is_null() || self.done.is_null())
    }
}

/// Parameters that were final when the request was submitted.
#[derive(Debug, Clone, Copy, Default)]
struct Fixed {
    size: Option<usize>,
    offset: Option<i64>,
    place: Option<i64>,
}

/// A request whose parameters are known when its stream is there.
#[derive(Debug)]
pub(crate) struct Late {
    file: Arc<Registered>,
    direction: Direction,
    memory: Memory,
    pointers: Pointers,
    fixed: Fixed,
    /// Bytes at most.
    most: usize,
}

impl Late {
    /// # Safety
    /// The pointers may be read.
    pub(crate) unsafe fn new(
        file: Arc<Registered>,
        direction: Direction,
        memory: Memory,
        pointers: Pointers,
        flags: c_uint,
    ) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let (size, offset, place) = unsafe { (*pointers.size, *pointers.offset, *pointers.place) };
        let is_fixed = |flag| flags & flag != 0;
        let fixed = Fixed {
            size: is_fixed(CU_FILE_STREAM_FIXED_FILE_SIZE).then_some(size),
            offset: is_fixed(CU_FILE_STREAM_FIXED_FILE_OFFSET).then_some(offset),
            place: is_fixed(CU_FILE_STREAM_FIXED_BUF_OFFSET).then_some(place),
        };
        // What is final can be refused at once; the rest has its turn when the stream is there.
        fixed.offset.map(offset_of).transpose()?;
        memory.range(fixed.place.unwrap_or(0), size)?;
        Ok(Self { file, direction, memory, pointers, fixed, most: size })
    }

    /// The parameters, now.
    fn resolve(&self) -> Outcome<Resolved> {
        // SAFETY: the program keeps them until the stream is past the request, which waits for this.
        let (size, offset, place) = unsafe {
            (
                self.fixed.size.unwrap_or_else(|| self.pointers.size.read_volatile()),
                self.fixed.offset.unwrap_or_else(|| self.pointers.offset.read_volatile()),
                self.fixed.place.unwrap_or_else(|| self.pointers.place.read_volatile()),
            )
        };
        if size > self.most {
            let text = format!("{size} bytes are more than the {} that the request was submitted with", self.most);
            return Err(Failure::argument(text));
        }
        Ok(Resolved { offset: offset_of(offset)?, at: place as u64, place: self.memory.range(place, size)? })
    }
}

/// Known parameters.
#[derive(Debug, Clone, Copy)]
struct Resolved {
    offset: u64,
    /// Offset in memory.
    at: u64,
    place: Place,
}

// SAFETY: places are addresses.
unsafe impl Sync for Resolved {}

/// A request under way. When the last share of it is given up it is over: the result is stored, and the
/// stream goes on.
#[derive(Debug)]
struct Running {
    /// There until the end.
    late: Option<Late>,
    router: Option<Arc<Router>>,
    resolved: OnceLock<Outcome<Resolved>>,
    moved: AtomicU64,
    failure: Mutex<Option<Failure>>,
    gate: Mutex<Option<Gate>>,
    active: Option<Active>,
    on_lane: Option<OnLane>,
}

/// Counts the requests of a lane.
#[derive(Debug)]
struct OnLane(Arc<AtomicUsize>);

impl Drop for OnLane {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn late(&self) -> &Late {
        self.late.as_ref().expect("a request has its parameters until its end")
    }

    /// The stream is there.
    fn resolve(&self) {
        let _ = self.resolved.set(self.late().resolve());
    }

    /// The known parameters; none where they are wrong.
    fn known(&self) -> Option<&Resolved> {
        self.resolved.get().and_then(|resolved| resolved.as_ref().ok())
    }

    fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
    }

    fn add(&self, outcome: Outcome<u64>) {
        match outcome {
            Ok(moved) => _ = self.moved.fetch_add(moved, Ordering::AcqRel),
            Err(failure) => self.fail(failure),
        }
    }

    /// Bytes of the chunk at `start` that the request has.
    fn part(&self, start: usize) -> Option<(&Resolved, usize)> {
        let resolved = self.known()?;
        Some((resolved, resolved.place.len().saturating_sub(start).min(CHUNK_BYTES)))
    }

    /// Reads a chunk into its slot, and says in the table where it goes.
    fn fill(&self, start: usize, memory: &mut [u8]) {
        let Some((resolved, wanted)) = self.part(start).filter(|(_, wanted)| *wanted > 0) else { return };
        let Some(router) = &self.router else { return };
        let (table, data) = memory.split_at_mut(TABLE_BYTES);
        let offset = resolved.offset.saturating_add(start as u64);
        match router.read_to_host(&self.late().file.file, &mut data[..wanted], offset) {
            Ok(read) => {
                write_table(table, read, |piece| Extent {
                    src: piece,
                    dst: resolved.at + start as u64 + piece,
                    len: 0,
                });
                self.add(Ok(read as u64));
            }
            Err(error) => self.fail(error.into()),
        }
    }

    /// Says in the table where the bytes of a chunk come from.
    fn gather(&self, start: usize, table: &mut [u8]) {
        let Some((resolved, wanted)) = self.part(start) else { return };
        write_table(table, wanted, |piece| Extent { src: resolved.at + start as u64 + piece, dst: piece, len: 0 });
    }

    /// Writes a chunk out of its slot.
    fn write(&self, start: usize, slot: &mut Slot) {
        let Some((resolved, wanted)) = self.part(start).filter(|(_, wanted)| *wanted > 0) else { return };
        let data = slot.buffer().as_mut_ptr().wrapping_add(TABLE_BYTES);
        let offset = resolved.offset.saturating_add(start as u64);
        self.add(transfer::by_calls(&self.late().file, Direction::Write, offset, data, wanted));
    }

    /// Moves all of it at once, from or to memory of the CPU.
    fn on_host(&self) {
        let late = self.late();
        if let Some(Resolved { offset, place, .. }) = self.known() {
            self.add(transfer::run(&late.file, late.direction, *offset, *place, &Cancel::default()));
        }
    }

    fn result(&self) -> isize {
        let failure = match self.resolved.get() {
            Some(Err(failure)) => Some(failure.clone()),
            _ => lock(&self.failure).take(),
        };
        match failure {
            None => self.moved.load(Ordering::Acquire) as isize,
            Some(failure) => {
                note("a request on a stream", &failure);
                failure.in_memory()
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.result())).unwrap_or(-(CU_FILE_INTERNAL_ERROR as isize));
        let Some(Late { file, pointers, .. }) = self.late.take() else { return };
        // SAFETY: the program keeps the place until the stream is past the gate that is opened below.
        unsafe { pointers.done.write_volatile(result) };
        // The program may close the session as soon as the stream goes on.
        drop((self.active.take(), self.on_lane.take()));
        // The last share of a file ends registrations with the device, which may wait for other gates.
        if Arc::strong_count(&file) == 1 {
            ENDINGS.run(move || drop(file));
        } else {
            drop(file);
        }
        drop(lock(&self.gate).take());
    }
}

/// Writes `bytes` in pieces to a table; `extent` makes one, but for its length.
fn write_table(table: &mut [u8], bytes: usize, extent: impl Fn(u64) -> Extent) {
    for (number, start) in (0..bytes).step_by(PIECE_BYTES).enumerate() {
        let extent = Extent { len: PIECE_BYTES.min(bytes - start) as u64, ..extent(start as u64) };
        let place = number * EXTENT_BYTES as usize;
        table[place..place + EXTENT_BYTES as usize].copy_from_slice(&extent.to_bytes());
    }
}

/// What the lanes of a device share.
#[derive(Debug)]
struct Supplies {
    pool: Arc<PinnedPool>,
    /// None where `scatter` does not run on the device: its host path would wait for closed gates.
    kernels: Option<Kernels>,
    _router: Arc<Router>,
}

/// What a lane needs to move bytes of a device.
#[derive(Debug)]
struct Staging {
    memory: Allocation,
    supplies: Arc<Supplies>,
}

/// One lane.
#[derive(Debug)]
struct Lane {
    // First, as work on it uses the staging memory.
    stream: Stream,
    router: Arc<Router>,
    staging: Option<Staging>,
    in_use: Arc<AtomicUsize>,
    thread: Option<(Sender<Step>, JoinHandle<()>)>,
}

/// What a lane's thread does, one after the other.
type Step = Box<dyn FnOnce() + Send>;

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
    if late.memory.located.is_none() {
        return lane.enqueue_on_host(late);
    }
    lane.stage()?;
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
        let idle =
            |lane: &Arc<Mutex<Lane>>| Arc::strong_count(lane) == 1 && lock(lane).in_use.load(Ordering::Acquire) == 0;
        given_up = lanes.extract_if(|_, lane| idle(lane)).collect();
    }
    let lane = Arc::new(Mutex::new(Lane::open(key, router)?));
    lanes.insert(key, Arc::clone(&lane));
    drop(lanes);
    // Freeing their memory may wait for the device, and others are waiting for the list.
    drop(given_up);
    Ok(lane)
}

/// Gives up the lanes of a stream.
pub(crate) fn forget(stream: usize) {
    let given_up: Vec<_> = lock(&LANES).extract_if(|key, _| key.2 == stream as u64).collect();
    drop(given_up);
}

/// Gives up all lanes, on which nothing is under way.
pub(crate) fn forget_all() {
    let given_up = std::mem::take(&mut *lock(&LANES));
    drop(given_up);
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
        Ok(Self { stream, router, staging: None, in_use: Arc::default(), thread: Some((sender, thread)) })
    }

    /// Allocates what moving bytes of a device needs. Allocating, and loading kernels, waits for closed
    /// gates; no thread that opens one does it.
    fn stage(&mut self) -> Outcome<()> {
        if self.staging.is_some() {
            return Ok(());
        }
        let device = self.router.device();
        let mut all = lock(&SUPPLIES);
        let supplies = all.entry(Arc::as_ptr(&self.router).addr()).or_insert_with(|| {
            let kernels = Kernels::load(device).ok();
            let runs = |kernels: &Kernels| {
                let on_device = |status: &bifolio_kernels::KernelStatus| {
                    status.name == bifolio_kernels::scatter::KERNEL && status.path == KernelPath::Device
                };
                device.id().backend == BackendKind::Host || kernels.report().iter().any(on_device)
            };
            let pool = PinnedPool::new(device, TABLE_BYTES + CHUNK_BYTES, SLOTS_MAX);
            Arc::new(Supplies { pool, kernels: kernels.filter(runs), _router: Arc::clone(&self.router) })
        });
        let supplies = Arc::clone(supplies);
        drop(all);
        let memory = device.alloc((TABLE_BYTES + CHUNK_BYTES) as u64)?;
        self.staging = Some(Staging { memory, supplies });
        Ok(())
    }

    fn running(&self, late: Late) -> Arc<Running> {
        self.in_use.fetch_add(1, Ordering::AcqRel);
        Arc::new(Running {
            late: Some(late),
            router: Some(Arc::clone(&self.router)),
            resolved: OnceLock::new(),
            moved: AtomicU64::new(0),
            failure: Mutex::default(),
            gate: Mutex::default(),
            active: Some(Active::begin()),
            on_lane: Some(OnLane(Arc::clone(&self.in_use))),
        })
    }

    fn step(&self, step: impl FnOnce() + Send + 'static) {
        if let Some((sender, _)) = &self.thread {
            // The thread goes on until the sender is gone.
            let _ = sender.send(Box::new(step));
        }
    }

    /// Has the parameters read when the stream is here.
    fn begin(&self, running: &Arc<Running>) -> Outcome<()> {
        let reached = self.stream.record().map_err(|error| {
            let failure = Failure::from(error);
            running.fail(failure.clone());
            failure
        })?;
        let running = Arc::clone(running);
        self.step(move || {
            // Work before it that failed is the program's; the request comes after it all the same.
            let _ = reached.wait();
            running.resolve();
        });
        Ok(())
    }

    /// Has the stream wait here for the end of the request.
    fn end(&self, running: Arc<Running>) -> Outcome<()> {
        let gate = self.stream.gate().map(|gate| *lock(&running.gate) = Some(gate));
        self.step(move || drop(running));
        Ok(gate?)
    }

    fn enqueue_on_host(&self, late: Late) -> Outcome<()> {
        let running = self.running(late);
        self.begin(&running)?;
        let share = Arc::clone(&running);
        self.step(move || FILLS.run(move || share.on_host()));
        self.end(running)
    }

    fn enqueue_on_device(&self, late: Late) -> Outcome<()> {
        let (direction, most) = (late.direction, late.most);
        let running = self.running(late);
        self.begin(&running)?;
        for start in (0..most).step_by(CHUNK_BYTES) {
            let len = CHUNK_BYTES.min(most - start);
            let enqueued = match direction {
                Direction::Read => self.enqueue_read(&running, start, len),
                Direction::Write => self.enqueue_write(&running, start, len),
            };
            if let Err(failure) = enqueued {
                // What is enqueued already comes to its end, and so does the request.
                running.fail(failure.clone());
                self.end(running)?;
                return Err(failure);
            }
        }
        self.end(running)
    }

    /// The staging memory: the table of a chunk, its data, and the program's memory beyond the base.
    fn areas(&self, running: &Running, len: usize) -> Outcome<Areas<'_>> {
        let missing = || Failure::new(CU_FILE_INTERNAL_ERROR, "a lane without its staging memory");
        let staging = self.staging.as_ref().ok_or_else(missing)?;
        let kernels = staging.supplies.kernels.as_ref().ok_or_else(missing)?;
        let (base, rest) = running.late().memory.rest().ok_or_else(missing)?;
        let table_bytes = len.div_ceil(PIECE_BYTES) as u64 * EXTENT_BYTES;
        let all = staging.memory.slice();
        Ok(Areas {
            pool: &staging.supplies.pool,
            kernels,
            all: all.part(0, (TABLE_BYTES + len) as u64)?,
            table: all.part(0, table_bytes)?,
            data: all.part(TABLE_BYTES as u64, len as u64)?,
            // SAFETY: the program keeps its memory until the stream is past the request.
            program: unsafe { DeviceSlice::from_raw(base, rest) },
        })
    }

    fn enqueue_read(&self, running: &Arc<Running>, start: usize, len: usize) -> Outcome<()> {
        let areas = self.areas(running, len)?;
        let mut slot = empty_slot(areas.pool)?;
        let memory = SlotMemory(slot.buffer().as_mut_ptr(), TABLE_BYTES + len);
        let gate = self.stream.gate()?;
        // SAFETY: the slot is retired with an event behind the copy; staging and the program's memory stay,
        // and the table names bytes inside both, or none.
        let enqueued = unsafe {
            self.stream
                .copy_to_device(areas.all, slot.buffer().as_ptr())
                .and_then(|()| areas.kernels.scatter(&self.stream, areas.data, areas.table, areas.program))
        };
        match enqueued.and_then(|()| self.stream.record()) {
            Ok(landed) => slot.retire(landed),
            Err(error) => {
                drop(gate);
                let _ = self.stream.synchronize();
                return Err(error.into());
            }
        }
        let running = Arc::clone(running);
        self.step(move || {
            FILLS.run(move || {
                let memory: SlotMemory = memory;
                // SAFETY: the slot is nobody else's until the copy behind the gate is done.
                running.fill(start, unsafe { memory.bytes() });
                gate.open();
            });
        });
        Ok(())
    }

    fn enqueue_write(&self, running: &Arc<Running>, start: usize, len: usize) -> Outcome<()> {
        let areas = self.areas(running, len)?;
        let mut slot = empty_slot(areas.pool)?;
        let memory = SlotMemory(slot.buffer().as_mut_ptr(), TABLE_BYTES);
        let gate = self.stream.gate()?;
        let data = slot.buffer().as_mut_ptr().wrapping_add(TABLE_BYTES);
        // SAFETY: the slot is kept until the last copy is done; the rest as for reads, with the roles of
        // staging and the program's memory exchanged.
        let enqueued = unsafe {
            self.stream
                .copy_to_device(areas.table, slot.buffer().as_ptr())
                .and_then(|()| areas.kernels.scatter(&self.stream, areas.program, areas.table, areas.data))
                .and_then(|()| self.stream.copy_to_host(data, areas.data))
        };
        let fetched = match enqueued.and_then(|()| self.stream.record()) {
            Ok(fetched) => fetched,
            Err(error) => {
                drop(gate);
                let _ = self.stream.synchronize();
                return Err(error.into());
            }
        };
        let running = Arc::clone(running);
        self.step(move || {
            let memory: SlotMemory = memory;
            // SAFETY: the slot is nobody else's, and the copies of it are behind the gate.
            running.gather(start, unsafe { memory.bytes() });
            gate.open();
            match fetched.wait() {
                Ok(()) => FILLS.run(move || running.write(start, &mut slot)),
                Err(error) => running.fail(error.into()),
            }
        });
        Ok(())
    }

    /// Without a kernel: waits here until the stream is there.
    fn wait_and_run(&self, late: &Late) -> Outcome<()> {
        let _active = Active::begin();
        self.stream.record()?.wait()?;
        let run = |Resolved { offset, place, .. }: Resolved| {
            transfer::run(&late.file, late.direction, offset, place, &Cancel::default())
        };
        let outcome = late.resolve().and_then(run);
        let result = outcome.as_ref().map_or_else(Failure::in_memory, |moved| *moved as isize);
        // SAFETY: the stream is here, and the program keeps the place until it is past.
        unsafe { late.pointers.done.write_volatile(result) };
        outcome.map(drop)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // Its steps use memory that is freed next.
            let _ = thread.join();
        }
        if !self.router.device().is_alive() {
            // The program has reset the device, and the memory went with it.
            std::mem::forget(self.staging.take());
        }
    }
}

/// Memory that the commands of one chunk use.
struct Areas<'a> {
    pool: &'a Arc<PinnedPool>,
    kernels: &'a Kernels,
    all: DeviceSlice<'a>,
    table: DeviceSlice<'a>,
    data: DeviceSlice<'a>,
    program: DeviceSlice<'a>,
}

/// A slot whose table moves nothing.
fn empty_slot(pool: &Arc<PinnedPool>) -> Outcome<Slot> {
    let mut slot = pool.acquire()?;
    slot.buffer().bytes_mut()[..TABLE_BYTES].fill(0);
    Ok(slot)
}

/// Memory of a slot that commands behind a gate use.
struct SlotMemory(*mut u8, usize);

// SAFETY: an address; who may touch it when is the contract of `bytes`.
unsafe impl Send for SlotMemory {}

impl SlotMemory {
    /// # Safety
    /// The slot is in its pool's hands with an event that is not done, or kept, and nobody else uses it.
    unsafe fn bytes<'a>(self) -> &'a mut [u8] {
        // SAFETY: the caller's promise; slots stay in place for the life of their pool.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

#[cfg(test)]
mod tests;
