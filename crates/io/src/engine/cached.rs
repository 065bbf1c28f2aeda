//! Page cache to device: threads copy out of the page cache into pinned slots, and the device
//! fetches one slot while the next is filled.
//!
//! One thread moves about 7 GB/s out of the page cache and the link of an H200 55, so reading
//! needs several threads; one stream is enough for the copies.

use super::{Streams, drain, enqueue_copies};
use crate::batch::{Batches, Piece};
use crate::job::Job;
use crate::plan::EngineKind;
use crate::workers::{Group, Workers};
use bifolio_device::{Slot, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// The least that a further thread is asked for: waking it costs about as much as copying this.
const BYTES_A_THREAD_MIN: u64 = 256 << 10;

/// Shorter batches cost more in calls than they gain in overlap.
const BATCH_MIN: u64 = 256 << 10;

/// What the threads of one request share.
#[derive(Debug)]
struct Run {
    job: Arc<Job>,
    feed: Mutex<Feed>,
    stream: Stream,
}

/// The batches, growing at the start and shrinking towards the end: the device has something to
/// fetch early, long requests get whole slots, and the threads finish together.
#[derive(Debug)]
struct Feed {
    batches: Batches,
    threads: u64,
    handed: u64,
    left: u64,
}

impl Feed {
    fn next(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let growing = BATCH_MIN << (self.handed / self.threads).min(16);
        let shrinking = (self.left / self.threads).next_multiple_of(64 << 10);
        let more = self.batches.next_within(growing.min(shrinking).max(BATCH_MIN), pieces);
        self.handed += 1;
        self.left = self.left.saturating_sub(pieces.iter().map(|piece| piece.len).sum());
        more
    }
}

/// Moves the job's segments of `engine` through the page cache, with up to `threads` threads of
/// which the caller's is one.
pub(crate) fn run(job: &Arc<Job>, engine: EngineKind, streams: &Streams, workers: &Workers, threads: usize) {
    let segments = job.segments_of(engine);
    let left: u64 = segments.iter().map(|(_, segment)| segment.length).sum();
    let threads = (left / BYTES_A_THREAD_MIN).clamp(1, threads as u64);
    let stream = match streams.take() {
        Ok(stream) => stream,
        Err(error) => return job.fail(job.device_error(error)),
    };
    let batches = Batches::new(segments, job.pool.slot_bytes() as u64, 1);
    let feed = Mutex::new(Feed { batches, threads, handed: 0, left });
    let run = Arc::new(Run { job: Arc::clone(job), feed, stream });
    let group = Group::default();
    for _ in 1..threads {
        let run = Arc::clone(&run);
        workers.run(&group, move || run.work());
    }
    run.work();
    workers.wait(&group);
    drain(job, &run.stream);
    job.end_engine(engine);
    if let Some(run) = Arc::into_inner(run)
        && !job.is_stopped()
    {
        streams.give_back(run.stream);
    }
}

impl Run {
    fn work(&self) {
        let mut pieces = Vec::new();
        while !self.job.is_stopped() && self.feed.lock().unwrap_or_else(PoisonError::into_inner).next(&mut pieces) {
            if let Err(error) = self.move_batch(&pieces) {
                self.job.fail(error);
            }
        }
    }

    fn move_batch(&self, pieces: &[Piece]) -> crate::Result<()> {
        let mut slot = self.job.pool.acquire().map_err(|error| self.job.device_error(error).at(pieces[0].offset))?;
        for piece in pieces {
            self.job.begin_segment(piece.segment);
            read_piece(&self.job, &mut slot, piece)?;
        }
        // SAFETY: the slot is retired with the event, or (on failure) only after the stream ran dry.
        match unsafe { enqueue_copies(&self.job, &self.stream, &mut slot, pieces) } {
            Ok(event) => slot.retire(event),
            Err(error) => {
                let _ = self.stream.synchronize();
                return Err(error);
            }
        }
        for piece in pieces {
            self.job.end_piece(piece.segment, piece.len);
        }
        Ok(())
    }
}

/// Reads a piece through the page cache, all of it.
pub(super) fn read_piece(job: &Job, slot: &mut Slot, piece: &Piece) -> crate::Result<()> {
    let start = piece.slot_offset as usize;
    let buffer = &mut slot.buffer().bytes_mut()[start..start + piece.len as usize];
    let mut got = 0;
    while got < buffer.len() {
        let at = piece.offset + got as u64;
        match job.storage.read_at(job.file.buffered(), &mut buffer[got..], at) {
            Ok(0) => return Err(job.truncated(piece, got as u64)),
            Ok(read) => got += read,
            Err(error) => return Err(job.read_error(error, at)),
        }
    }
    Ok(())
}
