//! The paper's two microbenchmarks of its framework. The device computes whatever is asked, as there: its
//! "hybrid mode" was off.

use super::options;
use super::results::{Figure, Point};
use super::work::{Kind, prepare, random_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::harness::rounds::{Time, Way, rates};
use crate::harness::session::Session;
use bifolio_compute::service::{Copy, Step};
use bifolio_compute::{Caller, Executor, Memory, Options, Path, Pending, Request};
use bifolio_device::Device;
use bifolio_io::size;
use fastrand::Rng;
use std::collections::VecDeque;
use std::sync::Arc;

/// Host memory at both ends, which comes back after each request.
struct Ends {
    source: Option<Memory>,
    destination: Option<Memory>,
}

impl Ends {
    fn new(device: &Device, input: &[u8], is_pinned: bool) -> Result<Self> {
        if !is_pinned {
            return Ok(Self { source: Some(input.to_vec().into()), destination: Some(vec![0; input.len()].into()) });
        }
        let mut source = device.alloc_pinned(input.len())?;
        source.bytes_mut().copy_from_slice(input);
        let destination = device.alloc_pinned(input.len())?;
        Ok(Self { source: Some(source.into()), destination: Some(destination.into()) })
    }

    fn submit(&mut self, caller: &Caller, step: &Step) -> Result<Pending> {
        let gone = || Error::failed("", "an earlier request failed");
        let source = self.source.take().ok_or_else(gone)?;
        let destination = self.destination.take().ok_or_else(gone)?;
        let request = Request::new(step.clone(), source).into(destination).on(Path::Device);
        caller.submit(request).map_err(|refused| refused.error.into())
    }

    fn finish(&mut self, pending: Pending) -> Result<()> {
        let outcome = pending.wait();
        (self.source, self.destination) = (outcome.source, outcome.destination);
        outcome.result.map(drop).map_err(Error::from)
    }

    fn run(&mut self, caller: &Caller, step: &Step) -> Result<()> {
        let gone = || Error::failed("", "an earlier request failed");
        let source = self.source.take().ok_or_else(gone)?;
        let destination = self.destination.take().ok_or_else(gone)?;
        let outcome = caller.run(Request::new(step.clone(), source).into(destination).on(Path::Device));
        (self.source, self.destination) = (outcome.source, outcome.destination);
        outcome.result.map(drop).map_err(Error::from)
    }

    fn check(&self, expected: &[u8]) -> Result<()> {
        if self.destination.as_ref().and_then(Memory::bytes) == Some(expected) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Wrong, format!("a request of {} bytes", expected.len()), "computed wrong bytes"))
    }
}

/// Requests of one size of which several are always under way.
struct Several {
    idle: Vec<Ends>,
    under_way: VecDeque<(Ends, Pending)>,
}

impl Several {
    fn new(device: &Device, input: &[u8]) -> Result<Self> {
        let count = ((16 << 20) / input.len().max(1)).clamp(3, 64);
        let idle = (0..count).map(|_| Ends::new(device, input, true)).collect::<Result<_, _>>()?;
        Ok(Self { idle, under_way: VecDeque::new() })
    }

    /// Ends the oldest request, if there are enough, and submits another one.
    fn step(&mut self, caller: &Caller, step: &Step) -> Result<()> {
        let mut ends = if let Some(ends) = self.idle.pop() {
            ends
        } else {
            let (mut ends, pending) =
                self.under_way.pop_front().ok_or_else(|| Error::failed("", "no request is in flight"))?;
            ends.finish(pending)?;
            ends
        };
        let pending = ends.submit(caller, step)?;
        self.under_way.push_back((ends, pending));
        Ok(())
    }
}

/// Both figures.
pub(super) fn measure(
    device: &Device,
    options: &options::Options,
    time: Time,
    session: &Session,
    [copies, ciphers]: &mut [Figure; 2],
    left_out: &mut Vec<String>,
) -> Result<()> {
    let largest = options.sizes.iter().copied().max().unwrap_or(4096);
    // Requests are not cut by this one, as its slots take all of them.
    let uncut = Options { pipelines: 2, slot_bytes: largest, calibrates: false, cpu_threads: 1, ..Options::default() };
    let uncut = Executor::new(device, uncut)?;
    let cutting = Options { calibrates: false, cpu_threads: 1, ..Options::default() };
    let cutting = Executor::new(device, cutting)?;
    for &bytes in &options.sizes {
        session.check()?;
        if time.is_over() {
            left_out.push(format!("figures at {}: the time was over", size::exact(bytes)));
            continue;
        }
        session.say(&format!("copies of {}", size::exact(bytes)));
        copies.points.extend(copy(device, [&uncut, &cutting], bytes, options.seed, time, session)?);
        session.advance(1);
        session.say(&format!("ciphers of {}", size::exact(bytes)));
        ciphers.points.extend(cipher(device, [&uncut, &cutting], bytes, options.seed, time, session)?);
        session.advance(1);
    }
    Ok(())
}

/// Both figures, without points.
pub(super) fn none() -> [Figure; 2] {
    [
        Figure { title: "copies to the device and back, GB/s of data (figure 4.4)", points: vec![] },
        Figure { title: "AES-256-XTS, host to host, GB/s (figure 4.5)", points: vec![] },
    ]
}

fn copy(
    device: &Device,
    [uncut, cutting]: [&Executor; 2],
    bytes: u64,
    seed: u64,
    time: Time,
    session: &Session,
) -> Result<Vec<Point>> {
    let input = random_bytes(&mut Rng::with_seed(seed), bytes);
    let steps = [uncut, cutting].map(|executor| executor.register(Arc::new(Copy)).step(()));
    let callers = [uncut, cutting].map(Executor::caller);
    let (mut one, mut cut) = (Ends::new(device, &input, true)?, Ends::new(device, &input, true)?);
    for (ends, (caller, step)) in [(&mut one, (&callers[0], &steps[0])), (&mut cut, (&callers[1], &steps[1]))] {
        ends.run(caller, step)?;
        ends.check(&input)?;
    }
    let (mut several, mut several_cut) = (Several::new(device, &input)?, Several::new(device, &input)?);
    let mut ways: Vec<Way<'_>> = vec![
        Box::new(|| one.run(&callers[0], &steps[0])),
        Box::new(|| several.step(&callers[0], &steps[0])),
        Box::new(|| cut.run(&callers[1], &steps[1])),
        Box::new(|| several_cut.step(&callers[1], &steps[1])),
    ];
    let found = rates(bytes, &mut ways, time, session)?;
    drop(ways);
    let names = ["synchronous", "asynchronous", "synchronous, split", "asynchronous, merged and split"];
    for several in [several, several_cut] {
        for (mut ends, pending) in several.under_way {
            ends.finish(pending)?;
        }
    }
    Ok(names.into_iter().zip(found).map(|(way, rate)| Point { way, bytes, rate }).collect())
}

fn cipher(
    device: &Device,
    [uncut, cutting]: [&Executor; 2],
    bytes: u64,
    seed: u64,
    time: Time,
    session: &Session,
) -> Result<Vec<Point>> {
    let mut library = prepare(uncut, Kind::Xts, bytes, seed)?;
    let (of_uncut, of_cutting) = (library.step(), prepare(cutting, Kind::Xts, bytes, seed)?.step());
    library.by_library()?;
    let expected = library.found().0.to_vec();
    let input = library.input().to_vec();
    let callers = [uncut, cutting].map(Executor::caller);
    let places = [(false, 0), (false, 1), (true, 0), (true, 1)];
    let steps = [of_uncut, of_cutting];
    let mut all = vec![];
    for (is_pinned, by) in places {
        let mut ends = Ends::new(device, &input, is_pinned)?;
        ends.run(&callers[by], &steps[by])?;
        ends.check(&expected)?;
        all.push((ends, by));
    }
    let mut ways: Vec<Way<'_>> = vec![Box::new(|| library.by_library())];
    for (ends, by) in &mut all {
        let (caller, step) = (&callers[*by], &steps[*by]);
        ways.push(Box::new(move || ends.run(caller, step)));
    }
    let found = rates(bytes, &mut ways, time, session)?;
    drop(ways);
    let names = [
        "CPU, one core",
        "device",
        "device, split",
        "device, without the extra copy",
        "device, split, without the extra copy",
    ];
    Ok(names.into_iter().zip(found).map(|(way, rate)| Point { way, bytes, rate }).collect())
}
