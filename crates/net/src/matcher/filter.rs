//! What tells where literals may begin, so that most of a text need not go through the automaton: a table of those of one
//! byte, and bitmaps of the bytes by which longer ones begin. How they lie is described at the head of `matcher`.

use super::patterns::Patterns;

/// Table of literals of one byte: the position of a record of several.
pub(super) const SEVERAL: u32 = 1 << 31;
/// Words of the bitmap of two bytes: 14 bits.
const PAIR_WORDS: usize = 512;
/// Words of the bitmap of four bytes: 17 bits of a product.
const QUAD_WORDS: usize = 4096;
const QUAD_SHIFT: u32 = 15;
const QUAD_FACTOR: u32 = 0x9e37_79b1;

/// Appends the table of literals of one byte, and says where it begins.
pub(super) fn add_singles(patterns: &Patterns, by_rank: &[u32], words: &mut Vec<u32>) -> u32 {
    let mut ranks = vec![Vec::new(); 256];
    for (rank, &number) in (0_u32..).zip(by_rank) {
        let &[byte] = patterns.get(number) else { continue };
        let (lower, upper) = (byte.to_ascii_lowercase(), byte.to_ascii_uppercase());
        if patterns.is_cased(number) || lower == upper {
            ranks[usize::from(byte)].push(rank);
        } else {
            for byte in [lower, upper] {
                ranks[usize::from(byte)].push(rank);
            }
        }
    }
    let table = words.len();
    words.resize(table + 256, 0);
    for (byte, ranks) in ranks.iter().enumerate() {
        words[table + byte] = match ranks[..] {
            [] => 0,
            [rank] => rank + 1,
            _ => words.len() as u32 | SEVERAL,
        };
        if ranks.len() > 1 {
            words.push(ranks.len() as u32);
            words.extend(ranks);
        }
    }
    table as u32
}

/// A byte without bit 5, in 7 bits: letters are the same as their capitals.
fn fold(byte: u8) -> u32 {
    u32::from(byte & 0x1f | byte >> 1 & 0x60)
}

/// Appends the bitmaps, and says where they begin.
pub(super) fn add_bitmaps(patterns: &Patterns, words: &mut Vec<u32>) -> [u32; 2] {
    let (pairs, quads) = (words.len(), words.len() + PAIR_WORDS);
    words.resize(quads + QUAD_WORDS, 0);
    for literal in patterns.iter() {
        let (table, bit) = match *literal {
            [a, b] | [a, b, _] => (pairs, fold(a) | fold(b) << 7),
            [a, b, c, d, ..] => {
                let four = [a, b, c, d].into_iter().rev().fold(0, |four, byte| four << 8 | fold(byte));
                (quads, four.wrapping_mul(QUAD_FACTOR) >> QUAD_SHIFT)
            }
            _ => continue,
        };
        words[table + bit as usize / 32] |= 1 << (bit % 32);
    }
    [pairs as u32, quads as u32]
}
