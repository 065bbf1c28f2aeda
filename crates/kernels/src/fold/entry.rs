//! The table of pages.

use crate::addressing::{self, Addressing};
use crate::page_list;
use bifolio_device::Result;

/// Donors of an entry. More are folded by several launches.
pub const DONORS_MAX: usize = 3;

/// Size of an [`Entry`] in the device's table.
pub const ENTRY_BYTES: u64 = 8 * WORDS as u64;

const WORDS: usize = 6 + 2 * DONORS_MAX;

/// The place of what a page does not have, `FOLD_NONE` of `fold.h`: no multiple of 16.
const NONE: u64 = u64::MAX;

/// Who has released changes of a page: those in which its twin differs from its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Donor {
    /// Place of its twin: read.
    pub twin: u64,
    /// Place of its base: read.
    pub base: u64,
}

/// One page: `len` bytes at each of its places, which are multiples of 16. It is `FoldEntry` of `fold.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Place of the page as the device has it: read and written, or written only if there is no twin.
    pub current: u64,
    /// Place of the twin: read and written. Without one `current` becomes what is folded.
    pub twin: Option<u64>,
    /// Place of the base: written.
    pub base: Option<u64>,
    /// Place of home's content: read.
    pub content: u64,
    /// Place of what the file has: read. Without one that is the content.
    pub origin: Option<u64>,
    /// Who has released something that home does not have, in the order in which it counts.
    pub donors: [Option<Donor>; DONORS_MAX],
    /// Length in bytes, 0 allowed.
    pub len: u64,
}

impl Entry {
    /// Some bytes of it, from a multiple of 16 on, as an entry of their own; one without bytes lies where the page does.
    #[must_use]
    pub fn part(self, at: u64, len: u64) -> Self {
        let len = len.min(self.len.saturating_sub(at));
        if len == 0 {
            return Self { len, ..self };
        }
        Self { len, ..self.moved(at) }
    }

    /// The same at other places.
    pub(super) fn moved(self, by: u64) -> Self {
        let moved = |place: u64| place + by;
        Self {
            current: moved(self.current),
            twin: self.twin.map(moved),
            base: self.base.map(moved),
            content: moved(self.content),
            origin: self.origin.map(moved),
            donors: self.donors.map(|donor| donor.map(|d| Donor { twin: moved(d.twin), base: moved(d.base) })),
            len: self.len,
        }
    }

    fn words(self) -> [u64; WORDS] {
        let place = |place: Option<u64>| place.unwrap_or(NONE);
        let [first, second, third] = self.donors.map(|donor| donor.map_or([NONE; 2], |d| [d.twin, d.base]));
        let [twin, base, origin] = [self.twin, self.base, self.origin].map(place);
        let page = [self.current, twin, base, self.content, origin, self.len];
        let mut words = [NONE; WORDS];
        for (words, part) in
            words.chunks_mut(2).zip([[page[0], page[1]], [page[2], page[3]], [page[4], page[5]], first, second, third])
        {
            words.copy_from_slice(&part);
        }
        words
    }

    fn from_words(words: [u64; WORDS]) -> Self {
        let place = |place: u64| (place != NONE).then_some(place);
        let [current, twin, base, content, origin, len, donors @ ..] = words;
        let donor = |i: usize| place(donors[2 * i]).map(|twin| Donor { twin, base: donors[2 * i + 1] });
        Self {
            current,
            twin: place(twin),
            base: place(base),
            content,
            origin: place(origin),
            donors: [donor(0), donor(1), donor(2)],
            len,
        }
    }

    fn places(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let donors = self.donors.into_iter().flatten();
        let donors = donors.flat_map(|donor| [("donor's twin page", donor.twin), ("donor's base page", donor.base)]);
        let own = [
            ("current page", Some(self.current)),
            ("twin page", self.twin),
            ("base page", self.base),
            ("content page", Some(self.content)),
            ("origin page", self.origin),
        ];
        own.into_iter().filter_map(|(name, place)| Some((name, place?))).chain(donors)
    }
}

/// The table of pages as the device reads it.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES as usize);
    for word in entries.iter().flat_map(|entry| entry.words()) {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Vec<Entry> {
    let rows = bytes.chunks_exact(ENTRY_BYTES as usize).filter_map(addressing::words_of);
    rows.map(Entry::from_words).collect()
}

/// Refuses pages that do not lie at 16-byte boundaries inside what their places are counted from. The kernel cannot, as
/// the table is on the device; whether pages overlap is not looked at.
pub fn check(entries: &[Entry], memory: Addressing<'_>) -> Result<()> {
    entries.iter().try_for_each(|entry| {
        page_list::check_len(entry.len)?;
        entry.places().try_for_each(|(name, place)| memory.check(name, place, entry.len))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::{DevicePtr, DeviceSlice};

    const EVERYTHING: Entry = Entry {
        current: 16,
        twin: Some(32),
        base: Some(48),
        content: 64,
        origin: Some(80),
        donors: [
            Some(Donor { twin: 96, base: 112 }),
            Some(Donor { twin: 128, base: 144 }),
            Some(Donor { twin: 0, base: 16 }),
        ],
        len: 7,
    };

    #[test]
    fn entries_survive_the_trip_to_the_device() {
        let little = Entry { twin: None, base: None, origin: None, donors: [None; 3], ..EVERYTHING };
        let gap = Entry { donors: [None, EVERYTHING.donors[0], None], ..little };
        let entries = [EVERYTHING, little, gap];
        let bytes = encode(&entries);
        assert_eq!(bytes.len() as u64, 3 * ENTRY_BYTES);
        assert_eq!(decode(&bytes), entries);
        assert_eq!(EVERYTHING.moved(16).words(), EVERYTHING.words().map(|word| if word == 7 { 7 } else { word + 16 }));
        assert_eq!(little.moved(16).twin, None);
    }

    #[test]
    fn every_place_of_a_page_is_looked_at() {
        // SAFETY: nothing is read or written at the address.
        let memory = Addressing::Relative(unsafe { DeviceSlice::from_raw_ordered(DevicePtr(4096), 160) });
        check(&[EVERYTHING], memory).unwrap();
        for (at, name) in [(0, "current"), (1, "twin"), (2, "base"), (3, "content"), (4, "origin")].into_iter().chain([
            (6, "donor's twin"),
            (7, "donor's base"),
            (8, "donor's twin"),
            (11, "donor's base"),
        ]) {
            for place in [8, 160] {
                let mut words = EVERYTHING.words();
                words[at] = place;
                let refused = check(&[Entry::from_words(words)], memory).unwrap_err().to_string();
                assert!(refused.contains(&format!("the {name} page of 7 bytes at {place:#x}")), "{refused}");
            }
        }
        assert!(check(&[Entry { len: 1 << 32, ..EVERYTHING }], memory).unwrap_err().to_string().contains("too long"));
    }
}
