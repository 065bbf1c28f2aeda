//! The automaton as words, and the search over them.

use super::layout::{self, CASED, CLASSES, FAIL_BIT, LONGEST, PATTERN_COUNT, PATTERNS, RECORD_BIT, ROOT};
use super::patterns::{Hit, Patterns};
use std::ops::ControlFlow;

/// An Aho-Corasick automaton in plain words, which are described at the head of the module.
#[derive(Debug, Clone)]
pub struct Automaton {
    words: Vec<u32>,
    /// The class of each byte, as it stands in the words, too.
    classes: [u8; 256],
}

impl Automaton {
    /// Of these literals.
    pub fn new(patterns: &Patterns) -> Self {
        let words = layout::words(patterns);
        let class = |byte: usize| words[CLASSES + byte / 4].to_le_bytes()[byte % 4];
        let classes = std::array::from_fn(class);
        Self { words, classes }
    }

    /// All of it: what a device needs.
    pub fn words(&self) -> &[u32] {
        &self.words
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
        }
        ControlFlow::Continue(())
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
            for pattern in &self.words[own..own + self.words[record] as usize] {
                if self.is_there(*pattern, text) {
                    each(Hit { end: text.len(), pattern: *pattern })?;
                }
            }
            record = self.words[record + 1] as usize;
        }
        ControlFlow::Continue(())
    }

    /// Whether a literal is at the end of a text, where it is but for the case of letters.
    fn is_there(&self, pattern: u32, text: &[u8]) -> bool {
        let entry = self.words[PATTERNS] as usize + 2 * pattern as usize;
        let (len, at) = (self.words[entry], self.words[entry + 1] as usize);
        if len & CASED == 0 {
            return true;
        }
        let found = &text[text.len() - (len & !CASED) as usize..];
        found.chunks(4).zip(&self.words[at..]).all(|(chunk, word)| word.to_le_bytes().starts_with(chunk))
    }
}
