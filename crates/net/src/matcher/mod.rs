//! Many literals searched in one pass over a text (Aho-Corasick), twice.
//!
//! ```text
//!   patterns   the literals, each with a number and with or without regard to case
//!   trie       their prefixes, and the longest suffix of each that is a prefix, too
//!   layout     the trie as plain words
//!   automaton  the search over these words, which a kernel can do as well
//!   fast       the same search by the crate aho-corasick, for processors
//! ```
//!
//! Both report the same [`Hit`]s in the same order: by where they end, then the longest literal first, then by number.
//!
//! Letters are folded in both, so that one automaton has all literals; one that regards case is compared with the text
//! when it is found. That costs only where there is a hit.
//!
//! # A state in memory
//!
//! The automaton is one array of 32-bit words, to be uploaded as it is. A state is the position of its first word:
//!
//! ```text
//!   header    bits 0-7    transitions; 255: a dense row
//!             bit  8      a word with the position of its record of literals follows
//!             bit  9      a word with the state to fail to follows; without it that is the root
//!             bits 16-23  the class of the only transition
//!   [fail] [record]
//!   0         nothing more
//!   1         nothing more: the next state begins right behind this one
//!   2-28      classes, four a word, the first in the lowest bits; then a state for each
//!   255       a state for each class: failures are followed already
//!
//!   record    count, record of the longest proper suffix with literals (0: none), numbers of literals
//!   literal   length (bit 31: regards case), position of its bytes, four a word
//! ```
//!
//! Before the states stand the counts and the class of each byte. Bytes that no literal tells apart share a class: a letter
//! and its capital do, and class 0 is all that is in no literal. The root, the states behind it and those that have a
//! transition for every eighth class are dense; the rest are mostly chains of one word a state.
//!
//! Measured with all contents of Snort's community rules, without regard to case (4,586 literals, 73,721 bytes, 228 classes):
//! 694 KiB. With 12,000 literals, most of them variants of these: 1.9 MiB.

mod automaton;
mod fast;
mod layout;
mod patterns;
#[cfg(test)]
mod tests;
mod trie;

pub use automaton::Automaton;
pub use fast::Matcher;
pub use patterns::{Hit, MAX_BYTES, MAX_PATTERNS, Patterns};
