//! `bifolio bench write`: device memory into a file, beside what the page cache and the disk take from
//! host memory in the same run.
//!
//! The content is incompressible. `warm` overwrites pages that are cached; `new` writes a file that
//! was just cut to nothing; both are what they are again before every run.

use super::baseline::{self, Transfers};
use crate::args::{Args, RouterArgs};
use crate::exit::Failure;
use crate::progress::Progress;
use crate::read::{self, Checker};
use crate::resources::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use crate::{output, signals, size};
use bifolio_device::{Allocation, Device, PinnedBuffer, open};
use bifolio_io::cache_state::{load, write_incompressible};
use bifolio_io::{Cancel, EngineChoice, EngineKind, OpenFile, ReadOptions, Router, WriteOptions};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One `pwrite` of the rival that writes from host memory.
const STEP: usize = 4 << 20;

/// Choices for `bench write`.
#[derive(Debug, ClapArgs)]
pub struct BenchWriteArgs {
    /// A folder on the file system to measure; a file is made there and removed.
    pub folder: PathBuf,
    /// Bytes of one write.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Runs of each way; they take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of the content.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Warm,
    New,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// `pwrite` of host memory into the page cache.
    HostCached,
    /// Unbuffered writes of host memory, as many at a time as the engine has.
    HostDirect,
    Cached,
    Direct,
    Auto,
}

impl Way {
    const ALL: [Self; 5] = [Self::HostCached, Self::HostDirect, Self::Cached, Self::Direct, Self::Auto];

    fn name(self) -> &'static str {
        match self {
            Self::HostCached => "(page cache alone)",
            Self::HostDirect => "(disk alone)",
            Self::Cached => "cached",
            Self::Direct => "direct",
            Self::Auto => "auto",
        }
    }

    fn rival(self) -> Option<Self> {
        match self {
            Self::Cached => Some(Self::HostCached),
            Self::Direct => Some(Self::HostDirect),
            _ => None,
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    state: State,
    way: Way,
    seconds: Vec<f64>,
    gb_per_s_best: f64,
    gb_per_s_median: f64,
    cpu_s_per_gb: f64,
    /// The median rate by the rival's.
    to_rival: Option<f64>,
    failed: Option<String>,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: super::machine::Machine,
    file_system: String,
    bytes: u64,
    repetitions: u32,
    seed: u64,
    rows: Vec<Row>,
}

/// A file that removes itself.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Measures and prints.
pub fn run(args: &Args, options: &BenchWriteArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = open(args.device()?)?;
    let scratch = Scratch(options.folder.join(format!(".bifolio-bench-write-{}", std::process::id())));
    let fail = |error: std::io::Error| Failure::failed(format!("{}: creating it failed: {error}", scratch.0.display()));
    let bytes = options.size.next_multiple_of(4096);
    let content = File::options().write(true).create_new(true).open(&scratch.0).map_err(fail)?;
    write_incompressible(&content, &scratch.0, bytes, options.seed, &mut |_| {})?;
    let file = read::open_file(&scratch.0, &device)?;
    let router = read::router(&device, &file, &options.router, cancel)?;
    let memory = device.alloc(bytes)?;
    router.read(&file, 0, None, memory.slice(), &ReadOptions::default())?;
    let mut host = device.alloc_pinned(STEP * baseline::DEPTH)?;
    router.read_to_host(&file, host.bytes_mut(), 0)?;
    let progress = Progress::of_steps("starting", u64::from(options.repetitions) * 2);
    let mut rows = vec![];
    for state in [State::Warm, State::New] {
        let row = |way| Row {
            state,
            way,
            seconds: vec![],
            gb_per_s_best: 0.0,
            gb_per_s_median: 0.0,
            cpu_s_per_gb: f64::INFINITY,
            to_rival: None,
            failed: None,
        };
        let mut group = Way::ALL.map(row);
        for repetition in 0..options.repetitions {
            for turn in 0..group.len() {
                let row = &mut group[(turn + repetition as usize) % Way::ALL.len()];
                signals::check(cancel)?;
                progress.say(&format!("{state:?}, {}, run {}", row.way.name(), repetition + 1));
                let bench = Bench { device: &device, router: &router, memory: &memory, path: &scratch.0, bytes };
                match bench.time(row.way, state, &mut host, repetition == 0) {
                    Ok((seconds, cpu)) => {
                        row.seconds.push(seconds);
                        row.cpu_s_per_gb = row.cpu_s_per_gb.min(cpu_s_per_gb(bytes, cpu));
                    }
                    Err(failure) if row.way != Way::Auto => row.failed = Some(failure.message().to_owned()),
                    Err(failure) => return Err(failure),
                }
            }
            progress.advance(1);
        }
        for row in group.iter_mut().filter(|row| !row.seconds.is_empty()) {
            let mut sorted = row.seconds.clone();
            sorted.sort_by(f64::total_cmp);
            row.gb_per_s_best = gb_per_s(bytes, sorted[0]);
            row.gb_per_s_median = gb_per_s(bytes, sorted[sorted.len() / 2]);
        }
        let rates = group.each_ref().map(|row| (row.way, row.gb_per_s_median));
        for row in &mut group {
            let rate = |way| rates.iter().find(|(other, _)| *other == way).map(|(_, rate)| *rate);
            row.to_rival =
                row.way.rival().and_then(rate).filter(|rate| *rate > 0.0).map(|rate| row.gb_per_s_median / rate);
        }
        rows.extend(group);
    }
    drop(progress);
    let results = Results {
        machine: super::machine::describe(&device),
        file_system: super::machine::file_system(&file),
        bytes,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
    };
    if args.json { output::json(&results) } else { output::text(&describe(&results)) }
}

struct Bench<'a> {
    device: &'a Device,
    router: &'a Router,
    memory: &'a Allocation,
    path: &'a Path,
    bytes: u64,
}

impl Bench<'_> {
    /// Sets the state up, and writes once: seconds and CPU seconds.
    fn time(&self, way: Way, state: State, host: &mut PinnedBuffer, verify: bool) -> Result<(f64, f64), Failure> {
        let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", self.path.display()));
        let file = self.router.open_for_writing(self.path, true)?;
        file.buffered().set_len(if state == State::New { 0 } else { self.bytes }).map_err(fail)?;
        file.buffered().sync_all().map_err(fail)?;
        if state == State::Warm {
            load(&file, 0..self.bytes)?;
        }
        let mut disk = match way {
            Way::HostDirect => Some(Transfers::of_content(host).map_err(fail)?),
            _ => None,
        };
        let (before, started) = (cpu_seconds(), Instant::now());
        match way {
            Way::HostCached => {
                for at in (0..self.bytes).step_by(STEP) {
                    let length = (self.bytes - at).min(STEP as u64) as usize;
                    let from = (at as usize) % (host.bytes().len() - STEP + 1) / 4096 * 4096;
                    file.buffered().write_all_at(&host.bytes()[from..from + length], at).map_err(fail)?;
                }
            }
            Way::HostDirect => {
                let disk = disk.as_mut().expect("made above");
                if state == State::New {
                    use bifolio_io::storage::{OsStorage, Storage};
                    OsStorage.allocate(file.buffered(), 0, self.bytes).map_err(fail)?;
                }
                disk.write_all(self.path, self.bytes).map_err(fail)?;
            }
            Way::Cached | Way::Direct | Way::Auto => self.write(way, &file)?,
        }
        let taken = (started.elapsed().as_secs_f64(), cpu_seconds() - before);
        if verify && matches!(way, Way::Cached | Way::Direct | Way::Auto) {
            Checker::new(self.router, &file)?.compare_all(self.memory.slice(), 0)?;
        }
        debug_assert_eq!(self.device.id(), self.router.device().id());
        Ok(taken)
    }

    fn write(&self, way: Way, file: &OpenFile) -> Result<(), Failure> {
        let engine = match way {
            Way::Cached => EngineChoice::Only(EngineKind::Cached),
            Way::Direct => EngineChoice::Only(EngineKind::Direct),
            _ => EngineChoice::Auto,
        };
        self.router.write(file, 0, self.memory.slice(), &WriteOptions { engine, ..WriteOptions::default() })?;
        Ok(())
    }
}

fn describe(results: &Results) -> String {
    let head = ["state", "way", "best GB/s", "median GB/s", "CPU s/GB", "of the rival"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(results.rows.iter().filter(|row| row.failed.is_none()).map(|row| {
        vec![
            format!("{:?}", row.state).to_lowercase(),
            row.way.name().to_owned(),
            format!("{:.3}", row.gb_per_s_best),
            format!("{:.3}", row.gb_per_s_median),
            format!("{:.3}", row.cpu_s_per_gb),
            row.to_rival.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
        ]
    }));
    let failed =
        results.rows.iter().filter_map(|row| Some(format!("left out: {}: {}\n", row.way.name(), row.failed.as_ref()?)));
    format!(
        "{}\n{} into a file on {}, {} runs of each way in turns, seed {}; what engines wrote was compared\n{}{}",
        results.machine,
        size::human(results.bytes),
        results.file_system,
        results.repetitions,
        results.seed,
        output::columns(&rows, &[0, 1]),
        failed.collect::<String>()
    )
}
