//! Batches: many requests at once, whose results are fetched as they come.
//!
//! ```text
//!   mod         entry points; a batch, whose threads and waiters meet at its lock
//!   request     requests, alone or gathered        progress    results, counts, cancellations
//! ```
//!
//! Short reads of one file into one device are one request of the router's, which costs a twentieth of
//! as many single ones; where it fails they are done one by one, so that each has a result of its own.
//!
//! A cancelled request has no result, as in the original. Nothing would then say when its memory is free, so
//! cancelling returns when nothing that was cancelled is under way.
//!
//! Requests run on threads of `bifolio-io`'s kind ([`Workers`]) and not by its `submit_read`: a request of a batch is
//! tried again, alone or through host memory, where the router refuses it, and whoever tries has to be a thread.

mod progress;
mod request;

use crate::abi::CUfileOpError::{CU_FILE_BATCH_FULL, CU_FILE_INVALID_CONTEXT_ERROR};
use crate::abi::{CUfileBatchHandle_t, CUfileError_t, CUfileIOEvents_t, CUfileIOParams_t};
use crate::numbered::Numbered;
use crate::parameters::{self, SizeT};
use crate::session::{self, Active};
use crate::stats::{self, Call};
use crate::status::{Failure, Outcome, nothing, status, store};
use bifolio_io::Workers;
use progress::{Event, Progress};
use request::{Request, carry_out, grouped};
use std::ffi::c_uint;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Carry out requests of all batches. They start with the first one; where the system gives no thread at that moment,
/// requests are carried out by those who submit them.
static REQUESTS: LazyLock<Workers> = LazyLock::new(|| Workers::start(16));

static BATCHES: Numbered<Batch> = Numbered::new();

#[derive(Debug)]
struct Batch {
    capacity: usize,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// Forgets every batch; nothing of them is under way.
pub(crate) fn forget_all() {
    BATCHES.clear();
}

fn not_set_up(handle: CUfileBatchHandle_t) -> String {
    format!("the batch {handle:?} is not set up (cuFileBatchIOSetUp)")
}

fn find(handle: CUfileBatchHandle_t) -> Outcome<Arc<Batch>> {
    BATCHES.get(handle).ok_or_else(|| Failure::argument(not_set_up(handle)))
}

impl Batch {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, submitted_after: u64, events: Vec<Event>) {
        self.lock().finish(submitted_after, events);
        self.changed.notify_all();
    }

    /// Cancels all requests, and waits until none of them is under way.
    fn cancel(&self) {
        let mut progress = self.lock();
        progress.cancel();
        // Whoever waits for results gets none.
        self.changed.notify_all();
        drop(self.changed.wait_while(progress, |progress| progress.ending > 0).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until at least `least` results are there, all that there will be, or the time is over.
    fn wait_for(&self, least: usize, until: Option<Instant>) -> MutexGuard<'_, Progress> {
        let mut progress = self.lock();
        while progress.done.len() < least && progress.in_flight > 0 {
            let Some(until) = until else {
                progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            progress = self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        progress
    }

    /// Starts all requests of a submission.
    fn start(self: &Arc<Self>, requests: Vec<Request>) -> Outcome<()> {
        let mut progress = self.lock();
        let used = progress.in_flight + progress.done.len();
        if used + requests.len() > self.capacity {
            let text = format!(
                "{} requests do not fit into a batch of {}, of which {used} are in use until their results are fetched",
                requests.len(),
                self.capacity
            );
            return Err(Failure::new(CU_FILE_BATCH_FULL, text));
        }
        let (submitted_after, cancel) = progress.begin(requests.len());
        drop(progress);
        stats::enqueued(requests.len());
        for group in grouped(requests) {
            let (batch, cancel, active) = (Arc::clone(self), cancel.clone(), Active::begin());
            REQUESTS.run_alone(move || batch.finish(submitted_after, carry_out(group, &cancel, active)));
        }
        Ok(())
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
            let text = format!("the pointer for the batch is NULL, or {nr} requests are not from 1 to {most}");
            return Err(Failure::argument(text));
        }
        session::open_if_closed();
        let batch = Batch { capacity: nr as usize, progress: Mutex::default(), changed: Condvar::new() };
        // SAFETY: the caller's promise.
        unsafe { store(batch_idp, BATCHES.insert(batch)) }
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
        let batch = find(batch_idp)?;
        if flags != 0 || iocbp.is_null() || nr == 0 || nr as usize > batch.capacity {
            let text = format!(
                "{nr} requests at {iocbp:?} with the flags {flags:#x}: a batch takes from 1 to {} requests, and no flags",
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
        let batch = find(batch_idp)?;
        // SAFETY: the caller's promise.
        let (room, timeout) = unsafe { (nr.as_ref().copied(), timeout.as_ref()) };
        let room = room.filter(|room| !iocbp.is_null() && min_nr <= *room);
        let Some(room) = room else {
            return Err(Failure::argument(format!("the array of events is NULL or has no room for {min_nr} results")));
        };
        let until = timeout.map(deadline).transpose()?.flatten();
        let mut progress = batch.wait_for(min_nr as usize, until);
        let count = progress.done.len().min(room as usize);
        for (place, event) in progress.done.drain(..count).enumerate() {
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
        return Err(Failure::argument(format!(
            "{} s and {} ns are not a valid timeout",
            timeout.tv_sec, timeout.tv_nsec
        )));
    };
    Ok(Instant::now().checked_add(Duration::new(seconds, nanoseconds)))
}

/// Cancels the requests of a batch, and waits until none is under way. None of them has a result, nor have those
/// that were done and whose results nobody has fetched; what they moved stays moved. The batch is as it was set up.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBatchIOCancel(batch_idp: CUfileBatchHandle_t) -> CUfileError_t {
    let cancel = || {
        let unknown = || Failure::new(CU_FILE_INVALID_CONTEXT_ERROR, not_set_up(batch_idp));
        BATCHES.get(batch_idp).ok_or_else(unknown)?.cancel();
        Ok(())
    };
    status("cuFileBatchIOCancel", || stats::counted(Call::BatchCancel, cancel))
}

/// Gives a batch up. Its requests are cancelled and waited for, so that their memory is free afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBatchIODestroy(batch_idp: CUfileBatchHandle_t) {
    let destroy = || {
        BATCHES.remove(batch_idp).ok_or_else(|| Failure::argument(not_set_up(batch_idp)))?.cancel();
        Ok(())
    };
    nothing("cuFileBatchIODestroy", || stats::counted(Call::BatchDestroy, destroy));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::Direction;

    #[test]
    fn cancelling_waits_for_the_requests_and_wakes_whoever_waits_for_results() {
        let batch = Batch { capacity: 2, progress: Mutex::default(), changed: Condvar::new() };
        let event = |cookie| Event { cookie, direction: Direction::Read, outcome: Ok(10) };
        let (before, _) = batch.lock().begin(2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| batch.wait_for(2, None).done.len());
            let canceller = scope.spawn(|| batch.cancel());
            assert_eq!(waiter.join().unwrap(), 0);
            assert!(!canceller.is_finished(), "both requests are under way");
            batch.finish(before, [1, 2].map(event).into());
            canceller.join().unwrap();
        });
        assert_eq!(batch.lock().done.len(), 0);
    }
}
