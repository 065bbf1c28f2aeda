//! Streams: copies, fills and launches in a queue.

use super::abi::{self, MemoryHandle, Region};
use super::context::{Buffer, Context};
use super::event::{OpenClEvent, OpenClGate};
use super::module::OpenClModule;
use super::queue::Queue;
use super::status::{check, foreign};
use crate::backend::{Backend, Launch, RawEvent, RawGate, RawModule, RawStream};
use crate::{DevicePtr, Error, ErrorKind, KernelArg, Result};
use std::any::Any;
use std::ffi::c_void;
use std::ptr::null;
use std::sync::{Arc, PoisonError};

/// A stream.
#[derive(Debug)]
pub(super) struct OpenClStream {
    queue: Arc<Queue>,
}

impl OpenClStream {
    pub(super) fn create(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { queue: Queue::create(context)? })
    }
}

impl RawStream for OpenClStream {
    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        let Queue { context, handle, .. } = &*self.queue;
        let (buffer, offset) = context.find(dst, len)?;
        let doing = format_args!("copying {len} bytes to device memory at {dst}");
        // SAFETY: the range lies in the buffer, and the caller vouches for `src` until the work
        // completes. The driver keeps the buffer until then.
        self.queue.enqueue(doing, |event| unsafe {
            let (len, src) = (len as usize, src.cast());
            (context.cl.clEnqueueWriteBuffer)(*handle, buffer.handle, abi::FALSE, offset, len, src, 0, null(), event)
        })
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        let Queue { context, handle, .. } = &*self.queue;
        let (buffer, offset) = context.find(src, len)?;
        let doing = format_args!("copying {len} bytes from device memory at {src}");
        // SAFETY: the range lies in the buffer, and the caller vouches for `dst` until the work
        // completes. The driver keeps the buffer until then.
        self.queue.enqueue(doing, |event| unsafe {
            let (len, dst) = (len as usize, dst.cast());
            (context.cl.clEnqueueReadBuffer)(*handle, buffer.handle, abi::FALSE, offset, len, dst, 0, null(), event)
        })
    }

    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, len: u64) -> Result<()> {
        let Queue { context, handle, .. } = &*self.queue;
        let (to, to_offset) = context.find(dst, len)?;
        let (from, from_offset) = context.find(src, len)?;
        let doing = format_args!("copying {len} bytes of device memory from {src} to {dst}");
        // SAFETY: both ranges lie in their buffers, which the driver keeps until the work is done.
        self.queue.enqueue(doing, |event| unsafe {
            let (from, to, len) = (from.handle, to.handle, len as usize);
            (context.cl.clEnqueueCopyBuffer)(*handle, from, to, from_offset, to_offset, len, 0, null(), event)
        })
    }

    unsafe fn copy_from_peer(&self, _dst: DevicePtr, _peer: &dyn Backend, _src: DevicePtr, len: u64) -> Result<()> {
        let detail = format!(
            "copying {len} bytes from another device is not supported: OpenCL 1.2 cannot address another device's \
             memory; copy through host memory"
        );
        Err(Error::new(ErrorKind::Unsupported, detail))
    }

    unsafe fn fill(&self, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        let Queue { context, handle, .. } = &*self.queue;
        let (buffer, offset) = context.find(dst, len)?;
        let doing = format_args!("filling {len} bytes of device memory at {dst}");
        // SAFETY: the range lies in the buffer; the driver copies the one-byte pattern.
        self.queue.enqueue(doing, |event| unsafe {
            let (pattern, len) = ((&raw const value).cast(), len as usize);
            (context.cl.clEnqueueFillBuffer)(*handle, buffer.handle, pattern, 1, offset, len, 0, null(), event)
        })
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let Queue { context, handle, .. } = &*self.queue;
        let module: &dyn RawModule = &**launch.module;
        let module = (module as &dyn Any).downcast_ref::<OpenClModule>().filter(|module| module.is_in(context));
        let module = module.ok_or_else(|| foreign("module"))?;
        let kernel = module.kernel(launch.kernel).ok_or_else(|| {
            Error::new(ErrorKind::BadArgument, format!("the module {} has no kernel {}", module.name(), launch.kernel))
        })?;
        let args = launch.args.iter().map(|arg| Argument::of(context, arg)).collect::<Result<Vec<_>>>()?;
        // Arguments belong to the kernel object, so no other launch may come between setting
        // them and enqueueing, which copies them.
        let kernel = kernel.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, arg) in args.iter().enumerate() {
            let (len, value) = arg.value();
            // SAFETY: the value has `len` bytes, which the driver copies.
            let status = unsafe { (context.cl.clSetKernelArg)(*kernel, index as u32, len, value) };
            check(status, format_args!("setting argument {index} of {}", launch.kernel))?;
        }
        let local = launch.group_size as usize;
        let global = launch.groups as usize * local;
        let doing = format_args!("launching {} on {} groups of {local} threads", launch.kernel, launch.groups);
        // SAFETY: kernel and queue are live; the sizes have one dimension each.
        self.queue.enqueue(doing, |event| unsafe {
            let (global, local) = (&raw const global, &raw const local);
            (context.cl.clEnqueueNDRangeKernel)(*handle, *kernel, 1, null(), global, local, 0, null(), event)
        })
    }

    fn record(&self) -> Result<Box<dyn RawEvent>> {
        let mut commands = self.queue.commands();
        commands.settle();
        let last = commands.unfinished.back().map(|(_, command)| command.clone());
        Ok(Box::new(OpenClEvent { queue: self.queue.clone(), number: commands.count, last }))
    }

    fn wait(&self, event: &dyn RawEvent) -> Result<()> {
        let event = (event as &dyn Any).downcast_ref::<OpenClEvent>().ok_or_else(|| foreign("event"))?;
        if !Arc::ptr_eq(&event.queue.context, &self.queue.context) {
            let detail = "an OpenCL queue cannot wait for an event of another context: wait for the event on the host";
            return Err(Error::new(ErrorKind::Unsupported, detail));
        }
        if event.query()? || Arc::ptr_eq(&event.queue, &self.queue) {
            return Ok(());
        }
        let Some(last) = &event.last else { return Ok(()) };
        let Queue { context, handle, .. } = &*self.queue;
        // SAFETY: queue and event are live; the list has one entry.
        self.queue.enqueue(format_args!("making a stream wait for an event"), |made| unsafe {
            (context.cl.clEnqueueBarrierWithWaitList)(*handle, 1, &raw const last.event, made)
        })
    }

    /// A user event is the only one that OpenCL lets the host complete. The queue is in order, so
    /// a barrier that waits for it holds back all later work; it is flushed at once, because other
    /// queues may come to wait for what is behind it.
    fn gate(&self) -> Result<Box<dyn RawGate>> {
        let Queue { context, handle, .. } = &*self.queue;
        let gate = OpenClGate::close(context)?;
        // SAFETY: queue and event are live; the list has one entry.
        self.queue.enqueue(format_args!("making a stream wait for a gate"), |made| unsafe {
            (context.cl.clEnqueueBarrierWithWaitList)(*handle, 1, &raw const gate.event, made)
        })?;
        Ok(Box::new(gate))
    }

    fn synchronize(&self) -> Result<()> {
        let finished = self.queue.finish();
        let count = self.queue.commands().count;
        self.queue.is_done(count)?;
        finished
    }
}

/// A kernel's argument as the driver takes it.
enum Argument<'a> {
    Null,
    Whole(Arc<Buffer>),
    /// A part of a buffer from an offset on; released after the launch, which retains it.
    Part(Buffer),
    Bytes(&'a [u8]),
}

impl<'a> Argument<'a> {
    fn of(context: &Context, arg: &KernelArg<'a>) -> Result<Self> {
        match arg {
            KernelArg::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            KernelArg::Buffer(DevicePtr(0)) => Ok(Self::Null),
            KernelArg::Buffer(ptr) => match context.rest(*ptr)? {
                (buffer, 0, _) => Ok(Self::Whole(buffer)),
                (buffer, offset, rest) => part(context, &buffer, offset, rest).map(Self::Part),
            },
        }
    }

    fn value(&self) -> (usize, *const c_void) {
        match self {
            Self::Null => (size_of::<MemoryHandle>(), null()),
            Self::Whole(buffer) => (size_of::<MemoryHandle>(), (&raw const buffer.handle).cast()),
            Self::Part(buffer) => (size_of::<MemoryHandle>(), (&raw const buffer.handle).cast()),
            Self::Bytes(bytes) => (bytes.len(), bytes.as_ptr().cast()),
        }
    }
}

fn part(context: &Context, whole: &Buffer, origin: usize, size: usize) -> Result<Buffer> {
    let region = Region { origin, size };
    let mut status = 0;
    // SAFETY: the region lies in the buffer and lives through the call.
    let handle = unsafe {
        (context.cl.clCreateSubBuffer)(
            whole.handle,
            abi::MEM_READ_WRITE,
            abi::BUFFER_CREATE_TYPE_REGION,
            (&raw const region).cast(),
            &raw mut status,
        )
    };
    check(status, format_args!("passing device memory at offset {origin} of an allocation to a kernel"))?;
    Ok(Buffer { cl: context.cl, handle })
}
