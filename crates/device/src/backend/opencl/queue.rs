//! Command queues: one a stream, in order.
//!
//! OpenCL reports the failure of a command through that command's event only, so each command
//! has one, and a queue keeps those of its unfinished commands. An event of ours is the last
//! command enqueued before it: the queue is in order, so everything before is done too. The first
//! failure stays with the queue, under the number of its command, and every event recorded later
//! reports it.

use super::abi::{self, COMPLETE, EventHandle, MemoryHandle, QueueHandle, SUCCESS, Status};
use super::context::Context;
use super::status::{check, check_ended};
use crate::Result;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt::Arguments;
use std::ptr::null;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A command queue; finished and released when its stream and its events are gone.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) context: Arc<Context>,
    pub(super) handle: QueueHandle,
    commands: Mutex<Commands>,
}

/// The commands of a queue, numbered in the order in which they were enqueued.
#[derive(Debug, Default)]
pub(super) struct Commands {
    pub(super) count: u64,
    pub(super) unfinished: VecDeque<(u64, Arc<Command>)>,
    failure: Option<(u64, Status)>,
}

/// The driver's event of one command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) context: Arc<Context>,
    pub(super) event: EventHandle,
}

impl Command {
    /// Positive while it is not done, negative if it failed.
    fn status(&self) -> Status {
        let mut state: Status = COMPLETE;
        // SAFETY: the event is live, and the driver stores one integer.
        let asked = unsafe {
            (self.context.cl.clGetEventInfo)(
                self.event,
                abi::EVENT_COMMAND_EXECUTION_STATUS,
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
    pub(super) fn settle(&mut self) {
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
        check(status, format_args!("creating an OpenCL queue"))?;
        Ok(Arc::new(Self { context: context.clone(), handle, commands: Mutex::default() }))
    }

    /// Waits for what was enqueued.
    pub(super) fn finish(&self) -> Result<()> {
        // SAFETY: the queue is live.
        check_ended(unsafe { (self.context.cl.clFinish)(self.handle) }, format_args!("waiting for work on the device"))
    }

    /// Maps a whole buffer into host memory and waits for it.
    pub(super) fn map(&self, memory: MemoryHandle, len: usize) -> Result<*mut u8, Status> {
        let mut status = 0;
        // SAFETY: the buffer has `len` bytes; the driver stores one status.
        let mapped = unsafe {
            (self.context.cl.clEnqueueMapBuffer)(
                self.handle,
                memory,
                abi::TRUE,
                abi::MAP_READ_WRITE,
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
        check(status, format_args!("unmapping page-locked memory"))?;
        // SAFETY: the queue is live.
        check(unsafe { (self.context.cl.clFinish)(self.handle) }, format_args!("unmapping page-locked memory"))
    }

    /// Enqueues one command by `call`, which is given the place for its event, and starts it.
    pub(super) fn enqueue(&self, doing: Arguments<'_>, call: impl FnOnce(*mut EventHandle) -> Status) -> Result<()> {
        let mut commands = self.commands();
        let mut event = EventHandle::default();
        // The lock is held so that numbers have the order of the queue.
        check(call(&raw mut event), doing)?;
        let number = commands.count + 1;
        commands.count = number;
        commands.unfinished.push_back((number, Arc::new(Command { context: self.context.clone(), event })));
        commands.settle();
        drop(commands);
        // Without it a driver may keep the command back until somebody waits.
        // SAFETY: the queue is live.
        check(unsafe { (self.context.cl.clFlush)(self.handle) }, format_args!("starting enqueued work"))
    }

    pub(super) fn commands(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether command `number` and all before it are done; an error if one of them failed.
    pub(super) fn is_done(&self, number: u64) -> Result<bool> {
        let mut commands = self.commands();
        commands.settle();
        // A failure is told only when nothing up to here runs any more: it means that the memory
        // of all that work is free again.
        if commands.unfinished.front().is_some_and(|(oldest, _)| *oldest <= number) {
            return Ok(false);
        }
        match commands.failure {
            Some((failed, status)) if failed <= number => {
                check_ended(status, format_args!("work on the device")).map(|()| true)
            }
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
