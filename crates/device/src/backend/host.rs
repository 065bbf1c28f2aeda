//! The embedded device: "device memory" is host memory, and everything else behaves as on a GPU.
//!
//! - Frames are sealed memfds mapped into a reserved range, so address ranges, export by
//!   descriptor and sharing between processes work as on `cuda`.
//! - A stream is a worker thread with a queue, so copies really are asynchronous and a missing
//!   wait shows up in tests. A failed job leaves its reason on the stream.
//! - Kernels run as their Rust oracles.
//! - Copies out of a registered file mapping go through `process_vm_readv`: where the file was
//!   truncated the kernel reports a fault instead of killing the process with SIGBUS.
//! - Optional shaping (bandwidth, latency) simulates a link; all streams share it.

mod fenced;

pub use fenced::FencedMemory;
pub(super) use fenced::locate;

use super::{Backend, BackendKind, KernelArg, Launch, RawEvent, RawFrame, RawGate, RawModule, RawStream};
use crate::fork::Birth;
use crate::{
    Access, BackendReport, Capabilities, Capability, DeviceId, DeviceInfo, DevicePtr, Error, ErrorKind, FRAME_BYTES,
    HostKernel, HostLaunch, MemoryInfo, ModuleSource, Result,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Names the memory of `host` devices, in bytes with an optional suffix: `64M`.
const MEMORY_VARIABLE: &str = "BIFOLIO_HOST_MEMORY";

/// How many `host:N` devices there are; each is a memory of its own.
const HOST_DEVICES: u32 = 16;

/// Choices for an embedded device.
#[derive(Debug, Clone, Default)]
pub struct HostOptions {
    /// The N of `host:N`.
    pub index: u32,
    /// Memory of the device; by default `$BIFOLIO_HOST_MEMORY`, else what the machine has available.
    pub memory_bytes: Option<u64>,
    /// Bytes a second over the simulated link, all streams together.
    pub bandwidth: Option<f64>,
    /// Added to every copy over the simulated link.
    pub latency: Option<Duration>,
}

/// The report of the embedded backend: always there.
pub(super) fn report() -> BackendReport {
    let devices = vec![describe(0, memory_from_environment().unwrap_or_else(available_memory))];
    BackendReport { backend: BackendKind::Host.name(), libraries: vec![], devices, problems: vec![] }
}

/// Opens `host:index`.
pub(super) fn open(index: u32) -> Result<Arc<dyn Backend>> {
    if index >= HOST_DEVICES {
        let detail = format!("there is no host:{index}: host:0 to host:{} exist", HOST_DEVICES - 1);
        return Err(Error::new(ErrorKind::Missing, detail));
    }
    Ok(Arc::new(HostBackend::new(&HostOptions { index, ..HostOptions::default() })))
}

/// Host memory as a device.
#[derive(Debug)]
pub(crate) struct HostBackend {
    info: DeviceInfo,
    memory: Arc<MemoryAccount>,
    /// Allocations by address, for `free`.
    allocations: Mutex<BTreeMap<u64, u64>>,
    shared: Arc<Shared>,
}

/// Registered file mappings, of all devices: copies from them, to any device, must survive a truncation.
static REGISTERED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// The default streams, made when first asked for: a program of the CPU has none.
static DEFAULT_STREAMS: Mutex<[Option<HostStream>; HOST_DEVICES as usize]> =
    Mutex::new([const { None }; HOST_DEVICES as usize]);

/// What the streams of one device share.
#[derive(Debug)]
struct Shared {
    link: Option<Link>,
}

impl HostBackend {
    pub(crate) fn new(options: &HostOptions) -> Self {
        let total = options.memory_bytes.or_else(memory_from_environment).unwrap_or_else(available_memory);
        let link = Link::new(options.bandwidth, options.latency);
        Self {
            info: describe(options.index, total),
            memory: Arc::new(MemoryAccount { total, used: AtomicU64::new(0) }),
            allocations: Mutex::default(),
            shared: Arc::new(Shared { link }),
        }
    }
}

fn describe(index: u32, memory_bytes: u64) -> DeviceInfo {
    let processor = processor_name();
    DeviceInfo {
        id: DeviceId::new(BackendKind::Host, index),
        identity: format!("host:{index} on {processor}"),
        name: format!("host memory ({processor})"),
        driver: format!("embedded, {}", env!("CARGO_PKG_VERSION")),
        architecture: String::new(),
        memory_bytes,
        kernel_buffer_alignment: 1,
        is_accelerator: false,
        capabilities: Capabilities {
            virtual_memory: Capability::YES,
            export_fd: Capability::YES,
            host_register_read_only: registered_copies_work(),
            peer_access: Capability::YES,
            direct_storage: Capability::no("its memory is host memory"),
            kernels: Capability::no("kernels run as their Rust oracles on the CPU"),
            concurrent_streams: Capability::YES,
            energy: Capability::no("host memory has no energy counter of its own"),
        },
    }
}

impl Backend for HostBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let used = self.memory.used.load(Ordering::Relaxed);
        Ok(MemoryInfo { free: self.memory.total.saturating_sub(used), total: self.memory.total })
    }

    fn alloc(&self, len: u64) -> Result<DevicePtr> {
        self.memory.take(len)?;
        let mapped =
            map_anonymous(len as usize, libc::PROT_READ | libc::PROT_WRITE).inspect_err(|_| self.memory.give(len))?;
        let address = mapped.as_ptr() as u64;
        lock(&self.allocations).insert(address, len);
        Ok(DevicePtr(address))
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        let Some(len) = lock(&self.allocations).remove(&ptr.0) else {
            return Err(Error::new(ErrorKind::BadArgument, format!("{ptr} is not an allocation of this device")));
        };
        self.memory.give(len);
        // SAFETY: the table held the mapping that `alloc` made, and the caller gives it up.
        unsafe { unmap(ptr.0, len) }
    }

    fn alloc_pinned(&self, len: usize) -> Result<NonNull<u8>> {
        map_anonymous(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    unsafe fn free_pinned(&self, ptr: NonNull<u8>, len: usize) -> Result<()> {
        // SAFETY: the caller passes one `alloc_pinned`, which mapped exactly this.
        unsafe { unmap(ptr.as_ptr() as u64, len as u64) }
    }

    unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<()> {
        if let Some(reason) = self.info.capabilities.host_register_read_only.reason() {
            return Err(Error::new(ErrorKind::Unsupported, format!("file mappings cannot be registered: {reason}")));
        }
        lock(&REGISTERED).insert(ptr as u64, len as u64);
        Ok(())
    }

    fn registers_for(&self, other: DeviceId) -> bool {
        other.backend == BackendKind::Host
    }

    unsafe fn unregister_host(&self, ptr: *const u8, _len: usize) -> Result<()> {
        lock(&REGISTERED).remove(&(ptr as u64));
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<DevicePtr> {
        // Reserved with room to align to a frame, as the GPU's ranges are; the ends are given back.
        let too_long = || Error::new(ErrorKind::BadArgument, format!("an address range of {len} bytes is too long"));
        let padded = len.checked_add(FRAME_BYTES).ok_or_else(too_long)?;
        let start = map_anonymous(padded as usize, libc::PROT_NONE)?.as_ptr() as u64;
        let aligned = start.next_multiple_of(FRAME_BYTES);
        // SAFETY: both ends lie inside the mapping just made, outside the part that is kept.
        unsafe {
            unmap(start, aligned - start)?;
            unmap(aligned + len, padded - len - (aligned - start))?;
        }
        Ok(DevicePtr(aligned))
    }

    unsafe fn unreserve(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: the caller passes one reservation with nothing mapped in it.
        unsafe { unmap(ptr.0, len) }
    }

    fn create_frame(&self, len: u64) -> Result<Box<dyn RawFrame>> {
        self.memory.take(len)?;
        let fd = create_sealed_memfd(len).inspect_err(|_| self.memory.give(len))?;
        Ok(Box::new(HostFrame { fd, len, account: Some(Arc::clone(&self.memory)) }))
    }

    fn import_frame(&self, fd: OwnedFd) -> Result<Box<dyn RawFrame>> {
        // A peer is not trusted: memory that it could shrink would kill us with SIGBUS.
        // SAFETY: F_GET_SEALS takes no argument and changes nothing.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        // SAFETY: `stat` is plain old data, for which zeroes are a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and `stat` is writable.
        let known = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } == 0;
        let is_frame = known && stat.st_size as u64 == FRAME_BYTES && seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        if !is_frame {
            let detail = "the descriptor is not an exported frame: it is not a sealed memory of 2 MiB";
            return Err(Error::new(ErrorKind::BadArgument, detail));
        }
        Ok(Box::new(HostFrame { fd, len: FRAME_BYTES, account: None }))
    }

    unsafe fn map_frame(&self, ptr: DevicePtr, frame: &dyn RawFrame, len: u64, access: Access) -> Result<()> {
        let Some(frame) = (frame as &dyn Any).downcast_ref::<HostFrame>() else {
            return Err(Error::new(ErrorKind::BadArgument, "the frame belongs to another backend"));
        };
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: the caller says that the place is a free part of a reserved range.
        unsafe { map_fixed(ptr, len, protection, libc::MAP_SHARED, frame.fd.as_raw_fd()) }
    }

    unsafe fn unmap_frame(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: replaces the frame's mapping, which nobody uses, by reserved emptiness.
        unsafe { map_fixed(ptr, len, libc::PROT_NONE, flags, -1) }
    }

    fn create_stream(&self) -> Result<Box<dyn RawStream>> {
        Ok(Box::new(HostStream::start(&self.shared)?))
    }

    /// One for each number of a device in the process, as a GPU has one whoever opens it.
    fn default_stream(&self) -> Result<Box<dyn RawStream>> {
        let mut streams = lock(&DEFAULT_STREAMS);
        let place = &mut streams[self.info.id.index as usize % HOST_DEVICES as usize];
        if let Some(stream) = place.as_ref().filter(|stream| !stream.queue.birth.was_elsewhere()) {
            return Ok(Box::new(stream.clone()));
        }
        let stream = HostStream::start(&self.shared)?;
        // That of a parent is not dropped: its worker did not come along.
        std::mem::forget(place.replace(stream.clone()));
        Ok(Box::new(stream))
    }

    fn default_work(&self) -> Result<Option<Box<dyn RawEvent>>> {
        let streams = lock(&DEFAULT_STREAMS);
        let stream = streams[self.info.id.index as usize % HOST_DEVICES as usize].as_ref();
        let stream = stream.filter(|stream| !stream.queue.birth.was_elsewhere());
        stream.filter(|stream| stream.queue.left.load(Ordering::Acquire) > 0).map(HostStream::record).transpose()
    }

    unsafe fn adopt_stream(&self, _raw: u64) -> Result<Box<dyn RawStream>> {
        Err(Error::new(ErrorKind::Unsupported, "the embedded device has no streams of a caller's to adopt"))
    }

    fn as_peer(&self) -> Option<&dyn Any> {
        // Its memory is memory of this process, so that the backend is all that there is to know.
        Some(&HostPeer)
    }

    fn load_module(&self, source: &ModuleSource) -> Result<Arc<dyn RawModule>> {
        Ok(Arc::new(HostModule { kernels: source.kernels }))
    }
}

impl Drop for HostBackend {
    fn drop(&mut self) {
        for (address, len) in std::mem::take(&mut *lock(&self.allocations)) {
            // SAFETY: owners hold the device, so no owner is left.
            let _ = unsafe { unmap(address, len) };
        }
    }
}

/// Marks a device as one of this backend.
struct HostPeer;

/// Bytes in use out of a fixed total: the device runs out as a GPU does.
#[derive(Debug)]
struct MemoryAccount {
    total: u64,
    used: AtomicU64,
}

impl MemoryAccount {
    fn take(&self, len: u64) -> Result<()> {
        let fits = |used: u64| used.checked_add(len).filter(|&sum| sum <= self.total);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(|_| ()).map_err(|used| {
            let free = self.total.saturating_sub(used);
            let detail = format!("out of device memory: {len} bytes were asked for, {free} of {} are free", self.total);
            Error::new(ErrorKind::OutOfMemory, detail)
        })
    }

    fn give(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }
}

/// A memfd of one frame; imported ones are somebody else's memory and are not accounted here.
#[derive(Debug)]
struct HostFrame {
    fd: OwnedFd,
    len: u64,
    account: Option<Arc<MemoryAccount>>,
}

impl RawFrame for HostFrame {
    fn export(&self) -> Result<OwnedFd> {
        self.fd.try_clone().map_err(|error| Error::system("duplicating a frame's descriptor", error))
    }
}

impl Drop for HostFrame {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.give(self.len);
        }
    }
}

/// The kernels of a module, as oracles.
#[derive(Debug)]
struct HostModule {
    kernels: &'static [(&'static str, HostKernel)],
}

impl RawModule for HostModule {
    fn has_kernel(&self, name: &str) -> bool {
        self.kernels.iter().any(|(known, _)| *known == name)
    }
}

/// Work for a stream's thread. Addresses travel as numbers; their validity is the contract of
/// the `unsafe` methods that enqueue them.
enum Job {
    Copy { dst: u64, src: u64, len: u64, over_link: bool },
    Fill { dst: u64, value: u8, len: u64 },
    Launch { kernel: HostKernel, groups: u32, group_size: u32, args: Vec<OwnedArg> },
    Record(Arc<EventState>),
    Wait(Arc<EventState>),
}

enum OwnedArg {
    Buffer(DevicePtr),
    Bytes(Vec<u8>),
}

/// A stream; clones are one.
#[derive(Debug, Clone)]
struct HostStream {
    queue: Arc<Queue>,
}

/// A queue into a worker thread. Dropping it waits for the queue to drain.
#[derive(Debug)]
struct Queue {
    sender: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    birth: Birth,
    /// Jobs that were sent and are not done.
    left: Arc<AtomicUsize>,
}

impl HostStream {
    fn start(shared: &Arc<Shared>) -> Result<Self> {
        let (sender, receiver) = channel();
        let left = Arc::<AtomicUsize>::default();
        let (shared, counted) = (Arc::clone(shared), Arc::clone(&left));
        let builder = std::thread::Builder::new().name("bifolio-stream".to_owned());
        let worker = crate::without_signals(|| builder.spawn(move || run_jobs(&receiver, &shared, &counted)))
            .map_err(|error| Error::system("starting a stream's worker thread", error))?;
        let queue = Queue { sender: Some(sender), worker: Some(worker), birth: Birth::here(), left };
        Ok(Self { queue: Arc::new(queue) })
    }

    fn send(&self, job: Job) -> Result<()> {
        self.queue.left.fetch_add(1, Ordering::Relaxed);
        let sent = self.queue.sender.as_ref().is_some_and(|sender| sender.send(job).is_ok());
        if sent { Ok(()) } else { Err(Error::new(ErrorKind::Execution, "the stream's worker thread is gone")) }
    }

    fn record_state(&self) -> Result<Arc<EventState>> {
        let state = Arc::<EventState>::default();
        self.send(Job::Record(Arc::clone(&state)))?;
        Ok(state)
    }
}

impl RawStream for HostStream {
    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        self.send(Job::Copy { dst: dst.0, src: src as u64, len, over_link: true })
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        self.send(Job::Copy { dst: dst as u64, src: src.0, len, over_link: true })
    }

    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, len: u64) -> Result<()> {
        self.send(Job::Copy { dst: dst.0, src: src.0, len, over_link: false })
    }

    /// The simulated link is the one to the host, so this copy does not occupy it.
    unsafe fn copy_from_peer(&self, dst: DevicePtr, peer: &dyn Backend, src: DevicePtr, len: u64) -> Result<()> {
        if !peer.as_peer().is_some_and(<dyn Any>::is::<HostPeer>) {
            return Err(Error::new(ErrorKind::BadArgument, "the peer is a device of another backend"));
        }
        self.send(Job::Copy { dst: dst.0, src: src.0, len, over_link: false })
    }

    unsafe fn fill(&self, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        self.send(Job::Fill { dst: dst.0, value, len })
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let module = (&**launch.module as &dyn Any).downcast_ref::<HostModule>();
        let found = module.and_then(|module| module.kernels.iter().find(|(name, _)| *name == launch.kernel));
        let Some(&(_, kernel)) = found else {
            let detail = format!("the module has no kernel {} for the embedded device", launch.kernel);
            return Err(Error::new(ErrorKind::Kernel, detail));
        };
        let owned = |arg: &KernelArg<'_>| match *arg {
            KernelArg::Buffer(ptr) => OwnedArg::Buffer(ptr),
            KernelArg::Bytes(bytes) => OwnedArg::Bytes(bytes.to_vec()),
        };
        let args = launch.args.iter().map(owned).collect();
        self.send(Job::Launch { kernel, groups: launch.groups, group_size: launch.group_size, args })
    }

    fn record(&self) -> Result<Box<dyn RawEvent>> {
        Ok(Box::new(HostEvent { state: self.record_state()? }))
    }

    fn wait(&self, event: &dyn RawEvent) -> Result<()> {
        let Some(event) = (event as &dyn Any).downcast_ref::<HostEvent>() else {
            return Err(Error::new(ErrorKind::BadArgument, "the event belongs to another backend"));
        };
        self.send(Job::Wait(Arc::clone(&event.state)))
    }

    fn gate(&self) -> Result<Box<dyn RawGate>> {
        let gate = HostGate { opened: Arc::default() };
        self.send(Job::Wait(Arc::clone(&gate.opened)))?;
        Ok(Box::new(gate))
    }

    fn synchronize(&self) -> Result<()> {
        self.record_state()?.wait()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            // The worker did not come along.
            std::mem::forget((self.sender.take(), self.worker.take()));
            return;
        }
        self.sender = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// A point in a stream, shared between the worker that reaches it and those who wait for it.
#[derive(Debug, Default)]
struct EventState {
    outcome: Mutex<Option<std::result::Result<(), String>>>,
    reached: Condvar,
}

impl EventState {
    fn set(&self, outcome: std::result::Result<(), String>) {
        *lock(&self.outcome) = Some(outcome);
        self.reached.notify_all();
    }

    fn wait(&self) -> Result<()> {
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                Some(done) => return as_result(done),
                None => outcome = self.reached.wait(outcome).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

#[derive(Debug)]
struct HostEvent {
    state: Arc<EventState>,
}

impl RawEvent for HostEvent {
    fn query(&self) -> Result<bool> {
        lock(&self.state.outcome).as_ref().map_or(Ok(false), |done| as_result(done).map(|()| true))
    }

    fn wait(&self) -> Result<()> {
        self.state.wait()
    }
}

/// A gate: an event that the host reaches.
#[derive(Debug)]
struct HostGate {
    opened: Arc<EventState>,
}

impl RawGate for HostGate {}

impl Drop for HostGate {
    fn drop(&mut self) {
        self.opened.set(Ok(()));
    }
}

fn as_result(outcome: &std::result::Result<(), String>) -> Result<()> {
    outcome.clone().map_err(|reason| Error::new(ErrorKind::Execution, reason))
}

/// The worker of a stream: in order, and after a failure every later event reports it.
fn run_jobs(jobs: &Receiver<Job>, shared: &Shared, left: &AtomicUsize) {
    let mut outcome = Ok(());
    for job in jobs {
        match job {
            Job::Record(event) => event.set(outcome.clone()),
            Job::Wait(event) => _ = event.wait(),
            _ if outcome.is_err() => {}
            work => outcome = run_work(work, shared),
        }
        left.fetch_sub(1, Ordering::Release);
    }
}

fn run_work(work: Job, shared: &Shared) -> std::result::Result<(), String> {
    match work {
        Job::Copy { dst, src, len, over_link } => {
            if over_link && let Some(link) = &shared.link {
                link.occupy(len);
            }
            if is_registered(src) {
                // SAFETY: the enqueuer vouches for `dst`; the kernel checks `src`.
                return unsafe { copy_checked(dst, src, len) };
            }
            // SAFETY: the enqueuer vouches for both ranges until completion.
            unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, len as usize) };
        }
        // SAFETY: the enqueuer vouches for the range until completion.
        Job::Fill { dst, value, len } => unsafe { (dst as *mut u8).write_bytes(value, len as usize) },
        Job::Launch { kernel, groups, group_size, args } => {
            let borrowed: Vec<_> = args.iter().map(OwnedArg::borrow).collect();
            let launch = HostLaunch { groups, group_size, args: &borrowed };
            // A panic would end the thread, and whoever waits for an event behind it with it.
            // SAFETY: the enqueuer vouches for the arguments until completion.
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe { kernel(&launch) }));
            return ran.map_err(|_| "a kernel panicked".to_owned());
        }
        Job::Record(_) | Job::Wait(_) => {}
    }
    Ok(())
}

impl OwnedArg {
    fn borrow(&self) -> KernelArg<'_> {
        match self {
            Self::Buffer(ptr) => KernelArg::Buffer(*ptr),
            Self::Bytes(bytes) => KernelArg::Bytes(bytes),
        }
    }
}

fn is_registered(address: u64) -> bool {
    let registered = lock(&REGISTERED);
    registered.range(..=address).next_back().is_some_and(|(start, len)| address < start + len)
}

/// Copies within this process through the kernel, which turns a page that is gone into an error.
///
/// # Safety
/// `dst` is valid for `len` bytes.
unsafe fn copy_checked(dst: u64, src: u64, len: u64) -> std::result::Result<(), String> {
    let mut done = 0;
    while done < len {
        let local = libc::iovec { iov_base: (dst + done) as *mut libc::c_void, iov_len: (len - done) as usize };
        let remote = libc::iovec { iov_base: (src + done) as *mut libc::c_void, iov_len: (len - done) as usize };
        // SAFETY: `local` is valid by the caller's promise; a bad `remote` is reported, not touched.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        if copied <= 0 {
            let error = std::io::Error::last_os_error();
            return Err(format!("a mapped file lost its pages during a copy (was it truncated?): {error}"));
        }
        done += copied as u64;
    }
    Ok(())
}

/// Some containers forbid `process_vm_readv`; without it a truncated file would kill the process,
/// so file mappings are then not offered at all.
fn registered_copies_work() -> Capability {
    let (source, mut target) = (0x5a_u8, 0_u8);
    // SAFETY: `target` is one writable byte, `source` one readable byte.
    let copied = unsafe { copy_checked(&raw mut target as u64, &raw const source as u64, 1) };
    match copied {
        Ok(()) if target == source => Capability::YES,
        Ok(()) => Capability::no("process_vm_readv does not copy within this process"),
        Err(error) => Capability::no(format!("process_vm_readv is refused here: {error}")),
    }
}

/// A simulated link: one transfer at a time, at a rate, each after a latency.
#[derive(Debug)]
struct Link {
    seconds_per_byte: f64,
    latency: Duration,
    free_at: Mutex<Instant>,
}

impl Link {
    fn new(bandwidth: Option<f64>, latency: Option<Duration>) -> Option<Self> {
        (bandwidth.is_some() || latency.is_some()).then(|| Self {
            seconds_per_byte: bandwidth.map_or(0.0, f64::recip),
            latency: latency.unwrap_or_default(),
            free_at: Mutex::new(Instant::now()),
        })
    }

    fn occupy(&self, len: u64) {
        let until = {
            let mut free_at = lock(&self.free_at);
            let start = (*free_at).max(Instant::now());
            *free_at = start + Duration::from_secs_f64(len as f64 * self.seconds_per_byte);
            *free_at + self.latency
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn map_anonymous(len: usize, protection: i32) -> Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(Error::last_os(format_args!("mapping {len} bytes of host memory")));
    }
    NonNull::new(address.cast()).ok_or_else(|| Error::new(ErrorKind::System, "the kernel mapped address 0"))
}

/// # Safety
/// The range is a mapping of ours that nobody uses any more.
unsafe fn unmap(address: u64, len: u64) -> Result<()> {
    // SAFETY: the caller's promise.
    if len > 0 && unsafe { libc::munmap(address as *mut libc::c_void, len as usize) } != 0 {
        return Err(Error::last_os("unmapping host memory"));
    }
    Ok(())
}

/// # Safety
/// `ptr` is a place of `len` bytes inside a reserved range whose present content nobody uses.
unsafe fn map_fixed(ptr: DevicePtr, len: u64, protection: i32, flags: i32, fd: i32) -> Result<()> {
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    let mapped = unsafe { libc::mmap(ptr.0 as *mut libc::c_void, len as usize, protection, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(Error::last_os("mapping a frame")) } else { Ok(()) }
}

fn create_sealed_memfd(len: u64) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string, and the call touches no memory of ours.
    let raw = unsafe { libc::memfd_create(c"bifolio-frame".as_ptr(), flags) };
    if raw < 0 {
        return Err(Error::last_os("creating a frame (memfd)"));
    }
    // SAFETY: the descriptor is new and ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain calls on an open descriptor.
    let sized = unsafe { libc::ftruncate(raw, len as i64) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, seals) == 0 };
    if sized { Ok(fd) } else { Err(Error::last_os("sizing and sealing a frame (memfd)")) }
}

fn memory_from_environment() -> Option<u64> {
    let text = std::env::var(MEMORY_VARIABLE).ok()?;
    let digits = text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']);
    let shift = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
    };
    field("MemAvailable:").or_else(|| field("MemTotal:")).map_or(1 << 30, |kib| kib << 10)
}

fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests;
