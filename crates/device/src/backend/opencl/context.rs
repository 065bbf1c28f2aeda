//! A device's context, and the memory in it.
//!
//! It lives as long as the process. Releasing the last one makes some drivers
//! (PoCL 3.1) tear down threads that a later context needs, and it costs a few pages to keep.

use super::abi::{self, ContextHandle, DeviceHandle, MemoryHandle, Status};
use super::addresses::Addresses;
use super::probe::{self, Found};
use super::status::check;
use super::sys::OpenCl;
use crate::{DevicePtr, Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A device's context with its memory; all openings of one device share it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) cl: &'static OpenCl,
    pub(super) handle: ContextHandle,
    pub(super) device: DeviceHandle,
    /// Decides, beside the source, whether a compiled binary fits.
    pub(super) description: String,
    pub(super) buffers: RwLock<Addresses<Arc<Buffer>>>,
    pub(super) pinned: Mutex<HashMap<usize, Pinned>>,
    pub(super) memory_bytes: u64,
    /// OpenCL does not tell what is free, so what this process allocated is counted.
    pub(super) allocated: AtomicU64,
}

/// A buffer; released on drop, which the driver defers until no enqueued work uses it.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) cl: &'static OpenCl,
    pub(super) handle: MemoryHandle,
}

/// A buffer in host memory that is mapped for as long as it exists.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) buffer: Buffer,
    pub(super) mapped: usize,
}

impl Context {
    pub(super) fn of(cl: &'static OpenCl, found: &Found, memory_bytes: u64) -> Result<Arc<Self>> {
        static OPEN: Mutex<Vec<Arc<Context>>> = Mutex::new(vec![]);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = open.iter().find(|context| context.device == found.device) {
            return Ok(context.clone());
        }
        let context = Arc::new(Self::create(cl, found, memory_bytes)?);
        open.push(context.clone());
        Ok(context)
    }

    pub(super) fn create(cl: &'static OpenCl, found: &Found, memory_bytes: u64) -> Result<Self> {
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
        // One that is not available was never there.
        check(status, format_args!("creating an OpenCL context")).map_err(|error| match status {
            abi::DEVICE_NOT_AVAILABLE => Error::new(ErrorKind::Missing, error.detail()),
            _ => error,
        })?;
        let platform = |what| probe::platform_text(cl, found.platform, what);
        let device = |what| probe::device_text(cl, found.device, what);
        let description = [
            platform(abi::PLATFORM_NAME),
            platform(abi::PLATFORM_VERSION),
            device(abi::DEVICE_NAME),
            device(abi::DEVICE_VERSION),
            device(abi::DRIVER_VERSION),
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

    pub(super) fn create_buffer(&self, len: usize, flags: u64) -> Result<Buffer, Status> {
        let mut status = 0;
        // SAFETY: no host pointer is given; the driver stores one status.
        let handle =
            unsafe { (self.cl.clCreateBuffer)(self.handle, flags, len, std::ptr::null_mut(), &raw mut status) };
        if status == abi::SUCCESS { Ok(Buffer { cl: self.cl, handle }) } else { Err(status) }
    }

    /// The buffer behind `len` bytes at `ptr`, and the offset in it.
    pub(super) fn find(&self, ptr: DevicePtr, len: u64) -> Result<(Arc<Buffer>, usize)> {
        let found = self.buffers.read().unwrap_or_else(PoisonError::into_inner).find(ptr.0, len);
        let (buffer, offset) = found.ok_or_else(|| not_allocated(ptr, len))?;
        Ok((buffer, offset as usize))
    }

    /// The buffer behind `ptr`, the offset in it, and how many bytes follow.
    pub(super) fn rest(&self, ptr: DevicePtr) -> Result<(Arc<Buffer>, usize, usize)> {
        let found = self.buffers.read().unwrap_or_else(PoisonError::into_inner).rest(ptr.0);
        let (buffer, offset, rest) = found.ok_or_else(|| not_allocated(ptr, 1))?;
        Ok((buffer, offset as usize, rest as usize))
    }
}

/// A range that no allocation holds.
pub(super) fn not_allocated(ptr: DevicePtr, len: u64) -> Error {
    Error::new(ErrorKind::BadArgument, format!("{len} bytes at {ptr} do not lie inside one allocation of this device"))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner.
        unsafe { (self.cl.clReleaseMemObject)(self.handle) };
    }
}
