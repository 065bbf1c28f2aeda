//! Counts that each thread keeps for itself.
//!
//! The smallest requests take 40 ns, and a processor works on the next one before the last is over. An addition that
//! other threads see at once (a locked one) takes 6 ns, and keeps the processor from that: it doubles what such a
//! request takes. So each thread adds to counts that nobody else writes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests and their bytes, of any number of threads.
#[derive(Debug)]
pub(crate) struct Tallies {
    /// Nobody else's, ever.
    id: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    threads: Vec<Arc<Tally>>,
    /// Of threads that are gone.
    requests: u64,
    bytes: u64,
}

/// Counts of one thread.
#[derive(Debug)]
struct Tally {
    /// The number of those whose they are.
    owner: u64,
    /// What all threads had counted when this one began.
    begin: u64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

thread_local! {
    /// This thread's, the one that was used last in front.
    static MINE: RefCell<Vec<Arc<Tally>>> = const { RefCell::new(Vec::new()) };
}

impl Default for Tallies {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), inner: Mutex::default() }
    }
}

impl Tallies {
    /// Counts a request; how many there were before, as far as this thread knows: all that were counted before it came,
    /// and its own.
    pub(crate) fn count(&self, bytes: u64) -> u64 {
        let counted = self.with_mine(|tally| {
            let before = tally.requests.load(Ordering::Relaxed);
            // Nobody else writes it.
            tally.requests.store(before + 1, Ordering::Relaxed);
            tally.bytes.store(tally.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
            tally.begin + before
        });
        counted.unwrap_or_else(|| {
            // The thread is ending, and its own counts are gone already.
            let mut inner = self.lock();
            inner.requests += 1;
            inner.bytes += bytes;
            inner.requests - 1
        })
    }

    /// Requests and bytes of all threads.
    pub(crate) fn sum(&self) -> (u64, u64) {
        self.lock().sum()
    }

    /// None while the thread ends.
    fn with_mine<T>(&self, work: impl FnOnce(&Tally) -> T) -> Option<T> {
        MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            if mine.first().is_none_or(|first| first.owner != self.id) {
                self.bring_to_front(&mut mine);
            }
            work(&mine[0])
        })
        .ok()
    }

    #[cold]
    fn bring_to_front(&self, mine: &mut Vec<Arc<Tally>>) {
        let owner = self.id;
        // Without those whose owner is gone.
        mine.retain(|tally| Arc::strong_count(tally) > 1);
        let at = mine.iter().position(|tally| tally.owner == owner).unwrap_or_else(|| {
            let mut inner = self.lock();
            let (begin, _) = inner.sum();
            let tally = Arc::new(Tally { owner, begin, requests: AtomicU64::new(0), bytes: AtomicU64::new(0) });
            inner.threads.push(Arc::clone(&tally));
            mine.push(tally);
            mine.len() - 1
        });
        mine.swap(0, at);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn sum(&mut self) -> (u64, u64) {
        self.fold();
        let of_threads = self.threads.iter().map(|tally| tally.read());
        of_threads.fold((self.requests, self.bytes), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Takes over what threads that are gone have counted.
    fn fold(&mut self) {
        let (requests, bytes) = (&mut self.requests, &mut self.bytes);
        self.threads.retain(|tally| {
            let is_alive = Arc::strong_count(tally) > 1;
            if !is_alive {
                // What the thread wrote is seen before its share is gone: dropping an `Arc` releases.
                std::sync::atomic::fence(Ordering::Acquire);
                let (more, more_bytes) = tally.read();
                (*requests, *bytes) = (*requests + more, *bytes + more_bytes);
            }
            is_alive
        });
    }
}

impl Tally {
    fn read(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}
