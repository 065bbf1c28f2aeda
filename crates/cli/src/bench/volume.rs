//! `bifolio bench volume`: encrypted and redundant volumes into device memory, beside the plain file with the same
//! content, and beside decryption by the CPU.
//!
//! Everything is made in a folder and removed afterwards: the plain file, a LUKS2 image, an encrypted directory, the
//! members of an array. Ways take turns within a repetition, and every state is set up before every run.

use crate::args::{Args, RouterArgs};
use crate::exit::{Code, Failure};
use crate::progress::Progress;
use crate::read::{self, Checker, poison, sealed};
use crate::resources::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use crate::{output, signals, size};
use bifolio_crypt::{CipherDir, CryptDevice, InitOptions, Key};
use bifolio_device::{Allocation, Device, Event, PinnedBuffer, Stream, open};
use bifolio_io::cache_state::{evict, load, write_incompressible};
use bifolio_io::{Cancel, OpenFile, ReadOptions, Router, RouterOptions};
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, FormatOptions, Load, Loader, Luks, Overwrite, Pbkdf, RoutedFile};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes that are copied from volume to volume at a time, and that the CPU decrypts at a time.
const COPY_BYTES: u64 = 16 << 20;
const SLOT_BYTES: u64 = 1 << 20;
/// Before an image's data, as much as a LUKS2 header takes by default.
const HEADER_BYTES: u64 = 16 << 20;
/// Before a member's data, at most.
const MEMBER_HEAD_BYTES: u64 = 32 << 20;
/// The passphrase of a volume that is removed afterwards.
const SECRET: &[u8] = b"of a benchmark";

/// Choices for `bench volume`.
#[derive(Debug, ClapArgs)]
pub struct VolumeArgs {
    /// Where the files are made, with room for four and a half times the size.
    pub folder: PathBuf,
    /// Bytes of content.
    #[arg(long, default_value = "4G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Cache states of the files.
    #[arg(long, value_delimiter = ',', default_value = "warm,cold", value_name = "LIST")]
    pub states: Vec<State>,
    /// Members of the array that hold data; two more hold parity.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=64))]
    pub data_members: u64,
    /// Bytes of a chunk of the array.
    #[arg(long, default_value = "512K", value_parser = size::parse, value_name = "SIZE")]
    pub chunk: u64,
    /// Bytes of a sector of the encrypted volume.
    #[arg(long, default_value_t = 4096, value_name = "BYTES")]
    pub sector_size: u32,
    /// Threads of the ways that decrypt by the CPU.
    #[arg(long, value_delimiter = ',', default_value = "4,16", value_name = "LIST", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cpu_threads: Vec<u16>,
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

/// What the page cache holds of the files before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All.
    Warm,
    /// Nothing.
    Cold,
}

/// Who decrypts or recovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Device,
    /// So many threads, into pinned memory, with a copy of each piece.
    Cpu(u16),
}

struct Way {
    name: String,
    content: Arc<dyn Load>,
    by: By,
    /// The files whose state counts.
    files: Vec<OpenFile>,
    /// The way that this one is compared with.
    rival: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    state: State,
    way: String,
    seconds: Vec<f64>,
    gb_per_s_best: f64,
    gb_per_s_median: f64,
    /// Of the run with the least.
    cpu_s_per_gb: f64,
    rival: String,
    /// Best by best.
    to_rival: f64,
    cpu_to_rival: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: super::machine::Machine,
    folder: String,
    bytes: u64,
    array: String,
    sector_bytes: u32,
    repetitions: u32,
    seed: u64,
    rows: Vec<Row>,
}

/// Measures and prints.
pub fn run(args: &Args, options: &VolumeArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = open(args.device()?)?;
    let stripe = options.chunk * options.data_members;
    let bytes = options.size / stripe * stripe;
    if bytes == 0 {
        let detail = format!("--size is smaller than a stripe of the array, which has {stripe} bytes");
        return Err(Failure::new(Code::Usage, detail));
    }
    let place = tempfile::Builder::new().prefix(".bifolio-bench-").tempdir_in(&options.folder).map_err(|error| {
        Failure::failed(format!("{}: making a folder in it failed: {error}", options.folder.display()))
    })?;
    let maker = Maker { options, folder: place.path().to_owned(), bytes, cancel };
    let ways = maker.ways()?;
    let plain = read::open_file(&maker.path("plain"), &device)?;
    // Ranges that are read again and again would stay pinned: such pages cannot be dropped, and it is a volume's first
    // pass that is measured.
    let router = RouterOptions { mapped_bytes: 0, ..read::router_options(&device, &plain, &options.router, cancel)? };
    let router = Arc::new(Router::new(&device, router));
    let memory = device.alloc(bytes)?;
    let bench = Bench { router: &router, memory: &memory, cancel };
    let steps = ways.len() as u64 * options.states.len() as u64 * u64::from(options.repetitions);
    let progress = Progress::of_steps("measuring", steps);
    let mut rows = vec![];
    for &state in &options.states {
        if state == State::Cold && plain.is_in_memory() {
            continue;
        }
        let mut runs = vec![vec![]; ways.len()];
        for repetition in 0..options.repetitions as usize {
            for turn in 0..ways.len() {
                let number = (turn + repetition) % ways.len();
                let way = &ways[number];
                signals::check(cancel)?;
                progress.say(&format!("{state:?}, {}, run {}", way.name, repetition + 1));
                for file in &way.files {
                    let all = 0..file.size()?;
                    if state == State::Warm { load(file, all)? } else { evict(file, all)? }
                }
                poison(&device, memory.slice())?;
                runs[number].push(bench.time(way)?);
                if repetition == 0 {
                    Checker::new(&router, &plain)?.compare_all(memory.slice(), 0)?;
                }
                progress.advance(1);
            }
        }
        rows.extend(rows_of(state, &ways, &runs, bytes));
    }
    drop(progress);
    let results = Results {
        machine: super::machine::describe(&device),
        folder: options.folder.display().to_string(),
        bytes,
        array: format!("{} + 2 members, chunks of {}", options.data_members, size::exact(options.chunk)),
        sector_bytes: options.sector_size,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
    };
    if args.json { output::json(&results) } else { output::text(&describe(&results)) }
}

/// Makes the volumes.
struct Maker<'a> {
    options: &'a VolumeArgs,
    folder: PathBuf,
    bytes: u64,
    cancel: &'a Cancel,
}

impl Maker<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn make(&self, name: &str, bytes: u64) -> Result<PathBuf, Failure> {
        let path = self.path(name);
        let made = File::create_new(&path).and_then(|file| file.set_len(bytes));
        made.map_err(|error| Failure::failed(format!("{}: making it failed: {error}", path.display())))?;
        Ok(path)
    }

    /// All ways, the plain file first.
    fn ways(&self) -> Result<Vec<Way>, Failure> {
        let progress = Progress::of_bytes("making volumes", self.bytes * 4);
        let path = self.make("plain", 0)?;
        let file = File::options().write(true).open(&path);
        let file = file.map_err(|error| Failure::failed(format!("{}: opening it failed: {error}", path.display())))?;
        let mut before = 0;
        write_incompressible(&file, &path, self.bytes, self.options.seed, &mut |written| {
            progress.advance(written - before);
            before = written;
        })?;
        let plain: Arc<dyn Load> = Arc::new(RoutedFile::open(&path, false)?);
        let mut ways = vec![Way {
            name: "plain file".to_owned(),
            content: Arc::clone(&plain),
            by: By::Device,
            files: vec![OpenFile::open(&path)?],
            rival: 0,
        }];
        let luks: Arc<dyn Load> = Arc::new(self.encrypted(&*plain, &progress)?);
        let image = || Ok::<_, Failure>(vec![OpenFile::open(self.path("luks"))?]);
        let by = |by, name: &str| -> Result<Way, Failure> {
            Ok(Way { name: name.to_owned(), content: Arc::clone(&luks), by, files: image()?, rival: 0 })
        };
        ways.push(by(By::Device, "LUKS2, decrypted on the device")?);
        for &threads in &self.options.cpu_threads {
            ways.push(by(By::Cpu(threads), &format!("LUKS2, by {threads} CPU threads and a copy"))?);
        }
        ways.push(self.file_of_directory(&*plain, &progress)?);
        let members = self.array(&*plain, &progress)?;
        let healthy = ways.len();
        for gone in 0..=2 {
            let left = &members[gone..];
            let name = match gone {
                0 => "RAID-6, all members".to_owned(),
                _ => format!("RAID-6, {gone} of {} members gone", members.len()),
            };
            let devices = left.iter().map(|path| Ok(Arc::new(RoutedFile::open(path, false)?) as Arc<dyn Load>));
            let content = Arc::new(Raid6::assemble(devices.collect::<Result<_, Failure>>()?, false)?);
            let files = left.iter().map(|path| Ok(OpenFile::open(path)?)).collect::<Result<_, Failure>>()?;
            ways.push(Way { name, content, by: By::Device, files, rival: if gone == 0 { 0 } else { healthy } });
        }
        Ok(ways)
    }

    fn encrypted(&self, plain: &dyn BlockDevice, progress: &Progress) -> Result<Luks, Failure> {
        let path = self.make("luks", self.bytes + HEADER_BYTES)?;
        let pbkdf = Pbkdf { time_ms: 1, iterations: Some(4), memory_kib: 32, threads: 1 };
        let format = FormatOptions { sector_bytes: self.options.sector_size, pbkdf, ..FormatOptions::default() };
        let luks = Luks::format(Arc::new(RoutedFile::open(&path, true)?), SECRET, &format)?;
        self.copy(plain, &luks, progress)?;
        drop(luks);
        Ok(Luks::open(Arc::new(RoutedFile::open(&path, false)?), SECRET)?)
    }

    /// A file of an encrypted directory.
    fn file_of_directory(&self, plain: &dyn BlockDevice, progress: &Progress) -> Result<Way, Failure> {
        let folder = self.path("directory");
        std::fs::create_dir(&folder)
            .map_err(|error| Failure::failed(format!("{}: making it failed: {error}", folder.display())))?;
        let master = CipherDir::init(&folder, SECRET, InitOptions { scrypt_log_n: 10, ..InitOptions::default() })?;
        let dir = CipherDir::open(&folder, &Key::Master(master))?;
        let name = Path::new("content");
        let file = dir.create_file(name)?;
        let mut buffer = vec![0; COPY_BYTES as usize];
        for at in (0..self.bytes).step_by(COPY_BYTES as usize) {
            signals::check(self.cancel)?;
            let part = &mut buffer[..COPY_BYTES.min(self.bytes - at) as usize];
            plain.read(at, part)?;
            file.write_at(part, at)?;
            progress.advance(part.len() as u64);
        }
        file.sync(true)?;
        let content = CryptDevice::open(&dir, name)?;
        let files = vec![OpenFile::open(content.stored_at())?];
        let name = "file of gocryptfs, verified and decrypted on the device".to_owned();
        Ok(Way { name, content: Arc::new(sealed(content)?), by: By::Device, files, rival: 0 })
    }

    fn array(&self, plain: &dyn BlockDevice, progress: &Progress) -> Result<Vec<PathBuf>, Failure> {
        let member = self.bytes / self.options.data_members + MEMBER_HEAD_BYTES;
        let names = (0..self.options.data_members + 2).map(|number| format!("member-{number}"));
        let paths = names.map(|name| self.make(&name, member)).collect::<Result<Vec<_>, _>>()?;
        let devices = paths.iter().map(|path| Ok(Arc::new(RoutedFile::open(path, true)?) as Arc<dyn Load>));
        let create = CreateOptions { name: String::new(), content: Content::Zeroes, overwrite: Overwrite::Nothing };
        let devices = devices.collect::<Result<_, Failure>>()?;
        let array = Raid6::create(devices, self.options.chunk, Rotation::LeftSymmetric, &create)?;
        self.copy(plain, &array, progress)?;
        array.close()?;
        Ok(paths)
    }

    fn copy(&self, from: &dyn BlockDevice, to: &dyn BlockDevice, progress: &Progress) -> Result<(), Failure> {
        let mut buffer = vec![0; COPY_BYTES as usize];
        for at in (0..self.bytes).step_by(COPY_BYTES as usize) {
            signals::check(self.cancel)?;
            let part = &mut buffer[..COPY_BYTES.min(self.bytes - at) as usize];
            from.read(at, part)?;
            to.write(at, part)?;
            progress.advance(part.len() as u64);
        }
        Ok(to.flush()?)
    }
}

struct Bench<'a> {
    router: &'a Arc<Router>,
    memory: &'a Allocation,
    cancel: &'a Cancel,
}

impl Bench<'_> {
    /// Seconds, and CPU seconds.
    fn time(&self, way: &Way) -> Result<(f64, f64), Failure> {
        let options = ReadOptions { cancel: self.cancel.clone(), ..ReadOptions::default() };
        let loader = Loader::new(Arc::clone(self.router), options);
        // Keys, kernels and pinned memory are there when a program reads its second volume.
        let mut lanes = match way.by {
            By::Device => {
                way.content.load(&loader, 0, self.memory.slice().part(0, SLOT_BYTES.min(self.memory.len()))?)?;
                vec![]
            }
            By::Cpu(threads) => {
                (0..threads).map(|_| CpuLane::new(self.router.device())).collect::<Result<Vec<_>, _>>()?
            }
        };
        let (before, started) = (cpu_seconds(), Instant::now());
        match way.by {
            By::Device => way.content.load(&loader, 0, self.memory.slice())?,
            By::Cpu(_) => by_cpu(&*way.content, self.memory, &mut lanes)?,
        }
        Ok((started.elapsed().as_secs_f64(), cpu_seconds() - before))
    }
}

/// A thread's own: while one slot is on its way, the other one is filled.
struct CpuLane {
    stream: Stream,
    slots: [(PinnedBuffer, Option<Event>); 2],
}

impl CpuLane {
    fn new(device: &Device) -> Result<Self, Failure> {
        let slot = || Ok::<_, Failure>((device.alloc_pinned(SLOT_BYTES as usize)?, None));
        Ok(Self { stream: device.create_stream()?, slots: [slot()?, slot()?] })
    }

    fn work(&mut self, content: &dyn BlockDevice, memory: &Allocation, next: &AtomicU64) -> Result<(), Failure> {
        for turn in 0.. {
            let at = next.fetch_add(1, Ordering::Relaxed) * SLOT_BYTES;
            if at >= memory.len() {
                break;
            }
            let (slot, event) = &mut self.slots[turn % 2];
            if let Some(event) = event.take() {
                event.wait()?;
            }
            let len = SLOT_BYTES.min(memory.len() - at);
            content.read(at, &mut slot.bytes_mut()[..len as usize])?;
            // SAFETY: the slot is not written before the event was waited for, and the memory outlives the stream's work,
            // which is waited for below.
            unsafe { self.stream.copy_to_device(memory.slice().part(at, len)?, slot.as_ptr()) }?;
            *event = Some(self.stream.record()?);
        }
        Ok(self.stream.synchronize()?)
    }
}

fn by_cpu(content: &dyn BlockDevice, memory: &Allocation, lanes: &mut [CpuLane]) -> Result<(), Failure> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = lanes.iter_mut().map(|lane| scope.spawn(|| lane.work(content, memory, &next))).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn rows_of(state: State, ways: &[Way], runs: &[Vec<(f64, f64)>], bytes: u64) -> Vec<Row> {
    let least = |of: &dyn Fn(&(f64, f64)) -> f64, way: usize| runs[way].iter().map(of).fold(f64::INFINITY, f64::min);
    let row = |(number, way): (usize, &Way)| {
        let mut seconds: Vec<f64> = runs[number].iter().map(|run| run.0).collect();
        let best = least(&|run| run.0, number);
        let cpu = least(&|run| run.1, number);
        let row = Row {
            state,
            way: way.name.clone(),
            gb_per_s_best: gb_per_s(bytes, best),
            cpu_s_per_gb: cpu_s_per_gb(bytes, cpu),
            rival: ways[way.rival].name.clone(),
            to_rival: least(&|run| run.0, way.rival) / best,
            cpu_to_rival: cpu / least(&|run| run.1, way.rival),
            gb_per_s_median: 0.0,
            seconds: seconds.clone(),
        };
        seconds.sort_by(f64::total_cmp);
        Row { gb_per_s_median: gb_per_s(bytes, seconds[seconds.len() / 2]), ..row }
    };
    ways.iter().enumerate().map(row).collect()
}

fn describe(results: &Results) -> String {
    let head = ["state", "way", "best GB/s", "median GB/s", "CPU s/GB", "rate", "CPU", "beside"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(results.rows.iter().map(|row| {
        vec![
            format!("{:?}", row.state).to_lowercase(),
            row.way.clone(),
            format!("{:.2}", row.gb_per_s_best),
            format!("{:.2}", row.gb_per_s_median),
            format!("{:.3}", row.cpu_s_per_gb),
            format!("{:.3}", row.to_rival),
            format!("{:.3}", row.cpu_to_rival),
            row.rival.clone(),
        ]
    }));
    format!(
        "{}\n{}: {} of random bytes, seed {}; LUKS2 with AES-256-XTS and sectors of {}; {}; {} runs of each way in turns\n{}",
        results.machine,
        results.folder,
        size::human(results.bytes),
        results.seed,
        results.sector_bytes,
        results.array,
        results.repetitions,
        output::columns(&rows, &[0, 1, 7]),
    )
}
