//! Short reads. Random ones by a batch and one by one; sequential ones with and without readahead, complete at once
//! or in the order of a stream.

use crate::Error;
use crate::error::Result;
use crate::harness::cache_state::CacheState;
use crate::harness::compare::{self, Comparison, compare};
use crate::harness::machine::{self, Machine};
use crate::harness::report::{Measured, Report};
use crate::harness::router::{RouterSettings, open_file};
use crate::harness::session::Session;
use crate::harness::table::Table;
use crate::harness::verify::{Checker, poison};
use bifolio_device::{Allocation, Device, DeviceSlice, PinnedBuffer, Stream};
use bifolio_io::{Advice, OpenFile, ReadExtent, ReadOptions, Router, size};
use fastrand::Rng;
use serde::Serialize;
use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file.
    pub file: PathBuf,
    /// Sizes of a read.
    pub sizes: Vec<u64>,
    /// Reads of a run, and so extents of a batch.
    pub reads: u32,
    /// Cache states.
    pub states: Vec<CacheState>,
    /// Runs of each way.
    pub repetitions: u32,
    /// Seed of the random places.
    pub seed: u64,
    /// The router.
    pub router: RouterSettings,
}

/// Where the reads are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Pattern {
    Random,
    Sequential,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }
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
    state: CacheState,
    read_bytes: u64,
    reads_per_s: f64,
    us_per_read: f64,
    #[serde(flatten)]
    compared: compare::Row<Way>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    machine: Machine,
    file: String,
    reads: u32,
    repetitions: u32,
    seed: u64,
    rows: Vec<Row>,
}

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let mut rows = vec![];
    let ended = measure(device, options, session, &mut rows);
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(device),
        file: options.file.display().to_string(),
        reads: options.reads,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
    })
}

fn measure(device: &Device, options: &Options, session: &Session, rows: &mut Vec<Row>) -> Result<()> {
    let file = open_file(&options.file, device)?;
    let router = Arc::new(options.router.router(device, &file, session.cancel())?);
    let groups = options.sizes.len() * options.states.len() * 2 * Way::ALL.len();
    session.begin("starting", groups as u64 * u64::from(options.repetitions));
    for pattern in [Pattern::Random, Pattern::Sequential] {
        for &read_bytes in &options.sizes {
            for &state in &options.states {
                let places = places(file.size()?, read_bytes, pattern, options);
                if places.len() < 2 || !state.is_possible(&file) {
                    continue;
                }
                let memory = device.alloc(places.len() as u64 * read_bytes)?;
                let bench = Bench { options, device, router: &router, pattern, read_bytes, state, places, memory };
                let mut measured = vec![];
                let ended = compare(session, options.repetitions, &bench, &Way::ALL, &mut measured);
                rows.extend(measured.into_iter().map(|row| bench.row(row)));
                ended?;
            }
        }
    }
    if rows.is_empty() {
        return Err(Error::failed(options.file.display(), "the file is too short for these reads"));
    }
    Ok(())
}

/// Offsets of the reads: different aligned places in a random order, or one after the other from the start.
fn places(file_bytes: u64, read_bytes: u64, pattern: Pattern, options: &Options) -> Vec<u64> {
    let all = file_bytes / read_bytes.max(1);
    let count = all.min(u64::from(options.reads));
    match pattern {
        Pattern::Sequential => (0..count).map(|number| number * read_bytes).collect(),
        Pattern::Random => {
            let (mut random, mut drawn) = (Rng::with_seed(options.seed), HashSet::new());
            // Nine in ten of all places at most, so that drawing ends soon.
            let count = count.min(all * 9 / 10) as usize;
            let places = std::iter::repeat_with(|| random.u64(0..all) * read_bytes);
            places.filter(|place| drawn.insert(*place)).take(count).collect()
        }
    }
}

struct Bench<'a> {
    options: &'a Options,
    device: &'a Device,
    router: &'a Arc<Router>,
    pattern: Pattern,
    read_bytes: u64,
    state: CacheState,
    places: Vec<u64>,
    memory: Allocation,
}

struct Ready {
    file: Arc<OpenFile>,
    stream: Stream,
    pinned: PinnedBuffer,
    extents: Vec<ReadExtent>,
}

impl Comparison for Bench<'_> {
    type Way = Way;
    type Ready = Ready;

    fn name(&self, way: Way) -> String {
        format!("{} {} {}, {}", self.pattern.name(), size::exact(self.read_bytes), self.state, way.name())
    }

    fn rival(&self, way: Way) -> Option<Way> {
        Some(way.rival())
    }

    fn bytes(&self, _: Way) -> u64 {
        self.memory.len()
    }

    fn set_up(&self, way: Way, first: bool) -> Result<Ready> {
        // A new handle: what one way taught it does not help the next.
        let file = open_file(&self.options.file, self.device)?;
        self.state.set_up(&file)?;
        if first {
            poison(self.device, self.memory.slice())?;
        }
        file.advise(match way {
            Way::Plain | Way::EachAhead | Way::OrderedAhead => Advice::Normal,
            Way::Each | Way::Ordered | Way::Batch => Advice::Random,
        });
        let (stream, pinned) = (self.device.create_stream()?, self.device.alloc_pinned(self.read_bytes as usize)?);
        Ok(Ready { file, stream, pinned, extents: self.extents() })
    }

    fn run(&self, way: Way, ready: &mut Ready) -> Result<()> {
        let Ready { file, stream, pinned, extents } = ready;
        match way {
            Way::Plain => self.read_plainly(file, stream, pinned)?,
            Way::Each | Way::EachAhead => {
                let read = ReadOptions::default();
                for (number, &place) in self.places.iter().enumerate() {
                    self.router.read(file, place, Some(self.read_bytes), self.place(number)?, &read)?;
                }
            }
            Way::Ordered | Way::OrderedAhead => {
                let mut reader = self.router.ordered(file, stream)?;
                for (number, &place) in self.places.iter().enumerate() {
                    // SAFETY: the memory lives until the stream is synchronised below.
                    unsafe { reader.read(place, self.read_bytes, self.place(number)?) }?;
                }
                drop(reader);
                stream.synchronize()?;
            }
            Way::Batch => {
                self.router.read_batch(file, extents, self.memory.slice(), &ReadOptions::default())?;
            }
        }
        Ok(())
    }

    fn verify(&self, _: Way, ready: &Ready) -> Result<bool> {
        let mut checker = Checker::new(self.router, &ready.file)?;
        for (number, &offset) in self.places.iter().enumerate() {
            checker.compare_all(self.place(number)?, offset)?;
        }
        Ok(true)
    }
}

impl Bench<'_> {
    fn read_plainly(&self, file: &OpenFile, stream: &Stream, pinned: &mut PinnedBuffer) -> Result<()> {
        for (number, &place) in self.places.iter().enumerate() {
            let read = file.buffered().read_exact_at(pinned.bytes_mut(), place);
            read.map_err(|error| Error::system(file.path().display(), "reading", error))?;
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

    fn place(&self, number: usize) -> Result<DeviceSlice<'_>> {
        Ok(self.memory.slice().part(number as u64 * self.read_bytes, self.read_bytes)?)
    }

    fn row(&self, row: compare::Row<Way>) -> Row {
        let reads_per_s = row.rates.gb_per_s_median * 1e9 / self.read_bytes as f64;
        let us_per_read = if reads_per_s > 0.0 { 1e6 / reads_per_s } else { 0.0 };
        let (pattern, state, read_bytes) = (self.pattern, self.state, self.read_bytes);
        Row { pattern, state, read_bytes, reads_per_s, us_per_read, compared: row }
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let head = ["pattern", "read", "state", "way", "us a read", "reads/s", "GB/s", "CPU s/GB", "ratio", "to"];
        let cells = |Row { pattern, state, read_bytes, reads_per_s, us_per_read, compared: row }: &Row| {
            vec![
                pattern.name().to_owned(),
                size::exact(*read_bytes),
                state.to_string(),
                row.way.name().to_owned(),
                format!("{us_per_read:.2}"),
                format!("{reads_per_s:.0}"),
                format!("{:.3}", row.rates.gb_per_s_median),
                format!("{:.3}", row.rates.cpu_s_per_gb),
                row.to_rival.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                row.rival.map_or("", Way::name).to_owned(),
            ]
        };
        format!(
            "{}\n{}: {} reads a run, medians of {} runs of each way in turns, seed {}; all compared with the file\n{}",
            self.machine,
            self.file,
            self.reads,
            self.repetitions,
            self.seed,
            Table::new(head, &[0, 3, 9]).with(self.rows.iter().map(cells)).text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_places_are_different_aligned_and_inside() {
        let options = Options {
            file: "x".into(),
            sizes: vec![],
            reads: 100,
            states: vec![],
            repetitions: 1,
            seed: 1,
            router: RouterSettings::default(),
        };
        for file_bytes in [2048, 10_000, 1 << 30] {
            let places = places(file_bytes, 512, Pattern::Random, &options);
            let distinct: HashSet<_> = places.iter().collect();
            assert!(!places.is_empty() && distinct.len() == places.len());
            assert!(places.len() <= 100 && places.iter().all(|place| place % 512 == 0 && place + 512 <= file_bytes));
        }
        assert_eq!(places(4 << 20, 4096, Pattern::Sequential, &options)[..3], [0, 4096, 8192]);
    }
}
