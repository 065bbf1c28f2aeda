//! Who submits requests, and waits for them.

use super::job::{CallerId, Cut, Job, Order, Task, split};
use super::options::Options;
use super::request::{Checked, Refused, Request};
use super::shared::{Question, Shared};
use super::worker;
use crate::cost::{Choice, Path, Route};
use crate::memory::Memory;
use crate::outcome::{Outcome, Pending, promise};
use crate::service::Output;
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Cancel, Promise};
use std::sync::Arc;

/// A request that was taken, and the tasks it is cut into.
struct Admitted {
    order: Order,
    cuts: Vec<Cut>,
    /// The thread that submits it computes it.
    by_caller: bool,
}

/// Somebody with requests. Clones are the same caller.
#[derive(Debug, Clone)]
pub struct Caller {
    shared: Arc<Shared>,
    id: CallerId,
    in_order: bool,
}

impl Caller {
    pub(crate) fn new(shared: &Arc<Shared>, in_order: bool) -> Self {
        Self { shared: Arc::clone(shared), id: shared.next_caller(), in_order }
    }

    /// Submits a request. Where as many are under way as may be, waits or refuses, see [`super::WhenFull`]. Waits for
    /// what the program's default streams hold, if memory of the request is foreign.
    ///
    /// # Errors
    /// The request with `BadArgument`, `Busy`, `Closed` or `Forked`.
    pub fn submit(&self, request: Request) -> Result<Pending, Box<Refused>> {
        let admitted = self.admit(request, false)?;
        let cancel = Cancel::default();
        let (promise, pending) = promise(&cancel);
        self.enqueue(admitted, cancel, promise);
        Ok(pending)
    }

    /// The same with a function that is called at the end, by the thread that ends the request. It keeps that
    /// thread from other work: it should be short, and not wait for anything, least of all for room to submit.
    ///
    /// # Errors
    /// As [`Caller::submit`].
    pub fn submit_with(
        &self,
        request: Request,
        callback: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), Box<Refused>> {
        let admitted = self.admit(request, false)?;
        self.enqueue(admitted, Cancel::default(), Promise::calling(callback, Outcome::lost));
        Ok(())
    }

    /// Computes a request and waits for it: on this thread, if the CPU is the right one for it and it is small.
    pub fn run(&self, request: Request) -> Outcome {
        let admitted = match self.admit(request, true) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let Request { source, destination, .. } = refused.request;
                return Outcome { source: Some(source), destination, result: Err(refused.error) };
            }
        };
        let cancel = Cancel::default();
        let (promise, pending) = promise(&cancel);
        let queued = self.enqueue(admitted, cancel, promise);
        let outcome = pending.wait();
        if let Some(job) = queued {
            job.learn_from_caller();
        }
        outcome
    }

    /// What becomes of a request, and the tasks it is cut into, once there is room for it.
    fn admit(&self, mut request: Request, is_urgent: bool) -> Result<Admitted, Box<Refused>> {
        let shared = &*self.shared;
        let Checked { output, results, bytes, route } = match self.check(&mut request) {
            Ok(checked) => checked,
            Err(error) => return Err(Box::new(Refused { request, error })),
        };
        let kind = shared.kind_of(&request.steps);
        let may_compute = is_urgent && !self.in_order && shared.is_small(&kind, route, bytes);
        let chosen = request.path.map(|path| Choice { path, is_trial: false });
        let Choice { path, is_trial } = chosen.unwrap_or_else(|| {
            shared.choose(&kind, Question { route, bytes, is_urgent, by_caller: may_compute, turns: 1 })
        });
        let cuts = match split(&request.steps, bytes, self.task_bytes(path, route, (bytes, output))) {
            Ok(cuts) => cuts,
            Err(error) => return Err(Box::new(Refused { request, error })),
        };
        if let Err(error) = shared.queue.admit(self.id) {
            return Err(Box::new(Refused { request, error }));
        }
        let expected_ns = kind.expect(path, route, bytes, !is_urgent).unwrap_or(0.0) as u64;
        let order = Order {
            caller: self.id,
            path,
            kind,
            route,
            bytes,
            is_urgent,
            is_trial,
            source: request.source,
            destination: request.destination,
            output,
            results,
            expected_ns,
            // What waits for the one before it is not alone, wherever that is.
            was_alone: !self.in_order && shared.queue.jobs(path) == 0,
        };
        Ok(Admitted { order, cuts, by_caller: may_compute && path == Path::Cpu })
    }

    /// Computes a request on this thread, or queues it: then as the job that is returned.
    fn enqueue(&self, admitted: Admitted, cancel: Cancel, promise: Promise<Outcome>) -> Option<Arc<Job>> {
        let Admitted { order, cuts, by_caller } = admitted;
        let job = Job::new(order, cuts.len(), cancel, promise);
        let task =
            |Cut { steps, input, output, results }| Task { job: Arc::clone(&job), steps, input, output, results };
        let tasks: Vec<Task> = cuts.into_iter().map(task).collect();
        if by_caller {
            self.compute(&job, tasks);
            return None;
        }
        worker::post(&self.shared, self.shared.queue.enqueue(tasks, self.in_order));
        Some(job)
    }

    /// Whether the request is one, once what the program's default streams hold on its memory is over: the executor's
    /// streams know nothing of them.
    fn check(&self, request: &mut Request) -> Result<Checked> {
        if self.shared.birth.was_elsewhere() {
            return Err(Error::new(
                ErrorKind::Forked,
                "this process was forked from the one that made the executor; make another one here",
            ));
        }
        let checked = request.check()?;
        for memory in [Some(&request.source), request.destination.as_ref()].into_iter().flatten() {
            if let Memory::Device(buffer) = memory {
                self.shared.device.settle(buffer.slice())?;
            }
        }
        Ok(checked)
    }

    /// Computes a job's tasks on this thread.
    fn compute(&self, job: &Job, tasks: Vec<Task>) {
        let mut cpu = self.shared.take_cpu();
        let mut are_good = true;
        for task in tasks {
            let _ = task.job.begin();
            let outcome = worker::by_cpu(&mut cpu, &task);
            job.kind.count_parts(Path::Cpu, task.bytes(), 0, 0);
            are_good &= outcome.is_ok();
            let Some(ending) = task.finish(Path::Cpu, outcome) else { continue };
            if are_good {
                job.kind.curve(Path::Cpu, job.route).observe(job.bytes, job.ran_ns());
            }
            if job.is_trial {
                job.kind.tried(job.ran_ns());
            }
            self.shared.queue.leave(self.id);
            ending.keep();
        }
        self.shared.put_back(cpu);
    }

    /// What is cut for a path: what does not travel need not fit into a slot.
    fn task_bytes(&self, path: Path, route: Route, (bytes, output): (u64, Output)) -> u64 {
        let Options { cpu_part_bytes, slot_bytes, .. } = self.shared.options;
        match (path, route, output) {
            (Path::Cpu, ..) => cpu_part_bytes,
            // What is written has to fit as well.
            (Path::Device, _, Output::Apart(written)) if written > bytes => {
                (u128::from(slot_bytes) * u128::from(bytes) / u128::from(written)) as u64
            }
            (Path::Device, Route::DeviceToDevice, Output::Same | Output::Nothing) => 4 * slot_bytes,
            (Path::Device, ..) => slot_bytes,
        }
    }
}
