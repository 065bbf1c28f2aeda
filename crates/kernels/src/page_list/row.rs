//! The table of pages, and what a kernel over it says of itself.

use crate::addressing::{self, Addressing};
use crate::launch::{bad, grid, is_aligned};
use bifolio_device::{DeviceSlice, Result};

/// Size of a row in the device's table.
pub(crate) const ROW_BYTES: u64 = 32;

/// One page: its place in each operand, a multiple of 16, and its length.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) at: [u64; 3],
    pub(crate) len: u64,
}

const _: () = assert!(size_of::<Row>() as u64 == ROW_BYTES);

/// A kernel over a list of pages. Its parameters are the three operands, the table, a word for each page, and a struct
/// of three words that are added to the places.
pub(crate) trait PageKernel {
    /// Its name in the module.
    const KERNEL: &'static str;

    /// What the operands are called in messages.
    const OPERANDS: [&'static str; 3];

    /// Which of them the oracle reads.
    const READS: [bool; 3];

    /// Bytes of each operand that a page of `len` bytes has.
    fn lens(len: u64) -> [u64; 3];

    /// What the kernel computes for one page; the page's word is returned.
    fn oracle(page: [&mut [u8]; 3]) -> u32;

    /// Which operands a page's word says were written.
    fn writes(word: u32) -> [bool; 3];

    /// The oracle in host memory that others may be using.
    ///
    /// # Safety
    /// The places are those of a page of `len` bytes, at 16-byte boundaries; what is written nobody else uses, unless
    /// the kernel allows it.
    unsafe fn on_host(page: [*mut u8; 3], len: usize) -> u32;
}

/// The table as the device reads it.
pub(crate) fn encode(rows: impl IntoIterator<Item = Row>) -> Vec<u8> {
    rows.into_iter().flat_map(|row| addressing::to_bytes(&[row.at[0], row.at[1], row.at[2], row.len])).collect()
}

pub(super) fn decode(bytes: &[u8]) -> Vec<Row> {
    let rows = bytes.chunks_exact(ROW_BYTES as usize).filter_map(addressing::words_of);
    rows.map(|[a, b, c, len]| Row { at: [a, b, c], len }).collect()
}

/// Refuses pages that do not lie at 16-byte boundaries inside their operands, or whose bytes a u32 could not count.
pub(crate) fn check<K: PageKernel>(rows: impl IntoIterator<Item = Row>, operands: [Addressing<'_>; 3]) -> Result<()> {
    rows.into_iter().try_for_each(|row| {
        check_len(row.len)?;
        let parts = operands.into_iter().zip(K::OPERANDS).zip(row.at.into_iter().zip(K::lens(row.len)));
        parts.into_iter().try_for_each(|((operand, name), (at, len))| operand.check(name, at, len))
    })
}

/// Refuses a page whose bytes a u32 could not count.
pub(crate) fn check_len(len: u64) -> Result<()> {
    match u32::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(bad(format!("a page of {len} bytes is too long: split it into pages of less than 4 GiB"))),
    }
}

/// The number of pages in a table, or what is wrong with it or with `words`, which has a u32 for each page.
pub(crate) fn count(table: DeviceSlice<'_>, row_bytes: u64, words: DeviceSlice<'_>) -> Result<u32> {
    let count = addressing::rows(table, row_bytes)?;
    if words.len() < count * 4 || !is_aligned(words, 4) {
        return Err(bad(format!(
            "the results of {count} pages need {} bytes at a 4-byte boundary, got {} at {}",
            count * 4,
            words.len(),
            words.ptr()
        )));
    }
    grid(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_trip_to_the_device() {
        let rows = [Row { at: [16, u64::MAX, 3], len: 4 }, Row { at: [0, 0, 1 << 40], len: 0 }];
        assert_eq!(decode(&encode(rows)), rows);
    }

    #[test]
    fn pages_whose_bytes_a_word_cannot_count_are_refused() {
        assert!(check_len(u64::from(u32::MAX)).is_ok());
        assert!(check_len(1 << 32).unwrap_err().to_string().contains("too long"));
    }
}
