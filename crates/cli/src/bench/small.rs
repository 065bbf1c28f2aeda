//! `bifolio bench small`: short reads. Random ones by a batch and one by one; sequential ones with
//! and without readahead, complete at once or in the order of a stream.
//!
//! Ways take turns within a repetition, every state is set up before every run, and device memory
//! is compared with the file after the first run of each way.

use crate::args::{Args, RouterArgs};
use crate::exit::Failure;
use crate::progress::Progress;
use crate::read::{self, Checker, poison};
use crate::resources::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use crate::{output, signals, size};
use bifolio_device::{Allocation, Device, PinnedBuffer, Stream, open};
use bifolio_io::cache_state::{evict, load};
use bifolio_io::{Advice, Cancel, EngineChoice, OpenFile, ReadExtent, ReadOptions, Router};
use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Choices for `bench small`.
#[derive(Debug, ClapArgs)]
pub struct SmallArgs {
    /// The file.
    pub file: PathBuf,
    /// Sizes of a read.
    #[arg(long, value_delimiter = ',', default_value = "512,4K,16K,64K", value_parser = size::parse, value_name = "LIST")]
    pub sizes: Vec<u64>,
    /// Reads of a run, and so extents of a batch.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub reads: u32,
    /// Cache states.
    #[arg(long, value_delimiter = ',', default_value = "warm,cold", value_name = "LIST")]
    pub states: Vec<State>,
    /// Runs of each way.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of the random places.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// What of the file is cached before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All of it.
    Warm,
    /// Nothing.
    Cold,
}

/// Where the reads are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Pattern {
    Random,
    Sequential,
}

/// How the reads are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// `pread` into pinned memory, copy, wait: what a program without a library does.
    Plain,
    Each,
    EachAhead,
    Ordered,
    OrderedAhead,
    Batch,
}

impl Way {
    const ALL: [Self; 6] = [Self::Plain, Self::Each, Self::EachAhead, Self::Ordered, Self::OrderedAhead, Self::Batch];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "pread, copy, wait",
            Self::Each => "read, no readahead",
            Self::EachAhead => "read, readahead",
            Self::Ordered => "in stream order, no readahead",
            Self::OrderedAhead => "in stream order, readahead",
            Self::Batch => "one batch",
        }
    }

    /// The way that a ratio is of: the same loop without what this one adds.
    fn rival(self) -> Self {
        match self {
            Self::EachAhead | Self::Ordered | Self::OrderedAhead => Self::Each,
            _ => Self::Plain,
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    pattern: Pattern,
    state: State,
    read_bytes: u64,
    way: Way,
    seconds: Vec<f64>,
    reads_per_s: f64,
    us_per_read: f64,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    /// The median rate by that of the way beside it (`rival`).
    to_rival: f64,
    rival: Way,
    verified: bool,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: super::machine::Machine,
    file: String,
    reads: u32,
    repetitions: u32,
    seed: u64,
    rows: Vec<Row>,
}

/// Measures and prints.
pub fn run(args: &Args, options: &SmallArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = open(args.device()?)?;
    let file = read::open_file(&options.file, &device)?;
    let router = Arc::new(read::router(&device, &file, &options.router, cancel)?);
    let groups = options.sizes.len() * options.states.len() * 2;
    let progress = Progress::of_steps("starting", groups as u64 * u64::from(options.repetitions));
    let mut rows = vec![];
    for pattern in [Pattern::Random, Pattern::Sequential] {
        for &read_bytes in &options.sizes {
            for &state in &options.states {
                let places = places(file.size()?, read_bytes, pattern, options);
                if places.len() < 2 || state == State::Cold && file.is_in_memory() {
                    continue;
                }
                let memory = device.alloc(places.len() as u64 * read_bytes)?;
                let bench = Bench { options, device: &device, router: &router, read_bytes, state, places, memory };
                rows.extend(bench.measure(pattern, cancel, &progress)?);
            }
        }
    }
    drop(progress);
    if rows.is_empty() {
        return Err(Failure::failed(format!("{}: the file is too short for these reads", options.file.display())));
    }
    let results = Results {
        machine: super::machine::describe(&device),
        file: options.file.display().to_string(),
        reads: options.reads,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
    };
    if args.json { output::json(&results) } else { output::text(&describe(&results)) }
}

/// Offsets of the reads: different aligned places in a random order, or one after the other from
/// the start.
fn places(file_bytes: u64, read_bytes: u64, pattern: Pattern, options: &SmallArgs) -> Vec<u64> {
    let all = file_bytes / read_bytes.max(1);
    let count = all.min(u64::from(options.reads));
    match pattern {
        Pattern::Sequential => (0..count).map(|number| number * read_bytes).collect(),
        Pattern::Random => {
            let mut state = options.seed;
            let mut drawn = std::collections::HashSet::new();
            let mut list = Vec::with_capacity(count as usize);
            // Nine in ten of all places at most, so that drawing ends soon.
            while (list.len() as u64) < count.min(all * 9 / 10) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let place = (state >> 16) % all * read_bytes;
                if drawn.insert(place) {
                    list.push(place);
                }
            }
            list
        }
    }
}

struct Bench<'a> {
    options: &'a SmallArgs,
    device: &'a Device,
    router: &'a Arc<Router>,
    read_bytes: u64,
    state: State,
    places: Vec<u64>,
    memory: Allocation,
}

impl Bench<'_> {
    fn measure(&self, pattern: Pattern, cancel: &Cancel, progress: &Progress) -> Result<Vec<Row>, Failure> {
        let row = |way: Way| Row {
            pattern,
            state: self.state,
            read_bytes: self.read_bytes,
            way,
            seconds: vec![],
            reads_per_s: 0.0,
            us_per_read: 0.0,
            gb_per_s: 0.0,
            cpu_s_per_gb: f64::INFINITY,
            to_rival: 0.0,
            rival: way.rival(),
            verified: false,
        };
        let mut rows = Way::ALL.map(row);
        let bytes = self.places.len() as u64 * self.read_bytes;
        for repetition in 0..self.options.repetitions {
            for turn in 0..rows.len() {
                let row = &mut rows[(turn + repetition as usize) % Way::ALL.len()];
                signals::check(cancel)?;
                let size = size::exact(self.read_bytes);
                progress.say(&format!("{pattern:?} {size} {:?}, {}", self.state, row.way.name()));
                // A new handle: what one way taught it does not help the next.
                let file = read::open_file(&self.options.file, self.device)?;
                self.set_up(&file)?;
                if repetition == 0 {
                    poison(self.device, self.memory.slice())?;
                }
                let before = cpu_seconds();
                row.seconds.push(self.time(row.way, &file)?);
                row.cpu_s_per_gb = row.cpu_s_per_gb.min(cpu_s_per_gb(bytes, cpu_seconds() - before));
                if repetition == 0 {
                    self.verify(&file)?;
                    row.verified = true;
                }
            }
            progress.advance(1);
        }
        for row in &mut rows {
            let median = median(&row.seconds);
            row.reads_per_s = self.places.len() as f64 / median;
            row.us_per_read = median * 1e6 / self.places.len() as f64;
            row.gb_per_s = gb_per_s(bytes, median);
        }
        let rates = rows.each_ref().map(|row| (row.way, row.reads_per_s));
        for row in &mut rows {
            let rival = rates.iter().find(|(way, _)| *way == row.rival).map_or(1.0, |(_, rate)| *rate);
            row.to_rival = row.reads_per_s / rival;
        }
        Ok(rows.into())
    }

    fn set_up(&self, file: &OpenFile) -> Result<(), Failure> {
        match self.state {
            State::Cold => evict(file, 0..file.size()?)?,
            State::Warm => {
                let size = file.size()?;
                let (_, residency) = self.router.explain(file, 0, None, EngineChoice::Auto)?;
                if residency.cached_bytes() < size {
                    load(file, 0..size)?;
                }
            }
        }
        Ok(())
    }

    fn time(&self, way: Way, file: &Arc<OpenFile>) -> Result<f64, Failure> {
        file.advise(match way {
            Way::Plain | Way::EachAhead | Way::OrderedAhead => Advice::Normal,
            Way::Each | Way::Ordered | Way::Batch => Advice::Random,
        });
        let stream = self.device.create_stream()?;
        let mut pinned = self.device.alloc_pinned(self.read_bytes as usize)?;
        let extents: Vec<_> = self.extents();
        let started = Instant::now();
        match way {
            Way::Plain => self.read_plainly(file, &stream, &mut pinned)?,
            Way::Each | Way::EachAhead => {
                let read = ReadOptions::default();
                for (number, &place) in self.places.iter().enumerate() {
                    self.router.read(file, place, Some(self.read_bytes), self.place(number)?, &read)?;
                }
            }
            Way::Ordered | Way::OrderedAhead => {
                let mut reader = self.router.ordered(file, &stream)?;
                for (number, &place) in self.places.iter().enumerate() {
                    // SAFETY: the memory lives until the stream is synchronised below.
                    unsafe { reader.read(place, self.read_bytes, self.place(number)?) }?;
                }
                drop(reader);
                stream.synchronize()?;
            }
            Way::Batch => {
                self.router.read_batch(file, &extents, self.memory.slice(), &ReadOptions::default())?;
            }
        }
        Ok(started.elapsed().as_secs_f64())
    }

    fn read_plainly(&self, file: &OpenFile, stream: &Stream, pinned: &mut PinnedBuffer) -> Result<(), Failure> {
        for (number, &place) in self.places.iter().enumerate() {
            let read = file.buffered().read_exact_at(pinned.bytes_mut(), place);
            read.map_err(|error| Failure::failed(format!("{}: reading failed: {error}", file.path().display())))?;
            stream.upload(self.place(number)?, pinned.bytes())?;
        }
        Ok(())
    }

    fn extents(&self) -> Vec<ReadExtent> {
        let extent = |(number, &offset): (usize, &u64)| ReadExtent {
            offset,
            length: self.read_bytes,
            place: number as u64 * self.read_bytes,
        };
        self.places.iter().enumerate().map(extent).collect()
    }

    fn place(&self, number: usize) -> Result<bifolio_device::DeviceSlice<'_>, Failure> {
        Ok(self.memory.slice().part(number as u64 * self.read_bytes, self.read_bytes)?)
    }

    fn verify(&self, file: &OpenFile) -> Result<(), Failure> {
        let mut checker = Checker::new(self.router, file)?;
        for (number, &offset) in self.places.iter().enumerate() {
            checker.compare_all(self.place(number)?, offset)?;
        }
        Ok(())
    }
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn describe(results: &Results) -> String {
    let head = ["pattern", "read", "state", "way", "us a read", "reads/s", "GB/s", "CPU s/GB", "ratio", "to"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(results.rows.iter().map(|row| {
        vec![
            format!("{:?}", row.pattern).to_lowercase(),
            size::exact(row.read_bytes),
            format!("{:?}", row.state).to_lowercase(),
            row.way.name().to_owned(),
            format!("{:.2}", row.us_per_read),
            format!("{:.0}", row.reads_per_s),
            format!("{:.3}", row.gb_per_s),
            format!("{:.3}", row.cpu_s_per_gb),
            format!("{:.2}", row.to_rival),
            row.rival.name().to_owned(),
        ]
    }));
    format!(
        "{}\n{}: {} reads a run, medians of {} runs of each way in turns, seed {}; all compared with the file\n{}",
        results.machine,
        results.file,
        results.reads,
        results.repetitions,
        results.seed,
        output::columns(&rows, &[0, 3, 9])
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: SmallArgs,
    }

    #[test]
    fn random_places_are_different_aligned_and_inside() {
        let options = Line::parse_from(["small", "x", "--reads", "100"]).options;
        for file_bytes in [2048, 10_000, 1 << 30] {
            let places = places(file_bytes, 512, Pattern::Random, &options);
            let distinct: std::collections::HashSet<_> = places.iter().collect();
            assert_eq!(distinct.len(), places.len());
            assert!(places.len() <= 100 && places.iter().all(|place| place % 512 == 0 && place + 512 <= file_bytes));
        }
        assert_eq!(places(4 << 20, 4096, Pattern::Sequential, &options)[..3], [0, 4096, 8192]);
    }
}
