//! The queues of all streams that have requests, by their streams.

use super::late::Late;
use super::queue::StreamQueue;
use super::staging;
use crate::buffer::Memory;
use crate::status::Outcome;
use bifolio_device::pointer::locate_stream;
use bifolio_device::{DeviceChoice, DeviceId};
use bifolio_io::{Router, process};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Queues at most, unless more are in use: programs may make streams without end and register none.
pub(super) const QUEUES_MAX: usize = 16;
/// `CU_STREAM_PER_THREAD`: one handle for a stream of each thread.
const STREAM_PER_THREAD: usize = 2;

/// A stream: its device, the address of the router of its context, its handle, and the thread where that is a
/// part of it. Whoever has such a key keeps the router.
pub(super) type Key = (DeviceId, usize, u64, Option<ThreadId>);

type Queues = HashMap<Key, Arc<Mutex<StreamQueue>>>;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of a request's stream: that of its memory, else that of the stream, else the embedded one, for
/// programs without a driver.
fn home_of(memory: &Memory, stream: usize) -> Outcome<(Key, Arc<Router>)> {
    let located = memory.located.or_else(|| locate_stream(stream as u64));
    let thread = (stream == STREAM_PER_THREAD).then(|| std::thread::current().id());
    let router = match located {
        Some(located) => process::router_of(&located)?,
        None => process::router(DeviceChoice::Exactly(DeviceId::HOST))?,
    };
    Ok(((router.device().id(), Arc::as_ptr(&router).addr(), stream as u64, thread), router))
}

/// Enqueues a request on a stream.
pub(super) fn enqueue(late: Late, stream: usize) -> Outcome<()> {
    let (key, router) = home_of(&late.memory, stream)?;
    let queue = queue_of(key, router)?;
    lock(&queue).enqueue(late)
}

pub(super) fn queue_of(key: Key, router: Arc<Router>) -> Outcome<Arc<Mutex<StreamQueue>>> {
    let mut queues = lock(&QUEUES);
    if let Some(queue) = queues.get(&key) {
        return Ok(Arc::clone(queue));
    }
    let mut given_up = vec![];
    if queues.len() >= QUEUES_MAX {
        let idle = |queue: &Arc<Mutex<StreamQueue>>| Arc::strong_count(queue) == 1 && lock(queue).is_idle();
        given_up = queues.extract_if(|_, queue| idle(queue)).collect();
    }
    let queue = Arc::new(Mutex::new(StreamQueue::open(key.0, key.2, router)?));
    queues.insert(key, Arc::clone(&queue));
    drop(queues);
    // Freeing their memory may wait for the device, and others are waiting for the list.
    drop(given_up);
    Ok(queue)
}

/// Gives up the queues of a stream, once their requests are over.
pub(super) fn forget(stream: usize) {
    let given_up: Vec<_> = lock(&QUEUES).extract_if(|key, _| key.2 == stream as u64).collect();
    drop(given_up);
}

/// Gives up all queues, on which nothing is under way, and what they shared.
pub(super) fn forget_all() {
    let given_up = std::mem::take(&mut *lock(&QUEUES));
    drop(given_up);
    staging::forget_unused();
}
