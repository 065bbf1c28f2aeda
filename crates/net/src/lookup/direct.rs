//! An array with the answer of each 24-bit prefix, and blocks of 256 answers where there are longer prefixes (DIR-24-8).
//!
//! ```text
//!   first    16,777,216 halves of a word, each a code or, with the highest bit, a block's number
//!   blocks   256 halves of a word each
//! ```
//!
//! Code 0 stands for the default route. An answer is overwritten in place. A block is used again for another prefix only
//! after an epoch.
//!
//! P. Gupta and others, "Routing Lookups in Hardware at Memory Access Speeds", INFOCOM 1998.

use super::compiled::{BATCH, Layout};
use super::epoch::Epoch;
use super::index::{Changes, Index};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

const BLOCK: u16 = 1 << 15;
pub(super) const BLOCKS: usize = BLOCK as usize;
/// Blocks of a segment, which are made at once.
const SEGMENT: usize = 64;

type Segment = Box<[[AtomicU16; 256]]>;

/// What packets read.
#[derive(Debug)]
pub(super) struct Direct {
    first: Box<[AtomicU16]>,
    blocks: Box<[OnceLock<Segment>]>,
    default: AtomicU32,
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct DirectSpace {
    /// Which prefix has which block.
    held: HashMap<u32, u16>,
    /// How many blocks there ever were.
    made: usize,
    free: Vec<u16>,
    /// Given back; readers may be in them.
    waiting: Vec<u16>,
    /// What changed when, once somebody asks.
    log: Option<Box<Log>>,
}

/// When what changed last: the number of a publication.
#[derive(Debug)]
struct Log {
    now: u64,
    /// By the upper 16 bits of addresses: codes of the first array.
    middles: Box<[u64]>,
    blocks: Box<[u64]>,
}

impl DirectSpace {
    fn note_middle(&mut self, prefix: u32) {
        if let Some(log) = &mut self.log {
            log.middles[prefix as usize] = log.now;
        }
    }

    fn note_block(&mut self, block: u16) {
        if let Some(log) = &mut self.log {
            log.blocks[usize::from(block)] = log.now;
        }
    }

    /// Notes changes from now on; the number of the last publication.
    pub(super) fn noted(&mut self) -> u64 {
        let never = |count: usize| vec![0; count].into_boxed_slice();
        let log = || Box::new(Log { now: 0, middles: never(1 << 16), blocks: never(BLOCKS) });
        self.log.get_or_insert_with(log).now
    }

    /// Which 16-bit prefixes changed in the first array after a publication, in ascending order.
    pub(super) fn middles_since(&self, then: u64) -> impl Iterator<Item = usize> {
        let log = self.log.as_deref().map_or(&[][..], |log| &log.middles);
        log.iter().enumerate().filter(move |&(_, &when)| when > then).map(|(at, _)| at)
    }

    /// Which blocks changed after a publication, in ascending order.
    pub(super) fn blocks_since(&self, then: u64) -> impl Iterator<Item = usize> {
        let log = self.log.as_deref().map_or(&[][..], |log| &log.blocks);
        log.iter().enumerate().filter(move |&(_, &when)| when > then).map(|(at, _)| at)
    }

    /// Which prefix has which block.
    pub(super) fn held(&self) -> impl Iterator<Item = (u32, u16)> {
        self.held.iter().map(|(&prefix, &block)| (prefix, block))
    }

    /// How many blocks there ever were.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    fn take(&mut self, epoch: &Epoch) -> Option<u16> {
        if self.free.is_empty() && self.made == BLOCKS && !self.waiting.is_empty() {
            epoch.advance();
            self.free.append(&mut self.waiting);
        }
        self.free.pop().or_else(|| {
            let block = (self.made < BLOCKS).then_some(self.made as u16)?;
            self.made += 1;
            Some(block)
        })
    }
}

impl Default for Direct {
    fn default() -> Self {
        let first = (0..1 << 24).map(|_| AtomicU16::new(0)).collect();
        let blocks = (0..BLOCKS / SEGMENT).map(|_| OnceLock::new()).collect();
        Self { first, blocks, default: AtomicU32::new(0) }
    }
}

impl Direct {
    /// The codes of a 16-bit prefix.
    pub(super) fn first_of(&self, prefix: usize) -> impl Iterator<Item = u16> {
        self.first[prefix << 8..][..256].iter().map(|code| code.load(Ordering::Acquire))
    }

    /// The codes of a block; zeros for one that never was.
    pub(super) fn block(&self, block: usize) -> impl Iterator<Item = u16> {
        let codes = self.blocks[block / SEGMENT].get().map(|segment| &segment[block % SEGMENT]);
        (0..256).map(move |at| codes.map_or(0, |codes| codes[at].load(Ordering::Acquire)))
    }

    /// The code of addresses whose code is 0.
    pub(super) fn default_code(&self) -> u32 {
        self.default.load(Ordering::Acquire)
    }

    #[inline]
    fn deep(&self, answer: u16, address: u32) -> u16 {
        let block = usize::from(answer & !BLOCK);
        match self.blocks[block / SEGMENT].get() {
            Some(segment) => segment[block % SEGMENT][(address & 255) as usize].load(Ordering::Acquire),
            None => 0,
        }
    }

    /// Whether that changed something.
    fn write_block(&self, block: u16, codes: &[u32; 256]) -> bool {
        let block = usize::from(block);
        let empty = || (0..SEGMENT).map(|_| [const { AtomicU16::new(0) }; 256]).collect();
        let segment = self.blocks[block / SEGMENT].get_or_init(empty);
        let mut differs = false;
        for (place, &code) in segment[block % SEGMENT].iter().zip(codes) {
            differs |= place.load(Ordering::Relaxed) != code as u16;
            place.store(code as u16, Ordering::Release);
        }
        differs
    }

    /// Writes the answers of a 16-bit prefix.
    fn middle(&self, space: &mut DirectSpace, index: &Index, prefix: u32, epoch: &Epoch) {
        let mut codes = [index.cover(prefix); 256];
        let middle = index.middle(prefix);
        if let Some(middle) = middle {
            middle.paint(&mut codes);
        }
        let deeper = middle.map_or(&[][..], |middle| &middle.deeper);
        let first = &self.first[(prefix as usize) << 8..][..256];
        let mut differs = false;
        for (at, (place, &code)) in first.iter().zip(&codes).enumerate() {
            if deeper.binary_search(&(at as u8)).is_err() {
                let old = place.load(Ordering::Relaxed);
                if old != code as u16 {
                    place.store(code as u16, Ordering::Release);
                    differs = true;
                }
                if old & BLOCK != 0 {
                    space.held.remove(&(prefix << 8 | at as u32));
                    space.waiting.push(old & !BLOCK);
                }
            }
        }
        if differs {
            space.note_middle(prefix);
        }
        for &at in deeper {
            self.bottom(space, index, prefix << 8 | u32::from(at), codes[usize::from(at)], epoch);
        }
    }

    /// Writes the answers of a 24-bit prefix that has longer ones; `code` is that of shorter ones.
    fn bottom(&self, space: &mut DirectSpace, index: &Index, prefix: u32, code: u32, epoch: &Epoch) {
        let mut codes = [code; 256];
        index.paint_bottom(prefix, &mut codes);
        let block = match space.held.get(&prefix) {
            Some(&block) => block,
            None => space.take(epoch).expect("fits() counts blocks"),
        };
        let is_new = space.held.insert(prefix, block) != Some(block);
        // Who has an image may have nothing of a new one yet, whatever it held before.
        if self.write_block(block, &codes) || is_new {
            space.note_block(block);
        }
        if is_new {
            space.note_middle(prefix >> 8);
        }
        self.first[prefix as usize].store(block | BLOCK, Ordering::Release);
    }
}

impl Layout for Direct {
    type Space = DirectSpace;
    const CODES: u32 = BLOCK as u32 - 1;
    const IN_PLACE: bool = true;

    fn fits(&self, space: &DirectSpace, index: &Index, address: u32, len: u8) -> bool {
        // Blocks whose prefixes are gone, but not from the array yet, are not there to be taken.
        let pending = if index.changes().bottoms.is_empty() { 0 } else { space.held.len() };
        len <= 24 || index.has_bottom(address >> 8) || index.bottoms() + pending < BLOCKS
    }

    fn publish(&self, space: &mut DirectSpace, index: &Index, changes: &Changes, epoch: &Epoch) {
        if let Some(log) = &mut space.log {
            log.now += 1;
        }
        if changes.default {
            self.default.store(index.default_code(), Ordering::Release);
        }
        let mut middles: Vec<u32> = changes.bottoms.iter().map(|prefix| prefix >> 8).collect();
        middles.extend(&changes.middles);
        for &(first, count) in &changes.tops {
            middles.extend(first..first + count);
        }
        middles.sort_unstable();
        middles.dedup();
        for prefix in middles {
            self.middle(space, index, prefix, epoch);
        }
    }

    #[inline]
    fn code(&self, address: u32) -> u32 {
        let mut answer = self.first[(address >> 8) as usize].load(Ordering::Acquire);
        if answer & BLOCK != 0 {
            answer = self.deep(answer, address);
        }
        if answer == 0 { self.default.load(Ordering::Acquire) } else { u32::from(answer) }
    }

    fn codes(&self, addresses: &[u32], codes: &mut [u32]) {
        let mut answers = [0; BATCH];
        let mut deeper = 0;
        for (answer, &address) in answers.iter_mut().zip(addresses) {
            *answer = self.first[(address >> 8) as usize].load(Ordering::Acquire);
            deeper |= *answer & BLOCK;
        }
        if deeper != 0 {
            for (answer, &address) in answers.iter_mut().zip(addresses) {
                if *answer & BLOCK != 0 {
                    *answer = self.deep(*answer, address);
                }
            }
        }
        let default = self.default.load(Ordering::Acquire);
        for (code, &answer) in codes.iter_mut().zip(&answers) {
            *code = if answer == 0 { default } else { u32::from(answer) };
        }
    }
}
