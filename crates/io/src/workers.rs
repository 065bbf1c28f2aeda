//! Threads that help with requests, kept between them: starting a thread costs more than a short
//! read takes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce() + Send>;

/// A fixed set of threads with one queue. Tasks do not wait for other tasks of the same queue.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Workers {
    /// Starts `count` threads, or as many as the system allows; with none, [`Workers::run`] does
    /// the work on the calling thread.
    pub(crate) fn start(count: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let start = |number| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("bifolio-io-{number}")).spawn(move || shared.work()).ok()
        };
        let threads = (0..count).map_while(start).collect();
        Self { shared, threads }
    }

    /// Runs `task` on some thread soon, counted in `group`. Without threads it runs here and now.
    pub(crate) fn run(&self, group: &Group, task: impl FnOnce() + Send + 'static) {
        let member = group.join();
        let task = move || {
            // Leaves the group also when the task panics.
            let _member = member;
            task();
        };
        if self.threads.is_empty() {
            return task();
        }
        lock(&self.shared.queue).tasks.push_back(Box::new(task));
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                // A panic is a bug in a task; the thread goes on for the others.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
                queue = lock(&self.queue);
            } else if queue.closed {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Tasks that somebody waits for together.
#[derive(Debug, Default, Clone)]
pub(crate) struct Group {
    running: Arc<(Mutex<usize>, Condvar)>,
}

/// One running task; leaving is by drop.
struct Member(Group);

impl Group {
    fn join(&self) -> Member {
        *lock(&self.running.0) += 1;
        Member(self.clone())
    }

    /// Waits until no task of the group runs or is queued.
    pub(crate) fn wait(&self) {
        let mut running = lock(&self.running.0);
        while *running > 0 {
            running = self.running.1.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let (running, left) = &*self.0.running;
        *lock(running) -= 1;
        left.notify_all();
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
                    assert!(threads == 0 || number != 50, "planted");
                });
            }
            group.wait();
            assert_eq!(done.load(Ordering::SeqCst), 100, "{threads} threads");
        }
    }
}
