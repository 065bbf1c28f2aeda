//! A device's primary context: the one that the CUDA runtime, PyTorch and CuPy use in this
//! process too, so that their pointers and streams are valid here and ours there. Programs of the driver
//! interface may have made a context of their own; what they allocate there is used there.
//!
//! A thread that enters the context leaves as it came: the current context of a thread is also
//! the CUDA runtime's idea of the current device, which is the caller's and not ours to change.

use super::abi::{self, ContextHandle, EventHandle, Ordinal};
use super::sys::Cuda;
use super::words::Words;
use crate::Result;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The primary contexts that are retained here, by device; 0 for none. A hint: one that is released and
/// made again may get another handle.
static PRIMARIES: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Events beyond this many that nobody uses are given back to the driver.
const SPARE_EVENTS_MAX: usize = 1024;

/// A context: a retained primary one, released when the last user of it is dropped, or the program's own.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) cuda: &'static Cuda,
    pub(super) device: Ordinal,
    handle: ContextHandle,
    is_retained: bool,
    /// Tells it from a later context with the same handle.
    incarnation: u64,
    /// Creating an event costs more than recording it, and one is recorded for each transfer. By [`Wait`].
    spare_events: [Mutex<Vec<EventHandle>>; 2],
    /// For gates; none where streams cannot wait for a word in memory.
    words: Option<Words>,
    /// Contexts of other devices that were connected with this one, successfully or not.
    peers: Mutex<Vec<Weak<Context>>>,
    /// The driver serialises host registrations anyway; concurrent ones have failed with ENOMEM.
    registering: Mutex<()>,
}

/// How an event is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// By asking again and again.
    Polled,
    /// Asleep after a while, by an interrupt: the GPU takes 0.8 us longer to reach such an event (H200).
    Asleep,
}

/// The thread's previous context, to be put back.
#[derive(Debug)]
pub(super) struct Entered<'a> {
    cuda: &'a Cuda,
    previous: Option<ContextHandle>,
    /// The thread's mode towards captures, where that was changed.
    capture_mode: Option<c_int>,
}

impl Context {
    pub(super) fn retain(cuda: &'static Cuda, device: Ordinal) -> Result<Arc<Self>> {
        Self::retain_with(cuda, device, waits_for_words(cuda, device))
    }

    /// Whether a context is known to be the primary one of its device, without asking the driver.
    pub(super) fn is_retained(device: Ordinal, handle: ContextHandle) -> bool {
        PRIMARIES.get(device as usize).is_some_and(|known| known.load(Ordering::Acquire) == handle.0)
    }

    /// A context of the program's, which stays its own. Once it has destroyed it, nothing may be asked of it
    /// any more: the driver may crash.
    pub(super) fn borrow(cuda: &'static Cuda, device: Ordinal, handle: ContextHandle) -> Arc<Self> {
        Arc::new(Self::with(cuda, device, handle, false, waits_for_words(cuda, device)))
    }

    /// The same, with gates that are words or not.
    pub(super) fn retain_with(cuda: &'static Cuda, device: Ordinal, waits_for_words: bool) -> Result<Arc<Self>> {
        let mut handle = ContextHandle::default();
        // SAFETY: the driver stores one handle.
        let status = unsafe { (cuda.cuDevicePrimaryCtxRetain)(&raw mut handle, device) };
        cuda.check(status, format_args!("creating a context on the GPU"))?;
        if let Some(known) = PRIMARIES.get(device as usize) {
            known.store(handle.0, Ordering::Release);
        }
        Ok(Arc::new(Self::with(cuda, device, handle, true, waits_for_words)))
    }

    fn with(
        cuda: &'static Cuda,
        device: Ordinal,
        handle: ContextHandle,
        is_retained: bool,
        waits_for_words: bool,
    ) -> Self {
        Self {
            cuda,
            device,
            handle,
            is_retained,
            incarnation: incarnation(cuda, handle),
            spare_events: Default::default(),
            words: waits_for_words.then(Words::default),
            peers: Mutex::default(),
            registering: Mutex::default(),
        }
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        let cuda = self.cuda;
        let mut current = ContextHandle::default();
        // SAFETY: the driver stores one handle.
        let status = unsafe { (cuda.cuCtxGetCurrent)(&raw mut current) };
        cuda.check(status, format_args!("querying the thread's current CUDA context"))?;
        if current == self.handle {
            return Ok(Entered { cuda, previous: None, capture_mode: None });
        }
        // SAFETY: the context is retained by `self`.
        let status = unsafe { (cuda.cuCtxSetCurrent)(self.handle) };
        cuda.check(status, format_args!("making the CUDA context current"))?;
        Ok(Entered { cuda, previous: Some(current), capture_mode: None })
    }

    /// The same for calls that allocate, ask or wait. While a program records any stream into a graph, in the mode
    /// that is the default, such a call of any thread fails and ends the recording, unless the thread says that its calls
    /// have nothing to do with it (`cuThreadExchangeStreamCaptureMode`; 0.06 us).
    pub(super) fn enter_relaxed(&self) -> Result<Entered<'_>> {
        let mut entered = self.enter()?;
        if let Some(exchange) = self.cuda.cuThreadExchangeStreamCaptureMode {
            let mut mode = abi::CAPTURE_MODE_RELAXED;
            // SAFETY: the driver stores the mode that the thread had.
            let status = unsafe { exchange(&raw mut mode) };
            entered.capture_mode = (status == abi::SUCCESS).then_some(mode);
        }
        Ok(entered)
    }

    /// Whether a primary context is the one that it was, and was not reset. Others are not asked.
    pub(super) fn is_as_it_was(&self) -> bool {
        !self.is_retained || incarnation(self.cuda, self.handle) == self.incarnation
    }

    /// Whether both are the same context.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.handle == other.handle
    }

    /// The driver's handle, for calls that name two contexts.
    pub(super) fn handle(&self) -> ContextHandle {
        self.handle
    }

    /// The words that gates of this context wait for.
    pub(super) fn words(&self) -> Option<&Words> {
        self.words.as_ref()
    }

    /// Other devices in use here that reach this one's memory.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = Ordinal> {
        let is_in_use = |known: &AtomicUsize| known.load(Ordering::Acquire) != 0;
        let others = (0..).zip(&PRIMARIES).filter(move |(_, known)| is_in_use(known)).map(|(device, _)| device);
        others.filter(|device| *device != self.device && self.is_reached_by(*device))
    }

    /// Whether another device can reach this one's memory.
    pub(super) fn is_reached_by(&self, device: Ordinal) -> bool {
        let mut can = 0;
        // SAFETY: the driver stores one integer.
        let status = unsafe { (self.cuda.cuDeviceCanAccessPeer)(&raw mut can, device, self.device) };
        status == abi::SUCCESS && can != 0
    }

    /// Asks, once for each peer, that the two devices reach each other's memory, so that copies
    /// between them need no host memory. A refusal is fine: the driver then copies by the host.
    pub(super) fn connect(&self, peer: &Arc<Self>) -> Result<()> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.iter().any(|known| known.as_ptr() == Arc::as_ptr(peer)) {
            return Ok(());
        }
        for (from, to) in [(self, &**peer), (peer, self)] {
            let _entered = from.enter_relaxed()?;
            // SAFETY: both contexts are retained.
            unsafe { (self.cuda.cuCtxEnablePeerAccess)(to.handle, 0) };
        }
        peers.push(Arc::downgrade(peer));
        Ok(())
    }

    /// An event that nothing waits for.
    pub(super) fn take_event(&self, wait: Wait) -> Result<EventHandle> {
        if let Some(event) = self.spare_events(wait).pop() {
            return Ok(event);
        }
        let flags = match wait {
            Wait::Polled => abi::EVENT_DISABLE_TIMING,
            Wait::Asleep => abi::EVENT_DISABLE_TIMING | abi::EVENT_BLOCKING_SYNC,
        };
        let mut event = EventHandle::default();
        // SAFETY: the driver stores one handle; the caller has entered the context.
        let status = unsafe { (self.cuda.cuEventCreate)(&raw mut event, flags) };
        self.cuda.check(status, format_args!("creating an event"))?;
        Ok(event)
    }

    /// Takes an event back. Streams that still wait for it keep what they captured.
    pub(super) fn return_event(&self, event: EventHandle, wait: Wait) {
        let mut spare = self.spare_events(wait);
        if spare.len() < SPARE_EVENTS_MAX {
            spare.push(event);
            return;
        }
        drop(spare);
        self.destroy_event(event);
    }

    /// Held while memory is registered or unregistered.
    pub(super) fn registering(&self) -> MutexGuard<'_, ()> {
        self.registering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare_events(&self, wait: Wait) -> MutexGuard<'_, Vec<EventHandle>> {
        self.spare_events[wait as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn destroy_event(&self, event: EventHandle) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the event has no owner any more; the driver defers if it is pending.
            unsafe { (self.cuda.cuEventDestroy_v2)(event) };
        }
    }
}

/// What the driver counts contexts by; 0 where it does not, or they are gone.
pub(super) fn incarnation(cuda: &Cuda, handle: ContextHandle) -> u64 {
    let mut id = 0;
    // SAFETY: the driver stores one number.
    let known = cuda.cuCtxGetId.is_some_and(|get| unsafe { get(handle, &raw mut id) } == abi::SUCCESS);
    if known { id } else { 0 }
}

fn waits_for_words(cuda: &Cuda, device: Ordinal) -> bool {
    cuda.cuStreamWaitValue32_v2.is_some() && cuda.attribute(device, abi::ATTRIBUTE_STREAM_MEMORY_OPERATIONS) != 0
}

impl Drop for Context {
    fn drop(&mut self) {
        for wait in [Wait::Polled, Wait::Asleep] {
            for event in std::mem::take(&mut *self.spare_events(wait)) {
                self.destroy_event(event);
            }
        }
        if let Some(words) = self.words.take()
            && let Ok(_entered) = self.enter()
        {
            words.free(self.cuda);
        }
        if self.is_retained {
            // SAFETY: retained once in `retain`. The status is of no use: at process exit the driver
            // may already be gone, and the context with it.
            unsafe { (self.cuda.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let (Some(mut mode), Some(exchange)) = (self.capture_mode, self.cuda.cuThreadExchangeStreamCaptureMode) {
            // SAFETY: the driver reads the mode, which the thread had before, and stores the one that it had since.
            unsafe { exchange(&raw mut mode) };
        }
        if let Some(previous) = self.previous {
            // SAFETY: the context was current on this thread when it was entered. If its owner
            // has destroyed it since, the driver refuses, which leaves nothing to do.
            unsafe { (self.cuda.cuCtxSetCurrent)(previous) };
        }
    }
}
