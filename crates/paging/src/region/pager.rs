//! The thread that brings blocks of a region, and takes them away.

use super::residency::{Leaving, Need, Residency};
use super::spares::{SPARES, Spares, Taken, forget, patiently};
use super::uffd::{Fault, Uffd};
use crate::pages::{BLOCK_BYTES, PAGE_BYTES};
use crate::store::Store;
use bifolio_device::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What new blocks have.
static ZEROES: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
/// Blocks that may turn out to be pinned before others have to wait for the next round.
const PINNED_MAX: usize = 32;
/// When it is tried again to take away what was pinned.
const PINNED_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// When it is tried again to take away what the device, or the system, would not have taken away.
const REFUSED_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// What has happened to a region since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionStatistics {
    /// Faults at blocks that were nowhere.
    pub new_blocks: u64,
    /// Blocks that came from the device.
    pub fetched: u64,
    /// Blocks that left with a copy to the device.
    pub stored: u64,
    /// Blocks that left without one, as the device has what is in them (before Linux 6.8).
    pub dropped: u64,
    /// Blocks that left without one, as there were only zeroes in them.
    pub zeroes: u64,
    /// Blocks that stayed although there were too many, as the device did not take them.
    pub refused: u64,
    /// Blocks that stayed although there were too many, as somebody had them pinned.
    pub pinned: u64,
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
    pinned: AtomicU64,
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

    /// Whether blocks come protected, so that those that were only read leave without a copy. Where pages are moved they cannot
    /// be protected before somebody else has them; and a move and a copy take less than to make pages and free them.
    fn tells_writes(&self) -> bool {
        !self.uffd.can_move
    }

    /// Blocks of the budget that are kept free for the next faults, or have the pages for them.
    fn reserve(&self) -> usize {
        SPARES.min(self.budget.load(Ordering::Acquire) / 4)
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
        let Counts { new_blocks, fetched, stored, dropped, zeroes, refused, pinned, lost, here, slots } = &self.counts;
        RegionStatistics {
            new_blocks: get(new_blocks),
            fetched: get(fetched),
            stored: get(stored),
            dropped: get(dropped),
            zeroes: get(zeroes),
            refused: get(refused),
            pinned: get(pinned),
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
    /// Whether the device took the last block that was to leave.
    takes: bool,
    /// Blocks of this round that were pinned.
    pinned: usize,
    spares: Spares,
}

/// What became of a block that was to leave.
enum Departure {
    Left,
    /// The device did not take it.
    Refused,
    Pinned,
}

impl Pager {
    pub(super) fn new(blocks: u32, chunks: u32, chunk_slots: u32, spares: Spares) -> Self {
        let known = Residency::new(blocks);
        let chunks = (0, chunks);
        Self { known, chunks, chunk_slots, takes: true, pinned: 0, spares }
    }

    /// Answers faults until the region ends.
    pub(super) fn run(mut self, shared: &Shared) {
        let mut faults = Vec::with_capacity(16);
        while !shared.ends.load(Ordering::Acquire) {
            if let Err(error) = self.wait(shared, &mut faults) {
                return shared.tell("reading page faults", error);
            }
            (self.takes, self.pinned) = (true, 0);
            loop {
                faults.drain(..).for_each(|fault| self.answer(shared, fault));
                // Room for the next faults is made while nobody waits.
                if !self.make_room(shared, shared.reserve()) {
                    break;
                }
                if let Err(error) = shared.uffd.read(&mut faults) {
                    return shared.tell("reading page faults", error);
                }
            }
            self.spares.trim(shared.reserve());
            shared.counts.here.store((self.known.here() + self.spares.ready()) as u64, Ordering::Relaxed);
            shared.counts.slots.store(self.known.used_slots().into(), Ordering::Relaxed);
        }
    }

    /// Waits for faults, or for the bell. To look for the next one for some time instead of sleeping was no gain: it held up
    /// who faults where both had one processor, and let both run on two, with interrupts between them.
    fn wait(&self, shared: &Shared, faults: &mut Vec<Fault>) -> io::Result<()> {
        let faulting = shared.uffd.as_fd();
        let mut files = [PollFd::new(&faulting, PollFlags::IN), PollFd::new(&shared.bell, PollFlags::IN)];
        let time = match (self.pinned > 0, self.takes) {
            (true, _) => Some(&PINNED_TIME),
            (false, false) => Some(&REFUSED_TIME),
            (false, true) => None,
        };
        // An interrupted wait is as good as one that is over.
        let _ = poll(&mut files, time);
        if !files[1].revents().is_empty() {
            let _ = rustix::io::read(&shared.bell, &mut [0_u8; 8]);
        }
        shared.uffd.read(faults).map(drop)
    }

    /// Takes a block away where fewer than `reserve` are free; whether there may be more to do.
    fn make_room(&mut self, shared: &Shared, reserve: usize) -> bool {
        let has_room = self.known.here() + reserve <= shared.budget.load(Ordering::Acquire);
        if has_room || !self.takes || self.pinned >= PINNED_MAX {
            return false;
        }
        let Some(leaving) = self.known.leaving() else { return false };
        match self.take_away(shared, leaving) {
            Departure::Left => {}
            Departure::Refused => self.takes = false,
            Departure::Pinned => self.pinned += 1,
        }
        self.takes
    }

    fn answer(&mut self, shared: &Shared, fault: Fault) {
        if self.spares.has(fault.address) {
            // The program has lost its way: a signal, as memory that is not its own would give it.
            let _ = shared.uffd.poison(fault.address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
            return;
        }
        let block = ((fault.address - shared.start) / BLOCK_BYTES) as u32;
        let start = shared.start + u64::from(block) * BLOCK_BYTES;
        let need = self.known.need(block, fault.is_protected);
        if matches!(need, Need::Zeroes | Need::Slot(_)) {
            while self.make_room(shared, 1) {}
        }
        let answered = match need {
            Need::Nothing => {
                let page = fault.address / PAGE_BYTES * PAGE_BYTES;
                shared.uffd.fill(page, &ZEROES[..PAGE_BYTES as usize], true)
            }
            Need::Lost => shared.uffd.poison(start, BLOCK_BYTES),
            Need::Write => {
                self.known.written(block);
                shared.uffd.protect(start, BLOCK_BYTES, false)
            }
            Need::Zeroes => {
                add(&shared.counts.new_blocks);
                self.known.came(block, true);
                give(&mut self.spares, &shared.uffd, start, &ZEROES, false)
            }
            Need::Slot(slot) => match self.fetch(shared, slot, start, fault.is_write) {
                // It has come only when all of it is there: what is missing of a block that has come is zeroes.
                Ok(Ok(())) => {
                    add(&shared.counts.fetched);
                    self.known.came(block, !shared.tells_writes());
                    if fault.is_write {
                        self.known.written(block);
                    }
                    Ok(())
                }
                Ok(Err(error)) => {
                    self.lose(shared, block, error);
                    Ok(())
                }
                Err(error) => {
                    self.lose(shared, block, error);
                    Ok(())
                }
            },
        };
        if let Err(error) = answered {
            shared.tell("answering a page fault", error);
            // Who waits tries again.
            let _ = shared.uffd.wake(start, BLOCK_BYTES);
        }
    }

    /// What is missing of a block cannot be had any more: whoever touches it gets a signal, and never other bytes.
    fn lose(&mut self, shared: &Shared, block: u32, error: impl std::fmt::Display) {
        let start = shared.start + u64::from(block) * BLOCK_BYTES;
        let (from, to) = (start - shared.start, start - shared.start + BLOCK_BYTES);
        add(&shared.counts.lost);
        shared.tell(&format!("bytes {from} to {to} of a region are lost"), error);
        self.known.lose(block);
        if let Err(error) = shared.uffd.poison(start, BLOCK_BYTES) {
            shared.tell("keeping bytes that are lost from being read", error);
        }
    }

    /// Brings what is in a slot to its block; how that went, once the device has given it. After a failure lanes are made anew, for
    /// one more try.
    fn fetch(&mut self, shared: &Shared, slot: u32, start: u64, is_write: bool) -> Result<io::Result<()>> {
        let Shared { uffd, store, .. } = shared;
        let protect = shared.tells_writes() && !is_write;
        let mut show = || {
            let bring = |content: &[u8]| patiently(|| give(&mut self.spares, uffd, start, content, protect));
            store.show(slot, 0, BLOCK_BYTES as usize, bring)
        };
        show().or_else(|_| {
            store.renew()?;
            show()
        })
    }

    /// Takes a block away.
    fn take_away(&mut self, shared: &Shared, Leaving { block, is_dirty }: Leaving) -> Departure {
        let start = shared.start + u64::from(block) * BLOCK_BYTES;
        let counts = &shared.counts;
        if !is_dirty {
            forget(start);
            self.known.left(block, false);
            add(&counts.dropped);
            return Departure::Left;
        }
        let from = match self.hold(shared, start) {
            Ok(Taken::At(from)) => from,
            Ok(Taken::Pinned) => {
                add(&counts.pinned);
                self.known.stayed(block);
                return Departure::Pinned;
            }
            Ok(Taken::Broken(error)) => {
                self.lose(shared, block, error);
                return Departure::Left;
            }
            Err(error) => {
                shared.tell("keeping a block of a region from being written to", error);
                self.known.stayed(block);
                return Departure::Refused;
            }
        };
        match self.store(shared, block, from) {
            Ok(is_zero) => {
                self.spares.keep(&shared.uffd, from);
                self.known.left(block, is_zero);
                add(if is_zero { &counts.zeroes } else { &counts.stored });
                Departure::Left
            }
            Err(error) => {
                add(&counts.refused);
                shared.tell("the device takes no more of a region, which so needs more memory than it may", error);
                match self.spares.return_to(&shared.uffd, from, start) {
                    Ok(()) => self.known.stayed(block),
                    Err(error) => self.lose(shared, block, error),
                }
                Departure::Refused
            }
        }
    }

    /// Takes a block to where nobody writes to it, and where no page of it is missing, whatever the program discards meanwhile:
    /// this thread answers page faults, and must have none. Where the kernel can move pages it tells, too, that somebody has
    /// pinned one.
    fn hold(&mut self, shared: &Shared, start: u64) -> io::Result<Taken> {
        let uffd = &shared.uffd;
        if !uffd.can_move {
            return self.spares.take_as_a_whole(start);
        }
        let is_missing = |error: &io::Error| error.raw_os_error() == Some(libc::ENOENT);
        match self.spares.take(uffd, start) {
            Err(error) if is_missing(&error) => {}
            taken => return taken,
        }
        // Where the program has discarded pages there are zeroes.
        uffd.fill(start, &ZEROES, false)?;
        match self.spares.take(uffd, start) {
            // It discards pages of it just now, and so uses it.
            Err(error) if is_missing(&error) => Ok(Taken::Pinned),
            taken => taken,
        }
    }

    /// Copies a block to its slot from where it was taken to; whether there are only zeroes in it, which need none.
    fn store(&mut self, shared: &Shared, block: u32, from: u64) -> Result<bool> {
        // SAFETY: the block is there, readable, and nobody else's until it is let go.
        let content = unsafe { std::slice::from_raw_parts(from as *const u8, BLOCK_BYTES as usize) };
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

/// Gives a block that is not there its content, and wakes who waits for it.
fn give(spares: &mut Spares, uffd: &Uffd, start: u64, content: &[u8], protect: bool) -> io::Result<()> {
    match spares.give(uffd, start, content) {
        Ok(true) => Ok(()),
        // Pages that are there stay as they are.
        Ok(false) | Err(_) => uffd.fill(start, content, protect),
    }
}
