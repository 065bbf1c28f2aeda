//! Three-way merge of pages, byte for byte: what a device has now (`current`), the pristine copy
//! from which it started (`twin`), and the newest content from elsewhere (`incoming`).
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

use crate::known_answer::{self, Draw};
use crate::page_list::{self, Base};
use crate::{DIFFER_H, KDEF_H, Result};
use bifolio_device::{Allocation, Device, DevicePtr, DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Stream};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const GROUP_SIZE: u32 = 256;

/// The kernel's name in [`MODULE`].
pub const KERNEL: &str = "merge";

/// The kernel's source.
pub const MODULE: ModuleSource = ModuleSource {
    name: KERNEL,
    source: include_str!("cl/merge.cl"),
    headers: &[KDEF_H, DIFFER_H, ("merge.h", include_str!("cl/merge.h"))],
    kernels: &[(KERNEL, run_on_host)],
};

/// Flag of a page: some incoming byte differed from the twin's.
pub const INCOMING_CHANGED: u32 = 1;

/// Flag of a page: some byte of the device differed from the twin's, so changes of its own remain.
pub const OWN_CHANGED: u32 = 2;

/// Flag of a page: some byte was changed on both sides, to different values.
pub const RACE: u32 = 4;

/// One page: `len` bytes at a place in each operand, which is a multiple of 16. It is `MergeEntry`
/// of `merge.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Place of the page as the device has it.
    pub current: u64,
    /// Place of the pristine copy.
    pub twin: u64,
    /// Place of the newest content.
    pub incoming: u64,
    /// Length in bytes, 0 allowed.
    pub len: u64,
}

/// Size of an [`Entry`] in the device's table.
pub const ENTRY_BYTES: u64 = page_list::ENTRY_BYTES;

const _: () = assert!(size_of::<Entry>() as u64 == ENTRY_BYTES);

/// What the places in the entries are counted from.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Pages as the device has them: read and written.
    pub current: Base<'a>,
    /// Their pristine copies: read and written.
    pub twin: Base<'a>,
    /// The newest content: read.
    pub incoming: Base<'a>,
}

impl Operands<'_> {
    /// The bases as the kernel gets them, or what is wrong with them.
    pub(crate) fn arguments(&self, device: &Device) -> Result<[(DevicePtr, u64); 3]> {
        Ok([self.current.argument(device)?, self.twin.argument(device)?, self.incoming.argument(device)?])
    }
}

/// The table of pages as the device reads it.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let words = |entry: &Entry| page_list::to_bytes(&[entry.current, entry.twin, entry.incoming, entry.len]);
    entries.iter().flat_map(words).collect()
}

pub(crate) fn decode(bytes: &[u8]) -> Vec<Entry> {
    let entries = bytes.chunks_exact(ENTRY_BYTES as usize).filter_map(page_list::words_of);
    entries.map(|[current, twin, incoming, len]| Entry { current, twin, incoming, len }).collect()
}

/// Refuses pages that do not lie at 16-byte boundaries inside their operands. The kernel cannot, as
/// the table is on the device; whether pages overlap is not looked at.
pub fn check(entries: &[Entry], operands: &Operands<'_>) -> Result<()> {
    entries.iter().try_for_each(|entry| {
        page_list::check_len(entry.len)?;
        operands.current.check("current", entry.current, entry.len)?;
        operands.twin.check("twin", entry.twin, entry.len)?;
        operands.incoming.check("incoming", entry.incoming, entry.len)
    })
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

/// Enqueues the merge of the pages in `entries`, an array of [`Entry`] on the device at an 8-byte
/// boundary. `flags` gets a u32 for each, at a 4-byte boundary.
///
/// # Safety
/// `module` is [`MODULE`] on the stream's device; the ranges are memory of that device, stay valid
/// and are not used by others until the work completes; every page in the table passes [`check`],
/// and those of `current` and `twin` overlap nothing else that the launch reads or writes.
pub unsafe fn launch(
    stream: &Stream,
    module: &Module,
    operands: Operands<'_>,
    entries: DeviceSlice<'_>,
    flags: DeviceSlice<'_>,
) -> Result<()> {
    let groups = page_list::count(entries, flags)?;
    let [(current, current_at), (twin, twin_at), (incoming, incoming_at)] = operands.arguments(stream.device())?;
    if groups == 0 {
        return Ok(());
    }
    let params = page_list::to_bytes(&[current_at, twin_at, incoming_at]);
    let args = [
        KernelArg::Buffer(current),
        KernelArg::Buffer(twin),
        KernelArg::Buffer(incoming),
        KernelArg::Buffer(entries.ptr()),
        KernelArg::Buffer(flags.ptr()),
        KernelArg::Bytes(&params),
    ];
    // SAFETY: the arguments are those of the kernel, the table and the flags have room for every
    // group, and the caller vouches for the module, the memory and the pages.
    unsafe { stream.launch(module, KERNEL, groups, GROUP_SIZE, &args) }
}

/// The kernel as the `host` device runs it.
///
/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn run_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(current),
        KernelArg::Buffer(twin),
        KernelArg::Buffer(incoming),
        KernelArg::Buffer(entries),
        KernelArg::Buffer(flags),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("merge has five buffers and one parameter struct");
    };
    let Some([current_at, twin_at, incoming_at]) = page_list::words_of(params) else {
        unreachable!("merge has 24 bytes of parameters")
    };
    let pages = launch.groups as usize;
    // SAFETY: the caller passes the host address of an entry for each group, at an 8-byte boundary.
    let entries = unsafe { slice::from_raw_parts(entries.0 as *const Entry, pages) };
    // SAFETY: as above, of a word for each group, at a 4-byte boundary, that nobody else uses.
    let flags = unsafe { slice::from_raw_parts_mut(flags.0 as *mut u32, pages) };
    // Single pages: others may be using what lies between them.
    for (entry, flags) in entries.iter().zip(flags) {
        *flags = 0;
        if entry.len == 0 {
            continue; // It may have no memory at all.
        }
        let len = entry.len as usize;
        let (current, twin) = (current.offset_by(current_at + entry.current), twin.offset_by(twin_at + entry.twin));
        let incoming = incoming.offset_by(incoming_at + entry.incoming);
        // SAFETY: the caller vouches that the page lies inside both operands, and that nobody else uses
        // or overlaps the one that is written.
        let (twin, incoming) = unsafe {
            (slice::from_raw_parts_mut(twin.0 as *mut u8, len), slice::from_raw_parts(incoming.0 as *const u8, len))
        };
        // SAFETY: the same for the page as the device has it, which lies at a 16-byte boundary. Others who
        // store into it are machine code that is none of this program's, or a copy that stands for it.
        *flags = unsafe { merge_shared(current.0 as *mut u8, twin, incoming) };
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
        let place = unsafe { AtomicU64::from_ptr(current.add(at).cast()) };
        let mut mine = place.load(Ordering::Relaxed);
        if mine == old && old == new {
            continue;
        }
        let own = differing(mine ^ old);
        flags |= if own != 0 { OWN_CHANGED } else { 0 };
        if old == new {
            continue;
        }
        flags |= INCOMING_CHANGED;
        flags |= if own & differing(new ^ old) & differing(mine ^ new) != 0 { RACE } else { 0 };
        loop {
            let merged = mine ^ ((mine ^ new) & !differing(mine ^ old));
            match place.compare_exchange(mine, merged, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(found) => mine = found,
            }
        }
        twin[at..at + 8].copy_from_slice(&new.to_ne_bytes());
    }
    for at in whole..twin.len() {
        // SAFETY: inside the page.
        let place = unsafe { AtomicU8::from_ptr(current.add(at)) };
        let mut mine = [place.load(Ordering::Relaxed)];
        let mut old = [twin[at]];
        let before = mine;
        flags |= oracle(&mut mine, &mut old, &incoming[at..=at]);
        // What has changed meanwhile is the others' and stays.
        let _ = place.compare_exchange(before[0], mine[0], Ordering::Relaxed, Ordering::Relaxed);
        twin[at] = incoming[at];
    }
    flags
}

/// 0xff in each byte that is not 0, as `differ_mask` of `differ.h`.
fn differing(word: u64) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let tops = (((word & LOW) + LOW) | word) & !LOW;
    tops | (tops - (tops >> 7))
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    /// The whole allocations of current, twin and incoming pages, with bytes before and between
    /// them.
    content: [Vec<u8>; 3],
    /// Offsets in the ranges that the launch is given.
    entries: Vec<Entry>,
    /// How far into its allocation each range begins.
    shift: [usize; 3],
    by_address: bool,
    seed: u64,
}

/// By kind of page: how many bytes of 256 the device and the others change, and how many of the
/// others' changes are the device's own ones. Kinds without a race or with few of them show that a
/// flag is not set for the wrong reason.
const CHANGES: [(u64, u64, u64); 8] =
    [(0, 0, 0), (0, 3, 0), (3, 0, 0), (40, 40, 64), (0, 256, 0), (256, 0, 0), (256, 256, 256), (256, 256, 255)];

impl Case {
    /// `count` pages of `page_bytes`, the last one ragged and one in eight empty, in random order
    /// at random boundaries; from page to page few, many or all bytes are changed by either side or
    /// both, some of them to the same value.
    pub fn draw(draw: &mut Draw, count: usize, page_bytes: u64) -> Self {
        let lens = draw.page_lengths(count, page_bytes);
        let shift = [(); 3].map(|()| draw.below(40) as usize * 16);
        let places = [(); 3].map(|()| draw.places(&lens));
        let mut content: [Vec<u8>; 3] =
            [0, 1, 2].map(|operand| draw.bytes(shift[operand] + places[operand].1 as usize));
        let entry = |page: usize| Entry {
            current: places[0].0[page],
            twin: places[1].0[page],
            incoming: places[2].0[page],
            len: lens[page],
        };
        let entries: Vec<_> = (0..count).map(entry).collect();
        for entry in &entries {
            let (own, others, same) = CHANGES[draw.below(CHANGES.len() as u64) as usize];
            let at = positions(entry, shift);
            for i in 0..entry.len as usize {
                let old = content[1][at[1] + i];
                let (own, others) = (draw.below(256) < own, draw.below(256) < others);
                let same = draw.below(256) < same;
                content[0][at[0] + i] = if own { old.wrapping_add(7) } else { old };
                content[2][at[2] + i] = match (others, same) {
                    (false, _) => old,
                    (true, true) => old.wrapping_add(7),
                    (true, false) => old ^ 0x80,
                };
            }
        }
        Self { content, entries, shift, by_address: false, seed: draw.seed() }
    }

    /// The same with addresses in the table, for devices that have their own.
    #[must_use]
    pub fn by_address(self) -> Self {
        Self { by_address: true, ..self }
    }

    /// Runs the kernel over poisoned flags and compares flags and whole allocations with the
    /// oracle's; the error is a sentence about the first wrong word or byte.
    pub fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        let (expected, expected_flags) = self.expected();
        let (found, flags) = self.on_device(stream, module, &expected_flags).map_err(|error| error.to_string())?;
        let compared = known_answer::compare("the flags of page", &flags, &expected_flags).and_then(|()| {
            let mut operands =
                ["of current, byte", "of twin, byte", "of incoming, byte"].into_iter().zip(found.iter().zip(&expected));
            operands.try_for_each(|(name, (found, expected))| known_answer::compare(name, found, expected))
        });
        compared.map_err(|wrong| format!("{} pages: {wrong} (seed {})", self.entries.len(), self.seed))
    }

    fn expected(&self) -> ([Vec<u8>; 3], Vec<u32>) {
        let mut content = self.content.clone();
        let [current, twin, incoming] = &mut content;
        let merge = |entry: &Entry| {
            let (at, len) = (positions(entry, self.shift), entry.len as usize);
            let (current, twin) = (&mut current[at[0]..at[0] + len], &mut twin[at[1]..at[1] + len]);
            oracle(current, twin, &incoming[at[2]..at[2] + len])
        };
        let flags = self.entries.iter().map(merge).collect();
        (content, flags)
    }

    fn on_device(&self, stream: &Stream, module: &Module, expected: &[u32]) -> Result<([Vec<u8>; 3], Vec<u32>)> {
        let on_device = |bytes: &[u8]| known_answer::on_device(stream, bytes);
        let memory = [on_device(&self.content[0])?, on_device(&self.content[1])?, on_device(&self.content[2])?];
        // The poison is the complement of the answer: a word that the kernel leaves alone is wrong.
        let flags = on_device(&known_answer::complement(expected))?;
        let (bases, starts) = page_list::bases(&memory, self.shift, self.by_address)?;
        let moved = |entry: &Entry| Entry {
            current: entry.current + starts[0],
            twin: entry.twin + starts[1],
            incoming: entry.incoming + starts[2],
            len: entry.len,
        };
        let entries: Vec<_> = self.entries.iter().map(moved).collect();
        let operands = Operands { current: bases[0], twin: bases[1], incoming: bases[2] };
        check(&entries, &operands)?;
        let table = on_device(&encode(&entries))?;
        // SAFETY: the allocations live until the downloads below have waited for the work; the
        // pages were checked and drawn beside each other.
        unsafe { launch(stream, module, operands, table.slice(), flags.slice()) }?;
        let content = |memory: &Allocation| known_answer::content(stream, memory);
        let found = [content(&memory[0])?, content(&memory[1])?, content(&memory[2])?];
        Ok((found, known_answer::u32s(&content(&flags)?)))
    }
}

/// Where the page begins in each whole allocation.
fn positions(entry: &Entry, shift: [usize; 3]) -> [usize; 3] {
    [entry.current as usize + shift[0], entry.twin as usize + shift[1], entry.incoming as usize + shift[2]]
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

    #[test]
    fn entries_survive_the_trip_to_the_device() {
        let entries = [
            Entry { current: 16, twin: u64::MAX, incoming: 3, len: 4 },
            Entry { current: 0, twin: 0, incoming: 1 << 40, len: 0 },
        ];
        assert_eq!(decode(&encode(&entries)), entries);
    }
}
