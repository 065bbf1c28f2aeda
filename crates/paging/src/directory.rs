//! The directory: which block lies in which slot of device memory, and what of it is known, in memory that outlives the
//! process.
//!
//! ```text
//!   head | counters | a word a chunk | a word a block | a word a slot
//!
//!   block word   slot + 1 (0: none) | pages that read as zeroes | pages that are lost
//!   slot word    block              | pages that are valid      | pages that are dirty (valid, and newer than the backing)
//! ```
//!
//! Every word is stored at once, so a successor of a killed process finds each as it was before or after a step. Steps are
//! ordered so that any prefix of them is true:
//! - A block enters a slot: first the slot's word names the block with no page valid, then the block's word names the slot.
//! - A block leaves: first the block's word forgets the slot, which has no dirty pages, then the slot's word is emptied.
//! - A page becomes valid after its bytes are in the slot, and invalid before the backing gets others.
//! - A page becomes dirty by the same store that makes it valid.
//!
//! So a slot whose block does not name it holds nothing, and [`Directory::repair`] empties it.
//!
//! Whoever changes words holds the cache's table lock; others only read.

use crate::pages::{BLOCK_BYTES, Pages};
use crate::stats::{STATS_WORDS, Stats};
use bifolio_block::{Error, ErrorKind, Result};
use bifolio_keeper::SharedMemory;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"BFPAGDIR");
const VERSION: u64 = 2;
const HEAD_WORDS: usize = 64;
const NO_BLOCK: u32 = u32::MAX;

/// Single words of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Head {
    /// How many chunks of device memory somebody wants; the worker follows.
    TargetChunks = 8,
    /// Not zero: end.
    Stop,
    /// How many workers have served from this directory.
    Generation,
    /// 0: none yet, 1: the device serves, 2: it is left alone after an error.
    Device,
    /// Dirty pages at present.
    DirtyPages,
    /// Slots with a block.
    UsedSlots,
    /// Slots with device memory behind them.
    PresentSlots,
    /// The process that serves.
    Worker,
    /// Bytes of device memory that are left to others: the cache gives back what is below.
    FreeBytes,
    /// Not zero: no device memory is to be held, as before a suspend. The wanted size stays what it is.
    Suspended,
    /// Chunks of device memory that others want at present.
    WithheldChunks,
    /// How long the system had slept since its start when the first chunk was taken, in milliseconds.
    SleptMs,
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of content.
    pub blocks: u32,
    /// Chunks of device memory at most.
    pub chunks: u32,
    /// Slots of a chunk.
    pub chunk_slots: u32,
    /// Writes may wait in device memory.
    pub writes_back: bool,
}

/// A block's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Block {
    /// Where it lies.
    pub slot: Option<u32>,
    /// Pages that were discarded.
    pub zero: Pages,
    /// Pages whose only copy went with the device.
    pub lost: Pages,
}

/// A slot's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// What it holds.
    pub block: Option<u32>,
    /// Pages whose bytes it has.
    pub valid: Pages,
    /// Pages that the backing does not have.
    pub dirty: Pages,
}

impl Slot {
    /// One that holds nothing.
    pub const EMPTY: Self = Self { block: None, valid: Pages::NONE, dirty: Pages::NONE };
}

/// The directory.
#[derive(Debug)]
pub struct Directory {
    memory: SharedMemory,
    shape: Shape,
}

impl Directory {
    /// A new one.
    ///
    /// # Errors
    /// The system's.
    pub fn create(shape: Shape) -> Result<Self> {
        Ok(Self::new(SharedMemory::create("bifolio-paging", words(shape)).map_err(damaged)?, shape))
    }

    /// A new one with a name, which stays until that is removed, whoever is killed.
    ///
    /// # Errors
    /// Those of [`SharedMemory::create_at`].
    pub fn create_at(path: &Path, shape: Shape) -> Result<Self> {
        Ok(Self::new(SharedMemory::create_at(path, words(shape)).map_err(damaged)?, shape))
    }

    fn new(memory: SharedMemory, shape: Shape) -> Self {
        let head = memory.words();
        for slot in &head[first_slot(shape)..] {
            slot.store(pack_slot(Slot::EMPTY), Ordering::Relaxed);
        }
        for (at, value) in [VERSION].into_iter().chain(shape_words(shape)).enumerate() {
            head[at + 1].store(value, Ordering::Relaxed);
        }
        head[0].store(MAGIC, Ordering::Release);
        Self { memory, shape }
    }

    /// One that another process has made.
    ///
    /// # Errors
    /// `Damaged` for what is no directory.
    pub fn adopt(memory: SharedMemory) -> Result<Self> {
        let word = |at: usize| memory.words().get(at).map_or(0, |word| word.load(Ordering::Acquire));
        if word(0) != MAGIC || word(1) != VERSION {
            return Err(Error::new(ErrorKind::Damaged, NAME, "the shared memory holds none of this version"));
        }
        let shape = Shape {
            blocks: word(2) as u32,
            chunks: word(3) as u32,
            chunk_slots: word(4) as u32,
            writes_back: word(5) != 0,
        };
        if memory.words().len() < words(shape) {
            return Err(Error::new(ErrorKind::Damaged, NAME, "the shared memory is shorter than what it describes"));
        }
        Ok(Self { memory, shape })
    }

    /// How much there is.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The memory, to hand to a keeper.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// The memory alone.
    pub fn into_memory(self) -> SharedMemory {
        self.memory
    }

    /// Counters.
    pub fn stats(&self) -> Stats<'_> {
        Stats(&self.memory.words()[HEAD_WORDS..HEAD_WORDS + STATS_WORDS])
    }

    /// A word of the head.
    pub fn head(&self, word: Head) -> &AtomicU64 {
        &self.memory.words()[word as usize]
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        u64::from(self.shape.chunk_slots) * BLOCK_BYTES
    }

    /// Whether a chunk has device memory behind it.
    pub fn is_present(&self, chunk: u32) -> bool {
        self.memory.words()[HEAD_WORDS + STATS_WORDS + chunk as usize].load(Ordering::Acquire) != 0
    }

    /// Says whether a chunk has device memory behind it.
    pub fn set_present(&self, chunk: u32, is_present: bool) {
        self.memory.words()[HEAD_WORDS + STATS_WORDS + chunk as usize].store(u64::from(is_present), Ordering::Release);
    }

    /// A block's word.
    pub fn block(&self, block: u32) -> Block {
        let word = self.memory.words()[first_block(self.shape) + block as usize].load(Ordering::Acquire);
        Block { slot: (word as u32).checked_sub(1), zero: Pages((word >> 32) as u16), lost: Pages((word >> 48) as u16) }
    }

    /// Stores a block's word.
    pub fn set_block(&self, at: u32, block: Block) {
        let slot = block.slot.map_or(0, |slot| u64::from(slot) + 1);
        let word = slot | u64::from(block.zero.0) << 32 | u64::from(block.lost.0) << 48;
        self.memory.words()[first_block(self.shape) + at as usize].store(word, Ordering::Release);
    }

    /// A slot's word.
    pub fn slot(&self, slot: u32) -> Slot {
        let word = self.memory.words()[first_slot(self.shape) + slot as usize].load(Ordering::Acquire);
        let block = word as u32;
        Slot {
            block: (block != NO_BLOCK).then_some(block),
            valid: Pages((word >> 32) as u16),
            dirty: Pages((word >> 48) as u16),
        }
    }

    /// Stores a slot's word.
    pub fn set_slot(&self, at: u32, slot: Slot) {
        self.memory.words()[first_slot(self.shape) + at as usize].store(pack_slot(slot), Ordering::Release);
    }

    /// Slots of all chunks, present or not.
    pub fn slots(&self) -> u32 {
        self.shape.chunks * self.shape.chunk_slots
    }

    /// Makes links whole after a process was killed at any moment: a slot whose block does not name it holds nothing, a
    /// block that names a slot of another lies nowhere, and what is dirty is valid.
    pub fn repair(&self) {
        for at in 0..self.slots() {
            let slot = self.slot(at);
            let Some(block) = slot.block else { continue };
            let is_linked = block < self.shape.blocks && self.block(block).slot == Some(at);
            if !is_linked {
                self.set_slot(at, Slot::EMPTY);
            } else if !slot.dirty.without(slot.valid).is_empty() {
                self.set_slot(at, Slot { dirty: slot.dirty.and(slot.valid), ..slot });
            }
        }
        for at in 0..self.shape.blocks {
            let block = self.block(at);
            let Some(slot) = block.slot else { continue };
            if slot >= self.slots() || self.slot(slot).block != Some(at) {
                self.set_block(at, Block { slot: None, ..block });
            }
        }
    }
}

const NAME: &str = "the cache's directory";

fn damaged(error: bifolio_keeper::Error) -> Error {
    Error::new(ErrorKind::Missing, NAME, error.to_string()).with_cause(error)
}

fn shape_words(shape: Shape) -> [u64; 4] {
    [shape.blocks.into(), shape.chunks.into(), shape.chunk_slots.into(), shape.writes_back.into()]
}

fn first_block(shape: Shape) -> usize {
    HEAD_WORDS + STATS_WORDS + shape.chunks as usize
}

fn first_slot(shape: Shape) -> usize {
    first_block(shape) + shape.blocks as usize
}

fn words(shape: Shape) -> usize {
    first_slot(shape) + shape.chunks as usize * shape.chunk_slots as usize
}

fn pack_slot(slot: Slot) -> u64 {
    u64::from(slot.block.unwrap_or(NO_BLOCK)) | u64::from(slot.valid.0) << 32 | u64::from(slot.dirty.0) << 48
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SHAPE: Shape = Shape { blocks: 100, chunks: 3, chunk_slots: 8, writes_back: true };

    #[test]
    fn words_are_read_as_they_were_stored_also_by_a_successor() {
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        let directory = Directory::create(SHAPE).unwrap();
        assert_eq!((directory.block(99), directory.slot(23)), (Block::default(), Slot::EMPTY));
        for _ in 0..500 {
            let slot = draw.bool().then(|| draw.u32(..24));
            let block = Block { slot, zero: Pages(draw.u16(..)), lost: Pages(draw.u16(..)) };
            let slot = Slot { block: Some(draw.u32(..100)), valid: Pages(draw.u16(..)), dirty: Pages(draw.u16(..)) };
            let (at, slot_at) = (draw.u32(..100), draw.u32(..24));
            directory.set_block(at, block);
            directory.set_slot(slot_at, slot);
            let memory = SharedMemory::map(directory.memory().as_fd().try_clone_to_owned().unwrap()).unwrap();
            let other = Directory::adopt(memory).unwrap();
            assert_eq!(other.shape(), SHAPE);
            assert_eq!((other.block(at), other.slot(slot_at)), (block, slot));
        }
    }

    #[test]
    fn half_made_links_are_undone() {
        let directory = Directory::create(SHAPE).unwrap();
        let held = |block| Slot { block: Some(block), valid: Pages(3), dirty: Pages(1) };
        // Whole; entered but not yet named; named by nobody; dirty without being valid.
        directory.set_slot(0, held(7));
        directory.set_block(7, Block { slot: Some(0), ..Block::default() });
        directory.set_slot(1, Slot { dirty: Pages::NONE, valid: Pages::NONE, ..held(8) });
        directory.set_block(9, Block { slot: Some(2), zero: Pages(4), lost: Pages::NONE });
        directory.set_slot(3, Slot { valid: Pages(2), ..held(10) });
        directory.set_block(10, Block { slot: Some(3), ..Block::default() });
        directory.repair();
        assert_eq!((directory.slot(0), directory.block(7).slot), (held(7), Some(0)));
        assert_eq!(directory.slot(1), Slot::EMPTY);
        assert_eq!(directory.block(9), Block { slot: None, zero: Pages(4), lost: Pages::NONE });
        assert_eq!(directory.slot(3), Slot { block: Some(10), valid: Pages(2), dirty: Pages::NONE });
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let memory = SharedMemory::create("other", 10_000).unwrap();
        assert_eq!(Directory::adopt(memory).unwrap_err().kind(), ErrorKind::Damaged);
    }
}
