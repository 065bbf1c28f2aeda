//! `bifolio bench compute`: what the executor makes of CPU and device. The two microbenchmarks of the paper
//! (Weibin Sun's thesis on `GPUstore`, figures 4.4 and 4.5), then every service: the CPU's library on one core, the
//! device, and the executor's choice.
//!
//! All ways at one size take turns, after runs from which the executor learns as it does from any request. Each
//! way's result is compared once, before it is timed: with the oracle up to 1 MiB, beyond with the CPU's library.

mod figures;
mod page;
mod report;
mod timing;
mod work;

use crate::args::Args;
use crate::bench::machine::{self, Machine};
use crate::exit::{CODES, Code, Failure};
use crate::progress::Progress;
use crate::{output, signals, size};
use bifolio_compute::service::{Output, Step};
use bifolio_compute::{Buffer, Caller, Executor, Memory, Options, Path, Request, ServiceStatistics};
use bifolio_device::{Allocation, Device, open};
use bifolio_io::Cancel;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use timing::{Rate, Time, Way, rates};
pub use work::Kind;
use work::{Work, failed, prepare};

/// Choices for `bench compute`.
#[derive(Debug, ClapArgs)]
#[command(after_help = CODES)]
pub struct ComputeArgs {
    /// Services.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "xts,ctr,gcm,raid6-generate,raid6-recover,raid6-scrub,sha256,crc32c"
    )]
    pub services: Vec<Kind>,
    /// Sizes of a request, from 512 bytes on.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = size::parse,
        default_value = "512,4K,16K,64K,256K,1M,4M,16M,64M")]
    pub sizes: Vec<u64>,
    /// Seconds for each way at each size.
    #[arg(long, default_value_t = 0.08, value_name = "S", value_parser = seconds)]
    pub seconds: f64,
    /// Seconds for everything; what is not measured by then is left out.
    #[arg(long, default_value_t = 110.0, value_name = "S", value_parser = seconds)]
    pub seconds_max: f64,
    /// Seed of the data.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a report with plots, one self-contained HTML file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.001..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("between 0.001 and 86400".to_owned()) }
}

/// Where the data of a request is, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Ends {
    HostToHost,
    HostToDevice,
}

impl Ends {
    fn name(self) -> &'static str {
        match self {
            Self::HostToHost => "host to host",
            Self::HostToDevice => "host to device",
        }
    }
}

/// One service at one size.
#[derive(Debug, Serialize)]
struct Row {
    service: Kind,
    ends: Ends,
    bytes: u64,
    /// The library in a loop of its own on one core; none where the result ends on the device.
    library: Option<Rate>,
    /// The executor, told to take the CPU; only where there is no library.
    cpu: Option<Rate>,
    /// The executor, told to take the device.
    device: Option<Rate>,
    /// The executor's choice.
    hybrid: Option<Rate>,
    /// The choice by the better of the others, by medians.
    hybrid_to_better: Option<f64>,
    /// The same by the quickest rounds, which other work on the machine disturbs least.
    hybrid_to_better_best: Option<f64>,
}

/// One figure of the paper.
#[derive(Debug, Serialize)]
struct Figure {
    title: &'static str,
    points: Vec<Point>,
}

#[derive(Debug, Serialize)]
struct Point {
    way: &'static str,
    bytes: u64,
    rate: Option<Rate>,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: Machine,
    seed: u64,
    seconds: f64,
    rounds: usize,
    lanes: usize,
    cpu_threads: usize,
    slot_bytes: u64,
    /// How the kernels fared.
    kernels: Vec<String>,
    figures: Vec<Figure>,
    rows: Vec<Row>,
    statistics: Vec<ServiceStatistics>,
    /// What was not measured, and why.
    left_out: Vec<String>,
}

/// A choice slower than this part of the better path is reported.
const KEPT_UP: f64 = 0.95;

/// Measures and prints.
pub fn run(args: &Args, options: &ComputeArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = open(args.device()?)?;
    if let Some(small) = options.sizes.iter().find(|bytes| **bytes < 512 || !bytes.is_multiple_of(512)) {
        let detail = format!("--sizes: {small} bytes are no multiple of 512");
        return Err(Failure::new(Code::Usage, detail));
    }
    let time = Time {
        point: Duration::from_secs_f64(options.seconds),
        deadline: Instant::now() + Duration::from_secs_f64(options.seconds_max),
    };
    let steps = options.sizes.len() * (2 * options.services.len() + 2);
    let progress = Progress::of_steps("starting", steps as u64);
    let mut left_out = vec![];
    let figures = figures::measure(&device, options, time, cancel, &progress, &mut left_out)?;
    let executor = Executor::new(&device, Options::default()).map_err(failed)?;
    let bench = Bench { options, executor: &executor, time, cancel };
    let mut rows = vec![];
    for &kind in &options.services {
        for &bytes in &options.sizes {
            progress.say(&format!("{} of {}", kind.name(), size::exact(bytes)));
            if time.is_over() {
                left_out.push(format!("{} of {}: the time was over", kind.name(), size::exact(bytes)));
            } else {
                rows.extend(bench.measure(kind, bytes, &mut left_out)?);
            }
            progress.advance(2);
        }
    }
    drop(progress);
    let settings = executor.options();
    let results = Results {
        machine: machine::describe(&device),
        seed: options.seed,
        seconds: options.seconds,
        rounds: timing::rounds(),
        lanes: settings.pipelines,
        cpu_threads: settings.cpu_threads,
        slot_bytes: settings.slot_bytes,
        kernels: executor.kernels().report().iter().map(ToString::to_string).collect(),
        figures,
        rows,
        statistics: executor.statistics(),
        left_out,
    };
    if let Some(out) = &options.html {
        let page =
            page::page(&results).map_err(|error| Failure::failed(format!("drawing the report failed: {error}")))?;
        std::fs::write(out, page)
            .map_err(|error| Failure::failed(format!("{}: writing the report failed: {error}", out.display())))?;
    }
    if args.json { output::json(&results) } else { output::text(&report::describe(&results)) }
}

struct Bench<'a> {
    options: &'a ComputeArgs,
    executor: &'a Executor,
    time: Time,
    cancel: &'a Cancel,
}

/// Up to here results are compared with the oracle, which is slow.
const ORACLE_BYTES_MAX: u64 = 1 << 20;

impl Bench<'_> {
    fn measure(&self, kind: Kind, bytes: u64, left_out: &mut Vec<String>) -> Result<Vec<Row>, Failure> {
        let what = format!("{} of {}", kind.name(), size::exact(bytes));
        let begin = Instant::now();
        let mut work = prepare(self.executor, kind, bytes, self.options.seed)?;
        work.by_library()?;
        if begin.elapsed() > Duration::from_secs(6) {
            left_out.push(format!("{what}: the CPU is too slow for it here"));
            return Ok(vec![]);
        }
        self.verify(&mut *work, bytes, &what)?;
        let mut rows = vec![self.host_to_host(kind, bytes, &mut *work)?];
        if work.output() != Output::Nothing {
            rows.push(self.host_to_device(kind, bytes, &*work)?);
        }
        Ok(rows)
    }

    /// Every way once.
    fn verify(&self, work: &mut dyn Work, bytes: u64, what: &str) -> Result<(), Failure> {
        signals::check(self.cancel)?;
        let answer = if bytes <= ORACLE_BYTES_MAX {
            work.answer()
        } else {
            let (output, results) = work.found();
            (output.to_vec(), results.to_vec())
        };
        let wrong = |way: &str| Failure::new(Code::Wrong, format!("{what}: {way} computed wrong bytes"));
        let is_right = |work: &dyn Work| work.found() == (&answer.0[..], &answer.1[..]);
        work.poison();
        work.by_library()?;
        if !is_right(work) {
            return Err(wrong("the CPU's library"));
        }
        work.poison();
        work.by_executor()?;
        if !is_right(work) {
            return Err(wrong("the executor"));
        }
        let caller = self.executor.caller();
        for (path, to_device) in [(Path::Cpu, false), (Path::Device, false), (Path::Cpu, true), (Path::Device, true)] {
            if to_device && work.output() == Output::Nothing {
                continue;
            }
            let mut ready = Ready::new(self.executor.device(), work, to_device, 0xdd)?;
            let results = ready.run(&caller, &work.step(), Some(path))?;
            if results != answer.1 || ready.output(self.executor.device())? != answer.0 {
                return Err(wrong(if path == Path::Cpu { "the CPU's path" } else { "the device" }));
            }
        }
        Ok(())
    }

    fn host_to_host(&self, kind: Kind, bytes: u64, work: &mut dyn Work) -> Result<Row, Failure> {
        let caller = self.executor.caller();
        let step = work.step();
        let mut by_device = Ready::new(self.executor.device(), work, false, 0)?;
        let mut by_cpu = Ready::new(self.executor.device(), work, false, 0)?;
        // The executor learns from the CPU's path, which the library's own loop teaches it nothing about.
        let begin = Instant::now();
        for run in 0..32 {
            by_cpu.run(&caller, &step, Some(Path::Cpu))?;
            if run > 3 && begin.elapsed() > Duration::from_millis(40) {
                break;
            }
        }
        drop(by_cpu);
        let work = std::cell::RefCell::new(work);
        let mut ways: Vec<Way<'_>> = vec![
            Box::new(|| work.borrow_mut().by_library()),
            Box::new(|| by_device.run(&caller, &step, Some(Path::Device)).map(drop)),
            Box::new(|| work.borrow_mut().by_executor()),
        ];
        let found = rates(bytes, &mut ways, self.time, self.cancel)?;
        drop(ways);
        Ok(Row::new(kind, Ends::HostToHost, bytes, [found[0], None, found[1], found[2]]))
    }

    fn host_to_device(&self, kind: Kind, bytes: u64, work: &dyn Work) -> Result<Row, Failure> {
        let caller = self.executor.caller();
        let step = work.step();
        let ready = || Ready::new(self.executor.device(), work, true, 0);
        let (mut by_cpu, mut by_device, mut by_choice) = (ready()?, ready()?, ready()?);
        let mut ways: Vec<Way<'_>> = vec![
            Box::new(|| by_cpu.run(&caller, &step, Some(Path::Cpu)).map(drop)),
            Box::new(|| by_device.run(&caller, &step, Some(Path::Device)).map(drop)),
            Box::new(|| by_choice.run(&caller, &step, None).map(drop)),
        ];
        let found = rates(bytes, &mut ways, self.time, self.cancel)?;
        drop(ways);
        Ok(Row::new(kind, Ends::HostToDevice, bytes, [None, found[0], found[1], found[2]]))
    }
}

impl Row {
    fn new(service: Kind, ends: Ends, bytes: u64, [library, cpu, device, hybrid]: [Option<Rate>; 4]) -> Self {
        let ratio = |of: fn(Rate) -> f64| {
            let better = [library, cpu, device].into_iter().flatten().map(of).fold(0.0, f64::max);
            hybrid.map(of).filter(|_| better > 0.0).map(|rate| rate / better)
        };
        let (hybrid_to_better, hybrid_to_better_best) =
            (ratio(|rate| rate.gb_per_s), ratio(|rate| rate.range_gb_per_s[1]));
        Self { service, ends, bytes, library, cpu, device, hybrid, hybrid_to_better, hybrid_to_better_best }
    }
}

/// The memory of a request, which comes back after each run.
struct Ready {
    source: Option<Memory>,
    destination: Option<Memory>,
    allocation: Option<Arc<Allocation>>,
}

impl Ready {
    fn new(device: &Device, work: &dyn Work, to_device: bool, fill: u8) -> Result<Self, Failure> {
        let len = work.output().bytes(work.input().len() as u64);
        let source = Some(work.input().to_vec().into());
        if work.output() == Output::Nothing {
            return Ok(Self { source, destination: None, allocation: None });
        }
        if !to_device {
            return Ok(Self { source, destination: Some(vec![fill; len as usize].into()), allocation: None });
        }
        let allocation = Arc::new(device.alloc(len)?);
        device.create_stream()?.upload(allocation.slice(), &vec![fill; len as usize])?;
        let destination = Some(Buffer::new(&allocation).into());
        Ok(Self { source, destination, allocation: Some(allocation) })
    }

    /// The results of the only step.
    fn run(&mut self, caller: &Caller, step: &Step, path: Option<Path>) -> Result<Vec<u8>, Failure> {
        let source = self.source.take().ok_or_else(|| Failure::failed("a request before failed"))?;
        let mut request = Request::new(step.clone(), source);
        if let Some(destination) = self.destination.take() {
            request = request.into(destination);
        }
        if let Some(path) = path {
            request = request.on(path);
        }
        let outcome = caller.run(request);
        (self.source, self.destination) = (outcome.source, outcome.destination);
        Ok(outcome.result.map_err(failed)?.results.swap_remove(0))
    }

    fn output(&self, device: &Device) -> Result<Vec<u8>, Failure> {
        match (&self.allocation, &self.destination) {
            (Some(allocation), _) => {
                let mut bytes = vec![0; allocation.len() as usize];
                device.create_stream()?.download(&mut bytes, allocation.slice())?;
                Ok(bytes)
            }
            (None, Some(memory)) => Ok(memory.bytes().unwrap_or_default().to_vec()),
            (None, None) => Ok(vec![]),
        }
    }
}
