//! How far the requests of a batch are: those that will have a result, those that have one, and those that were
//! cancelled and are not over yet. A pure count: nothing here waits.

use crate::abi::{CUFILE_COMPLETE, CUFILE_FAILED, CUfileIOEvents_t};
use crate::range::Direction;
use crate::stats::Watch;
use crate::status::Outcome;
use bifolio_io::Cancel;
use std::collections::VecDeque;
use std::ptr::with_exposed_provenance_mut;

#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Requests that will have a result.
    pub(super) in_flight: usize,
    /// Results that nobody has fetched.
    pub(super) done: VecDeque<Event>,
    /// Since the batch had nothing under way, and what it has read and written since then.
    watch: Option<Watch>,
    moved: [u64; 2],
    /// Cancelled requests that are not over yet.
    pub(super) ending: usize,
    /// How often the batch was cancelled.
    cancellations: u64,
    /// Of the requests that were submitted since the latest cancellation.
    cancel: Cancel,
}

impl Progress {
    /// Ends requests that were submitted after so many cancellations.
    pub(super) fn finish(&mut self, submitted_after: u64, events: Vec<Event>) {
        if submitted_after != self.cancellations {
            self.ending -= events.len();
            return;
        }
        for event in &events {
            self.moved[usize::from(event.direction == Direction::Write)] += event.outcome.as_ref().unwrap_or(&0);
        }
        self.in_flight -= events.len();
        self.done.extend(events);
        if self.in_flight == 0 {
            self.watch.take().into_iter().for_each(|watch| watch.end_batch(self.moved));
        }
    }

    /// Begins requests: after how many cancellations, and how they learn of the next.
    pub(super) fn begin(&mut self, requests: usize) -> (u64, Cancel) {
        if self.in_flight == 0 {
            (self.watch, self.moved) = (Some(Watch::begin()), [0; 2]);
        }
        self.in_flight += requests;
        (self.cancellations, self.cancel.clone())
    }

    /// Takes the results of all requests away, those that are there and those that would come.
    pub(super) fn cancel(&mut self) {
        std::mem::take(&mut self.cancel).cancel();
        self.cancellations += 1;
        self.ending += std::mem::take(&mut self.in_flight);
        self.watch = None;
        self.done.clear();
    }
}

/// A result.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) cookie: usize,
    pub(super) direction: Direction,
    pub(super) outcome: Outcome<u64>,
}

impl Event {
    pub(super) fn for_program(&self) -> CUfileIOEvents_t {
        let (status, ret) = match &self.outcome {
            Ok(bytes) => (CUFILE_COMPLETE, *bytes as usize),
            Err(failure) => (CUFILE_FAILED, failure.in_memory().cast_unsigned()),
        };
        CUfileIOEvents_t { cookie: with_exposed_provenance_mut(self.cookie), status, ret }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(cookie: usize) -> Event {
        Event { cookie, direction: Direction::Write, outcome: Ok(10) }
    }

    #[test]
    fn what_was_submitted_before_a_cancellation_has_no_result_and_what_came_after_has() {
        let mut progress = Progress::default();
        let (before, cancel) = progress.begin(3);
        progress.finish(before, vec![event(1)]);
        progress.cancel();
        assert!(cancel.is_cancelled() && !progress.cancel.is_cancelled());
        assert_eq!((progress.done.len(), progress.in_flight, progress.ending), (0, 0, 2));
        let (after, _) = progress.begin(1);
        progress.finish(before, vec![event(2)]);
        progress.finish(after, vec![event(3)]);
        progress.finish(before, vec![event(4)]);
        assert_eq!((progress.done.len(), progress.in_flight, progress.ending), (1, 0, 0));
        assert_eq!((progress.done[0].cookie, progress.moved), (3, [0, 10]));
    }
}
