//! Points in a queue that the host waits for, and gates, which the host opens.

use super::abi::{COMPLETE, EventHandle};
use super::context::Context;
use super::queue::{Command, Queue};
use super::status::{check, check_ended};
use crate::Result;
use crate::backend::{RawEvent, RawGate};
use std::sync::Arc;

/// A gate: a user event that is not complete.
#[derive(Debug)]
pub(super) struct OpenClGate {
    context: Arc<Context>,
    pub(super) event: EventHandle,
}

impl OpenClGate {
    pub(super) fn close(context: &Arc<Context>) -> Result<Self> {
        let mut status = 0;
        // SAFETY: the context is live; the driver stores one status.
        let event = unsafe { (context.cl.clCreateUserEvent)(context.handle, &raw mut status) };
        check(status, format_args!("creating a gate (a user event)"))?;
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
pub(super) struct OpenClEvent {
    pub(super) queue: Arc<Queue>,
    pub(super) number: u64,
    /// The last command before it; none if all were done already.
    pub(super) last: Option<Arc<Command>>,
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
        check_ended(status, format_args!("waiting for work on the device"))
    }
}
