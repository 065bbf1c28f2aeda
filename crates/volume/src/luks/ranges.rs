//! Which sectors the requests in flight use, so that none sees, or puts back, a sector that is half another's.
//!
//! A sector is decrypted and encrypted as a whole: a read that overlaps a write could get the first half of the
//! new ciphertext and the second of the old one, which decrypts to neither. And a write of part of a sector reads
//! it first: what another write stores in between would be lost. So a write has its sectors to itself, and reads
//! share theirs. Requests that want the same sectors go in the order in which they came.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The ranges in use. There are as many as threads that call, so that a list serves.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    inner: Mutex<InUse>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct InUse {
    next: u64,
    /// Oldest first; those that wait are among them.
    entries: Vec<Entry>,
    waiting: usize,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    range: Range<u64>,
    writes: bool,
}

/// A range in use until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Ranges {
    /// Waits until the range is free for a read.
    pub(super) fn read(&self, range: Range<u64>) -> Held<'_> {
        self.hold(range, false)
    }

    /// Waits until the range is free for a write.
    pub(super) fn write(&self, range: Range<u64>) -> Held<'_> {
        self.hold(range, true)
    }

    /// How many are held or waited for.
    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn hold(&self, range: Range<u64>, writes: bool) -> Held<'_> {
        let mut in_use = self.lock();
        let number = in_use.next;
        in_use.next += 1;
        in_use.entries.push(Entry { number, range, writes });
        while in_use.must_wait(number) {
            in_use.waiting += 1;
            in_use = self.left.wait(in_use).unwrap_or_else(PoisonError::into_inner);
            in_use.waiting -= 1;
        }
        Held { ranges: self, number }
    }

    fn lock(&self) -> MutexGuard<'_, InUse> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse {
    /// Whether an older entry stands in the way.
    fn must_wait(&self, number: u64) -> bool {
        let Some(at) = self.entries.iter().position(|entry| entry.number == number) else { return false };
        let (older, own) = (&self.entries[..at], &self.entries[at]);
        older.iter().any(|other| {
            (other.writes || own.writes) && other.range.start < own.range.end && own.range.start < other.range.end
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut in_use = self.ranges.lock();
        in_use.entries.retain(|entry| entry.number != self.number);
        if in_use.waiting > 0 {
            self.ranges.left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn reads_share_and_other_ranges_do_not_wait() {
        let ranges = Ranges::default();
        let _reads = [ranges.read(0..10), ranges.read(5..15)];
        let _write = ranges.write(15..20);
        assert_eq!(ranges.len(), 3);
    }

    #[test]
    fn a_write_waits_for_older_reads_and_later_reads_wait_for_it() {
        let ranges = Ranges::default();
        let read = ranges.read(0..10);
        let (written, order) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _write = ranges.write(9..12);
                assert_eq!(order.fetch_add(1, Ordering::SeqCst), 1, "after the older read");
                written.store(true, Ordering::SeqCst);
            });
            while ranges.len() < 2 {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                let _read = ranges.read(11..12);
                assert!(written.load(Ordering::SeqCst), "a later read does not overtake the write");
            });
            while ranges.len() < 3 {
                std::thread::yield_now();
            }
            assert_eq!(order.fetch_add(1, Ordering::SeqCst), 0);
            drop(read);
        });
        assert_eq!(ranges.len(), 0);
    }
}
