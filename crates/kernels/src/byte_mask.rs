//! Byte mask: which bytes of a page differ from its twin, one bit for each, and how many do.
//!
//! Bit `b % 8` of byte `b / 8` of a page's mask stands for byte `b`. A page of `len` bytes has a
//! mask of [`mask_bytes`], all of which are written; in a ragged last byte the bits beyond the page
//! are 0. With it only what a device changed travels to others: the mask and the marked bytes.
//!
//! Pages are listed in a table on the device, see [`Entry`]. One group of threads takes one page.

use crate::known_answer::{self, Draw};
use crate::page_list::{self, Base};
use crate::{DIFFER_H, KDEF_H, Result};
use bifolio_device::{Allocation, Device, DevicePtr, DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Stream};
use std::slice;

const GROUP_SIZE: u32 = 256;

/// The kernel's name in [`MODULE`].
pub const KERNEL: &str = "byte_mask";

/// The kernel's source.
pub const MODULE: ModuleSource = ModuleSource {
    name: KERNEL,
    source: include_str!("cl/byte_mask.cl"),
    headers: &[KDEF_H, DIFFER_H, ("byte_mask.h", include_str!("cl/byte_mask.h"))],
    kernels: &[(KERNEL, run_on_host)],
};

/// One page: `len` bytes at a place in both operands, and the place of its mask; places are
/// multiples of 16. It is `ByteMaskEntry` of `byte_mask.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Place of the page as the device has it.
    pub current: u64,
    /// Place of the pristine copy.
    pub twin: u64,
    /// Place of the mask.
    pub mask: u64,
    /// Length of the page in bytes, 0 allowed.
    pub len: u64,
}

/// Size of an [`Entry`] in the device's table.
pub const ENTRY_BYTES: u64 = page_list::ENTRY_BYTES;

const _: () = assert!(size_of::<Entry>() as u64 == ENTRY_BYTES);

/// What the places in the entries are counted from.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Pages as the device has them: read.
    pub current: Base<'a>,
    /// Their pristine copies: read.
    pub twin: Base<'a>,
    /// The masks: written.
    pub mask: Base<'a>,
}

/// Number of bytes in the mask of a page of `len` bytes.
pub fn mask_bytes(len: u64) -> u64 {
    len.div_ceil(8)
}

impl Operands<'_> {
    /// The bases as the kernel gets them, or what is wrong with them.
    pub(crate) fn arguments(&self, device: &Device) -> Result<[(DevicePtr, u64); 3]> {
        Ok([self.current.argument(device)?, self.twin.argument(device)?, self.mask.argument(device)?])
    }
}

/// The table of pages as the device reads it.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let words = |entry: &Entry| page_list::to_bytes(&[entry.current, entry.twin, entry.mask, entry.len]);
    entries.iter().flat_map(words).collect()
}

pub(crate) fn decode(bytes: &[u8]) -> Vec<Entry> {
    let entries = bytes.chunks_exact(ENTRY_BYTES as usize).filter_map(page_list::words_of);
    entries.map(|[current, twin, mask, len]| Entry { current, twin, mask, len }).collect()
}

/// Refuses pages and masks that do not lie at 16-byte boundaries inside their operands. The kernel
/// cannot, as the table is on the device; whether masks overlap is not looked at.
pub fn check(entries: &[Entry], operands: &Operands<'_>) -> Result<()> {
    entries.iter().try_for_each(|entry| {
        page_list::check_len(entry.len)?;
        operands.current.check("current", entry.current, entry.len)?;
        operands.twin.check("twin", entry.twin, entry.len)?;
        operands.mask.check("mask", entry.mask, mask_bytes(entry.len))
    })
}

/// What the kernel computes for one page; the number of differing bytes is returned.
///
/// # Panics
/// If the two copies differ in length, or the mask is shorter than [`mask_bytes`].
pub fn oracle(current: &[u8], twin: &[u8], mask: &mut [u8]) -> u32 {
    assert_eq!(current.len(), twin.len(), "both copies of a page have one length");
    let mut count = 0;
    mask[..mask_bytes(current.len() as u64) as usize].fill(0);
    for (b, (current, twin)) in current.iter().zip(twin).enumerate() {
        if current != twin {
            mask[b / 8] |= 1 << (b % 8);
            count += 1;
        }
    }
    count
}

/// Enqueues the masks of the pages in `entries`, an array of [`Entry`] on the device at an 8-byte
/// boundary. `counts` gets a u32 for each, at a 4-byte boundary.
///
/// # Safety
/// `module` is [`MODULE`] on the stream's device; the ranges are memory of that device, stay valid
/// and are not written by others until the work completes; every page in the table passes
/// [`check`], and the masks overlap nothing else that the launch reads or writes.
pub unsafe fn launch(
    stream: &Stream,
    module: &Module,
    operands: Operands<'_>,
    entries: DeviceSlice<'_>,
    counts: DeviceSlice<'_>,
) -> Result<()> {
    let groups = page_list::count(entries, counts)?;
    let [(current, current_at), (twin, twin_at), (mask, mask_at)] = operands.arguments(stream.device())?;
    if groups == 0 {
        return Ok(());
    }
    let params = page_list::to_bytes(&[current_at, twin_at, mask_at]);
    let args = [
        KernelArg::Buffer(current),
        KernelArg::Buffer(twin),
        KernelArg::Buffer(mask),
        KernelArg::Buffer(entries.ptr()),
        KernelArg::Buffer(counts.ptr()),
        KernelArg::Bytes(&params),
    ];
    // SAFETY: the arguments are those of the kernel, the table and the counts have room for every
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
        KernelArg::Buffer(mask),
        KernelArg::Buffer(entries),
        KernelArg::Buffer(counts),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("byte_mask has five buffers and one parameter struct");
    };
    let Some([current_at, twin_at, mask_at]) = page_list::words_of(params) else {
        unreachable!("byte_mask has 24 bytes of parameters")
    };
    let pages = launch.groups as usize;
    // SAFETY: the caller passes the host address of an entry for each group, at an 8-byte boundary.
    let entries = unsafe { slice::from_raw_parts(entries.0 as *const Entry, pages) };
    // SAFETY: as above, of a word for each group, at a 4-byte boundary, that nobody else uses.
    let counts = unsafe { slice::from_raw_parts_mut(counts.0 as *mut u32, pages) };
    // Slices of single pages: others may be using what lies between the masks.
    for (entry, count) in entries.iter().zip(counts) {
        *count = 0;
        if entry.len == 0 {
            continue; // It may have no memory at all.
        }
        let len = entry.len as usize;
        let (current, twin) = (current.offset_by(current_at + entry.current), twin.offset_by(twin_at + entry.twin));
        let mask = mask.offset_by(mask_at + entry.mask);
        // SAFETY: the caller vouches that page and mask lie inside their operands, that nobody
        // writes the page meanwhile, and that nobody else uses the mask.
        let (current, twin, mask) = unsafe {
            (
                slice::from_raw_parts(current.0 as *const u8, len),
                slice::from_raw_parts(twin.0 as *const u8, len),
                slice::from_raw_parts_mut(mask.0 as *mut u8, mask_bytes(entry.len) as usize),
            )
        };
        *count = oracle(current, twin, mask);
    }
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    /// The whole allocations of current pages, twins and masks, with bytes before and between them.
    content: [Vec<u8>; 3],
    /// Offsets in the ranges that the launch is given.
    entries: Vec<Entry>,
    /// How far into its allocation each range begins.
    shift: [usize; 3],
    by_address: bool,
    seed: u64,
}

/// How many bytes of 256 are changed, by kind of page.
const CHANGES: [u64; 4] = [0, 2, 100, 256];

impl Case {
    /// `count` pages of `page_bytes`, the last one ragged and one in eight empty, in random order
    /// at random boundaries; from page to page no, few, many or all bytes are changed.
    pub fn draw(draw: &mut Draw, count: usize, page_bytes: u64) -> Self {
        let lens = draw.page_lengths(count, page_bytes);
        let masks: Vec<_> = lens.iter().map(|len| mask_bytes(*len)).collect();
        let shift = [(); 3].map(|()| draw.below(40) as usize * 16);
        let places = [&lens, &lens, &masks].map(|lens| draw.places(lens));
        let mut content: [Vec<u8>; 3] =
            [0, 1, 2].map(|operand| draw.bytes(shift[operand] + places[operand].1 as usize));
        let entry = |page: usize| Entry {
            current: places[0].0[page],
            twin: places[1].0[page],
            mask: places[2].0[page],
            len: lens[page],
        };
        let entries: Vec<_> = (0..count).map(entry).collect();
        for entry in &entries {
            let changes = CHANGES[draw.below(CHANGES.len() as u64) as usize];
            let (at, len) = (positions(entry, shift), entry.len as usize);
            for i in 0..len {
                let change = if draw.below(256) < changes { 1 << draw.below(8) } else { 0 };
                content[0][at[0] + i] = content[1][at[1] + i] ^ change;
            }
        }
        let mut case = Self { content, entries, shift, by_address: false, seed: draw.seed() };
        case.poison();
        case
    }

    /// Fills every mask with the complement of the answer: a byte that the kernel leaves alone is
    /// wrong.
    fn poison(&mut self) {
        let ([_, _, masks], _) = self.expected();
        for entry in &self.entries {
            let first = positions(entry, self.shift)[2];
            let mask = first..first + mask_bytes(entry.len) as usize;
            for (poisoned, answer) in self.content[2][mask.clone()].iter_mut().zip(&masks[mask]) {
                *poisoned = !answer;
            }
        }
    }

    /// The same with addresses in the table, for devices that have their own.
    #[must_use]
    pub fn by_address(self) -> Self {
        Self { by_address: true, ..self }
    }

    /// Runs the kernel over poisoned masks and counts and compares counts and whole allocations
    /// with the oracle's; the error is a sentence about the first wrong word or byte.
    pub fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        let (expected, expected_counts) = self.expected();
        let (found, counts) = self.on_device(stream, module, &expected_counts).map_err(|error| error.to_string())?;
        let compared = known_answer::compare("the count of page", &counts, &expected_counts).and_then(|()| {
            let mut operands = ["of current, byte", "of twin, byte", "of the masks, byte"]
                .into_iter()
                .zip(found.iter().zip(&expected));
            operands.try_for_each(|(name, (found, expected))| known_answer::compare(name, found, expected))
        });
        compared.map_err(|wrong| format!("{} pages: {wrong} (seed {})", self.entries.len(), self.seed))
    }

    fn expected(&self) -> ([Vec<u8>; 3], Vec<u32>) {
        let mut content = self.content.clone();
        let [current, twin, masks] = &mut content;
        let compare = |entry: &Entry| {
            let (at, len) = (positions(entry, self.shift), entry.len as usize);
            let mask = &mut masks[at[2]..at[2] + mask_bytes(entry.len) as usize];
            oracle(&current[at[0]..at[0] + len], &twin[at[1]..at[1] + len], mask)
        };
        let counts = self.entries.iter().map(compare).collect();
        (content, counts)
    }

    fn on_device(&self, stream: &Stream, module: &Module, expected: &[u32]) -> Result<([Vec<u8>; 3], Vec<u32>)> {
        let on_device = |bytes: &[u8]| known_answer::on_device(stream, bytes);
        let memory = [on_device(&self.content[0])?, on_device(&self.content[1])?, on_device(&self.content[2])?];
        let counts = on_device(&known_answer::complement(expected))?;
        let (bases, starts) = page_list::bases(&memory, self.shift, self.by_address)?;
        let moved = |entry: &Entry| Entry {
            current: entry.current + starts[0],
            twin: entry.twin + starts[1],
            mask: entry.mask + starts[2],
            len: entry.len,
        };
        let entries: Vec<_> = self.entries.iter().map(moved).collect();
        let operands = Operands { current: bases[0], twin: bases[1], mask: bases[2] };
        check(&entries, &operands)?;
        let table = on_device(&encode(&entries))?;
        // SAFETY: the allocations live until the downloads below have waited for the work; pages
        // and masks were checked and drawn beside each other.
        unsafe { launch(stream, module, operands, table.slice(), counts.slice()) }?;
        let content = |memory: &Allocation| known_answer::content(stream, memory);
        let found = [content(&memory[0])?, content(&memory[1])?, content(&memory[2])?];
        Ok((found, known_answer::u32s(&content(&counts)?)))
    }
}

/// Where the page and its mask begin in each whole allocation.
fn positions(entry: &Entry, shift: [usize; 3]) -> [usize; 3] {
    [entry.current as usize + shift[0], entry.twin as usize + shift[1], entry.mask as usize + shift[2]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bit_is_set_exactly_where_a_byte_differs(len in 0_usize..300, changed in prop::collection::vec(any::<u32>(), 0..20)) {
            let (mut current, twin) = (vec![7; len], vec![7; len]);
            let mut bytes = std::collections::BTreeSet::new();
            for at in changed.into_iter().filter(|_| len > 0) {
                current[at as usize % len] = 8;
                bytes.insert(at as usize % len);
            }
            let mut mask = vec![0xa5; mask_bytes(len as u64) as usize];
            prop_assert_eq!(oracle(&current, &twin, &mut mask) as usize, bytes.len());
            let set: Vec<_> = (0..mask.len() * 8).filter(|b| mask[b / 8] >> (b % 8) & 1 == 1).collect();
            prop_assert_eq!(set, bytes.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_mask_of_a_page_of_64_kib_has_8_kib() {
        assert_eq!((mask_bytes(65536), mask_bytes(9), mask_bytes(0)), (8192, 2, 0));
    }

    #[test]
    fn entries_survive_the_trip_to_the_device() {
        let entries = [
            Entry { current: 16, twin: u64::MAX, mask: 3, len: 4 },
            Entry { current: 0, twin: 0, mask: 1 << 40, len: 0 },
        ];
        assert_eq!(decode(&encode(&entries)), entries);
    }
}
