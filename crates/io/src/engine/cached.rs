//! Page cache to device: threads copy out of the page cache into pinned slots, and the device
//! fetches one slot while the next is filled.
//!
//! One thread moves about 7 GB/s out of the page cache and the link of an H200 55, so reading
//! needs several threads; one stream is enough for the copies.
//!
//! Only one thread at a time talks to the driver, whose calls exclude each other anyway: a thread
//! that has filled a slot queues it; whoever finds nobody at the driver hands over all that is
//! queued, and the others read on instead of waiting for a lock.

use super::Engine;
use super::batch::Piece;
use super::enqueue::{drain, enqueue_copies};
use super::feed::{Feed, Pace};
use super::fill::Begin;
use super::job::Job;
use super::streams::{LentStream, Streams};
use crate::kind::EngineKind;
use crate::plan::Segment;
use crate::residency;
use bifolio_device::Slot;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The least that each of a few threads is asked for; for less, waking it does not pay.
const BYTES_A_THREAD_MIN: u64 = 256 << 10;

/// A few: so many copy a request of 8 MiB at 13 GB/s, eight at 10, because threads wake up one after
/// the other and the slowest counts (H200 machine). Beyond them, each is asked for more: 16 MiB come at 11 GB/s by four
/// threads, and at 14 by eight (H100 machine).
const THREADS_FEW: u64 = 4;
const BYTES_A_FURTHER_THREAD: u64 = 2 << 20;

/// Shorter batches cost more in calls than they gain in overlap.
const BATCH_MIN: u64 = 256 << 10;

/// The engine on one job, shared by its threads.
#[derive(Debug)]
pub(crate) struct Cached {
    job: Arc<Job>,
    /// The engine that the segments were planned for: also those that cannot use a registration.
    kind: EngineKind,
    feed: Feed,
    threads_max: usize,
    stream: LentStream,
    /// Filled slots that the driver has not been told of.
    full: Mutex<VecDeque<(Slot, Vec<Piece>)>>,
    /// Whether some thread is telling it.
    at_driver: AtomicBool,
    /// Where what is not cached goes; without it, the kernel reads it from storage.
    misses: Option<Arc<Misses>>,
}

/// What one engine did not find in the page cache, for another that reads from storage.
#[derive(Debug)]
pub(crate) struct Misses {
    storage: Arc<dyn Engine>,
    /// Whether to ask before reading: a wrong try makes the kernel read the page.
    ask: AtomicBool,
    bytes: AtomicU64,
}

impl Misses {
    pub(crate) fn new(storage: &Arc<dyn Engine>, begin: Begin) -> Self {
        let ask = AtomicBool::new(begin == Begin::ByAsking);
        Self { storage: Arc::clone(storage), ask, bytes: AtomicU64::new(0) }
    }

    /// Bytes that were not found.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Reads a piece if all of it is cached, else hands it on.
    fn read_piece(&self, job: &Job, slot: &mut Slot, piece: &Piece) -> crate::Result<bool> {
        let range = piece.offset..piece.offset + piece.len;
        let asked = self.ask.load(Ordering::Relaxed);
        let maybe = !asked || residency::query(&job.file, &*job.storage, range)?.cached_bytes() == piece.len;
        if maybe {
            let start = piece.slot_offset as usize;
            let buffer = &mut slot.buffer().bytes_mut()[start..start + piece.len as usize];
            if job.storage.read_cached_at(job.file.probe(), buffer, piece.offset).is_ok_and(|got| got == buffer.len()) {
                return Ok(true);
            }
            self.ask.store(true, Ordering::Relaxed);
        }
        self.bytes.fetch_add(piece.len, Ordering::Relaxed);
        let Piece { segment, offset, len, .. } = *piece;
        let wanted = Segment { engine: EngineKind::Direct, offset, length: len, predicted_s: 0.0 };
        self.storage.feed().push((segment, wanted));
        Ok(false)
    }
}

impl Cached {
    /// The engine with up to `threads_max` threads, for segments planned for `kind`.
    pub(crate) fn new(
        job: &Arc<Job>,
        kind: EngineKind,
        streams: &Arc<Streams>,
        threads_max: usize,
    ) -> crate::Result<Self> {
        let stream = streams.take().map_err(|error| job.device_error(error))?;
        let pace = match threads_max {
            // One of many requests, whose copies overlap with the others'.
            1 => Pace::Whole,
            threads => Pace::Ramp { smallest: job.batch_min(BATCH_MIN, threads as u64), threads: threads as u64 },
        };
        let feed = Feed::new(job.slot_limits(), 1, pace);
        let (full, at_driver) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { job: Arc::clone(job), kind, feed, threads_max, stream, full, at_driver, misses: None })
    }

    /// The same, for a job of which nobody knows what is cached.
    pub(crate) fn with_misses(mut self, misses: &Arc<Misses>) -> Self {
        self.misses = Some(Arc::clone(misses));
        self
    }
}

impl Engine for Cached {
    fn feed(&self) -> &Feed {
        &self.feed
    }

    fn threads(&self, bytes: u64) -> usize {
        let few = (bytes / BYTES_A_THREAD_MIN).min(THREADS_FEW);
        few.max(bytes / BYTES_A_FURTHER_THREAD).clamp(1, self.threads_max as u64) as usize
    }

    fn work(&self) {
        let mut pieces = Vec::new();
        while !self.job.is_stopped() && self.feed.wait(&mut pieces) {
            match self.fill_slot(&mut pieces) {
                Ok(_) if pieces.is_empty() => {}
                Ok(slot) => self.hand_over(slot, std::mem::take(&mut pieces)),
                Err(error) => self.job.fail(error),
            }
        }
    }

    fn finish(&self) {
        drain(&self.job, &self.stream);
        self.job.end_engine(self.kind);
    }
}

impl Cached {
    /// Reads the pieces into a slot; those that another engine must read are taken out.
    fn fill_slot(&self, pieces: &mut Vec<Piece>) -> crate::Result<Slot> {
        let mut slot = self.job.pool.acquire().map_err(|error| self.job.device_error(error).at(pieces[0].offset))?;
        if let Some(misses) = &self.misses {
            let mut outcome = Ok(());
            pieces.retain(|piece| {
                let read = misses.read_piece(&self.job, &mut slot, piece);
                read.unwrap_or_else(|error| {
                    outcome = Err(error);
                    false
                })
            });
            return outcome.map(|()| slot);
        }
        for piece in &*pieces {
            self.job.begin_segment(piece.segment);
            read_piece(&self.job, &mut slot, piece)?;
        }
        Ok(slot)
    }

    /// Queues a filled slot, and empties the queue if nobody else is at it.
    fn hand_over(&self, slot: Slot, pieces: Vec<Piece>) {
        self.lock_full().push_back((slot, pieces));
        // Whoever leaves looks once more: a slot may have been queued between its last look and
        // its leaving, by a thread that saw it there.
        while !self.lock_full().is_empty() && !self.at_driver.swap(true, Ordering::AcqRel) {
            // Leaves also when a call panics: the others would wait for its slots.
            let leaving = AtDriver(&self.at_driver);
            loop {
                let next = self.lock_full().pop_front();
                let Some((slot, pieces)) = next else { break };
                self.enqueue(slot, &pieces);
            }
            drop(leaving);
        }
    }

    fn enqueue(&self, mut slot: Slot, pieces: &[Piece]) {
        // SAFETY: the slot is retired with the event, or (on failure) only after the stream ran dry.
        match unsafe { enqueue_copies(&self.job, &self.stream, &mut slot, pieces) } {
            Ok(event) => slot.retire(event),
            Err(error) => {
                let _ = self.stream.synchronize();
                return self.job.fail(error);
            }
        }
        for piece in pieces {
            self.job.end_piece(piece.segment, piece.len);
        }
    }

    fn lock_full(&self) -> MutexGuard<'_, VecDeque<(Slot, Vec<Piece>)>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one thread that talks to the driver.
struct AtDriver<'a>(&'a AtomicBool);

impl Drop for AtDriver<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
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
