//! The slots of a stream's queue: page-locked memory for the chunks of its requests, one after the other.
//!
//! Slots are the queue's own, so no stream waits for what another one holds, however long it is held up. A
//! chunk that comes to a slot which is in use has its turn afterwards: not the program's thread waits for that,
//! but the queue's, for points of its own stream that come before the chunk.
//!
//! That is why this is not a [`PinnedPool`](bifolio_device::PinnedPool): a pool hands out slots that are free, to whoever
//! waits for one. Here the copy of a chunk is enqueued, with the address of its slot, while the slot is still in use.

use super::chunk::{CHUNK_BYTES, TABLE_BYTES};
use crate::status::Outcome;
use bifolio_device::{Device, Event, PinnedBuffer, Stream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

/// Slots of a queue at most: as many as threads fill at a time.
const SLOTS_MAX: usize = 8;
/// Slots that every queue may have: one is filled while the other is copied.
const SLOTS_SURE: usize = 2;
/// Slots of a device, beyond which queues have no more than the sure ones.
const SLOTS_OF_DEVICE: usize = 32;

/// Slots; requests use them in their order.
#[derive(Debug, Default)]
pub(super) struct Ring(Vec<Slot>);

#[derive(Debug)]
struct Slot {
    memory: PinnedBuffer,
    /// The latest use; none before the first.
    in_use: Option<InUse>,
}

/// A use of a slot.
#[derive(Debug)]
pub(super) struct InUse {
    /// Ends when threads are done with the slot.
    pub(super) threads: Receiver<()>,
    /// Where in the stream its commands are done with it, if that is not known to the threads.
    pub(super) stream: Option<Event>,
}

impl InUse {
    /// Waits for its end. A stream that has failed uses nothing any more.
    pub(super) fn wait(self) {
        let _ = self.threads.recv();
        if let Some(stream) = self.stream {
            let _ = stream.wait();
        }
    }
}

/// The memory of a slot, for those who use it next.
#[derive(Debug)]
pub(super) struct SlotMemory(*mut u8);

// SAFETY: an address; who may touch it when is the contract of its methods.
unsafe impl Send for SlotMemory {}

impl SlotMemory {
    pub(super) fn address(&self) -> *mut u8 {
        self.0
    }

    /// The table and the data.
    ///
    /// # Safety
    /// Nobody else uses the slot meanwhile, and its queue is not given up.
    pub(super) unsafe fn bytes(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: the caller's promise; slots have so many bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0, TABLE_BYTES + CHUNK_BYTES) }.split_at_mut(TABLE_BYTES)
    }
}

impl Ring {
    /// Makes slots for a request of so many chunks; all slots of the device are counted in `of_device`. With a
    /// single one everything works, only slower.
    pub(super) fn grow(&mut self, device: &Device, chunks: usize, of_device: &AtomicUsize) -> Outcome<()> {
        while self.0.len() < chunks.min(SLOTS_MAX) {
            if self.0.len() >= SLOTS_SURE && of_device.load(Ordering::Relaxed) >= SLOTS_OF_DEVICE {
                break;
            }
            match device.alloc_pinned(TABLE_BYTES + CHUNK_BYTES) {
                Ok(memory) => self.0.push(Slot { memory, in_use: None }),
                Err(error) if self.0.is_empty() => return Err(error.into()),
                Err(_) => break,
            }
            of_device.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The slot of a chunk, and its use until then.
    pub(super) fn take(&mut self, chunk: usize) -> Option<(SlotMemory, Option<InUse>)> {
        let at = chunk.checked_rem(self.0.len())?;
        let slot = &mut self.0[at];
        Some((SlotMemory(slot.memory.as_mut_ptr()), slot.in_use.take()))
    }

    /// Says how long it is in use.
    pub(super) fn keep(&mut self, chunk: usize, in_use: InUse) {
        if let Some(at) = chunk.checked_rem(self.0.len()) {
            self.0[at].in_use = Some(in_use);
        }
    }

    /// The same for a chunk of whose commands a part may be on the stream.
    pub(super) fn keep_after_failure(&mut self, chunk: usize, stream: &Stream, threads: Receiver<()>) {
        match stream.record() {
            Ok(event) => self.keep(chunk, InUse { threads, stream: Some(event) }),
            Err(_) => {
                // Nobody can tell when the slot is free, so it stays for good.
                if let Some(at) = chunk.checked_rem(self.0.len()) {
                    std::mem::forget(self.0.swap_remove(at));
                }
            }
        }
    }

    /// Waits until no slot is in use; how many there are.
    pub(super) fn wait(&mut self) -> usize {
        self.0.iter_mut().filter_map(|slot| slot.in_use.take()).for_each(InUse::wait);
        self.0.len()
    }
}
