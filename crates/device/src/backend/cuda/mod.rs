//! NVIDIA GPUs through the driver API.
//!
//! ```text
//!   mod      memory and address ranges            stream   copies, launches, events
//!   probe    what is there, without a context     module   compiling, caching, loading
//!   context  the primary context                  gate     waits for the host, by words
//!   pointer  whose memory an address is           frame    physical memory
//!   nvml     energy                               cufile   storage, straight to the device
//!   sys, abi, status   the driver: functions; types and numbers; what its answers mean
//!   nvrtc              the compiler
//! ```
//!
//! The driver and the compiler are loaded at run time, so a machine without them is a normal
//! case. All state lives in the driver; this layer holds handles, each with the context that it
//! belongs to, so that the context outlives them. The driver orders and defers destruction of
//! streams and frames by itself; unloading a module waits for the context.

mod abi;
mod context;
mod cufile;
mod frame;
mod gate;
mod module;
mod nvml;
mod nvrtc;
mod pointer;
mod probe;
mod status;
mod stream;
mod sys;
mod words;

pub(crate) use pointer::{locate, locate_stream};
pub(crate) use probe::report;

use crate::backend::{Backend, RawDirectStorage, RawEnergyMeter, RawEvent, RawFrame, RawModule, RawStream};
use crate::kernel_cache::KernelCache;
use crate::{
    Access, BackendKind, DeviceId, DeviceInfo, DevicePtr, Error, ErrorKind, FRAME_BYTES, MemoryInfo, ModuleSource,
    Result,
};
use abi::{AccessDescription, FrameProperties, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, Status};
use context::Context;
use frame::CudaFrame;
use module::CudaModule;
use status::{foreign, no_pinned_memory};
use std::any::Any;
use std::ffi::c_void;
use std::fmt::Arguments;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use stream::CudaStream;

/// Opens device `index` and creates, or joins, its primary context.
pub(crate) fn open(index: u32) -> Result<Arc<dyn Backend>> {
    open_with(index, Context::retain)
}

/// Opens a device in one of its contexts; 0 is the primary one.
pub(crate) fn open_in(index: u32, context: u64) -> Result<Arc<dyn Backend>> {
    open_with(index, |cuda, device| match context {
        0 => Context::retain(cuda, device),
        context => Ok(Context::borrow(cuda, device, abi::ContextHandle(context as usize))),
    })
}

/// The same, with gates as on a GPU whose streams cannot wait for words.
#[cfg(test)]
fn open_without_words(index: u32) -> Result<Arc<dyn Backend>> {
    open_with(index, |cuda, device| Context::retain_with(cuda, device, false))
}

fn open_with(
    index: u32,
    retain: impl FnOnce(&'static sys::Cuda, abi::Ordinal) -> Result<Arc<Context>>,
) -> Result<Arc<dyn Backend>> {
    let (cuda, version) = probe::initialised(&mut Vec::new())?;
    let info = probe::describe(cuda, index, version)?;
    let context = retain(cuda, probe::ordinal(cuda, index)?)?;
    Ok(Arc::new(CudaBackend { info, context, version, cache: KernelCache::of_user() }))
}

/// One open GPU.
#[derive(Debug)]
struct CudaBackend {
    info: DeviceInfo,
    context: Arc<Context>,
    /// The CUDA version that the driver supports.
    version: u32,
    cache: KernelCache,
}

impl CudaBackend {
    fn check(&self, status: Status, doing: Arguments<'_>) -> Result<()> {
        self.context.cuda.check(status, doing)
    }

    /// As `check`, with what was free if the device had no memory left for `len` bytes.
    fn check_memory(&self, status: Status, len: u64, doing: Arguments<'_>) -> Result<()> {
        if status != OUT_OF_MEMORY {
            return self.check(status, doing);
        }
        let free = self.memory().map_or_else(|_| "an unknown number of".to_owned(), |memory| memory.free.to_string());
        let detail = format!(
            "{doing} failed: {len} bytes requested, {free} bytes free; lower the memory budget or stop other programs on \
             this GPU"
        );
        Err(Error::new(ErrorKind::OutOfMemory, detail))
    }

    fn is_exportable(&self) -> bool {
        self.info.capabilities.export_fd.is_yes()
    }

    fn require(capability: &crate::Capability, what: &str) -> Result<()> {
        capability.reason().map_or(Ok(()), |reason| {
            Err(Error::new(ErrorKind::Unsupported, format!("{what} is not supported by this device: {reason}")))
        })
    }

    /// Whether a frame has at least `len` bytes. The driver tells nobody the length of what was imported, but it maps
    /// no more than there is.
    fn has_bytes(&self, handle: u64, len: u64) -> Result<bool> {
        let place = self.reserve(len)?;
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: nothing is mapped in the range, which is as long and nobody else's.
        let status = unsafe { (self.context.cuda.cuMemMap)(place.0, len as usize, 0, handle, 0) };
        if status == SUCCESS {
            // SAFETY: the frame was just mapped there, and nothing could use it without access.
            unsafe { (self.context.cuda.cuMemUnmap)(place.0, len as usize) };
        }
        // SAFETY: as above, and nothing is mapped any more.
        unsafe { self.unreserve(place, len) }?;
        match status {
            // The second of what was imported (driver 580).
            INVALID_VALUE | NOT_SUPPORTED => Ok(false),
            status => self.check(status, format_args!("asking for the length of an imported frame")).map(|()| true),
        }
    }

    fn frame(&self, handle: u64) -> Box<dyn RawFrame> {
        Box::new(CudaFrame { context: self.context.clone(), handle, is_exportable: self.is_exportable() })
    }
}

impl Backend for CudaBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let _entered = self.context.enter_relaxed()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver stores two sizes.
        let status = unsafe { (self.context.cuda.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.check(status, format_args!("querying free memory"))?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn alloc(&self, len: u64) -> Result<DevicePtr> {
        let _entered = self.context.enter_relaxed()?;
        let mut ptr = 0;
        // SAFETY: the driver stores one address.
        let status = unsafe { (self.context.cuda.cuMemAlloc_v2)(&raw mut ptr, len as usize) };
        self.check_memory(status, len, format_args!("allocating device memory"))?;
        Ok(DevicePtr(ptr))
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the caller gives up an allocation; the driver waits for work that uses it.
        let status = unsafe { (self.context.cuda.cuMemFree_v2)(ptr.0) };
        self.check(status, format_args!("freeing device memory at {ptr}"))
    }

    fn alloc_pinned(&self, len: usize) -> Result<NonNull<u8>> {
        let _entered = self.context.enter_relaxed()?;
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the driver stores one address.
        let status = unsafe { (self.context.cuda.cuMemHostAlloc)(&raw mut ptr, len, abi::HOST_PORTABLE) };
        if status == OUT_OF_MEMORY {
            return Err(no_pinned_memory(format_args!("allocating {len} bytes of page-locked host memory")));
        }
        self.check(status, format_args!("allocating {len} bytes of page-locked host memory"))?;
        NonNull::new(ptr.cast())
            .ok_or_else(|| no_pinned_memory(format_args!("allocating {len} bytes of page-locked host memory")))
    }

    unsafe fn free_pinned(&self, ptr: NonNull<u8>, _len: usize) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the caller gives up memory of `alloc_pinned` that no copy uses.
        let status = unsafe { (self.context.cuda.cuMemFreeHost)(ptr.as_ptr().cast()) };
        self.check(status, format_args!("freeing page-locked memory"))
    }

    unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<()> {
        Self::require(&self.info.capabilities.host_register_read_only, "page-locking a file mapping")?;
        let _entered = self.context.enter_relaxed()?;
        let _turn = self.context.registering();
        let flags = abi::HOST_REGISTER_READ_ONLY | abi::HOST_PORTABLE;
        // SAFETY: the caller keeps the mapping; the driver only reads through the registration.
        let status = unsafe { (self.context.cuda.cuMemHostRegister_v2)(ptr.cast_mut().cast(), len, flags) };
        if status == OUT_OF_MEMORY {
            return Err(no_pinned_memory(format_args!("page-locking {len} bytes of a file mapping")));
        }
        self.check(status, format_args!("page-locking {len} bytes of a file mapping at {ptr:p}"))
    }

    /// `CU_MEMHOSTREGISTER_PORTABLE`: page-locked memory of all contexts.
    fn registers_for(&self, other: DeviceId) -> bool {
        other.backend == BackendKind::Cuda
    }

    unsafe fn unregister_host(&self, ptr: *const u8, _len: usize) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        let _turn = self.context.registering();
        // SAFETY: the caller registered the range, and no copy from it is in flight.
        let status = unsafe { (self.context.cuda.cuMemHostUnregister)(ptr.cast_mut().cast()) };
        self.check(status, format_args!("unregistering the file mapping at {ptr:p}"))
    }

    fn reserve(&self, len: u64) -> Result<DevicePtr> {
        Self::require(&self.info.capabilities.virtual_memory, "an address range")?;
        let _entered = self.context.enter_relaxed()?;
        let mut ptr = 0;
        // SAFETY: the driver stores one address.
        let status =
            unsafe { (self.context.cuda.cuMemAddressReserve)(&raw mut ptr, len as usize, FRAME_BYTES as usize, 0, 0) };
        self.check(status, format_args!("reserving {len} bytes of device addresses"))?;
        Ok(DevicePtr(ptr))
    }

    unsafe fn unreserve(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the caller gives up a whole reservation with nothing mapped.
        let status = unsafe { (self.context.cuda.cuMemAddressFree)(ptr.0, len as usize) };
        self.check(status, format_args!("releasing {len} bytes of device addresses at {ptr}"))
    }

    fn create_frame(&self, len: u64) -> Result<Box<dyn RawFrame>> {
        Self::require(&self.info.capabilities.virtual_memory, "a frame of device memory")?;
        let _entered = self.context.enter_relaxed()?;
        let properties = FrameProperties::on(self.context.device, self.is_exportable());
        let mut handle = 0;
        // SAFETY: the properties live through the call, and the driver stores one handle.
        let status =
            unsafe { (self.context.cuda.cuMemCreate)(&raw mut handle, len as usize, &raw const properties, 0) };
        self.check_memory(status, len, format_args!("creating a frame of device memory"))?;
        Ok(self.frame(handle))
    }

    fn import_frame(&self, fd: OwnedFd, len: u64) -> Result<Box<dyn RawFrame>> {
        Self::require(&self.info.capabilities.export_fd, "importing a frame")?;
        let _entered = self.context.enter_relaxed()?;
        let mut handle = 0;
        // The driver takes the descriptor's number in the place of a pointer.
        let shared = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the driver reads the descriptor, which stays open through the call and which
        // it duplicates, and stores one handle.
        let status =
            unsafe { (self.context.cuda.cuMemImportFromShareableHandle)(&raw mut handle, shared, abi::HANDLE_FD) };
        self.check(status, format_args!("importing a frame of device memory from a descriptor"))?;
        let frame = self.frame(handle);
        if !self.has_bytes(handle, len)? || self.has_bytes(handle, len + FRAME_BYTES)? {
            let detail = format!("the descriptor is not an exported frame of {len} bytes: it has another length");
            return Err(Error::new(ErrorKind::BadArgument, detail));
        }
        Ok(frame)
    }

    unsafe fn map_frame(&self, ptr: DevicePtr, frame: &dyn RawFrame, len: u64, access: Access) -> Result<()> {
        let frame = (frame as &dyn Any).downcast_ref::<CudaFrame>().ok_or_else(|| foreign("frame"))?;
        let _entered = self.context.enter_relaxed()?;
        let (cuda, len) = (self.context.cuda, len as usize);
        // SAFETY: the caller names a free, frame-aligned place of a reserved range.
        let status = unsafe { (cuda.cuMemMap)(ptr.0, len, 0, frame.handle, 0) };
        self.check(status, format_args!("mapping a frame at {ptr}"))?;
        let own = AccessDescription::of(self.context.device, access);
        let others = self.context.neighbours().map(|device| AccessDescription::of(device, Access::Read));
        // Without their access the driver copies from a mapped frame to another device by the host, at a sixth of the rate
        // of the link between them.
        let all: Vec<_> = std::iter::once(own).chain(others).collect();
        // SAFETY: the frame was just mapped there, and the descriptions live through the call.
        let set = |count: usize| unsafe { (cuda.cuMemSetAccess)(ptr.0, len, all.as_ptr(), count) };
        let status = match set(all.len()) {
            SUCCESS => SUCCESS,
            _ => set(1),
        };
        self.check(status, format_args!("enabling access to the frame mapped at {ptr}")).inspect_err(|_| {
            // SAFETY: the frame was just mapped there, and nothing could use it without access.
            unsafe { (cuda.cuMemUnmap)(ptr.0, len) };
        })
    }

    unsafe fn let_read(&self, ptr: DevicePtr, len: u64, peer: &dyn Backend) -> Result<bool> {
        let Some(peer) = peer.as_peer().and_then(<dyn Any>::downcast_ref::<Arc<Context>>) else { return Ok(false) };
        if peer.device == self.context.device {
            return Ok(true);
        }
        if !self.context.is_reached_by(peer.device) {
            return Ok(false);
        }
        let _entered = self.context.enter_relaxed()?;
        let access = AccessDescription::of(peer.device, Access::Read);
        // SAFETY: the caller says that a frame is mapped there, and the description lives through the call.
        let status = unsafe { (self.context.cuda.cuMemSetAccess)(ptr.0, len as usize, &raw const access, 1) };
        Ok(status == SUCCESS)
    }

    unsafe fn unmap_frame(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the caller names a mapped frame that no work in flight uses.
        let status = unsafe { (self.context.cuda.cuMemUnmap)(ptr.0, len as usize) };
        self.check(status, format_args!("unmapping the frame at {ptr}"))
    }

    fn create_stream(&self) -> Result<Box<dyn RawStream>> {
        Ok(Box::new(CudaStream::create(&self.context)?))
    }

    unsafe fn adopt_stream(&self, raw: u64) -> Result<Box<dyn RawStream>> {
        Ok(Box::new(CudaStream::adopt(&self.context, raw)))
    }

    fn default_stream(&self) -> Result<Box<dyn RawStream>> {
        Ok(Box::new(CudaStream::legacy(&self.context)))
    }

    /// The legacy stream has the work of all streams that were not made non-blocking before its own, so that the
    /// default streams of all threads need no question of their own.
    fn default_work(&self) -> Result<Option<Box<dyn RawEvent>>> {
        CudaStream::legacy(&self.context).work()
    }

    fn is_alive(&self) -> bool {
        self.context.is_as_it_was()
    }

    fn direct_storage(&self) -> Result<Box<dyn RawDirectStorage>> {
        Ok(Box::new(cufile::Storage::open(&self.context)?))
    }

    fn as_peer(&self) -> Option<&dyn Any> {
        Some(&self.context)
    }

    fn energy_meter(&self) -> Result<Box<dyn RawEnergyMeter>> {
        let no_counter = |reason: String| {
            Error::new(ErrorKind::Unsupported, format!("the device's energy cannot be read: {reason}"))
        };
        Ok(Box::new(nvml::Meter::open(&self.info.identity).map_err(no_counter)?))
    }

    fn load_module(&self, source: &ModuleSource) -> Result<Arc<dyn RawModule>> {
        Ok(Arc::new(CudaModule::load(&self.context, self.version, &self.cache, source)?))
    }
}
