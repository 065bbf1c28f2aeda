//! What the tests of the cache share: devices, files, kernels that read and write, and processes that know
//! nothing of caches.

use bifolio_cache::{Cache, CacheOptions, CachedFile, Mapping, Mode};
use bifolio_device::{Device, DeviceChoice, DeviceId, DeviceSlice, HostOptions, Stream, discover, open};
use bifolio_io::{Router, RouterOptions};
use bifolio_testing::{noise, seed, skip, until};
use fastrand::Rng;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const FRAME: u64 = 2 << 20;

/// A generator whose seed is printed, so that a failure can be repeated with `BIFOLIO_TEST_SEED`.
pub(crate) fn random() -> Rng {
    Rng::with_seed(seed())
}

/// What tests draw most.
pub(crate) trait Draw {
    fn below(&mut self, bound: u64) -> u64;
    fn bytes(&mut self, len: u64) -> Vec<u8>;
}

impl Draw for Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.u64(..bound)
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        noise(len as usize, self.u64(..))
    }
}

/// Waits until the cache is as sure of a file as it can be, of which the mapping has the part: a look that comes right
/// after a change may not be, as the file's times move by ticks of a clock.
pub(crate) fn until_sure(mapping: &mut Mapping, part: Range<u64>) {
    until("nobody can have changed the file unseen", || {
        let report = mapping.acquire(part.clone()).unwrap();
        mapping.release(part.clone()).unwrap();
        report.compared == 0 || report.always_compared
    });
}

/// Waits until a file's latest change is older than what may still be one with another change: the file system's clock
/// has gone on, as times of another file show.
pub(crate) fn until_aged(path: &Path) {
    let changed = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let other = path.with_file_name("clock");
    until("the clock of files has gone on", || {
        std::fs::write(&other, "tick").unwrap();
        changed(&other).duration_since(changed(path)).is_ok_and(|age| age > Duration::from_millis(40))
    });
    std::fs::remove_file(other).unwrap();
}

pub(crate) fn host(index: u32) -> Device {
    Device::host(&HostOptions { index, ..HostOptions::default() })
}

/// Some devices of each backend that can hold cached files; one GPU plays several parts where there are not
/// enough: a cache numbers its devices itself.
pub(crate) fn sets(devices: u32) -> Vec<Vec<Device>> {
    let mut sets = vec![(0..devices).map(host).collect::<Vec<_>>()];
    let found = discover().into_iter().flat_map(|report| report.devices);
    let cuda: Vec<DeviceId> = found
        .filter(|info| info.is_accelerator && info.capabilities.virtual_memory.is_yes())
        .map(|info| info.id)
        .collect();
    if cuda.is_empty() {
        skip("there is no GPU with virtual memory management here");
    } else {
        let ids = cuda.iter().cycle().take(devices as usize);
        sets.push(ids.map(|id| open(DeviceChoice::Exactly(*id)).unwrap()).collect());
    }
    sets
}

pub(crate) fn routers(devices: &[Device]) -> Vec<Arc<Router>> {
    let options =
        || RouterOptions { threads: 2, slot_bytes: 64 << 10, pool_bytes: 1 << 20, ..RouterOptions::default() };
    devices.iter().map(|device| Arc::new(Router::new(device, options()))).collect()
}

/// A folder below the build folder: not in memory, where nothing tells of stores into mappings.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A cache and a file.
pub(crate) struct World {
    /// None where the folder is somebody else's.
    folder: Option<tempfile::TempDir>,
    pub(crate) path: PathBuf,
    pub(crate) cache: Cache,
    pub(crate) devices: Vec<Device>,
}

impl World {
    pub(crate) fn new(devices: &[Device], options: CacheOptions, content: &[u8]) -> Self {
        let folder = folder();
        std::fs::write(folder.path().join("data"), content).unwrap();
        let world = Self::in_folder(devices, options, folder.path());
        Self { folder: Some(folder), ..world }
    }

    /// With a file that is there.
    pub(crate) fn in_folder(devices: &[Device], options: CacheOptions, folder: &Path) -> Self {
        let cache = Cache::new(&routers(devices), options).unwrap();
        Self { folder: None, path: folder.join("data"), cache, devices: devices.to_vec() }
    }

    /// Of a cache that is there.
    pub(crate) fn over(cache: Cache, devices: &[Device], folder: &Path) -> Self {
        Self { folder: None, path: folder.join("data"), cache, devices: devices.to_vec() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    pub(crate) fn open(&self) -> CachedFile {
        self.cache.open(&self.path).unwrap()
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }
}

pub(crate) fn options(page_bytes: u64, budget_frames: u64, mode: Mode) -> CacheOptions {
    CacheOptions {
        page_bytes,
        budget_bytes: budget_frames * FRAME,
        mode,
        frame_bytes: FRAME,
        ..CacheOptions::default()
    }
}

/// A mapping, and kernels that read and write it: copies, as those exist on every device.
pub(crate) struct Program {
    pub(crate) mapping: Mapping,
    stream: Stream,
}

impl Program {
    pub(crate) fn new(device: &Device, mapping: Mapping) -> Self {
        Self { mapping, stream: device.create_stream().unwrap() }
    }

    /// The whole file, writable, on a device of the world.
    pub(crate) fn on(world: &World, file: &CachedFile, number: usize) -> Self {
        Self::new(&world.devices[number], file.map_on(number, 0..u64::MAX, true).unwrap())
    }

    /// The part is acquired.
    pub(crate) fn store(&self, at: u64, bytes: &[u8]) {
        // SAFETY: the part is acquired, so that it has memory.
        let slice = unsafe { DeviceSlice::from_raw(self.mapping.ptr().offset_by(at), bytes.len() as u64) };
        self.stream.upload(slice, bytes).unwrap();
    }

    /// The part is acquired.
    pub(crate) fn load(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0x5a; len as usize];
        // SAFETY: as above.
        let slice = unsafe { DeviceSlice::from_raw(self.mapping.ptr().offset_by(at), len) };
        self.stream.download(&mut bytes, slice).unwrap();
        bytes
    }
}

/// Whether the kernel tells this process which of its threads has opened a file.
pub(crate) fn is_told_of_threads() -> bool {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_REPORT_TID | libc::FAN_CLOEXEC;
    // SAFETY: makes a descriptor, which is closed at once.
    unsafe {
        let fd = libc::fanotify_init(flags, libc::O_RDONLY as u32);
        fd >= 0 && libc::close(fd) == 0
    }
}

/// Has the kernel take clean pages of a file back, as far as nobody uses them and the file system does not keep them.
pub(crate) fn drop_cached(file: &File, part: Range<u64>) {
    let len = part.end - part.start;
    // SAFETY: advice on an open descriptor.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), part.start as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
}

/// A mapping of a process that knows nothing of caches. It ends no earlier than its last use, and the file stays
/// as long as it is.
#[derive(Debug)]
pub(crate) struct HostMapping {
    start: NonNull<AtomicU8>,
    len: usize,
}

// SAFETY: the bytes are atomics.
unsafe impl Send for HostMapping {}
// SAFETY: as above.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    pub(crate) fn new(path: &Path, len: usize) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0).cast::<AtomicU8>()
        };
        assert_ne!(start.cast(), libc::MAP_FAILED);
        Self { start: NonNull::new(start).unwrap(), len }
    }

    fn byte(&self, at: u64) -> &AtomicU8 {
        assert!((at as usize) < self.len);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(at as usize).as_ref() }
    }

    pub(crate) fn store(&self, at: u64, value: u8) {
        self.byte(at).store(value, Ordering::SeqCst);
    }

    pub(crate) fn load(&self, at: u64) -> u8 {
        self.byte(at).load(Ordering::SeqCst)
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
