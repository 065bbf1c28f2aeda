//! The pages of one file: who has which version of them, who uses them, and what is known of home. It moves no byte and
//! knows no memory, no descriptor and no lock, so that every decision about pages is a function of what is written
//! here.
//!
//! This is what processes share once one cache serves several of them: all of it is numbers of pages and devices. Who
//! keeps it, and in which memory, nothing here asks.

use super::written::Written;
use crate::page::{Device, Page};
use crate::stats::Counts;
use std::collections::{BTreeSet, TryReserveError};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Versions {
    page_bytes: u64,
    size: u64,
    /// The file's pages that a replica has addresses for, and no others: a stranger can make a file longer than there
    /// is memory for its pages.
    pages: Vec<Page>,
    /// Counts the times at which something unknown may have changed the file.
    doubt: u32,
    devices: Vec<OnDevice>,
    written: Written,
    pub(crate) counts: Counts,
}

/// What is known of one device.
#[derive(Debug, Default)]
struct OnDevice {
    /// By page: up to which doubt its content was compared with home's.
    compared: Vec<u32>,
    /// A range that is up to date and mapped as of a doubt, so that acquiring it again looks at no page.
    settled: Option<Settled>,
    /// Ranges that are acquired to be written.
    in_use: Vec<Range<u64>>,
}

#[derive(Debug)]
struct Settled {
    range: Range<u64>,
    doubt: u32,
    writable: bool,
}

/// Where its pages are.
impl Versions {
    /// Of an empty file that nobody has mapped.
    pub(crate) fn new(page_bytes: u64, devices: usize) -> Self {
        Self {
            page_bytes,
            size: 0,
            pages: vec![],
            doubt: 1,
            devices: (0..devices).map(|_| OnDevice::default()).collect(),
            written: Written::default(),
            counts: Counts::default(),
        }
    }

    /// Bytes of the file at the latest look.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// How many pages there are.
    pub(crate) fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(crate) fn page(&self, page: u64) -> Option<&Page> {
        self.pages.get(page as usize)
    }

    /// The pages of a range that there are, as far as a device may have them.
    pub(crate) fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        let first = range.start / self.page_bytes;
        let end = range.end.min(self.size).div_ceil(self.page_bytes).min(self.len());
        first..end.max(first)
    }

    /// The bytes of some pages, up to the end of the file.
    pub(crate) fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start * self.page_bytes..(pages.end * self.page_bytes).min(self.size)
    }

    /// Memory for as many pages as a replica has addresses for, so that following the file's growth asks for none.
    pub(crate) fn reserve(&mut self, len: u64) -> Result<(), TryReserveError> {
        let pages = len.div_ceil(self.page_bytes) as usize;
        self.pages.try_reserve_exact(pages.saturating_sub(self.pages.len()))?;
        self.devices
            .iter_mut()
            .try_for_each(|device| device.compared.try_reserve_exact(pages.saturating_sub(device.compared.len())))
    }

    /// Has as many pages as the file and the longest replica, of so many bytes, both have.
    pub(crate) fn fit(&mut self, reserved: u64) {
        let pages = self.size.min(reserved).div_ceil(self.page_bytes) as usize;
        self.pages.resize_with(pages, Page::new);
        self.devices.iter_mut().for_each(|device| device.compared.resize(pages, 0));
    }

    /// Follows the file's growth and truncation. A page whose end has moved has changed.
    pub(crate) fn resize(&mut self, size: u64, reserved: u64) {
        let boundary = (self.size.min(size) / self.page_bytes) as usize;
        self.size = size;
        self.fit(reserved);
        if let Some(page) = self.pages.get_mut(boundary) {
            page.changed_at_home();
        }
        self.forget_written(self.len()..u64::MAX);
        self.unsettle(None);
    }

    /// Pages by state on a device: held, behind, pending.
    pub(crate) fn pages_by_state(&self, device: Device) -> (u64, u64, u64) {
        let count = |is: &dyn Fn(&Page) -> bool| self.pages.iter().filter(|page| is(page)).count() as u64;
        (
            count(&|page| page.is_held_by(device)),
            count(&|page| page.is_held_by(device) && page.is_behind(device)),
            count(&|page| page.is_pending(device)),
        )
    }
}

/// Who has what.
impl Versions {
    pub(crate) fn is_held_by(&self, device: Device, page: u64) -> bool {
        self.pages[page as usize].is_held_by(device)
    }

    /// Those of some pages that a device must fetch before they are up to date.
    pub(crate) fn behind(&self, device: Device, pages: impl IntoIterator<Item = u64>) -> Vec<u64> {
        pages.into_iter().filter(|page| self.pages[*page as usize].is_behind(device)).collect()
    }

    /// Those of some pages with changes that home lacks, whoever has released them.
    pub(crate) fn pending(&self, pages: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
        pages.into_iter().filter(|page| self.pages[*page as usize].pending().next().is_some()).collect()
    }

    /// Those of some pages with changes that this device has released and home lacks.
    pub(crate) fn pending_on(&self, device: Device, pages: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
        pages.into_iter().filter(|page| self.is_pending(device, *page)).collect()
    }

    /// Whether home lacks changes of a page that a device has released; false of what is no page.
    pub(crate) fn is_pending(&self, device: Device, page: u64) -> bool {
        self.page(page).is_some_and(|page| page.is_pending(device))
    }

    /// Whether a device has a page as it is at home, with what it has itself released, as far as is known at the
    /// latest look.
    pub(crate) fn is_up_to_date(&self, device: Device, page: u64) -> bool {
        let is_current = |state: &Page| state.is_held_by(device) && !state.is_behind(device);
        self.page(page).is_some_and(is_current) && !self.is_in_doubt(device, page)
    }

    /// A device whose replica of a page is up to date.
    pub(crate) fn holder(&self, page: u64) -> Option<Device> {
        (0..self.devices.len()).find(|device| self.is_up_to_date(*device, page))
    }

    /// Whether nobody is known to have changed home of some pages since a device's replica was brought up to date.
    pub(crate) fn is_home_as_seen(&self, device: Device, pages: &Range<u64>) -> bool {
        let is_seen = |page: u64| self.pages[page as usize].is_home_as_seen(device) && !self.is_in_doubt(device, page);
        pages.clone().all(is_seen)
    }

    fn is_in_doubt(&self, device: Device, page: u64) -> bool {
        self.devices[device].compared[page as usize] != self.doubt
    }

    /// Those of some pages that a device would use as they are, and that may have changed at home unseen.
    pub(crate) fn doubtful(&self, device: Device, pages: &Range<u64>) -> Vec<u64> {
        let is_doubtful = |page: &u64| {
            let state = &self.pages[*page as usize];
            state.is_held_by(device) && !state.is_behind(device) && self.is_in_doubt(device, *page)
        };
        pages.clone().filter(is_doubtful).collect()
    }
}

/// What has happened.
impl Versions {
    /// Something unknown may have changed the file, anywhere.
    pub(crate) fn doubt(&mut self) {
        self.doubt += 1;
    }

    /// A device's pages were compared with home; those that have changed.
    pub(crate) fn note_compared(&mut self, device: Device, pages: &Range<u64>, changed: &BTreeSet<u64>) {
        if !changed.is_empty() {
            self.unsettle(None);
        }
        for page in pages.clone() {
            if changed.contains(&page) {
                self.pages[page as usize].changed_at_home();
            }
            self.devices[device].compared[page as usize] = self.doubt;
        }
        self.counts.compared += pages.end - pages.start;
    }

    /// A CPU has written some pages at home.
    pub(crate) fn note_changed_at_home(&mut self, pages: Range<u64>) {
        self.unsettle(None);
        pages.for_each(|page| self.pages[page as usize].changed_at_home());
    }

    /// A flush of a device's has found somebody else's bytes in a page at home.
    pub(crate) fn note_found_at_home(&mut self, device: Device, page: u64) {
        if !self.pages[page as usize].is_behind(device) {
            self.note_changed_at_home(page..page + 1);
        }
    }

    pub(crate) fn note_fetched(&mut self, device: Device, pages: &[u64]) {
        for page in pages {
            self.pages[*page as usize].fetched(device);
            self.devices[device].compared[*page as usize] = self.doubt;
        }
        if let (Some(first), Some(last)) = (pages.first(), pages.last()) {
            self.forget_written(*first..*last + 1);
        }
        self.counts.fetched += pages.len() as u64;
    }

    pub(crate) fn note_released(&mut self, device: Device, pages: impl IntoIterator<Item = u64>) {
        let devices = self.devices.len();
        self.unsettle(Some(device));
        for page in pages {
            self.pages[page as usize].released(device, devices);
            self.counts.released += 1;
        }
    }

    pub(crate) fn note_flushed(&mut self, device: Device, pages: &Range<u64>) {
        for page in pages.clone() {
            self.pages[page as usize].flushed(device);
            self.counts.flushed += 1;
        }
        self.forget_written(pages.clone());
    }

    /// A device's replicas of some pages are gone, as their memory was needed.
    pub(crate) fn note_evicted(&mut self, device: Device, pages: &[u64]) {
        for page in pages {
            self.note_dropped(device, *page);
            self.forget_written(*page..*page + 1);
            self.counts.evicted += 1;
        }
    }

    /// A device's replica of a page is not to be believed any more.
    pub(crate) fn note_dropped(&mut self, device: Device, page: u64) {
        self.pages[page as usize].dropped(device);
    }
}

/// Who is at work.
impl Versions {
    /// A range is acquired to be written.
    pub(crate) fn begin_use(&mut self, device: Device, range: &Range<u64>) {
        self.devices[device].in_use.push(range.clone());
    }

    /// It was released, or its mapping has ended.
    pub(crate) fn end_use(&mut self, device: Device, range: &Range<u64>) {
        let in_use = &mut self.devices[device].in_use;
        if let Some(at) = in_use.iter().position(|used| used == range) {
            in_use.swap_remove(at);
        }
        self.forget_written(self.pages_of(range));
    }

    /// Ranges that are acquired to be written.
    pub(crate) fn in_use(&self, device: Device) -> &[Range<u64>] {
        &self.devices[device].in_use
    }

    /// How many parts of a page are acquired to be written.
    pub(crate) fn uses(&self, device: Device, page: u64) -> usize {
        let bytes = page * self.page_bytes..(page + 1) * self.page_bytes;
        let is_there = |used: &&Range<u64>| used.start < bytes.end && bytes.start < used.end;
        self.in_use(device).iter().filter(is_there).count()
    }

    /// Whether a range is known to be up to date and mapped.
    pub(crate) fn is_settled(&self, device: Device, range: &Range<u64>, writable: bool) -> bool {
        self.devices[device].settled.as_ref().is_some_and(|settled| {
            settled.doubt == self.doubt
                && (settled.writable || !writable)
                && settled.range.start <= range.start
                && range.end <= settled.range.end
        })
    }

    pub(crate) fn settle(&mut self, device: Device, range: &Range<u64>, writable: bool) {
        self.devices[device].settled = Some(Settled { range: range.clone(), doubt: self.doubt, writable });
    }

    /// Somebody has changed pages: whoever was settled, except for who did it, has to look again.
    pub(crate) fn unsettle(&mut self, except: Option<Device>) {
        for (device, known) in self.devices.iter_mut().enumerate() {
            if Some(device) != except {
                known.settled = None;
            }
        }
    }

    /// Memory of a device is gone.
    pub(crate) fn unsettle_device(&mut self, device: Device) {
        self.devices[device].settled = None;
    }

    /// Twins are gone: who was settled for writing has to look again.
    pub(crate) fn unsettle_writers(&mut self, device: Device) {
        self.devices[device].settled.take_if(|settled| settled.writable);
    }
}

/// Races: what lower devices have written home that a higher one may overwrite.
impl Versions {
    /// Remembers what a device has written home of some pages, where a higher one may overwrite it.
    pub(crate) fn note_written(&mut self, device: Device, pages: &Range<u64>, content: &[u8], masks: &[u8]) {
        let page_bytes = self.page_bytes as usize;
        for ((page, content), mask) in pages.clone().zip(content.chunks(page_bytes)).zip(masks.chunks(page_bytes / 8)) {
            let may = (device + 1..self.devices.len()).any(|other| self.may_overwrite(other, page));
            if may && mask.iter().any(|bits| *bits != 0) {
                self.written.note(page, device, content, mask);
            }
        }
    }

    /// Whether a byte of a page has at home what a lower device has written there, unseen by this one.
    pub(crate) fn is_from_below(&self, device: Device, page: u64, at: usize, value: u8) -> bool {
        let state = &self.pages[page as usize];
        (0..device).any(|other| state.lacks(device, other) && self.written.is(page, other, at, value))
    }

    /// Whether a device may have a change of a page on its way that was begun with what it has now.
    fn may_overwrite(&self, device: Device, page: u64) -> bool {
        let state = &self.pages[page as usize];
        state.is_held_by(device) && (state.is_pending(device) || self.uses(device, page) > 0)
    }

    /// Forgets what devices have written of some pages, where no higher one waits to overwrite it.
    fn forget_written(&mut self, pages: Range<u64>) {
        if self.written.is_empty() {
            return;
        }
        let mut written = std::mem::take(&mut self.written);
        written.retain(pages, |page, lower| {
            let state = self.page(page);
            let waits =
                |other: Device| state.is_some_and(|state| state.lacks(other, lower)) && self.may_overwrite(other, page);
            (lower + 1..self.devices.len()).any(waits)
        });
        self.written = written;
    }

    /// Nobody has the file open any more.
    pub(crate) fn end(&mut self) {
        self.unsettle(None);
        self.written = Written::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn versions(pages: u64) -> Versions {
        let mut versions = Versions::new(PAGE, 2);
        versions.resize(pages * PAGE, u64::MAX);
        versions
    }

    #[test]
    fn a_cut_changes_the_page_that_it_goes_through() {
        let mut versions = versions(4);
        versions.note_fetched(0, &[0, 1, 2, 3]);
        versions.settle(0, &(0..4 * PAGE), false);
        assert!(versions.is_settled(0, &(PAGE..2 * PAGE), false) && !versions.is_settled(0, &(0..PAGE), true));
        versions.resize(2 * PAGE + 10, u64::MAX);
        assert_eq!((versions.len(), versions.bytes_of(&(2..3))), (3, 2 * PAGE..2 * PAGE + 10));
        assert_eq!(versions.behind(0, 0..3), [2]);
        assert!(!versions.is_settled(0, &(0..PAGE), false));
    }

    #[test]
    fn after_a_doubt_a_device_has_what_was_compared_and_did_not_differ() {
        let mut versions = versions(4);
        versions.note_fetched(0, &[0, 1]);
        versions.doubt();
        assert_eq!((versions.doubtful(0, &(0..4)), versions.holder(0)), (vec![0, 1], None));
        versions.note_compared(0, &(0..2), &BTreeSet::from([1]));
        assert_eq!((versions.holder(0), versions.holder(1)), (Some(0), None));
        assert_eq!((versions.behind(0, 0..4), versions.doubtful(0, &(0..4))), (vec![1, 2, 3], vec![]));
    }

    #[test]
    fn what_a_lower_device_has_written_is_remembered_while_a_higher_one_may_overwrite_it() {
        let mut versions = versions(1);
        (0..2).for_each(|device| versions.note_fetched(device, &[0]));
        versions.begin_use(1, &(0..10));
        versions.note_released(0, [0]);
        versions.note_written(0, &(0..1), &[7; 8], &[0b10]);
        versions.note_flushed(0, &(0..1));
        assert!(versions.is_from_below(1, 0, 1, 7) && !versions.is_from_below(1, 0, 0, 7));
        versions.end_use(1, &(0..10));
        assert!(!versions.is_from_below(1, 0, 1, 7));
    }
}
