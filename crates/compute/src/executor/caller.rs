//! What users hold: requests, and callers that make them.

use super::choice::{Choice, Path};
use super::cpu::Cpu;
use super::job::{CallerId, Cut, Job, Order, Part, split};
use super::kind::Route;
use super::{Options, Shared, worker};
use crate::memory::{HostMemory, Memory, View};
use crate::outcome::{Outcome, Pending, promise};
use crate::service::{Output, Step};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Cancel, Promise};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Work on some memory, which belongs to it until it is over.
#[derive(Debug)]
pub struct Request {
    steps: Vec<Step>,
    source: Memory,
    destination: Option<Memory>,
    path: Option<Path>,
}

/// A request that was not taken, with its memory.
#[derive(Debug)]
pub struct Refused {
    /// The request as it was.
    pub request: Request,
    /// Why it was not taken.
    pub error: Error,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {}

impl Request {
    /// One step over `source`, in place if it writes.
    pub fn new(step: Step, source: impl Into<Memory>) -> Self {
        Self { steps: vec![step], source: source.into(), destination: None, path: None }
    }

    /// Writes elsewhere. The two may not overlap.
    #[must_use]
    pub fn into(self, destination: impl Into<Memory>) -> Self {
        Self { destination: Some(destination.into()), ..self }
    }

    /// One step more, over what the ones before have made of the data, which stays where it is in between. Only
    /// the last step may write more or fewer bytes than it reads, and only if the others only read.
    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Leaves the executor no choice, but that a device which cannot do it leaves it to the CPU all the same.
    #[must_use]
    pub fn on(self, path: Path) -> Self {
        Self { path: Some(path), ..self }
    }
}

/// What was found to be right about a request.
struct Checked {
    output: Output,
    results: Vec<u64>,
    bytes: u64,
    route: Route,
}

/// A request that was taken, and the parts it is cut into.
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
        let id = CallerId(shared.callers.fetch_add(1, Ordering::Relaxed));
        Self { shared: Arc::clone(shared), id, in_order }
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

    /// What becomes of a request, and the parts it is cut into, once there is room for it.
    fn admit(&self, mut request: Request, is_urgent: bool) -> Result<Admitted, Box<Refused>> {
        let shared = &*self.shared;
        let checked = match self.check(&mut request) {
            Ok(checked) => checked,
            Err(error) => return Err(Box::new(Refused { request, error })),
        };
        if let Err(error) = self.settle(&request) {
            return Err(Box::new(Refused { request, error }));
        }
        let Checked { output, results, bytes, route } = checked;
        let kind = shared.kind_of(&request.steps);
        let may_compute = is_urgent && !self.in_order && shared.is_small(&kind, route, bytes);
        let chosen = request.path.map(|path| Choice { path, is_trial: false });
        let Choice { path, is_trial } =
            chosen.unwrap_or_else(|| shared.choose(&kind, route, bytes, (is_urgent, may_compute, 1)));
        let cuts = match split(&request.steps, bytes, self.part_bytes(path, route, (bytes, output))) {
            Ok(cuts) => cuts,
            Err(error) => return Err(Box::new(Refused { request, error })),
        };
        if let Err(error) = shared.admit(self.id) {
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
            was_alone: !self.in_order && shared.is_idle(path),
        };
        Ok(Admitted { order, cuts, by_caller: may_compute && path == Path::Cpu })
    }

    /// Computes a request on this thread, or queues it: then as the job that is returned.
    fn enqueue(&self, admitted: Admitted, cancel: Cancel, promise: Promise<Outcome>) -> Option<Arc<Job>> {
        let Admitted { order, cuts, by_caller } = admitted;
        let job = Job::new(order, cuts.len(), cancel, promise);
        let part =
            |Cut { steps, input, output, results }| Part { job: Arc::clone(&job), steps, input, output, results };
        let parts: Vec<Part> = cuts.into_iter().map(part).collect();
        if by_caller {
            self.compute(&job, parts);
            return None;
        }
        self.shared.enqueue(parts, self.in_order);
        Some(job)
    }

    /// Waits for what the program's default streams hold on memory of its own: the executor's streams know nothing
    /// of them.
    fn settle(&self, request: &Request) -> Result<()> {
        for memory in [Some(&request.source), request.destination.as_ref()].into_iter().flatten() {
            if let Memory::Device(buffer) = memory {
                self.shared.device.settle(buffer.slice())?;
            }
        }
        Ok(())
    }

    /// Computes a job's parts on this thread.
    fn compute(&self, job: &Job, parts: Vec<Part>) {
        let idle = self.shared.lock_idle().pop();
        let mut cpu = idle.unwrap_or_else(|| Cpu::new(&self.shared.device, self.shared.options.cpu_part_bytes));
        let mut are_good = true;
        for part in parts {
            let _ = part.job.begin();
            let outcome = worker::by_cpu(&mut cpu, &part);
            job.kind.count_parts(Path::Cpu, part.bytes(), 0, 0);
            are_good &= outcome.is_ok();
            let Some(ending) = part.finish(Path::Cpu, outcome) else { continue };
            if are_good {
                job.kind.curve(Path::Cpu, job.route).observe(job.bytes, job.ran_ns());
            }
            if job.is_trial {
                job.kind.tried(job.ran_ns());
            }
            self.shared.leave(self.id);
            ending.keep();
        }
        self.shared.lock_idle().push(cpu);
    }

    /// What is cut for a path: what does not travel need not fit into a slot.
    fn part_bytes(&self, path: Path, route: Route, (bytes, output): (u64, Output)) -> u64 {
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

    fn check(&self, request: &mut Request) -> Result<Checked> {
        if self.shared.birth.was_elsewhere() {
            return Err(Error::new(ErrorKind::Forked, "the executor's threads are those of the parent process"));
        }
        let bytes = request.source.len();
        let mut output = Output::Nothing;
        let mut results = vec![];
        for step in &request.steps {
            let shape = step.shape(bytes)?;
            output = match (output, shape.output) {
                (before, Output::Nothing) if !matches!(before, Output::Apart(_)) => before,
                (Output::Nothing | Output::Same, Output::Same) => Output::Same,
                (Output::Nothing, Output::Apart(written)) => Output::Apart(written),
                _ => {
                    return Err(Error::bad(
                        "only the last step of a chain may write elsewhere, and only if it alone writes",
                    ));
                }
            };
            results.push(shape.results);
        }
        let written = output.bytes(bytes);
        match &request.destination {
            Some(_) if output == Output::Nothing => {
                return Err(Error::bad("the request has a destination, and writes nothing"));
            }
            Some(destination) if destination.len() != written => {
                let there = destination.len();
                return Err(Error::bad(format!("the request writes {written} bytes, and its destination has {there}")));
            }
            None if matches!(output, Output::Apart(_)) => {
                return Err(Error::bad(format!("the request writes {written} bytes, and has no destination")));
            }
            _ => {}
        }
        let source = request.source.view();
        let destination = request.destination.as_mut().map(|memory| (memory.view(), written));
        for (view, len) in [Some((source, bytes)), destination].into_iter().flatten() {
            check_device(view, len)?;
        }
        if let Some((view, written)) = destination
            && overlap((source, bytes), (view, written))
        {
            return Err(Error::bad("source and destination overlap; a request in place has no destination"));
        }
        let target_on_device = destination.map_or(source.is_device(), |(view, _)| view.is_device());
        Ok(Checked { output, results, bytes, route: Route::of(source.is_device(), target_on_device) })
    }
}

fn check_device(view: View, len: u64) -> Result<()> {
    match view {
        View::Device { at } if !at.is_multiple_of(16) && len > 0 => {
            Err(Error::bad(format!("device memory of a request begins at a 16-byte boundary, not at {at:#x}")))
        }
        _ => Ok(()),
    }
}

fn overlap((a, a_len): (View, u64), (b, b_len): (View, u64)) -> bool {
    let start = |view| match view {
        View::Host { at, .. } => at.0 as u64,
        View::Device { at } => at,
    };
    let (from, to) = (start(a), start(b));
    a.is_device() == b.is_device() && a_len > 0 && b_len > 0 && from < to + b_len && to < from + a_len
}

/// Memory of a caller's that waits for the request: what [`super::Handle::run`] makes of borrowed slices.
///
/// # Safety
/// The request is waited for before the borrow ends.
pub(crate) unsafe fn borrowed(bytes: &[u8]) -> Memory {
    // SAFETY: the caller's promise; what is only read is not written.
    Memory::Host(unsafe { HostMemory::foreign(bytes.as_ptr().cast_mut(), bytes.len()) })
}
