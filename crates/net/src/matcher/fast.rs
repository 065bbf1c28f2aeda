//! The search for processors.

use super::patterns::{Hit, Patterns};
use aho_corasick::automaton::OverlappingState;
use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};
use std::ops::ControlFlow;

/// Up to so many bytes of literals, each state is a row for all bytes: 4 MiB at most. Beyond, rows are short ones, which are
/// slower where all fits a cache, and faster where only they do.
const DENSE_BYTES: usize = 4096;

/// A search for literals by the crate aho-corasick.
#[derive(Debug, Clone)]
pub struct Matcher {
    search: AhoCorasick,
    patterns: Patterns,
    /// Whether letters are folded although some literal regards their case: it is compared when it is found.
    compares: bool,
}

impl Matcher {
    /// Of these literals. Errors: the automaton is too large for the crate.
    pub fn new(patterns: Patterns) -> Result<Self, String> {
        let numbers = 0..patterns.len() as u32;
        let is_cased = |pattern: u32| patterns.is_cased(pattern);
        let folds = !numbers.clone().all(is_cased);
        let compares = folds && numbers.clone().any(is_cased);
        let bytes: usize = patterns.iter().map(<[u8]>::len).sum();
        let kind = if bytes <= DENSE_BYTES { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(folds)
            .kind(Some(kind))
            .build(patterns.iter())
            .map_err(|error| format!("the literals cannot be searched: {error}"))?;
        Ok(Self { search, patterns, compares })
    }

    /// The literals.
    pub fn patterns(&self) -> &Patterns {
        &self.patterns
    }

    /// Calls `each` for every literal in a text, until it breaks.
    pub fn scan<B>(&self, text: &[u8], mut each: impl FnMut(Hit) -> ControlFlow<B>) -> ControlFlow<B> {
        let mut state = OverlappingState::start();
        loop {
            self.search.find_overlapping(Input::new(text), &mut state);
            let Some(found) = state.get_match() else { return ControlFlow::Continue(()) };
            let pattern = found.pattern().as_u32();
            let is_folded = !self.compares || !self.patterns.is_cased(pattern);
            if is_folded || self.patterns.get(pattern) == &text[found.range()] {
                each(Hit { end: found.end(), pattern })?;
            }
        }
    }
}
