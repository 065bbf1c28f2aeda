//! Queues for unbuffered transfers, kept between requests.

use super::job::Job;
use crate::storage::IoQueue;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Reads in flight: about 16 of 1 MiB saturate a fast disk; twice that leaves enough of them while
/// a completed slot waits for its successor.
pub(super) const QUEUE_DEPTH: u32 = 32;

/// Transfers without a byte, in a row, after which a request is given up.
pub(super) const STALLED_MAX: u32 = 10_000;

/// Queues kept between requests, with their registered slots.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    idle: Mutex<Vec<Box<dyn IoQueue>>>,
}

impl Queues {
    pub(crate) fn take(&self, job: &Job) -> io::Result<Box<dyn IoQueue>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| job.storage.open_queue(QUEUE_DEPTH), Ok)
    }

    pub(crate) fn give_back(&self, queue: Box<dyn IoQueue>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
    }
}
