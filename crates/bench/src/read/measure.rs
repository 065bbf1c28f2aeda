//! Every group in turn: a state, a request size, a pattern, contention.

use super::choices::{Contention, RegionState, RequestSize};
use super::contention::Contenders;
use super::options::Options;
use super::requests::Requests;
use super::results::{ContentionResults, FileResults, Group, Results, Row, Summary};
use super::run::Runner;
use super::states::{self, Wanted};
use crate::error::{Error, ErrorKind, Result};
use crate::harness::baseline;
use crate::harness::machine;
use crate::harness::report::Measured;
use crate::harness::router::open_file;
use crate::harness::session::Session;
use crate::harness::turns::in_turns;
use bifolio_device::{Device, DeviceSlice};
use bifolio_io::{EngineChoice, EngineKind, OpenFile, Router, RouterOptions};
use std::path::Path;
use std::sync::Arc;

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let bench = Bench { options, device, session };
    let states = without_repeats(&options.states);
    let mut groups = 0;
    for path in &options.files {
        let file = open_file(path, device)?;
        if file.size()? == 0 {
            let subject = format!("{}, into {}", path.display(), device.id());
            return Err(Error::failed(subject, "the file is empty; nothing can be measured"));
        }
        groups += states.len() * Requests::draw_all(file.size()?, options).len() * options.contention.len();
    }
    // Engines that do not work here are not known yet.
    let engines = options.engines.as_ref().map_or(4, Vec::len);
    session.begin("starting", (groups * engines) as u64 * u64::from(options.repetitions));
    let link = baseline::link(device, options.repetitions, session)?;
    let mut files = vec![];
    let measure = |path: &std::path::PathBuf| bench.measure_file(path, &states, link, &mut files);
    let ended = options.files.iter().try_for_each(measure);
    Measured::new(ended, !files.is_empty(), || Results {
        machine: machine::describe(device),
        seed: options.seed,
        repetitions: options.repetitions,
        run_time_s_max: options.run_time.as_secs_f64(),
        stripe_bytes: options.stripe_bytes,
        cell_bytes: options.cell_bytes,
        link_gb_per_s: link,
        summary: Summary::of(&files),
        files,
    })
}

/// What is the same for every run.
struct Bench<'a> {
    options: &'a Options,
    device: &'a Device,
    session: &'a Session,
}

/// What is the same for every run on one file.
struct Target<'a> {
    path: &'a Path,
    engines: Vec<EngineChoice>,
    contenders: Contenders,
    memory: DeviceSlice<'a>,
    link_gb_per_s: f64,
    disk_gb_per_s: Option<f64>,
}

impl Bench<'_> {
    /// Adds the file to `files` if something of it was measured, also where that was interrupted.
    fn measure_file(
        &self,
        path: &Path,
        states: &[RegionState],
        link_gb_per_s: f64,
        files: &mut Vec<FileResults>,
    ) -> Result<()> {
        let file = open_file(path, self.device)?;
        let router = Router::new(self.device, self.router_options(&file, RegionState::Warm)?);
        let (engines, left_out) = self.engines(&router, &file)?;
        drop(router);
        let all_requests = Requests::draw_all(file.size()?, self.options);
        let bytes = all_requests.iter().map(|requests| requests.bytes).max().unwrap_or(0);
        let memory = self.device.alloc(bytes).map_err(|error| bifolio_io::Error::device(path, error))?;
        let target = Target {
            path,
            engines,
            contenders: Contenders::prepare(self.options, path, self.session)?,
            memory: memory.slice(),
            link_gb_per_s,
            disk_gb_per_s: self.disk_of_percentages(&file, states)?,
        };
        let mut results = FileResults {
            path: path.display().to_string(),
            bytes: file.size()?,
            file_system: machine::file_system(&file),
            disk_gb_per_s: target.disk_gb_per_s,
            left_out,
            groups: vec![],
            contentions: vec![],
        };
        let kinds = without_repeats(&self.options.contention);
        let ended = self.measure_groups(&target, states, &all_requests, &kinds, &mut results);
        results.left_out.dedup();
        let contentions = kinds.iter().filter(|kind| **kind != Contention::None);
        let of_kind =
            |kind: &Contention| ContentionResults::new(*kind, target.contenders.describe(*kind), &results.groups);
        results.contentions = contentions.map(of_kind).collect();
        if !results.groups.is_empty() {
            files.push(results);
        } else if ended.is_ok() {
            let detail = format!("nothing could be measured: {}", results.left_out.join("; "));
            return Err(Error::failed(results.path, detail));
        }
        ended
    }

    fn measure_groups(
        &self,
        target: &Target<'_>,
        states: &[RegionState],
        all_requests: &[Requests],
        kinds: &[Contention],
        results: &mut FileResults,
    ) -> Result<()> {
        for &state in states {
            for requests in all_requests {
                for &contention in kinds {
                    let groups = &mut results.groups;
                    if let Some(reason) = self.measure_group(target, state, requests, contention, groups)? {
                        results.left_out.push(format!("{state} ({}): {reason}", requests.name()));
                    }
                }
            }
        }
        Ok(())
    }

    /// The disk alone, once for all percentages: it is measured on a cold file, which would have to
    /// be brought back into its state each time.
    fn disk_of_percentages(&self, file: &OpenFile, states: &[RegionState]) -> Result<Option<f64>> {
        let mut quickest = None;
        if !file.is_in_memory() && states.iter().any(|state| state.percent().is_some_and(|percent| percent < 100)) {
            for _ in 0..self.options.repetitions.min(3) {
                self.session.check()?;
                self.session.say("the disk alone");
                quickest = baseline::quicker(quickest, self.disk(file)?);
            }
        }
        Ok(quickest)
    }

    fn disk(&self, file: &OpenFile) -> Result<Option<f64>> {
        let whole = self.options.sizes.contains(&RequestSize::File);
        baseline::disk(file, if whole { u64::MAX } else { self.options.region_bytes })
    }

    /// One state, request size, pattern and contention, all engines; the reason if it cannot be had here. The group is
    /// added also where it was interrupted after some runs.
    fn measure_group(
        &self,
        target: &Target<'_>,
        state: RegionState,
        requests: &Requests,
        contention: Contention,
        groups: &mut Vec<Group>,
    ) -> Result<Option<String>> {
        let engines: Vec<_> = target.engines.iter().copied().filter(|engine| measured_in(state, *engine)).collect();
        let can_map = self.device.capabilities().host_register_read_only.is_yes();
        if engines.is_empty() || state == RegionState::Again && engines == [EngineChoice::Auto] && !can_map {
            return Ok(Some("no engine is measured in this state here".to_owned()));
        }
        if requests.list.is_empty() {
            return Ok(Some("the file is shorter than one request".to_owned()));
        }
        let file = open_file(target.path, self.device)?;
        if let Err(reason) = states::is_possible(&file, state) {
            return Ok(Some(reason));
        }
        let router = Router::new(self.device, self.router_options(&file, state)?);
        let wanted = Wanted::new(state, requests.region.clone(), self.options);
        let runner = Runner {
            options: self.options,
            session: self.session,
            device: self.device,
            path: target.path,
            state,
            wanted: &wanted,
            requests,
            contenders: &target.contenders,
            contention,
            router: &router,
            memory: target.memory.part(0, requests.bytes)?,
        };
        let mut group = Group::new(state, requests, contention, &engines, wanted.part());
        let ended = self.measure_rows(&runner, &file, &mut group);
        group.finish(target.link_gb_per_s, target.disk_gb_per_s);
        if !group.rows.is_empty() {
            groups.push(group);
        }
        ended.map(|()| None)
    }

    fn measure_rows(&self, runner: &Runner<'_>, file: &OpenFile, group: &mut Group) -> Result<()> {
        let Runner { state, contention, requests, .. } = *runner;
        let kept = if state == RegionState::Again { Some(runner.read_until_registered()?) } else { None };
        let with_disk = contention == Contention::None && matches!(state, RegionState::Cold | RegionState::Half);
        let Group { rows, disk_gb_per_s, .. } = group;
        let (mut turns, count) = (0, rows.len());
        in_turns(self.session, self.options.repetitions, rows, |row, repetition| {
            let (what, with) = (requests.name(), contention.name());
            self.session.say(&format!("{state}, {what}, contention {with}, {}, run {}", row.engine, repetition + 1));
            run_or_note(runner, row, kept.as_ref(), repetition == 0)?;
            turns += 1;
            if with_disk && turns % count == 0 {
                *disk_gb_per_s = baseline::quicker(*disk_gb_per_s, self.disk(file)?);
            }
            Ok(())
        })
    }

    /// `auto` reads warm files without kept registrations, which are measured by themselves.
    fn router_options(&self, file: &OpenFile, state: RegionState) -> Result<RouterOptions> {
        let options = self.options.router.options(self.device, file, self.session.cancel())?;
        let mapped_bytes = if state == RegionState::Again { options.mapped_bytes } else { 0 };
        Ok(RouterOptions { mapped_bytes, ..options })
    }

    /// The engines to measure, and why others are not.
    fn engines(&self, router: &Router, file: &Arc<OpenFile>) -> Result<(Vec<EngineChoice>, Vec<String>)> {
        let only = EngineChoice::Only;
        let usual = [only(EngineKind::Cached), only(EngineKind::Direct), only(EngineKind::Mapped), EngineChoice::Auto];
        let wanted = without_repeats(self.options.engines.as_deref().unwrap_or(&usual));
        let (mut engines, mut left_out) = (vec![], vec![]);
        for engine in wanted {
            match router.explain(file, 0, None, engine).map_err(Error::from) {
                Ok(_) => engines.push(engine),
                // What was asked for by name must be there; what is only usual need not.
                Err(error) if error.kind() == ErrorKind::Unavailable && self.options.engines.is_none() => {
                    left_out.push(format!("{engine}: {error}"));
                }
                Err(error) => return Err(error),
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
fn measured_in(state: RegionState, engine: EngineChoice) -> bool {
    state != RegionState::Again || matches!(engine, EngineChoice::Auto | EngineChoice::Only(EngineKind::Mapped))
}

/// Runs a row's engine once more. An engine that a user would have to choose may fail (registering
/// file pages can), and the others are still worth measuring; `auto` may not.
fn run_or_note(runner: &Runner<'_>, row: &mut Row, kept: Option<&Arc<OpenFile>>, first: bool) -> Result<()> {
    if row.failed.is_some() {
        return Ok(());
    }
    match runner.run(row, kept, first) {
        Err(error) if error.kind() == ErrorKind::Failed && row.choice != EngineChoice::Auto => {
            row.failed = Some(error.to_string());
            Ok(())
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::HostOptions;

    #[test]
    fn an_interrupted_benchmark_has_the_runs_until_then() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bifolio_testing::noise(1 << 20, 1)).unwrap();
        let session = Session::default();
        let only = [EngineKind::Cached].map(EngineChoice::Only).to_vec();
        let options = Options {
            engines: Some([only, vec![EngineChoice::Auto]].concat()),
            repetitions: 10_000,
            ..Options::new(vec![file.path().to_owned()])
        };
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| {
                bifolio_testing::until("both engines have run", || session.progress().steps().0 >= 2);
                session.cancel().cancel();
            });
            run(&Device::host(&HostOptions::default()), &options, &session).unwrap()
        });
        assert!(measured.partial && measured.text().starts_with("partial: "), "{}", measured.text());
        let rows = &measured.results.files[0].groups[0].rows;
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.gb_per_s_best > 0.0 && row.seconds.len() < 10_000));
    }
}
