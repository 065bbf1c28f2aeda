//! What tells whether the kernel is right on a device: lists of pages with a known answer.

use super::copies::fold_copies;
use super::entry::{DONORS_MAX, Donor, Entry, check, encode};
use super::launch::run;
use crate::addressing::{self, Addressing};
use crate::kernel::{Effort, Trial};
use crate::known_answer::{self, Draw};
use crate::page_list::LENGTHS;
use bifolio_device::{Module, Result, Stream};
use std::convert::Infallible;

/// Tries lists of pages by offset and, where there are addresses, by address.
pub(super) fn try_lists(trial: &mut Trial<'_>) -> Result<(), String> {
    let shapes = match trial.effort() {
        // Pages with a second step of a group.
        Effort::FirstUse => vec![(16, 4096 + 48)],
        Effort::Interpreted => vec![(1, 16), (9, 100), (12, 512), (3, 4096 + 56)],
        Effort::Exhaustive => {
            LENGTHS.map(|bytes| (15, bytes)).into_iter().chain([(0, 4096), (1, 4096), (700, 512)]).collect()
        }
    };
    for (count, page_bytes) in shapes {
        let case = FoldCase::draw(trial.draw(), count, page_bytes);
        case.run(trial.stream(), trial.module(), false)?;
        if trial.is_exhaustive() && trial.has_addresses() {
            case.run(trial.stream(), trial.module(), true)?;
        }
    }
    Ok(())
}

/// Inputs with a known answer.
struct FoldCase {
    /// The whole allocation, with bytes before and between the parts of the pages.
    content: Vec<u8>,
    /// Offsets behind `shift`.
    entries: Vec<Entry>,
    /// How far into the allocation the launch's range begins.
    shift: usize,
}

/// Parts that a page may have: its five and those of donors.
const PARTS: usize = 5 + 2 * DONORS_MAX;

/// By part of a page: how many bytes of 256 are not as in the others. Parts without a change show that a flag is not set
/// for the wrong reason.
const CHANGES: [u64; 5] = [0, 0, 3, 64, 256];

impl FoldCase {
    /// `count` pages of `page_bytes`, the last one ragged and one in eight empty, in random order at random boundaries,
    /// with and without each part that may be missing, and with parts that are the same memory.
    fn draw(draw: &mut Draw, count: usize, page_bytes: u64) -> Self {
        let lens = draw.page_lengths(count, page_bytes);
        let shift = draw.below(40) as usize * 16;
        let all: Vec<_> = lens.iter().flat_map(|len| [*len; PARTS]).collect();
        let (places, end) = draw.places(&all);
        let mut content = draw.bytes(shift + end as usize);
        let (parts, _) = places.as_chunks::<PARTS>();
        for (parts, len) in parts.iter().zip(&lens) {
            fill(draw, &mut content[shift..], parts, *len as usize);
        }
        let entries: Vec<_> = parts.iter().zip(lens).map(|(parts, len)| entry(draw, parts, len)).collect();
        let mut case = Self { content, entries, shift };
        case.poison();
        case
    }

    /// Makes what is only written the complement of the answer: a byte that the kernel leaves alone is wrong.
    fn poison(&mut self) {
        let (expected, _) = self.expected();
        for entry in &self.entries {
            let is_read = |place| {
                let mut donors = entry.donors.iter().flatten().flat_map(|donor| [donor.twin, donor.base]);
                place == entry.content || entry.origin == Some(place) || donors.any(|read| read == place)
            };
            let current = entry.twin.is_none().then_some(entry.current);
            for place in [current, entry.base].into_iter().flatten().filter(|place| !is_read(*place)) {
                let bytes = self.shift + place as usize..self.shift + (place + entry.len) as usize;
                let answer = expected[bytes.clone()].iter().map(|byte| !byte);
                self.content[bytes].iter_mut().zip(answer).for_each(|(byte, wrong)| *byte = wrong);
            }
        }
    }

    fn expected(&self) -> (Vec<u8>, Vec<u32>) {
        let mut content = self.content.clone();
        let flags = self.entries.iter().map(|entry| fold_in(&mut content[self.shift..], entry)).collect();
        (content, flags)
    }

    /// Runs the kernel over poisoned flags and compares flags and the whole allocation with the oracle's; the error is a
    /// sentence about the first that is wrong.
    fn run(&self, stream: &Stream, module: Option<&Module>, by_address: bool) -> Result<(), String> {
        let (expected, expected_flags) = self.expected();
        let found = self.on_device(stream, module, by_address, &expected_flags);
        let (found, flags) = found.map_err(|error| error.to_string())?;
        let compared = known_answer::compare("the flags of page", &flags, &expected_flags)
            .and_then(|()| known_answer::compare("byte", &found, &expected));
        let how = if by_address { ", by address" } else { "" };
        compared.map_err(|wrong| format!("{} pages{how}: {wrong}", self.entries.len()))
    }

    fn on_device(
        &self,
        stream: &Stream,
        module: Option<&Module>,
        by_address: bool,
        expected: &[u32],
    ) -> Result<(Vec<u8>, Vec<u32>)> {
        let memory = known_answer::on_device(stream, &self.content)?;
        let flags = known_answer::on_device(stream, &known_answer::complement(expected))?;
        let range = known_answer::behind(&memory, self.shift)?;
        let (places, start) =
            if by_address { (Addressing::Absolute, range.ptr().0) } else { (Addressing::Relative(range), 0) };
        let entries: Vec<_> = self.entries.iter().map(|entry| entry.moved(start)).collect();
        check(&entries, places)?;
        let table = known_answer::on_device(stream, &encode(&entries))?;
        // SAFETY: the allocations live until the downloads below have waited for the work; the pages were checked, and
        // their parts were drawn beside each other, or the same for one that is read and one that is written.
        unsafe { run(stream, module, places, table.slice(), flags.slice()) }?;
        let found = known_answer::content(stream, &memory)?;
        Ok((found, addressing::u32s(&known_answer::content(stream, &flags)?)))
    }
}

/// Parts that have a byte in common, but for few, some or all that are one of two others.
fn fill(draw: &mut Draw, content: &mut [u8], parts: &[u64; PARTS], len: usize) {
    let common = draw.bytes(len);
    for place in parts {
        let changes = CHANGES[draw.below(CHANGES.len() as u64) as usize];
        for (byte, common) in content[*place as usize..][..len].iter_mut().zip(&common) {
            let number = if changes == 0 { u64::MAX } else { draw.next_u64() };
            *byte = match (number % 256 < changes, number >> 63) {
                (false, _) => *common,
                (true, 0) => common ^ 0x80,
                (true, _) => common.wrapping_add(1),
            };
        }
    }
}

/// A page that has some of these parts.
fn entry(draw: &mut Draw, parts: &[u64; PARTS], len: u64) -> Entry {
    let [current, twin, base, content, origin, donors @ ..] = *parts;
    let mut some = |place: u64| (draw.below(4) > 0).then_some(place);
    let (twin, base, origin) = (some(twin), some(base), some(origin));
    let mut donor = |i: usize| match (draw.below(4), twin, base) {
        (0, _, _) => None,
        // What the page itself has released.
        (1, Some(twin), Some(base)) => Some(Donor { twin, base }),
        _ => Some(Donor { twin: donors[2 * i], base: donors[2 * i + 1] }),
    };
    let donors = [donor(0), donor(1), donor(2)];
    let page = Entry { current, twin, base, content, origin, donors, len };
    match (draw.below(3), twin) {
        // The device is the page's home itself.
        (0, Some(twin)) => Entry { content: twin, origin: base, ..page },
        // Scratch memory, in place.
        (0, None) => Entry { content: current, ..page },
        _ => page,
    }
}

/// Folds one page of `content`.
fn fold_in(content: &mut [u8], entry: &Entry) -> u32 {
    let mut written = Vec::new();
    let bytes = |place: u64| place as usize..(place + entry.len) as usize;
    let read = |place| Ok::<_, Infallible>(content[bytes(place)].to_vec());
    let Ok(flags) = fold_copies(entry, read, |place, bytes| {
        written.push((place, bytes.to_vec()));
        Ok(())
    });
    for (place, new) in written {
        content[bytes(place)].copy_from_slice(&new);
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{AHEAD, LOST, OWN_CHANGED};
    use super::*;

    /// A trial says little unless its pages have every flag and lack it, whatever else they have.
    #[test]
    fn pages_of_every_kind_are_drawn() {
        let mut draw = Draw::from_seed(bifolio_testing::seed());
        // Of a length with whole words and some bytes.
        let case = FoldCase::draw(&mut draw, 2000, 56);
        let (_, flags) = case.expected();
        for wanted in (0..8).filter(|flags| flags & !(AHEAD | OWN_CHANGED | LOST) == 0) {
            assert!(flags.contains(&wanted), "no page has the flags {wanted}");
        }
        let has = |test: &dyn Fn(&Entry) -> bool| case.entries.iter().any(test);
        let own = |entry: &Entry| entry.donors.iter().flatten().any(|donor| Some(donor.base) == entry.base);
        assert!(
            has(&own)
                && has(&|entry| Some(entry.content) == entry.twin)
                && has(&|entry| entry.content == entry.current)
        );
        assert!(has(&|entry| entry.donors == [None; 3]) && has(&|entry| entry.donors.iter().all(Option::is_some)));
    }
}
