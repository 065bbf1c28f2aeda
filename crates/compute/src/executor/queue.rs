//! What waits, for whom, and in whose turn.

use super::choice::Path;
use super::curve::knee;
use super::fair::Fair;
use super::job::{CallerId, Part};
use super::layout::BOUNDARY;
use super::{Shared, WhenFull};
use crate::{Error, ErrorKind, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Instant;

/// All queues of an executor, under one lock.
#[derive(Debug)]
pub(crate) struct Queues {
    waiting: [Fair<CallerId, Part>; 2],
    callers: HashMap<CallerId, CallerState>,
    /// Jobs that are not over.
    jobs: usize,
    is_closed: bool,
    /// A lane holds a small batch and waits for more.
    is_gathering: bool,
}

#[derive(Debug, Default)]
struct CallerState {
    under_way: usize,
    /// One of a caller in order is in a queue or runs.
    is_busy: bool,
    /// Jobs of a caller in order that wait for the one before.
    held: VecDeque<Vec<Part>>,
}

/// Merging goes on until a batch reaches this share of the best rate.
const KNEE: f32 = 0.8;

impl Queues {
    pub(crate) fn new(quantum_bytes: u64) -> Self {
        let waiting = [Fair::new(quantum_bytes), Fair::new(quantum_bytes)];
        Self { waiting, callers: HashMap::new(), jobs: 0, is_closed: false, is_gathering: false }
    }

    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.jobs == 0
    }

    fn push(&mut self, parts: Vec<Part>) {
        for part in parts {
            let (caller, bytes, path) = (part.job.caller, part.bytes(), part.job.path);
            if is_joinable(&part) {
                part.job.kind.add_waiting(part.job.route, bytes);
            }
            self.waiting[path as usize].push(caller, bytes, part);
        }
    }
}

/// Whether others may come to share a batch with it.
fn is_joinable(part: &Part) -> bool {
    part.job.path == Path::Device && part.job.is_whole()
}

/// How many bytes of a kind on a route make a good batch.
fn knee_of(part: &Part, slot_bytes: u64) -> u64 {
    let curve = part.job.kind.curve(Path::Device, part.job.route);
    knee(&curve.snapshot(), KNEE, slot_bytes)
}

impl Shared {
    /// Waits until the caller may have one more request, or refuses.
    pub(crate) fn admit(&self, caller: CallerId) -> Result<()> {
        let mut queues = self.lock_queues();
        loop {
            if queues.is_closed {
                return Err(Error::new(ErrorKind::Closed, "the executor has ended"));
            }
            let state = queues.callers.entry(caller).or_default();
            if state.under_way < self.options.depth {
                state.under_way += 1;
                queues.jobs += 1;
                return Ok(());
            }
            if self.options.when_full == WhenFull::Refuse {
                let depth = self.options.depth;
                let detail = format!("the caller has {depth} requests under way; wait for one of them");
                return Err(Error::new(ErrorKind::Busy, detail));
            }
            queues = wait(&self.for_callers, queues);
        }
    }

    /// Queues the parts of an admitted job.
    pub(crate) fn enqueue(&self, parts: Vec<Part>, in_order: bool) {
        let Some(first) = parts.first() else { return };
        let (caller, path) = (first.job.caller, first.job.path);
        let load = &self.load[path as usize];
        load.expected_ns.fetch_add(first.job.expected_ns as i64, Ordering::Relaxed);
        load.jobs.fetch_add(1, Ordering::Relaxed);
        let count = parts.len();
        {
            let mut queues = self.lock_queues();
            let state = queues.callers.entry(caller).or_default();
            if in_order && std::mem::replace(&mut state.is_busy, true) {
                state.held.push_back(parts);
                return;
            }
            queues.push(parts);
        }
        self.wake(path, count);
    }

    fn wake(&self, path: Path, parts: usize) {
        match path {
            // One of them may be gathering, and another one asleep.
            Path::Device => self.for_lanes.notify_all(),
            Path::Cpu if parts == 1 => self.for_cpus.notify_one(),
            Path::Cpu => self.for_cpus.notify_all(),
        }
    }

    /// Ends a job: its caller may have another one, and what it holds back begins.
    pub(crate) fn release(&self, caller: CallerId, path: Path, expected_ns: u64) {
        let load = &self.load[path as usize];
        load.expected_ns.fetch_sub(expected_ns as i64, Ordering::Relaxed);
        load.jobs.fetch_sub(1, Ordering::Relaxed);
        self.depart(caller, true);
    }

    /// Takes back the admission of a job which never was in a queue.
    pub(crate) fn leave(&self, caller: CallerId) {
        self.depart(caller, false);
    }

    fn depart(&self, caller: CallerId, was_queued: bool) {
        let mut queues = self.lock_queues();
        queues.jobs -= 1;
        let is_over = queues.is_over();
        let mut next = None;
        if let Some(state) = queues.callers.get_mut(&caller) {
            state.under_way -= 1;
            if was_queued {
                next = state.held.pop_front();
                state.is_busy = next.is_some();
            }
            if state.under_way == 0 {
                queues.callers.remove(&caller);
            }
        }
        let woken = next.map(|parts| {
            let woken = (parts[0].job.path, parts.len());
            queues.push(parts);
            woken
        });
        drop(queues);
        self.for_callers.notify_all();
        if let Some((path, parts)) = woken {
            self.wake(path, parts);
        }
        if is_over {
            self.for_lanes.notify_all();
            self.for_cpus.notify_all();
        }
    }

    /// The next part for a CPU thread; none when the executor has ended.
    pub(crate) fn next_part(&self) -> Option<Part> {
        let mut queues = self.lock_queues();
        loop {
            if let Some(part) = queues.waiting[Path::Cpu as usize].pop() {
                return Some(part);
            }
            if queues.is_over() {
                return None;
            }
            queues = wait(&self.for_cpus, queues);
        }
    }

    /// The next batch for a lane: a part, and with a small one others that join it, for which it waits a moment
    /// unless other work does. None when the executor has ended.
    pub(crate) fn next_batch(&self) -> Option<Vec<Part>> {
        let mut queues = self.lock_queues();
        let first = loop {
            if !queues.is_gathering
                && let Some(part) = queues.waiting[Path::Device as usize].pop()
            {
                break part;
            }
            if queues.is_over() {
                return None;
            }
            queues = wait(&self.for_lanes, queues);
        };
        let room = |part: &Part| {
            let output = part.output.end - part.output.start;
            part.bytes().max(output).next_multiple_of(BOUNDARY)
        };
        let slot = self.options.slot_bytes;
        let (mut bytes, goal) = (room(&first), knee_of(&first, slot).min(slot));
        let deadline = first.job.submitted + self.options.merge_wait;
        let mut batch = vec![first];
        while bytes < goal {
            let joins = |part: &Part| bytes + room(part) <= slot && part.joins(&batch[0]);
            let lane = &mut queues.waiting[Path::Device as usize];
            if let Some(part) = lane.pop_if(joins) {
                bytes += room(&part);
                batch.push(part);
                continue;
            }
            let now = Instant::now();
            let others_wait = !lane.is_empty();
            if others_wait || queues.is_closed || now >= deadline || batch.iter().any(|part| part.job.is_urgent) {
                break;
            }
            queues.is_gathering = true;
            let waited = self.for_lanes.wait_timeout(queues, deadline - now);
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
            queues.is_gathering = false;
        }
        for part in batch.iter().filter(|part| is_joinable(part)) {
            part.job.kind.take_waiting(part.job.route, part.bytes());
        }
        // Lanes that were kept from taking work while this one gathered.
        let is_more = !queues.waiting[Path::Device as usize].is_empty();
        drop(queues);
        if is_more {
            self.for_lanes.notify_all();
        }
        Some(batch)
    }
}

fn wait<'a>(condvar: &Condvar, queues: MutexGuard<'a, Queues>) -> MutexGuard<'a, Queues> {
    condvar.wait(queues).unwrap_or_else(PoisonError::into_inner)
}
