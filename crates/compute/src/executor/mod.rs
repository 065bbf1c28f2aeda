//! The executor: requests from many callers, merged and split, computed by the CPU or the device, whichever is
//! over first.
//!
//! ```text
//!   Caller::run ──small, CPU──> the caller's own thread
//!   Caller::submit ─> choose ─> split ─> turns by bytes ─┬─> shifts of the process's threads
//!                       ^                                └─> gather ─> pipelines: copy in, kernels, copy out
//!                       └── curves <── what requests took ──────────────┘          └─failed─> CPU
//! ```
//!
//! From the bottom up: `options`, `job` (a request that was taken, and its tasks), `request`, `fair` (turns), `layout`
//! (where a batch lies on the device), `cpu` and `pipeline` (how a task is computed), `queue`, `chain`, `shared` (what
//! all of an executor share), `worker` (what becomes of tasks), `caller`, `handle`, `calibrate`, and the executor itself.
//!
//! Decisions are pure: `cost::choose` (who computes), `cost::Curve` (what it takes, and the knee up to which small
//! requests are merged), `job::split` (where large ones are cut), `fair` (whose turn it is), `layout`. One lock guards the
//! queue and is held for decisions only. Threads: one a pipeline, which waits for its stream; those of the CPU's path are
//! the process's ([`crate::ThreadPool`]), of which an executor has so many at a time as its options say, and where the
//! system gives none the caller computes. When the executor is dropped, what was submitted is still done.
//!
//! On failure: an error of one message or request is its own. A device that fails a batch takes no more work of
//! that kind for a second, and twice as long each time that it fails again, up to a minute; a lost one never does.
//! `ServiceStatistics::device_off` says why, and the CPU computes the batch and all that follow meanwhile,
//! unless the only copy of a source was being written over in device memory: that request fails.

mod calibrate;
mod caller;
mod chain;
mod cpu;
mod fair;
mod handle;
mod job;
mod layout;
mod options;
mod pipeline;
mod queue;
mod request;
mod shared;
mod worker;

pub use caller::Caller;
pub use handle::Handle;
pub use options::{Options, WhenFull};
pub use request::{Refused, Request};

use crate::cost::ServiceStatistics;
use crate::kernels::Kernels;
use crate::service::Service;
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Device, without_signals};
use shared::Shared;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long pipelines have to get their memory before anything else goes on.
const PATIENCE: Duration = Duration::from_secs(10);

/// Computes the requests of its callers.
#[derive(Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    pipelines: Vec<JoinHandle<()>>,
}

impl Executor {
    /// An executor with a device. No device memory is allocated before the device has its first work, unless the options say so.
    ///
    /// # Errors
    /// `Device` if the threads of its pipelines cannot be started.
    pub fn new(device: &Device, options: Options) -> Result<Self> {
        let mut executor = Self { shared: Arc::new(Shared::new(device, options)), pipelines: vec![] };
        let (ready, is_ready) = mpsc::channel();
        for _ in 0..executor.shared.options.pipelines {
            executor.start_pipeline(ready.clone())?;
        }
        drop(ready);
        // Each thread lets go of its end when it has what it needs. A device that does not answer holds nobody up for ever.
        let _ = is_ready.recv_timeout(PATIENCE);
        Ok(executor)
    }

    fn start_pipeline(&mut self, ready: Sender<()>) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("bifolio-pipeline".to_owned());
        let thread = without_signals(|| builder.spawn(move || worker::pipeline(&shared, ready)));
        let started =
            thread.map_err(|error| Error::caused(ErrorKind::Device, "starting a thread for the device failed", error));
        self.pipelines.push(started?);
        Ok(())
    }

    /// The device's kernels, for making services.
    pub fn kernels(&self) -> &Kernels {
        &self.shared.kernels
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// What the executor may use.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Makes a service known. The first of its name is measured, if the options say so.
    pub fn register<S: Service>(&self, service: Arc<S>) -> Handle<S> {
        let (kind, is_new) = self.shared.kind(service.name());
        if let Some(reason) = service.refusal() {
            kind.turn_off(reason);
        }
        let handle = Handle::new(&self.shared, service, kind);
        if is_new && self.shared.options.calibrates {
            calibrate::measure(&self.shared, &handle);
        }
        handle
    }

    /// A new caller: its requests take turns with those of others, and may overtake each other.
    pub fn caller(&self) -> Caller {
        Caller::new(&self.shared, false)
    }

    /// A new caller each of whose requests begins only when the one before is over.
    pub fn caller_in_order(&self) -> Caller {
        Caller::new(&self.shared, true)
    }

    /// What happened so far, for each kind of work.
    pub fn statistics(&self) -> Vec<ServiceStatistics> {
        self.shared.lock_kinds().iter().map(|kind| kind.statistics()).collect()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if self.shared.birth.was_elsewhere() {
            // The threads are the parent's.
            self.pipelines.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.queue.close();
        for thread in self.pipelines.drain(..) {
            let _ = thread.join();
        }
        self.shared.forget_cpus();
    }
}
