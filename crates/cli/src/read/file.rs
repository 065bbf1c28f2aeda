//! `bifolio read FILE`: one file into one device.

use super::args::ReadArgs;
use super::check::{Checked, Stamp, Wanted, check};
use super::explain::{Answer, describe};
use super::run::Run;
use crate::exit::Failure;
use crate::global::Global;
use crate::progress::Progress;
use crate::signals;
use bifolio_bench::harness::router::open_file;
use bifolio_bench::harness::usage::cpu_seconds;
use bifolio_bench::harness::verify::poison;
use bifolio_device::DeviceSlice;
use bifolio_io::{Cancel, Error, OpenFile, ReadOptions, ReadReport, Router};
use std::sync::Arc;

/// Reads, checks, and prints.
pub fn run(global: &Global, options: &ReadArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let file = open_file(options.file(), &device)?;
    let router = options.router.settings().router(&device, &file, cancel)?;
    let length = options.length_in(&file)?;
    let memory =
        device.alloc(length.unwrap_or(0)).map_err(|error| Error::device(file.path(), error).at(options.offset))?;
    let before = Stamp::of(&file);
    let mut runs = Vec::new();
    for _ in 0..options.repeat {
        signals::check(cancel)?;
        poison(&device, memory.slice())?;
        runs.push(read_once(&router, &file, options, length, memory.slice(), cancel)?);
    }
    let bytes = runs.last().map_or(0, |(report, _)| report.bytes);
    let wanted = Wanted { sha256: options.sha256, compare: options.verify };
    let checked = check(&router, &file, memory.slice().part(0, bytes)?, options.offset, wanted, cancel)
        .map_err(|failure| before.explain(&file, failure))?;
    report(global, options, &router, &runs, checked)
}

fn read_once(
    router: &Router,
    file: &Arc<OpenFile>,
    options: &ReadArgs,
    length: Option<u64>,
    memory: DeviceSlice<'_>,
    cancel: &Cancel,
) -> Result<(ReadReport, f64), Failure> {
    let progress = Progress::of_bytes("reading", memory.len());
    let read = ReadOptions { report_residency: true, ..options.request(&progress, cancel) };
    let before = cpu_seconds();
    let report = router.read(file, options.offset, length.or(options.length), memory, &read)?;
    Ok((report, cpu_seconds() - before))
}

fn report(
    global: &Global,
    options: &ReadArgs,
    router: &Router,
    runs: &[(ReadReport, f64)],
    checked: Checked,
) -> Result<(), Failure> {
    let quickest = runs.iter().min_by(|one, two| one.0.seconds.total_cmp(&two.0.seconds));
    let (best, cpu) = quickest.ok_or_else(|| Failure::failed("nothing was read"))?;
    let run = |(report, cpu): &(ReadReport, f64)| Run::new(report.bytes, report.seconds, *cpu);
    let answer = Answer {
        file: options.file().display().to_string(),
        device: router.device().id(),
        bytes: best.bytes,
        best: Run::new(best.bytes, best.seconds, *cpu),
        sha256: checked.sha256,
        verified: options.verify.then_some(true),
        residency: best.residency,
        plan: &best.plan,
        plan_seconds: best.plan_seconds,
        predicted_s: best.predicted_s,
        reason: &best.reason,
        pinned_bytes: router.pool_stats().allocated_bytes,
        runs: if runs.len() > 1 { runs.iter().map(run).collect() } else { vec![] },
    };
    global.answer(&answer, || describe(&answer, options.explain))
}
