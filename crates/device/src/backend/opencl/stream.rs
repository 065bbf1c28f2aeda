//! Streams and events: one in-order queue a stream.
//!
//! OpenCL reports the failure of a command through that command's event only, so each command
//! has one, and a queue keeps those of its unfinished commands. An event of ours is the last
//! command enqueued before it: the queue is in order, so everything before is done too. The first
//! failure stays with the queue, under the number of its command, and every event recorded later
//! reports it.

use super::module::OpenClModule;
use super::sys::{self, COMPLETE, EventHandle, MemoryHandle, QueueHandle, Region, SUCCESS, Status};
use super::{Buffer, Context};
use crate::backend::{Backend, KernelArg, Launch, RawEvent, RawGate, RawModule, RawStream};
use crate::{DevicePtr, Error, ErrorKind, Result};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt::Arguments;
use std::ptr::null;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A command queue; finished and released when its stream and its events are gone.
#[derive(Debug)]
pub(super) struct Queue {
    context: Arc<Context>,
    handle: QueueHandle,
    commands: Mutex<Commands>,
}

/// The commands of a queue, numbered in the order in which they were enqueued.
#[derive(Debug, Default)]
struct Commands {
    count: u64,
    unfinished: VecDeque<(u64, Arc<Command>)>,
    failure: Option<(u64, Status)>,
}

/// The driver's event of one command.
#[derive(Debug)]
struct Command {
    context: Arc<Context>,
    event: EventHandle,
}

impl Command {
    /// Positive while it is not done, negative if it failed.
    fn status(&self) -> Status {
        let mut state: Status = COMPLETE;
        // SAFETY: the event is live, and the driver stores one integer.
        let asked = unsafe {
            (self.context.cl.clGetEventInfo)(
                self.event,
                sys::EVENT_COMMAND_EXECUTION_STATUS,
                size_of::<Status>(),
                (&raw mut state).cast(),
                std::ptr::null_mut(),
            )
        };
        if asked == SUCCESS { state } else { asked }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner.
        unsafe { (self.context.cl.clReleaseEvent)(self.event) };
    }
}

impl Commands {
    /// Forgets finished commands from the oldest on and keeps the first failure.
    fn settle(&mut self) {
        while let Some((number, command)) = self.unfinished.front() {
            let status = command.status();
            if status > COMPLETE {
                break;
            }
            if status < COMPLETE {
                self.failure.get_or_insert((*number, status));
            }
            self.unfinished.pop_front();
        }
    }
}

impl Queue {
    pub(super) fn create(context: &Arc<Context>) -> Result<Arc<Self>> {
        let mut status = 0;
        // SAFETY: context and device are live; the driver stores one status.
        let handle = unsafe { (context.cl.clCreateCommandQueue)(context.handle, context.device, 0, &raw mut status) };
        sys::check(status, format_args!("creating an OpenCL queue"))?;
        Ok(Arc::new(Self { context: context.clone(), handle, commands: Mutex::default() }))
    }

    /// Maps a whole buffer into host memory and waits for it.
    pub(super) fn map(&self, memory: MemoryHandle, len: usize) -> Result<*mut u8, Status> {
        let mut status = 0;
        // SAFETY: the buffer has `len` bytes; the driver stores one status.
        let mapped = unsafe {
            (self.context.cl.clEnqueueMapBuffer)(
                self.handle,
                memory,
                sys::TRUE,
                sys::MAP_READ_WRITE,
                0,
                len,
                0,
                null(),
                std::ptr::null_mut(),
                &raw mut status,
            )
        };
        if status == SUCCESS { Ok(mapped.cast()) } else { Err(status) }
    }

    /// Ends a mapping and waits for it.
    pub(super) fn unmap(&self, memory: MemoryHandle, mapped: *mut c_void) -> Result<()> {
        // SAFETY: the buffer is mapped there.
        let status = unsafe {
            (self.context.cl.clEnqueueUnmapMemObject)(self.handle, memory, mapped, 0, null(), std::ptr::null_mut())
        };
        sys::check(status, format_args!("unmapping page-locked memory"))?;
        // SAFETY: the queue is live.
        sys::check(unsafe { (self.context.cl.clFinish)(self.handle) }, format_args!("unmapping page-locked memory"))
    }

    /// Enqueues one command by `call`, which is given the place for its event, and starts it.
    fn enqueue(&self, doing: Arguments<'_>, call: impl FnOnce(*mut EventHandle) -> Status) -> Result<()> {
        let mut commands = self.commands();
        let mut event = EventHandle::default();
        // The lock is held so that numbers have the order of the queue.
        sys::check(call(&raw mut event), doing)?;
        let number = commands.count + 1;
        commands.count = number;
        commands.unfinished.push_back((number, Arc::new(Command { context: self.context.clone(), event })));
        commands.settle();
        drop(commands);
        // Without it a driver may keep the command back until somebody waits.
        // SAFETY: the queue is live.
        sys::check(unsafe { (self.context.cl.clFlush)(self.handle) }, format_args!("starting enqueued work"))
    }

    fn commands(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether command `number` and all before it are done; an error if one of them failed.
    fn is_done(&self, number: u64) -> Result<bool> {
        let mut commands = self.commands();
        commands.settle();
        // A failure is told only when nothing up to here runs any more: it means that the memory
        // of all that work is free again.
        if commands.unfinished.front().is_some_and(|(oldest, _)| *oldest <= number) {
            return Ok(false);
        }
        match commands.failure {
            Some((failed, status)) if failed <= number => Err(sys::failure(status, format_args!("work on the device"))),
            _ => Ok(true),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Releasing a queue with work in it is legal, and has crashed drivers.
        // SAFETY: the handle has no other owner.
        unsafe { (self.context.cl.clFinish)(self.handle) };
        // SAFETY: as above. A failure means that the device is gone.
        unsafe { (self.context.cl.clReleaseCommandQueue)(self.handle) };
    }
}

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
            (context.cl.clEnqueueWriteBuffer)(*handle, buffer.handle, sys::FALSE, offset, len, src, 0, null(), event)
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
            (context.cl.clEnqueueReadBuffer)(*handle, buffer.handle, sys::FALSE, offset, len, dst, 0, null(), event)
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
            "copying {len} bytes from another device is not possible: OpenCL 1.2 does not name memory of another \
             device, so copy through host memory"
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
            sys::check(status, format_args!("setting argument {index} of {}", launch.kernel))?;
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
            let detail = "an OpenCL queue cannot wait for an event of another device, whose context is another one: wait \
                          for the event on the host";
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
        // SAFETY: the queue is live.
        let status = unsafe { (self.queue.context.cl.clFinish)(self.queue.handle) };
        let count = self.queue.commands().count;
        self.queue.is_done(count)?;
        sys::check(status, format_args!("waiting for work on the device"))
    }
}

fn foreign(what: &str) -> Error {
    Error::new(ErrorKind::BadArgument, format!("the {what} belongs to another device"))
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
            sys::MEM_READ_WRITE,
            sys::BUFFER_CREATE_TYPE_REGION,
            (&raw const region).cast(),
            &raw mut status,
        )
    };
    sys::check(status, format_args!("passing device memory at offset {origin} of an allocation to a kernel"))?;
    Ok(Buffer { cl: context.cl, handle })
}

/// A gate: a user event that is not complete.
#[derive(Debug)]
struct OpenClGate {
    context: Arc<Context>,
    event: EventHandle,
}

impl OpenClGate {
    fn close(context: &Arc<Context>) -> Result<Self> {
        let mut status = 0;
        // SAFETY: the context is live; the driver stores one status.
        let event = unsafe { (context.cl.clCreateUserEvent)(context.handle, &raw mut status) };
        sys::check(status, format_args!("creating a gate (a user event)"))?;
        Ok(Self { context: context.clone(), event })
    }
}

impl RawGate for OpenClGate {}

impl Drop for OpenClGate {
    fn drop(&mut self) {
        // SAFETY: the event is live, a user event, and its status was not set before.
        unsafe { (self.context.cl.clSetUserEventStatus)(self.event, COMPLETE) };
        // SAFETY: the handle has no other owner; commands that waited for it have their own.
        unsafe { (self.context.cl.clReleaseEvent)(self.event) };
    }
}

/// A point in a queue: after command `number`.
#[derive(Debug)]
struct OpenClEvent {
    queue: Arc<Queue>,
    number: u64,
    /// The last command before it; none if all were done already.
    last: Option<Arc<Command>>,
}

impl RawEvent for OpenClEvent {
    fn query(&self) -> Result<bool> {
        self.queue.is_done(self.number)
    }

    fn wait(&self) -> Result<()> {
        let Some(last) = &self.last else { return self.query().map(|_| ()) };
        // SAFETY: the event is live.
        let status = unsafe { (self.queue.context.cl.clWaitForEvents)(1, &raw const last.event) };
        self.query()?;
        sys::check(status, format_args!("waiting for work on the device"))
    }
}
