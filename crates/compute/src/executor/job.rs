//! Requests inside the executor: one job a request, cut into tasks that are computed on their own.
//!
//! A task owns its share of the job's memory: no two tasks write the same byte, and the memory goes back to
//! the caller when the last task is over. A task that fails leaves the error of its job; the others go on.

use crate::cost::{Kind, Path, Route};
use crate::memory::{Memory, View};
use crate::outcome::{Answers, Outcome};
use crate::service::{Output, Step};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Cancel, Promise};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Whose request it is, for turns and order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallerId(pub(crate) u64);

/// A request that was taken.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) caller: CallerId,
    pub(crate) path: Path,
    pub(crate) kind: Arc<Kind>,
    pub(crate) route: Route,
    pub(crate) bytes: u64,
    /// Somebody waits for it now: it is not held back to be merged.
    pub(crate) is_urgent: bool,
    /// It takes the path that is thought to be slower.
    pub(crate) is_trial: bool,
    pub(crate) source: View,
    /// None where the source is written, or nothing.
    pub(crate) destination: Option<View>,
    pub(crate) output: Output,
    /// What it adds to the backlog of its path, in nanoseconds.
    pub(crate) expected_ns: u64,
    pub(crate) submitted: Instant,
    cancel: Cancel,
    /// Nanoseconds from submission to the first task's beginning, plus one; 0 before.
    began_ns: AtomicU64,
    tasks: usize,
    left: AtomicUsize,
    /// Whether a task shared a batch with other jobs: then its time says nothing about it alone.
    pub(crate) was_merged: AtomicBool,
    /// Nothing else was on its path when it came.
    was_alone: bool,
    /// What it took in nanoseconds, as bits of f32, if nothing else was there when it was over either: so that its caller,
    /// who waits, can tell what such a job takes. 0 if not.
    alone_ns: AtomicU32,
    rest: Mutex<Rest>,
}

/// What its tasks leave for its end.
#[derive(Debug)]
struct Rest {
    memory: Option<(Memory, Option<Memory>)>,
    results: Vec<Vec<u8>>,
    error: Option<Error>,
    by_cpu_bytes: u64,
    promise: Option<Promise<Outcome>>,
}

/// What a job begins with.
pub(crate) struct Order {
    pub(crate) caller: CallerId,
    pub(crate) path: Path,
    pub(crate) kind: Arc<Kind>,
    pub(crate) route: Route,
    pub(crate) bytes: u64,
    pub(crate) is_urgent: bool,
    pub(crate) is_trial: bool,
    pub(crate) source: Memory,
    pub(crate) destination: Option<Memory>,
    pub(crate) output: Output,
    pub(crate) results: Vec<u64>,
    pub(crate) expected_ns: u64,
    pub(crate) was_alone: bool,
}

/// A share of a job that is computed at once.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) job: Arc<Job>,
    pub(crate) steps: Vec<Step>,
    pub(crate) input: Range<u64>,
    pub(crate) output: Range<u64>,
    /// Of each step.
    pub(crate) results: Vec<Range<u64>>,
}

impl Job {
    pub(crate) fn new(order: Order, tasks: usize, cancel: Cancel, promise: Promise<Outcome>) -> Arc<Self> {
        let Order { mut source, mut destination, .. } = order;
        let (source_view, destination_view) = (source.view(), destination.as_mut().map(Memory::view));
        let results = order.results.iter().map(|len| vec![0; *len as usize]).collect();
        let memory = Some((source, destination));
        let rest = Rest { memory, results, error: None, by_cpu_bytes: 0, promise: Some(promise) };
        Arc::new(Self {
            caller: order.caller,
            path: order.path,
            kind: order.kind,
            route: order.route,
            bytes: order.bytes,
            is_urgent: order.is_urgent,
            is_trial: order.is_trial,
            source: source_view,
            destination: destination_view,
            output: order.output,
            expected_ns: order.expected_ns,
            submitted: Instant::now(),
            cancel,
            began_ns: AtomicU64::new(0),
            tasks,
            left: AtomicUsize::new(tasks),
            was_merged: AtomicBool::new(false),
            was_alone: order.was_alone,
            alone_ns: AtomicU32::new(0),
            rest: Mutex::new(rest),
        })
    }

    /// Where output goes, if there is any.
    pub(crate) fn target(&self) -> Option<View> {
        match self.output {
            Output::Nothing => None,
            Output::Same => Some(self.destination.unwrap_or(self.source)),
            Output::Apart(_) => self.destination,
        }
    }

    /// Whether output goes over the input.
    pub(crate) fn is_in_place(&self) -> bool {
        self.output == Output::Same && self.destination.is_none()
    }

    /// Whether it was not cut.
    pub(crate) fn is_whole(&self) -> bool {
        self.tasks == 1
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Notes that it is over, and whether others are on its path. A job beside others takes longer than it would alone,
    /// which is what the curves are about.
    pub(crate) fn learn(&self, ran_ns: f32, is_alone: bool) {
        if !is_alone || self.was_merged.load(Ordering::Relaxed) {
            return;
        }
        if !self.is_urgent {
            self.kind.learn_ran(self.path, self.route, self.bytes, ran_ns);
        } else if self.was_alone {
            self.alone_ns.store(ran_ns.max(1.0).to_bits(), Ordering::Release);
        }
    }

    /// What it took, as its caller sees it who waited: with waking up the one who computes, and the caller.
    pub(crate) fn learn_from_caller(&self) {
        let ran_ns = f32::from_bits(self.alone_ns.load(Ordering::Acquire));
        if ran_ns > 0.0 {
            let seen_ns = self.submitted.elapsed().as_nanos() as f32;
            self.kind.learn_waited(self.path, self.route, self.bytes, (seen_ns, ran_ns));
        }
    }

    /// Notes that a task begins; how long it has waited, in nanoseconds.
    pub(crate) fn begin(&self) -> u64 {
        let waited = self.submitted.elapsed().as_nanos() as u64;
        let _ = self.began_ns.compare_exchange(0, waited + 1, Ordering::Relaxed, Ordering::Relaxed);
        waited
    }

    /// What it took from its first task's beginning until now, in nanoseconds.
    pub(crate) fn ran_ns(&self) -> f32 {
        let began = self.began_ns.load(Ordering::Relaxed).saturating_sub(1);
        (self.submitted.elapsed().as_nanos() as u64).saturating_sub(began) as f32
    }

    fn lock(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, path: Path) -> Ending {
        let (outcome, promise) = {
            let mut rest = self.lock();
            let path = if rest.by_cpu_bytes * 2 > self.bytes { Path::Cpu } else { path };
            let is_taken_over = path == Path::Cpu && self.path == Path::Device;
            let (source, destination) = rest.memory.take().map_or((None, None), |(source, to)| (Some(source), to));
            let results = std::mem::take(&mut rest.results);
            let result = rest.error.take().map_or(Ok(Answers { results, path, is_taken_over }), Err);
            (Outcome { source, destination, result }, rest.promise.take())
        };
        self.kind.count_request(self.tasks, outcome.result.as_ref().err().map(Error::kind));
        Ending { outcome, promise }
    }
}

impl Task {
    pub(crate) fn bytes(&self) -> u64 {
        self.input.end - self.input.start
    }

    /// Whether both can be computed by one launch of each of their steps.
    pub(crate) fn joins(&self, other: &Self) -> bool {
        self.steps.len() == other.steps.len()
            && self.job.output == other.job.output
            && self.job.route == other.job.route
            && self.steps.iter().zip(&other.steps).all(|(a, b)| a.joins(b))
    }

    /// Ends the task with its results, step by step, or with why there are none. With the last task the job is
    /// over, and its promise to be kept.
    pub(crate) fn finish(self, path: Path, outcome: Result<Vec<Vec<u8>>>) -> Option<Ending> {
        {
            let mut rest = self.job.lock();
            if path == Path::Cpu {
                rest.by_cpu_bytes += self.bytes();
            }
            match outcome {
                Ok(found) => {
                    for ((whole, range), found) in rest.results.iter_mut().zip(&self.results).zip(found) {
                        whole[range.start as usize..range.end as usize].copy_from_slice(&found);
                    }
                }
                Err(error) => _ = rest.error.get_or_insert(error),
            }
        }
        (self.job.left.fetch_sub(1, Ordering::AcqRel) == 1).then(|| self.job.finish(path))
    }
}

/// The end of a job that its caller does not know of yet.
#[derive(Debug)]
pub(crate) struct Ending {
    outcome: Outcome,
    promise: Option<Promise<Outcome>>,
}

impl Ending {
    /// Tells the caller, who may do anything then; a panic of the caller's callback ends here, as the thread goes on to
    /// the work of others.
    pub(crate) fn keep(self) {
        if let Some(promise) = self.promise {
            let told = AssertUnwindSafe(|| promise.keep(self.outcome));
            let _ = catch_unwind(told);
        }
    }
}

/// What a cancelled task ends with.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the request was cancelled; the contents of its destination are undefined")
}

/// What a request is cut into.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) steps: Vec<Step>,
    pub(crate) input: Range<u64>,
    pub(crate) output: Range<u64>,
    pub(crate) results: Vec<Range<u64>>,
}

/// Cuts work into parts of at most `part_bytes` where it can be cut there, and of as few more as it must be.
pub(crate) fn split(steps: &[Step], bytes: u64, part_bytes: u64) -> Result<Vec<Cut>> {
    let mut cuts = vec![];
    let mut rest = steps.to_vec();
    let (mut at, mut written) = (0, 0);
    let mut found = vec![0; steps.len()];
    loop {
        let left = bytes - at;
        let len = common_cut(&rest, left, part_bytes);
        let (head, tail): (Vec<Step>, Vec<Step>) =
            if len == left { (rest, vec![]) } else { rest.iter().map(|step| step.split(len)).unzip() };
        let mut results = vec![];
        let before = written;
        for (step, found) in head.iter().zip(&mut found) {
            let shape = step.shape(len)?;
            results.push(*found..*found + shape.results);
            *found += shape.results;
            written = written.max(before + shape.output.bytes(len));
        }
        cuts.push(Cut { steps: head, input: at..at + len, output: before..written, results });
        at += len;
        if at == bytes {
            return Ok(cuts);
        }
        rest = tail;
    }
}

/// A place where every step can be cut: the last one that makes a part of at most `part_bytes`, or the first one
/// found beyond; `bytes` where there is none.
fn common_cut(steps: &[Step], bytes: u64, part_bytes: u64) -> u64 {
    let mut limit = part_bytes.max(1);
    while limit < bytes {
        let mut at = limit;
        loop {
            let agreed = steps.iter().fold(at, |at, step| step.cut(at).min(at));
            if agreed == at || agreed == 0 {
                at = agreed;
                break;
            }
            at = agreed;
        }
        if at > 0 {
            return at.min(bytes);
        }
        limit = limit.saturating_mul(2);
    }
    bytes
}
