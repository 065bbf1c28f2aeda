//! The executor's threads: what becomes of parts.

use super::Shared;
use super::choice::Path;
use super::cpu::{Cpu, Found};
use super::job::{Part, cancelled};
use super::lane::{Failure, Lane};
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Computes parts on the CPU until the executor has ended.
pub(crate) fn cpu(shared: &Shared) {
    let mut cpu = Cpu::new(&shared.device, shared.options.cpu_part_bytes);
    while let Some(part) = shared.next_part() {
        compute(shared, &mut cpu, part);
    }
}

/// Computes batches on the device until the executor has ended.
pub(crate) fn lane(shared: &Shared) {
    let mut cpu = Cpu::new(&shared.device, shared.options.cpu_part_bytes);
    let mut lane = Lane::new(&shared.device, shared.options.slot_bytes);
    while let Some(batch) = shared.next_batch() {
        let (batch, over): (Vec<Part>, Vec<Part>) = batch.into_iter().partition(|part| !part.job.is_cancelled());
        for part in over {
            end(shared, part, Path::Device, Err(cancelled()));
        }
        if !batch.is_empty() {
            launch(shared, &mut lane, &mut cpu, batch);
        }
    }
}

fn compute(shared: &Shared, cpu: &mut Cpu, part: Part) {
    if part.job.is_cancelled() {
        return end(shared, part, Path::Cpu, Err(cancelled()));
    }
    let (waited_ns, begin) = (part.job.begin(), Instant::now());
    let outcome = by_cpu(cpu, &part);
    part.job.kind.count_parts(Path::Cpu, part.bytes(), waited_ns, begin.elapsed().as_nanos() as u64);
    end(shared, part, Path::Cpu, outcome);
}

fn launch(shared: &Shared, lane: &mut Lane, cpu: &mut Cpu, batch: Vec<Part>) {
    let kind = Arc::clone(&batch[0].job.kind);
    if kind.is_off().is_some() {
        return batch.into_iter().for_each(|part| take_over(shared, cpu, part));
    }
    let is_merged = batch.len() > 1;
    let waited: Vec<u64> = batch.iter().map(|part| part.job.begin()).collect();
    let begin = Instant::now();
    match lane.run(&batch) {
        Ok(found) => {
            let ran_ns = begin.elapsed().as_nanos() as u64;
            kind.count_batch(batch.len() as u64);
            let bytes: u64 = batch.iter().map(Part::bytes).sum();
            let under_way = shared.load[Path::Device as usize].jobs.load(Ordering::Relaxed);
            if is_merged && under_way <= batch.len() {
                kind.learn_ran(Path::Device, batch[0].job.route, bytes, ran_ns as f32);
            }
            let share_ns = ran_ns / batch.len() as u64;
            for ((part, outcome), waited_ns) in batch.into_iter().zip(found).zip(waited) {
                part.job.was_merged.fetch_or(is_merged, Ordering::Relaxed);
                kind.count_parts(Path::Device, part.bytes(), waited_ns, share_ns);
                end(shared, part, Path::Device, outcome);
            }
        }
        Err(Failure { error, is_overwritten }) => {
            // What does not fit or was asked for wrongly says nothing about the device.
            if matches!(error.kind(), ErrorKind::Device | ErrorKind::Panicked) {
                kind.turn_off(format!("it failed on {}: {error}", shared.device.id()));
            }
            for part in batch {
                if is_overwritten && part.job.is_in_place() {
                    let detail = format!("the device failed while it wrote over its source, which is lost: {error}");
                    end(shared, part, Path::Device, Err(Error::new(ErrorKind::Device, detail).of(kind.name())));
                } else {
                    take_over(shared, cpu, part);
                }
            }
        }
    }
}

/// Computes on the CPU what was meant for the device.
fn take_over(shared: &Shared, cpu: &mut Cpu, part: Part) {
    part.job.kind.count_takeover(1);
    compute(shared, cpu, part);
}

/// Computes a part, or says why not; a panic is an error of the part's.
pub(crate) fn by_cpu(cpu: &mut Cpu, part: &Part) -> Result<Found> {
    let computed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cpu.run(part)));
    computed.unwrap_or_else(|_| {
        let detail = "the service panicked on the CPU; please report it";
        Err(Error::new(ErrorKind::Panicked, detail).of(part.job.kind.name()))
    })
}

/// Ends a part, and with the last one its job.
pub(crate) fn end(shared: &Shared, part: Part, path: Path, outcome: Result<Found>) {
    let job = Arc::clone(&part.job);
    let is_good = outcome.is_ok();
    let ran_ns = job.ran_ns();
    let Some(ending) = part.finish(path, outcome) else { return };
    if is_good && path == job.path {
        job.learn(ran_ns, shared.load[job.path as usize].jobs.load(Ordering::Relaxed) <= 1);
    }
    if job.is_trial {
        job.kind.tried(job.submitted.elapsed().as_nanos() as f32);
    }
    shared.release(job.caller, job.path, job.expected_ns);
    ending.keep();
}
