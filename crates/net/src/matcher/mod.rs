//! Many literals searched in one pass over a text (Aho-Corasick), twice.
//!
//! ```text
//!   patterns   the literals, each with a number and with or without regard to case
//!   trie       their prefixes, and the longest suffix of each that is a prefix, too
//!   filter     by which bytes they begin
//!   layout     all as plain words
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
//!             bits 24-31  how many bytes of literals it stands for, at most 255
//!   [fail] [record]
//!   0         nothing more
//!   1         nothing more: the next state begins right behind this one
//!   2-28      classes, four a word, the first in the lowest bits; then a state for each
//!   255       a state for each class: failures are followed already
//!
//!   record    count, record of the longest proper suffix with literals (0: none), ranks of literals
//!   literal   by rank: length (bit 31: regards case), position of its bytes, four a word
//! ```
//!
//! Before the states stand the number of classes, that of literals, the position of the table of literals, the length of
//! the longest, the positions of the three tables below, the number of words, and the class of each byte. Bytes that no
//! literal tells apart share a class: a letter and its capital do, and class 0 is all that is in no literal. The root, the
//! states behind it and those that have a transition for every eighth class are dense; the rest are mostly chains of
//! one word a state.
//!
//! The rank of a literal is its place among all of them, longer ones first, then by number: where several end, their ranks
//! are in the order of their hits.
//!
//! Literals of one byte are in no state, as texts are full of them. They have a table by the byte: 0, or a rank and 1,
//! or with bit 31 the position of a count with as many ranks. Two bitmaps tell where a longer one may begin: one of 14 bits
//! by the first two bytes of those of two and three, and one of 17 bits by the first four of longer ones. Bit 5 of each byte
//! is left out; the lower byte has the lower bits, 7 of them in the one, 8 in the other, and those are multiplied by
//! 0x9e3779b1, of which the highest 17 bits of 32 count.
//!
//! Measured with all contents of Snort's community rules, their case as it is there (4,777 literals): 735 KiB, of which
//! what a search mostly reads, states without the bytes of literals, is less than 650 KiB.

mod automaton;
mod fast;
mod filter;
mod layout;
mod patterns;
#[cfg(test)]
mod tests;
mod trie;

pub use automaton::Automaton;
pub use fast::Matcher;
pub use patterns::{Hit, MAX_BYTES, MAX_PATTERNS, Patterns};
