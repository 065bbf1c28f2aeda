//! Which blocks of a region are in memory, which on the device, and who leaves next: no effects, only what is known.
//!
//! A block that was never written to is nowhere. One that is here came from a slot, and is *clean* until it is written to: then
//! it may leave without a copy. Blocks leave in the order in which they came; one that was written to since it came from its
//! slot has been used, and has one more turn.

use std::collections::VecDeque;

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// Where its content is on the device, or was.
    slot: u32,
    place: Place,
    /// Whether its slot, if it has one, has other content.
    is_dirty: bool,
    has_turn: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Away,
    Here,
    Lost,
}

impl Block {
    /// As a word, which is 0 for a block that was never touched: a large table of those takes no memory.
    fn word(self) -> u64 {
        let slot = u64::from(self.slot.wrapping_add(1));
        slot | (self.place as u64) << 32 | u64::from(self.is_dirty) << 34 | u64::from(self.has_turn) << 35
    }

    fn of(word: u64) -> Self {
        let place = match word >> 32 & 3 {
            0 => Place::Away,
            1 => Place::Here,
            _ => Place::Lost,
        };
        let slot = (word as u32).wrapping_sub(1);
        Self { slot, place, is_dirty: word >> 34 & 1 == 1, has_turn: word >> 35 & 1 == 1 }
    }
}

/// What a page fault needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing but a wake-up: the block is here. A page of it is not where the program has discarded it.
    Nothing,
    /// Zeroes.
    Zeroes,
    /// What is in this slot.
    Slot(u32),
    /// It is here, and is to be written to.
    Write,
    /// What cannot be had any more.
    Lost,
}

/// A block that is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) block: u32,
    /// Whether its content has to be copied.
    pub(super) is_dirty: bool,
}

/// Where the blocks of a region are.
#[derive(Debug)]
pub(super) struct Residency {
    /// A [`Block`] each.
    blocks: Vec<u64>,
    /// Those that are here, in the order in which they leave.
    here: VecDeque<u32>,
    free: Vec<u32>,
    slots: u32,
}

impl Residency {
    /// Of blocks that are nowhere yet, and no slots.
    pub(super) fn new(blocks: u32) -> Self {
        Self { blocks: vec![0; blocks as usize], here: VecDeque::new(), free: Vec::new(), slots: 0 }
    }

    fn block(&self, block: u32) -> Block {
        Block::of(self.blocks[block as usize])
    }

    fn set(&mut self, block: u32, of: Block) {
        self.blocks[block as usize] = of.word();
    }

    /// Blocks that are here.
    pub(super) fn here(&self) -> usize {
        self.here.len()
    }

    /// Slots that have content.
    pub(super) fn used_slots(&self) -> u32 {
        self.slots - self.free.len() as u32
    }

    /// There are so many more slots.
    pub(super) fn add_slots(&mut self, count: u32) {
        self.free.extend((self.slots..self.slots + count).rev());
        self.slots += count;
    }

    /// What a fault needs, which may be a write to a page that is here.
    pub(super) fn need(&self, block: u32, is_protected: bool) -> Need {
        match self.block(block) {
            Block { place: Place::Lost, .. } => Need::Lost,
            Block { place: Place::Here, .. } if is_protected => Need::Write,
            Block { place: Place::Here, .. } => Need::Nothing,
            Block { slot: NONE, .. } => Need::Zeroes,
            Block { slot, .. } => Need::Slot(slot),
        }
    }

    /// A block has come, from its slot or as zeroes; whether it may be written to without a fault from now on, as zeroes are.
    pub(super) fn came(&mut self, block: u32, is_dirty: bool) {
        let slot = self.block(block).slot;
        self.set(block, Block { slot, place: Place::Here, is_dirty: is_dirty || slot == NONE, has_turn: false });
        self.here.push_back(block);
    }

    /// A block that is here is written to.
    pub(super) fn written(&mut self, block: u32) {
        let of = self.block(block);
        self.set(block, Block { is_dirty: true, has_turn: true, ..of });
    }

    /// Who leaves next. It counts as here until [`left`](Self::left) or [`stayed`](Self::stayed).
    pub(super) fn leaving(&mut self) -> Option<Leaving> {
        loop {
            let block = self.here.pop_front()?;
            let of = self.block(block);
            if !of.has_turn {
                return Some(Leaving { block, is_dirty: of.is_dirty });
            }
            self.set(block, Block { has_turn: false, ..of });
            self.here.push_back(block);
        }
    }

    /// A slot for a block's content: its own, or a free one.
    pub(super) fn slot_for(&mut self, block: u32) -> Option<u32> {
        let of = self.block(block);
        if of.slot != NONE {
            return Some(of.slot);
        }
        let slot = self.free.pop()?;
        self.set(block, Block { slot, ..of });
        Some(slot)
    }

    /// A block has left. Its content is in its slot, or is zeroes.
    pub(super) fn left(&mut self, block: u32, is_zero: bool) {
        let of = self.block(block);
        let mut slot = of.slot;
        if is_zero && slot != NONE {
            self.free.push(slot);
            slot = NONE;
        }
        self.set(block, Block { slot, place: Place::Away, is_dirty: false, ..of });
    }

    /// A block could not leave. Its slot, if it was given one, has nothing of use.
    pub(super) fn stayed(&mut self, block: u32) {
        let of = self.block(block);
        self.set(block, Block { is_dirty: true, ..of });
        self.here.push_back(block);
    }

    /// A block's content cannot be read from its slot.
    pub(super) fn lose(&mut self, block: u32) {
        let of = self.block(block);
        self.set(block, Block { place: Place::Lost, ..of });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What happens to a block.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Touch(u32, bool),
        Leave { fails: bool },
        Grow,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..12_u32, any::<bool>()).prop_map(|(block, is_write)| Step::Touch(block, is_write)),
            5 => prop::bool::weighted(0.2).prop_map(|fails| Step::Leave { fails }),
            1 => Just(Step::Grow),
        ]
    }

    proptest! {
            /// Versions of contents stand for contents: what a reader sees is what was written last.
            #[test]
            fn no_content_is_lost(steps in prop::collection::vec(step(), 1..200)) {
                let mut known = Residency::new(12);
                let (mut here, mut slots, mut last) = ([None::<u32>; 12], vec![], [0_u32; 12]);
                for (version, step) in (1..).zip(steps) {
                    match step {
                        Step::Grow => {
                            known.add_slots(2);
                            slots.extend([u32::MAX; 2]);
                        }
                        Step::Touch(block, is_write) => {
                            let at = block as usize;
                            match known.need(block, false) {
                                Need::Zeroes => here[at] = Some(0),
                                Need::Slot(slot) => here[at] = Some(slots[slot as usize]),
                                need => prop_assert!(need == Need::Nothing && here[at].is_some()),
                            }
                            if known.need(block, false) != Need::Nothing {
                                known.came(block, false);
                            }
                            prop_assert_eq!(here[at], Some(last[at]));
                            if is_write {
                                if known.need(block, true) == Need::Write {
                                    known.written(block);
                                }
                                (here[at], last[at]) = (Some(version), version);
                            }
                        }
                        Step::Leave { fails } => {
                            let Some(Leaving { block, is_dirty }) = known.leaving() else { continue };
                            let content = here[block as usize].unwrap();
                            let slot = if is_dirty && content != 0 { known.slot_for(block) } else { None };
                            if is_dirty && content != 0 && (fails || slot.is_none()) {
                                if let Some(slot) = slot {
     slots[slot as usize] = u32::MAX;
    }
                                known.stayed(block);
                                continue;
                            }
                            if let Some(slot) = slot {
     slots[slot as usize] = content;
    }
                            known.left(block, is_dirty && content == 0);
                            here[block as usize] = None;
                        }
                    }
                    prop_assert_eq!(known.here(), here.iter().flatten().count());
                    prop_assert!(known.used_slots() as usize <= slots.len());
                }
            }
        }

    #[test]
    fn who_was_written_to_leaves_later() {
        let mut known = Residency::new(3);
        known.add_slots(3);
        for block in 0..3 {
            known.came(block, false);
            assert_eq!(known.leaving(), Some(Leaving { block, is_dirty: true }));
            known.slot_for(block).unwrap();
            known.left(block, false);
        }
        (0..3).for_each(|block| known.came(block, false));
        known.written(0);
        assert_eq!(known.leaving(), Some(Leaving { block: 1, is_dirty: false }));
        assert_eq!(known.leaving(), Some(Leaving { block: 2, is_dirty: false }));
        assert_eq!(known.leaving(), Some(Leaving { block: 0, is_dirty: true }));
        assert_eq!(known.leaving(), None);
    }
}
