//! Device to storage past the page cache: copies into pinned slots, and unbuffered writes out of
//! them, many at a time, all from one thread.
//!
//! Slots are divided into cells of one write each, and a cell is fetched while the queue is busy with
//! those before it: fetching takes a fraction of the time that writing does, so the thread simply
//! waits for it. Writes end in any order; if a slot were fetched as a whole, the slowest of its writes
//! would keep the room of the others.

use super::Engine;
use super::batch::Piece;
use super::enqueue::{drain, fetch};
use super::feed::{Feed, Next, Pace};
use super::job::Job;
use super::queues::{QUEUE_DEPTH, Queues, STALLED_MAX};
use super::streams::{LentStream, Streams};
use crate::ErrorKind;
use crate::kind::EngineKind;
use crate::storage::{Direction, IoQueue, QueuedIo};
use bifolio_device::Slot;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// One write.
const WRITE_BYTES: u64 = 1 << 20;

/// Writes that wait for room in the queue, fetched beforehand.
const AHEAD: usize = 4;

/// Bytes of slots that the engine holds at once: what is in flight or waits for that.
const HELD_BYTES_MAX: usize = (QUEUE_DEPTH as usize + AHEAD) << 20;

/// The engine on one job, whose segments begin and end at boundaries of unbuffered writes.
#[derive(Debug)]
pub(crate) struct WriteDirect {
    job: Arc<Job>,
    feed: Feed,
    fd: RawFd,
    alignment: u64,
    streams: Arc<Streams>,
    queues: Arc<Queues>,
}

impl WriteDirect {
    pub(crate) fn new(job: &Arc<Job>, streams: &Arc<Streams>, queues: &Arc<Queues>) -> crate::Result<Self> {
        let missing = |reason| job.error(ErrorKind::NoEngine, format!("cannot be written with O_DIRECT: {reason}"));
        let direct = job.file.direct().map_err(missing)?;
        Ok(Self {
            job: Arc::clone(job),
            feed: Feed::new((cell_bytes(job) as u64, usize::MAX), direct.alignment, Pace::Whole),
            fd: direct.file.as_raw_fd(),
            alignment: direct.alignment,
            streams: Arc::clone(streams),
            queues: Arc::clone(queues),
        })
    }

    /// Writes everything; the queue comes back where nothing is left in it.
    fn run(&self, queue: Box<dyn IoQueue>, stream: &LentStream) -> crate::Result<Box<dyn IoQueue>> {
        let mut transfer = Transfer {
            engine: self,
            queue,
            slots: vec![],
            cells: vec![],
            waiting: VecDeque::new(),
            in_flight: 0,
            writes: vec![],
            stalled: 0,
        };
        transfer.work(stream)?;
        Ok(transfer.queue)
    }
}

impl Engine for WriteDirect {
    fn feed(&self) -> &Feed {
        &self.feed
    }

    fn threads(&self, _bytes: u64) -> usize {
        1
    }

    fn work(&self) {
        let job = &*self.job;
        let queue = self.queues.take(job);
        let queue =
            queue.map_err(|error| job.error(ErrorKind::Write, format!("opening a write queue failed: {error}")));
        let stream = self.streams.take().map_err(|error| job.device_error(error));
        match (queue, stream) {
            (Ok(queue), Ok(stream)) => {
                match self.run(queue, &stream) {
                    Ok(queue) => self.queues.give_back(queue),
                    Err(error) => job.fail(error),
                }
                drain(job, &stream);
            }
            (Err(error), _) | (_, Err(error)) => job.fail(error),
        }
    }

    fn finish(&self) {
        self.job.end_engine(EngineKind::Direct);
    }
}

/// Bytes of a cell.
fn cell_bytes(job: &Job) -> usize {
    job.pool.slot_bytes().min(WRITE_BYTES as usize)
}

/// A part of a slot: where it begins, the slot's number in its pool, and the writes out of it that
/// have not completed.
struct Cell {
    start: *mut u8,
    slot: usize,
    writes: usize,
}

struct Transfer<'a> {
    engine: &'a WriteDirect,
    /// Dropped before the slots, also by a failure or a panic: that waits for what the kernel still
    /// writes out of them.
    queue: Box<dyn IoQueue>,
    /// What the cells are parts of.
    slots: Vec<Slot>,
    cells: Vec<Cell>,
    /// Writes for which the queue has no room yet.
    waiting: VecDeque<Write>,
    in_flight: usize,
    /// Writes in flight by token.
    writes: Vec<Option<Write>>,
    /// Writes in a row that brought nothing.
    stalled: u32,
}

#[derive(Clone, Copy)]
struct Write {
    cell: usize,
    segment: usize,
    io: QueuedIo,
}

impl Transfer<'_> {
    fn work(&mut self, stream: &LentStream) -> crate::Result<()> {
        let mut done = Vec::new();
        let mut pieces = Vec::new();
        loop {
            if self.engine.job.is_stopped() {
                self.waiting.clear();
                if self.in_flight == 0 {
                    return Ok(());
                }
            } else if self.waiting.len() + self.in_flight < QUEUE_DEPTH as usize + AHEAD {
                match self.engine.feed.poll(&mut pieces) {
                    Next::Batch => self.start_batch(&pieces, stream)?,
                    Next::Later if self.in_flight == 0 => self.engine.feed.wait_for_planner(),
                    Next::End if self.in_flight == 0 && self.waiting.is_empty() => return Ok(()),
                    Next::Later | Next::End => {}
                }
            }
            self.submit_waiting()?;
            let full = self.waiting.len() + self.in_flight >= QUEUE_DEPTH as usize + AHEAD;
            let ended = self.engine.feed.peek() != Next::Batch || self.engine.job.is_stopped();
            if self.in_flight > 0 && (full || ended) {
                self.reap(&mut done)?;
            }
        }
    }

    /// Fetches a cell and queues its writes.
    fn start_batch(&mut self, pieces: &[Piece], stream: &LentStream) -> crate::Result<()> {
        let index = self.free_cell()?;
        let (engine, cell) = (self.engine, &mut self.cells[index]);
        // SAFETY: no write uses the cell; `fetch` waits for its copies.
        unsafe { fetch(&engine.job, stream, cell.start, pieces) }?;
        for piece in pieces {
            engine.job.begin_segment(piece.segment);
            let mut at = 0;
            while at < piece.len {
                let len = WRITE_BYTES.min(piece.len - at);
                let io = QueuedIo {
                    direction: Direction::Write,
                    fd: engine.fd,
                    memory: cell.start.wrapping_add((piece.wanted_at() + at) as usize),
                    len: len as usize,
                    offset: piece.offset + at,
                    slot: cell.slot,
                    token: 0,
                };
                self.waiting.push_back(Write { cell: index, segment: piece.segment, io });
                cell.writes += 1;
                at += len;
            }
        }
        Ok(())
    }

    /// A cell that no write uses, one of another slot from the pool, or one that is waited for.
    fn free_cell(&mut self) -> crate::Result<usize> {
        let job = &*self.engine.job;
        let mut done = Vec::new();
        loop {
            if let Some(index) = self.cells.iter().position(|cell| cell.writes == 0) {
                return Ok(index);
            }
            let may_hold_more = (self.slots.len() + 1) * job.pool.slot_bytes() <= HELD_BYTES_MAX / job.jobs();
            let slot = match self.slots.is_empty() {
                true => job.pool.acquire().map(Some),
                false if may_hold_more => job.pool.try_acquire(),
                false => Ok(None),
            };
            if let Some(mut slot) = slot.map_err(|error| job.device_error(error))? {
                let (index, len, start) = (slot.index(), job.pool.slot_bytes(), slot.buffer().as_mut_ptr());
                // SAFETY: a pool keeps its slots in place, and the router drops its queues before it.
                unsafe { self.queue.register_slot(index, start, len) };
                let cell = |at| Cell { start: start.wrapping_add(at), slot: index, writes: 0 };
                self.cells.extend((0..=len - cell_bytes(job)).step_by(cell_bytes(job)).map(cell));
                self.slots.push(slot);
                continue;
            }
            self.submit_waiting()?;
            self.reap(&mut done)?;
        }
    }

    fn submit_waiting(&mut self) -> crate::Result<()> {
        while self.in_flight < QUEUE_DEPTH as usize {
            let Some(write) = self.waiting.pop_front() else { break };
            let token = self.writes.iter().position(Option::is_none).unwrap_or_else(|| {
                self.writes.push(None);
                self.writes.len() - 1
            });
            self.writes[token] = Some(write);
            // SAFETY: the slot is held until its writes are done, the file as long as the job.
            unsafe { self.queue.submit(QueuedIo { token: token as u64, ..write.io }) }
                .map_err(|error| self.engine.job.write_error(error, write.io.offset))?;
            self.in_flight += 1;
        }
        // The next cell is fetched before anybody waits.
        let failed = |error| self.engine.job.error(ErrorKind::Write, format!("the write queue failed: {error}"));
        self.queue.flush().map_err(failed)
    }

    /// Waits for a write, and takes all that have ended.
    fn reap(&mut self, done: &mut Vec<(u64, io::Result<usize>)>) -> crate::Result<()> {
        let job = &*self.engine.job;
        self.queue
            .wait(done)
            .map_err(|error| job.error(ErrorKind::Write, format!("the write queue failed: {error}")))?;
        let mut failure = None;
        for (token, outcome) in done.drain(..) {
            self.in_flight -= 1;
            let write = self.writes[token as usize].take().expect("a queue reports each token once");
            self.cells[write.cell].writes -= 1;
            match self.judge(&write, outcome) {
                Ok(Some(rest)) => {
                    self.cells[rest.cell].writes += 1;
                    self.waiting.push_front(rest);
                }
                Ok(None) => {}
                Err(error) => _ = failure.get_or_insert(error),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// What a completed write leaves to be written.
    fn judge(&mut self, write: &Write, outcome: io::Result<usize>) -> crate::Result<Option<Write>> {
        let job = &*self.engine.job;
        let written = match outcome {
            Ok(written) => written,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => 0,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                let detail = format!(
                    "the file system refused an O_DIRECT write aligned to {} bytes: {error}",
                    self.engine.alignment
                );
                return Err(job.error(ErrorKind::DirectRefused, detail).at(write.io.offset).with_cause(error));
            }
            Err(error) => return Err(job.write_error(error, write.io.offset)),
        };
        if written == write.io.len {
            self.stalled = 0;
            job.end_piece(write.segment, written as u64);
            return Ok(None);
        }
        // The next write begins at a boundary again.
        let kept = written - written % self.engine.alignment as usize;
        job.end_piece(write.segment, kept as u64);
        self.stalled = if kept == 0 { self.stalled + 1 } else { 0 };
        if self.stalled > STALLED_MAX {
            let detail = "write returned 0 bytes without an error";
            return Err(job.error(ErrorKind::Write, detail).at(write.io.offset));
        }
        let io = QueuedIo {
            memory: write.io.memory.wrapping_add(kept),
            len: write.io.len - kept,
            offset: write.io.offset + kept as u64,
            ..write.io
        };
        Ok(Some(Write { io, ..*write }))
    }
}
