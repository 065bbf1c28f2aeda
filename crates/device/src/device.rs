//! The safe, owned face of a [`Backend`]: values that free themselves and check their ranges.
//!
//! Ownership: everything holds its [`Device`] alive. Asynchronous copies are `unsafe` where the
//! host side must outlive the work; the blocking ones are safe. A [`Stream`] is in order; two
//! streams are ordered only by [`Stream::wait`].

mod energy;
mod gate;
mod peer;
mod rows;

pub use energy::EnergyMeter;
pub use gate::Gate;
pub use rows::Rows;

use crate::backend::{
    Backend, KernelArg, Launch, RawDirectFile, RawDirectStorage, RawEvent, RawFrame, RawModule, RawStream,
};
use crate::fork::Birth;
use crate::{Capabilities, DeviceId, DeviceInfo, Error, ErrorKind, MemoryInfo, ModuleSource, Result};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, slice};

/// The unit of physical device memory that is mapped into address ranges: 2 MiB, the smallest
/// that `cuMemCreate` hands out on the GPUs of today. Frames are of one or several of these.
pub const FRAME_BYTES: u64 = 2 << 20;

/// An address in the memory of some device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    #[must_use]
    pub fn offset_by(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of device memory: a plain address and a length, borrowed from what owns the memory.
///
/// It knows whether the memory is *foreign*: a program's own, on which the program's default streams may still hold
/// work. Requests that name no stream begin after that work, as `cudaMemcpy` does; see [`Device::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSlice<'a> {
    ptr: DevicePtr,
    len: u64,
    is_foreign: bool,
    owner: PhantomData<&'a ()>,
}

impl DeviceSlice<'_> {
    /// A range that somebody else owns, such as a tensor of the caller's. It is foreign: requests with it that name
    /// no stream begin after what the program's default streams hold.
    ///
    /// # Safety
    /// The range is valid memory of the device that it will be used with, for the slice's lifetime.
    pub unsafe fn from_raw(ptr: DevicePtr, len: u64) -> Self {
        Self { ptr, len, is_foreign: true, owner: PhantomData }
    }

    /// The same for memory whose work the caller orders by itself, or has waited for: it is not foreign.
    ///
    /// # Safety
    /// As for [`Self::from_raw`].
    pub unsafe fn from_raw_ordered(ptr: DevicePtr, len: u64) -> Self {
        Self { ptr, len, is_foreign: false, owner: PhantomData }
    }

    /// The same range, when the work that may still use it has been waited for.
    #[must_use]
    pub fn ordered(self) -> Self {
        Self { is_foreign: false, ..self }
    }

    /// The same range without the borrow, foreign or not as it was.
    ///
    /// # Safety
    /// The memory stays valid for as long as the result, or a copy of it, is used.
    pub unsafe fn lasting<'b>(self) -> DeviceSlice<'b> {
        DeviceSlice { ptr: self.ptr, len: self.len, is_foreign: self.is_foreign, owner: PhantomData }
    }

    /// Whether the program's default streams may hold work on it.
    pub fn is_foreign(self) -> bool {
        self.is_foreign
    }

    /// The first address.
    pub fn ptr(self) -> DevicePtr {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The part `offset..offset + len`; an error if it does not lie inside.
    pub fn part(self, offset: u64, len: u64) -> Result<Self> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self { ptr: self.ptr.offset_by(offset), len, ..self }),
            _ => Err(Error::new(
                ErrorKind::BadArgument,
                format!("{len} bytes at {offset} do not fit into {} bytes of device memory", self.len),
            )),
        }
    }
}

/// Whether kernels may write through a mapping. On importers of a frame this protects nothing:
/// they always get write access from the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store faults.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// An open device. Clones share it.
#[derive(Debug, Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

impl Device {
    /// Wraps a backend, also a decorated one (fault injection).
    pub fn from_backend(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// An embedded device with chosen memory and shaping.
    pub fn host(options: &crate::HostOptions) -> Self {
        Self::from_backend(Arc::new(crate::backend::HostBackend::new(options)))
    }

    /// The backend, for decorators.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The device's name.
    pub fn id(&self) -> DeviceId {
        self.info().id
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.info().capabilities
    }

    /// Whether what was made on the device is still there: not after the program has reset it
    /// (`cudaDeviceReset`). Then nothing of it may be used or freed, and the device be opened anew.
    pub fn is_alive(&self) -> bool {
        self.backend.is_alive()
    }

    /// Free and total memory now.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.backend.memory().map_err(|error| self.name(error))
    }

    /// Allocates `len` bytes (none for 0). May synchronise the device.
    pub fn alloc(&self, len: u64) -> Result<Allocation> {
        let ptr = match len {
            0 => DevicePtr(0),
            _ => self.backend.alloc(len).map_err(|error| self.name(error))?,
        };
        Ok(Allocation { device: self.clone(), ptr, len, birth: Birth::here() })
    }

    /// Allocates `len > 0` bytes of page-locked host memory, zeroed.
    pub fn alloc_pinned(&self, len: usize) -> Result<PinnedBuffer> {
        assert!(len > 0, "a pinned buffer has a length");
        let ptr = self.backend.alloc_pinned(len).map_err(|error| self.name(error))?;
        // SAFETY: the backend just handed out `len` bytes at `ptr` to us alone.
        unsafe { ptr.as_ptr().write_bytes(0, len) };
        Ok(PinnedBuffer { device: self.clone(), ptr, len, birth: Birth::here() })
    }

    /// Page-locks a read-only shared file mapping.
    ///
    /// # Safety
    /// `ptr..ptr + len` is a mapping that outlives the registration; `ptr` is page-aligned.
    pub unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<HostRegistration> {
        // SAFETY: the caller's promise is the backend's requirement.
        unsafe { self.backend.register_host(ptr, len) }.map_err(|error| self.name(error))?;
        Ok(HostRegistration { device: self.clone(), ptr, len, birth: Birth::here() })
    }

    /// Reserves an address range of at least `len` bytes, rounded up to whole frames.
    pub fn reserve(&self, len: u64) -> Result<AddressRange> {
        let len = len.max(1).checked_next_multiple_of(FRAME_BYTES).ok_or_else(|| {
            Error::new(ErrorKind::BadArgument, format!("an address range of {len} bytes is too long")).on(self.id())
        })?;
        let ptr = self.backend.reserve(len).map_err(|error| self.name(error))?;
        Ok(AddressRange { device: self.clone(), ptr, len, mapped: Mutex::default() })
    }

    /// Creates a frame of physical memory, of [`FRAME_BYTES`].
    pub fn create_frame(&self) -> Result<Frame> {
        self.create_frame_of(FRAME_BYTES)
    }

    /// Creates a frame of `len` bytes, a multiple of [`FRAME_BYTES`]. Creating, mapping and unmapping cost as
    /// much for a long frame as for a short one (H200: 22 ms for a GiB of 2 MiB frames, 1.2 ms of 32 MiB).
    pub fn create_frame_of(&self, len: u64) -> Result<Frame> {
        if len == 0 || !len.is_multiple_of(FRAME_BYTES) {
            let detail = format!("a frame of {len} bytes: use a multiple of {FRAME_BYTES}");
            return Err(Error::new(ErrorKind::BadArgument, detail).on(self.id()));
        }
        let raw = self.backend.create_frame(len).map_err(|error| self.name(error))?;
        Ok(Frame { raw: Arc::from(raw), len, device: self.clone() })
    }

    /// Takes over a frame of [`FRAME_BYTES`] that another process exported; `fd` came from [`Frame::export`] on the
    /// same physical device.
    pub fn import_frame(&self, fd: OwnedFd) -> Result<Frame> {
        let raw = self.backend.import_frame(fd).map_err(|error| self.name(error))?;
        Ok(Frame { raw: Arc::from(raw), len: FRAME_BYTES, device: self.clone() })
    }

    /// Creates a stream.
    pub fn create_stream(&self) -> Result<Stream> {
        let raw = self.backend.create_stream().map_err(|error| self.name(error))?;
        Ok(Stream { device: self.clone(), raw })
    }

    /// Wraps a stream of the caller's, so that work is ordered on it.
    ///
    /// # Safety
    /// `raw` is a live stream of this device until the wrapper is dropped.
    pub unsafe fn adopt_stream(&self, raw: u64) -> Result<Stream> {
        // SAFETY: the caller's promise is the backend's requirement.
        let raw = unsafe { self.backend.adopt_stream(raw) }.map_err(|error| self.name(error))?;
        Ok(Stream { device: self.clone(), raw })
    }

    /// The stream that programs use which name none: on CUDA the legacy default stream, whose work begins after that
    /// of all streams that did not opt out (`cudaStreamNonBlocking`), the default streams of all threads included; on
    /// `host` a queue that stands for it. OpenCL has none (`Unsupported`).
    pub fn default_stream(&self) -> Result<Stream> {
        let raw = self.backend.default_stream().map_err(|error| self.name(error))?;
        Ok(Stream { device: self.clone(), raw })
    }

    /// The work that the default streams of this device hold at this moment; none where they are idle, or the device
    /// has none. What the default stream of another device does with this one's memory is not asked for.
    ///
    /// # Errors
    /// `Execution` if the work has failed, `Capturing` while a stream is being recorded into a graph that would draw
    /// the default stream into it.
    pub fn default_work(&self) -> Result<Option<Event>> {
        let work = self.backend.default_work().map_err(|error| self.name(error))?;
        Ok(work.map(|raw| Event { device: self.clone(), raw }))
    }

    /// The work that comes before a request with `memory` that names no stream: [`Self::default_work`] for foreign
    /// memory, none for what is not.
    pub fn work_on(&self, memory: DeviceSlice<'_>) -> Result<Option<Event>> {
        if memory.is_foreign && memory.len > 0 { self.default_work() } else { Ok(None) }
    }

    /// Waits for [`Self::work_on`] a range: the same range, which needs no further wait.
    pub fn settle<'a>(&self, memory: DeviceSlice<'a>) -> Result<DeviceSlice<'a>> {
        self.work_on(memory)?.map_or(Ok(()), |work| work.wait())?;
        Ok(memory.ordered())
    }

    /// The driver for storage transfers straight into this device's memory.
    pub fn direct_storage(&self) -> Result<DirectStorage> {
        let raw = self.backend.direct_storage().map_err(|error| self.name(error))?;
        Ok(DirectStorage { device: self.clone(), raw })
    }

    /// Compiles, or finds in the cache, and loads a module.
    pub fn load_module(&self, source: &ModuleSource) -> Result<Module> {
        let raw = self.backend.load_module(source).map_err(|error| self.name(error))?;
        Ok(Module { device: self.clone(), raw })
    }

    fn name(&self, error: Error) -> Error {
        error.on(self.id())
    }
}

/// Device memory that frees itself.
#[derive(Debug)]
pub struct Allocation {
    device: Device,
    ptr: DevicePtr,
    len: u64,
    birth: Birth,
}

impl Allocation {
    /// All of it.
    pub fn slice(&self) -> DeviceSlice<'_> {
        DeviceSlice { ptr: self.ptr, len: self.len, is_foreign: false, owner: PhantomData }
    }

    /// The first address.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A child's copy is not its own, and a thread of the parent's may have held a lock.
        if self.len > 0 && !self.birth.was_elsewhere() {
            // SAFETY: the address came from `alloc` and this is its only owner. A failure means
            // that the context is gone, and the memory with it.
            let _ = unsafe { self.device.backend.free(self.ptr) };
        }
    }
}

/// Page-locked host memory that frees itself.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Device,
    ptr: NonNull<u8>,
    len: usize,
    birth: Birth,
}

// SAFETY: the buffer is plain memory with one owner; the pointer is not tied to a thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// The first byte, for readers that fill the buffer by address (`io_uring`, a device copy).
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` initialised bytes at `ptr` (zeroed on allocation).
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            return;
        }
        // SAFETY: pointer and length are those of the allocation; owners keep the buffer until
        // the copies that use it are complete (the pool waits for its events).
        let _ = unsafe { self.device.backend.free_pinned(self.ptr, self.len) };
    }
}

/// A page-locked file mapping; dropping it ends the registration, not the mapping.
#[derive(Debug)]
pub struct HostRegistration {
    device: Device,
    ptr: *const u8,
    len: usize,
    birth: Birth,
}

// SAFETY: the registration is an address and a length; no method touches the memory.
unsafe impl Send for HostRegistration {}
// SAFETY: as above.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// The registered bytes' address.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether copies to `device` may come from it: always to the device that registered it, and on
    /// CUDA and `host` to all devices of the backend.
    pub fn serves(&self, device: DeviceId) -> bool {
        self.device.id() == device || self.device.backend.registers_for(device)
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            return;
        }
        // SAFETY: registered in `register_host`; users of the registration wait for their copies
        // before they drop it. A failure means that the context is gone.
        let _ = unsafe { self.device.backend.unregister_host(self.ptr, self.len) };
    }
}

/// A frame of physical memory.
#[derive(Debug, Clone)]
pub struct Frame {
    raw: Arc<dyn RawFrame>,
    len: u64,
    device: Device,
}

impl Frame {
    /// Length in bytes, a multiple of [`FRAME_BYTES`].
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A descriptor for another process; it keeps the memory alive by itself.
    pub fn export(&self) -> Result<OwnedFd> {
        self.raw.export().map_err(|error| self.device.name(error))
    }
}

/// A reserved range of device addresses with frames mapped into it.
#[derive(Debug)]
pub struct AddressRange {
    device: Device,
    ptr: DevicePtr,
    len: u64,
    /// Frames by offset; held so that a mapping never outlives its frame.
    mapped: Mutex<BTreeMap<u64, Frame>>,
}

impl AddressRange {
    /// The whole range, mapped or not.
    ///
    /// # Safety
    /// Only parts in which frames are mapped, and stay mapped, are used.
    pub unsafe fn slice(&self) -> DeviceSlice<'_> {
        DeviceSlice { ptr: self.ptr, len: self.len, is_foreign: false, owner: PhantomData }
    }

    /// Length in bytes, a multiple of [`FRAME_BYTES`].
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offsets at which frames are mapped, ascending.
    pub fn mapped(&self) -> Vec<u64> {
        self.lock().keys().copied().collect()
    }

    /// Maps `frame` at `offset`, a multiple of [`FRAME_BYTES`] from which on nothing is mapped for its length.
    pub fn map(&self, offset: u64, frame: &Frame, access: Access) -> Result<()> {
        let mut mapped = self.lock();
        let end = offset.checked_add(frame.len).filter(|end| offset.is_multiple_of(FRAME_BYTES) && *end <= self.len);
        let Some(end) = end else { return Err(self.bad(offset, "is not a frame of the range")) };
        let before = mapped.range(..end).next_back();
        if before.is_some_and(|(at, other)| at + other.len > offset) {
            return Err(self.bad(offset, "already holds a frame"));
        }
        let place = self.ptr.offset_by(offset);
        // SAFETY: the offset is a free frame-aligned place of this range, and the map keeps the
        // frame until it is unmapped.
        unsafe { self.device.backend.map_frame(place, &*frame.raw, frame.len, access) }
            .map_err(|error| self.device.name(error))?;
        mapped.insert(offset, frame.clone());
        Ok(())
    }

    /// Unmaps the frame at `offset` and returns it. The caller has waited for the work that uses
    /// it; work on other frames of the range may go on.
    ///
    /// # Safety
    /// No work in flight uses the frame through this range.
    pub unsafe fn unmap(&self, offset: u64) -> Result<Frame> {
        let mut mapped = self.lock();
        let Some(len) = mapped.get(&offset).map(Frame::len) else {
            return Err(self.bad(offset, "holds no frame"));
        };
        // SAFETY: a frame is mapped there, and the caller vouches for the work.
        unsafe { self.device.backend.unmap_frame(self.ptr.offset_by(offset), len) }
            .map_err(|error| self.device.name(error))?;
        mapped.remove(&offset).ok_or_else(|| self.bad(offset, "holds no frame"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Frame>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bad(&self, offset: u64, why: &str) -> Error {
        let detail = format!("offset {offset} of an address range of {} bytes {why}", self.len);
        Error::new(ErrorKind::BadArgument, detail).on(self.device.id())
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let mapped = std::mem::take(self.mapped.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (offset, frame) in &mapped {
            // SAFETY: the frame is mapped there, and dropping the range says that its work is
            // over. Failures mean that the context is gone.
            let _ = unsafe { self.device.backend.unmap_frame(self.ptr.offset_by(*offset), frame.len) };
        }
        // SAFETY: the range came from `reserve`, and nothing is mapped any more.
        let _ = unsafe { self.device.backend.unreserve(self.ptr, self.len) };
    }
}

/// A driver for storage transfers straight into device memory.
#[derive(Debug)]
pub struct DirectStorage {
    device: Device,
    raw: Box<dyn RawDirectStorage>,
}

impl DirectStorage {
    /// Prepares a file, opened with `O_DIRECT`; an error where it has no direct path.
    pub fn attach(&self, file: OwnedFd) -> Result<DirectFile> {
        self.raw
            .attach(file)
            .map(|raw| DirectFile { raw, _device: self.device.clone() })
            .map_err(|error| self.device.name(error))
    }
}

/// A file that can be read straight into device memory.
#[derive(Debug)]
pub struct DirectFile {
    raw: Box<dyn RawDirectFile>,
    _device: Device,
}

impl DirectFile {
    /// Offsets and lengths are multiples of this many bytes.
    pub fn alignment(&self) -> u64 {
        self.raw.alignment()
    }

    /// Reads `place.len()` bytes at `offset`; may be short, 0 at the end of the file. Returns when
    /// the bytes are in place.
    ///
    /// # Safety
    /// `place` is valid memory of this device until the call returns.
    pub unsafe fn read(&self, offset: u64, place: DeviceSlice<'_>) -> std::io::Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.raw.read(offset, place.ptr, place.len) }
    }
}

/// A loaded module.
#[derive(Debug, Clone)]
pub struct Module {
    device: Device,
    raw: Arc<dyn RawModule>,
}

impl Module {
    /// The device it was loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the module has a kernel of this name.
    pub fn has_kernel(&self, name: &str) -> bool {
        self.raw.has_kernel(name)
    }
}

/// An in-order queue of work on a device.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: Box<dyn RawStream>,
}

impl Stream {
    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues a copy of `dst.len()` bytes from host memory.
    ///
    /// # Safety
    /// `src` has `dst.len()` bytes; both ranges stay valid and `src` unwritten until the work
    /// completes.
    pub unsafe fn copy_to_device(&self, dst: DeviceSlice<'_>, src: *const u8) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw.copy_to_device(dst.ptr, src, dst.len) })
    }

    /// The same, and blocks until everything enqueued is done, whether that or the copy fails.
    ///
    /// # Safety
    /// `src` has `dst.len()` bytes, which nobody writes until the call returns.
    pub unsafe fn copy_to_device_and_wait(&self, dst: DeviceSlice<'_>, src: *const u8) -> Result<()> {
        if dst.is_empty() {
            return self.synchronize();
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw.copy_to_device_and_wait(dst.ptr, src, dst.len) })
    }

    /// Enqueues a copy of `src.len()` bytes to host memory.
    ///
    /// # Safety
    /// `dst` has `src.len()` bytes; both ranges stay valid and `dst` untouched until the work
    /// completes.
    pub unsafe fn copy_to_host(&self, dst: *mut u8, src: DeviceSlice<'_>) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw.copy_to_host(dst, src.ptr, src.len) })
    }

    /// Enqueues a copy between ranges of equal length that do not overlap.
    ///
    /// # Safety
    /// Both ranges stay valid until the work completes.
    pub unsafe fn copy_on_device(&self, dst: DeviceSlice<'_>, src: DeviceSlice<'_>) -> Result<()> {
        assert_eq!(dst.len, src.len, "source and destination have one length");
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw.copy_on_device(dst.ptr, src.ptr, dst.len) })
    }

    /// Enqueues filling a range with one byte value.
    ///
    /// # Safety
    /// The range stays valid until the work completes.
    pub unsafe fn fill(&self, dst: DeviceSlice<'_>, value: u8) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw.fill(dst.ptr, value, dst.len) })
    }

    /// Enqueues `kernel` of `module` on `groups` groups of `group_size` threads.
    ///
    /// # Safety
    /// The arguments are what the kernel expects; memory that they name stays valid until the
    /// work completes.
    pub unsafe fn launch(
        &self,
        module: &Module,
        kernel: &str,
        groups: u32,
        group_size: u32,
        args: &[KernelArg<'_>],
    ) -> Result<()> {
        let launch = Launch { module: &module.raw, kernel, groups, group_size, args };
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw.launch(&launch) })
    }

    /// Records an event after everything enqueued so far.
    pub fn record(&self) -> Result<Event> {
        self.name(self.raw.record()).map(|raw| Event { device: self.device.clone(), raw })
    }

    /// Makes later work of this stream wait for `event`, which may be of another device of the
    /// same backend on `cuda` and `host`. OpenCL gives each device a context of its own and
    /// refuses such an event: wait for it on the host there.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.name(self.raw.wait(&*event.raw))
    }

    /// Whether the stream's work is recorded into a graph at present (CUDA) instead of being done. Such a
    /// stream cannot wait for the host.
    pub fn is_capturing(&self) -> Result<bool> {
        self.name(self.raw.is_capturing())
    }

    /// Blocks until everything enqueued is done; reports a failure of any of it.
    pub fn synchronize(&self) -> Result<()> {
        self.name(self.raw.synchronize())
    }

    /// Copies `bytes` to `dst` and waits; lengths are equal.
    pub fn upload(&self, dst: DeviceSlice<'_>, bytes: &[u8]) -> Result<()> {
        assert_eq!(dst.len, bytes.len() as u64, "source and destination have one length");
        // SAFETY: `bytes` is borrowed until the synchronisation below has waited for the copy.
        let copied = unsafe { self.copy_to_device(dst, bytes.as_ptr()) };
        copied.and(self.synchronize())
    }

    /// Copies `src` to `bytes` and waits; lengths are equal.
    pub fn download(&self, bytes: &mut [u8], src: DeviceSlice<'_>) -> Result<()> {
        assert_eq!(src.len, bytes.len() as u64, "source and destination have one length");
        // SAFETY: `bytes` is borrowed until the synchronisation below has waited for the copy.
        let copied = unsafe { self.copy_to_host(bytes.as_mut_ptr(), src) };
        copied.and(self.synchronize())
    }

    fn name<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.device.name(error))
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: Box<dyn RawEvent>,
}

impl Event {
    /// Whether the work before it is done; an error if it failed.
    pub fn query(&self) -> Result<bool> {
        self.raw.query().map_err(|error| self.device.name(error))
    }

    /// Blocks until the work before it is done.
    pub fn wait(&self) -> Result<()> {
        self.raw.wait().map_err(|error| self.device.name(error))
    }
}
