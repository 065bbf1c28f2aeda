//! The automaton as words, and the search over them.

use super::filter::SEVERAL;
use super::layout::{self, CASED, CLASSES, FAIL_BIT, LONGEST, PATTERN_COUNT, PATTERNS, RECORD_BIT, ROOT, SINGLES};
use super::patterns::{Hit, Patterns};
use std::ops::ControlFlow;

/// An Aho-Corasick automaton in plain words, which are described at the head of the module.
#[derive(Debug, Clone)]
pub struct Automaton {
    words: Vec<u32>,
    /// The class of each byte, as it stands in the words, too.
    classes: [u8; 256],
    /// The numbers of literals in the order of their ranks.
    by_rank: Vec<u32>,
}

/// What a device says of a packet in the place of a hit: this, or one more where it found nothing.
const UNSEARCHED: u32 = u32::MAX - 1;

impl Automaton {
    /// Of these literals.
    pub fn new(patterns: &Patterns) -> Self {
        let (words, by_rank) = layout::words(patterns);
        let class = |byte: usize| words[CLASSES + byte / 4].to_le_bytes()[byte % 4];
        let classes = std::array::from_fn(class);
        Self { words, classes, by_rank }
    }

    /// All of it: the image that a device needs.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// A device's hit, of which `what` is the lower half: where it ends, and the literal's rank. None: it found nothing, or
    /// leaves the packet to the processor. Hits of a packet that are sorted as numbers are in the order of a search.
    #[inline]
    pub fn hit(&self, what: u32) -> Option<Hit> {
        if what >= UNSEARCHED {
            return None;
        }
        let pattern = *self.by_rank.get((what & 0xffff) as usize)?;
        Some(Hit { end: (what >> 16) as usize, pattern })
    }

    /// A hit as a device would say it, without its packet: the ranks of literals are given, by their numbers.
    #[inline]
    pub fn packed(ranks: &[u32], hit: Hit) -> u32 {
        (hit.end as u32) << 16 | ranks[hit.pattern as usize]
    }

    /// The rank of each literal.
    pub fn ranks(&self) -> Vec<u32> {
        let mut ranks = vec![0; self.by_rank.len()];
        for (rank, pattern) in (0..).zip(&self.by_rank) {
            ranks[*pattern as usize] = rank;
        }
        ranks
    }

    /// How many literals it has.
    pub fn patterns(&self) -> usize {
        self.words[PATTERN_COUNT] as usize
    }

    /// The length of the longest literal, in bytes: so far a search has to look back over a cut.
    pub fn longest(&self) -> usize {
        self.words[LONGEST] as usize
    }

    /// All literals in a text.
    pub fn all(&self, text: &[u8]) -> Vec<Hit> {
        let mut hits = Vec::new();
        let _: ControlFlow<()> = self.scan(text, |hit| {
            hits.push(hit);
            ControlFlow::Continue(())
        });
        hits
    }

    /// The first literal in a text: that which ends first, and the longest of those.
    pub fn first(&self, text: &[u8]) -> Option<Hit> {
        match self.scan(text, ControlFlow::Break) {
            ControlFlow::Break(hit) => Some(hit),
            ControlFlow::Continue(()) => None,
        }
    }

    /// Calls `each` for every literal in a text, until it breaks.
    pub fn scan<B>(&self, text: &[u8], mut each: impl FnMut(Hit) -> ControlFlow<B>) -> ControlFlow<B> {
        let words = &self.words[..];
        let mut state = ROOT;
        for (at, byte) in text.iter().enumerate() {
            state = layout::step(words, state, u32::from(self.classes[usize::from(*byte)]));
            let header = words[state as usize];
            if header >> RECORD_BIT & 1 == 1 {
                let record = words[state as usize + 1 + (header >> FAIL_BIT & 1) as usize];
                self.report(record as usize, &text[..=at], &mut each)?;
            }
            for rank in self.singles(*byte) {
                each(Hit { end: at + 1, pattern: self.by_rank[rank as usize] })?;
            }
        }
        ControlFlow::Continue(())
    }

    /// The ranks of the literals that are this byte alone.
    fn singles(&self, byte: u8) -> impl Iterator<Item = u32> + '_ {
        let entry = self.words[self.words[SINGLES] as usize + usize::from(byte)];
        let (is_several, at) = (entry & SEVERAL != 0, (entry & !SEVERAL) as usize);
        let several = if is_several { &self.words[at + 1..][..self.words[at] as usize] } else { &[] };
        let only = if is_several { None } else { entry.checked_sub(1) };
        only.into_iter().chain(several.iter().copied())
    }

    /// Reports the literals of a record and of those that follow it; `text` ends where they end.
    fn report<B>(
        &self,
        mut record: usize,
        text: &[u8],
        each: &mut impl FnMut(Hit) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        while record != 0 {
            let own = record + 2;
            for rank in &self.words[own..own + self.words[record] as usize] {
                if self.is_there(*rank, text) {
                    each(Hit { end: text.len(), pattern: self.by_rank[*rank as usize] })?;
                }
            }
            record = self.words[record + 1] as usize;
        }
        ControlFlow::Continue(())
    }

    /// Whether a literal is at the end of a text, where it is but for the case of letters.
    fn is_there(&self, rank: u32, text: &[u8]) -> bool {
        let entry = self.words[PATTERNS] as usize + 2 * rank as usize;
        let (len, at) = (self.words[entry], self.words[entry + 1] as usize);
        if len & CASED == 0 {
            return true;
        }
        let found = &text[text.len() - (len & !CASED) as usize..];
        found.chunks(4).zip(&self.words[at..]).all(|(chunk, word)| word.to_le_bytes().starts_with(chunk))
    }
}
