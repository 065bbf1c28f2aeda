//! A flow table as one array of words, as a kernel reads it.
//!
//! ```text
//!   16 words      how many tables, slots and lines there are, where they begin, and the tables that a field does not prune
//!   tables        16 words each, by their best ranks: mask, place of the slots, rank
//!   slots, lines  as here, and the words of lines that have no room there
//!   pruner        for each value of a field a set of tables, by their places in the image
//! ```

use super::key::WORDS;

/// Words before the tables.
pub(super) const HEADER: usize = 16;
/// Words of a table.
pub(super) const TABLE: usize = 16;
/// Numbers of outputs are below this.
pub(super) const OUTPUTS: u16 = 255;

/// An array that is being made.
#[derive(Debug, Default)]
pub(super) struct Image(Vec<u32>);

impl Image {
    /// With room for so many words.
    pub(super) fn with_capacity(words: usize) -> Self {
        let mut image = Vec::with_capacity(words);
        image.resize(HEADER, 0);
        Self(image)
    }

    /// Where the next word will be, which is a multiple of `boundary`.
    pub(super) fn begin(&mut self, boundary: usize) -> u32 {
        self.0.resize(self.0.len().next_multiple_of(boundary), 0);
        self.0.len() as u32
    }

    pub(super) fn table(&mut self, mask: &[u32; WORDS], is_wide: bool, slots: [u32; 2], best: u64) {
        self.0.extend(mask);
        let [first, size] = slots;
        self.0.extend([u32::from(is_wide), first, size - 1, 0, best as u32, (best >> 32) as u32, 0, 0]);
    }

    pub(super) fn words<const N: usize>(&mut self, items: impl Iterator<Item = [u32; N]>) {
        items.for_each(|words| self.0.extend(words));
    }

    pub(super) fn set(&mut self, at: usize, words: &[u32]) {
        self.0[at..at + words.len()].copy_from_slice(words);
    }

    pub(super) fn finish(mut self) -> Vec<u32> {
        self.0[7] = self.0.len() as u32;
        self.0
    }
}

/// A set of tables by their numbers becomes one by their places.
#[derive(Debug)]
pub(super) struct Order {
    bytes: [[u64; 256]; 8],
}

impl Order {
    pub(super) fn new(order: &[u8]) -> Self {
        let mut places = [0; 64];
        for (place, &table) in order.iter().enumerate() {
            places[usize::from(table)] = 1 << place;
        }
        let set = |byte: usize, bits: usize| {
            (0..8).filter(|bit| bits >> bit & 1 != 0).fold(0, |set, bit| set | places[byte * 8 + bit])
        };
        Self { bytes: std::array::from_fn(|byte| std::array::from_fn(|bits| set(byte, bits))) }
    }

    pub(super) fn apply(&self, tables: u64) -> [u32; 2] {
        let parts = self.bytes.iter().zip(tables.to_le_bytes());
        let set = parts.fold(0, |set, (byte, bits)| set | byte[usize::from(bits)]);
        [set as u32, (set >> 32) as u32]
    }
}
