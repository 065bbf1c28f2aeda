//! A lock that is given up while something slow is waited for, and ranges that stay locked meanwhile.
//!
//! Operations take turns at what the lock guards, as with any mutex. One that has to wait for a disk has locked the
//! range that it works on before, gives the mutex up for the time of the wait, and finds its range as it has left it:
//! whoever wants to change something there waits until it is given up.
//!
//! Order. Whoever waits for a range holds none: an operation takes all that it needs at once. What it finds to need
//! besides, in the midst of its work, it takes if nobody has it, and does without if somebody has. So there is nobody who
//! holds something and waits for another who does, and no deadlock. Who has waited longest goes first, so that nobody
//! waits for ever while others come and go.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::ops::{Deref, DerefMut, Range};

/// What is guarded.
pub(crate) trait Guarded {
    /// What it keeps for the operation at work, which takes it along when it gives the lock up.
    type Operation: Default;

    /// Changes what it keeps for another operation's.
    fn exchange(&mut self, operation: &mut Self::Operation);

    /// An operation has ended.
    fn end(&mut self, operation: Self::Operation);
}

/// What the holder of a range does with it, while somebody else has the mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Changes it.
    Change,
    /// Has it written, and leaves it as it is: whoever finds it as he needs it may use it.
    Write,
}

/// One lock of a range, for whoever gives it up before the end of his operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

/// Ranges that are locked or waited for. They conflict as if each began and ended with a unit.
#[derive(Debug)]
struct Table {
    unit: u64,
    entries: Vec<Entry>,
    /// The next operation's number, and the next key.
    next: u64,
    /// How often a lock was given up.
    given: u64,
}

#[derive(Debug)]
struct Entry {
    operation: u64,
    /// In the order in which they were asked for.
    key: u64,
    range: Range<u64>,
    hold: Hold,
    is_held: bool,
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A range to whole units.
    fn whole(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.checked_next_multiple_of(self.unit).unwrap_or(u64::MAX);
        range.start / self.unit * self.unit..end
    }

    fn conflict(&self, one: &Range<u64>, other: &Range<u64>) -> bool {
        overlap(&self.whole(one), &self.whole(other))
    }

    /// Whether others than an operation hold something of a range.
    fn is_others(&self, operation: u64, range: &Range<u64>) -> bool {
        self.entries
            .iter()
            .any(|other| other.is_held && other.operation != operation && self.conflict(&other.range, range))
    }

    /// Whether others than an operation change something of a range.
    fn is_changed_by_others(&self, operation: u64, range: &Range<u64>) -> bool {
        self.entries.iter().any(|other| {
            other.is_held && other.hold == Hold::Change && other.operation != operation && overlap(&other.range, range)
        })
    }

    /// Whether all that an operation has asked for is nobody else's, and nobody has waited longer for any of it.
    fn is_its_turn(&self, operation: u64) -> bool {
        let is_in_the_way = |own: &Entry, other: &Entry| {
            other.operation != operation
                && (other.is_held || other.key < own.key)
                && self.conflict(&own.range, &other.range)
        };
        let mut asked = self.entries.iter().filter(|entry| entry.operation == operation && !entry.is_held);
        asked.all(|own| !self.entries.iter().any(|other| is_in_the_way(own, other)))
    }

    fn add(&mut self, operation: u64, range: Range<u64>, hold: Hold, is_held: bool) -> u64 {
        let key = self.number();
        self.entries.push(Entry { operation, key, range, hold, is_held });
        key
    }

    /// Takes entries out; whether there were any.
    fn remove(&mut self, is: impl Fn(&Entry) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| !is(entry));
        let removed = self.entries.len() < before;
        self.given += u64::from(removed);
        removed
    }

    fn holds(&self, operation: u64) -> bool {
        self.entries.iter().any(|entry| entry.operation == operation && entry.is_held)
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Something under a lock, and the locks of its ranges.
#[derive(Debug)]
pub(crate) struct Monitor<T> {
    state: Mutex<State<T>>,
    /// A range was given up.
    given_up: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: T,
    ranges: Table,
    /// Who waits for a range to be given up: waking nobody is a system call, too.
    waiting: usize,
}

impl<T: Guarded> Monitor<T> {
    pub(crate) fn new(value: T) -> Self {
        let ranges = Table { unit: 1, entries: vec![], next: 0, given: 0 };
        Self { state: Mutex::new(State { value, ranges, waiting: 0 }), given_up: Condvar::new() }
    }

    /// Begins an operation. Its ranges are given up with what is returned.
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        Locked::begin(self, self.enter())
    }

    /// The same, unless somebody has the mutex.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        use std::sync::TryLockError;
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked::begin(self, state))
    }

    /// Waits until somebody who holds a range at this moment has given one up; returns at once if nobody does.
    pub(crate) fn wait_for_others(&self) {
        let mut state = self.enter();
        let given = state.ranges.given;
        while state.ranges.given == given && state.ranges.entries.iter().any(|entry| entry.is_held) {
            state = self.until_given_up(state);
        }
    }

    fn until_given_up<'a>(&self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        state.waiting += 1;
        state = self.given_up.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    fn enter(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is guarded, in the hands of one operation.
#[derive(Debug)]
pub(crate) struct Locked<'a, T: Guarded> {
    monitor: &'a Monitor<T>,
    /// None while it waits for something.
    state: Option<MutexGuard<'a, State<T>>>,
    operation: u64,
}

/// What others than an operation hold.
pub(crate) struct Others<'a> {
    ranges: &'a Table,
    operation: u64,
}

impl Others<'_> {
    /// Whether they hold something of a range.
    pub(crate) fn hold(&self, range: &Range<u64>) -> bool {
        self.ranges.is_others(self.operation, range)
    }
}

impl<'a, T: Guarded> Locked<'a, T> {
    fn begin(monitor: &'a Monitor<T>, mut state: MutexGuard<'a, State<T>>) -> Self {
        let operation = state.ranges.number();
        state.value.exchange(&mut T::Operation::default());
        Self { monitor, state: Some(state), operation }
    }

    /// Waits for something slow, and lets others at what is guarded meanwhile: save for the ranges that this operation
    /// has locked it may be another one afterwards.
    pub(crate) fn wait<R>(&mut self, slow: impl FnOnce() -> R) -> R {
        let mut own = T::Operation::default();
        self.state().value.exchange(&mut own);
        self.state = None;
        let outcome = slow();
        self.state = Some(self.monitor.enter());
        self.state().value.exchange(&mut own);
        outcome
    }

    /// Locks ranges, once nobody else has any of them. The operation has none.
    pub(crate) fn take(&mut self, ranges: impl IntoIterator<Item = Range<u64>>, hold: Hold) {
        let operation = self.operation;
        let table = &mut self.state().ranges;
        debug_assert!(!table.holds(operation), "who waits for a range holds none");
        for range in ranges {
            table.add(operation, range, hold, false);
        }
        if !self.state().ranges.is_its_turn(operation) {
            self.wait_for_turn();
        }
        let entries = &mut self.state().ranges.entries;
        entries.iter_mut().filter(|entry| entry.operation == operation).for_each(|entry| entry.is_held = true);
    }

    fn wait_for_turn(&mut self) {
        let mut own = T::Operation::default();
        self.state().value.exchange(&mut own);
        while !self.guard().ranges.is_its_turn(self.operation) {
            let state = self.state.take().expect("the operation has the mutex");
            self.state = Some(self.monitor.until_given_up(state));
        }
        self.state().value.exchange(&mut own);
    }

    /// Locks one more range if nobody else has it.
    pub(crate) fn try_take(&mut self, range: Range<u64>, hold: Hold) -> Option<Key> {
        let operation = self.operation;
        let table = &mut self.state().ranges;
        (!table.is_others(operation, &range)).then(|| Key(table.add(operation, range, hold, true)))
    }

    /// Gives one range up.
    pub(crate) fn give(&mut self, key: &Key) {
        self.remove(|entry| entry.key == key.0);
    }

    /// Gives all ranges of the operation up.
    pub(crate) fn give_all(&mut self) {
        let operation = self.operation;
        self.remove(|entry| entry.operation == operation);
    }

    fn remove(&mut self, is: impl Fn(&Entry) -> bool) {
        let state = self.state();
        if state.ranges.remove(is) && state.waiting > 0 {
            self.monitor.given_up.notify_all();
        }
    }

    /// Whether other operations hold a range.
    pub(crate) fn has_others(&self) -> bool {
        let entries = &self.guard().ranges.entries;
        entries.iter().any(|entry| entry.is_held && entry.operation != self.operation)
    }

    /// Whether what a range has, to the byte, is being changed by another operation.
    pub(crate) fn is_changed_by_others(&self, range: &Range<u64>) -> bool {
        self.guard().ranges.is_changed_by_others(self.operation, range)
    }

    /// What is guarded, and what others hold.
    pub(crate) fn with_others(&mut self) -> (&mut T, Others<'_>) {
        let operation = self.operation;
        let State { value, ranges, .. } = self.state();
        (value, Others { ranges, operation })
    }

    /// Ranges conflict by units of this many bytes from now on, if those were shorter.
    pub(crate) fn widen_unit(&mut self, unit: u64) {
        let ranges = &mut self.state().ranges;
        ranges.unit = ranges.unit.max(unit);
    }

    /// A range to whole units.
    pub(crate) fn whole(&self, range: &Range<u64>) -> Range<u64> {
        self.guard().ranges.whole(range)
    }

    fn state(&mut self) -> &mut State<T> {
        self.state.as_mut().expect("the operation has the mutex")
    }

    fn guard(&self) -> &State<T> {
        self.state.as_ref().expect("the operation has the mutex")
    }
}

impl<T: Guarded> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard().value
    }
}

impl<T: Guarded> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state().value
    }
}

impl<T: Guarded> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // None if what was waited for has panicked: what it had counted is lost then.
        if self.state.is_none() {
            self.state = Some(self.monitor.enter());
        }
        let mut own = T::Operation::default();
        let state = self.state();
        state.value.exchange(&mut own);
        state.value.end(own);
        self.give_all();
    }
}
