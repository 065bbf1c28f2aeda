//! Which tables may have a rule for a packet, by the upper 16 bits of its addresses and its protocol.
//!
//! A bit for each table. What a packet cannot match by one field is not looked for in any other. Bits of rules that were
//! removed stay until everything is made anew, and cost a look in vain.

use super::key::{DESTINATION, Key, PROTOCOL, SOURCE, WORDS};

/// A field: the upper `bits` of a word.
#[derive(Debug)]
struct Field {
    word: usize,
    bits: u32,
    /// Tables with rules that do not test it.
    always: u64,
    /// Tables by the field's value.
    tables: Vec<u64>,
}

impl Field {
    fn new(word: usize, bits: u32) -> Self {
        Self { word, bits, always: 0, tables: vec![0; 1 << bits] }
    }

    #[inline]
    fn get(&self, key: &Key) -> u64 {
        self.always | self.tables[(key.0[self.word] >> (32 - self.bits)) as usize]
    }

    fn add(&mut self, value: &[u32; WORDS], mask: &[u32; WORDS], table: u64) {
        let upper = |words: &[u32; WORDS]| words[self.word] >> (32 - self.bits);
        let (value, mask) = (upper(value), upper(mask));
        if mask == 0 {
            self.always |= table;
            return;
        }
        // All values whose tested bits are the rule's, by counting through the others.
        let others = !mask & ((1 << self.bits) - 1);
        let mut other = others;
        loop {
            self.tables[(value | other) as usize] |= table;
            if other == 0 {
                break;
            }
            other = (other - 1) & others;
        }
    }
}

/// The tables by fields.
#[derive(Debug)]
pub(super) struct Pruner([Field; 3]);

impl Default for Pruner {
    fn default() -> Self {
        Self([Field::new(SOURCE, 16), Field::new(DESTINATION, 16), Field::new(PROTOCOL, 8)])
    }
}

impl Pruner {
    /// A bit for each table that may have a rule for a packet.
    #[inline]
    pub(super) fn get(&self, key: &Key) -> u64 {
        self.0.iter().fold(u64::MAX, |tables, field| tables & field.get(key))
    }

    /// A table has a rule with these tests.
    pub(super) fn add(&mut self, value: &[u32; WORDS], mask: &[u32; WORDS], table: usize) {
        self.0.iter_mut().for_each(|field| field.add(value, mask, 1 << table));
    }

    /// The tables of all fields by their values, one field after the other.
    pub(super) fn sets(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|field| &field.tables).copied()
    }

    /// For each field, the tables that do not test it.
    pub(super) fn always(&self) -> [u64; 3] {
        self.0.each_ref().map(|field| field.always)
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|field| field.tables.len() * 8).sum()
    }
}
