//! What threads do: what becomes of tasks.

use super::cpu::{Cpu, Found};
use super::job::{Task, cancelled};
use super::pipeline::{Failure, Pipeline};
use super::queue::Shifts;
use super::shared::Shared;
use crate::cost::Path;
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// Has so many threads of the host compute what waits; this one does it where there is none.
pub(crate) fn post(shared: &Arc<Shared>, Shifts(shifts): Shifts) {
    for _ in 0..shifts {
        let shared = Arc::clone(shared);
        shared.threads.post(move || shift(&shared));
    }
}

/// Computes tasks on the CPU until none waits.
fn shift(shared: &Arc<Shared>) {
    let mut cpu = shared.take_cpu();
    while let Some(task) = shared.queue.next_task() {
        compute(shared, &mut cpu, task);
    }
    shared.put_back(cpu);
    shared.queue.end_shift();
}

/// Computes batches on the device until the executor has ended. It lets go of `ready` when it has what it needs for that.
pub(crate) fn pipeline(shared: &Arc<Shared>, ready: Sender<()>) {
    // It waits for a device, and what it does between is short.
    bifolio_device::with_short_turns();
    let mut cpu = Cpu::new(&shared.device, shared.options.cpu_part_bytes);
    let mut pipeline = Pipeline::new(&shared.device, shared.options.slot_bytes);
    if shared.options.prepares {
        pipeline.prepare();
    }
    drop(ready);
    while let Some(batch) = shared.queue.next_batch() {
        let (batch, over): (Vec<Task>, Vec<Task>) = batch.into_iter().partition(|task| !task.job.is_cancelled());
        for task in over {
            end(shared, task, Path::Device, Err(cancelled()));
        }
        if !batch.is_empty() {
            launch(shared, &mut pipeline, &mut cpu, batch);
        }
    }
}

fn compute(shared: &Arc<Shared>, cpu: &mut Cpu, task: Task) {
    if task.job.is_cancelled() {
        return end(shared, task, Path::Cpu, Err(cancelled()));
    }
    let (waited_ns, begin) = (task.job.begin(), Instant::now());
    let outcome = by_cpu(cpu, &task);
    task.job.kind.count_parts(Path::Cpu, task.bytes(), waited_ns, begin.elapsed().as_nanos() as u64);
    end(shared, task, Path::Cpu, outcome);
}

fn launch(shared: &Arc<Shared>, pipeline: &mut Pipeline, cpu: &mut Cpu, batch: Vec<Task>) {
    let kind = Arc::clone(&batch[0].job.kind);
    if kind.is_off() {
        return batch.into_iter().for_each(|task| take_over(shared, cpu, task));
    }
    let is_merged = batch.len() > 1;
    let waited: Vec<u64> = batch.iter().map(|task| task.job.begin()).collect();
    let begin = Instant::now();
    match pipeline.run(&batch) {
        Ok(found) => {
            let ran_ns = begin.elapsed().as_nanos() as u64;
            kind.count_batch(batch.len() as u64);
            kind.succeed();
            let bytes: u64 = batch.iter().map(Task::bytes).sum();
            let under_way = shared.queue.jobs(Path::Device);
            if is_merged && under_way <= batch.len() {
                kind.learn_ran(Path::Device, batch[0].job.route, bytes, ran_ns as f32);
            }
            let share_ns = ran_ns / batch.len() as u64;
            for ((task, outcome), waited_ns) in batch.into_iter().zip(found).zip(waited) {
                task.job.was_merged.fetch_or(is_merged, Ordering::Relaxed);
                kind.count_parts(Path::Device, task.bytes(), waited_ns, share_ns);
                end(shared, task, Path::Device, outcome);
            }
        }
        Err(Failure { error, is_overwritten }) => {
            // What does not fit or was asked for wrongly says nothing about the device.
            let reason = || format!("it failed on {}: {error}", shared.device.id());
            match error.kind() {
                ErrorKind::Panicked => kind.turn_off(reason()),
                ErrorKind::Device if is_lost(&error) => kind.turn_off(reason()),
                ErrorKind::Device => kind.fail(reason()),
                _ => kind.note_unsuited(format!("{} could not take a request: {error}", shared.device.id())),
            }
            for task in batch {
                if is_overwritten && task.job.is_in_place() {
                    let detail = format!("the device failed while writing in place, and the source is lost: {error}");
                    end(shared, task, Path::Device, Err(Error::new(ErrorKind::Device, detail).of(kind.name())));
                } else {
                    take_over(shared, cpu, task);
                }
            }
        }
    }
}

/// Whether the device will never work again in this process.
fn is_lost(error: &Error) -> bool {
    let cause = error.cause().and_then(|cause| cause.downcast_ref::<bifolio_device::Error>());
    cause.is_some_and(|cause| cause.kind() == bifolio_device::ErrorKind::Lost)
}

/// Computes on the CPU what was meant for the device.
fn take_over(shared: &Arc<Shared>, cpu: &mut Cpu, task: Task) {
    task.job.kind.count_takeover(1);
    compute(shared, cpu, task);
}

/// Computes a task, or says why not; a panic is an error of the task's.
pub(crate) fn by_cpu(cpu: &mut Cpu, task: &Task) -> Result<Found> {
    let computed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cpu.run(task)));
    computed.unwrap_or_else(|_| {
        let detail = "the service panicked on the CPU; please report it";
        Err(Error::new(ErrorKind::Panicked, detail).of(task.job.kind.name()))
    })
}

/// Ends a task, and with the last one its job.
pub(crate) fn end(shared: &Arc<Shared>, task: Task, path: Path, outcome: Result<Found>) {
    let job = Arc::clone(&task.job);
    let is_good = outcome.is_ok();
    let ran_ns = job.ran_ns();
    let Some(ending) = task.finish(path, outcome) else { return };
    if is_good && path == job.path {
        job.learn(ran_ns, shared.queue.jobs(job.path) <= 1);
    }
    if job.is_trial {
        job.kind.tried(job.submitted.elapsed().as_nanos() as f32);
    }
    let next = shared.queue.release(job.caller, job.path, job.expected_ns);
    ending.keep();
    post(shared, next);
}
