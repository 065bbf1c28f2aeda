//! A service of an executor: makes steps of requests, and computes small borrowed ones at once.

use super::caller::Caller;
use super::request::{Request, borrowed};
use super::shared::{Question, Shared};
use crate::cost::{Choice, Kind, Path, Route, TIME_EVERY};
use crate::memory::{HostMemory, Memory};
use crate::service::{Data, Service, Shape, Step};
use crate::{Error, Result};
use std::sync::Arc;
use std::time::Instant;

/// A service that an executor knows. Clones are the same.
#[derive(Debug)]
pub struct Handle<S: Service> {
    shared: Arc<Shared>,
    service: Arc<S>,
    kind: Arc<Kind>,
    caller: Caller,
}

impl<S: Service> Clone for Handle<S> {
    fn clone(&self) -> Self {
        let (shared, service, kind) = (Arc::clone(&self.shared), Arc::clone(&self.service), Arc::clone(&self.kind));
        Self { shared, service, kind, caller: self.caller.clone() }
    }
}

impl<S: Service> Handle<S> {
    pub(crate) fn new(shared: &Arc<Shared>, service: Arc<S>, kind: Arc<Kind>) -> Self {
        Self { shared: Arc::clone(shared), service, kind, caller: Caller::new(shared, false) }
    }

    /// The service.
    pub fn service(&self) -> &Arc<S> {
        &self.service
    }

    /// A step of a request.
    pub fn step(&self, params: S::Params) -> Step {
        Step::new(&self.service, &self.kind, params)
    }

    /// Why the device does none of its work, or failed at it when it was tried last; a sentence without its full stop.
    pub fn device_off(&self) -> Option<String> {
        self.kind.why_off()
    }

    /// Why the device could not take a request that was meant for it, so that the CPU computed it, though the device was well: the
    /// first such reason, as a sentence without its full stop.
    pub fn unsuited(&self) -> Option<&str> {
        self.kind.unsuited()
    }

    /// From how many bytes of host memory on, up to `most`, a larger request gains the device little, as far as it was measured by
    /// now; `most` if nothing is known.
    pub fn knee(&self, most: u64) -> u64 {
        self.kind.knee(Route::HostToHost, most)
    }

    pub(crate) fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    /// Computes on borrowed host memory, and waits for it. Where the CPU is the right one for it and it is small,
    /// this thread computes it, without a queue or an allocation: the way for small requests one at a time.
    ///
    /// # Errors
    /// Those of the request. What is in the output then is of no use, but it is no plaintext of a wrong message.
    // Inlined, as every instruction between two of the smallest requests keeps them from overlapping in the processor.
    #[inline]
    pub fn run(&self, params: &S::Params, data: Data<'_>, results: &mut [u8]) -> Result<()> {
        let bytes = data.input().len() as u64;
        let has_room = match self.service.shape(params, bytes) {
            Ok(shape) => {
                let (written, there) = (shape.output.bytes(bytes), data.output_len() as u64);
                let fits = there == written || written == 0 && matches!(data, Data::InPlace(_));
                fits && results.len() as u64 == shape.results
            }
            Err(_) => false,
        };
        if !has_room {
            return Err(self.no_room(params, &data, results.len() as u64));
        }
        let is_settled = self.kind.is_settled(bytes);
        if is_settled && !self.kind.count_inline(bytes) {
            return self.service.on_cpu(params, data, results).map_err(|error| error.of(self.kind.name()));
        }
        self.run_chosen(params, data, results, is_settled)
    }

    /// Why data is not what a request needs.
    #[cold]
    fn no_room(&self, params: &S::Params, data: &Data<'_>, results: u64) -> Error {
        let bytes = data.input().len() as u64;
        let error = match self.service.shape(params, bytes) {
            Ok(Shape { output, results: found }) if found == results => {
                let (written, there) = (output.bytes(bytes), data.output_len());
                Error::bad(format!("the request writes {written} bytes to a buffer of {there}"))
            }
            Ok(Shape { results: found, .. }) => {
                Error::bad(format!("the request has {found} bytes of results, and the buffer for them {results}"))
            }
            Err(error) => error,
        };
        error.of(self.kind.name())
    }

    /// The same for a request that is chosen for. It may have been counted as one to be timed: then it stands for all
    /// that were not chosen for.
    #[inline(never)]
    fn run_chosen(&self, params: &S::Params, data: Data<'_>, results: &mut [u8], is_timed: bool) -> Result<()> {
        let bytes = data.input().len() as u64;
        let name = |error: Error| error.of(self.kind.name());
        let (chosen, stays) = self.choose(bytes, if is_timed { TIME_EVERY } else { 1 });
        if !stays {
            if is_timed {
                self.kind.take_back_inline(bytes);
            }
            return self.submit(params, data, results, chosen);
        }
        let is_trial = chosen.is_trial;
        if !is_timed && !self.kind.count_inline(bytes) && !is_trial {
            return self.service.on_cpu(params, data, results).map_err(name);
        }
        let begin = Instant::now();
        self.service.on_cpu(params, data, results).map_err(name)?;
        let ns = begin.elapsed().as_nanos() as f32;
        self.kind.curve(Path::Cpu, Route::HostToHost).observe(bytes, ns);
        if is_trial {
            self.kind.tried(ns);
        }
        Ok(())
    }

    /// The path of a request, and whether it stays on this thread.
    fn choose(&self, bytes: u64, turns: u64) -> (Choice, bool) {
        let route = Route::HostToHost;
        let is_small = self.shared.is_small(&self.kind, route, bytes);
        let question = Question { route, bytes, is_urgent: true, by_caller: is_small, turns };
        let chosen = self.shared.choose(&self.kind, question);
        let stays = chosen.path == Path::Cpu && is_small;
        if !chosen.is_trial {
            self.kind.settle(Some(bytes).filter(|_| stays));
        }
        (chosen, stays)
    }

    fn submit(&self, params: &S::Params, data: Data<'_>, results: &mut [u8], chosen: Choice) -> Result<()> {
        let begin = Instant::now();
        let step = self.step(params.clone());
        // SAFETY: `run` waits until nobody uses the memory any more, and the borrows last until then.
        let request = unsafe {
            match data {
                Data::Read(input) => Request::new(step, borrowed(input)),
                Data::InPlace(data) => {
                    Request::new(step, Memory::Host(HostMemory::foreign(data.as_mut_ptr(), data.len())))
                }
                Data::Apart(input, output) => Request::new(step, borrowed(input))
                    .into(Memory::Host(HostMemory::foreign(output.as_mut_ptr(), output.len()))),
            }
        };
        let outcome = self.caller.run(request.on(chosen.path));
        if chosen.is_trial {
            self.kind.tried(begin.elapsed().as_nanos() as f32);
        }
        let answers = outcome.result?;
        results.copy_from_slice(&answers.results[0]);
        Ok(())
    }
}
