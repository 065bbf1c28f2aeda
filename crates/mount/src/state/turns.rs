//! Requests that must not be done twice: what is known of one that a killed server was at, when it is sent again.
//!
//! ```text
//!   begun(a, b)   the source is about to be changed; a and b say what tells whether it was
//!   done(code)    it was changed, or refused with this error number; the answer follows
//! ```
//!
//! A write to a shared file goes in parts, each of which whoever shares it does once ([`Once`]): how many were done is noted,
//! and the number under which the daemon is asked for the next one.
//!
//! A request has a number that no other one gets, which the kernel repeats when it sends the request again, with a mark.

use super::Rows;
use crate::fault::{Point, at};
use crate::replicas::Once;
use crate::sync::lock;
use bifolio_keeper::Result;
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;

/// The bit of a request's number by which the kernel says that it was sent before.
pub(crate) const RESENT: u64 = 1 << 63;

/// Requests at work at a time, and some that were answered just before a kill, of which nobody knows that.
const TURNS_MAX: usize = 1 << 14;
/// Words of a row.
const REQUEST: usize = 0;
const STAGE: usize = 1;
const FIRST: usize = 2;
const SECOND: usize = 3;
/// Parts that were done, and in the lower bits the number of the one that is under way, or 0.
const PARTS: usize = 4;
const WIDTH: usize = 5;

const NUMBER_BITS: u32 = 40;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// Stages: nothing was done before the first one.
const BEGUN: u64 = 1;
/// An error number is added.
const DONE: u64 = 2;

/// What a predecessor has left of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It may have been done or not.
    Begun(u64, u64),
    /// It was done: with an error number, or 0.
    Done(i32),
}

/// All requests at work.
#[derive(Debug)]
pub(crate) struct Turns {
    rows: Rows,
    /// What predecessors have left, by the request's number.
    left: Mutex<HashMap<u64, u32>>,
}

/// One request, until it is answered.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// None where there is no room: it may be done twice then, if this server is killed.
    row: Option<u32>,
    before: Option<Before>,
    unique: u64,
    /// Parts that a predecessor has done and that were not asked for yet.
    parts_left: Cell<u64>,
}

impl Turns {
    pub(crate) fn create() -> Result<Self> {
        Ok(Self { rows: Rows::create("bifolio-mount-turns", WIDTH, TURNS_MAX)?, left: Mutex::default() })
    }

    pub(crate) fn adopt(&self) {
        self.rows.adopt();
        let mut left: HashMap<u64, u32> = self.rows.all().map(|row| (self.rows.get(row, REQUEST), row)).collect();
        // Some were answered, and are never sent again. The oldest are, once there are many.
        if left.len() > TURNS_MAX / 2 {
            let mut requests: Vec<u64> = left.keys().copied().collect();
            requests.sort_unstable();
            for request in &requests[..requests.len() - TURNS_MAX / 4] {
                left.remove(request).inspect(|row| self.rows.give_back(*row));
            }
        }
        *lock(&self.left) = left;
    }

    /// Whether a predecessor has left a part of which it is not known whether it was done.
    pub(crate) fn has_unsettled(&self) -> bool {
        lock(&self.left).values().any(|row| self.rows.get(*row, PARTS) & NUMBER != 0)
    }

    /// What predecessors have asked under this number was done.
    pub(crate) fn settle(&self, number: u64) {
        for row in lock(&self.left).values() {
            let parts = self.rows.get(*row, PARTS);
            if parts & NUMBER == number {
                self.rows.set(*row, PARTS, with_one_more(parts));
            }
        }
    }

    /// Nothing else was.
    pub(crate) fn settled(&self) {
        for row in lock(&self.left).values() {
            self.rows.set(*row, PARTS, self.rows.get(*row, PARTS) & !NUMBER);
        }
    }

    /// A request comes, by its number.
    pub(crate) fn take(&self, unique: u64) -> Turn<'_> {
        let request = unique & !RESENT;
        let known = if unique == request { None } else { lock(&self.left).remove(&request) };
        if let Some(row) = known {
            let before = match self.rows.get(row, STAGE) {
                0 => None,
                BEGUN => Some(Before::Begun(self.rows.get(row, FIRST), self.rows.get(row, SECOND))),
                done => Some(Before::Done((done - DONE) as i32)),
            };
            let parts_left = Cell::new(self.rows.get(row, PARTS) >> NUMBER_BITS);
            return Turn { turns: self, row: Some(row), before, unique, parts_left };
        }
        let row = self.rows.take().ok();
        if let Some(row) = row {
            self.rows.fill(row, &[request, 0, 0, 0, 0]);
        }
        Turn { turns: self, row, before: None, unique, parts_left: Cell::new(0) }
    }
}

fn with_one_more(parts: u64) -> u64 {
    (parts & !NUMBER) + (1 << NUMBER_BITS)
}

impl Turn<'_> {
    /// What was done of it before.
    pub(crate) fn before(&self) -> Option<Before> {
        self.before
    }

    /// What it has begun with, now or before.
    pub(crate) fn begun_with(&self) -> Option<u64> {
        let has_begun = self.before.is_some();
        self.row.filter(|_| has_begun).map(|row| self.turns.rows.get(row, FIRST))
    }

    /// Whether it was done before: with the error that it had, and where only the source knows, `looks` looks there.
    pub(crate) fn was_done(&self, looks: impl FnOnce() -> bool) -> io::Result<bool> {
        match self.before {
            None => Ok(false),
            Some(Before::Begun(..)) => Ok(looks()),
            Some(Before::Done(0)) => Ok(true),
            Some(Before::Done(code)) => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// The number of the request, with its mark.
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// The source is about to be changed.
    pub(crate) fn begin(&self, first: u64, second: u64) {
        self.set(FIRST, first);
        self.set(SECOND, second);
        self.set(STAGE, BEGUN);
        at(Point::Begun);
    }

    /// The source was changed, or not.
    pub(crate) fn done<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        at(Point::Changed);
        let code = outcome.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        self.set(STAGE, DONE + code as u64);
        at(Point::Done);
        outcome
    }

    fn change_parts(&self, change: impl FnOnce(u64) -> u64) {
        if let Some(row) = self.row {
            self.turns.rows.set(row, PARTS, change(self.turns.rows.get(row, PARTS)));
        }
    }

    fn set(&self, at: usize, value: u64) {
        if let Some(row) = self.row {
            self.turns.rows.set(row, at, value);
        }
    }
}

impl Once for Turn<'_> {
    fn skips(&self) -> bool {
        let left = self.parts_left.get();
        self.parts_left.set(left.saturating_sub(1));
        left > 0
    }

    fn sends(&self, number: u64) {
        self.change_parts(|parts| (parts & !NUMBER) | (number & NUMBER));
    }

    fn ended(&self, is_done: bool) {
        at(Point::Answered);
        self.change_parts(|parts| if is_done { with_one_more(parts) } else { parts & !NUMBER });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(row) = self.row {
            self.turns.rows.give_back(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_knows_how_far_a_request_was() {
        let turns = Turns::create().unwrap();
        let [untouched, begun, refused, answered] = [1, 2, 3, 4].map(|unique| turns.take(unique));
        begun.begin(70, 80);
        refused.begin(0, 0);
        let refusal: io::Result<()> = Err(io::Error::from_raw_os_error(libc::EEXIST));
        assert!(refused.done(refusal).is_err());
        drop(answered);
        // The server is killed.
        [untouched, begun, refused].into_iter().for_each(std::mem::forget);
        turns.adopt();
        assert_eq!(turns.take(2).before(), None, "it is another request, with the mark missing");
        let again = turns.take(2 | RESENT);
        assert_eq!((again.before(), again.unique()), (Some(Before::Begun(70, 80)), 2 | RESENT));
        // And the successor, before it has answered.
        std::mem::forget(again);
        turns.adopt();
        for (unique, before) in
            [(1, None), (2, Some(Before::Begun(70, 80))), (3, Some(Before::Done(libc::EEXIST))), (4, None)]
        {
            assert_eq!(turns.take(unique | RESENT).before(), before, "{unique}");
        }
        turns.adopt();
        assert_eq!(turns.rows.all().count(), 0);
    }

    #[test]
    fn a_successor_does_no_part_that_was_done_and_every_other_one() {
        let turns = Turns::create().unwrap();
        let [answered, unanswered] = [1, 2].map(|unique| turns.take(unique));
        for number in 10..13 {
            assert!(!answered.skips());
            answered.sends(number);
            answered.ended(number != 11);
        }
        answered.sends(13);
        unanswered.sends(14);
        [answered, unanswered].into_iter().for_each(std::mem::forget);
        turns.adopt();
        assert!(turns.has_unsettled());
        turns.settle(13);
        turns.settled();
        assert!(!turns.has_unsettled());
        // The third of four was the last that was answered by then.
        let again = turns.take(1 | RESENT);
        assert_eq!([0; 4].map(|_| again.skips()), [true, true, true, false]);
        assert!(!turns.take(2 | RESENT).skips());
    }
}
