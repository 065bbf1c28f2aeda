//! One run: its state, its contention, its clock.

use super::choices::{Contention, RegionState};
use super::contention::Contenders;
use super::options::Options;
use super::requests::Requests;
use super::results::{Row, Taken};
use super::states::Wanted;
use crate::error::{Error, Result};
use crate::harness::cache_state::{cached_bytes_of, cached_part};
use crate::harness::router::open_file;
use crate::harness::session::Session;
use crate::harness::usage::cpu_seconds;
use crate::harness::verify::{Checker, poison};
use bifolio_device::{Device, DeviceSlice};
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

/// Runs engines on one group: a state, requests and a contention.
pub(super) struct Runner<'a> {
    pub(super) options: &'a Options,
    pub(super) session: &'a Session,
    pub(super) device: &'a Device,
    pub(super) path: &'a Path,
    pub(super) state: RegionState,
    pub(super) wanted: &'a Wanted,
    pub(super) requests: &'a Requests,
    pub(super) contenders: &'a Contenders,
    pub(super) contention: Contention,
    pub(super) router: &'a Router,
    /// As long as the requests together.
    pub(super) memory: DeviceSlice<'a>,
}

impl Runner<'_> {
    /// Sets the state up, runs the engine of `row` once, and adds what it took. A new handle for
    /// every run, so that registrations of an earlier one neither help nor keep pages cached;
    /// `kept` is the handle of the state that is about exactly that.
    pub(super) fn run(&self, row: &mut Row, kept: Option<&Arc<OpenFile>>, first: bool) -> Result<()> {
        let file = match kept {
            Some(file) => Arc::clone(file),
            None => open_file(self.path, self.device)?,
        };
        self.wanted.set_up(&file)?;
        let residency = look(&file, self.requests.region.clone())?;
        row.note_state(cached_part(&residency), residency.source.name());
        if first {
            poison(self.device, self.memory)?;
        }
        // The contention's threads begin and end between the two, so that what they used can be
        // subtracted to the last tick.
        let cpu_before = cpu_seconds();
        let contention = self.contenders.start(self.contention)?;
        let mut taken = self.time(&file, row.choice)?;
        let done = contention.stop()?;
        taken.cpu_s = (cpu_seconds() - cpu_before - done.cpu_s).max(0.0);
        taken.contention_rate = done.rate();
        let read = self.requests.joined(taken.requests);
        taken.cached_bytes = read.iter().map(|part| cached_bytes_of(&residency, part)).sum();
        row.add(taken);
        if first {
            self.verify(&file, taken.requests)?;
            row.verified = true;
        }
        Ok(())
    }

    fn time(&self, file: &Arc<OpenFile>, engine: EngineChoice) -> Result<Taken> {
        let options = ReadOptions { engine, cancel: self.session.cancel().clone(), ..ReadOptions::default() };
        let mut taken = Taken::default();
        let mut latencies = Vec::with_capacity(self.requests.list.len());
        let mut at = 0;
        let begun = Instant::now();
        for &(offset, length) in &self.requests.list {
            if latencies.len() >= REQUESTS_MIN && begun.elapsed() > self.options.run_time {
                break;
            }
            let place = self.memory.part(at, length)?;
            let started = Instant::now();
            let report = self.router.read(file, offset, Some(length), place, &options)?;
            latencies.push(started.elapsed().as_secs_f64());
            taken.plan_s += report.plan_seconds;
            if report.bytes != length {
                let subject = format!("{}, offset {offset}, into {}", self.path.display(), self.device.id());
                return Err(Error::failed(subject, "the file shrank during the benchmark"));
            }
            at += length;
        }
        (taken.requests, taken.bytes, taken.seconds) = (latencies.len(), at, latencies.iter().sum());
        latencies.sort_by(f64::total_cmp);
        taken.latency_s = latencies[latencies.len() / 2];
        Ok(taken)
    }

    /// Compares what the first requests moved with the file, byte by byte.
    fn verify(&self, file: &Arc<OpenFile>, requests: usize) -> Result<()> {
        let mut checker = Checker::new(self.router, file)?;
        let mut at = 0;
        for part in self.requests.joined(requests) {
            self.session.check()?;
            let length = part.end - part.start;
            checker.compare_all(self.memory.part(at, length)?, part.start)?;
            at += length;
        }
        Ok(())
    }

    /// Reads the region through one handle until plans use registered ranges for it.
    pub(super) fn read_until_registered(&self) -> Result<Arc<OpenFile>> {
        let file = open_file(self.path, self.device)?;
        let region = self.requests.region.clone();
        self.wanted.set_up(&file)?;
        for pass in 0..PASSES_MAX {
            self.session.check()?;
            self.session.say(&format!("{}: reading it several times, pass {}", self.state, pass + 1));
            let registered = self.read_through(&file, &region)?;
            if pass + 1 >= PASSES_MIN && (registered || !self.can_map()) {
                break;
            }
            // Registration is in the background.
            std::thread::sleep(Duration::from_millis(if pass < PASSES_MIN { 50 } else { 250 }));
        }
        Ok(file)
    }

    /// Whether ranges can be registered at all.
    pub(super) fn can_map(&self) -> bool {
        self.device.capabilities().host_register_read_only.is_yes()
    }

    /// Whether all of it came out of registered ranges.
    fn read_through(&self, file: &Arc<OpenFile>, region: &Range<u64>) -> Result<bool> {
        let options = ReadOptions { cancel: self.session.cancel().clone(), ..ReadOptions::default() };
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
