//! The engines of one request: started as the planner finds work for them, fed while they run,
//! and waited for together.
//!
//! The calling thread plans. When everything is planned it joins the work where a thread is
//! wanted: at an engine that has none yet, or at the page-cache engine.

use super::Engine;
use super::job::Job;
use crate::kind::EngineKind;
use crate::plan::Segment;
use crate::workers::{Group, Workers};
use crate::{ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Makes an engine for a job.
pub(crate) type StartEngine<'a> = dyn Fn(EngineKind, &Arc<Job>) -> Result<Arc<dyn Engine>> + 'a;

/// A job, and its segments as they are planned.
pub(crate) type Planned<'a> = (Arc<Job>, &'a mut dyn Iterator<Item = Result<Vec<Segment>>>);

/// Runs the engines of the jobs of one request, each with its segments, while these are planned, and waits until nothing
/// is in flight.
pub(crate) fn run(workers: &Workers, start: &StartEngine<'_>, jobs: &mut [Planned<'_>]) -> Result<()> {
    let mut flight = Flight::new(workers, start);
    let mut more = true;
    while more && !jobs.iter().any(|(job, _)| job.is_stopped()) {
        more = false;
        for (job, chunks) in &mut *jobs {
            let Some(chunk) = chunks.next() else { continue };
            if let Err(error) = chunk.and_then(|segments| flight.add(job, segments)) {
                job.fail(error);
            }
            more |= chunks.size_hint().1 != Some(0);
        }
        // The last chunk is shared out below, which keeps a part for this thread.
        if more {
            flight.launch();
        }
    }
    if let Some(mine) = flight.share_out() {
        work(&*mine.engine, &mine.job);
    }
    flight.land();
    let failure = jobs.iter().find_map(|(job, _)| job.take_failure());
    // A job that others have stopped has no failure of its own, and is not done either.
    let stopped = jobs.iter().find(|(job, _)| job.was_stopped());
    let stopped = || stopped.map(|(job, _)| job.error(ErrorKind::Cancelled, "another member of the set failed"));
    failure.or_else(stopped).map_or(Ok(()), Err)
}

/// The engines at work on the jobs of one request.
struct Flight<'a> {
    workers: &'a Workers,
    start: &'a StartEngine<'a>,
    group: Group,
    active: Vec<Active>,
}

struct Active {
    job: Arc<Job>,
    kind: EngineKind,
    engine: Arc<dyn Engine>,
    /// Bytes planned for it, and threads that were given to it.
    bytes: u64,
    threads: usize,
}

impl<'a> Flight<'a> {
    /// A flight with no engine yet; `start` makes them.
    fn new(workers: &'a Workers, start: &'a StartEngine<'a>) -> Self {
        Self { workers, start, group: Group::default(), active: vec![] }
    }

    /// Gives planned segments of a job to its engines, in file order.
    fn add(&mut self, job: &Arc<Job>, segments: Vec<Segment>) -> Result<()> {
        for segment in segments {
            let is_for = |active: &Active| active.kind == segment.engine && Arc::ptr_eq(&active.job, job);
            let at = match self.active.iter().position(is_for) {
                Some(at) => at,
                None => self.start_engine(job, segment.engine)?,
            };
            let active = &mut self.active[at];
            active.bytes += segment.length;
            active.engine.feed().push(job.add(segment));
        }
        Ok(())
    }

    /// Lets threads begin with what was added, while the caller plans on. What one thread is to copy out of the
    /// page cache is the caller's: handing it over would take longer than planning.
    fn launch(&mut self) {
        for at in self.storage_first() {
            let active = &self.active[at];
            if active.kind != EngineKind::Cached || active.engine.threads(u64::MAX) > 1 {
                self.give_threads(at, 0);
            }
        }
    }

    /// Engines in the order in which they get threads. Those that wait for disks need one each, and
    /// soon; the page cache takes what is left.
    fn storage_first(&self) -> Vec<usize> {
        let (cached, storage): (Vec<_>, Vec<_>) =
            (0..self.active.len()).partition(|at| self.active[*at].kind == EngineKind::Cached);
        [storage, cached].concat()
    }

    /// Says that everything is planned, and gives threads to all that wants some, but for one thread's share, which is
    /// left to the caller.
    fn share_out(&mut self) -> Option<&Active> {
        self.close();
        let idle = self.active.iter().position(|active| active.threads == 0);
        let wants_more = |active: &Active| active.threads < active.engine.threads(active.bytes);
        let mine = idle.or_else(|| self.active.iter().position(wants_more));
        for at in self.storage_first() {
            self.give_threads(at, usize::from(mine == Some(at)));
        }
        mine.map(|at| &self.active[at])
    }

    /// Waits until the engines have done everything, and all of it has landed.
    fn land(self) {
        self.workers.wait(&self.group);
        for active in &self.active {
            active.engine.finish();
        }
    }

    fn close(&self) {
        for active in &self.active {
            active.engine.feed().close();
        }
    }

    fn start_engine(&mut self, job: &Arc<Job>, kind: EngineKind) -> Result<usize> {
        let engine = (self.start)(kind, job)?;
        self.active.push(Active { job: Arc::clone(job), kind, engine, bytes: 0, threads: 0 });
        Ok(self.active.len() - 1)
    }

    /// Gives an engine the threads that its bytes deserve, less `others` that it gets elsewhere.
    fn give_threads(&mut self, at: usize, others: usize) {
        let active = &mut self.active[at];
        while active.threads + others < active.engine.threads(active.bytes) {
            let (engine, job) = (Arc::clone(&active.engine), Arc::clone(&active.job));
            self.workers.run(&self.group, move || work(&*engine, &job));
            active.threads += 1;
        }
    }
}

/// One thread's share of an engine's work. A panic in it, a bug here or in a driver, may have lost
/// a batch that nobody else will move, so it fails the request.
pub(crate) fn work(engine: &dyn Engine, job: &Job) {
    if catch_unwind(AssertUnwindSafe(|| engine.work())).is_err() {
        job.fail(job.error(ErrorKind::Panicked, "an engine panicked, which is a bug; please report it"));
    }
}

impl Drop for Flight<'_> {
    /// Also when the planner panics, nothing may write to the destination after the request.
    fn drop(&mut self) {
        self.close();
        self.workers.wait(&self.group);
    }
}
