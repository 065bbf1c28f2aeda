//! Tables whose routes are a list, from which a layout makes what packets read.

use super::epoch::Epoch;
use super::hops::{Book, Hops};
use super::index::{Changes, Found, Index};
use super::route::{NextHop, Route};
use super::slots::Slots;
use super::table::{Edit, Refusal, Table};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many addresses are looked up at once.
pub(super) const BATCH: usize = 64;

/// What packets read. Code 0 is the answer for addresses without a route.
///
/// Lookups may run at any time, also between two stores of [`publish`](Self::publish); what they find then is wrong only if
/// memory was used again, which an epoch shows. They neither panic nor run on whatever they find.
pub(super) trait Layout: Default + Debug + Send + Sync {
    /// The writer's side of it.
    type Space: Default + Debug + Send;
    /// The largest code that it can hold.
    const CODES: u32;
    /// Whether a route that is replaced stays where it is in the list.
    const IN_PLACE: bool;

    /// Whether there is room for a prefix more, beside what is not published yet.
    fn fits(&self, space: &Self::Space, index: &Index, address: u32, len: u8) -> bool;

    /// Makes lookups find what `index` has.
    fn publish(&self, space: &mut Self::Space, index: &Index, changes: &Changes, epoch: &Epoch);

    /// The code of an address.
    fn code(&self, address: u32) -> u32;

    /// The codes of at most [`BATCH`] addresses.
    fn codes(&self, addresses: &[u32], codes: &mut [u32]);
}

/// A table of routes in some layout.
#[derive(Debug)]
pub(super) struct Compiled<L: Layout> {
    layout: L,
    hops: Hops,
    epoch: Epoch,
    writer: Mutex<Writer<L>>,
}

#[derive(Debug)]
struct Writer<L: Layout> {
    slots: Slots,
    index: Index,
    book: Book,
    space: L::Space,
}

impl<L: Layout> Default for Compiled<L> {
    fn default() -> Self {
        let writer = Writer {
            slots: Slots::default(),
            index: Index::default(),
            book: Book::new(L::CODES),
            space: L::Space::default(),
        };
        let (layout, hops, epoch) = (L::default(), Hops::default(), Epoch::default());
        Self { layout, hops, epoch, writer: Mutex::new(writer) }
    }
}

impl<L: Layout> Compiled<L> {
    /// A panic while it was held leaves a list and a layout that differ, and both whole.
    fn writer(&self) -> MutexGuard<'_, Writer<L>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What packets read, and the writer's side of it, while nobody changes them.
    pub(super) fn at_rest<R>(&self, look: impl FnOnce(&L, &mut L::Space, &Hops, &Book) -> R) -> R {
        let Writer { space, book, .. } = &mut *self.writer();
        look(&self.layout, space, &self.hops, book)
    }

    #[inline]
    fn read<R>(&self, look: impl FnMut() -> R) -> R {
        self.epoch.read(look, |look| {
            let _writer = self.writer();
            look()
        })
    }
}

impl<L: Layout> Table for Compiled<L> {
    fn edit(&self) -> Box<dyn Edit + '_> {
        Box::new(Editing { table: self, writer: self.writer() })
    }

    #[inline]
    fn lookup(&self, address: u32) -> NextHop {
        self.read(|| self.hops.get(self.layout.code(address)))
    }

    fn lookup_batch(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let mut codes = [0; BATCH];
        for (addresses, hops) in addresses.chunks(BATCH).zip(hops.chunks_mut(BATCH)) {
            let codes = &mut codes[..addresses.len()];
            self.read(|| {
                self.layout.codes(addresses, codes);
                for (hop, &code) in hops.iter_mut().zip(codes.iter()) {
                    *hop = self.hops.get(code);
                }
            });
        }
    }
}

#[derive(Debug)]
struct Editing<'a, L: Layout> {
    table: &'a Compiled<L>,
    writer: MutexGuard<'a, Writer<L>>,
}

impl<L: Layout> Editing<'_, L> {
    fn publish(&mut self) {
        let Writer { index, book, space, .. } = &mut *self.writer;
        let changes = index.take_changes();
        self.table.layout.publish(space, index, &changes, &self.table.epoch);
        index.give_back(changes);
        book.published();
    }

    /// The code of a next hop, also one that a route had which this removed.
    fn acquire(&mut self, hop: NextHop) -> Option<u32> {
        let table = self.table;
        let code = self.writer.book.acquire(hop, &table.hops, &table.epoch);
        code.or_else(|| {
            self.publish();
            self.writer.book.acquire(hop, &table.hops, &table.epoch)
        })
    }

    /// Whether there is room for a prefix more; what is pending is counted at its worst, unless that is too much.
    fn fits(&mut self, address: u32, len: u8) -> bool {
        for _ in 0..2 {
            let Writer { index, space, .. } = &*self.writer;
            if self.table.layout.fits(space, index, address, len) {
                return true;
            }
            self.publish();
        }
        false
    }
}

impl<L: Layout> Edit for Editing<'_, L> {
    fn insert(&mut self, route: Route, replace: bool) -> Result<Option<Route>, Refusal> {
        let len = route.prefix_len().ok_or(Refusal::NotAPrefix)?;
        let there = self.writer.index.find(route.address, len);
        let old = there.and_then(|found| self.writer.slots.get(found.slot));
        match old {
            Some(old) if !replace => return Err(Refusal::Exists(old)),
            None if !self.fits(route.address, len) => return Err(Refusal::Full),
            _ => {}
        }
        let code = self.acquire(route.hop()).ok_or(Refusal::Full)?;
        let Writer { slots, index, book, .. } = &mut *self.writer;
        if let Some(old) = old {
            book.release(old.hop());
        }
        let slot = match there {
            Some(found) if L::IN_PLACE => {
                slots.replace(found.slot, route);
                found.slot
            }
            Some(found) => {
                let slot = slots.add(route);
                slots.remove(found.slot);
                slot
            }
            None => slots.add(route),
        };
        index.insert(route.address, len, Found { slot, code });
        Ok(old)
    }

    fn remove(&mut self, route: &Route) -> Result<Route, Refusal> {
        let len = route.prefix_len().ok_or(Refusal::Missing)?;
        let Writer { slots, index, book, .. } = &mut *self.writer;
        let found = index.find(route.address, len).ok_or(Refusal::Missing)?;
        let old = slots.get(found.slot).filter(|old| route.removes(old)).ok_or(Refusal::Missing)?;
        book.release(old.hop());
        slots.remove(found.slot);
        index.remove(old.address, len);
        Ok(old)
    }

    fn clear(&mut self) {
        let Writer { slots, index, book, .. } = &mut *self.writer;
        slots.clear();
        index.clear();
        book.release_all();
    }

    fn routes(&self) -> Vec<Route> {
        self.writer.slots.routes()
    }
}

impl<L: Layout> Drop for Editing<'_, L> {
    fn drop(&mut self) {
        self.publish();
    }
}
