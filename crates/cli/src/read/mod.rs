//! `bifolio read`: a file, or a part of it, into device memory.
//!
//! The memory is filled with a pattern before every run, so that bytes that a run did not write
//! are seen by `--sha256` and `--verify`, which read device memory back in chunks: the file is
//! never in host memory as a whole.

mod check;
mod explain;
mod spread;
mod volume;

pub use check::Checker;
use check::{Checked, Wanted, check};
pub use spread::devices as spread_devices;
pub use volume::sealed;

use crate::args::{Args, ProfileChoice, ReadArgs, RouterArgs};
use crate::exit::Failure;
use crate::progress::Progress;
use crate::resources::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use crate::{output, signals};
use bifolio_device::{Device, DeviceId, DeviceSlice, open};
use bifolio_io::{
    Cancel, Error, OpenFile, Profile, ReadOptions, ReadReport, ResidencyReport, Router, RouterOptions, SegmentReport,
};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// What device memory holds before a run.
const POISON: u8 = 0xa5;

/// One run, as JSON.
#[derive(Debug, Clone, Copy, Serialize)]
struct Run {
    seconds: f64,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
}

/// The whole answer, as JSON: the best run, and what was checked after the last.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    file: String,
    device: DeviceId,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    residency: Option<ResidencyReport>,
    plan: &'a [SegmentReport],
    plan_seconds: f64,
    predicted_s: f64,
    reason: &'a str,
    pinned_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs: Vec<Run>,
}

/// Reads, checks, and prints.
pub fn run(args: &Args, options: &ReadArgs, cancel: &Cancel) -> Result<(), Failure> {
    if !options.volume.is_empty() || options.key.key_file.is_some() {
        return volume::run(args, options, cancel);
    }
    if args.devices.len() > 1 {
        return spread::run(args, options, cancel);
    }
    let device = open(args.device()?)?;
    let file = open_file(options.file(), &device)?;
    let router = router(&device, &file, &options.router, cancel)?;
    let length = length_of(&file, options)?;
    let memory =
        device.alloc(length.unwrap_or(0)).map_err(|error| Error::device(file.path(), error).at(options.offset))?;
    let before = check::Stamp::of(&file);
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
    report(args, options, &router, &runs, checked)
}

/// Opens a file for a device, so that errors name both.
pub fn open_file(path: &Path, device: &Device) -> Result<Arc<OpenFile>, Failure> {
    Ok(Arc::new(OpenFile::open(path).map_err(|error| error.into_device(device.id()))?))
}

/// A router as the command line describes it, with the profile for this file.
pub fn router(device: &Device, file: &OpenFile, args: &RouterArgs, cancel: &Cancel) -> Result<Router, Failure> {
    Ok(Router::new(device, router_options(device, file, args, cancel)?))
}

/// What the command line says about the router.
pub fn router_options(
    device: &Device,
    file: &OpenFile,
    args: &RouterArgs,
    cancel: &Cancel,
) -> Result<RouterOptions, Failure> {
    let profile = match &args.profile {
        ProfileChoice::Auto => Profile::find(device, file)?,
        ProfileChoice::None => None,
        ProfileChoice::File(path) => Some(Profile::load(path, device, file)?),
    };
    let defaults = RouterOptions::default();
    let as_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Ok(RouterOptions {
        threads: args.threads.map_or(defaults.threads, usize::from),
        slot_bytes: as_usize(args.slot),
        pool_bytes: as_usize(args.pool),
        mapped_bytes: args.mapped_budget.unwrap_or(defaults.mapped_bytes),
        costs: profile.map(|profile| profile.costs),
        cancel: cancel.clone(),
        ..defaults
    })
}

/// Bytes that the request means. None where it means nothing that exists; the router says why.
pub(super) fn length_of(file: &OpenFile, options: &ReadArgs) -> Result<Option<u64>, Failure> {
    let left = file.size()?.checked_sub(options.offset);
    let fits = |length: &u64| options.offset.checked_add(*length).is_some_and(|end| i64::try_from(end).is_ok());
    Ok(match (left, options.length) {
        (Some(left), None) => Some(left),
        (Some(left), Some(length)) => Some(length).filter(fits).map(|length| length.min(left)),
        (None, _) => None,
    })
}

/// Overwrites device memory with the pattern.
pub fn poison(device: &Device, memory: DeviceSlice<'_>) -> Result<(), Failure> {
    let stream = device.create_stream()?;
    // SAFETY: the caller's memory stays valid until the synchronisation.
    unsafe { stream.fill(memory, POISON) }.and_then(|()| stream.synchronize())?;
    Ok(())
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
    let read = ReadOptions {
        engine: options.engine,
        report_residency: true,
        cancel: cancel.clone(),
        progress: progress.counter(),
        ..ReadOptions::default()
    };
    let before = cpu_seconds();
    let report = router.read(file, options.offset, length.or(options.length), memory, &read)?;
    Ok((report, cpu_seconds() - before))
}

fn report(
    args: &Args,
    options: &ReadArgs,
    router: &Router,
    runs: &[(ReadReport, f64)],
    checked: Checked,
) -> Result<(), Failure> {
    let quickest = runs.iter().min_by(|one, two| one.0.seconds.total_cmp(&two.0.seconds));
    let (best, cpu) = quickest.ok_or_else(|| Failure::failed("nothing was read"))?;
    let run = |(report, cpu): &(ReadReport, f64)| Run {
        seconds: report.seconds,
        gb_per_s: gb_per_s(report.bytes, report.seconds),
        cpu_s_per_gb: cpu_s_per_gb(report.bytes, *cpu),
    };
    let answer = Answer {
        file: options.file().display().to_string(),
        device: router.device().id(),
        bytes: best.bytes,
        seconds: best.seconds,
        gb_per_s: gb_per_s(best.bytes, best.seconds),
        cpu_s_per_gb: cpu_s_per_gb(best.bytes, *cpu),
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
    if args.json { output::json(&answer) } else { output::text(&explain::describe(&answer, options.explain)) }
}
