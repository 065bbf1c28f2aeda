//! Every service at every size.

use super::figures;
use super::options::Options;
use super::results::{Ends, Results, Row};
use super::work::{Kind, Work, prepare};
use crate::error::{Error, ErrorKind, Result};
use crate::harness::machine;
use crate::harness::report::Measured;
use crate::harness::rounds::{self, Time, Way, rates};
use crate::harness::session::Session;
use bifolio_compute::service::{Output, Step};
use bifolio_compute::{Buffer, Caller, Executor, Memory, Path, Request};
use bifolio_device::{Allocation, Device};
use bifolio_io::size;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    if let Some(small) = options.sizes.iter().find(|bytes| **bytes < 512 || !bytes.is_multiple_of(512)) {
        let detail = format!("--sizes: {small} bytes are no multiple of 512");
        return Err(Error::new(ErrorKind::BadUse, "", detail));
    }
    let time = Time { point: options.point, deadline: Instant::now() + options.whole };
    session.begin("starting", (options.sizes.len() * (2 * options.services.len() + 2)) as u64);
    let (mut figures, mut rows, mut left_out) = (figures::none(), vec![], vec![]);
    // Made afterwards, so that its threads and slots are not there while others' are measured.
    let drawn = figures::measure(device, options, time, session, &mut figures, &mut left_out);
    let executor = Executor::new(device, bifolio_compute::Options::default())?;
    let bench = Bench { options, executor: &executor, time, session };
    let ended = drawn.and_then(|()| bench.measure_all(&mut rows, &mut left_out));
    let settings = executor.options();
    let has_measured = !rows.is_empty() || figures.iter().any(|figure| !figure.points.is_empty());
    Measured::new(ended, has_measured, || Results {
        machine: machine::describe(device),
        seed: options.seed,
        seconds: options.point.as_secs_f64(),
        rounds: rounds::rounds(),
        pipelines: settings.pipelines,
        cpu_threads: settings.cpu_threads,
        slot_bytes: settings.slot_bytes,
        kernels: executor.kernels().report().iter().map(ToString::to_string).collect(),
        figures: figures.into(),
        rows,
        statistics: executor.statistics(),
        left_out,
    })
}

struct Bench<'a> {
    options: &'a Options,
    executor: &'a Executor,
    time: Time,
    session: &'a Session,
}

/// Up to here results are compared with the oracle, which is slow.
const ORACLE_BYTES_MAX: u64 = 1 << 20;

impl Bench<'_> {
    /// Adds what is measured as it is measured.
    fn measure_all(&self, rows: &mut Vec<Row>, left_out: &mut Vec<String>) -> Result<()> {
        for &kind in &self.options.services {
            for &bytes in &self.options.sizes {
                let what = format!("{} of {}", kind.name(), size::exact(bytes));
                self.session.say(&what);
                if self.time.is_over() {
                    left_out.push(format!("{what}: the time was over"));
                } else {
                    self.measure(kind, bytes, rows, left_out)?;
                }
                self.session.advance(2);
            }
        }
        Ok(())
    }

    fn measure(&self, kind: Kind, bytes: u64, rows: &mut Vec<Row>, left_out: &mut Vec<String>) -> Result<()> {
        let what = format!("{} of {}", kind.name(), size::exact(bytes));
        let begin = Instant::now();
        let mut work = prepare(self.executor, kind, bytes, self.options.seed)?;
        work.by_library()?;
        if begin.elapsed() > Duration::from_secs(6) {
            left_out.push(format!("{what}: the CPU is too slow for it here"));
            return Ok(());
        }
        self.verify(&mut *work, bytes, &what)?;
        rows.push(self.host_to_host(kind, bytes, &mut *work)?);
        if work.output() != Output::Nothing {
            rows.push(self.host_to_device(kind, bytes, &*work)?);
        }
        Ok(())
    }

    /// Every way once.
    fn verify(&self, work: &mut dyn Work, bytes: u64, what: &str) -> Result<()> {
        self.session.check()?;
        let answer = if bytes <= ORACLE_BYTES_MAX {
            work.answer()
        } else {
            let (output, results) = work.found();
            (output.to_vec(), results.to_vec())
        };
        let wrong = |way: &str| Error::new(ErrorKind::Wrong, what, format!("{way} computed wrong bytes"));
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

    fn host_to_host(&self, kind: Kind, bytes: u64, work: &mut dyn Work) -> Result<Row> {
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
        let found = rates(bytes, &mut ways, self.time, self.session)?;
        drop(ways);
        Ok(Row::new(kind, Ends::HostToHost, bytes, [found[0], None, found[1], found[2]]))
    }

    fn host_to_device(&self, kind: Kind, bytes: u64, work: &dyn Work) -> Result<Row> {
        let caller = self.executor.caller();
        let step = work.step();
        let ready = || Ready::new(self.executor.device(), work, true, 0);
        let (mut by_cpu, mut by_device, mut by_choice) = (ready()?, ready()?, ready()?);
        let mut ways: Vec<Way<'_>> = vec![
            Box::new(|| by_cpu.run(&caller, &step, Some(Path::Cpu)).map(drop)),
            Box::new(|| by_device.run(&caller, &step, Some(Path::Device)).map(drop)),
            Box::new(|| by_choice.run(&caller, &step, None).map(drop)),
        ];
        let found = rates(bytes, &mut ways, self.time, self.session)?;
        drop(ways);
        Ok(Row::new(kind, Ends::HostToDevice, bytes, [None, found[0], found[1], found[2]]))
    }
}

/// The memory of a request, which comes back after each run.
struct Ready {
    source: Option<Memory>,
    destination: Option<Memory>,
    allocation: Option<Arc<Allocation>>,
}

impl Ready {
    fn new(device: &Device, work: &dyn Work, to_device: bool, fill: u8) -> Result<Self> {
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
    fn run(&mut self, caller: &Caller, step: &Step, path: Option<Path>) -> Result<Vec<u8>> {
        let source = self.source.take().ok_or_else(|| Error::failed("", "an earlier request failed"))?;
        let mut request = Request::new(step.clone(), source);
        if let Some(destination) = self.destination.take() {
            request = request.into(destination);
        }
        if let Some(path) = path {
            request = request.on(path);
        }
        let outcome = caller.run(request);
        (self.source, self.destination) = (outcome.source, outcome.destination);
        Ok(outcome.result?.results.swap_remove(0))
    }

    fn output(&self, device: &Device) -> Result<Vec<u8>> {
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
