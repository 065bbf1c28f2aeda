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

/// The least that a further thread is woken for: waking costs about as much as copying this.
const BYTES_A_THREAD_MIN: u64 = 512 << 10;

/// Pieces shorter than this cost more in calls than they gain in overlap.
const PIECE_MIN: u64 = 256 << 10;

/// What the threads of one request share.
#[derive(Debug)]
struct Run {
    job: Arc<Job>,
    batches: Mutex<Batches>,
    stream: Stream,
}

/// Moves the job's cached segments, with up to `threads` threads of which the caller's is one.
pub(crate) fn run(job: &Arc<Job>, streams: &Streams, workers: &Workers, threads: usize) {
    let segments = job.segments_of(EngineKind::Cached);
    let total: u64 = segments.iter().map(|(_, segment)| segment.length).sum();
    let threads = (total / BYTES_A_THREAD_MIN).clamp(1, threads as u64);
    let slot_bytes = job.pool.slot_bytes() as u64;
    // Short requests are cut finer, so that all threads get some and copies start early.
    let capacity = (total / (threads * 2)).next_power_of_two().clamp(PIECE_MIN.min(slot_bytes), slot_bytes);
    let stream = match streams.take() {
        Ok(stream) => stream,
        Err(error) => return job.fail(job.device_error(error)),
    };
    let batches = Mutex::new(Batches::new(segments, capacity, 1));
    let run = Arc::new(Run { job: Arc::clone(job), batches, stream });
    let group = Group::default();
    for _ in 1..threads {
        let run = Arc::clone(&run);
        workers.run(&group, move || run.work());
    }
    run.work();
    group.wait();
    drain(job, &run.stream);
    job.end_engine(EngineKind::Cached);
    if let Some(run) = Arc::into_inner(run)
        && !job.is_stopped()
    {
        streams.give_back(run.stream);
    }
}

impl Run {
    fn work(&self) {
        let mut pieces = Vec::new();
        while !self.job.is_stopped() && self.batches.lock().unwrap_or_else(PoisonError::into_inner).next(&mut pieces) {
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
