//! Requests that run by themselves: to wait for, to ask, to cancel, and to await.
//!
//! A thread of `bifolio-io` tells a `Signal` that a request is over, and never touches the interpreter.
//! Whoever waits does so at the signal, and looks for Ctrl-C now and then. `asyncio` is told by a descriptor
//! (`eventfd`) that becomes readable. What lands in the order of a stream has nobody to tell: a thread waits
//! for it once somebody here wants to know.

use crate::error::{bad, is_beyond_the_end, of_request};
use crate::explain::to_python;
use crate::life::end_detached;
use bifolio_device::fork::Birth;
use bifolio_io::{BatchReport, Cancel, Error as IoError, Pending, PendingOnStream, ReadReport, WriteReport};
use pyo3::exceptions::{PyOSError, PyTimeoutError};
use pyo3::prelude::*;
use std::future::Future as _;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How long a wait goes on before it looks for signals such as Ctrl-C.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// A request under way, or over. It goes on, and keeps its buffer, when this is dropped.
#[pyclass(frozen, module = "bifolio", weakref)]
#[derive(Debug)]
pub(crate) struct Future {
    request: Arc<Request>,
    birth: Birth,
}

#[derive(Debug)]
struct Request {
    state: Mutex<State>,
    signal: Arc<Signal>,
}

/// What was submitted.
#[derive(Debug)]
pub(crate) enum Running {
    Read(Pending<ReadReport>),
    Batch(Pending<BatchReport>),
    Write(Pending<WriteReport>),
    OnStream(PendingOnStream, Cancel),
    /// There was nothing to do.
    Nothing,
}

#[derive(Debug)]
enum State {
    Running(Running),
    /// A thread waits for the stream.
    Watched(Cancel),
    Over(Outcome),
}

impl State {
    /// What is under way on a stream, for whoever waits for it; the state is to be set afterwards.
    fn take_on_stream(&mut self) -> Option<(PendingOnStream, Cancel)> {
        match std::mem::replace(self, Self::Running(Running::Nothing)) {
            Self::Running(Running::OnStream(pending, cancel)) => Some((pending, cancel)),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// How a request ended. Shared, because exceptions are made of it without the lock: making them runs code of
/// the interpreter's, which may let another thread go on that wants the lock.
type Outcome = Result<Arc<Report>, Arc<IoError>>;

fn outcome_of<T>(outcome: Result<T, IoError>, report: impl Fn(T) -> Report) -> Outcome {
    outcome.map(report).map(Arc::new).map_err(Arc::new)
}

/// How a read ended. Whether it begins beyond the end of the file is known when its turn comes, and is no
/// failure.
fn outcome_of_read(outcome: Result<ReadReport, IoError>) -> Outcome {
    match outcome {
        Err(error) if is_beyond_the_end(&error) => Ok(Arc::new(Report::Bytes(0))),
        outcome => outcome_of(outcome, Report::Read),
    }
}

/// What a request did.
#[derive(Debug)]
enum Report {
    Read(ReadReport),
    Batch(BatchReport),
    Write(WriteReport),
    /// Reads on streams, and reads of nothing, have no more to tell.
    Bytes(u64),
}

impl Report {
    fn bytes(&self) -> u64 {
        match self {
            Self::Read(report) => report.bytes,
            Self::Batch(report) => report.bytes,
            Self::Write(report) => report.bytes,
            Self::Bytes(bytes) => *bytes,
        }
    }
}

/// Where a thread that ends a request says so.
#[derive(Debug, Default)]
struct Signal {
    over: Mutex<(bool, Vec<OwnedFd>)>,
    changed: Condvar,
}

impl Signal {
    fn set(&self) {
        let mut over = lock(&self.over);
        over.0 = true;
        for descriptor in std::mem::take(&mut over.1) {
            ring(&descriptor);
        }
        self.changed.notify_all();
    }

    /// Waits for a while; whether the request is over.
    fn wait(&self, limit: Duration) -> bool {
        let over = lock(&self.over);
        let waited = self.changed.wait_timeout_while(over, limit, |over| !over.0);
        waited.unwrap_or_else(PoisonError::into_inner).0.0
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.set();
    }
}

/// Makes an `eventfd` readable.
fn ring(descriptor: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: eight bytes of a local, to an open descriptor.
    unsafe { libc::write(descriptor.as_raw_fd(), (&raw const one).cast(), 8) };
}

impl Request {
    fn new(mut running: Running) -> Arc<Self> {
        let signal = Arc::<Signal>::default();
        let waker = Waker::from(Arc::clone(&signal));
        let mut context = Context::from_waker(&waker);
        let over = match &mut running {
            Running::Read(pending) => poll(pending, &mut context, outcome_of_read),
            Running::Batch(pending) => poll(pending, &mut context, |outcome| outcome_of(outcome, Report::Batch)),
            Running::Write(pending) => poll(pending, &mut context, |outcome| outcome_of(outcome, Report::Write)),
            Running::OnStream(..) => None,
            Running::Nothing => Some(Ok(Arc::new(Report::Bytes(0)))),
        };
        if over.is_some() {
            signal.set();
        }
        let state = Mutex::new(over.map_or(State::Running(running), State::Over));
        Arc::new(Self { state, signal })
    }

    /// The state, which has the outcome if the request is over.
    fn look(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        let State::Running(running) = &mut *state else { return state };
        let over = match running {
            Running::Read(pending) => pending.try_take().map(outcome_of_read),
            Running::Batch(pending) => pending.try_take().map(|outcome| outcome_of(outcome, Report::Batch)),
            Running::Write(pending) => pending.try_take().map(|outcome| outcome_of(outcome, Report::Write)),
            Running::OnStream(pending, _) if pending.is_done() => None,
            Running::OnStream(..) => return state,
            Running::Nothing => Some(Ok(Arc::new(Report::Bytes(0)))),
        };
        if let Some(outcome) = over {
            *state = State::Over(outcome);
        } else if let Some((pending, _)) = state.take_on_stream() {
            *state = State::Over(outcome_of(pending.wait(), Report::Bytes));
            self.signal.set();
        }
        state
    }

    /// Has a thread wait for the stream, so that the signal is set when the bytes are in place.
    fn watch(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if let Some((pending, cancel)) = state.take_on_stream() {
            *state = State::Watched(cancel);
            let request = Arc::clone(self);
            let wait = move || {
                let outcome = outcome_of(pending.wait(), Report::Bytes);
                *lock(&request.state) = State::Over(outcome);
                request.signal.set();
            };
            if let Err(error) = std::thread::Builder::new().name("bifolio-landing".to_owned()).spawn(wait) {
                let error = IoError::system(Path::new("a request"), "starting a thread to wait for it", error);
                *state = State::Over(Err(Arc::new(error)));
                self.signal.set();
            }
        }
    }
}

fn poll<T>(
    pending: &mut Pending<T>,
    context: &mut Context<'_>,
    outcome_of: impl Fn(Result<T, IoError>) -> Outcome,
) -> Option<Outcome> {
    match Pin::new(pending).poll(context) {
        Poll::Ready(outcome) => Some(outcome_of(outcome)),
        Poll::Pending => None,
    }
}

impl Future {
    /// The future of what was submitted.
    pub(crate) fn new(running: Running) -> Self {
        Self { request: Request::new(running), birth: Birth::here() }
    }

    /// The outcome, once there is one.
    fn outcome(&self) -> Option<Outcome> {
        match &*self.request.look() {
            State::Over(outcome) => Some(outcome.clone()),
            _ => None,
        }
    }

    /// Waits, with an eye on signals; a timeout where it takes longer than `limit`.
    fn wait(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<Outcome> {
        let limit = match limit {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds.max(0.0))
                    .map_err(|_| bad(format!("invalid timeout {seconds}: use a number of seconds, or None")))?,
            ),
        };
        let started = Instant::now();
        loop {
            if let Some(outcome) = self.outcome() {
                // Whoever knows that the request is over may use, and resize, its buffer.
                crate::life::tidy();
                return Ok(outcome);
            }
            let left = limit.map(|limit| limit.saturating_sub(started.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(PyTimeoutError::new_err("the request is still running"));
            }
            self.request.watch();
            let signal = &self.request.signal;
            py.detach(|| signal.wait(left.map_or(LOOK_AFTER, |left| left.min(LOOK_AFTER))));
            py.check_signals()?;
        }
    }

    /// Refuses children of the process that made the request.
    fn begin(&self) -> PyResult<()> {
        if self.birth.was_elsewhere() { crate::life::begin() } else { Ok(()) }
    }
}

impl Drop for Future {
    /// What goes on in the order of a stream has a share of its file, whose end may wait for a device.
    fn drop(&mut self) {
        // In a child, a thread of the parent's may have held the lock.
        if self.birth.was_elsewhere() {
            return;
        }
        let on_stream = lock(&self.request.state).take_on_stream();
        if let Some(on_stream) = on_stream {
            end_detached(on_stream);
        }
    }
}

#[pymethods]
impl Future {
    /// Waits until the request is over: how many bytes it has moved, or its exception. `TimeoutError` after
    /// `timeout` seconds, and the request goes on.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        self.begin()?;
        self.wait(py, timeout)?.map(|report| report.bytes()).map_err(|error| of_request(&error))
    }

    /// The exception of a request, or None; waits like `result`.
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyErr>> {
        self.begin()?;
        Ok(self.wait(py, timeout)?.err().map(|error| of_request(&error)))
    }

    /// Whether the request is over.
    fn done(&self) -> PyResult<bool> {
        self.begin()?;
        let is_over = self.outcome().is_some();
        if is_over {
            // Whoever knows that the request is over may use, and resize, its buffer.
            crate::life::tidy();
        }
        Ok(is_over)
    }

    /// Asks the request to end early, with `CancelledError`; whether it was still under way. Its buffer is in
    /// use until it is over.
    fn cancel(&self) -> PyResult<bool> {
        self.begin()?;
        match &*self.request.look() {
            State::Running(Running::Read(pending)) => pending.cancel(),
            State::Running(Running::Batch(pending)) => pending.cancel(),
            State::Running(Running::Write(pending)) => pending.cancel(),
            State::Running(Running::OnStream(_, cancel)) | State::Watched(cancel) => cancel.cancel(),
            State::Running(Running::Nothing) | State::Over(_) => return Ok(false),
        }
        Ok(true)
    }

    /// What the request did, as a dictionary: the engine of every byte, predicted and actual times. Waits
    /// until it is over.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.begin()?;
        match &*self.wait(py, None)?.map_err(|error| of_request(&error))? {
            Report::Read(report) => to_python(py, report),
            Report::Batch(report) => to_python(py, report),
            Report::Write(report) => to_python(py, report),
            Report::Bytes(bytes) => to_python(py, &serde_json::json!({ "bytes": bytes })),
        }
    }

    /// A descriptor, the caller's to close, that becomes readable when the request is over.
    fn event_descriptor(&self) -> PyResult<i32> {
        self.begin()?;
        // SAFETY: makes a descriptor.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            let error = std::io::Error::last_os_error();
            return Err(PyOSError::new_err((error.raw_os_error(), format!("eventfd failed: {error}"))));
        }
        // SAFETY: new, and nobody else's.
        let event = unsafe { OwnedFd::from_raw_fd(raw) };
        let ours = event.try_clone()?;
        // Looked at outside of the signal's lock, which is taken inside of the state's elsewhere.
        let is_over = self.outcome().is_some();
        let mut over = lock(&self.request.signal.over);
        if is_over || over.0 {
            ring(&ours);
        } else {
            over.1.push(ours);
            drop(over);
            self.request.watch();
        }
        Ok(event.into_raw_fd())
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let wait = slf.py().import("bifolio._waiting")?.getattr("wait")?;
        wait.call1((slf,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        let state = if self.birth.was_elsewhere() {
            "of another process"
        } else {
            match self.outcome() {
                None => "under way",
                Some(Ok(_)) => "done",
                Some(Err(_)) => "failed",
            }
        };
        format!("<bifolio.Future: {state}>")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
