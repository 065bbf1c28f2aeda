//! Points in a stream that the host waits for, and gates, which the host opens.

use super::lock::lock;
use crate::backend::{RawEvent, RawGate};
use crate::{Error, ErrorKind, Result};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A point in a stream, shared between the worker that reaches it and those who wait for it.
#[derive(Debug, Default)]
pub(super) struct Point {
    outcome: Mutex<Option<std::result::Result<(), String>>>,
    reached: Condvar,
}

impl Point {
    pub(super) fn set(&self, outcome: std::result::Result<(), String>) {
        *lock(&self.outcome) = Some(outcome);
        self.reached.notify_all();
    }

    pub(super) fn wait(&self) -> Result<()> {
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                Some(done) => return as_result(done),
                None => outcome = self.reached.wait(outcome).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A recorded event.
#[derive(Debug)]
pub(super) struct HostEvent {
    pub(super) point: Arc<Point>,
}

impl RawEvent for HostEvent {
    fn query(&self) -> Result<bool> {
        lock(&self.point.outcome).as_ref().map_or(Ok(false), |done| as_result(done).map(|()| true))
    }

    fn wait(&self) -> Result<()> {
        self.point.wait()
    }
}

/// A gate: an event that the host reaches.
#[derive(Debug)]
pub(super) struct HostGate {
    pub(super) opened: Arc<Point>,
}

impl RawGate for HostGate {}

impl Drop for HostGate {
    fn drop(&mut self) {
        self.opened.set(Ok(()));
    }
}

fn as_result(outcome: &std::result::Result<(), String>) -> Result<()> {
    outcome.clone().map_err(|reason| Error::new(ErrorKind::Execution, reason))
}
