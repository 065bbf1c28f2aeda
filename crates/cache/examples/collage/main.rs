//! A collage from a large set of tiles, three ways: `collage DEVICE FOLDER [GiB] [OPTIONS]`.
//!
//! For each block of an input picture the most similar tile is looked for among those of its bucket, and of a
//! second one if none is near: which parts of the data set are read depends on the input, and is about a quarter.
//! (GAIA, section 6.3.3, after the benchmark of `ActivePointers`.) The ways are
//! - `demand`: kernels ask for the pages that they need;
//! - `whole`: all of the file is acquired before the kernel runs;
//! - `cpu`: threads read what they need with `pread`.
//!
//! All three must give the same picture. The data set is made in FOLDER from a seed, and removed.

mod data;
mod search;

use bifolio_cache::{Cache, CacheOptions, DemandReport};
use bifolio_device::{Allocation, Device, KernelArg, Module, Stream, open};
use bifolio_io::{Router, RouterOptions};
use data::{Index, PIXEL_BYTES, PIXELS_AT, RECORD_BYTES};
use search::{LIMIT, MODULE, NOBODY};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: collage DEVICE FOLDER [GiB] [--budget GiB] [--rounds N] [--seed N] [--cold] [--json FILE]
  GiB       size of the data set (0.0625)
  --budget  device memory for demand mode (as much as the data set)
  --rounds  runs of each way, of which the best counts (3)
  --seed    for data set and input (1)
  --cold    take the data set out of the system's page cache before each run
  --json    write all numbers to a file";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Options {
    device: String,
    folder: PathBuf,
    bytes: u64,
    budget_bytes: u64,
    rounds: u32,
    seed: u64,
    is_cold: bool,
    json: Option<PathBuf>,
}

fn options() -> Outcome<Options> {
    let mut words = std::env::args().skip(1);
    let (mut plain, mut budget, mut rounds, mut seed, mut is_cold, mut json) = (vec![], None, 3, 1, false, None);
    let gib = |text: &str| -> Outcome<u64> { Ok((text.parse::<f64>()? * f64::from(1 << 30)) as u64) };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        match &*word {
            "--budget" => budget = Some(gib(&value()?)?),
            "--rounds" => rounds = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            "--cold" => is_cold = true,
            "--json" => json = Some(value()?.into()),
            option if option.starts_with("--") => return Err(format!("{option} is no option\n{USAGE}").into()),
            _ => plain.push(word),
        }
    }
    let [device, folder, rest @ ..] = &plain[..] else { return Err(USAGE.into()) };
    let bytes = rest.first().map_or(Ok(1 << 26), |text| gib(text))?.max(1 << 24) / RECORD_BYTES * RECORD_BYTES;
    let frames = |bytes: u64| bytes.next_multiple_of(bifolio_device::FRAME_BYTES);
    let budget_bytes = frames(budget.unwrap_or(bytes));
    let (device, folder) = (device.clone(), folder.into());
    Ok(Options { device, folder, bytes, budget_bytes, rounds, seed, is_cold, json })
}

/// What every way is given, and what it must find.
struct Task {
    path: PathBuf,
    bytes: u64,
    is_cold: bool,
    index: Index,
    blocks: Vec<u8>,
}

/// A picture, with the distance and number of each tile.
#[derive(PartialEq)]
struct Picture {
    best: Vec<u64>,
    pixels: Vec<u8>,
}

impl Task {
    fn blocks(&self) -> usize {
        self.blocks.len() / PIXEL_BYTES
    }

    /// Blocks for which a second bucket was searched.
    fn second_buckets(&self, picture: &Picture) -> u64 {
        let is_near = |(block, best): &(&[u8], &u64)| {
            let own = self.index.records_of(self.index.bucket_of(block));
            **best >> 32 <= u64::from(LIMIT) && own.contains(&(**best & 0xffff_ffff))
        };
        let blocks = self.blocks.chunks(PIXEL_BYTES).zip(&picture.best);
        blocks.filter(|block| !is_near(block)).count() as u64
    }

    /// Takes the file out of the page cache, where that is asked for.
    fn prepare(&self) -> Outcome<()> {
        if self.is_cold {
            let file = File::open(&self.path)?;
            file.sync_all()?;
            // SAFETY: the descriptor is open.
            let refused = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            if refused != 0 {
                return Err(std::io::Error::from_raw_os_error(refused).into());
            }
        }
        Ok(())
    }

    /// The oracle: threads that read the buckets they need. Seconds, bytes that were read, and the picture.
    fn on_cpu(&self) -> Outcome<(f64, u64, Picture)> {
        self.prepare()?;
        let started = Instant::now();
        let file = File::open(&self.path)?;
        let mut picture = Picture { best: vec![0; self.blocks()], pixels: vec![0; self.blocks.len()] };
        let moved = AtomicU64::new(0);
        let share = self.blocks().div_ceil(std::thread::available_parallelism()?.get());
        let work = |blocks: &[u8], best: &mut [u64], pixels: &mut [u8]| -> std::io::Result<()> {
            let mut records = vec![];
            let blocks = blocks.chunks(PIXEL_BYTES).zip(best).zip(pixels.chunks_mut(PIXEL_BYTES));
            for ((block, best), pixels) in blocks {
                let (mut failure, record_bytes) = (None, RECORD_BYTES as usize);
                *best = search::nearest(block, &self.index, |tiles, compare| {
                    records.resize((tiles.end - tiles.start) as usize * record_bytes, 0);
                    failure = file.read_exact_at(&mut records, tiles.start * RECORD_BYTES).err();
                    moved.fetch_add(records.len() as u64, Ordering::Relaxed);
                    records.chunks(record_bytes).zip(tiles).for_each(|(record, tile)| compare(tile, record));
                    failure.is_none()
                })
                .unwrap_or(NOBODY);
                failure.map_or(Ok(()), Err)?;
                if *best != NOBODY {
                    file.read_exact_at(pixels, (*best & 0xffff_ffff) * RECORD_BYTES + PIXELS_AT as u64)?;
                    moved.fetch_add(PIXEL_BYTES as u64, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let blocks = self.blocks.chunks(share * PIXEL_BYTES).zip(picture.best.chunks_mut(share));
            let shares = blocks.zip(picture.pixels.chunks_mut(share * PIXEL_BYTES));
            let threads: Vec<_> =
                shares.map(|((blocks, best), pixels)| scope.spawn(move || work(blocks, best, pixels))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
        })?;
        Ok((started.elapsed().as_secs_f64(), moved.into_inner(), picture))
    }
}

/// The device's side, which stays the same from run to run.
struct OnDevice<'a> {
    task: &'a Task,
    router: Arc<Router>,
    module: Module,
    stream: Stream,
    first: Allocation,
    blocks: Allocation,
    best: Allocation,
    pixels: Allocation,
    params: Vec<u8>,
}

impl<'a> OnDevice<'a> {
    fn new(task: &'a Task, device: &Device) -> Outcome<Self> {
        let stream = device.create_stream()?;
        let upload = |bytes: &[u8]| -> Outcome<Allocation> {
            let memory = device.alloc(bytes.len() as u64)?;
            stream.upload(memory.slice(), bytes)?;
            Ok(memory)
        };
        let first: Vec<u8> = task.index.first.iter().flat_map(|record| record.to_ne_bytes()).collect();
        Ok(Self {
            task,
            router: Arc::new(Router::new(device, RouterOptions::default())),
            module: device.load_module(&MODULE)?,
            first: upload(&first)?,
            blocks: upload(&task.blocks)?,
            best: device.alloc(task.blocks() as u64 * 8)?,
            pixels: device.alloc(task.blocks.len() as u64)?,
            params: [task.index.bits, LIMIT].into_iter().flat_map(u32::to_ne_bytes).collect(),
            stream,
        })
    }

    fn cache(&self, budget_bytes: u64) -> Outcome<Cache> {
        Ok(Cache::new(&[Arc::clone(&self.router)], CacheOptions { budget_bytes, ..CacheOptions::default() })?)
    }

    /// Before a run nothing of an earlier one's results is left.
    fn prepare(&self) -> Outcome<()> {
        // SAFETY: the memory stays, and the stream is waited for.
        unsafe {
            self.stream.fill(self.best.slice(), 0x5a)?;
            self.stream.fill(self.pixels.slice(), 0x5a)?;
        }
        self.stream.synchronize()?;
        self.task.prepare()
    }

    fn arguments(&self) -> [KernelArg<'_>; 5] {
        let [first, blocks, best, pixels] =
            [&self.first, &self.blocks, &self.best, &self.pixels].map(|memory| KernelArg::Buffer(memory.ptr()));
        [first, blocks, best, pixels, KernelArg::Bytes(&self.params)]
    }

    fn picture(&self) -> Outcome<Picture> {
        let (mut best, mut pixels) = (vec![0; self.best.len() as usize], vec![0; self.pixels.len() as usize]);
        self.stream.download(&mut best, self.best.slice())?;
        self.stream.download(&mut pixels, self.pixels.slice())?;
        let (words, _) = best.as_chunks::<8>();
        Ok(Picture { best: words.iter().map(|word| u64::from_ne_bytes(*word)).collect(), pixels })
    }

    /// Two sessions on a new cache: one that begins with nothing, and one that finds what the first has left.
    fn by_demand(&self, budget_bytes: u64) -> Outcome<([DemandReport; 2], Picture)> {
        let file = self.cache(budget_bytes)?.open(&self.task.path)?;
        let mut mapping = file.map_on(0, 0..self.task.bytes, false)?;
        let mut demand = mapping.demand()?;
        let mut session = || {
            demand.run(self.task.blocks() as u32, |launch| {
                let head = [KernelArg::Buffer(launch.table), KernelArg::Buffer(launch.file)];
                let args: Vec<_> = head.into_iter().chain(self.arguments()).collect();
                // SAFETY: the arguments are those of the kernel; all memory stays until the session has ended.
                unsafe { launch.stream.launch(&self.module, "collage_demand", launch.items, 128, &args) }
            })
        };
        self.prepare()?;
        let report = session()?;
        let picture = self.picture()?;
        self.prepare()?;
        let again = session()?;
        if self.picture()? != picture {
            return Err("a second session gives another picture than the first".into());
        }
        Ok(([report, again], picture))
    }

    /// Seconds, of which for the acquire, and the picture.
    fn with_whole_file(&self) -> Outcome<(f64, f64, Picture)> {
        let file = self.cache(self.task.bytes.next_multiple_of(bifolio_device::FRAME_BYTES))?.open(&self.task.path)?;
        let mut mapping = file.map_on(0, 0..self.task.bytes, false)?;
        self.prepare()?;
        let started = Instant::now();
        mapping.acquire(0..self.task.bytes)?;
        let acquired = started.elapsed().as_secs_f64();
        let args: Vec<_> = [KernelArg::Buffer(mapping.ptr())].into_iter().chain(self.arguments()).collect();
        // SAFETY: as above; the mapping is acquired.
        unsafe { self.stream.launch(&self.module, "collage_whole", self.task.blocks() as u32, 128, &args) }?;
        self.stream.synchronize()?;
        Ok((started.elapsed().as_secs_f64(), acquired, self.picture()?))
    }
}

/// The best of some runs of each way.
struct Numbers {
    device: String,
    is_cold: bool,
    file_bytes: u64,
    budget_bytes: u64,
    blocks: u64,
    second_buckets: u64,
    touched_bytes: u64,
    demand: DemandReport,
    again: DemandReport,
    whole_seconds: f64,
    acquire_seconds: f64,
    cpu_seconds: f64,
    cpu_bytes: u64,
}

fn measure(task: &Task, device: &Device, options: &Options) -> Outcome<Numbers> {
    let name = format!("{} ({})", device.id(), device.info().name);
    let on_device = OnDevice::new(task, device)?;
    let (cpu_seconds, cpu_bytes, expected) = task.on_cpu()?;
    let mut numbers = Numbers {
        device: name,
        is_cold: task.is_cold,
        file_bytes: task.bytes,
        budget_bytes: options.budget_bytes,
        blocks: task.blocks() as u64,
        second_buckets: task.second_buckets(&expected),
        touched_bytes: 0,
        demand: DemandReport { seconds: f64::INFINITY, ..DemandReport::default() },
        again: DemandReport { seconds: f64::INFINITY, ..DemandReport::default() },
        whole_seconds: f64::INFINITY,
        acquire_seconds: 0.0,
        cpu_seconds,
        cpu_bytes,
    };
    let check = |picture: &Picture, way: &str| {
        if *picture == expected { Ok(()) } else { Err(format!("{way} gives another picture than the CPU")) }
    };
    // In turn, so that what disturbs the machine for a while disturbs all of them.
    for round in 0..options.rounds {
        let ([demand, again], picture) = on_device.by_demand(options.budget_bytes)?;
        check(&picture, "demand mode")?;
        numbers.touched_bytes = demand.asked * CacheOptions::default().page_bytes;
        for (best, now) in [(&mut numbers.demand, demand), (&mut numbers.again, again)] {
            if now.seconds < best.seconds {
                *best = now;
            }
        }
        let (whole_seconds, acquire_seconds, picture) = on_device.with_whole_file()?;
        check(&picture, "the whole file on the device")?;
        if whole_seconds < numbers.whole_seconds {
            (numbers.whole_seconds, numbers.acquire_seconds) = (whole_seconds, acquire_seconds);
        }
        if round > 0 {
            let (cpu_seconds, _, picture) = task.on_cpu()?;
            check(&picture, "a second run on the CPU")?;
            numbers.cpu_seconds = numbers.cpu_seconds.min(cpu_seconds);
        }
    }
    Ok(numbers)
}

impl Numbers {
    fn print(&self) {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let page_cache = if self.is_cold { "taken out of the page cache" } else { "in the page cache as it came" };
        println!("{}, data set of {:.1} MB, {page_cache}", self.device, mb(self.file_bytes));
        println!(
            "{} blocks, {} of them with a second bucket; pages that are needed: {:.1} MB, {:.0} % of the data set",
            self.blocks,
            self.second_buckets,
            mb(self.touched_bytes),
            100.0 * self.touched_bytes as f64 / self.file_bytes as f64
        );
        for (way, report) in [("demand mode", &self.demand), ("the same again", &self.again)] {
            println!(
                "{way:<22} {:10.2} ms  {:9.1} MB moved; {} launches, {:.2} ms; filling {:.2} ms; {} pages evicted, budget {:.0} MB",
                report.seconds * 1e3,
                mb(report.fetched_bytes),
                report.rounds,
                report.launch_seconds * 1e3,
                report.fill_seconds * 1e3,
                report.evicted,
                mb(self.budget_bytes)
            );
        }
        let (whole, acquire) = (self.whole_seconds * 1e3, self.acquire_seconds * 1e3);
        println!(
            "whole file acquired    {whole:10.2} ms  {:9.1} MB moved; acquire {acquire:.2} ms",
            mb(self.file_bytes)
        );
        println!("CPU, by pread          {:10.2} ms  {:9.1} MB read", self.cpu_seconds * 1e3, mb(self.cpu_bytes));
        println!("All pictures are the same.");
    }

    fn json(&self) -> String {
        let session = |report: &DemandReport| {
            let DemandReport { rounds, rounds_short, asked, fetched, fetched_bytes, evicted, .. } = *report;
            let DemandReport { launch_seconds, fill_seconds, seconds, .. } = *report;
            format!(
                r#"{{"rounds":{rounds},"rounds_short":{rounds_short},"asked_pages":{asked},"fetched_pages":{fetched},"fetched_bytes":{fetched_bytes},"evicted_pages":{evicted},"launch_seconds":{launch_seconds},"fill_seconds":{fill_seconds},"seconds":{seconds}}}"#
            )
        };
        let Self { device, is_cold, file_bytes, budget_bytes, blocks, second_buckets, touched_bytes, .. } = self;
        let Self { whole_seconds, acquire_seconds, cpu_seconds, cpu_bytes, .. } = self;
        let (demand, again) = (session(&self.demand), session(&self.again));
        format!(
            r#"{{"device":{device:?},"cold":{is_cold},"file_bytes":{file_bytes},"budget_bytes":{budget_bytes},"blocks":{blocks},"second_buckets":{second_buckets},"touched_bytes":{touched_bytes},"demand":{demand},"again":{again},"whole":{{"seconds":{whole_seconds},"acquire_seconds":{acquire_seconds}}},"cpu":{{"seconds":{cpu_seconds},"read_bytes":{cpu_bytes}}}}}"#
        ) + "\n"
    }
}

fn main() -> Outcome<()> {
    let options = options()?;
    let device = open(options.device.parse()?)?;
    let folder = tempfile::tempdir_in(&options.folder)?;
    let path = folder.path().join("tiles");
    let index = Index::new(options.bytes / RECORD_BYTES);
    data::write(&path, &index, options.seed)?;
    let blocks = data::input(&index, options.seed);
    let task = Task { path, bytes: options.bytes, is_cold: options.is_cold, index, blocks };
    let numbers = measure(&task, &device, &options)?;
    numbers.print();
    if let Some(json) = &options.json {
        std::fs::write(json, numbers.json())?;
    }
    Ok(())
}
