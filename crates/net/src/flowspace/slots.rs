//! Hash tables that share an array: from the hash of a packet's tested bits to the first rule of a list.
//!
//! A slot is two words: the hash, and the number of the list's first rule. Open addressing, at most half full; a table that
//! grows gets a new part of the array.

use super::key::{Key, WORDS};

/// No rule.
pub(super) const NONE: u32 = u32::MAX;

const EMPTY: [u32; 2] = [0, NONE];
const FIRST_SIZE: u32 = 16;

/// Odd numbers for a sum of products (NH), one for each word.
const NUMBERS: [u32; WORDS] =
    [0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35, 0x27d4_eb2f, 0x1656_67b1, 0xd3a2_646d, 0xfd70_46c5, 0xb55a_4f09];

/// A table: which bits it tests, and where its slots are.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) mask: [u32; WORDS],
    /// Whether it tests words beyond those of IP and ports.
    is_wide: bool,
    first: u32,
    /// A power of two.
    size: u32,
    used: u32,
}

impl Table {
    /// The hash of a key's tested bits.
    #[inline]
    pub(super) fn tag(&self, key: &Key) -> u32 {
        let part = |word: usize| u64::from((key.0[word] & self.mask[word]).wrapping_add(NUMBERS[word]));
        let mut sum = (part(0) * part(1)).wrapping_add(part(2) * part(3));
        if self.is_wide {
            sum = sum.wrapping_add(part(4) * part(5)).wrapping_add(part(6) * part(7));
        }
        ((sum ^ sum >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// Whether it tests words beyond those of IP and ports.
    pub(super) fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// How many slots it has.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// How many bits it tests.
    pub(super) fn bits(&self) -> u32 {
        self.mask.iter().map(|mask| mask.count_ones()).sum()
    }

    /// Whether rules that test these bits can be in it.
    pub(super) fn takes(&self, mask: &[u32; WORDS]) -> bool {
        self.mask.iter().zip(mask).all(|(own, mask)| own & !mask == 0)
    }
}

/// The array.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<[u32; 2]>);

impl Slots {
    /// Makes a table.
    pub(super) fn table(&mut self, mask: [u32; WORDS]) -> Table {
        let is_wide = mask[4..].iter().any(|&mask| mask != 0);
        let first = self.part(FIRST_SIZE);
        Table { mask, is_wide, first, size: FIRST_SIZE, used: 0 }
    }

    fn part(&mut self, size: u32) -> u32 {
        let first = self.0.len();
        self.0.resize(first + size as usize, EMPTY);
        first as u32
    }

    /// The slot of a hash: its own, or an empty one.
    #[inline]
    fn slot(&self, table: &Table, tag: u32) -> usize {
        let mut at = tag;
        loop {
            let slot = (table.first + (at & (table.size - 1))) as usize;
            let [other, head] = self.0[slot];
            if other == tag || head == NONE {
                return slot;
            }
            at = at.wrapping_add(1);
        }
    }

    /// The first rule of a hash's list.
    #[inline]
    pub(super) fn head(&self, table: &Table, tag: u32) -> u32 {
        let [other, head] = self.0[self.slot(table, tag)];
        if other == tag { head } else { NONE }
    }

    /// A hash's list begins with this rule from now on.
    pub(super) fn set(&mut self, table: &mut Table, tag: u32, head: u32) {
        let slot = self.slot(table, tag);
        let was_empty = self.0[slot][1] == NONE;
        match (was_empty, head == NONE) {
            (true, true) => {}
            (false, true) => {
                table.used -= 1;
                self.vacate(table, slot);
            }
            (false, false) => self.0[slot][1] = head,
            (true, false) => {
                self.0[slot] = [tag, head];
                table.used += 1;
                if table.used * 2 > table.size {
                    self.grow(table);
                }
            }
        }
    }

    fn grow(&mut self, table: &mut Table) {
        let old = table.first as usize..(table.first + table.size) as usize;
        table.size *= 2;
        table.first = self.part(table.size);
        for at in old {
            let moved = std::mem::replace(&mut self.0[at], EMPTY);
            if moved[1] != NONE {
                let slot = self.slot(table, moved[0]);
                self.0[slot] = moved;
            }
        }
    }

    /// Empties a slot; those behind it that were not at their places move up.
    fn vacate(&mut self, table: &Table, slot: usize) {
        let last = table.size - 1;
        let mut hole = slot as u32 - table.first;
        let mut at = hole;
        loop {
            at = (at + 1) & last;
            let moved = self.0[(table.first + at) as usize];
            if moved[1] == NONE {
                break;
            }
            let (way, hole_way) = (at.wrapping_sub(moved[0]) & last, at.wrapping_sub(hole) & last);
            if way >= hole_way {
                self.0[(table.first + hole) as usize] = moved;
                hole = at;
            }
        }
        self.0[(table.first + hole) as usize] = EMPTY;
    }

    /// The slots of a table.
    pub(super) fn of(&self, table: &Table) -> impl Iterator<Item = [u32; 2]> {
        self.0[table.first as usize..][..table.size as usize].iter().copied()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.0.len() * 8
    }
}
