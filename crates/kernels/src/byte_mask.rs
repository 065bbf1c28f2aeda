//! Byte mask: which bytes of a page differ from its twin, one bit for each, and how many do.
//!
//! Bit `b % 8` of byte `b / 8` of a page's mask stands for byte `b`. A page of `len` bytes has a
//! mask of [`mask_bytes`], all of which are written; in a ragged last byte the bits beyond the page
//! are 0. With it only what a device changed travels to others: the mask and the marked bytes.
//!
//! Pages are listed in a table on the device, see [`Entry`]. One group of threads takes one page.

use crate::addressing::Addressing;
use crate::kernel::{DIFFER_H, KDEF_H, Kernel, Trial};
use crate::known_answer::Draw;
use crate::load::Kernels;
use crate::page_list::{self, PageCase, PageKernel, Row};
use bifolio_device::{DeviceSlice, ModuleSource, Result, Stream};
use std::slice;

const MODULE: ModuleSource = ModuleSource {
    name: ByteMask::KERNEL,
    source: include_str!("cl/byte_mask.cl"),
    headers: &[KDEF_H, DIFFER_H, ("byte_mask.h", include_str!("cl/byte_mask.h"))],
    kernels: &[(ByteMask::KERNEL, page_list::run_on_host::<ByteMask>)],
};

/// The kernel; [`Kernels::byte_mask`] runs it.
#[derive(Debug)]
pub struct ByteMask;

impl Kernel for ByteMask {
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

/// One page: `len` bytes at a place in both operands, and the place of its mask; places are
/// multiples of 16. It is `ByteMaskEntry` of `byte_mask.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Place of the page as the device has it.
    pub current: u64,
    /// Place of the twin.
    pub twin: u64,
    /// Place of the mask.
    pub mask: u64,
    /// Length of the page in bytes, 0 allowed.
    pub len: u64,
}

impl Entry {
    fn row(self) -> Row {
        Row { at: [self.current, self.twin, self.mask], len: self.len }
    }
}

/// Size of an [`Entry`] in the device's table.
pub const ENTRY_BYTES: u64 = page_list::ROW_BYTES;

/// What the places in the entries are counted from.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Pages as the device has them: read.
    pub current: Addressing<'a>,
    /// Their twins: read.
    pub twin: Addressing<'a>,
    /// The masks: written.
    pub mask: Addressing<'a>,
}

impl<'a> Operands<'a> {
    fn in_order(self) -> [Addressing<'a>; 3] {
        [self.current, self.twin, self.mask]
    }
}

/// Number of bytes in the mask of a page of `len` bytes.
pub fn mask_bytes(len: u64) -> u64 {
    len.div_ceil(8)
}

/// The table of pages as the device reads it.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    page_list::encode(entries.iter().map(|entry| entry.row()))
}

/// Refuses pages and masks that do not lie at 16-byte boundaries inside their operands. The kernel
/// cannot, as the table is on the device; whether masks overlap is not looked at.
pub fn check(entries: &[Entry], operands: &Operands<'_>) -> Result<()> {
    page_list::check::<ByteMask>(entries.iter().map(|entry| entry.row()), operands.in_order())
}

impl Kernels {
    /// Writes the byte masks of the pages of a table on the device, and the number of differing bytes of each.
    /// `entries` is an array of [`Entry`] at an 8-byte boundary, see [`encode`]; `counts` gets a u32 for each, at a
    /// 4-byte boundary.
    ///
    /// # Errors
    /// Ranges that do not fit, and what the device refuses.
    ///
    /// # Safety
    /// The ranges, pages and masks are memory of the stream's device, which is the one the kernels
    /// were loaded on; they stay valid and are not written by others until the work completes; every
    /// page passes [`check`], and the masks overlap nothing else here.
    pub unsafe fn byte_mask(
        &self,
        stream: &Stream,
        operands: Operands<'_>,
        entries: DeviceSlice<'_>,
        counts: DeviceSlice<'_>,
    ) -> Result<()> {
        let module = self.module(&ByteMask)?;
        // SAFETY: the caller's promise; the module is the right one.
        unsafe { page_list::run::<ByteMask>(stream, module, operands.in_order(), entries, counts) }
    }
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

impl PageKernel for ByteMask {
    const KERNEL: &'static str = "byte_mask";
    const OPERANDS: [&'static str; 3] = ["current page", "twin page", "mask"];
    const READS: [bool; 3] = [true, true, false];

    fn lens(len: u64) -> [u64; 3] {
        [len, len, mask_bytes(len)]
    }

    fn oracle([current, twin, mask]: [&mut [u8]; 3]) -> u32 {
        oracle(current, twin, mask)
    }

    fn writes(_: u32) -> [bool; 3] {
        [false, false, true]
    }

    unsafe fn on_host([current, twin, mask]: [*mut u8; 3], len: usize) -> u32 {
        // SAFETY: the caller vouches that page and mask lie there, that nobody writes the page meanwhile, and that
        // nobody else uses the mask.
        unsafe {
            let (current, twin) = (slice::from_raw_parts(current, len), slice::from_raw_parts(twin, len));
            oracle(current, twin, slice::from_raw_parts_mut(mask, mask_bytes(len as u64) as usize))
        }
    }
}

/// How many bytes of 256 are changed, by kind of page.
const CHANGES: [u64; 4] = [0, 2, 100, 256];

/// Pages of which from one to the next no, few, many or all bytes are changed. Every mask is the complement of the
/// answer: a byte that the kernel leaves alone is wrong.
fn draw_case(draw: &mut Draw, count: usize, page_bytes: u64) -> PageCase<ByteMask> {
    PageCase::draw(draw, count, page_bytes, |draw, [current, twin, mask]| {
        let changes = CHANGES[draw.below(CHANGES.len() as u64) as usize];
        for (current, twin) in current.iter_mut().zip(twin.iter()) {
            *current = twin ^ if draw.below(256) < changes { 1 << draw.below(8) } else { 0 };
        }
        oracle(current, twin, mask);
        for byte in mask {
            *byte = !*byte;
        }
    })
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
}
