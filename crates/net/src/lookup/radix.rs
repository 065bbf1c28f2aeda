//! A trie of 16, 8 and 8 bits whose nodes hold runs of equal answers.
//!
//! ```text
//!   root   65,536 words, each a code or, with the highest bit, a node's first line
//!
//!   node   word 0..11   24 bits each: where runs begin; above them, how many runs begin before
//!          word 11      the answer where a run has none: that of a shorter prefix
//!          word 12..    a run's answer: a code, 0 for none, or a node for the next 8 bits
//! ```
//!
//! A node with up to four runs is one line of the cache, most others are two or three, and a lookup touches at most two of
//! them. An update makes a node again beside the old one, and then swaps the link to it. The default route is a word of its
//! own, and what a node inherits is a word in it, so that short prefixes come and go without new nodes.

use super::compiled::{BATCH, Layout};
use super::epoch::Epoch;
use super::index::{Changes, Index};
use super::lines::{Lines, Space, WORDS};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

const NODE: u32 = 1 << 31;
/// Positions of one word.
const BITS: usize = 24;
const INHERITED: usize = 11;
const RUNS: usize = 12;
/// The most lines that a route can need: a node for 8 bits at both levels, each with room to spare.
const LINES_MAX: usize = 2 * 20;

/// What packets read.
#[derive(Debug)]
pub(super) struct Radix {
    root: Box<[AtomicU32]>,
    default: AtomicU32,
    lines: Lines,
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct RadixSpace {
    space: Space,
    /// Where the nodes of 24-bit prefixes are.
    bottoms: HashMap<u32, u32>,
}

impl Default for Radix {
    fn default() -> Self {
        let root = (0..1 << 16).map(|_| AtomicU32::new(0)).collect();
        Self { root, default: AtomicU32::new(0), lines: Lines::default() }
    }
}

/// Which word has a position, and the bits of the runs that begin up to it.
#[inline]
fn place(at: u8) -> (usize, u32) {
    let at = usize::from(at);
    (at / BITS, (2 << (at % BITS)) - 1)
}

/// The word of a node's answer, from a word of starts and a mask of the bits that count in it.
#[inline]
fn answer_place(node: u32, starts: u32, mask: u32) -> usize {
    let run = (starts >> BITS) + (starts & mask).count_ones();
    (node & !NODE) as usize * WORDS + RUNS - 1 + run as usize
}

impl Radix {
    /// Where a node's answer at a position is, and what the node inherits.
    #[inline]
    fn seek(&self, node: u32, at: u8) -> (u32, usize) {
        let (word, mask) = place(at);
        let head = self.lines.head(node & !NODE);
        let starts = head[word].load(Ordering::Acquire);
        (head[INHERITED].load(Ordering::Acquire), answer_place(node, starts, mask))
    }

    /// A node's answer at a position, which may be another node; `inherited` is overwritten where the node says so.
    #[inline]
    fn step(&self, node: u32, at: u8, inherited: &mut u32) -> u32 {
        let (own, place) = self.seek(node, at);
        *inherited = if own == 0 { *inherited } else { own };
        self.lines.word(place)
    }

    #[inline]
    fn root(&self, address: u32) -> u32 {
        self.root[(address >> 16) as usize].load(Ordering::Acquire)
    }

    /// A node whose answers are `answers`.
    fn write(&self, space: &mut Space, answers: &[u32; 256], inherited: u32) -> u32 {
        let mut words = [0; RUNS + 256];
        let mut runs = 0;
        let mut before = !answers[0];
        for (word, part) in answers.chunks(BITS).enumerate() {
            let mut starts = 0;
            for (at, &answer) in part.iter().enumerate() {
                starts |= u32::from(answer != before) << at;
                before = answer;
            }
            words[word] = (runs as u32) << BITS | starts;
            // Runs are few, so those are found by their bits and not at each position.
            while starts != 0 {
                words[RUNS + runs] = part[starts.trailing_zeros() as usize];
                starts &= starts - 1;
                runs += 1;
            }
        }
        words[INHERITED] = inherited;
        let line = space.take((RUNS + runs).div_ceil(WORDS), &self.lines);
        self.lines.write(line, &words[..RUNS + runs]);
        line | NODE
    }

    fn free(&self, space: &mut Space, node: u32) {
        if node & NODE != 0 {
            let last = self.lines.get(node & !NODE, INHERITED - 1);
            let runs = (last >> BITS) + (last & !(u32::MAX << BITS)).count_ones();
            space.put(node & !NODE, (RUNS + runs as usize).div_ceil(WORDS));
        }
    }

    /// Makes the node for the last 8 bits of a 24-bit prefix, or removes it.
    fn bottom(&self, space: &mut RadixSpace, index: &Index, prefix: u32) {
        let old = space.bottoms.remove(&prefix).unwrap_or(0);
        if index.has_bottom(prefix) {
            let mut answers = [0; 256];
            index.paint_bottom(prefix, &mut answers);
            // What it inherits is set with the node above, which is made again as well.
            let inherited = if old == 0 { 0 } else { self.lines.get(old & !NODE, INHERITED) };
            space.bottoms.insert(prefix, self.write(&mut space.space, &answers, inherited));
        }
        self.free(&mut space.space, old);
    }

    /// Makes the node for the second 8 bits of a 16-bit prefix, or removes it.
    fn middle(&self, space: &mut RadixSpace, index: &Index, prefix: u32) {
        let root = &self.root[prefix as usize];
        let old = root.load(Ordering::Relaxed);
        let cover = index.cover(prefix);
        let mut new = cover;
        if let Some(middle) = index.middle(prefix) {
            let mut answers = [0; 256];
            middle.paint(&mut answers);
            for &at in &middle.deeper {
                let Some(&node) = space.bottoms.get(&(prefix << 8 | u32::from(at))) else { continue };
                let answer = &mut answers[usize::from(at)];
                self.lines.set(node & !NODE, INHERITED, *answer);
                *answer = node;
            }
            new = self.write(&mut space.space, &answers, cover);
        }
        root.store(new, Ordering::Release);
        self.free(&mut space.space, old);
    }

    fn inherit(&self, index: &Index, prefix: u32) {
        let root = &self.root[prefix as usize];
        let cover = index.cover(prefix);
        match root.load(Ordering::Relaxed) {
            node if node & NODE != 0 => self.lines.set(node & !NODE, INHERITED, cover),
            _ => root.store(cover, Ordering::Release),
        }
    }
}

impl Layout for Radix {
    type Space = RadixSpace;
    const CODES: u32 = NODE - 1;
    const IN_PLACE: bool = false;

    fn fits(&self, space: &RadixSpace, index: &Index, _: u32, _: u8) -> bool {
        (index.changes().nodes() + 2) * LINES_MAX <= space.space.untouched()
    }

    fn publish(&self, space: &mut RadixSpace, index: &Index, changes: &Changes, epoch: &Epoch) {
        space.space.recycle(epoch);
        if changes.default {
            self.default.store(index.default_code(), Ordering::Release);
        }
        for &(first, count) in &changes.tops {
            (first..first + count).for_each(|prefix| self.inherit(index, prefix));
        }
        changes.bottoms.iter().for_each(|&prefix| self.bottom(space, index, prefix));
        changes.middles_and_above_bottoms().iter().for_each(|&prefix| self.middle(space, index, prefix));
    }

    #[inline]
    fn code(&self, address: u32) -> u32 {
        let mut inherited = self.default.load(Ordering::Acquire);
        let mut answer = self.root(address);
        for shift in [8, 0] {
            if answer & NODE == 0 {
                break;
            }
            answer = self.step(answer, (address >> shift) as u8, &mut inherited);
        }
        if answer == 0 { inherited } else { answer }
    }

    /// By rounds over all addresses with one load each, so that as many loads as possible wait together. Whether the root
    /// has a node is a coin's throw for addresses without a pattern, so there is no branch: line 0 stands in for a node.
    fn codes(&self, addresses: &[u32], codes: &mut [u32]) {
        let default = self.default.load(Ordering::Acquire);
        let (mut starts, mut inherited, mut places) = ([0; BATCH], [0; BATCH], [0; BATCH]);
        for (code, &address) in codes.iter_mut().zip(addresses) {
            *code = self.root(address);
        }
        for (((&code, &address), starts), inherited) in codes.iter().zip(addresses).zip(&mut starts).zip(&mut inherited)
        {
            let head = self.lines.head(if code & NODE != 0 { code & !NODE } else { 0 });
            *starts = head[place((address >> 8) as u8).0].load(Ordering::Acquire);
            *inherited = head[INHERITED].load(Ordering::Relaxed);
        }
        for (((&code, &address), &starts), to) in codes.iter().zip(addresses).zip(&starts).zip(&mut places) {
            *to = answer_place(if code & NODE != 0 { code } else { NODE }, starts, place((address >> 8) as u8).1);
        }
        let mut deeper = 0;
        for ((code, &place), inherited) in codes.iter_mut().zip(&places).zip(&mut inherited) {
            let answer = self.lines.word(place);
            let node = *code & NODE != 0;
            *inherited = if node && *inherited != 0 { *inherited } else { default };
            *code = if node { answer } else { *code };
            deeper |= *code & NODE;
        }
        if deeper != 0 {
            for ((code, inherited), &address) in codes.iter_mut().zip(&mut inherited).zip(addresses) {
                if *code & NODE != 0 {
                    *code = self.step(*code, address as u8, inherited);
                }
            }
        }
        for (code, &inherited) in codes.iter_mut().zip(&inherited) {
            *code = if *code == 0 { inherited } else { *code };
        }
    }
}
