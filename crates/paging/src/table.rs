//! Slots and their blocks, under the cache's table lock: who lies where, who is in use, who leaves.
//!
//! It joins the directory, which outlives the process, with what does not: queues and pins. A slot with a pin stays where
//! it is. Nothing here allocates after it was made.

use crate::directory::{Block, Directory, Head, Slot};
use crate::pages::Pages;
use crate::policy::{Place, Policy};
use crate::stats::Counter;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A slot in use: it stays where it is for as long as the device's memory does. When that is lost, all slots are given out
/// anew, and what somebody still holds of the memory before names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pinned {
    /// The slot.
    pub at: u32,
    /// Which memory it was of.
    pub opening: u32,
}

/// What is kept beside the directory.
#[derive(Debug)]
pub(crate) struct Table {
    policy: Policy,
    pins: Box<[u32]>,
    /// Slots whose chunk is about to go: none of them is handed out.
    leaving: Range<u32>,
    dirty_pages: u64,
    /// How many times all memory was lost.
    opening: u32,
}

/// What a reader finds of a block; the slot is pinned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// The block's word.
    pub block: Block,
    /// Where it lies, and what is there.
    pub slot: Option<(Pinned, Slot)>,
}

impl Table {
    /// The table of a directory that is whole; chunks that are not present hold nothing.
    pub(crate) fn of(directory: &Directory) -> Self {
        let slots = directory.slots();
        let mut table = Self {
            policy: Policy::new(slots),
            pins: vec![0; slots as usize].into_boxed_slice(),
            leaving: 0..0,
            dirty_pages: 0,
            opening: 0,
        };
        for at in 0..slots {
            if directory.is_present(at / directory.shape().chunk_slots) {
                let slot = directory.slot(at);
                table.dirty_pages += slot.dirty.count();
                table.policy.put(at, if slot.block.is_some() { Place::Written } else { Place::Free });
            }
        }
        table.publish(directory);
        table
    }

    /// Slots of a new chunk can be used.
    pub(crate) fn add_slots(&mut self, directory: &Directory, slots: Range<u32>) {
        slots.for_each(|slot| self.policy.put(slot, Place::Free));
        self.publish(directory);
    }

    /// From now on none of these slots is handed out, and those that hold nothing are out.
    pub(crate) fn begin_leaving(&mut self, slots: &Range<u32>) {
        self.leaving = slots.clone();
        for slot in slots.clone() {
            if self.policy.place(slot) == Place::Free {
                self.policy.put(slot, Place::Out);
            }
        }
    }

    /// They stay after all.
    pub(crate) fn stay(&mut self, directory: &Directory) {
        for slot in std::mem::take(&mut self.leaving) {
            if self.policy.place(slot) == Place::Out {
                self.policy.put(slot, Place::Free);
            }
        }
        self.publish(directory);
    }

    /// Empties those leaving slots that nobody uses and that are clean; true when all are out.
    pub(crate) fn empty_leaving(&mut self, directory: &Directory) -> bool {
        let mut are_out = true;
        for slot in self.leaving.clone() {
            if self.policy.place(slot) == Place::Out {
                continue;
            }
            if self.can_leave(directory, slot) {
                self.release(directory, slot);
            } else {
                are_out = false;
            }
        }
        if are_out {
            self.leaving = 0..0;
        }
        self.publish(directory);
        are_out
    }

    /// The device's memory is gone: every slot is out, and what only it had is lost. Returns which memory comes next.
    pub(crate) fn forget_all(&mut self, directory: &Directory) -> u32 {
        let slots = 0..directory.slots();
        self.forget(directory, slots);
        self.leaving = 0..0;
        self.pins.fill(0);
        self.opening += 1;
        self.opening
    }

    /// The same for some slots.
    pub(crate) fn forget(&mut self, directory: &Directory, slots: Range<u32>) {
        for at in slots {
            let slot = directory.slot(at);
            if let Some(number) = slot.block {
                let block = directory.block(number);
                let lost = block.lost.or(slot.dirty);
                directory.set_block(number, Block { slot: None, lost, ..block });
                directory.set_slot(at, Slot::EMPTY);
                directory.stats().add(Counter::LostPages, slot.dirty.count());
                self.dirty_pages -= slot.dirty.count();
            }
            self.policy.put(at, Place::Out);
        }
        self.publish(directory);
    }

    /// Looks a block up for a read of these pages, and pins its slot if it is there.
    pub(crate) fn look(&mut self, directory: &Directory, number: u32, wanted: Pages) -> Found {
        let block = directory.block(number);
        let slot = block.slot.map(|slot| (self.pin(slot), directory.slot(slot)));
        if let Some((pinned, slot)) = slot
            && !slot.valid.and(wanted).is_empty()
        {
            self.policy.put(pinned.at, Place::Returned);
        }
        Found { block, slot }
    }

    /// A pinned slot for a block, from among the free ones, or of a block that leaves if `evicts`.
    pub(crate) fn admit(&mut self, directory: &Directory, number: u32, evicts: bool) -> Option<Pinned> {
        let block = directory.block(number);
        if let Some(at) = block.slot {
            return Some(self.pin(at));
        }
        let free = self.policy.take_free();
        let at = match free {
            None if evicts => {
                let at = self.policy.victim(|slot| self.can_leave(directory, slot))?;
                self.release(directory, at);
                directory.stats().add(Counter::Evictions, 1);
                (self.policy.place(at) == Place::Free).then_some(at)?
            }
            _ => free?,
        };
        directory.set_slot(at, Slot { block: Some(number), ..Slot::EMPTY });
        directory.set_block(number, Block { slot: Some(at), ..block });
        let pinned = self.pin(at);
        self.policy.put(at, if evicts { Place::Written } else { Place::Returned });
        self.publish(directory);
        Some(pinned)
    }

    fn pin(&mut self, at: u32) -> Pinned {
        self.pins[at as usize] += 1;
        Pinned { at, opening: self.opening }
    }

    /// A pinned slot is used no more. One that came to hold nothing is free.
    pub(crate) fn unpin(&mut self, directory: &Directory, pinned: Pinned) {
        let Some(at) = self.slot_of(pinned) else { return };
        self.pins[at as usize] -= 1;
        if self.pins[at as usize] == 0 && directory.slot(at).valid.is_empty() {
            self.release(directory, at);
            self.publish(directory);
        }
    }

    /// Pages of a slot have the block's bytes now; dirty ones are newer than the backing.
    pub(crate) fn set_valid(&mut self, directory: &Directory, pinned: Pinned, pages: Pages, are_dirty: bool) {
        let Some(at) = self.slot_of(pinned) else { return };
        let slot = directory.slot(at);
        let dirty = if are_dirty { slot.dirty.or(pages) } else { slot.dirty.without(pages) };
        self.store(directory, at, Slot { valid: slot.valid.or(pages), dirty, ..slot });
    }

    /// Pages of a slot are as the backing has them.
    pub(crate) fn set_clean(&mut self, directory: &Directory, pinned: Pinned, pages: Pages) {
        let Some(at) = self.slot_of(pinned) else { return };
        let slot = directory.slot(at);
        self.store(directory, at, Slot { dirty: slot.dirty.without(pages), ..slot });
    }

    /// Pages of a slot have no bytes any more. Returns those that the backing did not have.
    pub(crate) fn invalidate(&mut self, directory: &Directory, pinned: Pinned, pages: Pages) -> Pages {
        let Some(at) = self.slot_of(pinned) else { return Pages::NONE };
        let dirty = directory.slot(at).dirty.and(pages);
        self.invalidate_slot(directory, at, pages);
        dirty
    }

    /// Clean pages of a block have no bytes any more, wherever it lies.
    pub(crate) fn invalidate_clean(&mut self, directory: &Directory, number: u32, pages: Pages) {
        if let Some(at) = directory.block(number).slot {
            self.invalidate_slot(directory, at, pages.without(directory.slot(at).dirty));
        }
    }

    fn invalidate_slot(&mut self, directory: &Directory, at: u32, pages: Pages) {
        let slot = directory.slot(at);
        self.store(directory, at, Slot { valid: slot.valid.without(pages), dirty: slot.dirty.without(pages), ..slot });
    }

    /// A write has come: the newest of all.
    pub(crate) fn touch_written(&mut self, pinned: Pinned) {
        if let Some(at) = self.slot_of(pinned) {
            self.policy.put(at, Place::Written);
        }
    }

    /// Pins the slot of a block with dirty pages.
    pub(crate) fn pin_dirty(&mut self, directory: &Directory, number: u32) -> Option<(Pinned, Pages)> {
        let at = directory.block(number).slot?;
        let dirty = directory.slot(at).dirty;
        if dirty.is_empty() {
            return None;
        }
        Some((self.pin(at), dirty))
    }

    /// The slot, if its memory is there still.
    fn slot_of(&self, pinned: Pinned) -> Option<u32> {
        (pinned.opening == self.opening).then_some(pinned.at)
    }

    /// Pages that the backing does not have.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty_pages
    }

    /// Slots with device memory.
    pub(crate) fn present(&self) -> u32 {
        self.policy.used() + self.policy.free()
    }

    fn can_leave(&self, directory: &Directory, slot: u32) -> bool {
        self.pins[slot as usize] == 0 && directory.slot(slot).dirty.is_empty()
    }

    fn store(&mut self, directory: &Directory, at: u32, slot: Slot) {
        self.dirty_pages = self.dirty_pages + slot.dirty.count() - directory.slot(at).dirty.count();
        directory.set_slot(at, slot);
        directory.head(Head::DirtyPages).store(self.dirty_pages, Ordering::Relaxed);
    }

    /// Unlinks a clean slot; it is free, or out where its chunk is about to go.
    fn release(&mut self, directory: &Directory, at: u32) {
        if let Some(number) = directory.slot(at).block {
            directory.set_block(number, Block { slot: None, ..directory.block(number) });
        }
        directory.set_slot(at, Slot::EMPTY);
        self.policy.put(at, if self.leaving.contains(&at) { Place::Out } else { Place::Free });
    }

    fn publish(&self, directory: &Directory) {
        directory.head(Head::UsedSlots).store(self.policy.used().into(), Ordering::Relaxed);
        directory.head(Head::PresentSlots).store(self.present().into(), Ordering::Relaxed);
        directory.head(Head::DirtyPages).store(self.dirty_pages, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Shape;

    /// A slot that somebody had looked up was another block's after the device was lost and opened again: he read its
    /// bytes for his own, and what he then said of it was said of the other block.
    #[test]
    fn a_slot_of_memory_that_was_lost_is_nobodys_whoever_has_it_now() {
        let shape = Shape { blocks: 8, chunks: 1, chunk_slots: 1, writes_back: true };
        let directory = Directory::create(shape).unwrap();
        let table = &mut Table::of(&directory);
        table.forget_all(&directory);
        table.add_slots(&directory, 0..1);
        let old = table.admit(&directory, 3, true).unwrap();
        table.set_valid(&directory, old, Pages(0xf), true);
        assert_eq!(table.forget_all(&directory), 2);
        assert_eq!(directory.block(3), Block { slot: None, zero: Pages::NONE, lost: Pages(0xf) });
        table.add_slots(&directory, 0..1);
        let new = table.admit(&directory, 5, true).unwrap();
        assert!(new.at == old.at && new.opening != old.opening);
        table.set_valid(&directory, new, Pages(0x3), true);
        let before = (directory.slot(0), table.dirty_pages());
        table.set_valid(&directory, old, Pages(0xf0), true);
        table.set_clean(&directory, old, Pages(0x1));
        assert_eq!(table.invalidate(&directory, old, Pages(0x1)), Pages::NONE);
        table.touch_written(old);
        table.unpin(&directory, old);
        assert_eq!((directory.slot(0), table.dirty_pages()), before);
        table.set_clean(&directory, new, Pages(0x3));
        assert!(table.admit(&directory, 6, true).is_none(), "its user has it pinned");
        table.unpin(&directory, new);
        assert!(table.admit(&directory, 6, true).is_some());
    }
}
