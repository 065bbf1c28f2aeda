//! Order between writes and reads of the same bytes through one handle: locks of ranges, first come
//! first served.
//!
//! A ticket takes its place in the order when it is made; waiting for it may come later, on another
//! thread. Reads share, writes exclude; ranges that do not overlap never wait for each other. A
//! ticket waits only for older ones, so waiting ends.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The locks of one file.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
    left: Condvar,
    line: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Oldest first: those that hold their range, and those that wait for it.
    list: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    range: Range<u64>,
    mode: Mode,
}

/// What is done with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// A place in the order; dropping it gives the range up.
#[derive(Debug)]
pub(crate) struct Ticket {
    ranges: Arc<Ranges>,
    number: u64,
}

impl Ranges {
    /// Takes a place in the order.
    pub(crate) fn ticket(self: &Arc<Self>, range: Range<u64>, mode: Mode) -> Ticket {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.list.push(Entry { number, range, mode });
        Ticket { ranges: Arc::clone(self), number }
    }

    /// Held while a ticket is taken and something is queued that will wait for it.
    pub(crate) fn line_up(&self) -> MutexGuard<'_, ()> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Waits until no older ticket is in the way.
    pub(crate) fn wait(&self) {
        let mut state = self.ranges.lock();
        while state.is_blocked(self.number) {
            state = self.ranges.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn is_blocked(&self, number: u64) -> bool {
        let Some(mine) = self.list.iter().find(|entry| entry.number == number) else { return false };
        let conflicts = |other: &&Entry| {
            (mine.mode == Mode::Write || other.mode == Mode::Write)
                && other.range.start < mine.range.end
                && mine.range.start < other.range.end
        };
        self.list.iter().take_while(|other| other.number < number).any(|other| conflicts(&other))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ranges.lock().list.retain(|entry| entry.number != self.number);
        self.ranges.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn may_go(ticket: &Ticket) -> bool {
        !ticket.ranges.lock().is_blocked(ticket.number)
    }

    proptest! {
        #[test]
        fn a_ticket_waits_for_exactly_the_older_ones_in_its_way(
            list in proptest::collection::vec((0_u64..30, 1_u64..10, any::<bool>()), 1..20)
        ) {
            let ranges = Arc::new(Ranges::default());
            let mode = |write| if write { Mode::Write } else { Mode::Read };
            let mut held: Vec<_> = list.iter().map(|(start, len, write)| {
                (ranges.ticket(*start..start + len, mode(*write)), *start..start + len, *write)
            }).collect();
            while !held.is_empty() {
                for (at, (ticket, range, write)) in held.iter().enumerate() {
                    let blocked = held[..at].iter().any(|(_, other, other_write)| {
                        (*write || *other_write) && range.clone().any(|byte| other.contains(&byte))
                    });
                    prop_assert_eq!(may_go(ticket), !blocked);
                }
                prop_assert!(may_go(&held[0].0), "the oldest is never blocked");
                held.remove(0);
            }
        }
    }

    #[test]
    fn a_write_waits_for_a_read_of_the_same_bytes() {
        let ranges = Arc::new(Ranges::default());
        let read = ranges.ticket(0..10, Mode::Read);
        let write = ranges.ticket(5..15, Mode::Write);
        assert!(!may_go(&write));
        let waiter = std::thread::spawn(move || write.wait());
        drop(read);
        waiter.join().unwrap();
    }
}
