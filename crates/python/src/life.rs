//! The life of the process: what must be over before the interpreter ends, who keeps the memory of requests,
//! and children that cannot go on.
//!
//! Threads of `bifolio-io` never touch the interpreter. What they are done with goes to a list, and the
//! interpreter is asked to clear it when it comes by (`Py_AddPendingCall`, which any thread may call). When
//! the interpreter ends, reads are cancelled, as nobody can see their bytes any more, writes are carried
//! out, and everything is waited for: no thread uses memory of Python's afterwards.
//!
//! A child of `fork` has neither the threads nor the driver of its parent; it is refused before it touches
//! a lock that a thread of the parent may have held.

use crate::error::{Error, bad};
use bifolio_device::Allocation;
use bifolio_device::fork::Birth;
use bifolio_io::{Cancel, ReadOptions, WriteOptions};
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Where the package was first used.
static BIRTH: OnceLock<Birth> = OnceLock::new();
/// The interpreter is ending.
static ENDED: AtomicBool = AtomicBool::new(false);
/// Calls that have let go of the interpreter's lock and use memory of Python's.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Requests that own memory of Python's.
static OWNERS: AtomicUsize = AtomicUsize::new(0);
/// The same for requests behind streams of the program's, which it alone can bring on.
static OWNERS_ON_STREAMS: AtomicUsize = AtomicUsize::new(0);
/// Reads that run by themselves.
static READS: LazyLock<Mutex<HashMap<u64, Cancel>>> = LazyLock::new(Mutex::default);
/// What requests are done with.
static LEFT: Mutex<Vec<Keeper>> = Mutex::new(Vec::new());
/// The interpreter was asked to clear it.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Options of every read on a caller's thread; the end of the interpreter cancels them.
pub(crate) static READ: LazyLock<ReadOptions> = LazyLock::new(ReadOptions::default);

/// How long the end waits for streams of the program's.
const STREAMS_WAIT: Duration = Duration::from_secs(5);

/// What keeps memory of Python's in place.
#[derive(Debug)]
pub(crate) enum Keeper {
    /// The exporter.
    Object(#[allow(dead_code, reason = "kept for its reference")] Py<PyAny>),
    /// A view of the buffer protocol: its exporter neither moves nor resizes while there is one.
    View(#[allow(dead_code, reason = "kept for its destructor")] View),
    /// Memory of ours.
    Memory(#[allow(dead_code, reason = "kept for its reference")] Shared<Allocation>),
}

/// A share of something whose end may wait for a device, whose work may wait for a function of the program's in
/// Python: the last share ends without the interpreter's lock. Shares are dropped by threads that have it.
#[derive(Debug)]
pub(crate) struct Shared<T: Send>(Option<Arc<T>>);

impl<T: Send> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// A share for others, who end it with or without the lock.
    pub(crate) fn share(&self) -> &Arc<T> {
        self.0.as_ref().expect("a share has its value until it is dropped")
    }
}

impl<T: Send> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.share()
    }
}

impl<T: Send> Drop for Shared<T> {
    fn drop(&mut self) {
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            end_detached(last);
        }
    }
}

/// Drops something without the interpreter's lock, which the caller has. A thread that lets go of it while the
/// interpreter ends does not get it back: what the end has not waited for is dropped as it is.
pub(crate) fn end_detached<T: Send>(value: T) {
    if !is_ending() {
        Python::try_attach(move |py| detached(py, move || drop(value)));
    }
}

/// A filled `Py_buffer`.
pub(crate) struct View(pub(crate) Box<ffi::Py_buffer>);

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({:?}, {} bytes)", self.0.buf, self.0.len)
    }
}

// SAFETY: a view is a record of addresses; it is released with the interpreter's lock held.
unsafe impl Send for View {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for View {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: filled by `PyObject_GetBuffer`, and released once. Where there is no interpreter any more,
        // there is no exporter to tell.
        Python::try_attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

/// Keeps the memory of a request for `bifolio-io`, which drops it on any thread.
#[derive(Debug)]
pub(crate) struct Owner {
    keeper: Option<Keeper>,
    birth: Birth,
    on_stream: bool,
    /// Its place among the reads.
    read: Option<u64>,
}

impl Owner {
    /// Keeps memory for a request. Reads are cancelled when the interpreter ends.
    pub(crate) fn new(keeper: Keeper, read: Option<&Cancel>, on_stream: bool) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        counter(on_stream).fetch_add(1, Ordering::AcqRel);
        let read = read.map(|cancel| {
            let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
            lock(&READS).insert(number, cancel.clone());
            number
        });
        Arc::new(Self { keeper: Some(keeper), birth: Birth::here(), on_stream, read })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            std::mem::forget(self.keeper.take());
            return;
        }
        if let Some(number) = self.read {
            lock(&READS).remove(&number);
        }
        lock(&LEFT).extend(self.keeper.take());
        ask_to_clear();
        // Last: whoever ends the interpreter waits for this.
        counter(self.on_stream).fetch_sub(1, Ordering::AcqRel);
    }
}

fn counter(on_stream: bool) -> &'static AtomicUsize {
    if on_stream { &OWNERS_ON_STREAMS } else { &OWNERS }
}

/// Asks the interpreter to clear what is left, unless it was asked or ends.
fn ask_to_clear() {
    if ENDED.load(Ordering::Acquire) || ASKED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: may be called on any thread while there is an interpreter, and its end waits for owners.
    if unsafe { ffi::Py_AddPendingCall(Some(clear_when_asked), std::ptr::null_mut()) } != 0 {
        // Its queue is full. The next call clears.
        ASKED.store(false, Ordering::Release);
    }
}

extern "C" fn clear_when_asked(_: *mut c_void) -> c_int {
    // The interpreter calls with its lock held; PyO3 has to know.
    Python::try_attach(|_| clear());
    0
}

/// Lets go of what requests are done with. The interpreter's lock is held.
fn clear() {
    ASKED.store(false, Ordering::Release);
    // Outside of the lock: exporters run code of theirs.
    let left = std::mem::take(&mut *lock(&LEFT));
    drop(left);
}

/// At the start of every call: refuses children of a process that has used the package, and calls at the end.
pub(crate) fn begin() -> PyResult<()> {
    if BIRTH.get_or_init(Birth::here).was_elsewhere() {
        return Err(Error::new_err(
            "this process was forked from one that had used bifolio, whose threads and driver do not survive a fork: fork \
             before the first use, or use multiprocessing's \"spawn\" or \"forkserver\" start method",
        ));
    }
    if ENDED.load(Ordering::Acquire) {
        return Err(Error::new_err("cannot submit new requests: the interpreter is shutting down"));
    }
    tidy();
    Ok(())
}

/// Clears what is left without waiting for the interpreter to come by, which it does on its main thread only,
/// and not at all where its queue was full.
pub(crate) fn tidy() {
    let is_clear = lock(&LEFT).is_empty();
    if !is_clear {
        clear();
    }
}

/// Whether the interpreter is ending, for work that takes long.
pub(crate) fn is_ending() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// Runs what waits without the interpreter's lock.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl Send + FnOnce() -> T) -> T {
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            CALLS.fetch_sub(1, Ordering::AcqRel);
        }
    }
    CALLS.fetch_add(1, Ordering::AcqRel);
    let _counted = Counted;
    py.detach(work)
}

/// Options of a write.
pub(crate) fn write_options(durable: bool) -> WriteOptions {
    WriteOptions { durable, ..WriteOptions::default() }
}

/// Takes no further requests, waits for those under way, and then does `last`, which may wait, too.
pub(crate) fn end(py: Python<'_>, last: impl Send + FnOnce()) -> PyResult<()> {
    if BIRTH.get().is_none_or(|birth| birth.was_elsewhere()) {
        return Ok(());
    }
    ENDED.store(true, Ordering::Release);
    READ.cancel.cancel();
    lock(&READS).values().for_each(Cancel::cancel);
    py.detach(|| {
        let started = Instant::now();
        let waits = || {
            let on_streams = OWNERS_ON_STREAMS.load(Ordering::Acquire) > 0 && started.elapsed() < STREAMS_WAIT;
            CALLS.load(Ordering::Acquire) > 0 || OWNERS.load(Ordering::Acquire) > 0 || on_streams
        };
        while waits() {
            std::thread::sleep(Duration::from_micros(200));
        }
        last();
    });
    clear();
    py.check_signals().map_err(|_| bad("interrupted"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
