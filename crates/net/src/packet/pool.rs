//! What is kept of packets that are gone, to be used again: by the thread that let go of it, and what is too much there by
//! whoever needs it.
//!
//! ```text
//!   thread:   up to two chunks, the youngest first      ──full: a chunk──>   depot: chunks of all threads
//!                                                       <──empty: a chunk──
//! ```
//!
//! A thread that makes packets and another one that lets go of them so share one memory, and neither asks the system for it.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};
use std::thread::LocalKey;

/// How many things go to the depot, or come from there, at a time.
const CHUNK: usize = 1024;

/// Chunks that no thread has.
pub(super) struct Depot<T> {
    chunks: Mutex<Vec<Vec<T>>>,
    /// How many it keeps.
    most: usize,
}

impl<T> Depot<T> {
    /// A depot of at most so many chunks.
    pub(super) const fn new(most: usize) -> Self {
        Self { chunks: Mutex::new(Vec::new()), most }
    }

    /// Keeps a chunk, if there are not too many.
    pub(super) fn give(&self, chunk: Vec<T>) {
        if chunk.is_empty() {
            return;
        }
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if chunks.len() < self.most {
            return chunks.push(chunk);
        }
        // What it has ends without the lock: it may have things of other depots.
        drop(chunks);
        drop(chunk);
    }

    /// A chunk, which has some.
    pub(super) fn take(&self) -> Option<Vec<T>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// What a thread keeps.
pub(super) struct Pool<T: 'static> {
    kept: Vec<T>,
    depot: &'static Depot<T>,
}

impl<T: 'static> Pool<T> {
    pub(super) const fn new(depot: &'static Depot<T>) -> Self {
        Self { kept: Vec::new(), depot }
    }

    /// Something that is kept.
    #[inline]
    pub(super) fn get(&mut self) -> Option<T> {
        self.kept.pop().or_else(|| self.get_from_depot())
    }

    /// What is got after so many others, if the thread keeps as many.
    #[inline]
    pub(super) fn later(&self, others: usize) -> Option<&T> {
        self.kept.len().checked_sub(others + 1).map(|at| &self.kept[at])
    }

    #[cold]
    fn get_from_depot(&mut self) -> Option<T> {
        self.kept = self.depot.take()?;
        self.kept.pop()
    }

    /// Keeps something.
    #[inline]
    pub(super) fn put(&mut self, thing: T) {
        if self.kept.len() >= 2 * CHUNK {
            self.give_to_depot();
        }
        self.kept.push(thing);
    }

    #[cold]
    fn give_to_depot(&mut self) {
        // The oldest ones: the youngest are in the processor's caches.
        let rest = self.kept.split_off(CHUNK);
        self.depot.give(std::mem::replace(&mut self.kept, rest));
        self.kept.reserve(CHUNK);
    }

    /// Keeps many things, of which there are none.
    pub(super) fn fill(&mut self, things: Vec<T>) {
        self.kept = things;
    }
}

impl<T: 'static> Drop for Pool<T> {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        if !kept.is_empty() {
            self.depot.give(kept);
        }
    }
}

/// Works on a thread's pool, unless the thread is about to end.
#[inline]
pub(super) fn with<T, R>(pool: &'static LocalKey<RefCell<Pool<T>>>, work: impl FnOnce(&mut Pool<T>) -> R) -> Option<R> {
    pool.try_with(|pool| work(&mut pool.borrow_mut())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn one_who_makes_and_one_who_lets_go_share_what_there_is() {
        static DEPOT: Depot<Box<usize>> = Depot::new(64);
        let (mut maker, mut ender) = (Pool::new(&DEPOT), Pool::new(&DEPOT));
        let mut made = 0;
        for _ in 0..20 {
            let make = |made: &mut usize| {
                *made += 1;
                Box::new(*made)
            };
            let things: Vec<_> = (0..5000).map(|_| maker.get().unwrap_or_else(|| make(&mut made))).collect();
            let mut different: Vec<_> = things.iter().map(|thing| **thing).collect();
            different.sort_unstable();
            different.dedup();
            assert_eq!(different.len(), 5000, "nobody gets what another one has");
            for thing in things {
                ender.put(thing);
            }
            assert!(ender.kept.len() <= 2 * CHUNK);
        }
        assert!(made <= 5000 + 2 * CHUNK, "{made} were made for 5000 at a time");
        drop((maker, ender));
        let kept: usize = DEPOT.chunks.lock().unwrap().iter().map(Vec::len).sum();
        assert_eq!(kept, made, "a thread that ends leaves what it kept");
    }

    #[test]
    fn a_depot_keeps_no_more_than_it_may() {
        let depot: &'static Depot<Rc<()>> = Box::leak(Box::new(Depot::new(2)));
        let thing = Rc::new(());
        let mut pool = Pool::new(depot);
        (0..10 * CHUNK).for_each(|_| pool.put(Rc::clone(&thing)));
        drop(pool);
        assert_eq!(Rc::strong_count(&thing), 1 + 2 * CHUNK);
    }
}
