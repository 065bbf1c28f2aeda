//! Any OpenCL 1.2 device: AMD's and Intel's GPUs, and processors through PoCL.
//!
//! ```text
//!   mod      memory                              stream   copies, launches, events
//!   probe    platforms and devices               module   source, binaries, kernels
//!   addresses   numbers that stand for buffers   sys      the loader
//! ```
//!
//! OpenCL has buffers where the other backends have addresses, so this one hands out numbers and
//! finds the buffer behind a number on each use. It has no address ranges, and no way to share
//! memory or to page-lock a file mapping: the capabilities say so and the methods refuse.
//!
//! A device's context lives as long as the process. Releasing the last one makes some drivers
//! (PoCL 3.1) tear down threads that a later context needs, and it costs a few pages to keep.

mod addresses;
mod module;
mod probe;
mod stream;
mod sys;

pub(super) use probe::report;

use super::{Backend, RawFrame, RawModule, RawStream};
use crate::kernel_cache::KernelCache;
use crate::{Access, Capability, DeviceInfo, DevicePtr, Error, ErrorKind, MemoryInfo, ModuleSource, Result};
use addresses::Addresses;
use module::OpenClModule;
use probe::Found;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use stream::{OpenClStream, Queue};
use sys::{ContextHandle, DeviceHandle, MemoryHandle, OpenCl};

/// Page size that callers of pinned memory rely on, for direct I/O among others.
const PAGE_BYTES: usize = 4096;

/// Opens device `index`.
pub(super) fn open(index: u32) -> Result<Arc<dyn Backend>> {
    let cl = probe::loader()?;
    let devices = probe::devices(cl)?;
    let found = devices.get(index as usize).ok_or_else(|| {
        let detail = format!("there is no such device: OpenCL offers {}, counted from 0", devices.len());
        Error::new(ErrorKind::Missing, detail)
    })?;
    let info = probe::describe(cl, found, index)?;
    let context = Context::of(cl, found, info.memory_bytes)?;
    let control = Queue::create(&context)?;
    Ok(Arc::new(OpenClBackend { info, context, control, cache: KernelCache::of_user() }))
}

/// A device's context with its memory; all openings of one device share it.
#[derive(Debug)]
struct Context {
    cl: &'static OpenCl,
    handle: ContextHandle,
    device: DeviceHandle,
    /// Decides, beside the source, whether a compiled binary fits.
    description: String,
    buffers: RwLock<Addresses<Arc<Buffer>>>,
    pinned: Mutex<HashMap<usize, Pinned>>,
    memory_bytes: u64,
    /// OpenCL does not tell what is free, so what this process allocated is counted.
    allocated: AtomicU64,
}

/// A buffer; released on drop, which the driver defers until no enqueued work uses it.
#[derive(Debug)]
struct Buffer {
    cl: &'static OpenCl,
    handle: MemoryHandle,
}

/// A buffer in host memory that is mapped for as long as it exists.
#[derive(Debug)]
struct Pinned {
    buffer: Buffer,
    mapped: usize,
}

impl Context {
    fn of(cl: &'static OpenCl, found: &Found, memory_bytes: u64) -> Result<Arc<Self>> {
        static OPEN: Mutex<Vec<Arc<Context>>> = Mutex::new(vec![]);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = open.iter().find(|context| context.device == found.device) {
            return Ok(context.clone());
        }
        let context = Arc::new(Self::create(cl, found, memory_bytes)?);
        open.push(context.clone());
        Ok(context)
    }

    fn create(cl: &'static OpenCl, found: &Found, memory_bytes: u64) -> Result<Self> {
        /// `CL_CONTEXT_PLATFORM`.
        const PLATFORM: isize = 0x1084;
        let properties = [PLATFORM, found.platform.0 as isize, 0];
        let mut status = 0;
        // SAFETY: the property list ends in 0, the device array has one entry, no callback.
        let handle = unsafe {
            (cl.clCreateContext)(
                properties.as_ptr(),
                1,
                &raw const found.device,
                std::ptr::null(),
                std::ptr::null_mut(),
                &raw mut status,
            )
        };
        sys::check(status, format_args!("creating an OpenCL context"))?;
        let platform = |what| probe::platform_text(cl, found.platform, what);
        let device = |what| probe::device_text(cl, found.device, what);
        let description = [
            platform(sys::PLATFORM_NAME),
            platform(sys::PLATFORM_VERSION),
            device(sys::DEVICE_NAME),
            device(sys::DEVICE_VERSION),
            device(sys::DRIVER_VERSION),
        ];
        Ok(Self {
            cl,
            handle,
            device: found.device,
            description: description.join("\n"),
            buffers: RwLock::default(),
            pinned: Mutex::default(),
            memory_bytes,
            allocated: AtomicU64::new(0),
        })
    }

    fn create_buffer(&self, len: usize, flags: u64) -> Result<Buffer, sys::Status> {
        let mut status = 0;
        // SAFETY: no host pointer is given; the driver stores one status.
        let handle =
            unsafe { (self.cl.clCreateBuffer)(self.handle, flags, len, std::ptr::null_mut(), &raw mut status) };
        if status == sys::SUCCESS { Ok(Buffer { cl: self.cl, handle }) } else { Err(status) }
    }

    /// The buffer behind `len` bytes at `ptr`, and the offset in it.
    fn find(&self, ptr: DevicePtr, len: u64) -> Result<(Arc<Buffer>, usize)> {
        let found = self.buffers.read().unwrap_or_else(PoisonError::into_inner).find(ptr.0, len);
        let (buffer, offset) = found.ok_or_else(|| not_allocated(ptr, len))?;
        Ok((buffer, offset as usize))
    }

    /// The buffer behind `ptr`, the offset in it, and how many bytes follow.
    fn rest(&self, ptr: DevicePtr) -> Result<(Arc<Buffer>, usize, usize)> {
        let found = self.buffers.read().unwrap_or_else(PoisonError::into_inner).rest(ptr.0);
        let (buffer, offset, rest) = found.ok_or_else(|| not_allocated(ptr, 1))?;
        Ok((buffer, offset as usize, rest as usize))
    }
}

fn not_allocated(ptr: DevicePtr, len: u64) -> Error {
    Error::new(ErrorKind::BadArgument, format!("{len} bytes at {ptr} do not lie inside one allocation of this device"))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner.
        unsafe { (self.cl.clReleaseMemObject)(self.handle) };
    }
}

/// One open device.
#[derive(Debug)]
struct OpenClBackend {
    info: DeviceInfo,
    context: Arc<Context>,
    /// Maps and unmaps pinned memory.
    control: Arc<Queue>,
    cache: KernelCache,
}

impl OpenClBackend {
    fn unsupported<T>(capability: &Capability, what: &str) -> Result<T> {
        let reason = capability.reason().unwrap_or("the device has no way to do it");
        Err(Error::new(ErrorKind::Unsupported, format!("{what} is not possible here: {reason}")))
    }

    /// Counts `len` bytes as allocated if the device has them.
    fn take(&self, len: u64) -> Result<()> {
        let context = &self.context;
        let fits = |allocated: u64| allocated.checked_add(len).filter(|&sum| sum <= context.memory_bytes);
        context.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(|_| ()).map_err(|allocated| {
            let free = context.memory_bytes - allocated;
            let detail =
                format!("allocating device memory failed: {len} bytes were asked for and {free} bytes are free");
            Error::new(ErrorKind::OutOfMemory, detail)
        })
    }

    fn give_back(&self, len: u64) {
        self.context.allocated.fetch_sub(len, Ordering::Relaxed);
    }

    fn refused(&self, len: u64, status: sys::Status) -> Error {
        let context = &self.context;
        let largest = probe::device_number(context.cl, context.device, sys::DEVICE_MAX_MEM_ALLOC_SIZE);
        let why = sys::describe(status);
        let detail = format!(
            "allocating {len} bytes of device memory failed: {why}; this device gives at most {largest} bytes at once"
        );
        Error::new(ErrorKind::OutOfMemory, detail)
    }
}

impl Backend for OpenClBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let total = self.context.memory_bytes;
        Ok(MemoryInfo { free: total.saturating_sub(self.context.allocated.load(Ordering::Relaxed)), total })
    }

    fn alloc(&self, len: u64) -> Result<DevicePtr> {
        self.take(len)?;
        let buffer = self.context.create_buffer(len as usize, sys::MEM_READ_WRITE).map_err(|status| {
            self.give_back(len);
            self.refused(len, status)
        })?;
        let mut buffers = self.context.buffers.write().unwrap_or_else(PoisonError::into_inner);
        Ok(DevicePtr(buffers.insert(len, Arc::new(buffer))))
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        let removed = self.context.buffers.write().unwrap_or_else(PoisonError::into_inner).remove(ptr.0);
        let (len, _buffer) = removed.ok_or_else(|| not_allocated(ptr, 1))?;
        self.give_back(len);
        Ok(())
    }

    /// Host memory of the driver's, which copies from and to it recognise by its address.
    fn alloc_pinned(&self, len: usize) -> Result<NonNull<u8>> {
        let refused = |status| {
            let detail = format!("getting {len} bytes of page-locked host memory failed: {}", sys::describe(status));
            Error::new(ErrorKind::OutOfPinnedMemory, detail)
        };
        // Drivers align a mapping to a cache line only; one page more leaves room to align it.
        let padded = len.checked_add(PAGE_BYTES).ok_or_else(|| refused(sys::INVALID_BUFFER_SIZE))?;
        let flags = sys::MEM_READ_WRITE | sys::MEM_ALLOC_HOST_PTR;
        let buffer = self.context.create_buffer(padded, flags).map_err(refused)?;
        let mapped = self.control.map(buffer.handle, padded).map_err(refused)?;
        let aligned = mapped.map_addr(|address| address.next_multiple_of(PAGE_BYTES));
        let ptr = NonNull::new(aligned).ok_or_else(|| refused(sys::OUT_OF_HOST_MEMORY))?;
        let pinned = Pinned { buffer, mapped: mapped.expose_provenance() };
        self.context.pinned.lock().unwrap_or_else(PoisonError::into_inner).insert(aligned.addr(), pinned);
        Ok(ptr)
    }

    unsafe fn free_pinned(&self, ptr: NonNull<u8>, _len: usize) -> Result<()> {
        let mut pinned = self.context.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = pinned.remove(&ptr.as_ptr().addr());
        drop(pinned);
        let pinned =
            removed.ok_or_else(|| Error::new(ErrorKind::BadArgument, "this is no pinned memory of the device"))?;
        self.control.unmap(pinned.buffer.handle, std::ptr::with_exposed_provenance_mut(pinned.mapped))
    }

    unsafe fn register_host(&self, _ptr: *const u8, _len: usize) -> Result<()> {
        Self::unsupported(&self.info.capabilities.host_register_read_only, "page-locking a file mapping")
    }

    unsafe fn unregister_host(&self, _ptr: *const u8, _len: usize) -> Result<()> {
        Self::unsupported(&self.info.capabilities.host_register_read_only, "page-locking a file mapping")
    }

    fn reserve(&self, _len: u64) -> Result<DevicePtr> {
        Self::unsupported(&self.info.capabilities.virtual_memory, "an address range")
    }

    unsafe fn unreserve(&self, _ptr: DevicePtr, _len: u64) -> Result<()> {
        Self::unsupported(&self.info.capabilities.virtual_memory, "an address range")
    }

    fn create_frame(&self, _len: u64) -> Result<Box<dyn RawFrame>> {
        Self::unsupported(&self.info.capabilities.virtual_memory, "a frame of device memory")
    }

    fn import_frame(&self, _fd: OwnedFd) -> Result<Box<dyn RawFrame>> {
        Self::unsupported(&self.info.capabilities.export_fd, "importing a frame")
    }

    unsafe fn map_frame(&self, _ptr: DevicePtr, _frame: &dyn RawFrame, _len: u64, _access: Access) -> Result<()> {
        Self::unsupported(&self.info.capabilities.virtual_memory, "mapping a frame")
    }

    unsafe fn unmap_frame(&self, _ptr: DevicePtr, _len: u64) -> Result<()> {
        Self::unsupported(&self.info.capabilities.virtual_memory, "mapping a frame")
    }

    fn create_stream(&self) -> Result<Box<dyn RawStream>> {
        Ok(Box::new(OpenClStream::create(&self.context)?))
    }

    unsafe fn adopt_stream(&self, _raw: u64) -> Result<Box<dyn RawStream>> {
        let detail =
            "a stream of the caller's cannot be adopted: an OpenCL queue works only on its own context's memory";
        Err(Error::new(ErrorKind::Unsupported, detail))
    }

    fn load_module(&self, source: &ModuleSource) -> Result<Arc<dyn RawModule>> {
        Self::require_compiler(&self.info.capabilities.kernels)?;
        Ok(Arc::new(OpenClModule::load(&self.context, &self.cache, source)?))
    }
}

impl OpenClBackend {
    fn require_compiler(kernels: &Capability) -> Result<()> {
        if kernels.is_yes() { Ok(()) } else { Self::unsupported(kernels, "compiling a kernel") }
    }
}

#[cfg(test)]
mod tests;
