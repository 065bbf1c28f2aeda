//! For each 16-bit prefix, the places where the answer changes, to be searched by halves.
//!
//! ```text
//!   root    65,536 words, each a code or, with the highest bit, a list's first line
//!
//!   list    word 0      how many ranges there are, up to 65,536
//!           word 1      the answer where a range has none: that of a shorter prefix
//!           index       for as many equal parts of the 16 bits as there are ranges (rounded up to a power of two, 4,096 at
//!                       most): how many more ranges than one a part has, and 16 bits lower, its first one
//!           starts      the last 16 bits of each range's first address, two in a word
//!           codes       each range's code
//! ```
//!
//! The index mostly leaves one to three ranges to be searched. The first range begins at 0. An update makes the list again
//! beside the old one, and then swaps the link to it.

use super::compiled::{BATCH, Layout};
use super::epoch::Epoch;
use super::index::{Changes, Index};
use super::lines::{Lines, Space, WORDS};
use std::sync::atomic::{AtomicU32, Ordering};

const LIST: u32 = 1 << 31;
const INHERITED: usize = 1;
const INDEX: usize = 2;
/// The logarithm of the most parts of an index.
const PARTS_MAX: u32 = 12;
/// What packets read.
#[derive(Debug)]
pub(super) struct Range {
    root: Box<[AtomicU32]>,
    default: AtomicU32,
    lines: Lines,
}

impl Default for Range {
    fn default() -> Self {
        let root = (0..1 << 16).map(|_| AtomicU32::new(0)).collect();
        Self { root, default: AtomicU32::new(0), lines: Lines::default() }
    }
}

/// The ranges of a 16-bit prefix: where each begins, and its code.
#[derive(Default)]
struct Ranges {
    starts: Vec<u16>,
    codes: Vec<u32>,
}

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

    /// A word for each part.
    fn index(&self, shift: u32) -> impl Iterator<Item = u32> + '_ {
        let mut range = 0;
        let mut go_on = move |to: u32| {
            while self.starts.get(range + 1).is_some_and(|&start| u32::from(start) <= to) {
                range += 1;
            }
            range as u32
        };
        (0..1 << (16 - shift)).map(move |part| {
            let first = go_on(part << shift);
            let last = go_on(((part + 1) << shift) - 1);
            (last - first) << 16 | first
        })
    }

    fn push(&mut self, start: u16, code: u32) {
        if self.codes.last() != Some(&code) {
            self.starts.push(start);
            self.codes.push(code);
        }
    }
}

/// Where the parts of a list of so many ranges are, in words.
#[derive(Clone, Copy)]
struct Shape {
    /// By how many bits an address is shifted to get its part.
    shift: u32,
    starts: usize,
    codes: usize,
}

impl Shape {
    #[inline]
    fn of(ranges: u32) -> Self {
        let bits = (ranges.max(1) - 1).checked_ilog2().map_or(0, |bits| bits + 1).min(PARTS_MAX);
        let starts = INDEX + (1 << bits);
        Self { shift: 16 - bits, starts, codes: starts + (ranges as usize).div_ceil(2) }
    }

    fn lines(ranges: u32) -> usize {
        (Self::of(ranges).codes + ranges as usize).div_ceil(WORDS)
    }
}

impl Range {
    #[inline]
    fn root(&self, address: u32) -> u32 {
        self.root[(address >> 16) as usize].load(Ordering::Acquire)
    }

    /// A number of 16 bits in a piece.
    #[inline]
    fn half(&self, line: u32, word: usize, at: u32) -> u32 {
        self.lines.get(line, word + at as usize / 2) >> (16 * (at % 2)) & 0xffff
    }

    /// How many ranges a list has; not too many, whatever memory says.
    #[inline]
    fn ranges(&self, line: u32) -> u32 {
        self.lines.get(line, 0).min(1 << 16)
    }

    /// The first range that may have an address, and how many there are.
    #[inline]
    fn candidates(&self, line: u32, shape: Shape, address: u32) -> (u32, u32) {
        let part = (address & 0xffff) >> shape.shift;
        let word = self.lines.get(line, INDEX + part as usize);
        (word & 0xffff, (word >> 16) + 1)
    }

    /// The code of a range, or what it inherits.
    #[inline]
    fn answer(&self, line: u32, shape: Shape, range: u32) -> u32 {
        let own = self.lines.get(line, shape.codes + range as usize);
        if own == 0 { self.lines.get(line, INHERITED) } else { own }
    }

    /// Writes numbers of 16 bits to a piece, two in a word, from this word on.
    fn write_halves(&self, line: u32, word: usize, halves: &[u16]) {
        for (at, pair) in halves.chunks(2).enumerate() {
            let value = pair.iter().rev().fold(0, |value, &half| value << 16 | u32::from(half));
            self.lines.set(line, word + at, value);
        }
    }

    fn write(&self, space: &mut Space, ranges: &Ranges, inherited: u32) -> u32 {
        let count = ranges.starts.len() as u32;
        let line = space.take(Shape::lines(count), &self.lines);
        let shape = Shape::of(count);
        self.lines.set(line, 0, count);
        self.lines.set(line, INHERITED, inherited);
        for (at, word) in ranges.index(shape.shift).enumerate() {
            self.lines.set(line, INDEX + at, word);
        }
        self.write_halves(line, shape.starts, &ranges.starts);
        for (at, &code) in ranges.codes.iter().enumerate() {
            self.lines.set(line, shape.codes + at, code);
        }
        line | LIST
    }

    fn list(&self, space: &mut Space, index: &Index, prefix: u32) {
        let root = &self.root[prefix as usize];
        let old = root.load(Ordering::Relaxed);
        let cover = index.cover(prefix);
        let new = Ranges::of(index, prefix).map_or(cover, |ranges| self.write(space, &ranges, cover));
        root.store(new, Ordering::Release);
        if old & LIST != 0 {
            space.put(old & !LIST, Shape::lines(self.ranges(old & !LIST)));
        }
    }

    fn inherit(&self, index: &Index, prefix: u32) {
        let root = &self.root[prefix as usize];
        let cover = index.cover(prefix);
        match root.load(Ordering::Relaxed) {
            list if list & LIST != 0 => self.lines.set(list & !LIST, INHERITED, cover),
            _ => root.store(cover, Ordering::Release),
        }
    }
}

impl Layout for Range {
    type Space = Space;
    const CODES: u32 = LIST - 1;
    const IN_PLACE: bool = true;

    fn fits(&self, space: &Space, index: &Index, _: u32, _: u8) -> bool {
        // A route makes at most two ranges more, of 14 bytes each. A piece wastes at most a quarter and a line.
        let lines = index.routes() + 4 * index.changes().nodes();
        lines + (1 << 16) <= space.untouched()
    }

    fn publish(&self, space: &mut Space, index: &Index, changes: &Changes, epoch: &Epoch) {
        space.recycle(epoch);
        if changes.default {
            self.default.store(index.default_code(), Ordering::Release);
        }
        for &(first, count) in &changes.tops {
            (first..first + count).for_each(|prefix| self.inherit(index, prefix));
        }
        let mut prefixes: Vec<u32> = changes.bottoms.iter().map(|prefix| prefix >> 8).collect();
        prefixes.extend(&changes.middles);
        prefixes.sort_unstable();
        prefixes.dedup();
        for prefix in prefixes {
            self.list(space, index, prefix);
        }
    }

    #[inline]
    fn code(&self, address: u32) -> u32 {
        let mut code = self.root(address);
        if code & LIST != 0 {
            let line = code & !LIST;
            let shape = Shape::of(self.ranges(line));
            let (mut at, mut left) = self.candidates(line, shape, address);
            while left > 1 {
                let half = left / 2;
                let is_higher = self.half(line, shape.starts, at + half) <= address & 0xffff;
                at += if is_higher { half } else { 0 };
                left -= half;
            }
            code = self.answer(line, shape, at);
        }
        if code == 0 { self.default.load(Ordering::Acquire) } else { code }
    }

    /// By rounds over all addresses, so that the loads of a round wait together.
    fn codes(&self, addresses: &[u32], codes: &mut [u32]) {
        let default = self.default.load(Ordering::Acquire);
        let (mut counts, mut at, mut left) = ([1; BATCH], [0; BATCH], [1; BATCH]);
        for (code, &address) in codes.iter_mut().zip(addresses) {
            *code = self.root(address);
        }
        for (count, &code) in counts.iter_mut().zip(&*codes) {
            *count = if code & LIST != 0 { self.ranges(code & !LIST) } else { 1 };
        }
        let mut most = 1;
        for (i, (&code, &address)) in codes.iter().zip(addresses).enumerate() {
            if code & LIST != 0 {
                (at[i], left[i]) = self.candidates(code & !LIST, Shape::of(counts[i]), address);
                most = most.max(left[i]);
            }
        }
        while most > 1 {
            most -= most / 2;
            for (i, (&code, &address)) in codes.iter().zip(addresses).enumerate() {
                if left[i] > 1 {
                    let half = left[i] / 2;
                    let start = self.half(code & !LIST, Shape::of(counts[i]).starts, at[i] + half);
                    at[i] += if start <= address & 0xffff { half } else { 0 };
                    left[i] -= half;
                }
            }
        }
        for (i, code) in codes.iter_mut().enumerate() {
            if *code & LIST != 0 {
                *code = self.answer(*code & !LIST, Shape::of(counts[i]), at[i]);
            }
            *code = if *code == 0 { default } else { *code };
        }
    }
}
