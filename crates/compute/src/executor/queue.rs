//! What waits, for whom, and in whose turn.
//!
//! One lock guards it all, and is held for decisions only.

use super::fair::Fair;
use super::job::{CallerId, Task};
use super::layout::BOUNDARY;
use super::options::{Options, WhenFull};
use crate::cost::Path;
use crate::{Error, ErrorKind, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// All that waits in an executor.
#[derive(Debug)]
pub(crate) struct Queue {
    options: Options,
    waiting: Mutex<Waiting>,
    /// There is work for a pipeline.
    for_pipelines: Condvar,
    /// A request is over, so that its caller may have another one.
    for_callers: Condvar,
    loads: [Load; 2],
}

#[derive(Debug)]
struct Waiting {
    tasks: [Fair<CallerId, Task>; 2],
    callers: HashMap<CallerId, Turns>,
    /// Jobs that are not over.
    jobs: usize,
    /// Threads that compute, or are about to.
    shifts: usize,
    /// Shifts that found no work any more, and have not given their memory back yet.
    ending: usize,
    is_closed: bool,
    /// A pipeline holds a small batch and waits for more.
    is_gathering: bool,
}

/// The requests of a caller that are not over.
#[derive(Debug, Default)]
struct Turns {
    under_way: usize,
    /// One of a caller in order is in a queue or runs.
    is_busy: bool,
    /// Jobs of a caller in order that wait for the one before.
    held: VecDeque<Vec<Task>>,
}

/// What is under way on a path.
#[derive(Debug, Default)]
struct Load {
    /// Sum of what its jobs are expected to take.
    expected_ns: AtomicI64,
    jobs: AtomicUsize,
}

/// How many threads of the host are to come and compute: [`Queue::next_task`] until there is none.
#[must_use = "tasks wait for them"]
pub(crate) struct Shifts(pub(crate) usize);

impl Waiting {
    fn is_over(&self) -> bool {
        self.is_closed && self.jobs == 0
    }

    /// Queues tasks of one job.
    fn push(&mut self, tasks: Vec<Task>, cpu_threads: usize) -> Shifts {
        let mut shifts = 0;
        for task in tasks {
            let (caller, bytes, path) = (task.job.caller, task.bytes(), task.job.path);
            if is_joinable(&task) {
                task.job.kind.add_waiting(task.job.route, bytes);
            }
            if path == Path::Cpu && self.shifts < cpu_threads {
                self.shifts += 1;
                shifts += 1;
            }
            self.tasks[path as usize].push(caller, bytes, task);
        }
        Shifts(shifts)
    }
}

/// Whether others may come to share a batch with it.
fn is_joinable(task: &Task) -> bool {
    task.job.path == Path::Device && task.job.is_whole()
}

/// How many bytes of a kind on a route make a good batch.
fn knee_of(task: &Task, slot_bytes: u64) -> u64 {
    task.job.kind.knee(task.job.route, slot_bytes)
}

impl Queue {
    pub(crate) fn new(options: Options) -> Self {
        let (tasks, callers, jobs, shifts, ending) = Default::default();
        let waiting = Waiting { tasks, callers, jobs, shifts, ending, is_closed: false, is_gathering: false };
        let (for_pipelines, for_callers, loads) = Default::default();
        Self { options, waiting: Mutex::new(waiting), for_pipelines, for_callers, loads }
    }

    /// Takes no more requests, and waits until those that were taken are over and their callers know.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.for_pipelines.notify_all();
        self.for_callers.notify_all();
        let mut waiting = self.lock();
        while !waiting.is_over() || waiting.shifts + waiting.ending > 0 {
            waiting = wait(&self.for_callers, waiting);
        }
    }

    /// What is expected to be under way on a path, in nanoseconds.
    pub(crate) fn expected_ns(&self, path: Path) -> f32 {
        self.loads[path as usize].expected_ns.load(Ordering::Relaxed).max(0) as f32
    }

    /// Jobs under way on a path.
    pub(crate) fn jobs(&self, path: Path) -> usize {
        self.loads[path as usize].jobs.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the caller may have one more request, or refuses.
    pub(crate) fn admit(&self, caller: CallerId) -> Result<()> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_closed {
                return Err(Error::new(ErrorKind::Closed, "the executor is closed"));
            }
            let turns = waiting.callers.entry(caller).or_default();
            if turns.under_way < self.options.depth {
                turns.under_way += 1;
                waiting.jobs += 1;
                return Ok(());
            }
            if self.options.when_full == WhenFull::Refuse {
                let depth = self.options.depth;
                let detail =
                    format!("the caller has {depth} requests under way, as many as it may; wait for one of them");
                return Err(Error::new(ErrorKind::Busy, detail));
            }
            waiting = wait(&self.for_callers, waiting);
        }
    }

    /// Queues the tasks of an admitted job.
    pub(crate) fn enqueue(&self, tasks: Vec<Task>, in_order: bool) -> Shifts {
        let Some(first) = tasks.first() else { return Shifts(0) };
        let (caller, path) = (first.job.caller, first.job.path);
        let load = &self.loads[path as usize];
        load.expected_ns.fetch_add(first.job.expected_ns as i64, Ordering::Relaxed);
        load.jobs.fetch_add(1, Ordering::Relaxed);
        let shifts = {
            let mut waiting = self.lock();
            let turns = waiting.callers.entry(caller).or_default();
            if in_order && std::mem::replace(&mut turns.is_busy, true) {
                turns.held.push_back(tasks);
                return Shifts(0);
            }
            waiting.push(tasks, self.options.cpu_threads)
        };
        self.wake(path);
        shifts
    }

    fn wake(&self, path: Path) {
        if path == Path::Device {
            // One of them may be gathering, and another one asleep.
            self.for_pipelines.notify_all();
        }
    }

    /// Ends a job: its caller may have another one, and what it holds back begins.
    pub(crate) fn release(&self, caller: CallerId, path: Path, expected_ns: u64) -> Shifts {
        let load = &self.loads[path as usize];
        load.expected_ns.fetch_sub(expected_ns as i64, Ordering::Relaxed);
        load.jobs.fetch_sub(1, Ordering::Relaxed);
        self.depart(caller, true)
    }

    /// Takes back the admission of a job which never was in a queue.
    pub(crate) fn leave(&self, caller: CallerId) {
        let Shifts(none) = self.depart(caller, false);
        debug_assert_eq!(none, 0, "nothing was held back by a job that never was in a queue");
    }

    fn depart(&self, caller: CallerId, was_queued: bool) -> Shifts {
        let mut waiting = self.lock();
        waiting.jobs -= 1;
        let is_over = waiting.is_over();
        let mut next = None;
        if let Some(turns) = waiting.callers.get_mut(&caller) {
            turns.under_way -= 1;
            if was_queued {
                next = turns.held.pop_front();
                turns.is_busy = next.is_some();
            }
            if turns.under_way == 0 {
                waiting.callers.remove(&caller);
            }
        }
        let begun = next.map(|tasks| (tasks[0].job.path, waiting.push(tasks, self.options.cpu_threads)));
        drop(waiting);
        self.for_callers.notify_all();
        if is_over {
            self.for_pipelines.notify_all();
        }
        let Some((path, shifts)) = begun else { return Shifts(0) };
        self.wake(path);
        shifts
    }

    /// The next task for a thread of the host; none when its shift is over.
    pub(crate) fn next_task(&self) -> Option<Task> {
        let mut waiting = self.lock();
        let task = waiting.tasks[Path::Cpu as usize].pop();
        if task.is_none() {
            waiting.shifts -= 1;
            waiting.ending += 1;
        }
        task
    }

    /// A shift that found no more work holds nothing of the executor's any more.
    pub(crate) fn end_shift(&self) {
        let mut waiting = self.lock();
        waiting.ending -= 1;
        if waiting.is_closed {
            self.for_callers.notify_all();
        }
    }

    /// The next batch for a pipeline: a task, and with a small one others that join it, for which it waits a
    /// moment unless other work does. None when the executor has ended.
    pub(crate) fn next_batch(&self) -> Option<Vec<Task>> {
        let mut waiting = self.lock();
        let first = loop {
            if !waiting.is_gathering
                && let Some(task) = waiting.tasks[Path::Device as usize].pop()
            {
                break task;
            }
            if waiting.is_over() {
                return None;
            }
            waiting = wait(&self.for_pipelines, waiting);
        };
        let room = |task: &Task| {
            let output = task.output.end - task.output.start;
            task.bytes().max(output).next_multiple_of(BOUNDARY)
        };
        let slot = self.options.slot_bytes;
        let (mut bytes, goal) = (room(&first), knee_of(&first, slot).min(slot));
        let deadline = first.job.submitted + self.options.merge_wait;
        let mut batch = vec![first];
        while bytes < goal {
            let joins = |task: &Task| bytes + room(task) <= slot && task.joins(&batch[0]);
            let tasks = &mut waiting.tasks[Path::Device as usize];
            if let Some(task) = tasks.pop_if(joins) {
                bytes += room(&task);
                batch.push(task);
                continue;
            }
            let now = Instant::now();
            let others_wait = !tasks.is_empty();
            if others_wait || waiting.is_closed || now >= deadline || batch.iter().any(|task| task.job.is_urgent) {
                break;
            }
            waiting.is_gathering = true;
            let waited = self.for_pipelines.wait_timeout(waiting, deadline - now);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
            waiting.is_gathering = false;
        }
        for task in batch.iter().filter(|task| is_joinable(task)) {
            task.job.kind.take_waiting(task.job.route, task.bytes());
        }
        // Pipelines that were kept from taking work while this one gathered.
        let is_more = !waiting.tasks[Path::Device as usize].is_empty();
        drop(waiting);
        if is_more {
            self.for_pipelines.notify_all();
        }
        Some(batch)
    }
}

fn wait<'a>(condvar: &Condvar, waiting: MutexGuard<'a, Waiting>) -> MutexGuard<'a, Waiting> {
    condvar.wait(waiting).unwrap_or_else(PoisonError::into_inner)
}
