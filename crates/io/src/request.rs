//! Requests that somebody else carries out: a handle to wait on, poll or await, and buffers that
//! belong to the request until it is over.

use crate::cancel::Cancel;
use crate::{Error, ErrorKind, Result};
use bifolio_device::fork::Birth;
use bifolio_device::{Allocation, DeviceSlice};
use std::any::Any;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Device memory that a request owns a share of: it stays allocated until the request is over, even
/// if the handle is dropped or the request cancelled.
#[derive(Debug, Clone)]
pub struct Buffer {
    slice: DeviceSlice<'static>,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Buffer {
    /// All of an allocation.
    pub fn new(memory: &Arc<Allocation>) -> Self {
        let slice = memory.slice();
        // SAFETY: the buffer keeps the allocation, and the slice leaves it only with a borrow.
        let slice = unsafe { slice.lasting() };
        Self { slice, owner: Some(Arc::<Allocation>::clone(memory)) }
    }

    /// Memory that the caller vouches for.
    ///
    /// # Safety
    /// The memory stays valid until every request with this buffer or a part of it is over, also
    /// cancelled ones and those whose handles were dropped.
    pub unsafe fn foreign(slice: DeviceSlice<'_>) -> Self {
        // SAFETY: the caller's promise.
        Self { slice: unsafe { slice.lasting() }, owner: None }
    }

    /// Memory that stays valid for as long as `owner` is kept: a share of it is dropped, on any thread, when
    /// the last request with this buffer or a part of it is over.
    ///
    /// # Safety
    /// The memory is valid until `owner` is dropped.
    pub unsafe fn kept(slice: DeviceSlice<'_>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        // SAFETY: the caller's promise.
        Self { slice: unsafe { slice.lasting() }, owner: Some(owner) }
    }

    /// The part `offset..offset + len`; an error if it does not lie inside.
    pub fn part(&self, offset: u64, len: u64) -> bifolio_device::Result<Self> {
        Ok(Self { slice: self.slice.part(offset, len)?, owner: self.owner.clone() })
    }

    /// The memory.
    pub fn slice(&self) -> DeviceSlice<'_> {
        self.slice
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.slice.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }
}

/// A request under way. It goes on when this is dropped; [`Pending::cancel`] ends it early.
#[derive(Debug)]
#[must_use = "a request under way reports its failure here and nowhere else"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
    cancel: Cancel,
    birth: Birth,
    path: PathBuf,
}

/// The other end: whoever carries the request out keeps it, or breaks it by dropping it.
#[derive(Debug)]
pub(crate) struct Promise<T> {
    shared: Arc<Shared<T>>,
    path: PathBuf,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

#[derive(Debug)]
enum State<T> {
    Running(Option<Waker>),
    Done(Result<T>),
    Taken,
}

/// A request about `path` that `cancel` can end.
pub(crate) fn promise<T>(path: &Path, cancel: &Cancel) -> (Promise<T>, Pending<T>) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Running(None)), done: Condvar::new() });
    let promise = Promise { shared: Arc::clone(&shared), path: path.to_owned() };
    (promise, Pending { shared, cancel: cancel.clone(), birth: Birth::here(), path: path.to_owned() })
}

impl<T> Promise<T> {
    /// Ends the request.
    pub(crate) fn keep(self, outcome: Result<T>) {
        self.shared.finish(outcome);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let unfinished = matches!(*self.shared.lock(), State::Running(_));
        if unfinished {
            let detail = "the request ended without a result, which is a bug; please report it";
            self.shared.finish(Err(Error::new(ErrorKind::Panicked, &self.path, detail)));
        }
    }
}

impl<T> Pending<T> {
    /// Whether the request is over; its result waits to be taken. In a child of the process that made the
    /// request it is over, with the error `Forked`.
    pub fn is_done(&self) -> bool {
        self.birth.was_elsewhere() || !matches!(*self.shared.lock(), State::Running(_))
    }

    /// The result if the request is over; none before, and none once it was taken.
    pub fn try_take(&mut self) -> Option<Result<T>> {
        if self.birth.was_elsewhere() {
            return Some(Err(Error::forked(&self.path)));
        }
        self.shared.lock().take()
    }

    /// Blocks until the request is over.
    ///
    /// # Panics
    /// If the result was taken before.
    pub fn wait(self) -> Result<T> {
        if self.birth.was_elsewhere() {
            return Err(Error::forked(&self.path));
        }
        let mut state = self.shared.lock();
        while matches!(*state, State::Running(_)) {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.take().expect("a result is taken once")
    }

    /// Blocks until the request is over, but not longer than `limit`; whether it is.
    pub fn wait_for(&self, limit: Duration) -> bool {
        if self.birth.was_elsewhere() {
            return true;
        }
        let deadline = Instant::now().checked_add(limit);
        let mut state = self.shared.lock();
        while matches!(*state, State::Running(_)) {
            // Without a deadline that a clock can show, it is far away.
            let left = deadline.map_or(Some(Duration::from_secs(3600)), |at| at.checked_duration_since(Instant::now()));
            let Some(left) = left else { return false };
            state = self.shared.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Asks the request to end early; it ends with `ErrorKind::Cancelled`, or with its result if
    /// that came first. Its buffers stay its own until then.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    /// # Panics
    /// If the result was taken before.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.birth.was_elsewhere() {
            return Poll::Ready(Err(Error::forked(&self.path)));
        }
        let mut state = self.shared.lock();
        if let State::Running(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.take().expect("a result is taken once"))
    }
}

impl<T> State<T> {
    fn take(&mut self) -> Option<Result<T>> {
        if matches!(self, Self::Running(_)) {
            return None;
        }
        match std::mem::replace(self, Self::Taken) {
            Self::Done(outcome) => Some(outcome),
            _ => None,
        }
    }
}

impl<T> Shared<T> {
    fn finish(&self, outcome: Result<T>) {
        let before = std::mem::replace(&mut *self.lock(), State::Done(outcome));
        self.done.notify_all();
        if let State::Running(Some(waker)) = before {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_promise_is_an_error_and_not_a_hang() {
        let (promise, pending) = promise::<()>(Path::new("data"), &Cancel::default());
        std::thread::spawn(move || drop(promise));
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Panicked);
    }

    #[test]
    fn a_result_is_polled_once_and_waited_for_no_longer_than_asked() {
        let (promise, mut pending) = promise(Path::new("data"), &Cancel::default());
        assert!(!pending.is_done() && !pending.wait_for(Duration::from_millis(1)) && pending.try_take().is_none());
        promise.keep(Ok(7));
        assert!(pending.wait_for(Duration::ZERO));
        assert_eq!(pending.try_take().unwrap().unwrap(), 7);
        assert!(pending.try_take().is_none() && pending.is_done());
    }
}
