//! Threads for work that nobody waits for here, started when there is work and kept.
//!
//! *Fills* do host work only, which a closed gate of some stream may wait for: they never wait for a device,
//! a slot, or another fill, so there is always one that goes on. *Requests* are whole requests of batches,
//! which may wait for all of these.

use bifolio_device::without_signals;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) static FILLS: Threads = Threads::new("bifolio-cufile-fill", 8);
pub(crate) static REQUESTS: Threads = Threads::new("bifolio-cufile", 16);
/// Ends what may wait for a device, such as the registrations of a file.
pub(crate) static ENDINGS: Threads = Threads::new("bifolio-cufile-end", 1);

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Threads {
    name: &'static str,
    most: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    jobs: VecDeque<Job>,
    started: usize,
    idle: usize,
}

impl Threads {
    const fn new(name: &'static str, most: usize) -> Self {
        let queue = Mutex::new(Queue { jobs: VecDeque::new(), started: 0, idle: 0 });
        Self { name, most, queue, changed: Condvar::new() }
    }

    /// Runs `job` on some thread soon; here and at once where the system gives no thread.
    pub(crate) fn run(&'static self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.lock();
        queue.jobs.push_back(Box::new(job));
        if queue.idle < queue.jobs.len() && queue.started < self.most {
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            queue.started += usize::from(without_signals(|| thread.spawn(|| self.work())).is_ok());
        }
        if queue.started == 0 {
            let job = queue.jobs.pop_back();
            drop(queue);
            job.into_iter().for_each(run);
            return;
        }
        drop(queue);
        self.changed.notify_one();
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                run(job);
                queue = self.lock();
            } else {
                queue.idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A panic is a bug in a job, which is dropped and so reports itself; the thread goes on for the others.
fn run(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}
