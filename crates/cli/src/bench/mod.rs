//! `bifolio bench read`: engines by cache state, beside what disk and link can do.
//!
//! ```text
//!   for each file, state and request size:
//!       for each repetition:              drift of the machine hits all engines alike
//!           for each engine (and the disk alone):
//!               set the state up, look at what was reached, run, verify once
//! ```
//!
//! The measuring is in [`states`] and [`baseline`], the arithmetic in [`results`], the reports in
//! [`table`] and [`html`].

mod baseline;
mod html;
mod machine;
mod plots;
mod results;
mod run;
pub mod small;
pub mod spread;
mod states;
mod table;

use crate::args::{Args, BenchArgs, CacheState, RequestSize};
use crate::exit::{Code, Failure};
use crate::progress::Progress;
use crate::{output, read, signals};
use bifolio_device::{Device, open};
use bifolio_io::{Cancel, EngineChoice, EngineKind, OpenFile, Router, RouterOptions};
use results::{FileResults, Group, Results};
use std::path::Path;
use std::sync::Arc;

/// What is the same for every run.
struct Bench<'a> {
    options: &'a BenchArgs,
    device: Device,
    cancel: &'a Cancel,
    progress: Progress,
}

/// Measures, prints, and writes the report.
pub fn run(args: &Args, options: &BenchArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = open(args.device()?)?;
    for path in &options.files {
        let file = read::open_file(path, &device)?;
        if file.size()? == 0 {
            return Err(Failure::failed(format!(
                "{}, into {}: the file is empty; nothing can be measured",
                path.display(),
                device.id()
            )));
        }
    }
    let groups = options.files.len() * options.states.len() * options.sizes.len();
    let steps = groups as u64 * u64::from(options.repetitions);
    let bench = Bench { options, device, cancel, progress: Progress::of_steps("starting", steps) };
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
        Ok(Results {
            machine: machine::describe(&self.device),
            seed: self.options.seed,
            repetitions: self.options.repetitions,
            stripe_bytes: self.options.stripe,
            link_gb_per_s: link,
            files: files.collect::<Result<_, _>>()?,
        })
    }

    fn measure_file(&self, path: &Path, link: f64) -> Result<FileResults, Failure> {
        let file = read::open_file(path, &self.device)?;
        let router = Router::new(&self.device, self.router_options(&file, CacheState::Warm)?);
        let (engines, left_out) = self.engines(&router, &file)?;
        let mut results = FileResults {
            path: path.display().to_string(),
            bytes: file.size()?,
            file_system: machine::file_system(&file),
            left_out,
            groups: vec![],
        };
        drop(router);
        for &state in &self.options.states {
            for &size in &self.options.sizes {
                match self.measure_group(path, state, size, &engines, link)? {
                    Ok(group) => results.groups.push(group),
                    Err(reason) => results.left_out.push(format!("{} ({size}): {reason}", state.name())),
                }
            }
        }
        if results.groups.is_empty() {
            return Err(Failure::failed(format!(
                "{}: nothing could be measured: {}",
                results.path,
                results.left_out.join("; ")
            )));
        }
        Ok(results)
    }

    /// One state and request size, all engines; the reason if it cannot be had here.
    fn measure_group(
        &self,
        path: &Path,
        state: CacheState,
        size: RequestSize,
        engines: &[EngineChoice],
        link: f64,
    ) -> Result<Result<Group, String>, Failure> {
        let engines: Vec<_> = engines.iter().copied().filter(|engine| measured_in(state, *engine)).collect();
        if engines.is_empty() || state == CacheState::Again && engines == [EngineChoice::Auto] && !self.can_map() {
            return Ok(Err("no engine is measured in this state here".to_owned()));
        }
        let file = read::open_file(path, &self.device)?;
        let requests = run::Requests::draw(file.size()?, size, self.options);
        if requests.list.is_empty() {
            return Ok(Err("the file is shorter than one request".to_owned()));
        }
        if let Err(reason) = states::is_possible(&file, state) {
            return Ok(Err(reason));
        }
        let router = Router::new(&self.device, self.router_options(&file, state)?);
        let memory = self.device.alloc(requests.bytes).map_err(|error| bifolio_io::Error::device(path, error))?;
        let runner =
            run::Runner { bench: self, path, state, requests: &requests, router: &router, memory: memory.slice() };
        let wanted = states::cached_part(state, requests.region.clone(), self.options.stripe);
        let mut group = Group::new(state, size, &requests, &engines, wanted);
        let kept = if state == CacheState::Again { Some(runner.read_until_registered()?) } else { None };
        for repetition in 0..self.options.repetitions {
            // Each repetition begins with another engine: who reads first pays for the disk's own
            // cache, or for a link that slept.
            let rows = group.rows.len();
            for turn in 0..rows {
                let row = &mut group.rows[(turn + repetition as usize) % rows];
                signals::check(self.cancel)?;
                self.progress.say(&format!("{}, {size}, {}, run {}", state.name(), row.engine, repetition + 1));
                run_or_note(&runner, row, kept.as_ref(), repetition == 0)?;
            }
            if matches!(state, CacheState::Cold | CacheState::Half) {
                group.disk_gb_per_s = baseline::quicker(group.disk_gb_per_s, baseline::disk(&file, self.options)?);
            }
            self.progress.advance(1);
        }
        group.finish(link);
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
        let mut wanted = self.options.engines.clone().unwrap_or_else(|| usual.to_vec());
        let mut seen = vec![];
        wanted.retain(|engine| {
            !seen.contains(engine) && {
                seen.push(*engine);
                true
            }
        });
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
