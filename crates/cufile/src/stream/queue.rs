//! The queue of a stream: what it needs so that requests happen in its order, with parameters that are known late.
//!
//! ```text
//!   stream   ... | reached | gate | slot -> staging | scatter | ... | gate | slot -> staging | scatter | ...
//!   thread         waits for "reached", reads the parameters
//!   fills                  file -> slot, table; open      ...    the last: result; open              a read
//!
//!   stream   ... | reached | gate | table -> staging | gather | staging -> slot | done | gate | ...   a write
//!   thread         waits for "reached", table; open             waits for "done"
//!   fills                                                                  slot -> file ... result; open
//! ```
//!
//! How many bytes go where is known only when the stream is there, and its commands are enqueued long
//! before. So a slot crosses the link as it is, with a table of extents, and the `scatter` kernel does what
//! the table says; for writes it gathers, with the roles of its buffers exchanged. Tables are empty until
//! the parameters are known, and stay so after a failure. The last gate of a read opens when all of its chunks
//! are read and the result is stored; a write has a gate of its own for that.
//!
//! That is why this is not `Router::submit_read_on` of `bifolio-io`, which has gates, slots and fills, too: it wants the
//! range when it is called, copies slots to where they belong without a kernel, and ends a request when its copies have
//! landed, where a program of this interface finds the result in memory before its stream goes on.
//!
//! Invariants: a queue's thread waits for points of its own stream only, each before every gate that is
//! closed then, so whatever streams share a queue of the driver, the gate that is first in it is opened.
//! Fills never wait for a device. What opens a gate is on its way before anything is enqueued behind the gate, as
//! a driver may wait for each launch (`CUDA_LAUNCH_BLOCKING`). A gate is opened whatever happens. Staging
//! memory is one buffer for each stream, which its commands use one after the other.
//!
//! A request waits while it is being submitted only where its stream has as many closed gates as drivers take
//! ([`traffic`](super::traffic)), never for another stream.

use super::chunk::{Chunk, chunks};
use super::late::{Late, Resolved};
use super::request::Running;
use super::ring::InUse;
use super::staging::{Areas, Staging, missing};
use super::traffic::{Closed, Traffic};
use crate::abi::CUfileOpError::CU_FILE_ASYNC_NOT_SUPPORTED;
use crate::buffer::Memory;
use crate::range::Direction;
use crate::session::Active;
use crate::stats::{self, Flow};
use crate::status::{Failure, Outcome};
use crate::transfer;
use bifolio_device::{BackendKind, DeviceId, Stream, without_signals};
use bifolio_io::{Cancel, Router, Workers};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;

/// Do host work only, which a closed gate of some stream may wait for: they never wait for a device, a slot, or another
/// fill, so there is always one that goes on.
static FILLS: LazyLock<Workers> = LazyLock::new(|| Workers::start(8));

/// The queue of one stream.
#[derive(Debug)]
pub(super) struct StreamQueue {
    // First, as work on it uses the staging memory.
    pub(super) stream: Stream,
    router: Arc<Router>,
    pub(super) staging: Option<Staging>,
    pub(super) traffic: Arc<Traffic>,
    thread: Option<(Sender<Step>, JoinHandle<()>)>,
}

/// What a queue's thread does, one after the other.
type Step = Box<dyn FnOnce() + Send>;

impl StreamQueue {
    /// A queue of the stream of a device with this handle.
    pub(super) fn open(device: DeviceId, stream: u64, router: Arc<Router>) -> Outcome<Self> {
        let stream = match device.backend {
            // Programs without a driver have no streams; their handles are names of ours.
            BackendKind::Host => router.device().create_stream()?,
            // SAFETY: the program keeps its stream alive while it enqueues on it.
            _ => unsafe { router.device().adopt_stream(stream) }?,
        };
        let (sender, steps) = channel::<Step>();
        let work = move || steps.into_iter().for_each(|step| _ = catch_unwind(AssertUnwindSafe(step)));
        let thread = std::thread::Builder::new().name("bifolio-cufile-stream".to_owned());
        let thread = without_signals(|| thread.spawn(work)).map_err(|error| {
            Failure::new(
                CU_FILE_ASYNC_NOT_SUPPORTED,
                format!("cannot start a thread for requests on a stream: {error}"),
            )
        })?;
        Ok(Self { stream, router, staging: None, traffic: Arc::default(), thread: Some((sender, thread)) })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.traffic.is_idle()
    }

    /// Enqueues a request.
    pub(super) fn enqueue(&mut self, late: Late) -> Outcome<()> {
        if self.stream.is_capturing()? {
            let text = "the stream is being captured into a graph, which cannot wait for a file: submit the request \
                        outside of the capture";
            return Err(Failure::new(CU_FILE_ASYNC_NOT_SUPPORTED, text));
        }
        if late.memory.located.is_none() {
            return self.enqueue_on_host(late);
        }
        if self.stage(chunks(late.most).len())?.supplies.kernels.is_none() {
            return self.wait_and_run(&late);
        }
        self.enqueue_on_device(late)
    }

    /// Makes ready what moving so many chunks of a device needs.
    fn stage(&mut self, chunks: usize) -> Outcome<&Staging> {
        if self.staging.is_none() {
            self.staging = Some(Staging::new(&self.router)?);
        }
        let staging = self.staging_mut()?;
        staging.grow(chunks)?;
        Ok(staging)
    }

    fn staging_mut(&mut self) -> Outcome<&mut Staging> {
        self.staging.as_mut().ok_or_else(missing)
    }

    fn step(&self, step: impl FnOnce() + Send + 'static) {
        if let Some((sender, _)) = &self.thread {
            // The thread goes on until the sender is gone.
            let _ = sender.send(Box::new(step));
        }
    }

    /// Closes a gate of the stream, once there is room for it.
    fn gate(&self) -> Outcome<Closed> {
        let room = self.traffic.room();
        Ok(room.by(self.stream.gate()?))
    }

    /// Begins a request, whose parameters are read when the stream is here.
    fn begin(&self, late: Late) -> Outcome<Arc<Running>> {
        let running = Running::new(late, &self.router, self.traffic.begin());
        let reached =
            self.stream.record().map_err(Failure::from).inspect_err(|failure| running.fail(failure.clone()))?;
        let share = Arc::clone(&running);
        self.step(move || {
            // Work before it that failed is the program's; the request comes after it all the same.
            let _ = reached.wait();
            share.resolve();
        });
        Ok(running)
    }

    /// Has the stream wait here for the end of the request.
    fn end(&self, running: Arc<Running>) -> Outcome<()> {
        let gate = self.gate().map(|gate| running.ends_at(gate));
        self.step(move || drop(running));
        gate
    }

    fn enqueue_on_host(&self, late: Late) -> Outcome<()> {
        let running = self.begin(late)?;
        let share = Arc::clone(&running);
        self.step(move || FILLS.run_alone(move || share.on_host()));
        self.end(running)
    }

    fn enqueue_on_device(&mut self, late: Late) -> Outcome<()> {
        let (direction, mut chunks) = (late.direction, chunks(late.most));
        // A read that has chunks ends with its last one.
        let last = if direction == Direction::Read { chunks.next_back() } else { None };
        let running = self.begin(late)?;
        for chunk in chunks {
            let enqueued = match direction {
                Direction::Read => self.enqueue_read(Arc::clone(&running), chunk, false),
                Direction::Write => self.enqueue_write(&running, chunk),
            };
            if let Err(failure) = enqueued {
                // What is enqueued already comes to its end, and so does the request.
                running.fail(failure.clone());
                self.end(running)?;
                return Err(failure);
            }
        }
        let Some(chunk) = last else { return self.end(running) };
        let share = Arc::downgrade(&running);
        self.enqueue_read(running, chunk, true).inspect_err(|failure| {
            // It may be over by now; then only the return says so.
            share.upgrade().inspect(|running| running.fail(failure.clone()));
        })
    }

    /// The memory of a chunk's commands.
    fn areas(&self, memory: &Memory, len: usize) -> Outcome<Areas<'_>> {
        self.staging.as_ref().ok_or_else(missing)?.areas(&self.stream, memory, len)
    }

    /// Enqueues a chunk of a read. The share of the request is given to its fill: a driver that waits for each
    /// launch would wait for the end of the request, which the last gate belongs to.
    fn enqueue_read(&mut self, running: Arc<Running>, chunk: Chunk, is_last: bool) -> Outcome<()> {
        let memory = running.late().memory;
        let mut gate = Some(self.gate().inspect_err(|failure| running.fail(failure.clone()))?);
        let (mut slot, before) = self.staging_mut()?.ring.take(chunk.number).ok_or_else(missing)?;
        let (address, (threads, is_filled)) = (slot.address(), channel());
        if is_last {
            gate.take().into_iter().for_each(|gate| running.ends_at(gate));
        }
        self.step(move || {
            before.into_iter().for_each(InUse::wait);
            // SAFETY: the slot is nobody else's until the copy behind the gate is done.
            unsafe { slot.bytes() }.0.fill(0);
            FILLS.run_alone(move || {
                // SAFETY: as above.
                running.fill(chunk.start, unsafe { slot.bytes() });
                drop((threads, gate));
            });
        });
        // SAFETY: the slot is in use until an event behind the copy; staging and the program's memory stay, and
        // the table names bytes inside both, or none.
        let landed = self.areas(&memory, chunk.len).and_then(|to| unsafe { to.bring(address) });
        match landed {
            Ok(landed) => {
                self.staging_mut()?.ring.keep(chunk.number, InUse { threads: is_filled, stream: Some(landed) });
                Ok(())
            }
            Err(failure) => Err(self.keep_after_failure(chunk, is_filled, failure)),
        }
    }

    fn enqueue_write(&mut self, running: &Arc<Running>, chunk: Chunk) -> Outcome<()> {
        let memory = running.late().memory;
        let gate = self.gate()?;
        let (mut slot, before) = self.staging_mut()?.ring.take(chunk.number).ok_or_else(missing)?;
        let (address, (threads, is_written)) = (slot.address(), channel());
        let (share, (table, sent)) = (Arc::clone(running), channel());
        self.step(move || {
            before.into_iter().for_each(InUse::wait);
            // SAFETY: the slot is nobody else's, and the copies of it are behind the gate.
            let bytes = unsafe { slot.bytes() }.0;
            bytes.fill(0);
            share.gather(chunk.start, bytes);
            drop(gate);
            // The step below goes on with it.
            let _ = table.send((slot, threads));
        });
        // SAFETY: the slot is in use until the threads are done with it; the rest as for reads, with the roles
        // of staging and the program's memory exchanged.
        let fetched = self.areas(&memory, chunk.len).and_then(|from| unsafe { from.fetch(address) });
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(failure) => return Err(self.keep_after_failure(chunk, is_written, failure)),
        };
        self.staging_mut()?.ring.keep(chunk.number, InUse { threads: is_written, stream: None });
        let running = Arc::clone(running);
        self.step(move || {
            let Ok((slot, threads)) = sent.recv() else { return };
            match fetched.wait() {
                Ok(()) => FILLS.run_alone(move || {
                    running.write(chunk.start, &slot);
                    drop(threads);
                }),
                Err(error) => running.fail(error.into()),
            }
        });
        Ok(())
    }

    /// A part of a chunk's commands may be on the stream, behind a gate that opens all the same.
    fn keep_after_failure(&mut self, chunk: Chunk, threads: Receiver<()>, failure: Failure) -> Failure {
        if let Some(staging) = &mut self.staging {
            staging.ring.keep_after_failure(chunk.number, &self.stream, threads);
        }
        failure
    }

    /// Without a kernel: waits here until the stream is there.
    fn wait_and_run(&self, late: &Late) -> Outcome<()> {
        let _active = Active::begin();
        self.stream.record()?.wait()?;
        let run = |Resolved { offset, memory, .. }: Resolved| {
            transfer::run(&late.file, late.direction, offset, memory, &Cancel::default())
        };
        let flow = Flow::of(late.direction);
        let outcome = stats::counted_request(flow, late.most, || late.resolve().and_then(run));
        let result = outcome.as_ref().map_or_else(Failure::in_memory, |moved| *moved as isize);
        // SAFETY: the stream is here, and the program keeps what it points to until it is past.
        unsafe { late.pointers.done.write_volatile(result) };
        outcome.map(drop)
    }
}

impl Drop for StreamQueue {
    /// Waits until requests are over and their commands done, as the memory of both is freed then.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            let _ = thread.join();
        }
        self.traffic.wait_for_end();
        self.staging.take().into_iter().for_each(Staging::give_up);
    }
}
