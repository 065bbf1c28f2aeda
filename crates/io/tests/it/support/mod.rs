//! What the tests of the engines share: files in known states, a poisoned destination, a storage
//! that fails on purpose.

use bifolio_device::{Allocation, Device, DeviceChoice, HostOptions, discover};
use bifolio_io::storage::{IoQueue, OsStorage, QueuedIo, Storage};
use bifolio_io::{EngineChoice, EngineKind, OpenFile, ReadOptions, Router, RouterOptions};
use bifolio_testing::{noise, seed, skip, until};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

/// A folder below the build folder, which lies on a disk even where /tmp is in memory.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Numbers and bytes drawn from a seed.
pub(crate) struct Random(fastrand::Rng);

impl Random {
    /// Those of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Vec<u8> {
        noise(len as usize, self.0.u64(..))
    }
}

/// A generator whose seed is printed, so that a failure can be repeated with `BIFOLIO_TEST_SEED`.
#[track_caller]
pub(crate) fn random() -> Random {
    Random::of(seed())
}

/// A written-back file of random bytes.
pub(crate) fn file_of(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    settle(&path);
    path
}

/// Waits until the latest change of a file is older than the coarsest clock tick: of a younger state nothing is kept.
pub(crate) fn settle(path: &Path) {
    until("the file is older than a clock tick", || is_settled(path));
}

/// Whether it is.
pub(crate) fn is_settled(path: &Path) -> bool {
    let metadata = std::fs::metadata(path).unwrap();
    let changed = Duration::new(metadata.ctime() as u64, metadata.ctime_nsec() as u32);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.saturating_sub(changed) > Duration::from_millis(20)
}

/// Whether a file is never cold and never read unbuffered, which leaves out the rest of the test.
#[track_caller]
pub(crate) fn stays_in_memory(file: &OpenFile) -> bool {
    if file.is_in_memory() {
        skip(format_args!("{} is in memory, where nothing is cold or unbuffered", file.path().display()));
    }
    file.is_in_memory()
}

/// Runs the test called `name` in a process of its own, for what concerns all of a process: false there, where the test
/// goes on, and true here, where it is over.
pub(crate) fn ran_in_its_own_process(name: &str) -> bool {
    const ALONE: &str = "BIFOLIO_IO_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "there is no test {name}: {text}");
    true
}

/// Small slots and few of them, so that every path wraps around.
pub(crate) fn small_options() -> RouterOptions {
    RouterOptions { threads: 3, slot_bytes: 64 << 10, pool_bytes: 4 * (64 << 10), ..RouterOptions::default() }
}

pub(crate) fn host() -> Device {
    Device::host(&HostOptions::default())
}

/// Every device of OpenCL and CUDA; says so where there is none.
#[track_caller]
pub(crate) fn devices_besides_host() -> Vec<Device> {
    let infos = discover().into_iter().flat_map(|report| report.devices);
    let infos = infos.filter(|info| info.id.backend.name() != "host");
    let devices: Vec<_> = infos.map(|info| bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap()).collect();
    if devices.is_empty() {
        skip("this machine has no device besides host memory");
    }
    devices
}

pub(crate) fn only(engine: EngineKind) -> ReadOptions {
    ReadOptions { engine: EngineChoice::Only(engine), ..ReadOptions::default() }
}

/// The engines that a test file can be read with on the embedded device.
pub(crate) fn choices() -> Vec<EngineChoice> {
    use EngineKind::{Cached, Direct, Mapped};
    vec![EngineChoice::Auto, EngineChoice::Only(Cached), EngineChoice::Only(Direct), EngineChoice::Only(Mapped)]
}

/// Device memory filled with a value that the files do not consist of.
pub(crate) fn poisoned(device: &Device, len: u64) -> Allocation {
    let memory = device.alloc(len).unwrap();
    device.create_stream().unwrap().upload(memory.slice(), &vec![0xa5; len as usize]).unwrap();
    memory
}

pub(crate) fn content_of(memory: &Allocation) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.device().create_stream().unwrap().download(&mut bytes, memory.slice()).unwrap();
    bytes
}

/// Reads a range by one choice of engine and compares it with the oracle; what lies behind the
/// range in device memory must stay poisoned.
pub(crate) fn check_read(
    router: &Router,
    file: &Arc<OpenFile>,
    offset: u64,
    length: u64,
    choice: EngineChoice,
    expected: &[u8],
) {
    let memory = poisoned(router.device(), length + 100);
    let options = ReadOptions { engine: choice, ..ReadOptions::default() };
    let report = router.read(file, offset, Some(length), memory.slice(), &options).unwrap();
    assert_eq!(report.bytes, expected.len() as u64, "{choice} {offset}+{length}");
    assert_eq!(report.plan.iter().map(|segment| segment.length).sum::<u64>(), report.bytes);
    let seen = content_of(&memory);
    let (body, rest) = seen.split_at(expected.len());
    if body != expected {
        let at = body.iter().zip(expected).position(|(one, two)| one != two).unwrap();
        panic!(
            "{choice} {offset}+{length}: byte {at} is {:#x}, not {:#x}; plan {:?}",
            body[at], expected[at], report.plan
        );
    }
    assert!(rest.iter().all(|byte| *byte == 0xa5), "{choice} {offset}+{length} wrote beyond its range");
}

/// Fails, or does something else, at a chosen read.
pub(crate) struct FaultStorage {
    /// Reads that still succeed, through any path.
    pub(crate) reads_left: AtomicI64,
    /// What happens then.
    pub(crate) fault: Fault,
}

pub(crate) enum Fault {
    /// Every further read fails with this error number.
    Error(i32),
    /// One read panics.
    Panic,
    /// The file is cut to this size, once, and reading goes on.
    Truncate(PathBuf, u64),
    /// Every read returns at most this many bytes: all reads are short.
    Short(usize),
    /// Every further unbuffered transfer fails with this error number; others are counted, too.
    Unbuffered(i32),
}

impl std::fmt::Debug for FaultStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultStorage")
    }
}

impl FaultStorage {
    pub(crate) fn new(reads: i64, fault: Fault) -> Arc<Self> {
        Arc::new(Self { reads_left: AtomicI64::new(reads), fault })
    }

    /// The length to read, or the error to report instead.
    fn next(&self, len: usize) -> io::Result<usize> {
        let left = self.reads_left.fetch_sub(1, Ordering::SeqCst);
        match &self.fault {
            Fault::Short(most) => return Ok(len.min(*most)),
            Fault::Error(code) if left <= 0 => return Err(io::Error::from_raw_os_error(*code)),
            Fault::Panic => assert!(left != 0, "planted"),
            Fault::Truncate(path, size) if left == 0 => File::options().write(true).open(path)?.set_len(*size)?,
            _ => {}
        }
        Ok(len)
    }
}

/// A storage that hands a shared fault plan to its queues.
#[derive(Debug, Clone)]
pub(crate) struct Faulty(pub(crate) Arc<FaultStorage>);

impl Storage for Faulty {
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.0.next(buffer.len())?;
        OsStorage.read_at(file, &mut buffer[..len], offset)
    }

    fn read_cached_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        OsStorage.read_cached_at(file, buffer, offset)
    }

    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        let len = self.0.next(buffer.len())?;
        OsStorage.write_at(file, &buffer[..len], offset)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.0.next(0)?;
        OsStorage.sync_data(file)
    }

    fn allocate(&self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        OsStorage.allocate(file, offset, len)
    }

    fn open_queue(&self, depth: u32) -> io::Result<Box<dyn IoQueue>> {
        Ok(Box::new(FaultyQueue { inner: OsStorage.open_queue(depth)?, plan: Arc::clone(&self.0), failed: vec![] }))
    }
}

#[derive(Debug)]
struct FaultyQueue {
    inner: Box<dyn IoQueue>,
    plan: Arc<FaultStorage>,
    failed: Vec<(u64, io::Error)>,
}

impl IoQueue for FaultyQueue {
    unsafe fn register_slot(&mut self, index: usize, start: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.register_slot(index, start, len) };
    }

    unsafe fn submit(&mut self, read: QueuedIo) -> io::Result<()> {
        let refused = match self.plan.fault {
            Fault::Unbuffered(code) if self.plan.reads_left.load(Ordering::SeqCst) <= 0 => Some(code),
            _ => None,
        };
        match refused.map_or_else(|| self.plan.next(read.len), |code| Err(io::Error::from_raw_os_error(code))) {
            // SAFETY: the caller's promise.
            Ok(len) => unsafe { self.inner.submit(QueuedIo { len: len.max(1), ..read }) },
            Err(error) => {
                self.failed.push((read.token, error));
                Ok(())
            }
        }
    }

    fn wait(&mut self, done: &mut Vec<(u64, io::Result<usize>)>) -> io::Result<()> {
        if self.failed.is_empty() {
            return self.inner.wait(done);
        }
        done.extend(self.failed.drain(..).map(|(token, error)| (token, Err(error))));
        Ok(())
    }
}
