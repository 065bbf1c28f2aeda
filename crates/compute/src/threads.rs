//! Threads of the host, which long work is shared out to.
//!
//! ```text
//!   ThreadPool::divide ──short──> the caller's own thread
//!        └──long──> the caller's own thread, and tickets ──> threads that are idle
//!   ThreadPool::post ──> a thread, or the caller's own where the system gives none
//! ```
//!
//! A thread is started when work comes that none is idle for, up to a limit, and ends when there was nothing to do for a
//! while. Who divides work does all of it alone if nobody comes: no thread has to be there, and none that is busy is
//! waited for, so that work which is divided may divide its own. Tickets that nobody has taken by the end are taken back,
//! which bounds what waits.
//!
//! A child of `fork(2)` has none of the threads: there the caller does everything, but for [`ThreadPool::of_process`],
//! which begins anew.
//!
//! One lock guards the tickets and is held for moments only.

use bifolio_device::fork::Birth;
use bifolio_device::without_signals;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Threads of the process's own pool. More than processors, as storage code waits for disks in between.
const OF_PROCESS_MAX: usize = 64;
/// Nobody gets more threads for one piece of work that computes.
const WIDTH_MAX: usize = 16;
/// A thread that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);

/// Threads that work is shared out to. Clones are the same.
#[derive(Debug, Clone)]
pub struct ThreadPool(Arc<Shared>);

struct Shared {
    limit: usize,
    tickets: Mutex<Tickets>,
    /// There is a ticket.
    for_threads: Condvar,
    /// Callers that divide long work just now.
    dividing: AtomicUsize,
    birth: Birth,
}

#[derive(Default)]
struct Tickets {
    waiting: VecDeque<Ticket>,
    threads: usize,
    /// Threads that wait for a ticket.
    idle: usize,
}

/// What a thread does next.
enum Ticket {
    /// Help with work that is divided.
    Share(Arc<Division>),
    Errand(Box<dyn FnOnce() + Send>),
}

/// Work that is divided, as threads see it.
struct Division {
    /// Borrowed from who divides, who waits until nobody helps any more.
    work: &'static (dyn Fn() + Sync),
    /// Threads that are at it; changed under the lock of the tickets.
    helping: AtomicUsize,
    /// None of them is any more.
    over: Condvar,
}

/// The parts of divided work that nobody has begun, and how the others ended.
struct Parts<I, E> {
    rest: std::iter::Enumerate<I>,
    /// The first part that failed, and how.
    failure: Option<(usize, End<E>)>,
}

enum End<E> {
    Error(E),
    Panic(Box<dyn Any + Send>),
}

impl ThreadPool {
    /// Threads for whoever computes on host memory in this process.
    pub fn of_process() -> &'static Self {
        static CURRENT: AtomicPtr<ThreadPool> = AtomicPtr::new(std::ptr::null_mut());
        let known = CURRENT.load(Ordering::Acquire);
        // SAFETY: what is there was leaked, and never changes.
        if let Some(pool) = unsafe { known.as_ref() }
            && !pool.0.birth.was_elsewhere()
        {
            return pool;
        }
        // No lock: a thread of the parent process might have held it.
        let new = Box::into_raw(Box::new(Self::new(OF_PROCESS_MAX)));
        match CURRENT.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: nobody frees it from here on.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: what is there was leaked, and never changes.
                unsafe { &*other }
            }
        }
    }

    /// A pool of at most so many threads.
    pub(crate) fn new(limit: usize) -> Self {
        let (tickets, for_threads, dividing) = Default::default();
        Self(Arc::new(Shared { limit, tickets, for_threads, dividing, birth: Birth::here() }))
    }

    /// How many threads, the caller's own among them, a piece of work gets that computes on `bytes`: one for every
    /// `bytes_min`, but no more than its share of the processors beside others that divide work now.
    pub fn width(&self, bytes: u64, bytes_min: u64) -> usize {
        let others = self.0.dividing.load(Ordering::Relaxed);
        let share = processors() / (others + 1);
        share.min(WIDTH_MAX).min(usize::try_from(bytes / bytes_min).unwrap_or(WIDTH_MAX)).max(1)
    }

    /// Does `work` on every part, by this thread and up to `width - 1` others at the same time. Once a part has failed no
    /// other one is begun.
    ///
    /// # Errors
    /// That of the first part that failed, when no thread is at any of them any more.
    ///
    /// # Panics
    /// Like the work.
    pub fn divide<P, E: Send>(
        &self,
        width: usize,
        parts: impl IntoIterator<Item = P, IntoIter: ExactSizeIterator + Send>,
        work: impl Fn(P) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let mut parts = parts.into_iter();
        let others = width.min(parts.len()).saturating_sub(1);
        if others == 0 || self.0.birth.was_elsewhere() {
            return parts.try_for_each(work);
        }
        let parts = Mutex::new(Parts { rest: parts.enumerate(), failure: None });
        let take = || {
            let mut parts = lock(&parts);
            if parts.failure.is_some() { None } else { parts.rest.next() }
        };
        let one = || {
            while let Some((number, part)) = take() {
                let end = match catch_unwind(AssertUnwindSafe(|| work(part))) {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => End::Error(error),
                    Err(panic) => End::Panic(panic),
                };
                let failure = &mut lock(&parts).failure;
                if failure.as_ref().is_none_or(|(first, _)| number < *first) {
                    *failure = Some((number, end));
                }
            }
        };
        self.with_others(others, &one);
        match parts.into_inner().unwrap_or_else(PoisonError::into_inner).failure {
            None => Ok(()),
            Some((_, End::Error(error))) => Err(error),
            Some((_, End::Panic(panic))) => resume_unwind(panic),
        }
    }

    /// Calls `work` on this thread, and meanwhile on as many others as come, up to `others`; returns when all have.
    fn with_others(&self, others: usize, work: &(dyn Fn() + Sync)) {
        let division = Arc::new(Division {
            // SAFETY: only the lifetime changes. Threads call it between taking a ticket and leaving the division, and the
            // guard below waits for those, and takes the tickets back, before the borrow ends.
            work: unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) },
            helping: AtomicUsize::new(0),
            over: Condvar::new(),
        });
        self.0.dividing.fetch_add(1, Ordering::Relaxed);
        let guard = Recall { pool: &self.0, division: &division };
        self.queue((0..others).map(|_| Ticket::Share(Arc::clone(&division))));
        work();
        drop(guard);
    }

    /// Has a thread run `errand`, or runs it now where the system gives no thread, or this is a child of the process that
    /// made the pool.
    pub(crate) fn post(&self, errand: impl FnOnce() + Send + 'static) {
        if self.0.birth.was_elsewhere() {
            return errand();
        }
        self.queue(std::iter::once(Ticket::Errand(Box::new(errand))));
    }

    /// Queues tickets, and starts threads for those that nobody is idle for.
    fn queue(&self, new: impl Iterator<Item = Ticket>) {
        let (count, missing) = {
            let mut tickets = self.0.lock();
            let before = tickets.waiting.len();
            tickets.waiting.extend(new);
            let missing = tickets.waiting.len().saturating_sub(tickets.idle);
            let missing = missing.min(self.0.limit.saturating_sub(tickets.threads));
            tickets.threads += missing;
            (tickets.waiting.len() - before, missing)
        };
        for _ in 0..count {
            self.0.for_threads.notify_one();
        }
        for started in 0..missing {
            let shared = Arc::clone(&self.0);
            let builder = std::thread::Builder::new().name("bifolio-compute".to_owned());
            if without_signals(|| builder.spawn(move || shared.serve())).is_err() {
                self.0.lock().threads -= missing - started;
                break;
            }
        }
        self.run_abandoned();
    }

    /// Runs the errands that no thread will ever come for, as there is none.
    fn run_abandoned(&self) {
        let errands: Vec<Ticket> = {
            let mut tickets = self.0.lock();
            if tickets.threads > 0 {
                return;
            }
            let (errands, shares): (VecDeque<_>, VecDeque<_>) =
                tickets.waiting.drain(..).partition(|ticket| matches!(ticket, Ticket::Errand(_)));
            tickets.waiting = shares;
            errands.into()
        };
        for errand in errands {
            self.0.run(errand);
        }
    }
}

/// Takes tickets back that nobody has taken, and waits for those who have.
struct Recall<'a> {
    pool: &'a Shared,
    division: &'a Arc<Division>,
}

impl Drop for Recall<'_> {
    fn drop(&mut self) {
        self.pool.dividing.fetch_sub(1, Ordering::Relaxed);
        let mut tickets = self.pool.lock();
        tickets
            .waiting
            .retain(|ticket| !matches!(ticket, Ticket::Share(division) if Arc::ptr_eq(division, self.division)));
        while self.division.helping.load(Ordering::Relaxed) > 0 {
            tickets = self.division.over.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Tickets> {
        lock(&self.tickets)
    }

    /// What a thread does until there is nothing to do.
    fn serve(&self) {
        let mut tickets = self.lock();
        loop {
            if let Some(ticket) = tickets.waiting.pop_front() {
                if let Ticket::Share(division) = &ticket {
                    division.helping.fetch_add(1, Ordering::Relaxed);
                }
                drop(tickets);
                self.run(ticket);
                tickets = self.lock();
                continue;
            }
            tickets.idle += 1;
            let waited = self.for_threads.wait_timeout(tickets, IDLE).unwrap_or_else(PoisonError::into_inner);
            tickets = waited.0;
            tickets.idle -= 1;
            if waited.1.timed_out() && tickets.waiting.is_empty() {
                tickets.threads -= 1;
                return;
            }
        }
    }

    fn run(&self, ticket: Ticket) {
        match ticket {
            Ticket::Share(division) => {
                // It keeps its own panics.
                let _ = catch_unwind(AssertUnwindSafe(division.work));
                let _tickets = self.lock();
                if division.helping.fetch_sub(1, Ordering::Relaxed) == 1 {
                    division.over.notify_one();
                }
            }
            // A panic is reported by whoever waits for the errand, and the thread goes on for others.
            Ticket::Errand(errand) => _ = catch_unwind(AssertUnwindSafe(errand)),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Asked once, as the answer takes 40 us where there are control groups.
pub(crate) fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    fn sum(pool: &ThreadPool, width: usize, count: u64) -> u64 {
        let total = Mutex::new(0);
        let add = |part: u64| -> Result<(), ()> {
            *lock(&total) += part;
            Ok(())
        };
        pool.divide(width, (0..count).collect::<Vec<_>>(), add).unwrap();
        total.into_inner().unwrap()
    }

    #[test]
    fn every_part_is_done_once_by_however_many_there_are() {
        for limit in [0, 1, 3] {
            let pool = ThreadPool::new(limit);
            for (width, count) in [(0, 3), (1, 5), (4, 0), (4, 1), (4, 100), (100, 7)] {
                assert_eq!(sum(&pool, width, count), (0..count).sum());
            }
        }
    }

    #[test]
    fn parts_are_done_at_the_same_time() {
        let (pool, all) = (ThreadPool::new(2), Barrier::new(3));
        // Nobody gets on before all three are at it.
        pool.divide(3, [(); 3], |()| -> Result<(), ()> {
            all.wait();
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn the_first_failure_is_told_and_nothing_more_is_begun() {
        let pool = ThreadPool::new(1);
        let (both, begun) = (Barrier::new(2), AtomicUsize::new(0));
        let failed = pool.divide(2, 0..100_usize, |part| {
            begun.fetch_add(1, Ordering::Relaxed);
            if part < 2 {
                both.wait();
            }
            Err::<(), _>(part)
        });
        assert_eq!((failed, begun.into_inner()), (Err(0), 2));
    }

    #[test]
    fn a_panic_of_the_work_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(2);
        let panics = |part: usize| if part == 7 { panic!("on purpose") } else { Ok::<(), ()>(()) };
        let caught = catch_unwind(AssertUnwindSafe(|| pool.divide(3, 0..20_usize, panics)));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"on purpose"));
        assert_eq!(sum(&pool, 3, 10), 45);
    }

    #[test]
    fn divided_work_divides_its_own_whoever_is_busy() {
        let pool = ThreadPool::new(2);
        let total = AtomicUsize::new(0);
        let inner = |part: usize| -> Result<(), ()> {
            total.fetch_add(part, Ordering::Relaxed);
            Ok(())
        };
        pool.divide(8, 0..50_usize, |_| pool.divide(8, 0..10_usize, inner)).unwrap();
        assert_eq!(total.into_inner(), 50 * 45);
    }

    #[test]
    fn errands_are_run_by_a_thread_or_by_whoever_posts_them() {
        for (limit, is_own) in [(0, true), (1, false)] {
            let (pool, (done, is_done)) = (ThreadPool::new(limit), channel());
            let here = std::thread::current().id();
            pool.post(move || done.send(std::thread::current().id() == here).unwrap());
            assert_eq!(is_done.recv().unwrap(), is_own);
        }
    }

    #[test]
    fn work_gets_more_threads_only_where_it_is_long_and_processors_are_idle() {
        let pool = ThreadPool::new(8);
        assert_eq!(pool.width(0, 100), 1);
        assert_eq!(pool.width(199, 100), 1);
        assert_eq!(pool.width(u64::MAX, 1), processors().min(WIDTH_MAX));
        pool.0.dividing.store(processors(), Ordering::Relaxed);
        assert_eq!(pool.width(u64::MAX, 1), 1);
    }

    #[test]
    fn a_child_of_this_process_has_a_pool_of_its_own() {
        let pool = ThreadPool::of_process();
        assert_eq!(sum(pool, 4, 100), 4950);
        // SAFETY: the child computes and ends; what it allocates is its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = sum(pool, 4, 10) == 45 && sum(ThreadPool::of_process(), 4, 10) == 45;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    }
}
