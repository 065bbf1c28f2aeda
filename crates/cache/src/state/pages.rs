//! What is known of each page of a file, in pages' own words ([`crate::page`]), and up to which doubt a device's content
//! was compared with the file's.
//!
//! A page is written as a whole or not at all, wherever the process ends: its new row is written beside the table first,
//! with its number last, and whoever finds a number there writes the row again.

use super::layout::{PAGE_ROW, Part, UPDATE_ROW};
use super::region::Region;
use super::table::{Row, Table};
use crate::page::{Device, Page};
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

// SAFETY: numbers, without padding: four of 8 bytes and two of 4.
unsafe impl Row for Page {}

/// The page that is being written.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Update {
    row: Page,
    /// Its number plus one; 0 for none.
    page: u64,
}

// SAFETY: numbers, without padding.
unsafe impl Row for Update {}
const _: () = assert!(size_of::<Page>() == PAGE_ROW && size_of::<Update>() == UPDATE_ROW);

/// Of a page that nobody has a replica of.
static NOBODYS: Page = Page::new();

#[derive(Debug)]
pub(crate) struct Pages {
    /// Those that a replica has addresses for, or had, and no others: a stranger can make a file longer than there is
    /// memory for its pages.
    rows: Table<Page>,
    compared: Vec<Table<u32>>,
    update: Table<Update>,
    /// How many of them there are, as the file and the longest replica go.
    len: u64,
}

impl Pages {
    pub(crate) fn of(region: &Region) -> io::Result<Self> {
        let compared = (0..region.devices()).map(|device| region.table(Part::Compared(device))).collect();
        let mut update = region.table(Part::Update);
        update.reserve(&(0..1))?;
        Ok(Self { rows: region.table(Part::Pages), compared, update, len: 0 })
    }

    /// What another process has left, of pages that have memory: as if it had written the last page, or had not begun.
    ///
    /// # Errors
    /// What cannot be so.
    pub(crate) fn recover(&mut self) -> Result<(), String> {
        let begun = self.update.get(0).copied().filter(|update| update.page != 0);
        if let Some(Update { row, page }) = begun {
            self.rows.set(page - 1, row);
            self.write_update(Update { row, page: 0 });
        }
        let devices = self.compared.len();
        let is_wrong = |page: &u64| self.rows.get(*page).is_some_and(|row| !row.is_sound(devices));
        match self.rows.rows_in(&(0..u64::MAX)).find(is_wrong) {
            Some(page) => Err(format!("page {page} cannot be what it is")),
            None => Ok(()),
        }
    }

    /// Memory for pages, so that nothing else asks for any.
    pub(crate) fn reserve(&mut self, pages: &Range<u64>) -> io::Result<()> {
        self.rows.reserve(pages)?;
        self.compared.iter_mut().try_for_each(|table| table.reserve(pages))
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Has as many pages. Of those that there are no more nothing is known.
    pub(crate) fn resize(&mut self, len: u64) {
        let gone = len..self.len.max(len);
        self.len = len;
        self.rows.clear(&gone);
        self.compared.iter_mut().for_each(|table| table.clear(&gone));
    }

    /// A page; none behind the last one.
    pub(crate) fn get(&self, page: u64) -> Option<&Page> {
        (page < self.len).then(|| self.rows.get(page).unwrap_or(&NOBODYS))
    }

    /// One that there is.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn at(&self, page: u64) -> &Page {
        assert!(page < self.len, "page {page} of {}", self.len);
        self.rows.get(page).unwrap_or(&NOBODYS)
    }

    /// Those of which something may be known.
    pub(crate) fn known(&self, pages: Range<u64>) -> impl Iterator<Item = u64> {
        self.rows.rows_in(&(pages.start..pages.end.min(self.len)))
    }

    /// Changes one. Of what has no memory nobody has a replica, and nothing changes that.
    pub(crate) fn change(&mut self, page: u64, change: impl FnOnce(&mut Page)) {
        let mut row = *self.at(page);
        change(&mut row);
        self.write_update(Update { row, page: 0 });
        self.write_update(Update { row, page: page + 1 });
        self.rows.set(page, row);
        compiler_fence(Ordering::SeqCst);
        self.write_update(Update { row, page: 0 });
    }

    fn write_update(&mut self, update: Update) {
        compiler_fence(Ordering::SeqCst);
        self.update.set(0, update);
        compiler_fence(Ordering::SeqCst);
    }

    /// Up to which doubt a device's content of a page was compared with the file's.
    pub(crate) fn compared(&self, device: Device, page: u64) -> u32 {
        self.compared[device].get(page).copied().unwrap_or(0)
    }

    pub(crate) fn set_compared(&mut self, device: Device, page: u64, doubt: u32) {
        self.compared[device].set(page, doubt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Home;

    fn pages(region: &Region) -> Pages {
        let mut pages = Pages::of(region).unwrap();
        pages.reserve(&(10..20)).unwrap();
        pages.resize(100);
        pages
    }

    #[test]
    fn a_page_without_memory_is_nobodys_and_stays_so() {
        let mut pages = pages(&Region::private(4096, 2).unwrap());
        for page in [0, 12, 99] {
            pages.change(page, |row| row.fetched(1));
            pages.set_compared(1, page, 7);
        }
        let held: Vec<bool> = [0, 12, 99].map(|page| pages.at(page).is_held_by(1)).to_vec();
        assert_eq!((held, pages.compared(1, 12), pages.compared(1, 99)), (vec![false, true, false], 7, 0));
        assert_eq!((pages.get(100), pages.known(0..100).count()), (None, 10));
        // It is cut, and grows again.
        pages.resize(12);
        pages.resize(13);
        assert_eq!((pages.get(12), pages.compared(1, 12)), (Some(&NOBODYS), 0));
    }

    /// Wherever its writer ends: between any two of the words that a page is written by.
    #[test]
    fn a_page_is_found_as_it_was_or_as_it_became() {
        let region = Region::shared(4096, 2, (0, 0, 0)).unwrap();
        let mut before = Page::new();
        (0..2).for_each(|device| before.fetched(device));
        let mut after = before;
        after.released(1);
        let words = |row: &Page| -> Vec<u8> {
            // SAFETY: a row has no padding.
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(row).cast::<u8>(), size_of::<Page>()) }.to_vec()
        };
        for torn in 0..=size_of::<Page>() {
            let mut writer = pages(&region);
            let mixed = [&words(&after)[..torn], &words(&before)[torn..]].concat();
            // SAFETY: any bytes are a row.
            writer.rows.set(15, unsafe { mixed.as_ptr().cast::<Page>().read_unaligned() });
            writer.update.set(0, Update { row: after, page: 16 });
            let mut found = pages(&region);
            found.recover().unwrap();
            assert_eq!((found.at(15), found.at(15).home()), (&after, Home::Device(1)), "{torn}");
            assert_eq!(found.update.get(0).unwrap().page, 0);
        }
    }

    #[test]
    fn no_bytes_are_believed_that_no_page_has() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let region = Region::shared(4096, 2, (0, 0, 0)).unwrap();
        let mut refused = 0;
        for _ in 0..10_000 {
            let mut bytes = [0_u8; size_of::<Page>()];
            for _ in 0..random.u8(0..4) {
                bytes[random.usize(..bytes.len())] = random.u8(0..4);
            }
            let mut writer = pages(&region);
            // SAFETY: any bytes are a row.
            writer.rows.set(15, unsafe { bytes.as_ptr().cast::<Page>().read_unaligned() });
            let mut found = pages(&region);
            if found.recover().is_err() {
                refused += 1;
                continue;
            }
            // What is believed names no device that there is not, whatever happens to it.
            let page = *found.at(15);
            assert!(page.order().all(|device| device < 2 && page.is_held_by(device)), "{page:?}");
            let mut page = page;
            (0..2).for_each(|device| page.dropped(device));
            assert!(page.order().next().is_none(), "{page:?}");
        }
        assert!(refused > 100);
    }
}
