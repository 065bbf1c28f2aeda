//! The executor: requests from many callers, merged and split, computed by the CPU or the device, whichever is
//! over first.
//!
//! ```text
//!   Caller::run ──small, CPU──> the caller's own thread
//!   Caller::submit ─> choose ─> split ─> turns by bytes ─┬─> CPU threads
//!                       ^                                └─> gather ─> lanes: copy in, kernels, copy out
//!                       └── curves <── what requests took ──────────────┘          └─failed─> CPU
//! ```
//!
//! Decisions are pure: `choice` (who computes), `curve` (what it takes, and the knee up to which small
//! requests are merged), `job::split` (where large ones are cut), `fair` (whose turn it is), `layout` (where
//! a batch lies on the device). One lock guards the queues and is held for decisions only. Threads: one a
//! lane, which waits for its stream, and some for the CPU. When the executor is dropped, what was submitted is
//! still done.
//!
//! On failure: an error of one message or request is its own. A device that fails a batch takes no more work of
//! that kind, `ServiceStatistics::device_off` says why, and the CPU computes the batch and all that follow,
//! unless the only copy of a source was being written over in device memory: that request fails.

mod calibrate;
mod caller;
mod choice;
mod cpu;
mod curve;
mod fair;
mod handle;
mod job;
mod kernels;
mod kind;
mod lane;
mod layout;
mod queue;
mod tally;
mod worker;

pub use caller::{Caller, Refused, Request};
pub use choice::Path;
pub use handle::Handle;
pub use kernels::{Kernels, Loaded};
pub(crate) use kind::Kind;
pub use kind::{Route, ServiceStatistics};

use crate::service::{Service, Step, chain_name};
use crate::{Error, ErrorKind, Result};
use bifolio_device::Device;
use bifolio_device::fork::Birth;
use choice::{Choice, Outlook, choose, trial_ratio};
use cpu::Cpu;
use queue::Queues;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Work of one thread that others are woken for, in nanoseconds.
const SHARED_NS_MIN: f32 = 400e3;

/// What an executor may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Batches on the device at a time, each with a stream and a thread; at least 1.
    pub lanes: usize,
    /// Threads for the CPU's path, besides callers that wait; at least 1.
    pub cpu_threads: usize,
    /// Bytes of a part that travels to or from the device. Each lane has twice as much pinned memory and twice
    /// as much device memory, and half as much again for tables.
    pub slot_bytes: u64,
    /// Bytes of a part for the CPU.
    pub cpu_part_bytes: u64,
    /// Requests of one caller under way at a time.
    pub depth: usize,
    /// What happens to the next one.
    pub when_full: WhenFull,
    /// How long a small request waits for others to share its batch.
    pub merge_wait: Duration,
    /// Whether services are measured when they are registered, for 100 ms or so each kind. Without, the device is
    /// taken for those only that ask for it, until their completions have shown what it takes.
    pub calibrates: bool,
}

/// What a caller with too many requests under way gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits.
    Wait,
    /// The request comes back with the error `Busy`.
    Refuse,
}

impl Default for Options {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            lanes: 4,
            // One is left to callers, and on the smallest machines two threads would only be in each other's way.
            cpu_threads: (cpus - 1).clamp(1, 8),
            slot_bytes: 4 << 20,
            cpu_part_bytes: 1 << 20,
            depth: 256,
            when_full: WhenFull::Wait,
            merge_wait: Duration::from_micros(50),
            calibrates: true,
        }
    }
}

/// Computes the requests of its callers.
#[derive(Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What callers, handles and threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    device: Device,
    options: Options,
    kernels: Kernels,
    kinds: Mutex<Vec<Arc<Kind>>>,
    queues: Mutex<Queues>,
    /// There is work for a lane.
    for_lanes: Condvar,
    /// There is work for a CPU thread.
    for_cpus: Condvar,
    /// A request is over, so that its caller may have another one.
    for_callers: Condvar,
    load: [Load; 2],
    /// What callers compute with on their own threads, while none does.
    idle: Mutex<Vec<Cpu>>,
    callers: AtomicU64,
    birth: Birth,
}

/// What is under way on a path.
#[derive(Debug, Default)]
struct Load {
    /// Sum of what its jobs are expected to take.
    expected_ns: AtomicI64,
    jobs: AtomicUsize,
}

impl Executor {
    /// An executor with a device. No device memory is allocated before the device has its first work.
    ///
    /// # Errors
    /// `Device` if the threads cannot be started.
    pub fn new(device: &Device, options: Options) -> Result<Self> {
        let options = Options {
            lanes: options.lanes.max(1),
            cpu_threads: options.cpu_threads.max(1),
            slot_bytes: options.slot_bytes.max(4096).next_multiple_of(4096),
            cpu_part_bytes: options.cpu_part_bytes.max(4096),
            depth: options.depth.max(1),
            ..options
        };
        let shared = Arc::new(Shared {
            device: device.clone(),
            kernels: Kernels::new(device),
            kinds: Mutex::default(),
            queues: Mutex::new(Queues::new(options.slot_bytes)),
            for_lanes: Condvar::new(),
            for_cpus: Condvar::new(),
            for_callers: Condvar::new(),
            load: Default::default(),
            idle: Mutex::default(),
            callers: AtomicU64::new(0),
            birth: Birth::here(),
            options,
        });
        let mut executor = Self { shared, threads: vec![] };
        for _ in 0..executor.shared.options.lanes {
            executor.spawn("bifolio-lane", worker::lane)?;
        }
        for _ in 0..executor.shared.options.cpu_threads {
            executor.spawn("bifolio-compute", worker::cpu)?;
        }
        Ok(executor)
    }

    fn spawn(&mut self, name: &str, work: fn(&Shared)) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared));
        let detail = "a thread of the executor could not be started";
        self.threads.push(thread.map_err(|error| Error::new(ErrorKind::Device, detail).with_source(error))?);
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

    /// What a request on host memory is thought to take on each path, CPU and device, in seconds: what the choice
    /// goes by. None where nothing is known.
    pub fn expectations(&self, step: &Step, route: Route, bytes: u64) -> [Option<f64>; 2] {
        let seconds = |path| step.kind().curve(path, route).at(bytes).map(|ns| f64::from(ns) / 1e9);
        [seconds(Path::Cpu), seconds(Path::Device)]
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if self.shared.birth.was_elsewhere() {
            // The threads are the parent's.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.lock_queues().close();
        self.shared.for_lanes.notify_all();
        self.shared.for_cpus.notify_all();
        self.shared.for_callers.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock_queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Cpu>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_kinds(&self) -> MutexGuard<'_, Vec<Arc<Kind>>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kind of a name, and whether it is a new one.
    fn kind(&self, name: &'static str) -> (Arc<Kind>, bool) {
        let mut kinds = self.lock_kinds();
        if let Some(kind) = kinds.iter().find(|kind| kind.name() == name) {
            return (Arc::clone(kind), false);
        }
        kinds.push(Arc::new(Kind::new(name)));
        (Arc::clone(kinds.last().expect("just pushed")), true)
    }

    /// The kind of a request: that of its only step, or one of its own for a chain, which begins with the sum of
    /// what its steps take.
    fn kind_of(&self, steps: &[Step]) -> Arc<Kind> {
        if let [step] = steps {
            return Arc::clone(step.kind());
        }
        let name = chain_name(steps);
        let known = self.lock_kinds().iter().find(|kind| kind.name() == name).cloned();
        known.unwrap_or_else(|| {
            // There are as many as ways to combine services in a program: a few.
            let (kind, _) = self.kind(Box::leak(name.into_boxed_str()));
            calibrate::sum(&kind, steps);
            kind
        })
    }

    /// Whether a caller who waits computes a request itself, if that is for the CPU: it is a single part, or others
    /// would hardly have begun before it is over.
    fn is_small(&self, kind: &Kind, route: Route, bytes: u64) -> bool {
        let part_bytes = self.options.cpu_part_bytes;
        if bytes < 2 * part_bytes || self.options.cpu_threads == 1 {
            return true;
        }
        let part_ns = kind.curve(Path::Cpu, route).at(part_bytes);
        part_ns.is_some_and(|ns| ns * (bytes as f32 / part_bytes as f32) < SHARED_NS_MIN)
    }

    /// Whether nothing is under way on a path.
    fn is_idle(&self, path: Path) -> bool {
        self.load[path as usize].jobs.load(Ordering::Relaxed) == 0
    }

    /// Who computes a request; whether somebody waits for it, and computes it if that is the CPU; and for how many
    /// requests is chosen.
    fn choose(
        &self,
        kind: &Kind,
        route: Route,
        bytes: u64,
        (is_urgent, by_caller, turns): (bool, bool, u64),
    ) -> Choice {
        // Where nothing is known of the device, the smallest requests wait for nothing else.
        let device_ns = kind.expect(Path::Device, route, bytes, !is_urgent);
        if device_ns.is_none() || kind.is_off().is_some() {
            return Choice { path: Path::Cpu, is_trial: false };
        }
        let Load { expected_ns: cpu_load, .. } = &self.load[Path::Cpu as usize];
        let Load { expected_ns: device_load, .. } = &self.load[Path::Device as usize];
        let backlog = |load: &AtomicI64, share: usize| load.load(Ordering::Relaxed).max(0) as f32 / share as f32;
        let cpus = self.options.cpu_threads;
        let cpu_ns = kind.curve(Path::Cpu, route).at(bytes);
        choose(Outlook {
            cpu_ns,
            device_ns,
            // A caller that computes itself waits for nobody.
            cpu_backlog_ns: if by_caller { 0.0 } else { backlog(cpu_load, cpus) },
            // Copies in, kernels and copies out of different lanes overlap.
            device_backlog_ns: backlog(device_load, self.options.lanes.min(2)),
            has_device: true,
            trial_ratio: trial_ratio(kind.tick(turns), turns).filter(|_| kind.may_try()),
        })
    }
}
