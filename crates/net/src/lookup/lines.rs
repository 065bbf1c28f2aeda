//! Memory in cache lines of 16 words, which grows while others read it.
//!
//! [`Lines`] is what is read: words by a line's number. [`Space`] is the writer's side, which hands out pieces of some
//! neighbouring lines. A piece that is given back is not used again before a new epoch, see [`Epoch`].

use super::epoch::Epoch;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words of a line.
pub(super) const WORDS: usize = 16;
/// Lines of a segment: no piece is larger.
const SEGMENT: usize = 1 << 14;
const SEGMENTS: usize = 1 << 12;

/// How many lines wait before an epoch makes them free.
const WAITING: usize = 1 << 13;

/// Aligned, so that a piece has as few lines of the cache as lines of ours.
#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU32; WORDS]);

impl Line {
    const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; WORDS])
    }
}

type Segment = [Line; SEGMENT];

/// What a reader finds who follows a link that is none any more.
static NOTHING: Segment = [const { Line::new() }; SEGMENT];

/// The memory.
#[derive(Debug)]
pub(super) struct Lines(Box<[OnceLock<Box<Segment>>]>);

impl Default for Lines {
    fn default() -> Self {
        Self((0..SEGMENTS).map(|_| OnceLock::new()).collect())
    }
}

impl Lines {
    #[inline]
    fn segment(&self, number: usize) -> &Segment {
        self.0.get(number).and_then(OnceLock::get).map_or(&NOTHING, |segment| segment)
    }

    /// The first line of a piece.
    #[inline]
    pub(super) fn head(&self, line: u32) -> &[AtomicU32; WORDS] {
        &self.segment(line as usize / SEGMENT)[line as usize % SEGMENT].0
    }

    /// A word by its number since the first line; 0 where there is none.
    #[inline]
    pub(super) fn word(&self, word: usize) -> u32 {
        let line = &self.segment(word / WORDS / SEGMENT)[word / WORDS % SEGMENT];
        line.0[word % WORDS].load(Ordering::Acquire)
    }

    /// Word `word` of the piece that begins at line `line`; 0 where there is none.
    #[inline]
    pub(super) fn get(&self, line: u32, word: usize) -> u32 {
        self.word(line as usize * WORDS + word)
    }

    /// Writes a word of a piece.
    pub(super) fn set(&self, line: u32, word: usize, value: u32) {
        let word = line as usize * WORDS + word;
        let line = &self.segment(word / WORDS / SEGMENT)[word / WORDS % SEGMENT];
        line.0[word % WORDS].store(value, Ordering::Release);
    }

    /// Writes the first words of a piece.
    pub(super) fn write(&self, line: u32, words: &[u32]) {
        for (line, words) in (line..).zip(words.chunks(WORDS)) {
            let places = self.head(line);
            places.iter().zip(words).for_each(|(place, &word)| place.store(word, Ordering::Release));
        }
    }

    fn grow(&self, number: usize) {
        self.0[number].get_or_init(|| {
            let lines: Box<[Line]> = (0..SEGMENT).map(|_| Line::new()).collect();
            lines.try_into().expect("a segment's lines")
        });
    }
}

/// Which lines are free.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// The first line that never was used.
    next: usize,
    /// Pieces by size class.
    free: Vec<Vec<u32>>,
    /// Pieces (first line, size class) that readers may be in.
    waiting: Vec<(u32, u8)>,
    waiting_lines: usize,
}

impl Space {
    /// How many lines were never used.
    pub(super) fn untouched(&self) -> usize {
        SEGMENT * SEGMENTS - self.next
    }

    /// The first of at least `lines` lines. Their words are what they are.
    pub(super) fn take(&mut self, lines: usize, memory: &Lines) -> u32 {
        let class = class_of(lines);
        if let Some(piece) = self.free.get_mut(usize::from(class)).and_then(Vec::pop) {
            return piece;
        }
        let size = class_size(class);
        let left = SEGMENT - self.next % SEGMENT;
        if left < size {
            self.keep_rest(left);
        }
        memory.grow(self.next / SEGMENT);
        self.next += size;
        (self.next - size) as u32
    }

    /// The end of a segment, as pieces of the largest sizes.
    fn keep_rest(&mut self, mut left: usize) {
        while left > 0 {
            let class = (0..=class_of(left)).rev().find(|&class| class_size(class) <= left).unwrap_or(0);
            let piece = self.next as u32;
            self.list(class).push(piece);
            self.next += class_size(class);
            left -= class_size(class);
        }
    }

    /// Gives back a piece that nothing leads to any more.
    pub(super) fn put(&mut self, piece: u32, lines: usize) {
        let class = class_of(lines);
        self.waiting.push((piece, class));
        self.waiting_lines += class_size(class);
    }

    /// Makes pieces free that were given back before: to be called before anything of an update is published.
    pub(super) fn recycle(&mut self, epoch: &Epoch) {
        if self.waiting_lines < WAITING {
            return;
        }
        epoch.advance();
        self.waiting_lines = 0;
        for (piece, class) in std::mem::take(&mut self.waiting) {
            self.list(class).push(piece);
        }
    }

    fn list(&mut self, class: u8) -> &mut Vec<u32> {
        let class = usize::from(class);
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        &mut self.free[class]
    }
}

/// Pieces have 1, 2, ... 8 lines, and then four sizes up to each power of two.
fn class_of(lines: usize) -> u8 {
    if lines <= 8 {
        return lines.max(1) as u8 - 1;
    }
    let power = (lines - 1).ilog2();
    let quarter = (lines - 1) >> (power - 2) & 3;
    ((power as usize - 1) * 4 + quarter) as u8
}

fn class_size(class: u8) -> usize {
    let class = usize::from(class);
    if class < 8 {
        return class + 1;
    }
    let (power, quarter) = (class / 4 + 1, class % 4);
    (4 + quarter + 1) << (power - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_sizes_with_a_quarter_to_spare() {
        for lines in 1..=SEGMENT {
            let size = class_size(class_of(lines));
            assert!(size >= lines && size <= lines + lines / 4 && size <= SEGMENT, "{lines} lines in {size}");
            assert_eq!(class_of(size), class_of(lines), "{lines} lines, {size}");
        }
    }

    #[test]
    fn pieces_that_are_in_use_share_no_line() {
        let mut rng = fastrand::Rng::with_seed(bifolio_testing::seed());
        let (mut space, memory, epoch) = (Space::default(), Lines::default(), Epoch::default());
        let mut held: Vec<(u32, usize, u32)> = Vec::new();
        for mark in 1..20_000_u32 {
            if rng.u8(..) < 140 {
                let lines = if rng.u8(..) == 0 { rng.usize(1..SEGMENT) } else { rng.usize(1..20) };
                let piece = space.take(lines, &memory);
                (0..lines).for_each(|line| memory.set(piece, line * WORDS, mark));
                held.push((piece, lines, mark));
            } else if !held.is_empty() {
                let (piece, lines, mark) = held.swap_remove(rng.usize(..held.len()));
                assert!((0..lines).all(|line| memory.get(piece, line * WORDS) == mark));
                space.put(piece, lines);
            }
            if held.iter().map(|(_, lines, _)| lines).sum::<usize>() > 200_000 {
                held.drain(..).for_each(|(piece, lines, _)| space.put(piece, lines));
            }
            space.recycle(&epoch);
        }
        assert!(
            held.iter().all(|&(piece, lines, mark)| (0..lines).all(|line| memory.get(piece, line * WORDS) == mark))
        );
    }
}
