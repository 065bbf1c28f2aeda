//! One run: its state, its load, its clock.

use super::Bench;
use super::choices::{CacheState, LoadKind};
use super::load::Loads;
use super::requests::Requests;
use super::results::Row;
use super::states::{Wanted, cached_bytes_of, cached_part};
use crate::exit::Failure;
use crate::read::{self, Checker, poison};
use crate::resources::cpu_seconds;
use crate::signals;
use bifolio_device::DeviceSlice;
use bifolio_io::cache_state::look;
use bifolio_io::{EngineChoice, EngineKind, OpenFile, ReadOptions, Router};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A run of many requests ends after its time: an engine that takes 24 ms to register a window for
/// every request would take minutes for what others do in one second. Its rate is known by then,
/// but not before it has made so many requests.
const REQUESTS_MIN: usize = 8;

/// Passes over a file before it counts as read again, and how many to wait for registrations.
const PASSES_MIN: u32 = 5;
const PASSES_MAX: u32 = 40;

/// What one run cost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) requests: usize,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    pub(super) plan_s: f64,
    pub(super) latency_s: f64,
    /// Bytes of those moved that were cached when the run began.
    pub(super) cached_bytes: u64,
    /// What the load did meanwhile, in 1e9 of its units each second.
    pub(super) load_rate: f64,
}

/// Runs engines on one group: a state, requests and a load.
pub(super) struct Runner<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) path: &'a Path,
    pub(super) state: CacheState,
    pub(super) wanted: &'a Wanted,
    pub(super) requests: &'a Requests,
    pub(super) loads: &'a Loads,
    pub(super) load: LoadKind,
    pub(super) router: &'a Router,
    /// As long as the requests together.
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
        self.wanted.set_up(&file)?;
        let residency = look(&file, self.requests.region.clone())?;
        row.note_state(cached_part(&residency), residency.source.name());
        if first {
            poison(&self.bench.device, self.memory)?;
        }
        // The load's threads begin and end between the two, so that what they used can be
        // subtracted to the last tick.
        let cpu_before = cpu_seconds();
        let load = self.loads.start(self.load)?;
        let mut taken = self.time(&file, row.choice)?;
        let done = load.stop()?;
        taken.cpu_s = (cpu_seconds() - cpu_before - done.cpu_s).max(0.0);
        taken.load_rate = done.rate();
        let read = self.requests.joined(taken.requests);
        taken.cached_bytes = read.iter().map(|part| cached_bytes_of(&residency, part)).sum();
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
        let mut at = 0;
        let begun = Instant::now();
        for &(offset, length) in &self.requests.list {
            if latencies.len() >= REQUESTS_MIN && begun.elapsed() > self.bench.options.run_time {
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
        (taken.requests, taken.bytes, taken.seconds) = (latencies.len(), at, latencies.iter().sum());
        latencies.sort_by(f64::total_cmp);
        taken.latency_s = latencies[latencies.len() / 2];
        Ok(taken)
    }

    /// Compares what the first requests moved with the file, byte by byte.
    fn verify(&self, file: &Arc<OpenFile>, requests: usize) -> Result<(), Failure> {
        let mut checker = Checker::new(self.router, file)?;
        let mut at = 0;
        for part in self.requests.joined(requests) {
            signals::check(self.bench.cancel)?;
            let length = part.end - part.start;
            checker.compare_all(self.memory.part(at, length)?, part.start)?;
            at += length;
        }
        Ok(())
    }

    /// Reads the region through one handle until plans use registered ranges for it.
    pub(super) fn read_until_registered(&self) -> Result<Arc<OpenFile>, Failure> {
        let file = read::open_file(self.path, &self.bench.device)?;
        let region = self.requests.region.clone();
        self.wanted.set_up(&file)?;
        for pass in 0..PASSES_MAX {
            signals::check(self.bench.cancel)?;
            self.bench.progress.say(&format!("{}: reading it several times, pass {}", self.state, pass + 1));
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
