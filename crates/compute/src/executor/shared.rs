//! What callers, handles and threads of an executor share, and what is decided by it.

use super::chain::{self, chain_name};
use super::cpu::Cpu;
use super::job::CallerId;
use super::options::Options;
use super::queue::Queue;
use crate::cost::{Choice, Kind, Outlook, Path, Route, choose, trial_ratio};
use crate::kernels::Kernels;
use crate::service::Step;
use crate::threads::ThreadPool;
use bifolio_device::Device;
use bifolio_device::fork::Birth;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Work of one thread that others are woken for, in nanoseconds.
const SHARED_NS_MIN: f32 = 400e3;

/// An executor without its pipelines.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) device: Device,
    pub(crate) options: Options,
    pub(crate) kernels: Kernels,
    pub(crate) queue: Queue,
    pub(crate) birth: Birth,
    /// Where shifts of the CPU's path are posted.
    pub(crate) threads: &'static ThreadPool,
    kinds: Mutex<Vec<Arc<Kind>>>,
    /// What threads of the host compute with, while none does.
    idle: Mutex<Vec<Cpu>>,
    callers: AtomicU64,
}

/// A request that is to be chosen for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    pub(crate) route: Route,
    pub(crate) bytes: u64,
    /// Somebody waits for it.
    pub(crate) is_urgent: bool,
    /// Who waits computes it, if that is the CPU.
    pub(crate) by_caller: bool,
    /// For how many requests like it is chosen.
    pub(crate) turns: u64,
}

impl Shared {
    pub(crate) fn new(device: &Device, options: Options) -> Self {
        let options = options.checked();
        let (kinds, idle, callers) = Default::default();
        Self {
            device: device.clone(),
            kernels: Kernels::new(device),
            queue: Queue::new(options),
            birth: Birth::here(),
            threads: ThreadPool::of_process(),
            kinds,
            idle,
            callers,
            options,
        }
    }

    pub(crate) fn next_caller(&self) -> CallerId {
        CallerId(self.callers.fetch_add(1, Ordering::Relaxed))
    }

    /// What a thread of the host computes with: see [`Shared::put_back`].
    pub(crate) fn take_cpu(&self) -> Cpu {
        let idle = self.lock_idle().pop();
        idle.unwrap_or_else(|| Cpu::new(&self.device, self.options.cpu_part_bytes))
    }

    pub(crate) fn put_back(&self, cpu: Cpu) {
        self.lock_idle().push(cpu);
    }

    /// Frees what threads of the host have worked with: nobody will any more.
    pub(crate) fn forget_cpus(&self) {
        self.lock_idle().clear();
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Cpu>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_kinds(&self) -> MutexGuard<'_, Vec<Arc<Kind>>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kind of a name, and whether it is a new one.
    pub(crate) fn kind(&self, name: &'static str) -> (Arc<Kind>, bool) {
        let mut kinds = self.lock_kinds();
        if let Some(kind) = kinds.iter().find(|kind| kind.name() == name) {
            return (Arc::clone(kind), false);
        }
        kinds.push(Arc::new(Kind::new(name)));
        (Arc::clone(kinds.last().expect("just pushed")), true)
    }

    /// The kind of a request: that of its only step, or one of its own for a chain, which begins with the sum of
    /// what its steps take.
    pub(crate) fn kind_of(&self, steps: &[Step]) -> Arc<Kind> {
        if let [step] = steps {
            return Arc::clone(step.kind());
        }
        let name = chain_name(steps);
        let known = self.lock_kinds().iter().find(|kind| kind.name() == name).cloned();
        known.unwrap_or_else(|| {
            // There are as many as ways to combine services in a program: a few.
            let (kind, _) = self.kind(Box::leak(name.into_boxed_str()));
            chain::begin(&kind, steps);
            kind
        })
    }

    /// Whether a caller who waits computes a request itself, if that is for the CPU: it is a single task, or others
    /// would hardly have begun before it is over.
    pub(crate) fn is_small(&self, kind: &Kind, route: Route, bytes: u64) -> bool {
        let part_bytes = self.options.cpu_part_bytes;
        if bytes < 2 * part_bytes || self.options.cpu_threads == 1 {
            return true;
        }
        let part_ns = kind.curve(Path::Cpu, route).at(part_bytes);
        part_ns.is_some_and(|ns| ns * (bytes as f32 / part_bytes as f32) < SHARED_NS_MIN)
    }

    /// Who computes a request.
    pub(crate) fn choose(&self, kind: &Kind, question: Question) -> Choice {
        let Question { route, bytes, is_urgent, by_caller, turns } = question;
        // Where nothing is known of the device, the smallest requests wait for nothing else.
        let device_ns = kind.expect(Path::Device, route, bytes, !is_urgent);
        if device_ns.is_none() || kind.is_off() {
            return Choice { path: Path::Cpu, is_trial: false };
        }
        let backlog = |path, share: usize| self.queue.expected_ns(path) / share as f32;
        choose(Outlook {
            cpu_ns: kind.curve(Path::Cpu, route).at(bytes),
            device_ns,
            // A caller that computes itself waits for nobody.
            cpu_backlog_ns: if by_caller { 0.0 } else { backlog(Path::Cpu, self.options.cpu_threads) },
            // Copies in, kernels and copies out of different pipelines overlap.
            device_backlog_ns: backlog(Path::Device, self.options.pipelines.min(2)),
            trial_ratio: trial_ratio(kind.tick(turns), turns).filter(|_| kind.may_try()),
        })
    }
}
