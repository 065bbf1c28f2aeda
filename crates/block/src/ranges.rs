//! Range locks: reads share, a write excludes, and ranges that do not overlap never wait for each other.
//!
//! The unit is the user's: sectors of an encrypted volume, so that none is read or joined while half of it is another's;
//! stripes of an array, so that data and parity fit while somebody looks at both.
//!
//! Requests that want the same range go in the order in which they came, so that none starves. A request waits for
//! older ones only, so that waiting ends, as long as a thread holds one range at a time. Whoever leaves wakes exactly those
//! that nothing stands in the way of any more: with one condition for all, sixteen writers of one stripe would wake each
//! other in vain.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// The ranges in use. There are as many as threads that call, so that a list serves.
#[derive(Debug, Default)]
pub struct Ranges(Mutex<InUse>);

#[derive(Debug, Default)]
struct InUse {
    next: u64,
    /// Oldest first; those that wait are among them.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    range: Range<u64>,
    writes: bool,
    /// Who waits for it.
    waiter: Option<Thread>,
}

/// A range in use until this is dropped.
#[derive(Debug)]
#[must_use = "the range is free again when this is dropped"]
pub struct Held<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Ranges {
    /// With room for so many threads at a time, so that none of them allocates.
    pub fn for_threads(count: usize) -> Self {
        Self(Mutex::new(InUse { next: 0, entries: Vec::with_capacity(count) }))
    }

    /// Waits until the range is free for a read.
    pub fn read(&self, range: Range<u64>) -> Held<'_> {
        self.hold(range, false)
    }

    /// Waits until the range is free for a write.
    pub fn write(&self, range: Range<u64>) -> Held<'_> {
        self.hold(range, true)
    }

    /// How many are held or waited for.
    pub fn in_use(&self) -> usize {
        self.lock().entries.len()
    }

    fn hold(&self, range: Range<u64>, writes: bool) -> Held<'_> {
        let mut in_use = self.lock();
        let number = in_use.next;
        in_use.next += 1;
        in_use.entries.push(Entry { number, range, writes, waiter: None });
        let last = in_use.entries.len() - 1;
        if in_use.is_blocked(last) {
            in_use.entries[last].waiter = Some(thread::current());
        }
        while in_use.waits(number) {
            drop(in_use);
            thread::park();
            in_use = self.lock();
        }
        Held { ranges: self, number }
    }

    fn lock(&self) -> MutexGuard<'_, InUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse {
    fn waits(&self, number: u64) -> bool {
        self.entries.iter().any(|entry| entry.number == number && entry.waiter.is_some())
    }

    /// Whether an older entry stands in the way.
    fn is_blocked(&self, at: usize) -> bool {
        let (older, own) = (&self.entries[..at], &self.entries[at]);
        older.iter().any(|other| {
            (other.writes || own.writes) && other.range.start < own.range.end && own.range.start < other.range.end
        })
    }

    /// Takes an entry out, and wakes those that it alone stood in the way of.
    fn leave(&mut self, number: u64) {
        self.entries.retain(|entry| entry.number != number);
        for at in 0..self.entries.len() {
            if self.entries[at].waiter.is_some() && !self.is_blocked(at) {
                self.entries[at].waiter.take().iter().for_each(Thread::unpark);
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.ranges.lock().leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_testing::{seed, until};
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

    #[test]
    fn reads_share_and_other_ranges_do_not_wait() {
        let ranges = Ranges::default();
        let _reads = [ranges.read(0..10), ranges.read(5..15)];
        let _write = ranges.write(15..20);
        assert_eq!(ranges.in_use(), 3);
    }

    #[test]
    fn a_write_waits_for_older_reads_and_later_reads_wait_for_it() {
        let ranges = Ranges::default();
        let read = ranges.read(0..10);
        let (written, order) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _write = ranges.write(9..12);
                assert_eq!(order.fetch_add(1, Ordering::SeqCst), 1, "after the older read");
                written.store(true, Ordering::SeqCst);
            });
            until("the write waits", || ranges.in_use() == 2);
            scope.spawn(|| {
                let _read = ranges.read(11..12);
                assert!(written.load(Ordering::SeqCst), "a later read does not overtake the write");
            });
            until("the later read waits", || ranges.in_use() == 3);
            assert_eq!(order.fetch_add(1, Ordering::SeqCst), 0);
            drop(read);
        });
        assert_eq!(ranges.in_use(), 0);
    }

    /// Each of 16 cells counts its readers, with a bit for a writer: nobody may see the other kind.
    #[test]
    fn nobody_is_in_a_range_with_a_writer_and_all_come_through() {
        const WRITER: u64 = 1 << 32;
        let (ranges, cells) = (Ranges::default(), [const { AtomicU64::new(0) }; 16]);
        let seed = seed();
        thread::scope(|scope| {
            for number in 0..8 {
                let (ranges, cells) = (&ranges, &cells);
                scope.spawn(move || {
                    let mut draw = fastrand::Rng::with_seed(seed.wrapping_add(number));
                    for _ in 0..2000 {
                        let start = draw.usize(..16);
                        let range = start..draw.usize(start + 1..=16);
                        let bounds = range.start as u64..range.end as u64;
                        let (writes, one) = if draw.u8(..4) == 0 { (true, WRITER) } else { (false, 1) };
                        let _held = if writes { ranges.write(bounds) } else { ranges.read(bounds) };
                        for cell in &cells[range.clone()] {
                            let before = cell.fetch_add(one, Ordering::SeqCst);
                            assert!(before == 0 || (!writes && before < WRITER), "{before:#x}");
                        }
                        for cell in &cells[range] {
                            cell.fetch_sub(one, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(ranges.in_use(), 0);
    }
}
