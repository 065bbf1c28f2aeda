//! The beginning of a backing: what it is, and how its last user left it.
//!
//! It takes the first block ([`HEADER_BYTES`]), so that content stays aligned. A cache that writes back notes that it is in
//! use before its first write: whoever finds that note on opening knows that newest writes may be missing.

use crate::pages::{BLOCK_BYTES, PAGE_BYTES};
use bifolio_block::{BlockDevice, Error, ErrorKind, Result};

/// Bytes before the content.
pub const HEADER_BYTES: u64 = BLOCK_BYTES;

const MAGIC: &[u8; 8] = b"BFPAGING";
const VERSION: u32 = 1;
const LEN: usize = 36;

/// How the last user left a backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Everything that was written is in it.
    Whole,
    /// A cache that wrote through it did not end well: every write that was acknowledged is in it.
    OpenThrough,
    /// A cache that wrote back did not end well: writes since its last flush may be missing.
    OpenBack,
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of content, a multiple of a page.
    pub size: u64,
    /// How it was left.
    pub left: Left,
}

impl Header {
    /// Reads the header of a backing.
    ///
    /// # Errors
    /// `Damaged` for what is none, or one of a longer backing.
    pub fn read(backing: &dyn BlockDevice) -> Result<Self> {
        let refused = |why: &str| {
            let detail = format!("{why}; if nothing in it is wanted, have it made anew");
            Err(Error::new(ErrorKind::Damaged, backing.name(), detail))
        };
        let room = backing.geometry().size;
        if room < HEADER_BYTES {
            return refused("it is too short for the backing of a paging cache");
        }
        let mut page = Page([0; PAGE_BYTES as usize]);
        backing.read(0, &mut page.0)?;
        let field = |at: usize| u64::from_le_bytes(page.0[at..at + 8].try_into().unwrap_or_default());
        let short = |at: usize| u32::from_le_bytes(page.0[at..at + 4].try_into().unwrap_or_default());
        if &page.0[..8] != MAGIC {
            return refused("it does not begin with the header of a paging cache's backing");
        }
        if short(LEN - 4) != checksum(&page.0[..LEN - 4]) {
            return refused("the checksum of its header at offset 0 is wrong, so the header is damaged");
        }
        if short(8) != VERSION {
            return refused("its header is of another version");
        }
        let left = match short(12) {
            0 => Left::Whole,
            1 => Left::OpenThrough,
            2 => Left::OpenBack,
            _ => return refused("its header names a state that does not exist"),
        };
        let size = field(16);
        if size == 0 || !size.is_multiple_of(PAGE_BYTES) || size > room - HEADER_BYTES {
            return refused("its header tells of more content than the file can have, so the file was cut");
        }
        Ok(Self { size, left })
    }

    /// Writes the header and flushes it.
    ///
    /// # Errors
    /// The backing's.
    pub fn write(self, backing: &dyn BlockDevice) -> Result<()> {
        let mut page = Page([0; PAGE_BYTES as usize]);
        page.0[..8].copy_from_slice(MAGIC);
        page.0[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let left: u32 = match self.left {
            Left::Whole => 0,
            Left::OpenThrough => 1,
            Left::OpenBack => 2,
        };
        page.0[12..16].copy_from_slice(&left.to_le_bytes());
        page.0[16..24].copy_from_slice(&self.size.to_le_bytes());
        let sum = checksum(&page.0[..LEN - 4]);
        page.0[LEN - 4..LEN].copy_from_slice(&sum.to_le_bytes());
        backing.write(0, &page.0)?;
        backing.flush()
    }
}

/// A page for a backing that wants aligned memory.
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES as usize]);

/// CRC-32C, bit by bit: a few bytes, once.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1));
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_block::faults::FaultyDevice;

    fn backing() -> FaultyDevice {
        FaultyDevice::new("swap.img", vec![0; (HEADER_BYTES + 10 * PAGE_BYTES) as usize])
    }

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for left in [Left::Whole, Left::OpenThrough, Left::OpenBack] {
            let (backing, header) = (backing(), Header { size: 10 * PAGE_BYTES, left });
            header.write(&backing).unwrap();
            assert_eq!(Header::read(&backing).unwrap(), header);
        }
    }

    #[test]
    fn every_damaged_bit_of_a_header_is_found_and_the_file_is_named() {
        let backing = backing();
        Header { size: PAGE_BYTES, left: Left::Whole }.write(&backing).unwrap();
        for bit in 0..LEN * 8 {
            let flip = |bytes: &mut [u8]| bytes[0] ^= 1 << (bit % 8);
            backing.corrupt(bit / 8, flip, 1);
            let error = Header::read(&backing).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "bit {bit}");
            assert!(error.to_string().starts_with("swap.img: "), "{error}");
            backing.corrupt(bit / 8, flip, 1);
        }
        Header::read(&backing).unwrap();
    }

    #[test]
    fn a_file_that_was_cut_is_refused() {
        let backing = backing();
        Header { size: 11 * PAGE_BYTES, left: Left::Whole }.write(&backing).unwrap();
        assert!(Header::read(&backing).unwrap_err().to_string().contains("cut"));
        let short = FaultyDevice::new("short", vec![0; 512]);
        assert!(Header::read(&short).unwrap_err().to_string().contains("too short"));
    }
}
