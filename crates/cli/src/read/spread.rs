//! `bifolio read --device A,B --spread shard|replicate`: one file into several devices.

use super::args::ReadArgs;
use super::check::{Wanted, check};
use super::run::Run;
use crate::exit::Failure;
use crate::global::Global;
use crate::progress::Progress;
use crate::{output, signals};
use bifolio_bench::harness::router::open_file;
use bifolio_bench::harness::usage::cpu_seconds;
use bifolio_bench::harness::verify::poison;
use bifolio_device::{Allocation, Device, DeviceId};
use bifolio_io::{Cancel, Exchange, OpenFile, Router, Spread, SpreadReport, part_of, read_spread, size};
use serde::Serialize;
use std::fmt::Write;
use std::ops::Range;

/// What one device got.
#[derive(Debug, Serialize)]
struct Landed {
    device: DeviceId,
    /// Offset in the file of the first byte on the device, and bytes there.
    offset: u64,
    bytes: u64,
    /// Bytes that crossed the device's own link from the host.
    read_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

/// The whole answer, as JSON: the best run.
#[derive(Debug, Serialize)]
struct Answer {
    file: String,
    spread: Spread,
    exchange: Exchange,
    bytes: u64,
    /// Its rate is of bytes that are on devices now, all devices together.
    #[serde(flatten)]
    best: Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    devices: Vec<Landed>,
}

/// Reads, checks, and prints.
pub fn run(global: &Global, options: &ReadArgs, cancel: &Cancel) -> Result<(), Failure> {
    let devices = global.devices()?;
    let file = open_file(options.file(), &devices[0])?;
    let settings = options.router.settings();
    let routers = devices.iter().map(|device| settings.router(device, &file, cancel));
    let routers: Vec<Router> = routers.collect::<Result<_, _>>()?;
    let length = options.length_in(&file)?;
    let range = options.offset..options.offset.saturating_add(length.unwrap_or(0));
    let parts: Vec<_> = (0..devices.len()).map(|number| landing(&range, number, &devices, options.spread)).collect();
    let memories = devices.iter().zip(&parts).map(|(device, part)| device.alloc(part.end - part.start));
    let memories: Vec<_> = memories.collect::<Result<_, _>>()?;
    let mut best: Option<(SpreadReport, f64)> = None;
    for _ in 0..options.repeat {
        signals::check(cancel)?;
        for (device, memory) in devices.iter().zip(&memories) {
            poison(device, memory.slice())?;
        }
        let (report, cpu) = read_once(&routers, &file, options, length, &memories, cancel)?;
        if best.as_ref().is_none_or(|(best, _)| report.seconds < best.seconds) {
            best = Some((report, cpu));
        }
    }
    let (report, cpu) = best.ok_or_else(|| Failure::failed("nothing was read"))?;
    let wanted = Wanted { sha256: options.sha256, compare: options.verify };
    let mut landed = vec![];
    for (number, (router, memory)) in routers.iter().zip(&memories).enumerate() {
        let checked = check(router, &file, memory.slice(), parts[number].start, wanted, cancel)?;
        let read_bytes = report.parts[number].0.end - report.parts[number].0.start;
        let (device, offset, bytes) = (devices[number].id(), parts[number].start, memory.len());
        landed.push(Landed { device, offset, bytes, read_bytes, sha256: checked.sha256 });
    }
    let bytes: u64 = landed.iter().map(|landed| landed.bytes).sum();
    let answer = Answer {
        file: options.file().display().to_string(),
        spread: options.spread,
        exchange: report.exchange,
        bytes,
        best: Run::new(bytes, report.seconds, cpu),
        verified: options.verify.then_some(true),
        devices: landed,
    };
    global.answer(&answer, || describe(&answer))
}

/// What of the file lands on a device.
fn landing(range: &Range<u64>, number: usize, devices: &[Device], spread: Spread) -> Range<u64> {
    match spread {
        Spread::Shard => part_of(range, number, devices.len()),
        Spread::Replicate => range.clone(),
    }
}

fn read_once(
    routers: &[Router],
    file: &OpenFile,
    options: &ReadArgs,
    length: Option<u64>,
    memories: &[Allocation],
    cancel: &Cancel,
) -> Result<(SpreadReport, f64), Failure> {
    let progress = Progress::of_bytes("reading", length.unwrap_or(0));
    let read = options.request(&progress, cancel);
    let routers: Vec<&Router> = routers.iter().collect();
    let slices: Vec<_> = memories.iter().map(Allocation::slice).collect();
    let before = cpu_seconds();
    let length = length.or(options.length);
    let report = read_spread(&routers, file, options.offset, length, &slices, options.spread, &read)?;
    Ok((report, cpu_seconds() - before))
}

fn describe(answer: &Answer) -> String {
    let how = match (answer.spread, answer.exchange) {
        (Spread::Shard, _) => "shared out among",
        (Spread::Replicate, Exchange::EachReadAll) => "replicated (each reads everything) on",
        (Spread::Replicate, _) => "replicated (parts exchanged) on",
    };
    let mut text = format!(
        "{}: {how} {} devices in {:.3} ms: {:.3} GB/s in all, {:.3} CPU s/GB\n",
        output::printable(&answer.file),
        answer.devices.len(),
        answer.best.seconds * 1e3,
        answer.best.gb_per_s,
        answer.best.cpu_s_per_gb
    );
    for landed in &answer.devices {
        let (bytes, read) = (size::human(landed.bytes), size::human(landed.read_bytes));
        let _ = writeln!(text, "{}: {bytes} from offset {}, {read} over its own link", landed.device, landed.offset);
        if let Some(sha256) = &landed.sha256 {
            let _ = writeln!(text, "{}: sha256 {sha256} (of device memory)", landed.device);
        }
    }
    if answer.verified.is_some() {
        text.push_str("verified: device memories and file are the same\n");
    }
    text
}
