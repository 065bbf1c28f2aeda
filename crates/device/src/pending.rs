//! Requests that somebody else carries out: a handle to wait on, poll, await or cancel, and the promise
//! that its other end keeps.
//!
//! A request always ends with a `T`. One that can have no outcome of its own ends with what the crate that
//! made it says for such a case ([`Lost`]): its promise was dropped, or this is a child of the process that made
//! it, where nobody works on it.

use crate::Cancel;
use crate::fork::Birth;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Why a request has no outcome of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Its promise was dropped without being kept: a bug.
    Broken,
    /// This process was forked from the one that made it.
    Forked,
}

/// A request under way. It goes on when this is dropped; [`Pending::cancel`] ends it early.
#[must_use = "a request under way reports its failure here and nowhere else"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
    cancel: Cancel,
    birth: Birth,
}

/// The other end: whoever carries the request out keeps it, or breaks it by dropping it.
pub struct Promise<T>(Option<End<T>>);

/// What the end of a request brings about.
enum End<T> {
    Handle(Arc<Shared<T>>),
    Callback(Callback<T>),
}

type Callback<T> = Box<dyn FnOnce(Result<T, Lost>) + Send>;

struct Shared<T, F: ?Sized = dyn Fn(Lost) -> T + Send + Sync> {
    state: Mutex<State<T>>,
    done: Condvar,
    lost: F,
}

enum State<T> {
    Running(Option<Waker>),
    Done(T),
    Taken,
}

/// A request that `cancel` can end, and that ends with what `lost` makes where it has no outcome of its own.
pub fn promise<T>(cancel: &Cancel, lost: impl Fn(Lost) -> T + Send + Sync + 'static) -> (Promise<T>, Pending<T>) {
    let shared: Arc<Shared<T>> =
        Arc::new(Shared { state: Mutex::new(State::Running(None)), done: Condvar::new(), lost });
    let pending = Pending { shared: Arc::clone(&shared), cancel: cancel.clone(), birth: Birth::here() };
    (Promise(Some(End::Handle(shared))), pending)
}

impl<T> Promise<T> {
    /// A promise whose end calls a function, on the thread that keeps it.
    pub fn calling(callback: impl FnOnce(T) + Send + 'static, lost: impl FnOnce(Lost) -> T + Send + 'static) -> Self {
        Self(Some(End::Callback(Box::new(move |outcome| callback(outcome.unwrap_or_else(lost))))))
    }

    /// Ends the request.
    pub fn keep(mut self, outcome: T) {
        match self.0.take() {
            Some(End::Handle(shared)) => shared.finish(outcome),
            Some(End::Callback(callback)) => callback(Ok(outcome)),
            None => {}
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        match self.0.take() {
            Some(End::Handle(shared)) => shared.finish((shared.lost)(Lost::Broken)),
            Some(End::Callback(callback)) => callback(Err(Lost::Broken)),
            None => {}
        }
    }
}

impl<T> Pending<T> {
    /// Whether the request is over; its outcome waits to be taken. In a child of the process that made the
    /// request it is over.
    pub fn is_done(&self) -> bool {
        self.birth.was_elsewhere() || !matches!(*self.shared.lock(), State::Running(_))
    }

    /// The outcome if the request is over; none before, and none once it was taken.
    pub fn try_take(&mut self) -> Option<T> {
        if self.birth.was_elsewhere() {
            return Some((self.shared.lost)(Lost::Forked));
        }
        self.shared.lock().take()
    }

    /// Blocks until the request is over.
    ///
    /// # Panics
    /// If the outcome was taken before.
    pub fn wait(self) -> T {
        if self.birth.was_elsewhere() {
            return (self.shared.lost)(Lost::Forked);
        }
        let mut state = self.shared.lock();
        while matches!(*state, State::Running(_)) {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.take().expect("an outcome is taken once")
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

    /// Asks the request to end early; it ends as a cancelled one, or with its outcome if that came first. Its
    /// memory stays its own until then.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

impl<T> Future for Pending<T> {
    type Output = T;

    /// # Panics
    /// If the outcome was taken before.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.birth.was_elsewhere() {
            return Poll::Ready((self.shared.lost)(Lost::Forked));
        }
        let mut state = self.shared.lock();
        if let State::Running(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.take().expect("an outcome is taken once"))
    }
}

impl<T> State<T> {
    fn take(&mut self) -> Option<T> {
        if matches!(self, Self::Running(_)) {
            return None;
        }
        match std::mem::replace(self, Self::Taken) {
            Self::Done(outcome) => Some(outcome),
            _ => None,
        }
    }
}

impl<T, F: ?Sized> Shared<T, F> {
    fn finish(&self, outcome: T) {
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

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(End::Handle(_)) => "Promise(to a handle)",
            Some(End::Callback(_)) => "Promise(to a function)",
            None => "Promise(kept)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_broken_promise_is_an_outcome_and_not_a_hang() {
        let (promise, pending) = promise(&Cancel::default(), Err::<(), _>);
        std::thread::spawn(move || drop(promise));
        assert_eq!(pending.wait(), Err(Lost::Broken));
    }

    #[test]
    fn an_outcome_is_taken_once_and_waited_for_no_longer_than_asked() {
        let (promise, mut pending) = promise(&Cancel::default(), |_| 0);
        assert!(!pending.is_done() && !pending.wait_for(Duration::from_millis(1)) && pending.try_take().is_none());
        promise.keep(7);
        assert!(pending.wait_for(Duration::ZERO));
        assert_eq!(pending.try_take(), Some(7));
        assert!(pending.try_take().is_none() && pending.is_done());
    }

    #[test]
    fn functions_are_called_once_with_the_outcome_or_with_what_stands_for_it() {
        let (told, tells) = channel();
        for is_kept in [true, false] {
            let told = told.clone();
            let promise = Promise::calling(move |outcome| told.send(outcome).unwrap(), Err);
            if is_kept { promise.keep(Ok(7)) } else { drop(promise) }
        }
        drop(told);
        assert_eq!(tells.into_iter().collect::<Vec<_>>(), [Ok(7), Err(Lost::Broken)]);
    }

    #[test]
    fn a_handle_cancels_what_it_was_made_with() {
        let cancel = Cancel::default();
        let (_promise, pending) = promise(&cancel, |_| ());
        assert!(!cancel.is_cancelled());
        pending.cancel();
        assert!(cancel.is_cancelled());
    }
}
