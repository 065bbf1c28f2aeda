//! For each 16-bit prefix, the places where the answer changes, to be searched by halves.
//!
//! ```text
//!   root    65,536 words, each a code or, with the highest bit, a list's first line
//!
//!   list    word 0       how many ranges there are, up to 65,536
//!           word 1       the answer where a range has none: that of a shorter prefix
//!           word 2..     the last 16 bits of each range's first address, two in a word
//!           then         each range's code
//! ```
//!
//! The first range begins at 0. An update makes the list again beside the old one, and then swaps the link to it.

use super::compiled::{BATCH, Layout};
use super::epoch::Epoch;
use super::index::{Changes, Index};
use super::lines::{Lines, Space, WORDS};
use std::sync::atomic::{AtomicU32, Ordering};

const LIST: u32 = 1 << 31;
const INHERITED: usize = 1;
const STARTS: usize = 2;
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

    fn push(&mut self, start: u16, code: u32) {
        if self.codes.last() != Some(&code) {
            self.starts.push(start);
            self.codes.push(code);
        }
    }
}

/// The lines of a list of so many ranges.
fn lines_of(ranges: usize) -> usize {
    (STARTS + ranges.div_ceil(2) + ranges).div_ceil(WORDS)
}

impl Range {
    fn root(&self, address: u32) -> u32 {
        self.root[(address >> 16) as usize].load(Ordering::Acquire)
    }

    fn start(&self, line: u32, range: u32) -> u32 {
        self.lines.get(line, STARTS + range as usize / 2) >> (16 * (range % 2)) & 0xffff
    }

    fn code_of(&self, line: u32, ranges: u32, range: u32) -> u32 {
        self.lines.get(line, STARTS + (ranges as usize).div_ceil(2) + range as usize)
    }

    /// How many ranges a list has; not too many, whatever memory says.
    fn ranges(&self, line: u32) -> u32 {
        self.lines.get(line, 0).min(1 << 16)
    }

    fn write(&self, space: &mut Space, ranges: &Ranges, inherited: u32) -> u32 {
        let line = space.take(lines_of(ranges.starts.len()), &self.lines);
        self.lines.set(line, 0, ranges.starts.len() as u32);
        self.lines.set(line, INHERITED, inherited);
        let starts =
            ranges.starts.chunks(2).map(|pair| pair.iter().rev().fold(0, |word, &start| word << 16 | u32::from(start)));
        for (word, value) in starts.chain(ranges.codes.iter().copied()).enumerate() {
            self.lines.set(line, STARTS + word, value);
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
            space.put(old & !LIST, lines_of(self.ranges(old & !LIST) as usize));
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
        // A route makes at most two ranges more, of six bytes each. A piece wastes at most a quarter and a line.
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

    fn code(&self, address: u32) -> u32 {
        let mut code = [0];
        self.codes(&[address], &mut code);
        code[0]
    }

    /// By rounds over all addresses, each of which halves what is left of every list: loads of a round wait together.
    fn codes(&self, addresses: &[u32], codes: &mut [u32]) {
        let default = self.default.load(Ordering::Acquire);
        let (mut at, mut left, mut counts) = ([0; BATCH], [0; BATCH], [0; BATCH]);
        let mut most = 0;
        for (code, &address) in codes.iter_mut().zip(addresses) {
            *code = self.root(address);
        }
        for (i, &code) in codes.iter().enumerate() {
            counts[i] = if code & LIST == 0 { 1 } else { self.ranges(code & !LIST) };
            left[i] = counts[i];
            most = most.max(left[i]);
        }
        while most > 1 {
            most -= most / 2;
            for (i, &address) in addresses.iter().enumerate() {
                let half = left[i] / 2;
                let line = if half == 0 { 0 } else { codes[i] & !LIST };
                let higher = self.start(line, at[i] + half) <= address & 0xffff;
                at[i] += if higher { half } else { 0 };
                left[i] -= half;
            }
        }
        for (i, code) in codes.iter_mut().enumerate() {
            if *code & LIST != 0 {
                let line = *code & !LIST;
                let own = self.lines.get(line, INHERITED);
                let answer = self.code_of(line, counts[i], at[i]);
                *code = if answer == 0 { own } else { answer };
            }
            *code = if *code == 0 { default } else { *code };
        }
    }
}
