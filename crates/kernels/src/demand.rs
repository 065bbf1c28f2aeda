//! Demand mode: the table over which kernels ask for pages of a file, as the device header
//! (`include/bifolio_demand.h`), the host that fills it, and kernels in Rust know it.
//!
//! The table is one range of device memory: a head, a byte for each page, a byte for each slot of
//! the launch's list of items, and that list. The header describes how kernels use it; [`Table`] is
//! the same for kernels of the `host` device, and what the header is tested against.

use bifolio_device::DevicePtr;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The header by its name, for [`bifolio_device::ModuleSource::headers`].
pub const HEADER: (&str, &str) = ("bifolio_demand.h", include_str!("../include/bifolio_demand.h"));

const THERE: u8 = 1;
const ASKED: u8 = 2;

/// `bifolio_demand` of the header. Threads of a kernel store only to what is atomic here.
#[repr(C)]
#[derive(Debug)]
struct Head {
    length: u64,
    skew: u64,
    pages_at: u64,
    done_at: u64,
    items_at: u64,
    page_shift: u32,
    items: u32,
    bad_offset: AtomicU64,
    bad_length: AtomicU64,
    bad: AtomicU32,
    reserved: u32,
}

const HEAD_BYTES: usize = 72;
const _: () = assert!(size_of::<Head>() == HEAD_BYTES && align_of::<Head>() == 8);

/// Boundary at which the parts of a table begin: that of the head, and of no two parts in one cache
/// line of any device.
const PART_BYTES: u64 = 128;

/// Where the pages' bytes begin: behind the head.
const PAGES_AT: u64 = PART_BYTES;

/// What a table is about: `length` bytes of a file in pages of `1 << page_shift` bytes, of which
/// the first begins `skew` bytes before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagedRange {
    /// Bytes that may be asked for.
    pub length: u64,
    /// Less than a page.
    pub skew: u64,
    /// The pages' size, as a power of two.
    pub page_shift: u32,
}

impl PagedRange {
    /// The number of pages.
    pub fn pages(self) -> u64 {
        (self.skew + self.length).div_ceil(1 << self.page_shift)
    }

    /// The pages of some bytes; none if they reach beyond the end.
    pub fn pages_of(self, offset: u64, length: u64) -> Option<Range<u64>> {
        if offset > self.length || length > self.length - offset {
            return None;
        }
        let start = (self.skew + offset) >> self.page_shift;
        let end = if length == 0 { start } else { ((self.skew + offset + length - 1) >> self.page_shift) + 1 };
        Some(start..end)
    }
}

/// Where the parts of a table lie, and how the host writes and reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    range: PagedRange,
    items_max: u32,
}

/// What a launch left in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Pages that were asked for and not there, ascending.
    pub wanted: Vec<u64>,
    /// Pages that were asked for and there, ascending.
    pub used: Vec<u64>,
    /// Slots whose items are finished, ascending.
    pub finished: Vec<u32>,
    /// Offset and length of a question beyond the end: of one, if there were several.
    pub bad: Option<(u64, u64)>,
}

impl Layout {
    /// The layout for lists of up to `items_max` items.
    pub fn new(range: PagedRange, items_max: u32) -> Self {
        Self { range, items_max }
    }

    fn done_at(self) -> u64 {
        (PAGES_AT + self.range.pages()).next_multiple_of(PART_BYTES)
    }

    fn items_at(self) -> u64 {
        (self.done_at() + u64::from(self.items_max)).next_multiple_of(PART_BYTES)
    }

    /// Size of a table.
    pub fn bytes(self) -> u64 {
        self.items_at() + u64::from(self.items_max) * 4
    }

    /// Bytes from the beginning that a launch with `items` items needs on the device.
    pub fn bytes_to_upload(self, items: u32) -> u64 {
        self.items_at() + u64::from(items) * 4
    }

    /// Bytes from the beginning that a launch with `items` items may have changed.
    pub fn bytes_to_download(self, items: u32) -> u64 {
        self.done_at() + u64::from(items)
    }

    /// Writes a table to host memory: these items, and the pages that are there.
    ///
    /// # Panics
    /// If there are more items than the layout has room for, or a page that the range lacks.
    pub fn write(self, table: &mut [u8], items: &[u32], there: impl IntoIterator<Item = u64>) {
        assert!(items.len() <= self.items_max as usize, "the layout has room for the items");
        let words = [self.range.length, self.range.skew, PAGES_AT, self.done_at(), self.items_at()];
        let shift_and_count = [self.range.page_shift, items.len() as u32];
        let head = words.into_iter().flat_map(u64::to_ne_bytes);
        let head = head.chain(shift_and_count.into_iter().flat_map(u32::to_ne_bytes)).chain([0; 24]);
        table.iter_mut().zip(head).for_each(|(place, byte)| *place = byte);
        let done_at = self.done_at() as usize;
        table[PAGES_AT as usize..done_at + items.len()].fill(0);
        let pages = &mut table[PAGES_AT as usize..][..self.range.pages() as usize];
        there.into_iter().for_each(|page| pages[page as usize] = THERE);
        for (place, item) in table[self.items_at() as usize..].chunks_exact_mut(4).zip(items) {
            place.copy_from_slice(&item.to_ne_bytes());
        }
    }

    /// What a launch with `items` items has left.
    pub fn read(self, table: &[u8], items: u32) -> Answer {
        let word = |at: usize| table[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        let pages = &table[PAGES_AT as usize..][..self.range.pages() as usize];
        let in_state = |wanted: u8| {
            let pages = pages.iter().zip(0..);
            pages.filter(move |(state, _)| **state == wanted).map(|(_, page)| page).collect()
        };
        let done = table[self.done_at() as usize..][..items as usize].iter().zip(0..);
        Answer {
            wanted: in_state(ASKED),
            used: in_state(ASKED | THERE),
            finished: done.filter(|(done, _)| **done != 0).map(|(_, slot)| slot).collect(),
            bad: (table[64..68] != [0; 4]).then(|| (word(48), word(56))),
        }
    }
}

/// A table in memory of the `host` device, for kernels that are Rust functions. Threads may share it.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    head: &'a Head,
    range: PagedRange,
    pages: &'a [AtomicU8],
    done: &'a [AtomicU8],
    items: &'a [u32],
    file: DevicePtr,
}

impl<'a> Table<'a> {
    /// The table at an address that a kernel was launched with, about the mapping at `file`.
    ///
    /// # Safety
    /// The table was written by [`Layout::write`], is memory of the `host` device, and is used by
    /// nothing but kernels meanwhile. Bytes of the file whose pages are there stay readable.
    pub unsafe fn at(table: DevicePtr, file: DevicePtr) -> Self {
        let at = |bytes: u64| table.offset_by(bytes).0 as usize;
        // SAFETY: the caller's promise; allocations begin at boundaries of 8 bytes and more.
        let head = unsafe { &*(at(0) as *const Head) };
        let range = PagedRange { length: head.length, skew: head.skew, page_shift: head.page_shift };
        let (pages, items) = (range.pages() as usize, head.items as usize);
        // SAFETY: the head says where the parts lie, which are as long, and kernels only store to
        // what is atomic.
        unsafe {
            Self {
                head,
                range,
                pages: std::slice::from_raw_parts(at(head.pages_at) as *const AtomicU8, pages),
                done: std::slice::from_raw_parts(at(head.done_at) as *const AtomicU8, items),
                items: std::slice::from_raw_parts(at(head.items_at) as *const u32, items),
                file,
            }
        }
    }

    /// The items of this launch, by slot.
    pub fn items(&self) -> &'a [u32] {
        self.items
    }

    /// Asks for bytes; whether they are there.
    pub fn want(&self, offset: u64, length: u64) -> bool {
        let Some(pages) = self.range.pages_of(offset, length) else {
            if self.head.bad.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.head.bad_offset.store(offset, Ordering::Relaxed);
                self.head.bad_length.store(length, Ordering::Relaxed);
            }
            return false;
        };
        let states = &self.pages[pages.start as usize..pages.end as usize];
        states.iter().fold(true, |there, state| there & (state.fetch_or(ASKED, Ordering::Relaxed) & THERE != 0))
    }

    /// The same, and the bytes if they are there.
    pub fn get(&self, offset: u64, length: u64) -> Option<&'a [u8]> {
        self.want(offset, length).then(|| {
            let at = self.file.offset_by(offset).0 as *const u8;
            // SAFETY: the bytes lie inside the mapping, and their pages are there while the kernel runs.
            unsafe { std::slice::from_raw_parts(at, length as usize) }
        })
    }

    /// The item in a slot needs no further launch.
    pub fn finish(&self, slot: usize) {
        self.done[slot].store(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_of_bytes_are_those_that_hold_one_of_them() {
        let range = PagedRange { length: 10_000, skew: 100, page_shift: 12 };
        assert_eq!(range.pages(), 3);
        assert_eq!(range.pages_of(0, 3996), Some(0..1));
        assert_eq!(range.pages_of(0, 3997), Some(0..2));
        assert_eq!(range.pages_of(3996, 0), Some(1..1));
        assert_eq!(range.pages_of(9_999, 1), Some(2..3));
        assert_eq!(range.pages_of(10_000, 0).map(|pages| pages.is_empty()), Some(true));
        assert_eq!(range.pages_of(9_999, 2), None);
        assert_eq!(range.pages_of(u64::MAX, u64::MAX), None);
    }

    proptest! {
        /// What kernels ask, finish and get wrong is what the host reads, whatever the table held before.
        #[test]
        fn the_host_reads_what_kernels_did(
            (length, skew, shift) in (1_u64..60_000, 0_u64..4096, 12_u32..15),
            questions in proptest::collection::vec((0_u64..70_000, 0_u64..9000), 0..20),
            there in proptest::collection::btree_set(0_u64..4, 0..4),
            poison in any::<u8>(),
            (items, finished) in (0_u32..300, proptest::collection::btree_set(0_u32..300, 0..50)),
        ) {
            let range = PagedRange { length, skew, page_shift: shift };
            let layout = Layout::new(range, 300);
            let there: Vec<u64> = there.into_iter().filter(|page| *page < range.pages()).collect();
            let mut memory = vec![u64::from_ne_bytes([poison; 8]); layout.bytes().div_ceil(8) as usize];
            let (start, bytes) = (memory.as_mut_ptr().cast::<u8>(), layout.bytes() as usize);
            let list: Vec<u32> = (0..items).map(|number| number * 7).collect();
            // SAFETY: the words are as many bytes.
            layout.write(unsafe { std::slice::from_raw_parts_mut(start, bytes) }, &list, there.iter().copied());
            let file = vec![0x11; length as usize];
            // SAFETY: it was just written, and the file has its length.
            let table = unsafe { Table::at(DevicePtr(start as u64), DevicePtr(file.as_ptr() as u64)) };
            prop_assert_eq!(table.items(), &list[..]);
            let (mut asked, mut bad) = (std::collections::BTreeSet::new(), None);
            for (offset, len) in questions {
                let inside = offset + len <= length;
                let pages: Vec<u64> = (0..range.pages())
                    .filter(|page| {
                        let page = page << shift..(page + 1) << shift;
                        inside && len > 0 && page.start < skew + offset + len && skew + offset < page.end
                    })
                    .collect();
                let got = table.get(offset, len);
                prop_assert_eq!(got.is_some(), inside && pages.iter().all(|page| there.contains(page)));
                prop_assert!(got.is_none_or(|got| got.len() as u64 == len));
                asked.extend(pages);
                bad = bad.or((!inside).then_some((offset, len)));
            }
            let finished: Vec<u32> = finished.into_iter().filter(|slot| *slot < items).collect();
            for slot in &finished {
                table.finish(*slot as usize);
            }
            // SAFETY: as above.
            let answer = layout.read(unsafe { std::slice::from_raw_parts(start, bytes) }, items);
            let (used, wanted) = asked.into_iter().partition(|page| there.contains(page));
            prop_assert_eq!(answer, Answer { wanted, used, finished, bad });
        }
    }
}
