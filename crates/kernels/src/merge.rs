//! Three-way merge of pages, byte for byte: what a device has now (`current`), the copy that was
//! made before it wrote (`twin`), and the newest content from elsewhere (`incoming`).
//!
//! A byte that the device changed stays; every other becomes the incoming one; the twin becomes the
//! incoming page, so that what then differs from it is what the device has changed and others do
//! not know. Bytes are independent of their neighbours in the same word. A byte that both sides
//! changed to different values is a race: the device's own stays, and the page's flags say so, for
//! a caller who orders the writers otherwise.
//!
//! Kernels may be storing into the page as the device has it meanwhile: what they store stays, as it is
//! changed by words that are exchanged for what was read of them. Only the last bytes of a page whose
//! length is no multiple of 16 are read and written as bytes.
//!
//! Pages are listed in a table on the device, see [`Entry`]. One group of threads merges one page:
//! pages are meant to be some KiB to some hundred KiB long.

use crate::addressing::Addressing;
use crate::kernel::{DIFFER_H, KDEF_H, Kernel, Trial};
use crate::known_answer::Draw;
use crate::load::Kernels;
use crate::page_list::{self, PageCase, PageKernel, Row};
use bifolio_device::{DeviceSlice, ModuleSource, Result, Stream};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The header, of which others use the exchange.
pub(crate) const HEADER: (&str, &str) = ("merge.h", include_str!("cl/merge.h"));

const MODULE: ModuleSource = ModuleSource {
    name: Merge::KERNEL,
    source: include_str!("cl/merge.cl"),
    headers: &[KDEF_H, DIFFER_H, HEADER],
    kernels: &[(Merge::KERNEL, page_list::run_on_host::<Merge>)],
};

/// The kernel; [`Kernels::merge`] runs it.
#[derive(Debug)]
pub struct Merge;

impl Kernel for Merge {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        page_list::try_lists(trial, draw_case)
    }

    fn has_host_path(&self) -> bool {
        true
    }
}

/// Flag of a page: some incoming byte differed from the twin's.
pub const INCOMING_CHANGED: u32 = 1;

/// Flag of a page: some byte of the device differed from the twin's, so changes of its own remain.
pub const OWN_CHANGED: u32 = 2;

/// Flag of a page: some byte was changed on both sides, to different values.
pub const RACE: u32 = 4;

/// One page: `len` bytes at a place in each operand, which is a multiple of 16. It is `MergeEntry`
/// of `merge.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Place of the page as the device has it.
    pub current: u64,
    /// Place of the twin.
    pub twin: u64,
    /// Place of the newest content.
    pub incoming: u64,
    /// Length in bytes, 0 allowed.
    pub len: u64,
}

impl Entry {
    fn row(self) -> Row {
        Row { at: [self.current, self.twin, self.incoming], len: self.len }
    }
}

/// Size of an [`Entry`] in the device's table.
pub const ENTRY_BYTES: u64 = page_list::ROW_BYTES;

/// What the places in the entries are counted from.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Pages as the device has them: read and written.
    pub current: Addressing<'a>,
    /// Their twins: read and written.
    pub twin: Addressing<'a>,
    /// The newest content: read.
    pub incoming: Addressing<'a>,
}

impl<'a> Operands<'a> {
    fn in_order(self) -> [Addressing<'a>; 3] {
        [self.current, self.twin, self.incoming]
    }
}

/// The table of pages as the device reads it.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    page_list::encode(entries.iter().map(|entry| entry.row()))
}

/// Refuses pages that do not lie at 16-byte boundaries inside their operands. The kernel cannot, as
/// the table is on the device; whether pages overlap is not looked at.
pub fn check(entries: &[Entry], operands: &Operands<'_>) -> Result<()> {
    page_list::check::<Merge>(entries.iter().map(|entry| entry.row()), operands.in_order())
}

impl Kernels {
    /// Merges the pages of a table on the device byte for byte. `entries` is an array of [`Entry`] at an 8-byte
    /// boundary, see [`encode`]; `flags` gets a u32 for each, at a 4-byte boundary.
    ///
    /// # Errors
    /// Ranges that do not fit, and what the device refuses.
    ///
    /// # Safety
    /// The ranges and the pages are memory of the stream's device, which is the one the kernels were
    /// loaded on; they stay valid and are not used by others until the work completes; every page
    /// passes [`check`], and those of `current` and `twin` overlap nothing else here.
    pub unsafe fn merge(
        &self,
        stream: &Stream,
        operands: Operands<'_>,
        entries: DeviceSlice<'_>,
        flags: DeviceSlice<'_>,
    ) -> Result<()> {
        let module = self.module(&Merge)?;
        // SAFETY: the caller's promise; the module is the right one.
        unsafe { page_list::run::<Merge>(stream, module, operands.in_order(), entries, flags) }
    }
}

/// What the kernel computes for one page; the flags are returned.
///
/// # Panics
/// If the three differ in length.
pub fn oracle(current: &mut [u8], twin: &mut [u8], incoming: &[u8]) -> u32 {
    assert!(current.len() == twin.len() && twin.len() == incoming.len(), "the three copies of a page have one length");
    let mut flags = 0;
    for ((current, twin), &incoming) in current.iter_mut().zip(twin).zip(incoming) {
        let (own_changed, incoming_changed) = (*current != *twin, incoming != *twin);
        if incoming_changed {
            flags |= INCOMING_CHANGED;
        }
        if own_changed {
            flags |= OWN_CHANGED;
        }
        if own_changed && incoming_changed && *current != incoming {
            flags |= RACE;
        }
        if !own_changed {
            *current = incoming;
        }
        *twin = incoming;
    }
    flags
}

impl PageKernel for Merge {
    const KERNEL: &'static str = "merge";
    const OPERANDS: [&'static str; 3] = ["current page", "twin page", "incoming page"];
    const READS: [bool; 3] = [true; 3];

    fn lens(len: u64) -> [u64; 3] {
        [len; 3]
    }

    fn oracle([current, twin, incoming]: [&mut [u8]; 3]) -> u32 {
        oracle(current, twin, incoming)
    }

    fn writes(flags: u32) -> [bool; 3] {
        let news = flags & INCOMING_CHANGED != 0;
        [news, news, false]
    }

    unsafe fn on_host([current, twin, incoming]: [*mut u8; 3], len: usize) -> u32 {
        // SAFETY: the caller vouches that the page lies there, and that nobody else uses or overlaps the twin.
        let (twin, incoming) =
            unsafe { (slice::from_raw_parts_mut(twin, len), slice::from_raw_parts(incoming.cast_const(), len)) };
        // SAFETY: the same for the page as the device has it, which lies at a 16-byte boundary. Others who
        // store into it are machine code that is none of this program's, or a copy that stands for it.
        unsafe { merge_shared(current, twin, incoming) }
    }
}

/// [`oracle`] for a page that others may be storing into.
///
/// # Safety
/// `current` is memory of the others' length, at an 8-byte boundary.
unsafe fn merge_shared(current: *mut u8, twin: &mut [u8], incoming: &[u8]) -> u32 {
    let mut flags = 0;
    let whole = twin.len() / 8 * 8;
    for at in (0..whole).step_by(8) {
        let word = |bytes: &[u8]| bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        let (old, new) = (word(twin), word(incoming));
        // SAFETY: inside the page, at an 8-byte boundary.
        flags |= merge_word(unsafe { AtomicU64::from_ptr(current.add(at).cast()) }, old, new);
        if old != new {
            twin[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        }
    }
    for at in whole..twin.len() {
        // SAFETY: inside the page.
        flags |= merge_byte(unsafe { AtomicU8::from_ptr(current.add(at)) }, twin[at], incoming[at]);
        twin[at] = incoming[at];
    }
    flags
}

/// Makes `new` of what is still `old` of 8 bytes into which others may be storing; the flags are returned.
pub(crate) fn merge_word(current: &AtomicU64, old: u64, new: u64) -> u32 {
    let mut mine = current.load(Ordering::Relaxed);
    if mine == old && old == new {
        return 0;
    }
    let own = differing(mine ^ old);
    let mut flags = if own != 0 { OWN_CHANGED } else { 0 };
    if old == new {
        return flags;
    }
    flags |= INCOMING_CHANGED;
    flags |= if own & differing(new ^ old) & differing(mine ^ new) != 0 { RACE } else { 0 };
    loop {
        let merged = mine ^ ((mine ^ new) & !differing(mine ^ old));
        match current.compare_exchange(mine, merged, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return flags,
            Err(found) => mine = found,
        }
    }
}

/// The same for a single byte.
pub(crate) fn merge_byte(current: &AtomicU8, old: u8, new: u8) -> u32 {
    let before = current.load(Ordering::Relaxed);
    let (mut mine, mut twin) = ([before], [old]);
    let flags = oracle(&mut mine, &mut twin, &[new]);
    // What has changed meanwhile is the others' and stays.
    let _ = current.compare_exchange(before, mine[0], Ordering::Relaxed, Ordering::Relaxed);
    flags
}

/// 0xff in each byte that is not 0, as `differ_mask` of `differ.h`.
pub(crate) fn differing(word: u64) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let tops = (((word & LOW) + LOW) | word) & !LOW;
    tops | (tops - (tops >> 7))
}

/// By kind of page: how many bytes of 256 the device and the others change, and how many of the
/// others' changes are the device's own ones. Kinds without a race or with few of them show that a
/// flag is not set for the wrong reason.
const CHANGES: [(u64, u64, u64); 8] =
    [(0, 0, 0), (0, 3, 0), (3, 0, 0), (40, 40, 64), (0, 256, 0), (256, 0, 0), (256, 256, 256), (256, 256, 255)];

/// Pages of which from one to the next few, many or all bytes are changed by either side or both, some of them to the
/// same value.
fn draw_case(draw: &mut Draw, count: usize, page_bytes: u64) -> PageCase<Merge> {
    PageCase::draw(draw, count, page_bytes, |draw, [current, twin, incoming]| {
        let (own, others, same) = CHANGES[draw.below(CHANGES.len() as u64) as usize];
        for ((current, twin), incoming) in current.iter_mut().zip(twin).zip(incoming) {
            let old = *twin;
            let (own, others) = (draw.below(256) < own, draw.below(256) < others);
            let same = draw.below(256) < same;
            *current = if own { old.wrapping_add(7) } else { old };
            *incoming = match (others, same) {
                (false, _) => old,
                (true, true) => old.wrapping_add(7),
                (true, false) => old ^ 0x80,
            };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn merged(current: &[u8], twin: &[u8], incoming: &[u8]) -> (Vec<u8>, u32) {
        let (mut current, mut twin) = (current.to_vec(), twin.to_vec());
        let flags = oracle(&mut current, &mut twin, incoming);
        assert_eq!(twin, incoming);
        (current, flags)
    }

    /// Symptom: a byte that a kernel had stored was gone. Cause: the page was merged by loading and storing its words,
    /// and the store came in between.
    #[test]
    fn what_others_store_meanwhile_stays() {
        let mut page = vec![0_u64; 512];
        let current = page.as_mut_ptr().cast::<u8>() as usize;
        let mut twin = vec![0_u8; 4096];
        let is_done = std::sync::atomic::AtomicBool::new(false);
        // SAFETY: inside the page, which outlives its users.
        let byte = |at: usize| unsafe { AtomicU8::from_ptr((current + at) as *mut u8) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Every eighth byte is the others', who look at what they have stored.
                for round in 0..200_000_u32 {
                    let (at, value) = (round as usize % 512 * 8 + 3, (round % 255) as u8 + 1);
                    byte(at).store(value, Ordering::Relaxed);
                    std::hint::spin_loop();
                    assert_eq!(byte(at).load(Ordering::Relaxed), value);
                }
                is_done.store(true, Ordering::Relaxed);
            });
            let mut round = 0_u8;
            while !is_done.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                let mut incoming = vec![round; 4096];
                (3..4096).step_by(8).for_each(|at| incoming[at] = 0);
                // SAFETY: the page has 4096 bytes.
                unsafe { merge_shared(current as *mut u8, &mut twin, &incoming) };
                assert!((0..4096).all(|at| at % 8 == 3 || byte(at).load(Ordering::Relaxed) == round));
            }
        });
    }

    #[test]
    fn neighbours_changed_by_different_writers_do_not_disturb_each_other() {
        let (page, flags) = merged(b"oXoXo", b"ooooo", b"YoYoY");
        assert_eq!((&page[..], flags), (&b"YXYXY"[..], INCOMING_CHANGED | OWN_CHANGED));
    }

    #[test]
    fn a_byte_that_both_changed_is_a_race_and_stays_as_the_device_has_it() {
        let (page, flags) = merged(b"aXc", b"abc", b"aYc");
        assert_eq!((&page[..], flags), (&b"aXc"[..], INCOMING_CHANGED | OWN_CHANGED | RACE));
    }

    #[test]
    fn the_same_change_on_both_sides_is_no_race() {
        let (page, flags) = merged(b"aXc", b"abc", b"aXc");
        assert_eq!((&page[..], flags), (&b"aXc"[..], INCOMING_CHANGED | OWN_CHANGED));
    }

    #[test]
    fn a_page_that_nobody_changed_has_no_flag() {
        assert_eq!(merged(b"abc", b"abc", b"abc"), (b"abc".to_vec(), 0));
        assert_eq!(merged(b"", b"", b""), (vec![], 0));
    }

    proptest! {
        #[test]
        fn every_byte_is_merged_by_itself_and_the_flags_say_what_happened(
            bytes in prop::collection::vec((0..3_u8, 0..3_u8, 0..3_u8), 0..200)
        ) {
            let column = |pick: fn(&(u8, u8, u8)) -> u8| bytes.iter().map(pick).collect::<Vec<_>>();
            let (current, twin, incoming) = (column(|b| b.0), column(|b| b.1), column(|b| b.2));
            let (page, flags) = merged(&current, &twin, &incoming);
            for (i, &(mine, old, theirs)) in bytes.iter().enumerate() {
                prop_assert_eq!(page[i], if mine == old { theirs } else { mine });
            }
            let any = |test: fn(&(u8, u8, u8)) -> bool| bytes.iter().any(test);
            prop_assert_eq!(flags & INCOMING_CHANGED != 0, incoming != twin);
            prop_assert_eq!(flags & OWN_CHANGED != 0, current != twin);
            prop_assert_eq!(flags & RACE != 0, any(|&(m, o, t)| m != o && t != o && m != t));
        }
    }
}
