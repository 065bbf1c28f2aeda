//! Streams and events.

use super::abi::{self, EventHandle, NOT_READY, RowCopy, SUCCESS, Status, StreamHandle};
use super::context::{Context, Entered, Wait};
use super::gate;
use super::module::CudaModule;
use super::status::foreign;
use crate::backend::{Backend, Launch, RawEvent, RawGate, RawModule, RawStream};
use crate::{DevicePtr, Error, ErrorKind, KernelArg, Result, Rows};
use std::any::Any;
use std::ffi::c_void;
use std::fmt::Arguments;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a waiter polls before it sleeps, unless it is told. A copy of a few pages is done within this time, and
/// waking up from the driver's interrupt would double its latency; longer waits burn no processor.
const POLL_TIME: Duration = Duration::from_micros(30);
/// Pauses between two looks at a stream that is not ours; they grow with the time waited.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_micros(500);

/// A stream, ours or adopted.
#[derive(Debug)]
pub(super) struct CudaStream {
    context: Arc<Context>,
    handle: StreamHandle,
    is_ours: bool,
    /// How long a waiter polls.
    poll_time: Duration,
}

impl CudaStream {
    /// A stream that does not order itself with the default stream.
    pub(super) fn create(context: &Arc<Context>) -> Result<Self> {
        let _entered = context.enter()?;
        let mut handle = StreamHandle::default();
        // SAFETY: the driver stores one handle.
        let status = unsafe { (context.cuda.cuStreamCreate)(&raw mut handle, abi::STREAM_NON_BLOCKING) };
        context.cuda.check(status, format_args!("creating a stream"))?;
        Ok(Self { context: context.clone(), handle, is_ours: true, poll_time: POLL_TIME })
    }

    /// The caller's stream; the caller keeps it alive.
    pub(super) fn adopt(context: &Arc<Context>, raw: u64) -> Self {
        Self { context: context.clone(), handle: StreamHandle(raw as usize), is_ours: false, poll_time: POLL_TIME }
    }

    fn check(&self, status: Status, doing: Arguments<'_>) -> Result<()> {
        self.context.cuda.check(status, doing)
    }

    /// The stream of programs that name none.
    pub(super) fn legacy(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), handle: abi::STREAM_LEGACY, is_ours: false, poll_time: POLL_TIME }
    }

    fn record_event(&self, wait: Wait) -> Result<CudaEvent> {
        let _entered = self.context.enter()?;
        // The event owns the handle from here on, so that a failure below does not lose it.
        let event = CudaEvent { context: self.context.clone(), handle: self.context.take_event(wait)?, wait };
        // SAFETY: both handles are live in the entered context.
        let status = unsafe { (self.context.cuda.cuEventRecord)(event.handle, self.handle) };
        self.check(status, format_args!("recording an event"))?;
        Ok(event)
    }
}

impl RawStream for CudaStream {
    fn poll_for(&mut self, time: Duration) {
        self.poll_time = time;
    }

    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.copy_to_device_entered(dst, src, len) }
    }

    unsafe fn copy_to_device_and_wait(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        self.refuse_capture()?;
        // SAFETY: the caller's promise; the work is waited for.
        let copied = unsafe { self.copy_to_device_entered(dst, src, len) };
        let landed = self.wait_behind_copy();
        copied.and(landed)
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.copy_to_host_entered(dst, src, len) }
    }

    unsafe fn copy_to_host_and_wait(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        self.refuse_capture()?;
        // SAFETY: the caller's promise; the work is waited for.
        let copied = unsafe { self.copy_to_host_entered(dst, src, len) };
        let landed = self.wait_behind_copy();
        copied.and(landed)
    }

    unsafe fn copy_rows_to_device(&self, dst: DevicePtr, src: *const u8, rows: Rows) -> Result<()> {
        if rows.pitch > abi::PITCH_MAX {
            // SAFETY: the caller's promise, for every row.
            return rows.one_by_one(|packed, apart| unsafe {
                self.copy_to_device(dst.offset_by(apart), src.wrapping_add(packed), rows.bytes)
            });
        }
        let _entered = self.enter()?;
        let copy = RowCopy::to_device(dst.0, src.cast(), rows);
        // SAFETY: the caller vouches for all rows until the work completes.
        let status = unsafe { (self.context.cuda.cuMemcpy2DAsync_v2)(&raw const copy, self.handle) };
        self.check(
            status,
            format_args!("copying {} rows of {} bytes to device memory at {dst}", rows.count, rows.bytes),
        )
    }

    unsafe fn copy_rows_to_host(&self, dst: *mut u8, src: DevicePtr, rows: Rows) -> Result<()> {
        if rows.pitch > abi::PITCH_MAX {
            // SAFETY: the caller's promise, for every row.
            return rows.one_by_one(|packed, apart| unsafe {
                self.copy_to_host(dst.wrapping_add(packed), src.offset_by(apart), rows.bytes)
            });
        }
        let _entered = self.enter()?;
        let copy = RowCopy::to_host(dst.cast(), src.0, rows);
        // SAFETY: the caller vouches for all rows until the work completes.
        let status = unsafe { (self.context.cuda.cuMemcpy2DAsync_v2)(&raw const copy, self.handle) };
        self.check(
            status,
            format_args!("copying {} rows of {} bytes from device memory at {src}", rows.count, rows.bytes),
        )
    }

    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, len: u64) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for both ranges until the work completes.
        let status = unsafe { (self.context.cuda.cuMemcpyDtoDAsync_v2)(dst.0, src.0, len as usize, self.handle) };
        self.check(status, format_args!("copying {len} bytes of device memory from {src} to {dst}"))
    }

    unsafe fn copy_from_peer(&self, dst: DevicePtr, peer: &dyn Backend, src: DevicePtr, len: u64) -> Result<()> {
        let peer = peer.as_peer().and_then(<dyn Any>::downcast_ref::<Arc<Context>>);
        let peer =
            peer.ok_or_else(|| Error::new(ErrorKind::BadArgument, "the peer device belongs to another backend"))?;
        if self.context.is(peer) {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_on_device(dst, src, len) };
        }
        self.context.connect(peer)?;
        let _entered = self.enter()?;
        let (here, there) = (self.context.handle(), peer.handle());
        // SAFETY: both contexts are retained, and the caller vouches for both ranges until the
        // work completes.
        let status =
            unsafe { (self.context.cuda.cuMemcpyPeerAsync)(dst.0, here, src.0, there, len as usize, self.handle) };
        self.check(status, format_args!("copying {len} bytes from another GPU's memory at {src} to {dst}"))
    }

    unsafe fn fill(&self, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for the range until the work completes.
        let status = unsafe { (self.context.cuda.cuMemsetD8Async)(dst.0, value, len as usize, self.handle) };
        self.check(status, format_args!("filling {len} bytes of device memory at {dst}"))
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let module: &dyn RawModule = &**launch.module;
        let module = (module as &dyn Any).downcast_ref::<CudaModule>().filter(|module| module.is_in(&self.context));
        let module = module.ok_or_else(|| foreign("module"))?;
        let function = module.function(launch.kernel).ok_or_else(|| {
            Error::new(ErrorKind::BadArgument, format!("the module {} has no kernel {}", module.name(), launch.kernel))
        })?;
        let _entered = self.enter()?;
        let mut args: Vec<*mut c_void> = launch.args.iter().map(argument).collect();
        // SAFETY: the function is live with its module. The caller vouches for number, size and
        // meaning of the arguments, which the driver copies before it returns.
        let status = unsafe {
            (self.context.cuda.cuLaunchKernel)(
                function,
                launch.groups,
                1,
                1,
                launch.group_size,
                1,
                1,
                0,
                self.handle,
                args.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        let Launch { kernel, groups, group_size, .. } = launch;
        self.check(status, format_args!("launching {kernel} on {groups} groups of {group_size} threads"))
    }

    fn record(&self) -> Result<Box<dyn RawEvent>> {
        let _entered = self.enter()?;
        Ok(Box::new(self.record_event(Wait::Asleep)?))
    }

    /// The driver orders streams across devices as well.
    fn wait(&self, event: &dyn RawEvent) -> Result<()> {
        let event = (event as &dyn Any).downcast_ref::<CudaEvent>().ok_or_else(|| foreign("event"))?;
        let _entered = self.enter()?;
        // SAFETY: both handles are live.
        let status = unsafe { (self.context.cuda.cuStreamWaitEvent)(self.handle, event.handle, 0) };
        self.check(status, format_args!("making a stream wait for an event"))
    }

    fn is_capturing(&self) -> Result<bool> {
        let _entered = self.context.enter()?;
        self.is_capturing_entered()
    }

    fn gate(&self) -> Result<Box<dyn RawGate>> {
        let _entered = self.context.enter_relaxed()?;
        self.refuse_capture()?;
        gate::close(&self.context, self.handle)
    }

    /// Not by the driver's own synchronisation of a stream, which may spin for the whole of the work, as the owner of
    /// the primary context has set it. A stream without work is asked first, and work that is done within
    /// `POLL_TIME` has no interrupt to wait for.
    fn synchronize(&self) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        self.refuse_capture()?;
        self.wait_entered()
    }
}

/// What is done in the entered context.
impl CudaStream {
    /// Enters it to enqueue work.
    fn enter(&self) -> Result<Entered<'_>> {
        let entered = self.context.enter()?;
        self.refuse_capture()?;
        Ok(entered)
    }

    /// # Safety
    /// Both ranges are valid, and `src` is neither freed nor written, until the work completes.
    unsafe fn copy_to_device_entered(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        // SAFETY: the caller vouches for both ranges until the work completes.
        let status = unsafe { (self.context.cuda.cuMemcpyHtoDAsync_v2)(dst.0, src.cast(), len as usize, self.handle) };
        self.check(status, format_args!("copying {len} bytes to device memory at {dst}"))
    }

    /// # Safety
    /// Both ranges are valid, and `dst` is not touched, until the work completes.
    unsafe fn copy_to_host_entered(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: the caller vouches for both ranges until the work completes.
        let status = unsafe { (self.context.cuda.cuMemcpyDtoHAsync_v2)(dst.cast(), src.0, len as usize, self.handle) };
        self.check(status, format_args!("copying {len} bytes from device memory at {src}"))
    }

    /// Waits for what is enqueued now. Of a stream that is not ours, others may enqueue more meanwhile, which may wait
    /// for this call: its event is recorded once, and a long wait looks at it now and then.
    fn wait_entered(&self) -> Result<()> {
        if self.is_idle()? {
            return Ok(());
        }
        let start = Instant::now();
        let reached = self.record_event(Wait::Polled)?;
        while !reached.is_done()? {
            match start.elapsed() {
                waited if waited < self.poll_time => std::hint::spin_loop(),
                _ if self.is_ours => return self.record_event(Wait::Asleep)?.sleep(),
                waited => std::thread::sleep((waited / 8).clamp(PAUSE_MIN, PAUSE_MAX)),
            }
        }
        Ok(())
    }

    /// The same behind a copy that is enqueued: also while another thread records a stream that the default one would be
    /// drawn into, since the memory is in use until the copy is done.
    fn wait_behind_copy(&self) -> Result<()> {
        loop {
            match self.wait_entered() {
                Err(error) if error.kind() == ErrorKind::Capturing => {}
                outcome => return outcome,
            }
            while self.is_capturing_entered()? {
                std::thread::sleep(PAUSE_MAX);
            }
        }
    }

    fn is_capturing_entered(&self) -> Result<bool> {
        let Some(is_capturing) = self.context.cuda.cuStreamIsCapturing else { return Ok(false) };
        let mut state = 0;
        // SAFETY: the handle is live; the driver stores one number.
        match unsafe { is_capturing(self.handle, &raw mut state) } {
            // The default stream, while another stream is captured: work on it would end the capture.
            abi::CAPTURE_IMPLICIT => Ok(true),
            // A capture that has failed counts as well (2): the program has yet to end it.
            status => {
                self.check(status, format_args!("querying whether a stream is being captured")).map(|()| state != 0)
            }
        }
    }

    /// Refuses what would end a program's recording: any use of the default stream, while another one that was not
    /// made non-blocking is recorded.
    fn refuse_capture(&self) -> Result<()> {
        if self.handle != abi::STREAM_LEGACY || !self.is_capturing_entered()? {
            return Ok(());
        }
        let detail = "a stream is being captured into a graph, and using the default stream would invalidate the capture: \
                      end the capture first, capture a non-blocking stream, or name a stream";
        Err(Error::new(ErrorKind::Capturing, detail))
    }

    /// Whether no work is left; the context is entered.
    fn is_idle(&self) -> Result<bool> {
        // SAFETY: the handle is live.
        let status = unsafe { (self.context.cuda.cuStreamQuery)(self.handle) };
        self.context.is_over(status)
    }

    /// What the stream holds; none where it is idle.
    pub(super) fn work(&self) -> Result<Option<Box<dyn RawEvent>>> {
        let _entered = self.context.enter_relaxed()?;
        self.refuse_capture()?;
        if self.is_idle()? { Ok(None) } else { self.record().map(Some) }
    }
}

/// The address of an argument's value, where the driver reads it.
fn argument(arg: &KernelArg<'_>) -> *mut c_void {
    match arg {
        KernelArg::Buffer(ptr) => (&raw const ptr.0).cast_mut().cast(),
        KernelArg::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the handle has no other owner; the driver finishes enqueued work first.
            unsafe { (self.context.cuda.cuStreamDestroy_v2)(self.handle) };
        }
    }
}

/// A recorded event; its handle is used again after it is dropped.
#[derive(Debug)]
struct CudaEvent {
    context: Arc<Context>,
    handle: EventHandle,
    wait: Wait,
}

impl CudaEvent {
    /// Whether the work is done; the context is entered.
    fn is_done(&self) -> Result<bool> {
        // SAFETY: the handle is live.
        let status = unsafe { (self.context.cuda.cuEventQuery)(self.handle) };
        self.context.is_over(status)
    }

    /// Waits without polling; the context is entered.
    fn sleep(&self) -> Result<()> {
        // SAFETY: the handle is live.
        let status = unsafe { (self.context.cuda.cuEventSynchronize)(self.handle) };
        self.context.cuda.check(status, format_args!("work on the GPU"))
    }
}

impl Context {
    /// What the driver's answer about some work means.
    fn is_over(&self, status: Status) -> Result<bool> {
        match status {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            status => Err(self.cuda.failure(status, format_args!("work on the GPU"))),
        }
    }
}

impl RawEvent for CudaEvent {
    fn query(&self) -> Result<bool> {
        let _entered = self.context.enter_relaxed()?;
        self.is_done()
    }

    fn wait(&self) -> Result<()> {
        let _entered = self.context.enter_relaxed()?;
        let start = Instant::now();
        while start.elapsed() < POLL_TIME {
            if self.is_done()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.sleep()
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.context.return_event(self.handle, self.wait);
    }
}
