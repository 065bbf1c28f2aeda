//! Whether a task is scheduled, as all threads see it.

use crate::args::TICKETS;
use crate::schedule::Run;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Nobody wants it to run.
const STOPPED: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
/// Scheduled while it runs.
const AGAIN: u8 = 3;
/// Unscheduled while it runs.
const ENDING: u8 = 4;
/// It had nothing to do, and is told when there is something.
const ASLEEP: u8 = 5;

/// The state of an element's task, in lines of the cache of its own.
#[repr(align(128))]
pub(super) struct TaskState {
    state: AtomicU8,
    /// How often it is run, compared with others.
    pub(super) tickets: AtomicU32,
    /// The thread that runs it.
    pub(super) home: AtomicU32,
}

impl TaskState {
    pub(super) fn new(tickets: Option<u32>, home: u32) -> Self {
        let tickets = AtomicU32::new(tickets.unwrap_or(TICKETS));
        Self { state: AtomicU8::new(STOPPED), tickets, home: AtomicU32::new(home) }
    }

    fn change(&self, to: impl Fn(u8) -> u8) -> u8 {
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| Some(to(state))).unwrap_or(STOPPED)
    }

    /// Somebody wants it to run: whether its thread has to be told.
    pub(super) fn schedule(&self) -> bool {
        let before = self.change(|state| match state {
            STOPPED | ASLEEP => QUEUED,
            RUNNING | ENDING => AGAIN,
            other => other,
        });
        matches!(before, STOPPED | ASLEEP)
    }

    /// There is something to do, if it waits for that: whether its thread has to be told.
    pub(super) fn wake(&self) -> bool {
        self.state.compare_exchange(ASLEEP, QUEUED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Nobody wants it to run.
    pub(super) fn unschedule(&self) {
        self.change(|state| match state {
            QUEUED | ASLEEP => STOPPED,
            RUNNING | AGAIN => ENDING,
            other => other,
        });
    }

    /// Its thread is about to run it: whether it is to.
    pub(super) fn claim(&self) -> bool {
        self.state.compare_exchange(QUEUED, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It has run: whether it is run again. Where it has nothing to do, it may sleep until it is woken.
    pub(super) fn release(&self, did: Run, may_sleep: bool) -> bool {
        let next = match did {
            Run::Stop => STOPPED,
            Run::Idle if may_sleep => ASLEEP,
            Run::Idle | Run::Worked => QUEUED,
        };
        let after = |state| match state {
            AGAIN => QUEUED,
            RUNNING => next,
            _ => STOPPED,
        };
        after(self.change(after)) == QUEUED
    }

    pub(super) fn is_scheduled(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), QUEUED | RUNNING | AGAIN)
    }
}
