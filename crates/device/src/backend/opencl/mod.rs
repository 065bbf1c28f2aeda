//! Any OpenCL 1.2 device: AMD's and Intel's GPUs, and processors through PoCL.
//!
//! ```text
//!   mod        memory                              stream   copies and launches
//!   context    buffers and what they live in       queue    commands in order, and their failures
//!   addresses  numbers that stand for buffers      event    points in a queue, gates
//!   probe      platforms and devices               module   source, binaries, kernels
//!   sys, abi, status   the loader: functions; types and numbers; what the answers mean
//! ```
//!
//! OpenCL has buffers where the other backends have addresses, so this one hands out numbers and
//! finds the buffer behind a number on each use. It has no address ranges, and no way to share
//! memory or to page-lock a file mapping: the capabilities say so and the methods refuse.

mod abi;
mod addresses;
mod context;
mod event;
mod module;
mod probe;
mod queue;
mod status;
mod stream;
mod sys;

pub(crate) use probe::report;

use crate::backend::{Backend, RawFrame, RawModule, RawStream};
use crate::kernel_cache::KernelCache;
use crate::{Access, Capability, DeviceInfo, DevicePtr, Error, ErrorKind, MemoryInfo, ModuleSource, Result};
use context::{Context, Pinned, not_allocated};
use module::OpenClModule;
use queue::Queue;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use stream::OpenClStream;

/// Page size that callers of pinned memory rely on, for direct I/O among others.
const PAGE_BYTES: usize = 4096;

/// Opens device `index`.
pub(crate) fn open(index: u32) -> Result<Arc<dyn Backend>> {
    let cl = probe::loader()?;
    let devices = probe::devices(cl)?;
    let found = devices.get(index as usize).ok_or_else(|| {
        let detail = format!("no such device: OpenCL offers {}, numbered from 0", devices.len());
        Error::new(ErrorKind::Missing, detail)
    })?;
    let info = probe::describe(cl, found, index)?;
    let context = Context::of(cl, found, info.memory_bytes)?;
    let control = Queue::create(&context)?;
    Ok(Arc::new(OpenClBackend { info, context, control, cache: KernelCache::of_user() }))
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
        Err(Error::new(ErrorKind::Unsupported, format!("{what} is not supported by this device: {reason}")))
    }

    /// Counts `len` bytes as allocated if the device has them.
    fn take(&self, len: u64) -> Result<()> {
        let context = &self.context;
        let fits = |allocated: u64| allocated.checked_add(len).filter(|&sum| sum <= context.memory_bytes);
        context.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(|_| ()).map_err(|allocated| {
            let free = context.memory_bytes - allocated;
            let detail = format!("allocating device memory failed: {len} bytes requested, {free} bytes free");
            Error::new(ErrorKind::OutOfMemory, detail)
        })
    }

    fn give_back(&self, len: u64) {
        self.context.allocated.fetch_sub(len, Ordering::Relaxed);
    }

    fn refused(&self, len: u64, status: abi::Status) -> Error {
        let context = &self.context;
        let largest = probe::device_number(context.cl, context.device, abi::DEVICE_MAX_MEM_ALLOC_SIZE);
        let why = status::describe(status);
        let detail = format!(
            "allocating {len} bytes of device memory failed: {why}; the largest allocation on this device is {largest} bytes"
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
        let buffer = self.context.create_buffer(len as usize, abi::MEM_READ_WRITE).map_err(|status| {
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
            let detail =
                format!("allocating {len} bytes of page-locked host memory failed: {}", status::describe(status));
            Error::new(ErrorKind::OutOfPinnedMemory, detail)
        };
        // Drivers align a mapping to a cache line only; one page more leaves room to align it.
        let padded = len.checked_add(PAGE_BYTES).ok_or_else(|| refused(abi::INVALID_BUFFER_SIZE))?;
        let flags = abi::MEM_READ_WRITE | abi::MEM_ALLOC_HOST_PTR;
        let buffer = self.context.create_buffer(padded, flags).map_err(refused)?;
        let mapped = self.control.map(buffer.handle, padded).map_err(refused)?;
        let aligned = mapped.map_addr(|address| address.next_multiple_of(PAGE_BYTES));
        let ptr = NonNull::new(aligned).ok_or_else(|| refused(abi::OUT_OF_HOST_MEMORY))?;
        let pinned = Pinned { buffer, mapped: mapped.expose_provenance() };
        self.context.pinned.lock().unwrap_or_else(PoisonError::into_inner).insert(aligned.addr(), pinned);
        Ok(ptr)
    }

    unsafe fn free_pinned(&self, ptr: NonNull<u8>, _len: usize) -> Result<()> {
        let mut pinned = self.context.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = pinned.remove(&ptr.as_ptr().addr());
        drop(pinned);
        let pinned = removed
            .ok_or_else(|| Error::new(ErrorKind::BadArgument, "the address is not pinned memory of this device"))?;
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

    fn import_frame(&self, _fd: OwnedFd, _len: u64) -> Result<Box<dyn RawFrame>> {
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

    fn loss(&self) -> Option<Error> {
        self.control.finish().err().filter(|error| error.kind() == ErrorKind::Lost)
    }

    unsafe fn adopt_stream(&self, _raw: u64) -> Result<Box<dyn RawStream>> {
        let detail = "streams cannot be adopted: an OpenCL queue can only use memory of its own context";
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
