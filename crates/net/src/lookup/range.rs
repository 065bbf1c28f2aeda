//! For each 16-bit prefix, the ranges of addresses with one answer, in a tree of cache lines.
//!
//! ```text
//!   root    65,536 pairs of words: a list's first line, its depth, and whether it is wide; and what a range without an
//!           answer of its own has, that of a shorter prefix
//!
//!   list    levels of lines, 0 to 3 above the leaves: 1, 16, 256, or as many as there are leaves
//!           inner line   16 words: where the ranges of each line below begin, in the higher half
//!           leaf         16 words, a range each: where it begins, and in the lower half, its code; 0 for none
//!
//!   wide    codes past 16 bits: halves are numbers of words before the list, which have the codes
//! ```
//!
//! The first range begins at 0. Up to 16 ranges are one line, up to 256 two, and a line is searched by halves: four words of
//! it, without a branch. An update makes the list again beside the old one, and then swaps the link to it.

use super::compiled::{BATCH, Layout};
use super::epoch::Epoch;
use super::index::{Changes, Index};
use super::lines::{Lines, Space, WORDS};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, Ordering};

const LIST: u32 = 1 << 31;
const WIDE: u32 = 1 << 30;
/// Where the depth stands.
const DEPTH: u32 = 28;
const LINE: u32 = (1 << 26) - 1;
/// Where levels begin, in lines: the leaves of a list of depth n begin where its level n does.
const LEVELS: [u32; 4] = [0, 1, 17, 273];
const HALF: u32 = 0xffff;

/// What packets read.
#[derive(Debug)]
pub(super) struct Range {
    root: Box<[[AtomicU32; 2]]>,
    default: AtomicU32,
    lines: Lines,
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct RangeSpace {
    space: Space,
    /// Where the pieces of 16-bit prefixes begin, and how many lines they have.
    pieces: HashMap<u32, (u32, usize)>,
}

impl Default for Range {
    fn default() -> Self {
        let root = (0..1 << 16).map(|_| [const { AtomicU32::new(0) }; 2]).collect();
        Self { root, default: AtomicU32::new(0), lines: Lines::default() }
    }
}

/// The ranges of a 16-bit prefix: where each begins, and its code.
#[derive(Default)]
struct Ranges(Vec<(u16, u32)>);

impl Ranges {
    fn of(index: &Index, prefix: u32) -> Option<Self> {
        let middle = index.middle(prefix)?;
        let mut ranges = Self::default();
        let mut codes = [0; 256];
        middle.paint(&mut codes);
        let mut deeper = middle.deeper.iter().peekable();
        for (at, &code) in codes.iter().enumerate() {
            if deeper.next_if(|&&deep| usize::from(deep) == at).is_some() {
                let mut deep = [code; 256];
                index.paint_bottom(prefix << 8 | at as u32, &mut deep);
                deep.iter().enumerate().for_each(|(last, &code)| ranges.push((at << 8 | last) as u16, code));
            } else {
                ranges.push((at << 8) as u16, code);
            }
        }
        Some(ranges)
    }

    fn push(&mut self, start: u16, code: u32) {
        if self.0.last().is_none_or(|&(_, last)| last != code) {
            self.0.push((start, code));
        }
    }

    /// Puts numbers in place of codes, if those are too large; what the numbers mean, from 1 on.
    fn narrow(&mut self) -> Vec<u32> {
        let mut meanings = Vec::new();
        if self.0.iter().all(|&(_, code)| code <= HALF) {
            return meanings;
        }
        let mut numbers = HashMap::from([(0, 0)]);
        for (_, code) in &mut self.0 {
            *code = match numbers.entry(*code) {
                Entry::Occupied(number) => *number.get(),
                Entry::Vacant(place) => {
                    meanings.push(*code);
                    *place.insert(meanings.len() as u32)
                }
            };
        }
        meanings
    }

    /// Each range's word.
    fn words(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.0.iter().map(|&(start, code)| u32::from(start) << 16 | code)
    }
}

/// The last of a line's words that is not above `key`: the first one never is.
#[inline]
fn search(line: &[AtomicU32; WORDS], key: u32) -> usize {
    let mut at = 0;
    for half in [8, 4, 2, 1] {
        let is_higher = line[(at + half) % WORDS].load(Ordering::Acquire) <= key;
        at += if is_higher { half } else { 0 };
    }
    at
}

/// How many levels a list has above its leaves.
#[inline]
fn depth(list: u32) -> usize {
    (list >> DEPTH & 3) as usize
}

impl Range {
    #[inline]
    fn root(&self, address: u32) -> (u32, u32) {
        let [list, cover] = &self.root[(address >> 16) as usize];
        (list.load(Ordering::Acquire), cover.load(Ordering::Acquire))
    }

    /// Which line of the next level may have an address, by the line before it.
    #[inline]
    fn below(&self, list: u32, level: usize, at: u32, address: u32) -> u32 {
        let line = self.lines.head((list & LINE) + LEVELS[level] + at);
        at * WORDS as u32 + search(line, address << 16) as u32
    }

    /// The code in a leaf.
    #[inline]
    fn leaf(&self, list: u32, at: u32, address: u32) -> u32 {
        let line = self.lines.head((list & LINE) + LEVELS[depth(list)] + at);
        let code = line[search(line, address << 16 | HALF)].load(Ordering::Acquire) & HALF;
        if list & WIDE != 0 && code != 0 { self.meaning(list, code) } else { code }
    }

    /// What a number of a wide list means.
    #[cold]
    fn meaning(&self, list: u32, number: u32) -> u32 {
        // Not before all memory, whatever a list has that is none any more.
        self.lines.word(((list & LINE) as usize * WORDS).saturating_sub(number as usize))
    }

    /// Writes a list's lines from one on, which begins a level; they end with as many words of `rest` as are left.
    fn write_level(&self, line: u32, words: impl Iterator<Item = u32>, rest: impl Fn(u32) -> u32) {
        let mut words: Vec<u32> = words.collect();
        let rest = rest(words.last().copied().unwrap_or(0));
        words.resize(words.len().next_multiple_of(WORDS), rest);
        self.lines.write(line, &words);
    }

    /// A list, and the piece that it is in.
    fn write(&self, space: &mut Space, mut ranges: Ranges) -> (u32, (u32, usize)) {
        let meanings = ranges.narrow();
        let count = ranges.0.len();
        let depth = (1..4).filter(|&depth| count > 1 << (4 * depth)).count();
        let before = meanings.len().div_ceil(WORDS);
        let lines = before + LEVELS[depth] as usize + count.div_ceil(WORDS);
        let piece = space.take(lines, &self.lines);
        let first = piece + before as u32;
        let end = first as usize * WORDS;
        meanings.iter().enumerate().for_each(|(at, &code)| self.lines.set(0, end - 1 - at, code));
        self.write_level(first + LEVELS[depth], ranges.words(), |last| last);
        for (level, &line) in LEVELS[..depth].iter().enumerate() {
            let step = 1 << (4 * (depth - level));
            // No address is as high as what stands for lines that there are not.
            self.write_level(first + line, ranges.words().step_by(step).map(|word| word & !HALF), |_| u32::MAX);
        }
        let wide = if meanings.is_empty() { 0 } else { WIDE };
        (LIST | wide | (depth as u32) << DEPTH | first, (piece, lines))
    }

    fn list(&self, space: &mut RangeSpace, index: &Index, prefix: u32) {
        let old = space.pieces.remove(&prefix);
        let mut new = 0;
        if let Some(ranges) = Ranges::of(index, prefix) {
            let (list, piece) = self.write(&mut space.space, ranges);
            space.pieces.insert(prefix, piece);
            new = list;
        }
        self.root[prefix as usize][0].store(new, Ordering::Release);
        if let Some((piece, lines)) = old {
            space.space.put(piece, lines);
        }
    }
}

impl Layout for Range {
    type Space = RangeSpace;
    const CODES: u32 = LIST - 1;
    const IN_PLACE: bool = true;

    fn fits(&self, space: &RangeSpace, index: &Index, _: u32, _: u8) -> bool {
        // A route makes at most two ranges more. A range is a word, two in wide lists, and lines above leaves are a sixth of
        // these; a piece wastes at most a quarter and two lines.
        2 * index.routes() + 4 * index.changes().nodes() + (1 << 16) <= space.space.untouched()
    }

    fn publish(&self, space: &mut RangeSpace, index: &Index, changes: &Changes, epoch: &Epoch) {
        space.space.recycle(epoch);
        if changes.default {
            self.default.store(index.default_code(), Ordering::Release);
        }
        for &(first, count) in &changes.tops {
            (first..first + count)
                .for_each(|prefix| self.root[prefix as usize][1].store(index.cover(prefix), Ordering::Release));
        }
        changes.middles_and_above_bottoms().iter().for_each(|&prefix| self.list(space, index, prefix));
    }

    #[inline]
    fn code(&self, address: u32) -> u32 {
        let (list, cover) = self.root(address);
        let mut code = 0;
        if list & LIST != 0 {
            let at = (0..depth(list)).fold(0, |at, level| self.below(list, level, at, address));
            code = self.leaf(list, at, address);
        }
        let inherited = if cover == 0 { self.default.load(Ordering::Acquire) } else { cover };
        if code == 0 { inherited } else { code }
    }

    /// By rounds over all addresses, so that the loads of a round wait together. Whether there is a list, and how deep it is,
    /// is a coin's throw, so there is no branch on it: line 0 stands in, up to a depth of 1. More is rare.
    fn codes(&self, addresses: &[u32], codes: &mut [u32]) {
        let default = self.default.load(Ordering::Acquire);
        let (mut lists, mut at) = ([0; BATCH], [0; BATCH]);
        let mut all = 0;
        for ((list, code), &address) in lists.iter_mut().zip(codes.iter_mut()).zip(addresses) {
            (*list, *code) = self.root(address);
            all |= *list;
        }
        for ((&list, at), &address) in lists.iter().zip(&mut at).zip(addresses) {
            let has_level = depth(list) > 0;
            let below = self.below(if has_level { list } else { 0 }, 0, 0, address);
            *at = if has_level { below } else { 0 };
        }
        if depth(all) > 1 {
            for ((&list, at), &address) in lists.iter().zip(&mut at).zip(addresses) {
                *at = (1..depth(list)).fold(*at, |at, level| self.below(list, level, at, address));
            }
        }
        for (((code, &list), &at), &address) in codes.iter_mut().zip(&lists).zip(&at).zip(addresses) {
            let own = self.leaf(list, at, address);
            let inherited = if *code == 0 { default } else { *code };
            *code = if own == 0 || list == 0 { inherited } else { own };
        }
    }
}
