//! Batches: many requests at once, whose results are fetched as they come.
//!
//! Short reads of one file into one device are one request of the router's, which costs a twentieth of
//! as many single ones; where it fails they are done one by one, so that each has a result of its own.
//!
//! A cancelled request has no result, as in the original. Nothing would then say when its memory is free, so
//! cancelling returns when nothing that was cancelled is under way.

use crate::abi::CUfileOpError::{CU_FILE_BATCH_FULL, CU_FILE_INTERNAL_ERROR, CU_FILE_INVALID_CONTEXT_ERROR};
use crate::abi::{
    CUFILE_BATCH, CUFILE_COMPLETE, CUFILE_FAILED, CUFILE_READ, CUFILE_WRITE, CUfileBatchHandle_t, CUfileError_t,
    CUfileIOEvents_t, CUfileIOParams_t,
};
use crate::buffer::{Memory, Place};
use crate::driver::{self, Active};
use crate::handle::Registered;
use crate::parameters::{self, SizeT};
use crate::stats::{self, Call, Flow, Watch, Way};
use crate::status::{Failure, Outcome, note, nothing, status, store};
use crate::threads::REQUESTS;
use crate::transfer::{self, Direction, file_for, offset_of};
use bifolio_device::pointer::Located;
use bifolio_device::{DevicePtr, DeviceSlice};
use bifolio_io::{Cancel, ReadExtent, ReadOptions, process};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_uint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{with_exposed_provenance_mut, without_provenance_mut};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Reads of up to this many bytes are gathered; of longer ones the router makes the best by itself.
const GATHERED_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
struct Batch {
    capacity: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that will have a result.
    in_flight: usize,
    /// Results that nobody has fetched.
    done: VecDeque<Event>,
    /// Since the batch had nothing under way, and what it has read and written since then.
    watch: Option<Watch>,
    moved: [u64; 2],
    /// Cancelled requests that are not over yet.
    ending: usize,
    /// How often the batch was cancelled.
    cancellations: u64,
    /// Of the requests that were submitted since the latest cancellation.
    cancel: Cancel,
}

impl State {
    /// Ends requests that were submitted after so many cancellations.
    fn finish(&mut self, submitted_after: u64, events: Vec<Event>) {
        if submitted_after != self.cancellations {
            self.ending -= events.len();
            return;
        }
        for event in &events {
            self.moved[usize::from(event.direction == Direction::Write)] += event.outcome.as_ref().unwrap_or(&0);
        }
        self.in_flight -= events.len();
        self.done.extend(events);
        if self.in_flight == 0 {
            self.watch.take().into_iter().for_each(|watch| watch.end_batch(self.moved));
        }
    }

    /// Begins requests: after how many cancellations, and how they learn of the next.
    fn begin(&mut self, requests: usize) -> (u64, Cancel) {
        if self.in_flight == 0 {
            (self.watch, self.moved) = (Some(Watch::begin()), [0; 2]);
        }
        self.in_flight += requests;
        (self.cancellations, self.cancel.clone())
    }

    /// Takes the results of all requests away, those that are there and those that would come.
    fn cancel(&mut self) {
        std::mem::take(&mut self.cancel).cancel();
        self.cancellations += 1;
        self.ending += std::mem::take(&mut self.in_flight);
        self.watch = None;
        self.done.clear();
    }
}

/// A result.
#[derive(Debug)]
struct Event {
    cookie: usize,
    direction: Direction,
    outcome: Outcome<u64>,
}

/// A request.
#[derive(Debug, Clone)]
struct Request {
    file: Arc<Registered>,
    direction: Direction,
    offset: u64,
    place: Place,
    cookie: usize,
}

#[derive(Debug, Default)]
struct Batches {
    by_number: HashMap<usize, Arc<Batch>>,
    latest: usize,
}

static BATCHES: LazyLock<RwLock<Batches>> = LazyLock::new(RwLock::default);

fn find(handle: CUfileBatchHandle_t) -> Option<Arc<Batch>> {
    BATCHES.read().unwrap_or_else(PoisonError::into_inner).by_number.get(&handle.addr()).cloned()
}

fn find_or_refuse(handle: CUfileBatchHandle_t) -> Outcome<Arc<Batch>> {
    find(handle).ok_or_else(|| Failure::argument(format!("the batch {handle:?} was not set up, or is destroyed")))
}

/// Forgets every batch; nothing of them is under way.
pub(crate) fn forget_all() {
    BATCHES.write().unwrap_or_else(PoisonError::into_inner).by_number.clear();
}

impl Batch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, submitted_after: u64, events: Vec<Event>) {
        self.lock().finish(submitted_after, events);
        self.changed.notify_all();
    }

    /// Cancels all requests, and waits until none of them is under way.
    fn cancel(&self) {
        let mut state = self.lock();
        state.cancel();
        // Whoever waits for results gets none.
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.ending > 0).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until at least `least` results are there, all that there will be, or the time is over.
    fn wait_for(&self, least: usize, until: Option<Instant>) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while state.done.len() < least && state.in_flight > 0 {
            let Some(until) = until else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// Starts all requests of a submission.
    fn start(self: &Arc<Self>, requests: Vec<Request>) -> Outcome<()> {
        let mut state = self.lock();
        let used = state.in_flight + state.done.len();
        if used + requests.len() > self.capacity {
            let text = format!(
                "{} requests do not fit into a batch of {} with {used} whose results were not fetched",
                requests.len(),
                self.capacity
            );
            return Err(Failure::new(CU_FILE_BATCH_FULL, text));
        }
        let (submitted_after, cancel) = state.begin(requests.len());
        drop(state);
        stats::enqueued(requests.len());
        for group in grouped(requests) {
            let (batch, cancel, active) = (Arc::clone(self), cancel.clone(), Active::begin());
            REQUESTS.run(move || batch.finish(submitted_after, carry_out(group, &cancel, active)));
        }
        Ok(())
    }
}

/// Carries requests out together: their results.
fn carry_out(group: Vec<Request>, cancel: &Cancel, active: Active) -> Vec<Event> {
    let watch = Watch::begin();
    let gathered = if group.len() > 1 { gathered(&group, cancel) } else { None };
    let events = match gathered {
        Some(bytes) => {
            let share = watch.shared_by(group.len());
            let event = |(request, bytes): (&Request, u64)| {
                let Request { direction, offset, place, .. } = request;
                watch.end(Flow::of_batch(*direction), 0, &Ok(bytes));
                share.end_on_gpu(*direction, *offset, place, Some((bytes, Way::Posix)));
                request.event(Ok(bytes))
            };
            group.iter().zip(bytes).map(event).collect()
        }
        None => group.iter().map(|request| request.event(request.alone(cancel))).collect(),
    };
    // Whoever has fetched the last result may close the session.
    drop((group, active));
    events
}

impl Request {
    unsafe fn of(parameters: &CUfileIOParams_t) -> Outcome<Self> {
        if parameters.mode != CUFILE_BATCH {
            return Err(Failure::argument(format!("there is no mode {} of a batch", parameters.mode)));
        }
        let direction = match parameters.opcode {
            CUFILE_READ => Direction::Read,
            CUFILE_WRITE => Direction::Write,
            other => return Err(Failure::argument(format!("there is no operation {other}"))),
        };
        Ok(Self {
            file: file_for(parameters.fh, direction)?,
            direction,
            offset: offset_of(parameters.file_offset)?,
            place: Memory::at(parameters.devPtr_base)?.range(parameters.devPtr_offset, parameters.size)?,
            cookie: parameters.cookie.expose_provenance(),
        })
    }

    fn event(&self, outcome: Outcome<u64>) -> Event {
        // Nobody is told of one that was cancelled.
        if let Err(failure) = &outcome
            && !failure.is_cancelled()
        {
            note("a request of a batch", failure);
        }
        Event { cookie: self.cookie, direction: self.direction, outcome }
    }

    fn alone(&self, cancel: &Cancel) -> Outcome<u64> {
        stats::counted_request(Flow::of_batch(self.direction), 0, || {
            if cancel.is_cancelled() {
                return Err(Failure::system(libc::ECANCELED, "the batch was cancelled before the request began"));
            }
            let run = || transfer::run(&self.file, self.direction, self.offset, self.place, cancel);
            catch_unwind(AssertUnwindSafe(run))
                .unwrap_or_else(|_| Err(Failure::new(CU_FILE_INTERNAL_ERROR, "a bug in Bifolio, please report it")))
        })
    }

    /// What short reads have in common that can be gathered.
    fn gathering(&self) -> Option<(usize, Located)> {
        match self.place {
            Place::Device(located, memory)
                if self.direction == Direction::Read
                    && (1..=GATHERED_BYTES_MAX as u64).contains(&memory.len())
                    && self.offset.checked_add(memory.len()).is_some_and(|end| i64::try_from(end).is_ok()) =>
            {
                Some((Arc::as_ptr(&self.file).addr(), located))
            }
            _ => None,
        }
    }
}

/// Requests that are carried out together, in the order of their first.
fn grouped(requests: Vec<Request>) -> Vec<Vec<Request>> {
    let mut groups: Vec<Vec<Request>> = vec![];
    let mut places = HashMap::new();
    for request in requests {
        match request.gathering() {
            None => groups.push(vec![request]),
            Some((file, located)) => {
                let place =
                    *places.entry((file, located.device, located.context, located.incarnation)).or_insert_with(|| {
                        groups.push(vec![]);
                        groups.len() - 1
                    });
                groups[place].push(request);
            }
        }
    }
    groups
}

/// Carries out short reads by one request: the bytes of each. None where it failed.
fn gathered(group: &[Request], cancel: &Cancel) -> Option<Vec<u64>> {
    let parts: Vec<_> = group
        .iter()
        .filter_map(|request| match request.place {
            Place::Device(located, memory) => Some((located, memory)),
            Place::Host(..) => None,
        })
        .collect();
    let (first, last) = (
        parts.iter().map(|(_, part)| part.ptr().0).min()?,
        parts.iter().map(|(_, part)| part.ptr().0 + part.len()).max()?,
    );
    // SAFETY: only the parts are touched, which lie inside memory of the program's.
    let memory = unsafe { DeviceSlice::from_raw_ordered(DevicePtr(first), last - first) };
    let extent = |(request, (_, part)): (&Request, &(Located, DeviceSlice<'_>))| ReadExtent {
        offset: request.offset,
        length: part.len(),
        place: part.ptr().0 - first,
    };
    let extents: Vec<_> = group.iter().zip(&parts).map(extent).collect();
    let options = ReadOptions { cancel: cancel.clone(), ..ReadOptions::default() };
    let opened = group[0].file.opened();
    let read = || process::router_of(&parts[0].0)?.read_batch(&opened.file, &extents, memory, &options);
    let report = catch_unwind(AssertUnwindSafe(read)).ok()?.ok()?;
    let mut bytes: Vec<u64> = extents.iter().map(|extent| extent.length).collect();
    for (number, short) in report.short {
        bytes[number] = short;
    }
    Some(bytes)
}

impl Event {
    fn for_program(&self) -> CUfileIOEvents_t {
        let (status, ret) = match &self.outcome {
            Ok(bytes) => (CUFILE_COMPLETE, *bytes as usize),
            Err(failure) => (CUFILE_FAILED, failure.in_memory().cast_unsigned()),
        };
        CUfileIOEvents_t { cookie: with_exposed_provenance_mut(self.cookie), status, ret }
    }
}

/// Sets a batch for up to `nr` requests up; the session is opened where it is not.
///
/// # Safety
/// `batch_idp` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOSetUp(batch_idp: *mut CUfileBatchHandle_t, nr: c_uint) -> CUfileError_t {
    let set_up = || {
        let most = parameters::size_of(SizeT::BatchSize);
        if nr == 0 || nr as usize > most || batch_idp.is_null() {
            let text = format!("the place for the batch is NULL, or {nr} is no number of requests from 1 to {most}");
            return Err(Failure::argument(text));
        }
        driver::open_if_closed();
        let batch = Batch { capacity: nr as usize, state: Mutex::default(), changed: Condvar::new() };
        let mut batches = BATCHES.write().unwrap_or_else(PoisonError::into_inner);
        batches.latest += 1;
        let number = batches.latest;
        batches.by_number.insert(number, Arc::new(batch));
        // SAFETY: the caller's promise.
        unsafe { store(batch_idp, without_provenance_mut(number)) }
    };
    status("cuFileBatchIOSetUp", || stats::counted(Call::BatchSetUp, set_up))
}

/// Starts requests: all of them, or none where one is wrong.
///
/// # Safety
/// `iocbp` is NULL or has `nr` elements, whose memory stays valid until their results are fetched or the
/// batch is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOSubmit(
    batch_idp: CUfileBatchHandle_t,
    nr: c_uint,
    iocbp: *mut CUfileIOParams_t,
    flags: c_uint,
) -> CUfileError_t {
    let submit = || {
        let batch = find_or_refuse(batch_idp)?;
        if flags != 0 || iocbp.is_null() || nr == 0 || nr as usize > batch.capacity {
            let text = format!(
                "{nr} requests at {iocbp:?} with the flags {flags:#x} are none, more than the {} of the batch, or flags \
                 that do not exist",
                batch.capacity
            );
            return Err(Failure::argument(text));
        }
        // SAFETY: the caller's promise.
        let parameters = unsafe { std::slice::from_raw_parts(iocbp, nr as usize) };
        // SAFETY: as above.
        let requests = parameters.iter().map(|parameters| unsafe { Request::of(parameters) });
        batch.start(requests.collect::<Outcome<_>>()?)
    };
    status("cuFileBatchIOSubmit", || stats::counted(Call::BatchSubmit, submit))
}

/// Fetches results: at least `min_nr`, unless there will be fewer or the time is over, and at most `*nr`,
/// which is then how many there were.
///
/// # Safety
/// `nr` is NULL or may be written; `iocbp` is NULL or has `*nr` elements; `timeout` is NULL or a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOGetStatus(
    batch_idp: CUfileBatchHandle_t,
    min_nr: c_uint,
    nr: *mut c_uint,
    iocbp: *mut CUfileIOEvents_t,
    timeout: *mut libc::timespec,
) -> CUfileError_t {
    status("cuFileBatchIOGetStatus", || {
        let batch = find_or_refuse(batch_idp)?;
        // SAFETY: the caller's promise.
        let (room, timeout) = unsafe { (nr.as_ref().copied(), timeout.as_ref()) };
        let room = room.filter(|room| !iocbp.is_null() && min_nr <= *room);
        let Some(room) = room else {
            return Err(Failure::argument(format!("there is no room for the {min_nr} results that are wanted")));
        };
        let until = timeout.map(deadline).transpose()?.flatten();
        let mut state = batch.wait_for(min_nr as usize, until);
        let count = state.done.len().min(room as usize);
        for (place, event) in state.done.drain(..count).enumerate() {
            // SAFETY: as above.
            unsafe { iocbp.add(place).write(event.for_program()) };
        }
        // SAFETY: as above.
        unsafe { store(nr, count as c_uint) }
    })
}

/// When a time from now is over; none if no clock can show it.
fn deadline(timeout: &libc::timespec) -> Outcome<Option<Instant>> {
    let seconds = u64::try_from(timeout.tv_sec).ok();
    let nanoseconds = u32::try_from(timeout.tv_nsec).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000);
    let (Some(seconds), Some(nanoseconds)) = (seconds, nanoseconds) else {
        return Err(Failure::argument(format!("{} s and {} ns are no time", timeout.tv_sec, timeout.tv_nsec)));
    };
    Ok(Instant::now().checked_add(Duration::new(seconds, nanoseconds)))
}

/// Cancels the requests of a batch, and waits until none is under way. None of them has a result, nor have those
/// that were done and whose results nobody has fetched; what they moved stays moved. The batch is as it was set up.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBatchIOCancel(batch_idp: CUfileBatchHandle_t) -> CUfileError_t {
    let cancel = || {
        let text = || format!("the batch {batch_idp:?} was not set up, or is destroyed");
        find(batch_idp).ok_or_else(|| Failure::new(CU_FILE_INVALID_CONTEXT_ERROR, text()))?.cancel();
        Ok(())
    };
    status("cuFileBatchIOCancel", || stats::counted(Call::BatchCancel, cancel))
}

/// Gives a batch up. Its requests are cancelled and waited for, so that their memory is free afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBatchIODestroy(batch_idp: CUfileBatchHandle_t) {
    let destroy = || {
        let removed = BATCHES.write().unwrap_or_else(PoisonError::into_inner).by_number.remove(&batch_idp.addr());
        let unknown = || Failure::argument(format!("the batch {batch_idp:?} was not set up, or is destroyed"));
        let batch = removed.ok_or_else(unknown)?;
        batch.cancel();
        Ok(())
    };
    nothing("cuFileBatchIODestroy", || stats::counted(Call::BatchDestroy, destroy));
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::FencedMemory;
    use std::os::fd::AsRawFd;

    fn event(cookie: usize) -> Event {
        Event { cookie, direction: Direction::Write, outcome: Ok(10) }
    }

    #[test]
    fn what_was_submitted_before_a_cancellation_has_no_result_and_what_came_after_has() {
        let mut state = State::default();
        let (before, cancel) = state.begin(3);
        state.finish(before, vec![event(1)]);
        state.cancel();
        assert!(cancel.is_cancelled() && !state.cancel.is_cancelled());
        assert_eq!((state.done.len(), state.in_flight, state.ending), (0, 0, 2));
        let (after, _) = state.begin(1);
        state.finish(before, vec![event(2)]);
        state.finish(after, vec![event(3)]);
        state.finish(before, vec![event(4)]);
        assert_eq!((state.done.len(), state.in_flight, state.ending), (1, 0, 0));
        assert_eq!((state.done[0].cookie, state.moved), (3, [0, 10]));
    }

    #[test]
    fn cancelling_waits_for_the_requests_and_wakes_whoever_waits_for_results() {
        let batch = Batch { capacity: 2, state: Mutex::default(), changed: Condvar::new() };
        let (before, _) = batch.lock().begin(2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| batch.wait_for(2, None).done.len());
            let canceller = scope.spawn(|| batch.cancel());
            assert_eq!(waiter.join().unwrap(), 0);
            assert!(!canceller.is_finished(), "both requests are under way");
            batch.finish(before, vec![event(1), event(2)]);
            canceller.join().unwrap();
        });
        assert_eq!(batch.lock().done.len(), 0);
    }

    /// Falling back to single requests looks like success, and costs twenty times as much.
    #[test]
    fn short_reads_into_one_device_are_one_request_unless_they_overlap() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, [b'x'; 10_000]).unwrap();
        let descriptor = std::fs::File::open(&path).unwrap();
        let file = Arc::new(Registered::open(descriptor.as_raw_fd()).unwrap());
        let memory = FencedMemory::alloc(2 << 20).unwrap();
        let known = Memory::at(with_exposed_provenance_mut(memory.address() as usize)).unwrap();
        let request = |offset, place, size| {
            let (file, place) = (Arc::clone(&file), known.range(place, size).unwrap());
            Request { file, direction: Direction::Read, offset, place, cookie: 0 }
        };
        let write = Request { direction: Direction::Write, ..request(0, 0, 10) };
        let requests = vec![request(0, 0, 100), write, request(9_990, 200, 20), request(5, 4096, 1 << 20)];
        let groups = grouped(requests);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(gathered(&groups[0], &Cancel::default()), Some(vec![100, 10]));
        assert_eq!(&memory.to_vec()[198..211], b"\0\0xxxxxxxxxx\0");
        let overlapping = [request(0, 0, 100), request(0, 99, 100)];
        assert_eq!(gathered(&overlapping, &Cancel::default()), None);
    }
}
