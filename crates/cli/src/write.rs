//! `bifolio write`: device memory into a file. What is to be written is read into device memory first,
//! from a file, and that is not timed.

use crate::exit::{Code, Failure};
use crate::global::Global;
use crate::output;
use crate::progress::Progress;
use crate::router::RouterArgs;
use crate::signals;
use bifolio_bench::harness::router::open_file;
use bifolio_bench::harness::usage::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use bifolio_bench::harness::verify::Checker;
use bifolio_io::{Cancel, EngineChoice, ReadOptions, SegmentReport, WriteOptions, WriteReport, size};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;

/// Choices for `write`.
#[derive(Debug, ClapArgs)]
pub struct WriteArgs {
    /// The file; it is created if there is none. A striped set must exist.
    pub file: PathBuf,
    /// Where the bytes come from; they are read into device memory first.
    #[arg(long, value_name = "SOURCE")]
    pub from: PathBuf,
    /// Bytes to write [default: all of the source].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub length: Option<u64>,
    /// First byte in the file.
    #[arg(long, default_value = "0", value_parser = size::parse, value_name = "SIZE")]
    pub offset: u64,
    /// The engine; auto chooses between the page cache and the disk.
    #[arg(long, default_value = "auto", value_name = "auto|cached|direct")]
    pub engine: EngineChoice,
    /// End only when the bytes would survive a loss of power.
    #[arg(long)]
    pub sync: bool,
    /// Do not allocate what lies beyond the end of the file beforehand.
    #[arg(long)]
    pub no_preallocate: bool,
    /// Compare the file with device memory afterwards.
    #[arg(long)]
    pub verify: bool,
    /// Write N times.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repeat: u32,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    file: String,
    device: bifolio_device::DeviceId,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    durable: bool,
    reason: &'a str,
    plan: &'a [SegmentReport],
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
}

/// Writes, checks, and prints.
pub fn run(global: &Global, options: &WriteArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let source = open_file(&options.from, &device)?;
    let router = options.router.settings().router(&device, &source, cancel)?;
    let available = source.size()?;
    let bytes = options.length.unwrap_or(available);
    if bytes > available {
        let detail = format!("{} has {available} bytes, and --length asks for {bytes}", options.from.display());
        return Err(Failure::new(Code::Usage, detail));
    }
    let memory = device.alloc(bytes)?;
    let reading = ReadOptions { cancel: cancel.clone(), ..ReadOptions::default() };
    let read = router.read(&source, 0, Some(bytes), memory.slice(), &reading)?.bytes;
    if read < bytes {
        let path = options.from.display();
        return Err(Failure::failed(format!("{path}: truncated to {read} bytes while it was being read")));
    }
    let file = router.open_for_writing(&options.file, true)?;
    let mut best: Option<(WriteReport, f64)> = None;
    for _ in 0..options.repeat {
        signals::check(cancel)?;
        let progress = Progress::of_bytes("writing", bytes);
        let write = WriteOptions {
            engine: options.engine,
            durable: options.sync,
            preallocate: !options.no_preallocate,
            cancel: cancel.clone(),
            progress: progress.counter(),
            ..WriteOptions::default()
        };
        let before = cpu_seconds();
        let report = router.write(&file, options.offset, memory.slice(), &write)?;
        let cpu = cpu_seconds() - before;
        if best.as_ref().is_none_or(|(best, _)| report.seconds < best.seconds) {
            best = Some((report, cpu));
        }
    }
    let (report, cpu) = best.ok_or_else(|| Failure::failed("nothing was written"))?;
    if options.verify {
        Checker::new(&router, &file)?.compare_all(memory.slice(), options.offset)?;
    }
    let answer = Answer {
        file: options.file.display().to_string(),
        device: device.id(),
        bytes: report.bytes,
        seconds: report.seconds,
        gb_per_s: gb_per_s(report.bytes, report.seconds),
        cpu_s_per_gb: cpu_s_per_gb(report.bytes, cpu),
        durable: report.durable,
        reason: report.reason,
        plan: &report.plan,
        verified: options.verify.then_some(true),
    };
    global.answer(&answer, || describe(&answer))
}

fn describe(answer: &Answer<'_>) -> String {
    let engines: Vec<String> = bifolio_io::EngineKind::ALL
        .into_iter()
        .filter_map(|engine| {
            let of_engine = answer.plan.iter().filter(|segment| segment.engine == engine);
            let bytes: u64 = of_engine.map(|segment| segment.length).sum();
            (bytes > 0).then(|| format!("{} by {engine}", size::human(bytes)))
        })
        .collect();
    let durable = if answer.durable { ", durable" } else { "" };
    let mut text = format!(
        "{}: {} from {} in {:.3} ms: {:.3} GB/s, {:.3} CPU s/GB{durable}\n{} ({})\n",
        output::printable(&answer.file),
        size::human(answer.bytes),
        answer.device,
        answer.seconds * 1e3,
        answer.gb_per_s,
        answer.cpu_s_per_gb,
        if engines.is_empty() { "nothing".to_owned() } else { engines.join(", ") },
        answer.reason
    );
    if answer.verified.is_some() {
        text.push_str("verified: file and device memory are the same\n");
    }
    text
}
