//! Which block leaves when another one wants its slot.
//!
//! Paging is not reading files. What the system wrote out will be wanted back; what it has read back is in its memory, and
//! it comes again only if it is dropped there unchanged. So blocks wait in two queues:
//!
//! ```text
//!   written ──read──> returned          each in the order of its last write, or of its last read
//!      ^                  |
//!      └──────write───────┘
//! ```
//!
//! The next to leave is the oldest of `returned` while those hold more than a quarter of the slots, and else the oldest of
//! `written`: neither a program that was read back whole, nor one that was written once and sleeps for ever, takes all.
//! A read that missed takes a free slot and drives nobody out: the bytes are on their way into memory.
//!
//! This type decides only. Everything is an index into tables that are made once; nothing allocates after that.

/// A list's end, or no slot.
const NONE: u32 = u32::MAX;
/// Blocks that were read back may hold one in so many slots before they leave first.
const RETURNED_SHARE: u32 = 4;
/// So many candidates of a queue are looked at for one that can leave.
const LOOKS_MAX: u32 = 64;

/// Where a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is no memory behind it.
    Out,
    /// It holds nothing.
    Free,
    /// It holds a block that was written and not read since.
    Written,
    /// It holds a block that was read since.
    Returned,
}

/// The queues of slots.
#[derive(Debug)]
pub(crate) struct Policy {
    place: Box<[Place]>,
    /// Towards newer ones.
    next: Box<[u32]>,
    /// Towards older ones.
    previous: Box<[u32]>,
    free: List,
    written: List,
    returned: List,
}

#[derive(Debug, Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
    len: u32,
}

impl Policy {
    /// Queues for this many slots, all of them out.
    pub(crate) fn new(slots: u32) -> Self {
        let empty = List { oldest: NONE, newest: NONE, len: 0 };
        let links = || vec![NONE; slots as usize].into_boxed_slice();
        Self {
            place: vec![Place::Out; slots as usize].into_boxed_slice(),
            next: links(),
            previous: links(),
            free: empty,
            written: empty,
            returned: empty,
        }
    }

    /// Where a slot is.
    pub(crate) fn place(&self, slot: u32) -> Place {
        self.place[slot as usize]
    }

    /// Slots that hold nothing.
    pub(crate) fn free(&self) -> u32 {
        self.free.len
    }

    /// Slots with a block.
    pub(crate) fn used(&self) -> u32 {
        self.written.len + self.returned.len
    }

    /// Puts a slot where it belongs now, as the newest there.
    pub(crate) fn put(&mut self, slot: u32, place: Place) {
        self.unlink(slot);
        self.place[slot as usize] = place;
        let Some(list) = self.list(place) else { return };
        let before = std::mem::replace(&mut list.newest, slot);
        list.len += 1;
        if before == NONE {
            list.oldest = slot;
        } else {
            self.next[before as usize] = slot;
        }
        self.previous[slot as usize] = before;
        self.next[slot as usize] = NONE;
    }

    /// The free slot that has waited longest.
    pub(crate) fn take_free(&self) -> Option<u32> {
        (self.free.oldest != NONE).then_some(self.free.oldest)
    }

    /// The slot whose block is to leave, among those that can.
    pub(crate) fn victim(&self, can_leave: impl Fn(u32) -> bool) -> Option<u32> {
        let slots = self.used() + self.free.len;
        let returned_first = self.returned.len > slots / RETURNED_SHARE;
        let order = if returned_first { [self.returned, self.written] } else { [self.written, self.returned] };
        order.into_iter().find_map(|list| self.oldest(list, &can_leave))
    }

    fn oldest(&self, list: List, can_leave: impl Fn(u32) -> bool) -> Option<u32> {
        let mut slot = list.oldest;
        for _ in 0..LOOKS_MAX {
            if slot == NONE || can_leave(slot) {
                break;
            }
            slot = self.next[slot as usize];
        }
        (slot != NONE && can_leave(slot)).then_some(slot)
    }

    fn list(&mut self, place: Place) -> Option<&mut List> {
        match place {
            Place::Out => None,
            Place::Free => Some(&mut self.free),
            Place::Written => Some(&mut self.written),
            Place::Returned => Some(&mut self.returned),
        }
    }

    fn unlink(&mut self, slot: u32) {
        let (before, after) = (self.previous[slot as usize], self.next[slot as usize]);
        let Some(list) = self.list(self.place[slot as usize]) else { return };
        list.len -= 1;
        if before == NONE {
            list.oldest = after;
        }
        if after == NONE {
            list.newest = before;
        }
        if before != NONE {
            self.next[before as usize] = after;
        }
        if after != NONE {
            self.previous[after as usize] = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// The same, slow and obvious.
    #[derive(Default)]
    struct Model {
        free: VecDeque<u32>,
        written: VecDeque<u32>,
        returned: VecDeque<u32>,
    }

    impl Model {
        fn put(&mut self, slot: u32, place: Place) {
            for list in [&mut self.free, &mut self.written, &mut self.returned] {
                list.retain(|other| *other != slot);
            }
            match place {
                Place::Out => {}
                Place::Free => self.free.push_back(slot),
                Place::Written => self.written.push_back(slot),
                Place::Returned => self.returned.push_back(slot),
            }
        }

        fn victim(&self, can_leave: impl Fn(u32) -> bool) -> Option<u32> {
            let slots = self.free.len() + self.written.len() + self.returned.len();
            let first = |list: &VecDeque<u32>| list.iter().take(65).copied().find(|slot| can_leave(*slot));
            if self.returned.len() > slots / 4 {
                first(&self.returned).or_else(|| first(&self.written))
            } else {
                first(&self.written).or_else(|| first(&self.returned))
            }
        }
    }

    #[test]
    fn queues_are_those_of_the_model() {
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        for slots in [1, 2, 7, 200] {
            let (mut policy, mut model) = (Policy::new(slots), Model::default());
            for _ in 0..4000 {
                let slot = draw.u32(..slots);
                let place = [Place::Out, Place::Free, Place::Written, Place::Returned][draw.usize(..4)];
                policy.put(slot, place);
                model.put(slot, place);
                assert_eq!(policy.place(slot), place);
                assert_eq!(policy.take_free(), model.free.front().copied());
                assert_eq!(policy.free() as usize, model.free.len());
                assert_eq!(policy.used() as usize, model.written.len() + model.returned.len());
                let stays = draw.u32(1..5);
                assert_eq!(policy.victim(|slot| slot % stays == 0), model.victim(|slot| slot % stays == 0));
            }
        }
    }

    #[test]
    fn what_was_read_back_leaves_before_what_is_still_wanted() {
        let mut policy = Policy::new(8);
        (0..8).for_each(|slot| policy.put(slot, Place::Written));
        (4..8).for_each(|slot| policy.put(slot, Place::Returned));
        assert_eq!(policy.victim(|_| true), Some(4));
        (5..8).for_each(|slot| policy.put(slot, Place::Written));
        assert_eq!(policy.victim(|_| true), Some(0), "a few that were read back may stay");
    }
}
