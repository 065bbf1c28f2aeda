//! The pages of one file: who has which version of them, who uses them, and what is known of home. It moves no byte and
//! knows no memory, no descriptor and no lock, so that every decision about pages is a function of what is written
//! here.
//!
//! All of it that must be known to go on lies in a region ([`crate::state`]), which may outlive the process. What is here
//! besides is found out again, or saves a look.

use crate::copies::plan::Folded;
use crate::page::{Device, Home, Page};
use crate::page_set::PageSet;
use crate::state::layout::Word;
use crate::state::lease::{Client, Grant, LeaseNumber, Leases};
use crate::state::pages::Pages;
use crate::state::plan::Found;
use crate::state::record::Records;
use crate::state::region::Region;
use crate::stats::Counts;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Versions {
    pub(super) region: Region,
    page_bytes: u64,
    /// As the region has it.
    size: u64,
    /// Counts the times at which something unknown may have changed the file; as the region has it.
    doubt: u32,
    pages: Pages,
    leases: Leases,
    pub(super) records: Records,
    devices: Vec<OnDevice>,
    /// The doubt as of which the operation at work knows what it reads. Others may look while it waits for a disk.
    as_of: u32,
    /// What the operation at work has done to pages.
    pub(crate) counts: Counts,
    /// What those that have ended have.
    ended: Counts,
    /// Counts what may have changed what a CPU reads through the cache.
    edition: u64,
}

/// What belongs to one operation, while others are at work.
#[derive(Debug, Default)]
pub(crate) struct Operation {
    as_of: u32,
    counts: Counts,
}

/// What is known of one device.
#[derive(Debug, Default)]
struct OnDevice {
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
    pub(crate) fn new(region: Region) -> io::Result<Self> {
        Ok(Self {
            page_bytes: region.get(Word::PageBytes),
            size: 0,
            doubt: region.get(Word::Doubt) as u32,
            pages: Pages::of(&region)?,
            leases: Leases::of(&region),
            records: Records::of(&region),
            devices: (0..region.devices()).map(|_| OnDevice::default()).collect(),
            as_of: region.get(Word::Doubt) as u32,
            counts: Counts::default(),
            ended: Counts::default(),
            edition: 0,
            region,
        })
    }

    /// What lies in it.
    pub(crate) fn region(&self) -> &Region {
        &self.region
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
        self.pages.len()
    }

    pub(crate) fn page(&self, page: u64) -> Option<&Page> {
        self.pages.get(page)
    }

    /// The pages of a range that there are, as far as a device may have them.
    pub(crate) fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        let first = range.start / self.page_bytes;
        let end = range.end.min(self.size).div_ceil(self.page_bytes).min(self.len());
        first..end.max(first)
    }

    /// The bytes of the pages of a range, whether there are any or not.
    pub(crate) fn whole_pages(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.checked_next_multiple_of(self.page_bytes).unwrap_or(u64::MAX);
        range.start / self.page_bytes * self.page_bytes..end
    }

    /// The bytes of some pages, up to the end of the file.
    pub(crate) fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start * self.page_bytes..(pages.end * self.page_bytes).min(self.size)
    }

    /// Memory for the pages of some bytes that a replica has addresses for, so that nothing else asks for any.
    pub(crate) fn reserve(&mut self, bytes: &Range<u64>) -> io::Result<()> {
        let pages = bytes.start / self.page_bytes..bytes.end.div_ceil(self.page_bytes);
        self.pages.reserve(&pages)?;
        self.records.reserve(&pages)
    }

    /// Has as many pages as the file and the longest replica, of so many bytes, both have.
    pub(crate) fn fit(&mut self, reserved: u64) {
        self.pages.resize(self.size.min(reserved).div_ceil(self.page_bytes));
    }

    /// Follows the file's growth and truncation. A page whose end has moved has changed.
    pub(crate) fn resize(&mut self, size: u64, reserved: u64) {
        self.edition += 1;
        let boundary = self.size.min(size) / self.page_bytes;
        // A page first: who finds the region in between finds the old size, and follows it again.
        if boundary < self.len() {
            self.pages.change(boundary, Page::changed);
        }
        self.size = size;
        self.fit(reserved);
        self.region.set(Word::Size, size);
        self.unsettle(None);
    }

    /// The pages of which something may be known.
    pub(crate) fn known(&self) -> impl Iterator<Item = u64> {
        self.pages.known(0..self.len())
    }

    /// Pages by state on each of some devices: held, behind, pending. Asked for with every operation, so neighbours that are
    /// alike are counted at once.
    pub(crate) fn pages_by_state(&self, devices: usize) -> Vec<(u64, u64, u64)> {
        let mut counts = vec![(0, 0, 0); devices];
        let mut add = |states: [u64; 3], pages: u64| {
            for (device, (held, behind, pending)) in counts.iter_mut().enumerate() {
                let [is_held, is_behind, is_pending] = states.map(|state| state >> device & 1);
                *held += is_held * pages;
                *behind += is_behind * pages;
                *pending += is_pending * pages;
            }
        };
        let (mut alike, mut pages) = ([0; 3], 0);
        for page in self.known() {
            let states = self.pages.at(page).states();
            if states != alike {
                add(alike, pages);
                (alike, pages) = (states, 0);
            }
            pages += 1;
        }
        add(alike, pages);
        counts
    }

    /// Whether a device has a replica of any page.
    pub(crate) fn is_any_held_by(&self, device: Device) -> bool {
        self.known().any(|page| self.is_held_by(device, page))
    }
}

/// Who has what.
impl Versions {
    pub(crate) fn is_held_by(&self, device: Device, page: u64) -> bool {
        self.pages.at(page).is_held_by(device)
    }

    /// Those of some pages that a device must fetch before they are up to date.
    pub(crate) fn behind(&self, device: Device, pages: impl IntoIterator<Item = u64>) -> Vec<u64> {
        pages.into_iter().filter(|page| self.pages.at(*page).is_behind(device)).collect()
    }

    /// Whether the file has everything that was released of a page.
    pub(crate) fn is_settled(&self, page: u64) -> bool {
        self.pages.at(page).is_settled()
    }

    /// Where the first page of a range begins that the file lacks something of.
    pub(crate) fn first_unsettled(&self, range: &Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        self.pages_of(range).find(|page| !self.is_settled(*page)).map(|page| page * self.page_bytes)
    }

    /// Those of some pages with changes that the file lacks, whoever has released them.
    pub(crate) fn pending(&self, pages: impl IntoIterator<Item = u64>) -> PageSet {
        pages.into_iter().filter(|page| !self.pages.at(*page).is_settled()).collect()
    }

    /// Those of some pages that a device must keep, as it has what the file lacks: as home for all, or for itself.
    pub(crate) fn pending_on(&self, device: Device, pages: impl IntoIterator<Item = u64>) -> PageSet {
        pages.into_iter().filter(|page| self.is_pending(device, *page)).collect()
    }

    /// Whether a device has what the file lacks of a page; false of what is no page.
    pub(crate) fn is_pending(&self, device: Device, page: u64) -> bool {
        self.page(page).is_some_and(|page| page.is_pending(device))
    }

    /// Where the authoritative content of a page is.
    pub(crate) fn home(&self, page: u64) -> Home {
        self.pages.at(page).home()
    }

    /// The devices that have released what home lacks of a page.
    pub(crate) fn donors(&self, page: u64) -> Vec<Device> {
        self.pages.at(page).donors().collect()
    }

    /// Whether a device's base of a page is what the file has.
    pub(crate) fn knows_file(&self, device: Device, page: u64) -> bool {
        self.pages.at(page).knows_file(device)
    }

    /// Pages in runs that are folded alike on a device: home and donors are the same.
    pub(crate) fn runs_alike(&self, device: Device, pages: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let mut alike: Vec<Range<u64>> = vec![];
        for page in pages {
            let like = |run: &Range<u64>| self.pages.at(run.start).is_folded_as(self.pages.at(page), device);
            match alike.last_mut() {
                Some(run) if run.end == page && like(run) => run.end += 1,
                _ => alike.push(page..page + 1),
            }
        }
        alike
    }

    /// Whether a device has everything of a page, as far as is known at the latest look.
    pub(crate) fn is_up_to_date(&self, device: Device, page: u64) -> bool {
        self.page(page).is_some_and(|state| !state.is_behind(device)) && self.is_certain(device, page)
    }

    /// A device whose replica of a page is up to date.
    pub(crate) fn holder(&self, page: u64) -> Option<Device> {
        (0..self.devices.len()).find(|device| self.is_up_to_date(*device, page))
    }

    /// Whether the file is known to have what a device began with, of all of some pages: home's base is what the file
    /// had, and so is the content of whoever is up to date with the file.
    pub(crate) fn is_file_as_seen(&self, device: Device, pages: &Range<u64>) -> bool {
        let is_seen = |page: u64| match self.home(page) {
            Home::Device(home) => home == device,
            Home::File => !self.pages.at(page).is_behind(device),
        };
        pages.clone().all(|page| is_seen(page) && self.is_certain(device, page))
    }

    /// Whether it is certain that nobody has changed the file since the one who can tell was asked: home, where that is
    /// a device, as only its base is what the file had.
    fn is_certain(&self, device: Device, page: u64) -> bool {
        match self.home(page) {
            Home::Device(home) => !self.is_in_doubt(home, page),
            Home::File => !self.is_in_doubt(device, page),
        }
    }

    /// Whether the home of each page of a range, where it is a device, was compared with the file since a doubt.
    pub(crate) fn is_home_known(&self, range: &Range<u64>, since: u32) -> bool {
        self.pages_of(range).all(|page| match self.home(page) {
            Home::Device(home) => self.pages.compared(home, page) >= since,
            Home::File => true,
        })
    }

    fn is_in_doubt(&self, device: Device, page: u64) -> bool {
        self.pages.compared(device, page) != self.doubt
    }

    /// Those of some pages that may have changed in the file unseen, by the device that is asked: home; else the one
    /// that would use them as they are.
    pub(crate) fn doubtful(&self, device: Device, pages: &Range<u64>) -> BTreeMap<Device, Vec<u64>> {
        let mut doubtful: BTreeMap<Device, Vec<u64>> = BTreeMap::new();
        for page in pages.clone() {
            let asked = match self.home(page) {
                Home::Device(home) => home,
                Home::File if !self.pages.at(page).is_behind(device) => device,
                Home::File => continue,
            };
            if self.is_in_doubt(asked, page) {
                doubtful.entry(asked).or_default().push(page);
            }
        }
        doubtful
    }
}

/// What has happened.
impl Versions {
    /// Counts what may have changed what a CPU reads through the cache.
    pub(crate) fn edition(&self) -> u64 {
        self.edition
    }

    /// Something unknown may have changed the file, anywhere.
    pub(crate) fn doubt(&mut self) {
        self.edition += 1;
        self.doubt += 1;
        self.as_of = self.doubt;
        self.region.set(Word::Doubt, u64::from(self.doubt));
    }

    /// What the operation at work reads from now on is as new as the latest look: the doubt as of which it is.
    pub(crate) fn know_as_of_now(&mut self) -> u32 {
        self.as_of = self.doubt;
        self.as_of
    }

    /// A device's pages were compared with the file, which nobody had changed, or what had changed was noted.
    pub(crate) fn note_compared(&mut self, device: Device, pages: &Range<u64>) {
        pages.clone().for_each(|page| self.pages.set_compared(device, page, self.as_of));
        self.counts.compared += pages.end - pages.start;
    }

    /// Somebody else than a device has changed some pages of the file.
    pub(crate) fn note_changed(&mut self, pages: impl IntoIterator<Item = u64>) {
        self.edition += 1;
        for page in pages {
            self.pages.change(page, Page::changed);
            self.unsettle(None);
        }
    }

    pub(crate) fn note_fetched(&mut self, device: Device, pages: &[u64]) {
        for page in pages {
            self.pages.change(*page, |row| row.fetched(device));
            self.pages.set_compared(device, *page, self.as_of);
        }
        self.counts.fetched += pages.len() as u64;
    }

    /// A device has taken home's content of a page and all donors' changes; see [`Page::folded`].
    pub(crate) fn note_folded(&mut self, device: Device, page: u64, folded: Folded) {
        self.edition += 1;
        if folded.lost {
            self.unsettle(None);
        }
        // What it now knows of the file is what home knew.
        let home = self.home(page);
        let known = match home {
            Home::Device(home) => self.pages.compared(home, page),
            Home::File => self.as_of,
        };
        self.pages.set_compared(device, page, known);
        // Where the file is home the page came from there, whatever donors have laid on it.
        self.counts.from_peers += u64::from(home != Home::File);
        self.pages.change(page, |row| row.folded(device, folded.is_ahead, folded.lost));
        self.counts.fetched += 1;
        self.counts.merged += u64::from(folded.own);
        self.counts.races += u64::from(folded.lost);
    }

    /// A device has what the file has by now of a page that has changed there.
    pub(crate) fn note_taken(&mut self, device: Device, page: u64, folded: Folded) {
        self.note_changed([page]);
        self.note_fetched(device, &[page]);
        self.counts.merged += u64::from(folded.own);
    }

    /// The file has changed under a device that is home of a page, which has laid what it has for the file on that; see
    /// [`Page::rebased`].
    pub(crate) fn note_rebased(&mut self, device: Device, page: u64, folded: Folded) {
        self.edition += 1;
        self.unsettle(None);
        self.pages.change(page, |row| row.rebased(device, folded.is_ahead));
        self.counts.fetched += 1;
        self.counts.merged += u64::from(folded.own);
        self.counts.races += u64::from(folded.lost);
    }

    pub(crate) fn note_released(&mut self, device: Device, pages: impl IntoIterator<Item = u64>) {
        self.edition += 1;
        self.unsettle(Some(device));
        for page in pages {
            self.pages.change(page, |row| row.released(device));
            self.counts.released += 1;
        }
    }

    /// The same of pages that the file has at once: in between they would lack a base.
    pub(crate) fn note_written(&mut self, device: Device, pages: &Range<u64>, lost: &PageSet) {
        self.edition += 1;
        self.unsettle(if lost.is_empty() { Some(device) } else { None });
        for page in pages.clone() {
            self.pages.change(page, |row| {
                row.released(device);
                row.flushed(device, lost.contains(page));
            });
            self.counts.released += 1;
            self.counts.flushed += 1;
        }
    }

    /// The file has what a device had for it; of the pages in `lost` less, as somebody else was first.
    pub(crate) fn note_flushed(&mut self, device: Device, pages: &Range<u64>, lost: &PageSet) {
        self.edition += 1;
        if !lost.is_empty() {
            self.unsettle(None);
        }
        for page in pages.clone() {
            self.pages.change(page, |row| row.flushed(device, lost.contains(page)));
            self.counts.flushed += 1;
        }
    }

    /// A flush of some pages has failed after it had written something of them.
    pub(crate) fn note_half_flushed(&mut self, pages: &Range<u64>) {
        self.edition += 1;
        self.unsettle(None);
        pages.clone().for_each(|page| self.pages.change(page, Page::half_flushed));
    }

    /// A device's replicas of some pages are gone, as their memory was needed.
    pub(crate) fn note_evicted(&mut self, device: Device, pages: &[u64]) {
        for page in pages {
            self.note_dropped(device, *page);
            self.counts.evicted += 1;
        }
    }

    /// A device is gone with its memory: the pages of which something that was released is gone with it, and those of which
    /// others have what the file lacks, and which have to be flushed now.
    pub(crate) fn note_lost(&mut self, device: Device) -> (Vec<u64>, PageSet) {
        let (mut gone, mut left) = (vec![], PageSet::new());
        self.edition += 1;
        for number in self.pages.known(0..self.len()).collect::<Vec<_>>() {
            let before = *self.pages.at(number);
            gone.extend(before.is_lost_with(device).then_some(number));
            self.pages.change(number, |row| row.dropped(device));
            let after = *self.pages.at(number);
            left.extend((before.is_pending(device) && !after.is_settled()).then_some(number));
            if let (true, Home::Device(heir)) = (before.home() == Home::Device(device), after.home()) {
                // What it knows of the file may be less than what the file has.
                self.pages.set_compared(heir, number, 0);
            }
        }
        self.devices[device].in_use.clear();
        self.unsettle(None);
        self.counts.lost += gone.len() as u64;
        (gone, left)
    }

    /// A device's replica of a page is not to be believed any more.
    pub(crate) fn note_dropped(&mut self, device: Device, page: u64) {
        self.edition += 1;
        self.pages.change(page, |row| row.dropped(device));
    }
}

/// What another process has left.
impl Versions {
    /// What another process has left, which had windows for some bytes of the file and noted no more than that.
    ///
    /// # Errors
    /// What cannot be so.
    pub(crate) fn recover(&mut self, windows: &[Range<u64>]) -> Result<Found, String> {
        let failed = |error: io::Error| format!("no memory for the account of pages: {error}");
        windows.iter().try_for_each(|bytes| self.reserve(bytes)).map_err(failed)?;
        self.size = self.region.get(Word::Size);
        if i64::try_from(self.size).is_err() || self.region.get(Word::Doubt) >= u64::from(u32::MAX) {
            return Err("no file is as long, or was looked at as often".to_owned());
        }
        self.fit(windows.iter().map(|bytes| bytes.end).max().unwrap_or(0));
        self.pages.recover()?;
        let devices = self.region.devices();
        self.leases.recover(devices)?;
        let transitions = self.records.recover(devices)?;
        let leases: Vec<Grant> = self.leases.grants().collect();
        // What has happened to the file meanwhile nobody has seen.
        self.doubt();
        Ok(Found { transitions, leases })
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
    }

    /// Notes for whoever finds the region that somebody uses something, once he does; the end of it, once he does not.
    pub(crate) fn begin_lease(&mut self, lease: &Grant) -> io::Result<()> {
        self.leases.begin(lease)
    }

    pub(crate) fn lease(&self, client: Client, number: LeaseNumber) -> Option<Grant> {
        self.leases.find(client, number)
    }

    /// What it was, if there was one.
    pub(crate) fn end_lease(&mut self, client: Client, number: LeaseNumber) -> Option<Grant> {
        self.leases.end(client, number)
    }

    /// What anybody uses.
    pub(crate) fn leases(&self) -> impl Iterator<Item = Grant> {
        self.leases.grants()
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
    pub(crate) fn is_range_settled(&self, device: Device, range: &Range<u64>, writable: bool) -> bool {
        self.devices[device].settled.as_ref().is_some_and(|settled| {
            settled.doubt == self.doubt
                && (settled.writable || !writable)
                && settled.range.start <= range.start
                && range.end <= settled.range.end
        })
    }

    pub(crate) fn settle(&mut self, device: Device, range: &Range<u64>, writable: bool) {
        self.devices[device].settled = Some(Settled { range: range.clone(), doubt: self.as_of, writable });
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

/// Operations, one at a time.
impl Versions {
    pub(crate) fn exchange(&mut self, operation: &mut Operation) {
        std::mem::swap(&mut self.as_of, &mut operation.as_of);
        std::mem::swap(&mut self.counts, &mut operation.counts);
    }

    pub(crate) fn end_operation(&mut self, operation: &Operation) {
        self.ended = self.ended.plus(&operation.counts);
    }

    /// What all operations have done to pages, without those that are under way.
    pub(crate) fn counts_of_all(&self) -> Counts {
        self.ended.plus(&self.counts)
    }

    /// The same, which is accounted for elsewhere from now on.
    pub(crate) fn take_counts(&mut self) -> Counts {
        let counts = self.counts_of_all();
        (self.ended, self.counts) = Default::default();
        counts
    }
}

/// The end.
impl Versions {
    /// Nobody has the file open any more.
    pub(crate) fn end(&mut self) {
        self.unsettle(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn versions(pages: u64) -> Versions {
        let mut versions = Versions::new(Region::private(PAGE, 2).unwrap()).unwrap();
        versions.reserve(&(0..pages * PAGE)).unwrap();
        versions.resize(pages * PAGE, u64::MAX);
        versions
    }

    #[test]
    fn a_cut_changes_the_page_that_it_goes_through() {
        let mut versions = versions(4);
        versions.note_fetched(0, &[0, 1, 2, 3]);
        versions.settle(0, &(0..4 * PAGE), false);
        assert!(
            versions.is_range_settled(0, &(PAGE..2 * PAGE), false) && !versions.is_range_settled(0, &(0..PAGE), true)
        );
        versions.resize(2 * PAGE + 10, u64::MAX);
        assert_eq!((versions.len(), versions.bytes_of(&(2..3))), (3, 2 * PAGE..2 * PAGE + 10));
        assert_eq!(versions.behind(0, 0..3), [2]);
        assert!(!versions.is_range_settled(0, &(0..PAGE), false));
    }

    /// Page by page, as one asks of each device.
    fn counted(versions: &Versions, device: Device) -> (u64, u64, u64) {
        let count = |is: &dyn Fn(&Page) -> bool| {
            (0..versions.len()).filter(|page| versions.page(*page).is_some_and(is)).count() as u64
        };
        (
            count(&|page| page.is_held_by(device)),
            count(&|page| page.is_held_by(device) && page.is_behind(device)),
            count(&|page| page.is_pending(device)),
        )
    }

    #[test]
    fn pages_that_are_counted_at_once_are_those_that_are_so() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..50 {
            let mut versions = versions(40);
            for _ in 0..random.usize(..200) {
                let (page, device) = (random.u64(..40), random.usize(..2));
                match random.u8(..4) {
                    0 if versions.is_settled(page) => versions.note_fetched(device, &[page]),
                    1 => versions.note_changed([page]),
                    2 if versions.is_held_by(device, page) => versions.note_released(device, [page]),
                    3 if versions.is_pending(device, page) => {
                        versions.note_flushed(device, &(page..page + 1), &PageSet::new());
                    }
                    _ => {}
                }
                let expected = [counted(&versions, 0), counted(&versions, 1)];
                assert_eq!(versions.pages_by_state(2), expected);
            }
        }
    }

    #[test]
    fn after_a_doubt_a_device_has_what_was_compared_and_did_not_differ() {
        let mut versions = versions(4);
        versions.note_fetched(0, &[0, 1]);
        versions.doubt();
        assert_eq!((versions.doubtful(0, &(0..4)), versions.holder(0)), (BTreeMap::from([(0, vec![0, 1])]), None));
        versions.note_changed([1]);
        versions.note_compared(0, &(0..2));
        assert_eq!((versions.holder(0), versions.holder(1)), (Some(0), None));
        assert_eq!((versions.behind(0, 0..4), versions.doubtful(0, &(0..4))), (vec![1, 2, 3], BTreeMap::new()));
    }
}
