//! A backend that fails on purpose: any backend, with chosen operations failing from a chosen
//! call on. For tests of what stands above.

use super::{Backend, Launch, RawDirectStorage, RawEnergyMeter, RawEvent, RawFrame, RawGate, RawModule, RawStream};
use crate::{Access, DeviceId, DeviceInfo, DevicePtr, Error, ErrorKind, MemoryInfo, ModuleSource, Result};
use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// How many calls of each operation still succeed; negative for "all of them".
#[derive(Debug)]
pub struct Faults {
    /// Copies from host memory.
    pub copies: AtomicI64,
    /// Copies to host memory.
    pub downloads: AtomicI64,
    /// Pinned allocations.
    pub pinned: AtomicI64,
    /// Allocations of device memory.
    pub allocations: AtomicI64,
    /// Ranges of addresses.
    pub reservations: AtomicI64,
    /// Frames created.
    pub frames: AtomicI64,
    /// Frames mapped.
    pub maps: AtomicI64,
    /// Frames unmapped.
    pub unmaps: AtomicI64,
    /// Kernels launched.
    pub launches: AtomicI64,
    /// Copies inside the device.
    pub device_copies: AtomicI64,
    /// Fills with one value.
    pub fills: AtomicI64,
    /// Registrations of file mappings.
    pub registrations: AtomicI64,
    /// Modules compiled.
    pub modules: AtomicI64,
    /// All of the above and all else, until the device is lost: from then on every call fails.
    pub life: AtomicI64,
    /// Copies to host memory do not end for as long as this is set.
    pub hangs: AtomicBool,
    /// Calls that count, take, map or give back device memory do not end for as long as this is set.
    pub memory_hangs: AtomicBool,
    /// Calls that do not end at present.
    pub hanging: AtomicU64,
    /// What of a kernel's output is overwritten after a launch, if anything.
    pub damage: Option<Damage>,
    /// Pinned buffers handed out and not returned.
    pub pinned_held: AtomicU64,
}

/// Names the bytes to spoil after a launch. They are valid as long as the launch needs them to be.
pub type Damage = fn(&Launch<'_>) -> Option<(DevicePtr, u64)>;

impl Default for Faults {
    fn default() -> Self {
        let never = || AtomicI64::new(-1);
        Self {
            copies: never(),
            downloads: never(),
            pinned: never(),
            allocations: never(),
            reservations: never(),
            frames: never(),
            maps: never(),
            unmaps: never(),
            launches: never(),
            device_copies: never(),
            fills: never(),
            registrations: never(),
            modules: never(),
            life: never(),
            hangs: AtomicBool::new(false),
            memory_hangs: AtomicBool::new(false),
            hanging: AtomicU64::new(0),
            damage: None,
            pinned_held: AtomicU64::new(0),
        }
    }
}

impl Faults {
    /// Whether the device is lost.
    pub fn is_lost(&self) -> bool {
        self.life.load(Ordering::SeqCst) == 0
    }

    /// One more call of any kind.
    fn live(&self) -> Result<()> {
        Self::allow_or(ErrorKind::Lost, &self.life, "the device is lost: a call")
    }

    /// Asking is no work, and takes no life.
    fn check(&self) -> Result<()> {
        if self.is_lost() { self.live() } else { Ok(()) }
    }

    /// Waits while calls of this kind do not end.
    fn hang(&self, is_on: &AtomicBool) {
        if !is_on.load(Ordering::SeqCst) {
            return;
        }
        self.hanging.fetch_add(1, Ordering::SeqCst);
        while is_on.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.hanging.fetch_sub(1, Ordering::SeqCst);
    }

    /// A call about device memory.
    fn on_memory(&self) {
        self.hang(&self.memory_hangs);
    }

    /// What of a lost device is given back is given back, so that tests lose no memory of the host, and fails.
    fn end<T>(&self, ended: Result<T>) -> Result<T> {
        self.live().and(ended)
    }

    fn allow(left: &AtomicI64, what: &str) -> Result<()> {
        Self::allow_or(ErrorKind::Execution, left, what)
    }

    fn allow_or(kind: ErrorKind, left: &AtomicI64, what: &str) -> Result<()> {
        let step = |left: i64| if left > 0 { Some(left - 1) } else { None };
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step) {
            Err(0) => Err(Error::new(kind, format!("{what} failed on purpose"))),
            _ => Ok(()),
        }
    }
}

/// A decorated backend.
#[derive(Debug)]
pub struct FaultBackend {
    inner: Arc<dyn Backend>,
    info: DeviceInfo,
    faults: Arc<Faults>,
}

impl FaultBackend {
    /// Decorates `inner`; `faults` may be changed while it is used.
    pub fn new(inner: &Arc<dyn Backend>, faults: &Arc<Faults>) -> Arc<Self> {
        Self::presented_as(inner.info().clone(), inner, faults)
    }

    /// The same, with claims of its own about what the device is and can do.
    pub fn presented_as(info: DeviceInfo, inner: &Arc<dyn Backend>, faults: &Arc<Faults>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), info, faults: Arc::clone(faults) })
    }
}

impl Backend for FaultBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.faults.on_memory();
        self.faults.check()?;
        self.inner.memory()
    }

    fn alloc(&self, len: u64) -> Result<DevicePtr> {
        self.faults.on_memory();
        self.faults.live()?;
        Faults::allow_or(ErrorKind::OutOfMemory, &self.faults.allocations, "an allocation")?;
        self.inner.alloc(len)
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        self.faults.on_memory();
        // SAFETY: the caller's promise.
        self.faults.end(unsafe { self.inner.free(ptr) })
    }

    fn alloc_pinned(&self, len: usize) -> Result<NonNull<u8>> {
        self.faults.live()?;
        Faults::allow(&self.faults.pinned, "a pinned allocation")?;
        let allocated = self.inner.alloc_pinned(len)?;
        self.faults.pinned_held.fetch_add(1, Ordering::SeqCst);
        Ok(allocated)
    }

    unsafe fn free_pinned(&self, ptr: NonNull<u8>, len: usize) -> Result<()> {
        self.faults.pinned_held.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        self.faults.end(unsafe { self.inner.free_pinned(ptr, len) })
    }

    unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<()> {
        self.faults.live()?;
        Faults::allow(&self.faults.registrations, "a registration")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.register_host(ptr, len) }
    }

    fn registers_for(&self, other: DeviceId) -> bool {
        self.inner.registers_for(other)
    }

    unsafe fn unregister_host(&self, ptr: *const u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        self.faults.end(unsafe { self.inner.unregister_host(ptr, len) })
    }

    fn reserve(&self, len: u64) -> Result<DevicePtr> {
        self.faults.live()?;
        Faults::allow_or(ErrorKind::OutOfMemory, &self.faults.reservations, "a reservation of addresses")?;
        self.inner.reserve(len)
    }

    unsafe fn unreserve(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        self.faults.end(unsafe { self.inner.unreserve(ptr, len) })
    }

    fn create_frame(&self, len: u64) -> Result<Box<dyn RawFrame>> {
        self.faults.on_memory();
        self.faults.live()?;
        Faults::allow_or(ErrorKind::OutOfMemory, &self.faults.frames, "creating a frame")?;
        self.inner.create_frame(len)
    }

    fn import_frame(&self, fd: OwnedFd, len: u64) -> Result<Box<dyn RawFrame>> {
        self.faults.on_memory();
        self.faults.live()?;
        self.inner.import_frame(fd, len)
    }

    fn zeroes_frames(&self) -> bool {
        self.inner.zeroes_frames()
    }

    unsafe fn map_frame(&self, ptr: DevicePtr, frame: &dyn RawFrame, len: u64, access: Access) -> Result<()> {
        self.faults.on_memory();
        self.faults.live()?;
        Faults::allow_or(ErrorKind::OutOfMemory, &self.faults.maps, "mapping a frame")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.map_frame(ptr, frame, len, access) }
    }

    unsafe fn let_read(&self, ptr: DevicePtr, len: u64, peer: &dyn Backend) -> Result<bool> {
        self.faults.live()?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.let_read(ptr, len, peer) }
    }

    unsafe fn unmap_frame(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        self.faults.on_memory();
        if !self.faults.is_lost() {
            Faults::allow(&self.faults.unmaps, "unmapping a frame")?;
        }
        // SAFETY: the caller's promise.
        self.faults.end(unsafe { self.inner.unmap_frame(ptr, len) })
    }

    fn create_stream(&self) -> Result<Box<dyn RawStream>> {
        self.faults.live()?;
        Ok(Box::new(FaultStream { inner: self.inner.create_stream()?, faults: Arc::clone(&self.faults) }))
    }

    unsafe fn adopt_stream(&self, raw: u64) -> Result<Box<dyn RawStream>> {
        self.faults.live()?;
        // SAFETY: the caller's promise.
        let inner = unsafe { self.inner.adopt_stream(raw) }?;
        Ok(Box::new(FaultStream { inner, faults: Arc::clone(&self.faults) }))
    }

    fn default_stream(&self) -> Result<Box<dyn RawStream>> {
        self.faults.live()?;
        Ok(Box::new(FaultStream { inner: self.inner.default_stream()?, faults: Arc::clone(&self.faults) }))
    }

    fn default_work(&self) -> Result<Option<Box<dyn RawEvent>>> {
        self.faults.live()?;
        self.inner.default_work()
    }

    fn is_alive(&self) -> bool {
        self.inner.is_alive()
    }

    fn direct_storage(&self) -> Result<Box<dyn RawDirectStorage>> {
        self.faults.live()?;
        self.inner.direct_storage()
    }

    fn as_peer(&self) -> Option<&dyn Any> {
        self.inner.as_peer()
    }

    fn energy_meter(&self) -> Result<Box<dyn RawEnergyMeter>> {
        self.inner.energy_meter()
    }

    fn load_module(&self, source: &ModuleSource) -> Result<Arc<dyn RawModule>> {
        self.faults.live()?;
        Faults::allow(&self.faults.modules, "compiling a module")?;
        self.inner.load_module(source)
    }
}

#[derive(Debug)]
struct FaultStream {
    inner: Box<dyn RawStream>,
    faults: Arc<Faults>,
}

impl RawStream for FaultStream {
    fn poll_for(&mut self, time: Duration) {
        self.inner.poll_for(time);
    }

    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        self.faults.live()?;
        Faults::allow(&self.faults.copies, "a copy to the device")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_to_device(dst, src, len) }
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        self.faults.live()?;
        self.faults.hang(&self.faults.hangs);
        Faults::allow(&self.faults.downloads, "a copy from the device")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_to_host(dst, src, len) }
    }

    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, len: u64) -> Result<()> {
        self.faults.live()?;
        Faults::allow(&self.faults.device_copies, "a copy on the device")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_on_device(dst, src, len) }
    }

    unsafe fn copy_from_peer(&self, dst: DevicePtr, peer: &dyn Backend, src: DevicePtr, len: u64) -> Result<()> {
        self.faults.live()?;
        if let Some(error) = peer.loss() {
            return Err(error);
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_from_peer(dst, peer, src, len) }
    }

    unsafe fn fill(&self, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        self.faults.live()?;
        Faults::allow(&self.faults.fills, "a fill")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.fill(dst, value, len) }
    }

    unsafe fn launch(&self, kernel: &Launch<'_>) -> Result<()> {
        self.faults.live()?;
        Faults::allow(&self.faults.launches, "a kernel")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(kernel) }?;
        match self.faults.damage.and_then(|damage| damage(kernel)) {
            // SAFETY: the bytes are a part of the launch's output, which outlives the launch and so
            // the work that is enqueued directly after it.
            Some((ptr, len)) => unsafe { self.inner.fill(ptr, 0x5a, len) },
            None => Ok(()),
        }
    }

    fn record(&self) -> Result<Box<dyn RawEvent>> {
        self.faults.live()?;
        self.inner.record()
    }

    fn wait(&self, event: &dyn RawEvent) -> Result<()> {
        self.faults.live()?;
        self.inner.wait(event)
    }

    fn is_capturing(&self) -> Result<bool> {
        self.inner.is_capturing()
    }

    fn gate(&self) -> Result<Box<dyn RawGate>> {
        self.faults.live()?;
        self.inner.gate()
    }

    /// Waits in any case, as the memory that work uses may be gone afterwards.
    fn synchronize(&self) -> Result<()> {
        self.faults.end(self.inner.synchronize())
    }
}
