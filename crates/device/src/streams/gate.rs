//! Gates: points in a stream that the host opens.
//!
//! ```text
//!   work  work  | gate |  work  work  event        nothing behind the gate starts
//!                  ^
//!                  Gate::open, from any thread     ... until here
//! ```
//!
//! A thread can so enqueue what shall happen with data that other threads are still bringing, and
//! needs no thread that waits for them.

use super::stream::Stream;
use crate::backend::RawGate;
use crate::{Device, Result};

impl Stream {
    /// Makes later work of this stream wait until the gate that is returned is opened or dropped.
    ///
    /// Gates may be closed on many streams at a time, and on one stream at least 24 with some work
    /// and an event behind each. More of them may make the caller wait until an earlier one is
    /// opened (driver 580 on an H200: at the 57th with an event each, without events not at the 100th;
    /// at the 29th where gates are host functions). What opens a gate must depend on the host alone: whoever waits for the device before
    /// opening may wait for ever. In particular:
    /// - A driver has fewer queues than it can have streams (CUDA: 8 by default), and streams that
    ///   share a queue wait for each other's gates.
    /// - Some calls wait for the device and so for its closed gates: allocating and freeing,
    ///   copies from or to memory that is not page-locked, the first copy from a peer, loading a
    ///   module, the first launch of a kernel (every launch under `CUDA_LAUNCH_BLOCKING`), and
    ///   enqueueing more than the driver's queue holds. Make them before the gate or from a thread
    ///   that does not open it.
    /// - Dropping a stream may wait for its work: drop the gates first.
    pub fn gate(&self) -> Result<Gate> {
        self.name(self.raw.gate()).map(|raw| Gate { _raw: raw, _device: self.device.clone() })
    }
}

/// A closed gate in a stream ([`Stream::gate`]).
///
/// Dropping it opens it, so that a panic or an early return leaves no stream waiting. What was
/// enqueued behind it then runs on whatever the memory holds.
#[derive(Debug)]
#[must_use = "a gate that is dropped is open"]
pub struct Gate {
    _raw: Box<dyn RawGate>,
    _device: Device,
}

impl Gate {
    /// Lets the work behind the gate start. What this thread wrote to page-locked memory before
    /// is seen by that work. Does not wait for the device.
    pub fn open(self) {}
}
