//! How much is under way in the queue of a stream: its requests, and the closed gates of its stream.

use bifolio_device::Gate;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Closed gates of one stream at most, as many as every driver takes ([`bifolio_device::Stream::gate`]). With
/// more of them it is the driver that makes the caller wait, and some drivers hold a lock of all streams
/// meanwhile; here nobody else waits.
pub(super) const GATES_MAX: usize = 24;

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    count: Mutex<Count>,
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct Count {
    requests: usize,
    gates: usize,
}

impl Traffic {
    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl Fn(&Count) -> bool) -> MutexGuard<'_, Count> {
        self.fewer.wait_while(self.lock(), |count| condition(count)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Another request.
    pub(super) fn begin(self: &Arc<Self>) -> Counted {
        self.lock().requests += 1;
        Counted(Arc::clone(self))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock().requests == 0
    }

    /// Waits until no request is under way.
    pub(super) fn wait_for_end(&self) {
        drop(self.wait_while(|count| count.requests > 0));
    }

    /// Room for another closed gate, which is waited for.
    pub(super) fn room(self: &Arc<Self>) -> Closed {
        self.wait_while(|count| count.gates >= GATES_MAX).gates += 1;
        Closed { gate: None, traffic: Arc::clone(self) }
    }

    #[cfg(test)]
    pub(super) fn gates(&self) -> usize {
        self.lock().gates
    }
}

/// A request that counts, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<Traffic>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.lock().requests -= 1;
        self.0.fewer.notify_all();
    }
}

/// A closed gate that counts, or room for one. It opens when it is dropped.
#[derive(Debug)]
pub(super) struct Closed {
    gate: Option<Gate>,
    traffic: Arc<Traffic>,
}

impl Closed {
    pub(super) fn by(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        drop(self.gate.take());
        self.traffic.lock().gates -= 1;
        self.traffic.fewer.notify_all();
    }
}
