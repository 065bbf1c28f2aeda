//! Device to page cache: copies into pinned slots, and `pwrite` out of them.
//!
//! File systems let one thread at a time write to a file through the page cache, so that thread's
//! rate is the bound. The others fetch the next slots meanwhile.

use super::Engine;
use super::batch::Piece;
use super::enqueue::{drain, fetch};
use super::feed::{Feed, Pace};
use super::job::Job;
use super::streams::{LentStream, Streams};
use crate::kind::EngineKind;
use std::sync::Arc;

/// One that writes, and two with the next slots.
const THREADS_MAX: u64 = 3;

/// The engine on one job.
#[derive(Debug)]
pub(crate) struct WriteCached {
    job: Arc<Job>,
    feed: Feed,
    stream: LentStream,
}

impl WriteCached {
    pub(crate) fn new(job: &Arc<Job>, streams: &Arc<Streams>) -> crate::Result<Self> {
        let stream = streams.take().map_err(|error| job.device_error(error))?;
        let feed = Feed::new(job.slot_limits(), 1, Pace::Ramp { smallest: 256 << 10, threads: THREADS_MAX });
        Ok(Self { job: Arc::clone(job), feed, stream })
    }

    fn write_batch(&self, pieces: &[Piece]) -> crate::Result<()> {
        let job = &*self.job;
        let mut slot = job.pool.acquire().map_err(|error| job.device_error(error))?;
        // SAFETY: the slot is this thread's until the copies are done, which `fetch` waits for.
        unsafe { fetch(job, &self.stream, slot.buffer().as_mut_ptr(), pieces) }?;
        for piece in pieces {
            job.begin_segment(piece.segment);
            let start = piece.wanted_at() as usize;
            let bytes = &slot.buffer().bytes()[start..start + piece.len as usize];
            write_all(job, bytes, piece.offset)?;
            job.end_piece(piece.segment, piece.len);
        }
        Ok(())
    }
}

fn write_all(job: &Job, bytes: &[u8], offset: u64) -> crate::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        match job.storage.write_at(job.file.buffered(), &bytes[done..], at) {
            Ok(0) => return Err(job.write_error(std::io::ErrorKind::WriteZero.into(), at)),
            Ok(written) => done += written,
            Err(error) => return Err(job.write_error(error, at)),
        }
    }
    Ok(())
}

impl Engine for WriteCached {
    fn feed(&self) -> &Feed {
        &self.feed
    }

    fn threads(&self, bytes: u64) -> usize {
        (bytes / (1 << 20)).clamp(1, THREADS_MAX) as usize
    }

    fn work(&self) {
        let mut pieces = Vec::new();
        while !self.job.is_stopped() && self.feed.wait(&mut pieces) {
            if let Err(error) = self.write_batch(&pieces) {
                self.job.fail(error);
            }
        }
    }

    fn finish(&self) {
        drain(&self.job, &self.stream);
        self.job.end_engine(EngineKind::Cached);
    }
}
