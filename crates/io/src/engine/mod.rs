//! The engines: each moves the segments of one job that were planned for it.
//!
//! An engine returns when its copies have landed, or when the job failed and nothing of it is in
//! flight any more: no read into a slot, no copy out of one. Failures go to [`Job::fail`], which
//! stops the other engines; the job is the only place where an error is kept.

pub(crate) mod cached;
pub(crate) mod direct;
pub(crate) mod mapped;
pub(crate) mod p2p;

use crate::batch::Piece;
use crate::job::Job;
use bifolio_device::{Device, Event, Result, Slot, Stream};
use std::sync::{Mutex, PoisonError};

/// Streams kept between requests: creating one is slow, and requests must not share one.
#[derive(Debug)]
pub(crate) struct Streams {
    device: Device,
    idle: Mutex<Vec<Stream>>,
}

impl Streams {
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), idle: Mutex::default() }
    }

    pub(crate) fn take(&self) -> Result<Stream> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.device.create_stream(), Ok)
    }

    /// Takes back a stream with no work in flight. One whose work failed is dropped instead: the
    /// failure would stay on it.
    pub(crate) fn give_back(&self, stream: Stream) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
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
fn drain(job: &Job, stream: &Stream) {
    let landed = stream.record().and_then(|event| event.wait());
    if let Err(error) = landed.or_else(|first| stream.synchronize().and(Err(first))) {
        job.fail(job.device_error(error));
    }
}
