//! Requests: steps over memory, and whether they fit it.

use crate::cost::{Path, Route};
use crate::memory::{HostMemory, Memory, View};
use crate::service::{Output, Step};
use crate::{Error, Result};

/// Work on some memory, which belongs to it until it is over.
#[derive(Debug)]
pub struct Request {
    pub(crate) steps: Vec<Step>,
    pub(crate) source: Memory,
    pub(crate) destination: Option<Memory>,
    pub(crate) path: Option<Path>,
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
pub(crate) struct Checked {
    pub(crate) output: Output,
    pub(crate) results: Vec<u64>,
    pub(crate) bytes: u64,
    pub(crate) route: Route,
}

impl Request {
    /// Whether its steps fit each other and its memory.
    pub(crate) fn check(&mut self) -> Result<Checked> {
        let bytes = self.source.len();
        let mut output = Output::Nothing;
        let mut results = vec![];
        for step in &self.steps {
            let shape = step.shape(bytes)?;
            output = match (output, shape.output) {
                (before, Output::Nothing) if !matches!(before, Output::Apart(_)) => before,
                (Output::Nothing | Output::Same, Output::Same) => Output::Same,
                (Output::Nothing, Output::Apart(written)) => Output::Apart(written),
                _ => {
                    return Err(Error::bad(
                        "only the last step of a chain may write to a destination, and only if no other step writes",
                    ));
                }
            };
            results.push(shape.results);
        }
        let written = output.bytes(bytes);
        match &self.destination {
            Some(_) if output == Output::Nothing => {
                return Err(Error::bad("the request has a destination but writes nothing"));
            }
            Some(destination) if destination.len() != written => {
                let there = destination.len();
                return Err(Error::bad(format!("the request writes {written} bytes to a destination of {there}")));
            }
            None if matches!(output, Output::Apart(_)) => {
                return Err(Error::bad(format!("the request writes {written} bytes and has no destination")));
            }
            _ => {}
        }
        let source = self.source.view();
        let destination = self.destination.as_mut().map(|memory| (memory.view(), written));
        for (view, len) in [Some((source, bytes)), destination].into_iter().flatten() {
            check_device(view, len)?;
        }
        if let Some((view, written)) = destination
            && overlap((source, bytes), (view, written))
        {
            return Err(Error::bad("source and destination overlap; leave out the destination to write in place"));
        }
        let target_on_device = destination.map_or(source.is_device(), |(view, _)| view.is_device());
        Ok(Checked { output, results, bytes, route: Route::of(source.is_device(), target_on_device) })
    }
}

fn check_device(view: View, len: u64) -> Result<()> {
    match view {
        View::Device { at } if !at.is_multiple_of(16) && len > 0 => {
            Err(Error::bad(format!("device memory must be aligned to 16 bytes, and {at:#x} is not")))
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
