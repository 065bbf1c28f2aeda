//! One run: its requests, its state, its clock.

use super::results::Row;
use super::{Bench, states};
use crate::args::{BenchArgs, CacheState, RequestSize};
use crate::exit::Failure;
use crate::read::{self, Checker, poison};
use crate::resources::cpu_seconds;
use crate::signals;
use bifolio_device::DeviceSlice;
use bifolio_io::{EngineChoice, EngineKind, OpenFile, ReadOptions, Router};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of one size at most.
const REQUESTS_MAX: u64 = 4096;

/// A run of many requests ends after this time: an engine that takes 24 ms to register a window for
/// every request would take minutes for what others do in one second. Its rate is known by then.
const RUN_TIME_MAX: Duration = Duration::from_secs(2);

/// But not before it has made so many requests.
const REQUESTS_MIN: usize = 8;

/// Passes over a file before it counts as read again, and how many to wait for registrations.
const PASSES_MIN: u32 = 5;
const PASSES_MAX: u32 = 40;

/// The requests of a run: disjoint, and all runs of a group make the same ones in the same order.
#[derive(Debug)]
pub(super) struct Requests {
    /// The part of the file whose state matters.
    pub(super) region: Range<u64>,
    /// Offset and length of each.
    pub(super) list: Vec<(u64, u64)>,
    /// All of them together.
    pub(super) bytes: u64,
}

impl Requests {
    /// Draws requests at aligned places, in a shuffled order.
    pub(super) fn draw(file_bytes: u64, size: RequestSize, options: &BenchArgs) -> Self {
        let RequestSize::Bytes(bytes) = size else {
            return Self { region: 0..file_bytes, list: vec![(0, file_bytes)], bytes: file_bytes };
        };
        let region = 0..file_bytes.min(options.limit.max(bytes));
        let mut places: Vec<u64> = (0..region.end / bytes).collect();
        shuffle(&mut places, options.seed);
        places.truncate(REQUESTS_MAX as usize);
        let list: Vec<_> = places.into_iter().map(|place| (place * bytes, bytes)).collect();
        Self { region, bytes: bytes * list.len() as u64, list }
    }
}

/// Fisher and Yates, with a seeded generator (splitmix64).
fn shuffle(places: &mut [u64], seed: u64) {
    let mut state = seed;
    for last in (1..places.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        places.swap(last, ((mixed ^ (mixed >> 31)) % (last as u64 + 1)) as usize);
    }
}

/// What one run cost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) requests: usize,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    pub(super) plan_s: f64,
    pub(super) latency_s: f64,
}

/// Runs engines on one state and size.
pub(super) struct Runner<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) path: &'a Path,
    pub(super) state: CacheState,
    pub(super) requests: &'a Requests,
    pub(super) router: &'a Router,
    pub(super) memory: DeviceSlice<'a>,
}

impl Runner<'_> {
    /// Sets the state up, runs the engine of `row` once, and adds what it took. A new handle for
    /// every run, so that registrations of an earlier one neither help nor keep pages cached;
    /// `kept` is the handle of the state that is about exactly that.
    pub(super) fn run(&self, row: &mut Row, kept: Option<&Arc<OpenFile>>, first: bool) -> Result<(), Failure> {
        let file = match kept {
            Some(file) => Arc::clone(file),
            None => read::open_file(self.path, &self.bench.device)?,
        };
        states::set_up(&file, self.state, self.requests.region.clone(), self.bench.options.stripe)?;
        let (cached, source) = states::look(self.router, &file, &self.requests.region)?;
        row.note_state(cached, source);
        if first {
            poison(&self.bench.device, self.memory)?;
        }
        let taken = self.time(&file, row.choice)?;
        row.add(taken);
        if first {
            self.verify(&file, taken.requests)?;
            row.verified = true;
        }
        Ok(())
    }

    fn time(&self, file: &Arc<OpenFile>, engine: EngineChoice) -> Result<Taken, Failure> {
        let options = ReadOptions { engine, cancel: self.bench.cancel.clone(), ..ReadOptions::default() };
        let mut taken = Taken::default();
        let mut latencies = Vec::with_capacity(self.requests.list.len());
        let (cpu_before, mut at) = (cpu_seconds(), 0);
        let begun = Instant::now();
        for &(offset, length) in &self.requests.list {
            if latencies.len() >= REQUESTS_MIN && begun.elapsed() > RUN_TIME_MAX {
                break;
            }
            let place = self.memory.part(at, length)?;
            let started = Instant::now();
            let report = self.router.read(file, offset, Some(length), place, &options)?;
            latencies.push(started.elapsed().as_secs_f64());
            taken.plan_s += report.plan_seconds;
            if report.bytes != length {
                let (path, device) = (self.path.display(), self.bench.device.id());
                return Err(Failure::failed(format!(
                    "{path}, offset {offset}, into {device}: the file shrank during the benchmark"
                )));
            }
            at += length;
        }
        taken.cpu_s = cpu_seconds() - cpu_before;
        (taken.requests, taken.bytes, taken.seconds) = (latencies.len(), at, latencies.iter().sum());
        latencies.sort_by(f64::total_cmp);
        taken.latency_s = latencies[latencies.len() / 2];
        Ok(taken)
    }

    /// Compares what the first requests moved with the file, byte by byte.
    fn verify(&self, file: &Arc<OpenFile>, requests: usize) -> Result<(), Failure> {
        let mut checker = Checker::new(self.router, file)?;
        let mut at = 0;
        for &(offset, length) in &self.requests.list[..requests] {
            signals::check(self.bench.cancel)?;
            checker.compare_all(self.memory.part(at, length)?, offset)?;
            at += length;
        }
        Ok(())
    }

    /// Reads the region through one handle until plans use registered ranges for it.
    pub(super) fn read_until_registered(&self) -> Result<Arc<OpenFile>, Failure> {
        let file = read::open_file(self.path, &self.bench.device)?;
        let region = self.requests.region.clone();
        states::set_up(&file, self.state, region.clone(), 0)?;
        for pass in 0..PASSES_MAX {
            signals::check(self.bench.cancel)?;
            self.bench.progress.say(&format!("{}: reading it several times, pass {}", self.state.name(), pass + 1));
            let registered = self.read_through(&file, &region)?;
            if pass + 1 >= PASSES_MIN && (registered || !self.bench.can_map()) {
                break;
            }
            // Registration is in the background.
            std::thread::sleep(Duration::from_millis(if pass < PASSES_MIN { 50 } else { 250 }));
        }
        Ok(file)
    }

    /// Whether all of it came out of registered ranges.
    fn read_through(&self, file: &Arc<OpenFile>, region: &Range<u64>) -> Result<bool, Failure> {
        let options = ReadOptions { cancel: self.bench.cancel.clone(), ..ReadOptions::default() };
        let (mut at, mut registered) = (region.start, true);
        while at < region.end {
            let length = self.memory.len().min(region.end - at);
            let report = self.router.read(file, at, Some(length), self.memory.part(0, length)?, &options)?;
            registered &= report.plan.iter().all(|segment| segment.engine == EngineKind::Mapped);
            at += length;
        }
        Ok(registered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, BenchCommand, Command};
    use clap::Parser;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_are_disjoint_inside_the_file_and_bounded(file in 1_u64..1 << 34, bytes in 1_u64..1 << 31, seed in any::<u64>()) {
            let args = Args::parse_from(["bifolio", "bench", "read", "f", "--limit", "1M", "--seed", &seed.to_string()]);
            let Command::Bench(BenchCommand::Read(options)) = args.command else { panic!("another command") };
            let requests = Requests::draw(file, RequestSize::Bytes(bytes), &options);
            prop_assert_eq!(requests.list.is_empty(), bytes > file);
            prop_assert!(requests.list.len() <= 4096 && requests.bytes <= (1_u64 << 20).max(bytes));
            let mut sorted = requests.list.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            prop_assert!(sorted.last().is_none_or(|(offset, length)| offset + length <= requests.region.end));
        }
    }

    #[test]
    fn an_order_is_shuffled_and_repeats_with_its_seed() {
        let order = |seed| {
            let mut places: Vec<u64> = (0..100).collect();
            shuffle(&mut places, seed);
            places
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert_ne!(order(1), (0..100).collect::<Vec<_>>());
    }
}
