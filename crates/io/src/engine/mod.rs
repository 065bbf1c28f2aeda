//! The engines: each moves the segments of one job that were planned for it, as they are planned.
//!
//! When [`Engine::finish`] returns, its copies have landed, or the job failed and nothing of it is
//! in flight any more: no read into a slot, no copy out of one. Failures go to [`Job::fail`],
//! which stops the other engines; the job is the only place where an error is kept.

pub(crate) mod cached;
pub(crate) mod direct;
pub(crate) mod mapped;
pub(crate) mod p2p;

use crate::batch::Piece;
use crate::feed::Feed;
use crate::job::Job;
use bifolio_device::{Device, Event, Result, Slot, Stream};
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An engine at work on one job.
pub(crate) trait Engine: Send + Sync + Debug {
    /// Where its segments come from.
    fn feed(&self) -> &Feed;

    /// How many threads should work on `bytes`, the calling one included.
    fn threads(&self, bytes: u64) -> usize;

    /// One thread's share of the work, until the feed is closed and empty or the job stops.
    fn work(&self);

    /// Waits until everything has landed. Called once, after all calls of `work` have returned.
    fn finish(&self);
}

/// Streams kept between requests: creating one is slow, and requests must not share one.
#[derive(Debug)]
pub(crate) struct Streams {
    device: Device,
    idle: Mutex<Vec<Stream>>,
}

impl Streams {
    pub(crate) fn new(device: &Device) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), idle: Mutex::default() })
    }

    pub(crate) fn take(self: &Arc<Self>) -> Result<LentStream> {
        let idle = self.lock().pop();
        let stream = idle.map_or_else(|| self.device.create_stream(), Ok)?;
        Ok(LentStream { stream: Some(stream), home: Arc::clone(self), is_clean: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream in use. Dropping it keeps the stream for the next request if it was declared clean;
/// otherwise the stream goes too, because a failure stays on it.
#[derive(Debug)]
pub(crate) struct LentStream {
    stream: Option<Stream>,
    home: Arc<Streams>,
    is_clean: AtomicBool,
}

impl LentStream {
    /// Nothing is in flight, and nothing failed.
    pub(crate) fn declare_clean(&self) {
        self.is_clean.store(true, Ordering::Release);
    }
}

impl Deref for LentStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        self.stream.as_ref().expect("a lent stream is there until it is dropped")
    }
}

impl Drop for LentStream {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take().filter(|_| self.is_clean.load(Ordering::Acquire)) {
            self.home.lock().push(stream);
        }
    }
}

/// Enqueues the copies of pieces that have been read into a slot, and an event behind them.
///
/// # Safety
/// The slot's bytes stay unwritten until the event is done: the slot is retired with it.
unsafe fn enqueue_copies(job: &Job, stream: &Stream, slot: &mut Slot, pieces: &[Piece]) -> crate::Result<Event> {
    let start = slot.buffer().as_ptr();
    for piece in pieces {
        let place = job.place(piece.offset, piece.len)?;
        // SAFETY: `wanted_at() + len` lies inside the slot by the batch's construction; the
        // caller keeps the slot.
        let copied = unsafe { stream.copy_to_device(place, start.add(piece.wanted_at() as usize)) };
        copied.map_err(|error| job.device_error(error).at(piece.offset))?;
    }
    stream.record().map_err(|error| job.device_error(error))
}

/// Waits for everything on an engine's stream; the last thing that an engine does. Blocks on an
/// event, which does not spin, where a stream's own synchronisation may.
fn drain(job: &Job, stream: &LentStream) {
    let landed = stream.record().and_then(|event| event.wait());
    match landed.or_else(|first| stream.synchronize().and(Err(first))) {
        Ok(()) if !job.is_stopped() => stream.declare_clean(),
        Ok(()) => {}
        Err(error) => job.fail(job.device_error(error)),
    }
}
