//! Requests under way: a handle to wait on, poll or await, or a function that is called at the end.

use crate::executor::Path;
use crate::memory::Memory;
use crate::{Error, ErrorKind, Result};
use bifolio_device::fork::Birth;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A request that is over: its memory comes back in any case.
#[derive(Debug)]
pub struct Outcome {
    /// The memory that was read, and written by a request in place. None where the request never reached
    /// the executor's threads, as in a forked child.
    pub source: Option<Memory>,
    /// The memory that was written, if that was another.
    pub destination: Option<Memory>,
    /// What the steps found, in their order: digests, tags, flags, verdicts; or why the request failed.
    /// The destination of a failed request holds anything but the plaintext of a wrong message.
    pub result: Result<Answers>,
}

/// What a request found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// The results of each step, as its service lays them out.
    pub results: Vec<Vec<u8>>,
    /// Who computed most of it.
    pub path: Path,
}

/// A request under way. It goes on when this is dropped; [`Pending::cancel`] ends it early.
#[derive(Debug)]
#[must_use = "a request under way reports its failure here and nowhere else"]
pub struct Pending {
    shared: Arc<Shared>,
    cancelled: Arc<AtomicBool>,
    birth: Birth,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    Running(Option<Waker>),
    Done(Box<Outcome>),
    Taken,
}

/// What the end of a request brings about.
pub(crate) enum Promise {
    Handle(Arc<dyn Finish>),
    Callback(Box<dyn FnOnce(Outcome) + Send>),
}

/// A seam that keeps `Shared` private.
pub(crate) trait Finish: Send + Sync {
    fn finish(&self, outcome: Outcome);
}

impl std::fmt::Debug for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Handle(_) => "Handle",
            Self::Callback(_) => "Callback",
        })
    }
}

impl Promise {
    pub(crate) fn keep(self, outcome: Outcome) {
        match self {
            Self::Handle(shared) => shared.finish(outcome),
            Self::Callback(callback) => callback(outcome),
        }
    }
}

/// A promise and its handle.
pub(crate) fn promise(cancelled: &Arc<AtomicBool>) -> (Promise, Pending) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Running(None)), done: Condvar::new() });
    let pending = Pending { shared: Arc::clone(&shared), cancelled: Arc::clone(cancelled), birth: Birth::here() };
    (Promise::Handle(shared), pending)
}

impl Pending {
    /// Whether the request is over; its outcome waits to be taken. In a child of the process that made the
    /// request it is over, with the error [`ErrorKind::Forked`].
    pub fn is_done(&self) -> bool {
        self.birth.was_elsewhere() || !matches!(*self.shared.lock(), State::Running(_))
    }

    /// The outcome if the request is over; none before, and none once it was taken.
    pub fn try_take(&mut self) -> Option<Outcome> {
        if self.birth.was_elsewhere() {
            return Some(forked());
        }
        self.shared.lock().take()
    }

    /// Blocks until the request is over.
    ///
    /// # Panics
    /// If the outcome was taken before.
    pub fn wait(self) -> Outcome {
        if self.birth.was_elsewhere() {
            return forked();
        }
        let mut state = self.shared.lock();
        while matches!(*state, State::Running(_)) {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.take().expect("an outcome is taken once")
    }

    /// Asks the request to end early: parts of it that have not begun are left out, and it ends with
    /// [`ErrorKind::Cancelled`] unless all had. Its memory stays its own until then.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Future for Pending {
    type Output = Outcome;

    /// # Panics
    /// If the outcome was taken before.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.birth.was_elsewhere() {
            return Poll::Ready(forked());
        }
        let mut state = self.shared.lock();
        if let State::Running(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.take().expect("an outcome is taken once"))
    }
}

fn forked() -> Outcome {
    let detail = "the request was made before fork(2), and its threads are the parent's";
    Outcome { source: None, destination: None, result: Err(Error::new(ErrorKind::Forked, detail)) }
}

impl State {
    fn take(&mut self) -> Option<Outcome> {
        if matches!(self, Self::Running(_)) {
            return None;
        }
        match std::mem::replace(self, Self::Taken) {
            Self::Done(outcome) => Some(*outcome),
            _ => None,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Finish for Shared {
    fn finish(&self, outcome: Outcome) {
        let before = std::mem::replace(&mut *self.lock(), State::Done(Box::new(outcome)));
        self.done.notify_all();
        if let State::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}
