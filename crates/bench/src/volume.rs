//! Encrypted and redundant volumes into device memory, beside the plain file with the same content, and beside
//! decryption by the CPU.
//!
//! Everything is made in a folder and removed afterwards: the plain file, a LUKS2 image, an encrypted directory, the
//! members of an array.

use crate::error::{Error, ErrorKind, Result};
use crate::harness::cache_state::CacheState;
use crate::harness::compare::{self, Comparison, compare};
use crate::harness::machine::{self, Machine};
use crate::harness::report::{Measured, Report};
use crate::harness::router::{RouterSettings, open_file};
use crate::harness::session::Session;
use crate::harness::table::{Table, ratio};
use crate::harness::verify::{Checker, poison};
use bifolio_crypt::{CipherDir, CryptDevice, InitOptions, Key};
use bifolio_device::{Allocation, Device, Event, PinnedBuffer, Stream};
use bifolio_io::cache_state::write_incompressible;
use bifolio_io::{OpenFile, ReadOptions, Router, RouterOptions, size};
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, FormatOptions, Load, Loader, Luks, Overwrite, Pbkdf, RoutedFile, Sealed};
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are copied from volume to volume at a time, and that the CPU decrypts at a time.
const COPY_BYTES: u64 = 16 << 20;
const SLOT_BYTES: u64 = 1 << 20;
/// Before an image's data, as much as a LUKS2 header takes by default.
const HEADER_BYTES: u64 = 16 << 20;
/// Before a member's data, at most.
const MEMBER_HEAD_BYTES: u64 = 32 << 20;
/// The passphrase of a volume that is removed afterwards.
const SECRET: &[u8] = b"of a benchmark";

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the files are made, with room for four and a half times the size.
    pub folder: PathBuf,
    /// Bytes of content.
    pub bytes: u64,
    /// Cache states of the files.
    pub states: Vec<CacheState>,
    /// Members of the array that hold data; two more hold parity.
    pub data_members: u64,
    /// Bytes of a chunk of the array.
    pub chunk_bytes: u64,
    /// Bytes of a sector of the encrypted volume.
    pub sector_bytes: u32,
    /// Threads of the ways that decrypt by the CPU.
    pub cpu_threads: Vec<u16>,
    /// Runs of each way.
    pub repetitions: u32,
    /// Seed of the content.
    pub seed: u64,
    /// The router.
    pub router: RouterSettings,
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
    rival: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Row {
    state: CacheState,
    #[serde(flatten)]
    compared: compare::Row<String>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    machine: Machine,
    folder: String,
    bytes: u64,
    array: String,
    sector_bytes: u32,
    repetitions: u32,
    seed: u64,
    rows: Vec<Row>,
}

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let stripe = options.chunk_bytes * options.data_members;
    let bytes = options.bytes / stripe * stripe;
    if bytes == 0 {
        let detail = format!("--size is smaller than a stripe of the array, which has {stripe} bytes");
        return Err(Error::new(ErrorKind::BadUse, "", detail));
    }
    let place = tempfile::Builder::new().prefix(".bifolio-bench-").tempdir_in(&options.folder);
    let place = place.map_err(|error| Error::system(options.folder.display(), "making a folder in it", error))?;
    let maker = Maker { options, folder: place.path().to_owned(), bytes, session };
    let ways = maker.ways()?;
    let plain = open_file(&maker.path("plain"), device)?;
    // Ranges that are read again and again would stay pinned: such pages cannot be dropped, and it is a volume's first
    // pass that is measured.
    let router = options.router.options(device, &plain, session.cancel())?;
    let router = Arc::new(Router::new(device, RouterOptions { mapped_bytes: 0, ..router }));
    let memory = device.alloc(bytes)?;
    let steps = ways.len() * options.states.len();
    session.begin("measuring", steps as u64 * u64::from(options.repetitions));
    let numbers: Vec<usize> = (0..ways.len()).collect();
    let mut rows = vec![];
    let possible = options.states.iter().filter(|state| state.is_possible(&plain));
    let ended = possible.copied().try_for_each(|state| {
        let bench = Bench { session, router: &router, memory: &memory, ways: &ways, plain: &plain, state };
        let mut measured = vec![];
        let ended = compare(session, options.repetitions, &bench, &numbers, &mut measured);
        let named = |row: compare::Row<usize>| row.named(|way| ways[way].name.clone());
        rows.extend(measured.into_iter().map(|row| Row { state, compared: named(row) }));
        ended
    });
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(device),
        folder: options.folder.display().to_string(),
        bytes,
        array: format!("{} + 2 members, chunks of {}", options.data_members, size::exact(options.chunk_bytes)),
        sector_bytes: options.sector_bytes,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
    })
}

/// Makes the volumes.
struct Maker<'a> {
    options: &'a Options,
    folder: PathBuf,
    bytes: u64,
    session: &'a Session,
}

impl Maker<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn make(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.path(name);
        let made = File::create_new(&path).and_then(|file| file.set_len(bytes));
        made.map_err(|error| Error::system(path.display(), "making it", error))?;
        Ok(path)
    }

    /// All ways, the plain file first.
    fn ways(&self) -> Result<Vec<Way>> {
        self.session.begin("making volumes", self.bytes * 4);
        let path = self.make("plain", 0)?;
        let file = File::options().write(true).open(&path);
        let file = file.map_err(|error| Error::system(path.display(), "opening it", error))?;
        let mut before = 0;
        write_incompressible(&file, &path, self.bytes, self.options.seed, &mut |written| {
            self.session.advance(written - before);
            before = written;
        })?;
        let plain: Arc<dyn Load> = Arc::new(RoutedFile::open(&path, false)?);
        let mut ways = vec![Way {
            name: "plain file".to_owned(),
            content: Arc::clone(&plain),
            by: By::Device,
            files: vec![OpenFile::open(&path)?],
            rival: None,
        }];
        let luks: Arc<dyn Load> = Arc::new(self.encrypted(&*plain)?);
        let image = || Ok::<_, Error>(vec![OpenFile::open(self.path("luks"))?]);
        let by = |by, name: &str| -> Result<Way> {
            Ok(Way { name: name.to_owned(), content: Arc::clone(&luks), by, files: image()?, rival: Some(0) })
        };
        ways.push(by(By::Device, "LUKS2, decrypted on the device")?);
        for &threads in &self.options.cpu_threads {
            ways.push(by(By::Cpu(threads), &format!("LUKS2, by {threads} CPU threads and a copy"))?);
        }
        ways.push(self.file_of_directory(&*plain)?);
        let members = self.array(&*plain)?;
        let healthy = ways.len();
        for gone in 0..=2 {
            let left = &members[gone..];
            let name = match gone {
                0 => "RAID-6, all members".to_owned(),
                _ => format!("RAID-6, {gone} of {} members gone", members.len()),
            };
            let devices = left.iter().map(|path| Ok(Arc::new(RoutedFile::open(path, false)?) as Arc<dyn Load>));
            let content = Arc::new(Raid6::assemble(devices.collect::<Result<_>>()?, false)?);
            let files = left.iter().map(|path| Ok(OpenFile::open(path)?)).collect::<Result<_>>()?;
            ways.push(Way { name, content, by: By::Device, files, rival: Some(if gone == 0 { 0 } else { healthy }) });
        }
        Ok(ways)
    }

    fn encrypted(&self, plain: &dyn BlockDevice) -> Result<Luks> {
        let path = self.make("luks", self.bytes + HEADER_BYTES)?;
        let pbkdf = Pbkdf { time_ms: 1, iterations: Some(4), memory_kib: 32, threads: 1 };
        let format = FormatOptions { sector_bytes: self.options.sector_bytes, pbkdf, ..FormatOptions::default() };
        let luks = Luks::format(Arc::new(RoutedFile::open(&path, true)?), SECRET, &format)?;
        self.copy(plain, &luks)?;
        drop(luks);
        Ok(Luks::open(Arc::new(RoutedFile::open(&path, false)?), SECRET)?)
    }

    /// A file of an encrypted directory.
    fn file_of_directory(&self, plain: &dyn BlockDevice) -> Result<Way> {
        let folder = self.path("directory");
        std::fs::create_dir(&folder).map_err(|error| Error::system(folder.display(), "making it", error))?;
        let master = CipherDir::init(&folder, SECRET, InitOptions { scrypt_log_n: 10, ..InitOptions::default() })?;
        let dir = CipherDir::open(&folder, &Key::Master(master))?;
        let name = Path::new("content");
        let file = dir.create_file(name)?;
        let mut buffer = vec![0; COPY_BYTES as usize];
        for at in (0..self.bytes).step_by(COPY_BYTES as usize) {
            self.session.check()?;
            let part = &mut buffer[..COPY_BYTES.min(self.bytes - at) as usize];
            plain.read(at, part)?;
            file.write_at(part, at)?;
            self.session.advance(part.len() as u64);
        }
        file.sync(true)?;
        let content = CryptDevice::open(&dir, name)?;
        let files = vec![OpenFile::open(content.stored_at())?];
        let name = "file of gocryptfs, verified and decrypted on the device".to_owned();
        Ok(Way { name, content: Arc::new(Sealed::of(content)?), by: By::Device, files, rival: Some(0) })
    }

    fn array(&self, plain: &dyn BlockDevice) -> Result<Vec<PathBuf>> {
        let member = self.bytes / self.options.data_members + MEMBER_HEAD_BYTES;
        let names = (0..self.options.data_members + 2).map(|number| format!("member-{number}"));
        let paths = names.map(|name| self.make(&name, member)).collect::<Result<Vec<_>, _>>()?;
        let devices = paths.iter().map(|path| Ok(Arc::new(RoutedFile::open(path, true)?) as Arc<dyn Load>));
        let create = CreateOptions { name: String::new(), content: Content::Zeroes, overwrite: Overwrite::Nothing };
        let devices = devices.collect::<Result<_>>()?;
        let array = Raid6::create(devices, self.options.chunk_bytes, Rotation::LeftSymmetric, &create)?;
        self.copy(plain, &array)?;
        array.close()?;
        Ok(paths)
    }

    fn copy(&self, from: &dyn BlockDevice, to: &dyn BlockDevice) -> Result<()> {
        let mut buffer = vec![0; COPY_BYTES as usize];
        for at in (0..self.bytes).step_by(COPY_BYTES as usize) {
            self.session.check()?;
            let part = &mut buffer[..COPY_BYTES.min(self.bytes - at) as usize];
            from.read(at, part)?;
            to.write(at, part)?;
            self.session.advance(part.len() as u64);
        }
        Ok(to.flush()?)
    }
}

struct Bench<'a> {
    session: &'a Session,
    router: &'a Arc<Router>,
    memory: &'a Allocation,
    ways: &'a [Way],
    plain: &'a OpenFile,
    state: CacheState,
}

struct Ready {
    loader: Loader,
    workers: Vec<CopyWorker>,
}

impl Comparison for Bench<'_> {
    /// Its number.
    type Way = usize;
    type Ready = Ready;

    fn name(&self, way: usize) -> String {
        format!("{}, {}", self.state, self.ways[way].name)
    }

    fn rival(&self, way: usize) -> Option<usize> {
        self.ways[way].rival
    }

    fn bytes(&self, _: usize) -> u64 {
        self.memory.len()
    }

    fn set_up(&self, way: usize, _: bool) -> Result<Ready> {
        let way = &self.ways[way];
        way.files.iter().try_for_each(|file| self.state.set_up(file))?;
        poison(self.router.device(), self.memory.slice())?;
        let options = ReadOptions { cancel: self.session.cancel().clone(), ..ReadOptions::default() };
        let loader = Loader::new(Arc::clone(self.router), options);
        // Keys, kernels and pinned memory are there when a program reads its second volume.
        let workers = match way.by {
            By::Device => {
                let first = self.memory.slice().part(0, SLOT_BYTES.min(self.memory.len()))?;
                way.content.load(&loader, 0, first)?;
                vec![]
            }
            By::Cpu(threads) => {
                (0..threads).map(|_| CopyWorker::new(self.router.device())).collect::<Result<Vec<_>>>()?
            }
        };
        Ok(Ready { loader, workers })
    }

    fn run(&self, way: usize, ready: &mut Ready) -> Result<()> {
        let Way { content, by, .. } = &self.ways[way];
        match by {
            By::Device => Ok(content.load(&ready.loader, 0, self.memory.slice())?),
            By::Cpu(_) => by_cpu(&**content, self.memory, &mut ready.workers),
        }
    }

    fn verify(&self, _: usize, _: &Ready) -> Result<bool> {
        Checker::new(self.router, self.plain)?.compare_all(self.memory.slice(), 0)?;
        Ok(true)
    }
}

/// A thread's own: while one slot is on its way, the other one is filled.
struct CopyWorker {
    stream: Stream,
    slots: [(PinnedBuffer, Option<Event>); 2],
}

impl CopyWorker {
    fn new(device: &Device) -> Result<Self> {
        let slot = || Ok::<_, Error>((device.alloc_pinned(SLOT_BYTES as usize)?, None));
        Ok(Self { stream: device.create_stream()?, slots: [slot()?, slot()?] })
    }

    fn work(&mut self, content: &dyn BlockDevice, memory: &Allocation, next: &AtomicU64) -> Result<()> {
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

fn by_cpu(content: &dyn BlockDevice, memory: &Allocation, workers: &mut [CopyWorker]) -> Result<()> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(|| worker.work(content, memory, &next))).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

impl Report for Results {
    fn text(&self) -> String {
        let head = ["state", "way", "best GB/s", "median GB/s", "CPU s/GB", "rate", "CPU", "beside"];
        let cells = |Row { state, compared: row }: &Row| {
            vec![
                state.to_string(),
                row.way.clone(),
                format!("{:.2}", row.rates.gb_per_s_best),
                format!("{:.2}", row.rates.gb_per_s_median),
                format!("{:.3}", row.rates.cpu_s_per_gb),
                ratio(row.to_rival),
                ratio(row.cpu_to_rival),
                row.rival.clone().unwrap_or_default(),
            ]
        };
        format!(
            "{}\n{}: {} of random bytes, seed {}; LUKS2 with AES-256-XTS and sectors of {}; {}; {} runs of each way in \
             turns\n{}",
            self.machine,
            self.folder,
            size::human(self.bytes),
            self.seed,
            self.sector_bytes,
            self.array,
            self.repetitions,
            Table::new(head, &[0, 1, 7]).with(self.rows.iter().map(cells)).text(),
        )
    }
}
