//! The thread that brings blocks of a region, and takes them away.

use super::residency::{Leaving, Need, Residency};
use super::uffd::{Fault, Uffd};
use crate::pages::BLOCK_BYTES;
use crate::store::Store;
use bifolio_device::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Blocks of the budget that are kept free for the next faults, unless it is small.
const RESERVE: usize = 8;

/// What has happened to a region since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionStatistics {
    /// Faults at blocks that were nowhere.
    pub new_blocks: u64,
    /// Blocks that came from the device.
    pub fetched: u64,
    /// Blocks that left with a copy to the device.
    pub stored: u64,
    /// Blocks that left without one, as the device has what is in them.
    pub dropped: u64,
    /// Blocks that left without one, as there were only zeroes in them.
    pub zeroes: u64,
    /// Blocks that stayed although there were too many, as the device did not take them.
    pub refused: u64,
    /// Blocks whose content is lost, as the device did not give it back.
    pub lost: u64,
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
}

#[derive(Debug, Default)]
struct Counts {
    new_blocks: AtomicU64,
    fetched: AtomicU64,
    stored: AtomicU64,
    dropped: AtomicU64,
    zeroes: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    here: AtomicU64,
    slots: AtomicU64,
}

/// What the thread and the region share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) uffd: Uffd,
    store: Store,
    start: u64,
    /// Blocks that may be in memory.
    budget: AtomicUsize,
    counts: Counts,
    trouble: Mutex<Option<String>>,
    /// Readable where the thread is to look at the budget, or to end.
    pub(super) bell: OwnedFd,
    pub(super) ends: std::sync::atomic::AtomicBool,
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    pub(super) fn new(uffd: Uffd, store: Store, start: u64, budget: usize, bell: OwnedFd) -> Self {
        let (counts, trouble) = (Counts::default(), Mutex::default());
        Self { uffd, store, start, budget: budget.into(), counts, trouble, bell, ends: false.into() }
    }

    /// Has the thread look up.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn set_budget(&self, blocks: usize) {
        self.budget.store(blocks, Ordering::Release);
        self.ring();
    }

    pub(super) fn take_trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn tell(&self, doing: &str, error: impl std::fmt::Display) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert_with(|| format!("{doing}: {error}"));
    }

    pub(super) fn statistics(&self) -> RegionStatistics {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { new_blocks, fetched, stored, dropped, zeroes, refused, lost, here, slots } = &self.counts;
        RegionStatistics {
            new_blocks: get(new_blocks),
            fetched: get(fetched),
            stored: get(stored),
            dropped: get(dropped),
            zeroes: get(zeroes),
            refused: get(refused),
            lost: get(lost),
            resident_bytes: get(here) * BLOCK_BYTES,
            device_bytes: get(slots) * BLOCK_BYTES,
        }
    }
}

/// What the thread has for itself.
#[derive(Debug)]
pub(super) struct Pager {
    known: Residency,
    /// Chunks of the store that have memory, and how many may have.
    chunks: (u32, u32),
    chunk_slots: u32,
    buffer: Box<[u8]>,
    /// Whether the device took the last block that was to leave.
    takes: bool,
}

impl Pager {
    pub(super) fn new(blocks: u32, chunks: u32, chunk_slots: u32) -> Self {
        let (known, buffer) = (Residency::new(blocks), vec![0; BLOCK_BYTES as usize].into_boxed_slice());
        Self { known, chunks: (0, chunks), chunk_slots, buffer, takes: true }
    }

    /// Answers faults until the region ends.
    pub(super) fn run(mut self, shared: &Shared) {
        let mut faults = Vec::with_capacity(16);
        while !shared.ends.load(Ordering::Acquire) {
            let faulting = shared.uffd.as_fd();
            let mut files = [PollFd::new(&faulting, PollFlags::IN), PollFd::new(&shared.bell, PollFlags::IN)];
            // An interrupted wait is as good as one that is over.
            let _ = poll(&mut files, None);
            let _ = rustix::io::read(&shared.bell, &mut [0_u8; 8]);
            self.takes = true;
            loop {
                match shared.uffd.read(&mut faults) {
                    Ok(true) => faults.drain(..).for_each(|fault| self.answer(shared, fault)),
                    Ok(false) => {}
                    Err(error) => return shared.tell("reading page faults", error),
                }
                // Room for the next faults is made while nobody waits.
                let reserve = RESERVE.min(shared.budget.load(Ordering::Acquire) / 4);
                if !self.make_room(shared, reserve) {
                    break;
                }
            }
            shared.counts.here.store(self.known.here() as u64, Ordering::Relaxed);
            shared.counts.slots.store(self.known.used_slots().into(), Ordering::Relaxed);
        }
    }

    /// Takes a block away where fewer than `reserve` are free; whether one has left, and there may be more to do.
    fn make_room(&mut self, shared: &Shared, reserve: usize) -> bool {
        if self.known.here() + reserve <= shared.budget.load(Ordering::Acquire) || !self.takes {
            return false;
        }
        let Some(leaving) = self.known.leaving() else { return false };
        self.takes = self.take_away(shared, leaving);
        self.takes
    }

    fn answer(&mut self, shared: &Shared, fault: Fault) {
        let block = ((fault.address - shared.start) / BLOCK_BYTES) as u32;
        let start = shared.start + u64::from(block) * BLOCK_BYTES;
        let need = self.known.need(block, fault.is_protected);
        if matches!(need, Need::Zeroes | Need::Slot(_)) {
            while self.make_room(shared, 1) {}
        }
        let answered = match need {
            Need::Nothing => shared.uffd.wake(start, BLOCK_BYTES),
            Need::Lost => shared.uffd.poison(start, BLOCK_BYTES),
            Need::Write => {
                self.known.written(block);
                shared.uffd.protect(start, BLOCK_BYTES, false)
            }
            Need::Zeroes => {
                add(&shared.counts.new_blocks);
                self.known.came(block);
                self.buffer.fill(0);
                shared.uffd.fill(start, &self.buffer, false)
            }
            Need::Slot(slot) => match self.fetch(shared, slot) {
                Ok(()) => {
                    add(&shared.counts.fetched);
                    self.known.came(block);
                    if fault.is_write {
                        self.known.written(block);
                    }
                    shared.uffd.fill(start, &self.buffer, !fault.is_write)
                }
                Err(error) => {
                    add(&shared.counts.lost);
                    shared.tell(
                        &format!(
                            "bytes {} to {} of a region are lost",
                            start - shared.start,
                            start - shared.start + BLOCK_BYTES
                        ),
                        error,
                    );
                    self.known.lose(block);
                    shared.uffd.poison(start, BLOCK_BYTES)
                }
            },
        };
        if let Err(error) = answered {
            shared.tell("answering a page fault", error);
        }
    }

    /// A slot's content, into the buffer. After a failure lanes are made anew, for one more try.
    fn fetch(&mut self, shared: &Shared, slot: u32) -> Result<()> {
        let failed = shared.store.read(slot, 0, &mut self.buffer);
        failed.or_else(|_| {
            shared.store.renew()?;
            shared.store.read(slot, 0, &mut self.buffer)
        })
    }

    /// Takes a block away; whether it has left.
    fn take_away(&mut self, shared: &Shared, Leaving { block, is_dirty }: Leaving) -> bool {
        let start = shared.start + u64::from(block) * BLOCK_BYTES;
        let stored = if is_dirty { self.copy_away(shared, block, start) } else { Ok(false) };
        match stored {
            Ok(is_zero) => {
                // SAFETY: the range is a block of the region. Writers wait, as it is protected, and its content is kept.
                unsafe { libc::madvise(start as *mut libc::c_void, BLOCK_BYTES as usize, libc::MADV_DONTNEED) };
                self.known.left(block, is_zero);
                let counts = &shared.counts;
                add(match (is_dirty, is_zero) {
                    (true, true) => &counts.zeroes,
                    (true, false) => &counts.stored,
                    (false, _) => &counts.dropped,
                });
                true
            }
            Err(error) => {
                add(&shared.counts.refused);
                shared.tell("the device takes no more of a region, which so needs more memory than it may", error);
                self.known.stayed(block);
                if let Err(error) = shared.uffd.protect(start, BLOCK_BYTES, false) {
                    shared.tell("allowing writes again", error);
                }
                false
            }
        }
    }

    /// Copies a block to its slot, so that nobody can write to it meanwhile; whether there are only zeroes in it, which need none.
    fn copy_away(&mut self, shared: &Shared, block: u32, start: u64) -> Result<bool> {
        let protected = shared.uffd.protect(start, BLOCK_BYTES, true);
        protected.map_err(|error| Error::system("protecting pages from writes", error))?;
        // SAFETY: the block is here, readable, and nobody writes to it until it is unprotected or has left.
        let content = unsafe { std::slice::from_raw_parts(start as *const u8, BLOCK_BYTES as usize) };
        // SAFETY: words may be read where bytes may.
        let (before, words, after) = unsafe { content.align_to::<u128>() };
        if words.iter().all(|word| *word == 0) && before.iter().chain(after).all(|byte| *byte == 0) {
            return Ok(true);
        }
        let slot = match self.known.slot_for(block) {
            Some(slot) => slot,
            None => self.grow(shared, block)?,
        };
        let failed = shared.store.write(slot, 0, content);
        failed.or_else(|_| {
            shared.store.renew()?;
            shared.store.write(slot, 0, content)
        })?;
        Ok(false)
    }

    /// Takes more device memory, and a slot of it.
    fn grow(&mut self, shared: &Shared, block: u32) -> Result<u32> {
        let full = || Error::new(bifolio_device::ErrorKind::OutOfMemory, "all device memory that it may have is used");
        let (chunk, most) = self.chunks;
        if chunk == most {
            return Err(full());
        }
        shared.store.add(chunk)?;
        self.chunks.0 += 1;
        self.known.add_slots(self.chunk_slots);
        self.known.slot_for(block).ok_or_else(full)
    }
}
