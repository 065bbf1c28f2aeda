//! What the tests of the engines share: files in known states, a poisoned destination, a storage
//! that fails on purpose.

#![allow(dead_code, reason = "each test file uses its part")]

use bifolio_device::conformance::{Random, fresh_seed};
use bifolio_device::{Allocation, Device, DeviceChoice, HostOptions, discover};
use bifolio_io::storage::{IoQueue, OsStorage, QueuedIo, Storage};
use bifolio_io::{EngineChoice, EngineKind, OpenFile, ReadOptions, Router, RouterOptions};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A folder below the build folder, which lies on a disk even where /tmp is in memory.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A generator whose seed is printed, so that a failure can be repeated with `BIFOLIO_TEST_SEED`.
pub(crate) fn random() -> Random {
    let seed = std::env::var("BIFOLIO_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(fresh_seed);
    println!("BIFOLIO_TEST_SEED={seed}");
    Random(seed)
}

/// A written-back file of random bytes.
pub(crate) fn file_of(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    // Registrations of a file that changed a moment ago are not kept.
    std::thread::sleep(std::time::Duration::from_millis(25));
    path
}

/// Small slots and few of them, so that every path wraps around.
pub(crate) fn small_options() -> RouterOptions {
    RouterOptions { threads: 3, slot_bytes: 64 << 10, pool_bytes: 4 * (64 << 10), ..RouterOptions::default() }
}

pub(crate) fn host() -> Device {
    Device::host(&HostOptions::default())
}

/// Every device of OpenCL and CUDA; says so where there is none.
pub(crate) fn devices_besides_host() -> Vec<Device> {
    let infos = discover().into_iter().flat_map(|report| report.devices);
    let infos = infos.filter(|info| info.id.backend.name() != "host");
    let devices: Vec<_> = infos.map(|info| bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap()).collect();
    if devices.is_empty() {
        println!("skipped: this machine has no device besides host memory");
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
