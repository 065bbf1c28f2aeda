//! Storage to device past the page cache: unbuffered reads into pinned slots, a copy for each
//! slot that is full, all from one thread.
//!
//! ```text
//!   free ──reads submitted──> filling ──last read done, copies enqueued──> copying ──event──> free
//! ```
//!
//! The engine keeps its slots for the whole request instead of returning them between batches:
//! beside a page-cache engine that takes every slot it can get, the disk's queue would run dry.

use super::Engine;
use super::batch::Piece;
use super::enqueue::{drain, enqueue_copies};
use super::feed::{Feed, Next, Pace};
use super::job::Job;
use super::queues::{QUEUE_DEPTH, Queues, STALLED_MAX};
use super::streams::{LentStream, Streams};
use crate::kind::EngineKind;
use crate::storage::{Direction, IoQueue, QueuedIo};
use crate::{Error, ErrorKind};
use bifolio_device::{Event, Slot};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// One read: large enough for full bandwidth, small enough that one slot keeps several in flight.
const READ_BYTES: u64 = 1 << 20;

/// Bytes of slots that the engine holds at once: one and a half times what is in flight.
const HELD_BYTES_MAX: usize = 24 << 20;

/// While fewer reads are in flight the planner is waited for before they are: its next chunk is a
/// matter of some 10 us, and found only when a read ends it would start that much later.
const READS_AMPLE: usize = QUEUE_DEPTH as usize / 2;
const PLANNER_TIME: Duration = Duration::from_micros(100);

/// The engine on one job.
#[derive(Debug)]
pub(crate) struct Direct {
    job: Arc<Job>,
    feed: Feed,
    fd: RawFd,
    alignment: u64,
    streams: Arc<Streams>,
    queues: Arc<Queues>,
}

impl Direct {
    pub(crate) fn new(job: &Arc<Job>, streams: &Arc<Streams>, queues: &Arc<Queues>) -> crate::Result<Self> {
        let direct = job
            .file
            .direct()
            .map_err(|reason| job.error(ErrorKind::NoEngine, format!("cannot be read with O_DIRECT: {reason}")))?;
        Ok(Self {
            job: Arc::clone(job),
            feed: Feed::new(job.slot_limits(), direct.alignment, Pace::Whole),
            fd: direct.file.as_raw_fd(),
            alignment: direct.alignment,
            streams: Arc::clone(streams),
            queues: Arc::clone(queues),
        })
    }

    /// Everything that the reading thread needs, or an error.
    fn begin(&self) -> crate::Result<Transfer<'_>> {
        let job = &*self.job;
        let queue = self
            .queues
            .take(job)
            .map_err(|error| job.error(ErrorKind::Read, format!("opening a read queue failed: {error}")))?;
        let stream = self.streams.take().map_err(|error| job.device_error(error))?;
        let (fd, alignment, feed) = (self.fd, self.alignment, &self.feed);
        Ok(Transfer {
            job,
            fd,
            alignment,
            feed,
            queue,
            stream,
            held: vec![],
            waiting: VecDeque::new(),
            in_flight: 0,
            stalled: 0,
        })
    }
}

impl Engine for Direct {
    fn feed(&self) -> &Feed {
        &self.feed
    }

    fn threads(&self, _bytes: u64) -> usize {
        1
    }

    fn work(&self) {
        let mut transfer = match self.begin() {
            Ok(transfer) => transfer,
            Err(error) => return self.job.fail(error),
        };
        transfer.work();
        drain(&self.job, &transfer.stream);
        let Transfer { queue, held, .. } = transfer;
        if self.job.is_stopped() {
            // Waits for reads that the kernel still does, before their slots go back to the pool.
            drop(queue);
        } else {
            self.queues.give_back(queue);
        }
        drop(held);
    }

    fn finish(&self) {
        self.job.end_engine(EngineKind::Direct);
    }
}

struct Transfer<'a> {
    job: &'a Job,
    fd: RawFd,
    alignment: u64,
    feed: &'a Feed,
    queue: Box<dyn IoQueue>,
    stream: LentStream,
    held: Vec<Held>,
    /// Reads for which the queue has no room yet.
    waiting: VecDeque<QueuedIo>,
    in_flight: usize,
    /// Reads in a row that brought nothing although the file goes on.
    stalled: u32,
}

/// A slot of this engine.
struct Held {
    slot: Slot,
    pieces: Vec<Piece>,
    /// Reads of the pieces that have not completed.
    reads: usize,
    /// Behind the copies of the pieces, once all reads were done.
    copying: Option<Event>,
}

impl Held {
    fn is_free(&self) -> bool {
        self.reads == 0 && self.copying.as_ref().is_none_or(|event| event.query().unwrap_or(true))
    }
}

/// A read's token: the held slot, and the piece in it.
fn token(held: usize, piece: usize) -> u64 {
    (held as u64) << 32 | piece as u64
}

impl Transfer<'_> {
    fn work(&mut self) {
        let mut done = Vec::new();
        let mut sizes = ReadSizes::default();
        loop {
            let more = if self.job.is_stopped() { Ok(Next::End) } else { self.start_batches() };
            let more = more.unwrap_or_else(|error| {
                self.job.fail(error);
                Next::End
            });
            if self.job.is_stopped() {
                self.waiting.clear();
            }
            self.submit_waiting(&mut sizes);
            if self.in_flight == 0 {
                // Slots are being copied, or the planner is slower than the disk: wait for either.
                match more {
                    _ if self.job.is_stopped() => return,
                    Next::Batch => _ = self.wait_for_a_copy(),
                    Next::Later => {
                        self.release_slots();
                        self.feed.wait_for_planner();
                    }
                    Next::End => return,
                }
                continue;
            }
            let is_short_of_reads = more == Next::Later && self.in_flight < READS_AMPLE;
            let waited = if is_short_of_reads {
                self.queue.flush().map(|()| self.feed.wait_briefly(PLANNER_TIME))
            } else {
                Ok(false)
            };
            let reaped = match waited {
                Ok(true) => continue,
                Ok(false) => self.queue.wait(&mut done),
                Err(error) => Err(error),
            };
            if let Err(error) = reaped {
                // The queue itself failed; dropping it waits for what the kernel still does.
                return self.job.fail(self.job.error(ErrorKind::Read, format!("the read queue failed: {error}")));
            }
            for (token, outcome) in done.drain(..) {
                self.in_flight -= 1;
                self.complete(token, outcome, &mut sizes);
            }
        }
    }

    /// Fills free slots with the reads of batches: `Batch` if there may be more for which no slot
    /// or no room in the queue is free now.
    fn start_batches(&mut self) -> crate::Result<Next> {
        while (self.waiting.len() + self.in_flight) < QUEUE_DEPTH as usize {
            let ready = self.feed.peek();
            if ready != Next::Batch {
                return Ok(ready);
            }
            let Some(index) = self.free_slot()? else { return Ok(Next::Batch) };
            let held = &mut self.held[index];
            held.copying = None;
            self.feed.poll(&mut held.pieces);
            let memory = held.slot.buffer().as_mut_ptr();
            for (number, piece) in held.pieces.iter().enumerate() {
                self.job.begin_segment(piece.segment);
                let mut at = 0;
                while at < piece.read_len {
                    let len = READ_BYTES.min(piece.read_len - at);
                    self.waiting.push_back(QueuedIo {
                        direction: Direction::Read,
                        fd: self.fd,
                        memory: memory.wrapping_add((piece.slot_offset + at) as usize),
                        len: len as usize,
                        offset: piece.read_offset + at,
                        slot: held.slot.index(),
                        token: token(index, number),
                    });
                    held.reads += 1;
                    at += len;
                }
            }
        }
        Ok(Next::Batch)
    }

    /// A slot to read into: one of those held, or one more if the pool has one at once. The first
    /// is waited for.
    fn free_slot(&mut self) -> crate::Result<Option<usize>> {
        if let Some(index) = self.held.iter().position(Held::is_free) {
            return Ok(Some(index));
        }
        let most = (HELD_BYTES_MAX / self.job.jobs()).max(self.job.pool.slot_bytes());
        if (self.held.len() + 1) * self.job.pool.slot_bytes() > most {
            return Ok(None);
        }
        let slot = if self.held.is_empty() { self.job.pool.acquire().map(Some) } else { self.job.pool.try_acquire() };
        let Some(mut slot) = slot.map_err(|error| self.job.device_error(error))? else { return Ok(None) };
        let (index, len, start) = (slot.index(), self.job.pool.slot_bytes(), slot.buffer().as_mut_ptr());
        // SAFETY: a pool keeps its slots in place, and the router drops its queues before its pool.
        unsafe { self.queue.register_slot(index, start, len) };
        self.held.push(Held { slot, pieces: vec![], reads: 0, copying: None });
        Ok(Some(self.held.len() - 1))
    }

    fn submit_waiting(&mut self, sizes: &mut ReadSizes) {
        while self.in_flight < QUEUE_DEPTH as usize {
            let Some(read) = self.waiting.pop_front() else { return };
            let token = sizes.remember(read);
            // SAFETY: the slot is held until its reads are done, the file as long as the job.
            match unsafe { self.queue.submit(QueuedIo { token, ..read }) } {
                Ok(()) => self.in_flight += 1,
                Err(error) => return self.job.fail(self.job.read_error(error, read.offset)),
            }
        }
    }

    /// One read has ended: with bytes, short, at the end of the file, or with an error.
    fn complete(&mut self, token: u64, outcome: io::Result<usize>, sizes: &mut ReadSizes) {
        let read = sizes.forget(token);
        let (index, number) = ((read.token >> 32) as usize, (read.token & 0xffff_ffff) as usize);
        self.held[index].reads -= 1;
        match self.judge(&read, self.held[index].pieces[number], outcome) {
            Ok(None) => {}
            Ok(Some(rest)) => {
                self.held[index].reads += 1;
                self.waiting.push_front(rest);
            }
            Err(error) => self.job.fail(error),
        }
        if self.held[index].reads == 0 && !self.job.is_stopped() {
            self.copy_slot(index);
        }
    }

    /// What a completed read leaves to be read; an error where bytes are missing.
    fn judge(&mut self, read: &QueuedIo, piece: Piece, outcome: io::Result<usize>) -> crate::Result<Option<QueuedIo>> {
        let got = match outcome {
            Ok(got) => got,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => 0,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                return Err(self.refused(error, read.offset));
            }
            Err(error) => return Err(self.job.read_error(error, read.offset)),
        };
        let (end, wanted_end) = (read.offset + got as u64, piece.offset + piece.len);
        if got == read.len || end >= wanted_end {
            return Ok(None);
        }
        // Short before the wanted bytes are there. At the end of the file nothing more comes; an
        // unaligned stop can only be the end of the file, too.
        let size = self.job.file.size()?;
        if size <= end || !end.is_multiple_of(self.alignment) {
            if size >= wanted_end {
                // It grew again, or the stop was not aligned: read from the last aligned byte on.
                return self.again(read, got - got % self.alignment as usize);
            }
            return Err(self.job.truncated(&piece, end - piece.read_offset));
        }
        self.again(read, got)
    }

    /// What is left of a read, unless nothing comes time after time.
    fn again(&mut self, read: &QueuedIo, got: usize) -> crate::Result<Option<QueuedIo>> {
        self.stalled = if got == 0 { self.stalled + 1 } else { 0 };
        if self.stalled > STALLED_MAX {
            let detail = "read returned 0 bytes before the end of the file";
            return Err(self.job.error(ErrorKind::Read, detail).at(read.offset));
        }
        Ok(Some(rest(read, got)))
    }

    fn refused(&self, error: io::Error, offset: u64) -> Error {
        let detail = format!("the file system refused an O_DIRECT read aligned to {} bytes: {error}", self.alignment);
        self.job.error(ErrorKind::DirectRefused, detail).at(offset).with_cause(error)
    }

    fn copy_slot(&mut self, index: usize) {
        let held = &mut self.held[index];
        // SAFETY: the slot is not read into again before the event is done (`is_free`), and it
        // leaves this engine only after the stream was drained.
        match unsafe { enqueue_copies(self.job, &self.stream, &mut held.slot, &held.pieces) } {
            Ok(event) => held.copying = Some(event),
            Err(error) => return self.job.fail(error),
        }
        for piece in &held.pieces {
            self.job.end_piece(piece.segment, piece.len);
        }
    }

    /// Gives all slots back while there is nothing to read: whoever feeds this engine may be
    /// waiting for one. Nothing is being read into them.
    fn release_slots(&mut self) {
        for Held { slot, copying, .. } in self.held.drain(..) {
            match copying {
                Some(event) => slot.retire(event),
                None => drop(slot),
            }
        }
    }

    /// Waits for the copy of some slot; false if no slot is being copied.
    fn wait_for_a_copy(&mut self) -> bool {
        let Some(event) = self.held.iter_mut().find_map(|held| held.copying.take()) else { return false };
        if let Err(error) = event.wait() {
            self.job.fail(self.job.device_error(error));
        }
        true
    }
}

/// What is left of a read after `got` bytes.
fn rest(read: &QueuedIo, got: usize) -> QueuedIo {
    QueuedIo { memory: read.memory.wrapping_add(got), len: read.len - got, offset: read.offset + got as u64, ..*read }
}

/// Reads in flight by queue token, so that a completion finds its extent again.
#[derive(Default)]
struct ReadSizes {
    reads: Vec<Option<QueuedIo>>,
    free: Vec<usize>,
}

impl ReadSizes {
    fn remember(&mut self, read: QueuedIo) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        self.reads[index] = Some(read);
        index as u64
    }

    fn forget(&mut self, token: u64) -> QueuedIo {
        self.free.push(token as usize);
        self.reads[token as usize].take().expect("a queue reports each token once")
    }
}
