//! `bifolio bench read`: engines by cache state, beside what disk and link can do.
//!
//! ```text
//!   for each file, state, request size, pattern and load:
//!       for each repetition:              drift of the machine hits all engines alike
//!           for each engine (and the disk alone):
//!               set the state up, look at what was reached, run, verify once
//! ```
//!
//! What can be asked for is in [`choices`], what it means in [`states`] and [`requests`], the
//! measuring in [`mod@run`], [`load`] and [`baseline`], the arithmetic in [`results`], the reports in
//! [`table`] and [`html`]. The other benchmarks have modules of their own: [`compute`], [`plan`], [`small`], [`spread`].

mod baseline;
pub mod choices;
pub mod compute;
pub mod disparity;
mod html;
mod load;
mod machine;
pub mod plan;
mod plots;
mod random;
mod requests;
mod results;
mod run;
pub mod small;
pub mod spread;
mod states;
mod table;
pub mod volume;
pub mod write;

use crate::args::{Args, BenchArgs};
use crate::exit::{Code, Failure};
use crate::progress::Progress;
use crate::{output, read, signals};
use bifolio_device::{Device, DeviceSlice, open};
use bifolio_io::{Cancel, EngineChoice, EngineKind, OpenFile, Router, RouterOptions};
use choices::{CacheState, LoadKind};
use load::Loads;
use requests::Requests;
use results::{FileResults, Group, LoadResults, Results, Summary};
use std::path::Path;
use std::sync::Arc;

/// What is the same for every run.
struct Bench<'a> {
    options: &'a BenchArgs,
    states: Vec<CacheState>,
    device: Device,
    cancel: &'a Cancel,
    progress: Progress,
}

/// What is the same for every run on one file.
struct Target<'a> {
    path: &'a Path,
    engines: Vec<EngineChoice>,
    loads: Loads,
    memory: DeviceSlice<'a>,
    link_gb_per_s: f64,
    disk_gb_per_s: Option<f64>,
}

/// Measures, prints, and writes the report.
pub fn run(args: &Args, options: &BenchArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = open(args.device()?)?;
    let states = without_repeats(options.states.iter().flat_map(|states| &states.0));
    let mut steps = 0;
    for path in &options.files {
        let file = read::open_file(path, &device)?;
        if file.size()? == 0 {
            return Err(Failure::failed(format!(
                "{}, into {}: the file is empty; nothing can be measured",
                path.display(),
                device.id()
            )));
        }
        let groups = states.len() * Requests::draw_all(file.size()?, options).len() * options.load.len();
        steps += groups as u64 * u64::from(options.repetitions);
    }
    let bench = Bench { options, states, device, cancel, progress: Progress::of_steps("starting", steps) };
    let results = bench.measure()?;
    drop(bench);
    if let Some(out) = &options.html {
        let fail = |error| Failure::failed(format!("{}: writing the report failed: {error}", out.display()));
        let page =
            html::page(&results).map_err(|error| Failure::failed(format!("drawing the report failed: {error}")))?;
        std::fs::write(out, page).map_err(fail)?;
    }
    if args.json { output::json(&results) } else { output::text(&table::describe(&results)) }
}

impl Bench<'_> {
    fn measure(&self) -> Result<Results, Failure> {
        let link = baseline::link(&self.device, self.options.repetitions)?;
        let files = self.options.files.iter().map(|path| self.measure_file(path, link));
        let files: Vec<_> = files.collect::<Result<_, _>>()?;
        Ok(Results {
            machine: machine::describe(&self.device),
            seed: self.options.seed,
            repetitions: self.options.repetitions,
            run_time_s_max: self.options.run_time.as_secs_f64(),
            stripe_bytes: self.options.stripe,
            cell_bytes: self.options.cell,
            link_gb_per_s: link,
            summary: Summary::of(&files),
            files,
        })
    }

    fn measure_file(&self, path: &Path, link_gb_per_s: f64) -> Result<FileResults, Failure> {
        let file = read::open_file(path, &self.device)?;
        let router = Router::new(&self.device, self.router_options(&file, CacheState::Warm)?);
        let (engines, left_out) = self.engines(&router, &file)?;
        drop(router);
        let all_requests = Requests::draw_all(file.size()?, self.options);
        let bytes = all_requests.iter().map(|requests| requests.bytes).max().unwrap_or(0);
        let memory = self.device.alloc(bytes).map_err(|error| bifolio_io::Error::device(path, error))?;
        let target = Target {
            path,
            engines,
            loads: Loads::prepare(self.options, path, self.cancel)?,
            memory: memory.slice(),
            link_gb_per_s,
            disk_gb_per_s: self.disk_of_percentages(&file)?,
        };
        let mut results = FileResults {
            path: path.display().to_string(),
            bytes: file.size()?,
            file_system: machine::file_system(&file),
            disk_gb_per_s: target.disk_gb_per_s,
            left_out,
            groups: vec![],
            loads: vec![],
        };
        let combinations =
            self.states.iter().flat_map(|state| all_requests.iter().map(move |requests| (*state, requests)));
        let loads = without_repeats(&self.options.load);
        for (state, requests) in combinations {
            for &load in &loads {
                match self.measure_group(&target, state, requests, load)? {
                    Ok(group) => results.groups.push(group),
                    Err(reason) => results.left_out.push(format!("{state} ({}): {reason}", requests.name())),
                }
            }
        }
        results.left_out.dedup();
        if results.groups.is_empty() {
            return Err(Failure::failed(format!(
                "{}: nothing could be measured: {}",
                results.path,
                results.left_out.join("; ")
            )));
        }
        let of_kind = |kind: &LoadKind| LoadResults::new(*kind, target.loads.describe(*kind), &results.groups);
        results.loads = loads.iter().filter(|kind| **kind != LoadKind::None).map(of_kind).collect();
        Ok(results)
    }

    /// The disk alone, once for all percentages: it is measured on a cold file, which would have to
    /// be brought back into its state each time.
    fn disk_of_percentages(&self, file: &OpenFile) -> Result<Option<f64>, Failure> {
        let mut quickest = None;
        if !file.is_in_memory() && self.states.iter().any(|state| state.percent().is_some_and(|percent| percent < 100))
        {
            for _ in 0..self.options.repetitions.min(3) {
                signals::check(self.cancel)?;
                self.progress.say("the disk alone");
                quickest = baseline::quicker(quickest, baseline::disk(file, self.options)?);
            }
        }
        Ok(quickest)
    }

    /// One state, request size, pattern and load, all engines; the reason if it cannot be had here.
    fn measure_group(
        &self,
        target: &Target<'_>,
        state: CacheState,
        requests: &Requests,
        load: LoadKind,
    ) -> Result<Result<Group, String>, Failure> {
        let engines: Vec<_> = target.engines.iter().copied().filter(|engine| measured_in(state, *engine)).collect();
        if engines.is_empty() || state == CacheState::Again && engines == [EngineChoice::Auto] && !self.can_map() {
            return Ok(Err("no engine is measured in this state here".to_owned()));
        }
        if requests.list.is_empty() {
            return Ok(Err("the file is shorter than one request".to_owned()));
        }
        let file = read::open_file(target.path, &self.device)?;
        if let Err(reason) = states::is_possible(&file, state) {
            return Ok(Err(reason));
        }
        let router = Router::new(&self.device, self.router_options(&file, state)?);
        let wanted = states::Wanted::new(state, requests.region.clone(), self.options);
        let runner = run::Runner {
            bench: self,
            path: target.path,
            state,
            wanted: &wanted,
            requests,
            loads: &target.loads,
            load,
            router: &router,
            memory: target.memory.part(0, requests.bytes)?,
        };
        let mut group = Group::new(state, requests, load, &engines, wanted.part());
        let kept = if state == CacheState::Again { Some(runner.read_until_registered()?) } else { None };
        for repetition in 0..self.options.repetitions {
            // Each repetition begins with another engine: who reads first pays for the disk's own
            // cache, or for a link that slept.
            let rows = group.rows.len();
            for turn in 0..rows {
                let row = &mut group.rows[(turn + repetition as usize) % rows];
                signals::check(self.cancel)?;
                self.progress.say(&format!(
                    "{state}, {}, load {}, {}, run {}",
                    requests.name(),
                    load.name(),
                    row.engine,
                    repetition + 1
                ));
                run_or_note(&runner, row, kept.as_ref(), repetition == 0)?;
            }
            if load == LoadKind::None && matches!(state, CacheState::Cold | CacheState::Half) {
                group.disk_gb_per_s = baseline::quicker(group.disk_gb_per_s, baseline::disk(&file, self.options)?);
            }
            self.progress.advance(1);
        }
        group.finish(target.link_gb_per_s, target.disk_gb_per_s);
        Ok(Ok(group))
    }

    /// `auto` reads warm files without kept registrations, which are measured by themselves.
    fn router_options(&self, file: &OpenFile, state: CacheState) -> Result<RouterOptions, Failure> {
        let options = read::router_options(&self.device, file, &self.options.router, self.cancel)?;
        let mapped_bytes = if state == CacheState::Again { options.mapped_bytes } else { 0 };
        Ok(RouterOptions { mapped_bytes, ..options })
    }

    fn can_map(&self) -> bool {
        self.device.capabilities().host_register_read_only.is_yes()
    }

    /// The engines to measure, and why others are not.
    fn engines(&self, router: &Router, file: &Arc<OpenFile>) -> Result<(Vec<EngineChoice>, Vec<String>), Failure> {
        let only = EngineChoice::Only;
        let usual = [only(EngineKind::Cached), only(EngineKind::Direct), only(EngineKind::Mapped), EngineChoice::Auto];
        let wanted = without_repeats(self.options.engines.as_deref().unwrap_or(&usual));
        let (mut engines, mut left_out) = (vec![], vec![]);
        for engine in wanted {
            match router.explain(file, 0, None, engine).map_err(Failure::from) {
                Ok(_) => engines.push(engine),
                // What was asked for by name must be there; what is only usual need not.
                Err(failure) if failure.code() == Code::Unavailable && self.options.engines.is_none() => {
                    left_out.push(format!("{engine}: {}", failure.message()));
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok((engines, left_out))
    }
}

/// What was asked for, each once, in the order in which it was asked for.
fn without_repeats<'a, T: Copy + PartialEq + 'a>(items: impl IntoIterator<Item = &'a T>) -> Vec<T> {
    let mut kept = vec![];
    for item in items {
        if !kept.contains(item) {
            kept.push(*item);
        }
    }
    kept
}

/// Reading again is about registered ranges: other engines gain nothing from a kept handle.
fn measured_in(state: CacheState, engine: EngineChoice) -> bool {
    state != CacheState::Again || matches!(engine, EngineChoice::Auto | EngineChoice::Only(EngineKind::Mapped))
}

/// Runs a row's engine once more. An engine that a user would have to choose may fail (registering
/// file pages can), and the others are still worth measuring; `auto` may not.
fn run_or_note(
    runner: &run::Runner<'_>,
    row: &mut results::Row,
    kept: Option<&Arc<OpenFile>>,
    first: bool,
) -> Result<(), Failure> {
    if row.failed.is_some() {
        return Ok(());
    }
    match runner.run(row, kept, first) {
        Err(failure) if failure.code() == Code::Failed && row.choice != EngineChoice::Auto => {
            row.failed = Some(failure.message().to_owned());
            Ok(())
        }
        outcome => outcome,
    }
}
