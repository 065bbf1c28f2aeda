//! Threads that help with requests, kept between them: starting a thread costs more than a short
//! read takes.

use bifolio_device::fork::Birth;
use bifolio_device::without_signals;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks for its next task before it sleeps: requests that follow each other
/// closely find the threads awake.
const SPIN: Duration = Duration::from_micros(50);

/// With fewer processors a looking thread takes time from those who work.
const SPIN_CPUS_MIN: usize = 8;

/// Threads that stand in for those that wait, at most.
const STAND_INS_MAX: usize = 256;

/// A fixed set of threads with one queue. Tasks do not wait for other tasks of the same queue.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    birth: Birth,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Length of the queue, for looking without the lock.
    queued: AtomicUsize,
    spin: Duration,
    /// Threads that stand in at present.
    stand_ins: AtomicUsize,
}

/// See [`Workers::stand_in`].
pub(crate) struct StandIn {
    shared: Arc<Shared>,
    goes_on: Arc<AtomicBool>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        {
            // The lock lets it not sleep between its look and its wait.
            let _queue = lock(&self.shared.queue);
            self.goes_on.store(false, Ordering::Relaxed);
        }
        self.shared.stand_ins.fetch_sub(1, Ordering::Relaxed);
        self.shared.changed.notify_all();
    }
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
}

/// Does `work` for every number below `count`, at the same time as far as the system gives threads; none
/// for one that panicked.
pub(crate) fn at_once<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<Option<T>> {
    let run = |number| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(number))).ok();
    std::thread::scope(|scope| {
        let run = &run;
        let start = |number| std::thread::Builder::new().spawn_scoped(scope, move || run(number)).ok();
        let others: Vec<_> = without_signals(|| (1..count).map(|number| (number, start(number))).collect());
        let first = (count > 0).then(|| run(0));
        let finish = |(number, other): (usize, Option<std::thread::ScopedJoinHandle<'_, Option<T>>>)| match other {
            Some(thread) => thread.join().ok().flatten(),
            None => run(number),
        };
        first.into_iter().chain(others.into_iter().map(finish)).collect()
    })
}

/// A piece of work of some group.
struct Task {
    work: Box<dyn FnOnce() + Send>,
    member: Member,
}

impl Task {
    /// Runs it. A panic is a bug in a task, which reports it itself; the thread goes on for the
    /// others, and the group is left in any case.
    fn run(self) {
        let Self { work, member } = self;
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        drop(member);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Workers {
    /// Starts `count` threads, or as many as the system allows. With none, tasks are done by those
    /// who wait for them.
    pub fn start(count: usize) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let spin = if cpus >= SPIN_CPUS_MIN { SPIN } else { Duration::ZERO };
        let (queue, changed, queued) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
        let stand_ins = AtomicUsize::new(0);
        let shared = Arc::new(Shared { queue, changed, queued, spin, stand_ins });
        let start = |number| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("bifolio-io-{number}"))
                .spawn(move || shared.work(&AtomicBool::new(true)))
                .ok()
        };
        let threads = without_signals(|| (0..count).map_while(start).collect());
        Self { shared, threads, birth: Birth::here() }
    }

    /// Runs `work` on some thread soon, as a part of `group`.
    pub(crate) fn run(&self, group: &Group, work: impl FnOnce() + Send + 'static) {
        let task = Task { work: Box::new(work), member: group.join() };
        lock(&self.shared.queue).tasks.push_back(task);
        self.shared.queued.fetch_add(1, Ordering::Release);
        self.shared.changed.notify_one();
    }

    /// Runs `work`, for which nobody waits, on some thread soon; at once and here where there is no thread,
    /// as the system gave none or this process was forked.
    pub fn run_alone(&self, work: impl FnOnce() + Send + 'static) {
        if self.threads.is_empty() || self.birth.was_elsewhere() {
            return work();
        }
        self.run(&Group::default(), work);
    }

    /// Another thread for the queue as long as the guard lives, for a task that is about to wait for something outside
    /// and may do so for long; none beyond [`STAND_INS_MAX`], or where the system gives none.
    pub(crate) fn stand_in(&self) -> Option<StandIn> {
        let room = |waiting: usize| (waiting < STAND_INS_MAX).then_some(waiting + 1);
        self.shared.stand_ins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        let guard = StandIn { shared: Arc::clone(&self.shared), goes_on: Arc::new(AtomicBool::new(true)) };
        let (shared, goes_on) = (Arc::clone(&self.shared), Arc::clone(&guard.goes_on));
        let builder = std::thread::Builder::new().name("bifolio-io-stand-in".to_owned());
        without_signals(|| builder.spawn(move || shared.work(&goes_on))).ok().map(|_| guard)
    }

    /// Waits until no task of the group runs or is queued. Tasks that no thread has begun are done
    /// here: waiting for a thread to wake up, only to find nothing left to do, would cost more.
    pub(crate) fn wait(&self, group: &Group) {
        while let Some(task) = self.shared.take(|task| task.member.0 == *group) {
            task.run();
        }
        group.wait(self.shared.spin);
    }
}

impl Shared {
    fn take(&self, wanted: impl Fn(&Task) -> bool) -> Option<Task> {
        let mut queue = lock(&self.queue);
        let at = queue.tasks.iter().position(wanted)?;
        self.queued.fetch_sub(1, Ordering::Release);
        queue.tasks.remove(at)
    }

    /// Does what is queued until the queue is closed, or this thread is not to go on.
    fn work(&self, goes_on: &AtomicBool) {
        while goes_on.load(Ordering::Relaxed) {
            if let Some(task) = self.take(|_| true) {
                task.run();
                continue;
            }
            spin_until(self.spin, || self.queued.load(Ordering::Acquire) > 0);
            let mut queue = lock(&self.queue);
            while queue.tasks.is_empty() {
                if queue.closed || !goes_on.load(Ordering::Relaxed) {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            // The threads did not come along, and one of them may have held the lock.
            return self.threads.drain(..).for_each(std::mem::forget);
        }
        // Nobody waits for what was not begun (registrations in the background).
        let left = {
            let mut queue = lock(&self.shared.queue);
            queue.closed = true;
            std::mem::take(&mut queue.tasks)
        };
        drop(left);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Tasks that somebody waits for together.
#[derive(Debug, Default, Clone)]
pub(crate) struct Group {
    state: Arc<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    running: AtomicUsize,
    lock: Mutex<()>,
    left: Condvar,
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

/// One task's place in its group; leaving is by drop.
struct Member(Group);

impl Group {
    fn join(&self) -> Member {
        self.state.running.fetch_add(1, Ordering::AcqRel);
        Member(self.clone())
    }

    fn is_done(&self) -> bool {
        self.state.running.load(Ordering::Acquire) == 0
    }

    fn wait(&self, spin: Duration) {
        spin_until(spin, || self.is_done());
        let mut guard = lock(&self.state.lock);
        while !self.is_done() {
            guard = self.state.left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // The lock lets no waiter sleep between its look at the count and its wait.
        let _guard = lock(&self.0.state.lock);
        self.0.state.running.fetch_sub(1, Ordering::AcqRel);
        self.0.state.left.notify_all();
    }
}

fn spin_until(limit: Duration, done: impl Fn() -> bool) {
    if limit.is_zero() {
        return;
    }
    let started = Instant::now();
    while !done() && started.elapsed() < limit {
        std::hint::spin_loop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_group_waits_for_all_its_tasks_even_when_one_panics() {
        for threads in [0, 1, 4] {
            let (workers, group, done) = (Workers::start(threads), Group::default(), Arc::new(AtomicUsize::new(0)));
            for number in 0..100 {
                let done = Arc::clone(&done);
                workers.run(&group, move || {
                    done.fetch_add(1, Ordering::SeqCst);
                    assert!(number != 50, "planted");
                });
            }
            workers.wait(&group);
            assert_eq!(done.load(Ordering::SeqCst), 100, "{threads} threads");
        }
    }
    #[test]
    fn what_is_done_at_once_is_done_in_its_place_and_a_panic_is_nothing() {
        for count in [0, 1, 5] {
            let outcomes = at_once(count, |number| {
                assert!(number != 3, "planted");
                number * 10
            });
            assert_eq!(outcomes, (0..count).map(|number| (number != 3).then_some(number * 10)).collect::<Vec<_>>());
        }
    }
}
