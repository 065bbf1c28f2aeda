//! Device memory into a file, beside what the page cache and the disk take from host memory in the same run.
//!
//! The content is incompressible. `warm` overwrites pages that are cached; `new` writes a file that was just cut to
//! nothing; both are what they are again before every run.

use crate::error::{Error, Result};
use crate::harness::baseline::{self, Transfers};
use crate::harness::cache_state::CacheState;
use crate::harness::compare::{self, Comparison, compare};
use crate::harness::machine::{self, Machine};
use crate::harness::report::{Measured, Report};
use crate::harness::router::{RouterSettings, open_file};
use crate::harness::scratch::Scratch;
use crate::harness::session::Session;
use crate::harness::table::{Table, ratio};
use crate::harness::verify::Checker;
use bifolio_device::{Allocation, Device, PinnedBuffer};
use bifolio_io::cache_state::write_incompressible;
use bifolio_io::storage::{OsStorage, Storage};
use bifolio_io::{EngineChoice, EngineKind, OpenFile, ReadOptions, Router, WriteOptions, size};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One `pwrite` of the rival that writes from host memory.
const STEP: usize = 4 << 20;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// A folder on the file system to measure; a file is made there and removed.
    pub folder: PathBuf,
    /// Bytes of one write.
    pub bytes: u64,
    /// Runs of each way.
    pub repetitions: u32,
    /// Seed of the content.
    pub seed: u64,
    /// The router.
    pub router: RouterSettings,
}

/// What is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Target {
    /// Cached pages.
    Warm,
    /// An empty file.
    New,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::New => "new",
        }
    }
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

    /// The engine; none of a way that writes from host memory.
    fn engine(self) -> Option<EngineChoice> {
        match self {
            Self::HostCached | Self::HostDirect => None,
            Self::Cached => Some(EngineChoice::Only(EngineKind::Cached)),
            Self::Direct => Some(EngineChoice::Only(EngineKind::Direct)),
            Self::Auto => Some(EngineChoice::Auto),
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    state: Target,
    #[serde(flatten)]
    compared: compare::Row<Way>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    machine: Machine,
    file_system: String,
    bytes: u64,
    repetitions: u32,
    seed: u64,
    rows: Vec<Row>,
}

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let path = Scratch::name(&options.folder, "bench-write");
    let mut scratch = Scratch::default();
    let bytes = options.bytes.next_multiple_of(4096);
    let content = File::options().write(true).create_new(true).open(&path);
    let content = content.map_err(|error| Error::system(path.display(), "creating it", error))?;
    scratch.add(&path);
    write_incompressible(&content, &path, bytes, options.seed, &mut |_| {})?;
    let file = open_file(&path, device)?;
    let router = options.router.router(device, &file, session.cancel())?;
    let memory = device.alloc(bytes)?;
    router.read(&file, 0, None, memory.slice(), &ReadOptions::default())?;
    let mut host = device.alloc_pinned(STEP * baseline::DEPTH)?;
    router.read_to_host(&file, host.bytes_mut(), 0)?;
    session.begin("starting", u64::from(options.repetitions) * 2 * Way::ALL.len() as u64);
    let mut rows = vec![];
    let ended = [Target::Warm, Target::New].into_iter().try_for_each(|target| {
        let bench = Bench { router: &router, memory: &memory, host: &host, path: &path, target };
        let mut measured = vec![];
        let ended = compare(session, options.repetitions, &bench, &Way::ALL, &mut measured);
        rows.extend(measured.into_iter().map(|row| Row { state: target, compared: row }));
        ended
    });
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(device),
        file_system: machine::file_system(&file),
        bytes,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
    })
}

struct Bench<'a> {
    router: &'a Router,
    memory: &'a Allocation,
    host: &'a PinnedBuffer,
    path: &'a Path,
    target: Target,
}

struct Ready {
    file: Arc<OpenFile>,
    disk: Option<Transfers>,
}

impl Comparison for Bench<'_> {
    type Way = Way;
    type Ready = Ready;

    fn name(&self, way: Way) -> String {
        format!("{}, {}", self.target.name(), way.name())
    }

    fn rival(&self, way: Way) -> Option<Way> {
        match way {
            Way::Cached => Some(Way::HostCached),
            Way::Direct => Some(Way::HostDirect),
            _ => None,
        }
    }

    fn bytes(&self, _: Way) -> u64 {
        self.memory.len()
    }

    fn may_fail(&self, way: Way) -> bool {
        way != Way::Auto
    }

    fn set_up(&self, way: Way, _: bool) -> Result<Ready> {
        let file = self.router.open_for_writing(self.path, true)?;
        let bytes = if self.target == Target::New { 0 } else { self.memory.len() };
        file.buffered().set_len(bytes).map_err(self.failed("giving it its size"))?;
        file.buffered().sync_all().map_err(self.failed("syncing it"))?;
        if self.target == Target::Warm {
            CacheState::Warm.set_up(&file)?;
        }
        let is_direct = way == Way::HostDirect;
        let disk = is_direct.then(|| Transfers::of_content(self.host).map_err(self.failed("preparing its writes")));
        Ok(Ready { file, disk: disk.transpose()? })
    }

    fn run(&self, way: Way, ready: &mut Ready) -> Result<()> {
        let Ready { file, disk } = ready;
        match (way.engine(), disk) {
            (Some(engine), _) => {
                let options = WriteOptions { engine, ..WriteOptions::default() };
                self.router.write(file, 0, self.memory.slice(), &options)?;
            }
            (None, Some(disk)) => {
                if self.target == Target::New {
                    let allocated = OsStorage.allocate(file.buffered(), 0, self.memory.len());
                    allocated.map_err(self.failed("allocating it"))?;
                }
                disk.write_all(self.path, self.memory.len()).map_err(self.failed("writing without the page cache"))?;
            }
            (None, None) => self.write_plainly(file).map_err(self.failed("writing"))?,
        }
        Ok(())
    }

    fn verify(&self, way: Way, ready: &Ready) -> Result<bool> {
        if way.engine().is_none() {
            return Ok(false);
        }
        Checker::new(self.router, &ready.file)?.compare_all(self.memory.slice(), 0)?;
        Ok(true)
    }
}

impl Bench<'_> {
    fn failed(&self, doing: &'static str) -> impl Fn(std::io::Error) -> Error + '_ {
        move |error| Error::system(self.path.display(), doing, error)
    }

    fn write_plainly(&self, file: &OpenFile) -> std::io::Result<()> {
        let (bytes, host) = (self.memory.len(), self.host.bytes());
        for at in (0..bytes).step_by(STEP) {
            let length = (bytes - at).min(STEP as u64) as usize;
            let from = (at as usize) % (host.len() - STEP + 1) / 4096 * 4096;
            file.buffered().write_all_at(&host[from..from + length], at)?;
        }
        Ok(())
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let head = ["state", "way", "best GB/s", "median GB/s", "CPU s/GB", "of the rival"];
        let cells = |Row { state, compared: row }: &Row| {
            vec![
                state.name().to_owned(),
                row.way.name().to_owned(),
                format!("{:.3}", row.rates.gb_per_s_best),
                format!("{:.3}", row.rates.gb_per_s_median),
                format!("{:.3}", row.rates.cpu_s_per_gb),
                ratio(row.to_rival),
            ]
        };
        let measured = self.rows.iter().filter(|row| row.compared.failed.is_none());
        let failed = self.rows.iter().filter_map(|Row { compared: row, .. }| {
            Some(format!("left out: {}: {}\n", row.way.name(), row.failed.as_ref()?))
        });
        format!(
            "{}\n{} into a file on {}, {} runs of each way in turns, seed {}; what engines wrote was compared\n{}{}",
            self.machine,
            size::human(self.bytes),
            self.file_system,
            self.repetitions,
            self.seed,
            Table::new(head, &[0, 1]).with(measured.map(cells)).text(),
            failed.collect::<String>()
        )
    }
}
