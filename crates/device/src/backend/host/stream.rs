//! Streams: a worker thread with a queue each.

use super::event::{HostEvent, HostGate, Point};
use super::link::Link;
use super::module::HostModule;
use super::registered::{copy_checked, is_registered};
use crate::backend::{Backend, Launch, RawEvent, RawGate, RawStream};
use crate::fork::Birth;
use crate::{DevicePtr, Error, ErrorKind, HostKernel, HostLaunch, KernelArg, Result};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Marks a device as one of this backend.
pub(super) struct HostPeer;

/// Work for a stream's thread. Addresses travel as numbers; their validity is the contract of
/// the `unsafe` methods that enqueue them.
enum Job {
    Copy { dst: u64, src: u64, len: u64, over_link: bool },
    Fill { dst: u64, value: u8, len: u64 },
    Launch { kernel: HostKernel, groups: u32, group_size: u32, args: Vec<OwnedArg> },
    Record(Arc<Point>),
    Wait(Arc<Point>),
}

enum OwnedArg {
    Buffer(DevicePtr),
    Bytes(Vec<u8>),
}

/// A stream; clones are one.
#[derive(Debug, Clone)]
pub(super) struct HostStream {
    queue: Arc<Queue>,
}

/// A queue into a worker thread. Dropping it waits for the queue to drain.
#[derive(Debug)]
struct Queue {
    sender: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    birth: Birth,
    /// Jobs that were sent and are not done.
    left: Arc<AtomicUsize>,
}

impl HostStream {
    pub(super) fn start(link: Option<&Arc<Link>>) -> Result<Self> {
        let (sender, receiver) = channel();
        let left = Arc::<AtomicUsize>::default();
        let (link, counted) = (link.cloned(), Arc::clone(&left));
        let builder = std::thread::Builder::new().name("bifolio-stream".to_owned());
        let worker = crate::without_signals(|| builder.spawn(move || run_jobs(&receiver, link.as_deref(), &counted)))
            .map_err(|error| Error::system("starting a stream's worker thread", error))?;
        let queue = Queue { sender: Some(sender), worker: Some(worker), birth: Birth::here(), left };
        Ok(Self { queue: Arc::new(queue) })
    }

    /// Whether it was made in the process that this one was forked from, and its worker did not come along.
    pub(super) fn was_elsewhere(&self) -> bool {
        self.queue.birth.was_elsewhere()
    }

    /// Whether it has work that is not done.
    pub(super) fn is_busy(&self) -> bool {
        self.queue.left.load(Ordering::Acquire) > 0
    }

    fn send(&self, job: Job) -> Result<()> {
        self.queue.left.fetch_add(1, Ordering::Relaxed);
        let sent = self.queue.sender.as_ref().is_some_and(|sender| sender.send(job).is_ok());
        if sent { Ok(()) } else { Err(Error::new(ErrorKind::Execution, "the stream's worker thread has ended")) }
    }

    fn record_point(&self) -> Result<Arc<Point>> {
        let point = Arc::<Point>::default();
        self.send(Job::Record(Arc::clone(&point)))?;
        Ok(point)
    }
}

impl RawStream for HostStream {
    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        self.send(Job::Copy { dst: dst.0, src: src as u64, len, over_link: true })
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        self.send(Job::Copy { dst: dst as u64, src: src.0, len, over_link: true })
    }

    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, len: u64) -> Result<()> {
        self.send(Job::Copy { dst: dst.0, src: src.0, len, over_link: false })
    }

    /// The simulated link is the one to the host, so this copy does not occupy it.
    unsafe fn copy_from_peer(&self, dst: DevicePtr, peer: &dyn Backend, src: DevicePtr, len: u64) -> Result<()> {
        if !peer.as_peer().is_some_and(<dyn Any>::is::<HostPeer>) {
            return Err(Error::new(ErrorKind::BadArgument, "the peer device belongs to another backend"));
        }
        self.send(Job::Copy { dst: dst.0, src: src.0, len, over_link: false })
    }

    unsafe fn fill(&self, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        self.send(Job::Fill { dst: dst.0, value, len })
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let module = (&**launch.module as &dyn Any).downcast_ref::<HostModule>();
        let found = module.and_then(|module| module.kernels.iter().find(|(name, _)| *name == launch.kernel));
        let Some(&(_, kernel)) = found else {
            let detail = format!("the module has no kernel {}", launch.kernel);
            return Err(Error::new(ErrorKind::Kernel, detail));
        };
        let owned = |arg: &KernelArg<'_>| match *arg {
            KernelArg::Buffer(ptr) => OwnedArg::Buffer(ptr),
            KernelArg::Bytes(bytes) => OwnedArg::Bytes(bytes.to_vec()),
        };
        let args = launch.args.iter().map(owned).collect();
        self.send(Job::Launch { kernel, groups: launch.groups, group_size: launch.group_size, args })
    }

    fn record(&self) -> Result<Box<dyn RawEvent>> {
        Ok(Box::new(HostEvent { point: self.record_point()? }))
    }

    fn wait(&self, event: &dyn RawEvent) -> Result<()> {
        let Some(event) = (event as &dyn Any).downcast_ref::<HostEvent>() else {
            return Err(Error::new(ErrorKind::BadArgument, "the event belongs to another backend"));
        };
        self.send(Job::Wait(Arc::clone(&event.point)))
    }

    fn gate(&self) -> Result<Box<dyn RawGate>> {
        let gate = HostGate { opened: Arc::default() };
        self.send(Job::Wait(Arc::clone(&gate.opened)))?;
        Ok(Box::new(gate))
    }

    fn synchronize(&self) -> Result<()> {
        self.record_point()?.wait()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            // The worker did not come along.
            std::mem::forget((self.sender.take(), self.worker.take()));
            return;
        }
        self.sender = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// The worker of a stream: in order, and after a failure every later event reports it.
fn run_jobs(jobs: &Receiver<Job>, link: Option<&Link>, left: &AtomicUsize) {
    let mut outcome = Ok(());
    for job in jobs {
        match job {
            Job::Record(event) => event.set(outcome.clone()),
            Job::Wait(event) => _ = event.wait(),
            _ if outcome.is_err() => {}
            work => outcome = run_work(work, link),
        }
        left.fetch_sub(1, Ordering::Release);
    }
}

fn run_work(work: Job, link: Option<&Link>) -> std::result::Result<(), String> {
    match work {
        Job::Copy { dst, src, len, over_link } => {
            if over_link && let Some(link) = link {
                link.occupy(len);
            }
            if is_registered(src) {
                // SAFETY: the enqueuer vouches for `dst`; the kernel checks `src`.
                let copied = unsafe { copy_checked(dst, src, len) };
                return copied.map_err(|error| {
                    format!("copying from a registered file mapping failed (was the file truncated?): {error}")
                });
            }
            // SAFETY: the enqueuer vouches for both ranges until completion.
            unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, len as usize) };
        }
        // SAFETY: the enqueuer vouches for the range until completion.
        Job::Fill { dst, value, len } => unsafe { (dst as *mut u8).write_bytes(value, len as usize) },
        Job::Launch { kernel, groups, group_size, args } => {
            let borrowed: Vec<_> = args.iter().map(OwnedArg::borrow).collect();
            let launch = HostLaunch { groups, group_size, args: &borrowed };
            // A panic would end the thread, and whoever waits for an event behind it with it.
            // SAFETY: the enqueuer vouches for the arguments until completion.
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe { kernel(&launch) }));
            return ran.map_err(|_| "a kernel panicked".to_owned());
        }
        Job::Record(_) | Job::Wait(_) => {}
    }
    Ok(())
}

impl OwnedArg {
    fn borrow(&self) -> KernelArg<'_> {
        match self {
            Self::Buffer(ptr) => KernelArg::Buffer(*ptr),
            Self::Bytes(bytes) => KernelArg::Bytes(bytes),
        }
    }
}
