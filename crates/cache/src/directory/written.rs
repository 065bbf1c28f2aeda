//! What devices have written home that higher devices may overwrite.
//!
//! Where home differs from what a device began with, a flush leaves home's byte: a CPU process may have written it.
//! Of devices the higher wins, whichever comes home first. So what a flush writes is remembered by byte, in the memory
//! of the host, as long as a higher device has a change of the same page on its way that was begun without it: while
//! such a one is pending, or its page is acquired to be written. A byte that home has as it was remembered is still
//! the lower device's.
//!
//! The memory is bounded. What comes beyond the bound is not remembered, and then counts as a CPU's: of devices that race
//! for such a byte the first to come home wins. Nothing but the outcome of such a race depends on it.

use crate::page::Device;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of host memory for what is remembered of one file, at most.
const BYTES_MAX: usize = 64 << 20;

/// By page and device.
#[derive(Debug, Default)]
pub(super) struct Written {
    pages: BTreeMap<(u64, Device), Bytes>,
    /// Bytes that they take.
    bytes: usize,
}

/// Bytes of a page, where the mask has a bit.
#[derive(Debug)]
struct Bytes {
    content: Vec<u8>,
    mask: Vec<u8>,
}

impl Bytes {
    fn len(&self) -> usize {
        self.content.len() + self.mask.len()
    }
}

fn has(mask: &[u8], at: usize) -> bool {
    mask.get(at / 8).is_some_and(|bits| bits >> (at % 8) & 1 == 1)
}

impl Written {
    /// A device has written those of the bytes of a page that a mask has.
    pub(super) fn note(&mut self, page: u64, device: Device, content: &[u8], mask: &[u8]) {
        let known = self.pages.get(&(page, device)).map_or(0, Bytes::len);
        let more = (content.len() + mask.len()).saturating_sub(known);
        if self.bytes + more > BYTES_MAX {
            // Of what was remembered before, a byte that is another's now must not pass for this one's.
            if let Some(forgotten) = self.pages.remove(&(page, device)) {
                self.bytes -= forgotten.len();
            }
            return;
        }
        let empty = || Bytes { content: vec![], mask: vec![] };
        let known = self.pages.entry((page, device)).or_insert_with(empty);
        self.bytes -= known.len();
        known.content.resize(content.len().max(known.content.len()), 0);
        known.mask.resize(mask.len().max(known.mask.len()), 0);
        for at in (0..content.len()).filter(|at| has(mask, *at)) {
            known.content[at] = content[at];
            known.mask[at / 8] |= 1 << (at % 8);
        }
        self.bytes += known.len();
    }

    /// Whether a byte of a page is as a device has written it.
    pub(super) fn is(&self, page: u64, device: Device, at: usize, value: u8) -> bool {
        self.pages.get(&(page, device)).is_some_and(|bytes| has(&bytes.mask, at) && bytes.content[at] == value)
    }

    /// Forgets what nobody waits for any more, of some pages.
    pub(super) fn retain(&mut self, pages: Range<u64>, is_awaited: impl Fn(u64, Device) -> bool) {
        let known = self.pages.range((pages.start, 0)..(pages.end, 0)).map(|(key, _)| *key);
        let done: Vec<_> = known.filter(|(page, device)| !is_awaited(*page, *device)).collect();
        for key in done {
            self.bytes -= self.pages.remove(&key).map_or(0, |bytes| bytes.len());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

/// Clears the bits of bytes that somebody else has written at home since a flush's base was home's; `is_lower` says
/// whether a byte, by its place, has a value from a device that loses. `left` is told of those that were to become
/// something else.
pub(super) fn leave_others(
    mask: &mut [u8],
    [content, base, home]: [&[u8]; 3],
    is_lower: impl Fn(usize, u8) -> bool,
    mut left: impl FnMut(usize),
) {
    for (number, bits) in mask.iter_mut().enumerate().filter(|(_, bits)| **bits != 0) {
        let here = number * 8..(number * 8 + 8).min(content.len());
        if base[here.clone()] == home[here.clone()] {
            continue;
        }
        for at in here.filter(|at| base[*at] != home[*at]) {
            let bit = 1 << (at % 8);
            if *bits & bit != 0 && !is_lower(at, home[at]) {
                *bits &= !bit;
                if home[at] != content[at] {
                    left(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_has_written_is_left_save_a_lower_devices() {
        let (base, home) = (*b"....................", *b"..C.L...........C..=");
        let content = *b"1111111111111111111=";
        let leave = |mut mask: [u8; 3]| {
            let mut left = vec![];
            leave_others(&mut mask, [&content, &base, &home], |_, value| value == b'L', |at| left.push(at));
            (mask, left)
        };
        // The last is there already.
        assert_eq!(leave([0xff, 0xff, 0x0f]), ([0b1111_1011, 0xff, 0b0000_0110], vec![2, 16]));
        assert_eq!(leave([0, 0, 0b1000]), ([0; 3], vec![]));
    }

    #[test]
    fn a_byte_is_a_devices_as_long_as_it_has_the_value_that_was_written() {
        let mut written = Written::default();
        written.note(7, 0, b"abc", &[0b101]);
        written.note(7, 0, b"ABCDEFGHIJ", &[0b10, 0b10]);
        let is = |at, value| written.is(7, 0, at, value);
        assert!(is(0, b'a') && is(1, b'B') && is(2, b'c') && is(9, b'J'));
        assert!(!is(0, b'A') && !is(3, b'D') && !is(8, b'I') && !is(80, 0));
        assert!(!written.is(6, 0, 0, b'a') && !written.is(7, 1, 0, b'a'));
        written.retain(0..7, |_, _| false);
        assert!(written.is(7, 0, 0, b'a'));
        written.retain(7..8, |page, device| (page, device) != (7, 0));
        assert!(written.is_empty() && written.bytes == 0);
    }

    /// A long job that holds a file for writing while another device flushes all of it must not take the host's memory.
    #[test]
    fn what_is_remembered_is_bounded() {
        let mut written = Written::default();
        let (content, mask) = (vec![7; 1 << 20], vec![0xff; 1 << 17]);
        (0..100).for_each(|page| written.note(page, 0, &content, &mask));
        assert!(written.bytes <= BYTES_MAX && written.is(0, 0, 5, 7) && !written.is(99, 0, 5, 7));
        let sum: usize = written.pages.values().map(Bytes::len).sum();
        assert_eq!(written.bytes, sum);
        written.retain(0..50, |_, _| false);
        written.note(99, 0, &content, &mask);
        assert!(written.is(99, 0, 5, 7));
    }
}
