//! How kernels find what a table on the device lists: rows of 64-bit words, with places that are counted from a range
//! of memory or are addresses.

use crate::launch::{WORD_BYTES, bad, is_aligned};
use bifolio_device::{Device, DevicePtr, DeviceSlice, Result};

/// What the places of one operand in a table are counted from.
#[derive(Debug, Clone, Copy)]
pub enum Addressing<'a> {
    /// Places are offsets in this range. It works on every device. Operands that lie in one
    /// allocation are best given as that whole allocation: what OpenCL kernels do through parts of
    /// a buffer that overlap is undefined, and there a range reaches to its allocation's end.
    Relative(DeviceSlice<'a>),
    /// Places are addresses, so that each may lie in another allocation. It needs a device
    /// with addresses of its own, which those with `virtual_memory` have.
    Absolute,
}

impl<'a> Addressing<'a> {
    /// As a kernel gets it: a buffer, and what is added to every place.
    pub(crate) fn argument(self, device: &Device) -> Result<(DevicePtr, u64)> {
        match self {
            Self::Relative(range) if !is_aligned(range, WORD_BYTES) => Err(bad(format!(
                "a range in which a table has offsets begins at {}, not at a 16-byte boundary",
                range.ptr()
            ))),
            Self::Relative(range) => {
                let boundary = device.info().kernel_buffer_alignment.max(WORD_BYTES);
                Ok(align_down(range.ptr(), boundary))
            }
            Self::Absolute => match device.capabilities().virtual_memory.reason() {
                None => Ok((DevicePtr(0), 0)),
                Some(missing) => {
                    let detail = format!("kernels cannot use absolute addresses ({missing}): pass ranges and offsets");
                    Err(bad(detail).on(device.id()))
                }
            },
        }
    }

    /// Refuses `len` bytes at `place` that are not at a 16-byte boundary inside what it is counted from.
    pub(crate) fn check(self, what: &str, place: u64, len: u64) -> Result<()> {
        if place.is_multiple_of(WORD_BYTES) {
            return self.check_bytes(what, place, len);
        }
        Err(bad(format!("the {what} of {len} bytes at {place:#x} does not begin at a 16-byte boundary")))
    }

    /// Refuses `len` bytes at `place` that are not inside what it is counted from, at whatever boundary.
    pub(crate) fn check_bytes(self, what: &str, place: u64, len: u64) -> Result<()> {
        if self.holds(place, len) {
            return Ok(());
        }
        Err(bad(format!("the {what} of {len} bytes at {place:#x} does not fit in {}", self.described())))
    }

    /// The memory of `len` bytes at `place`.
    ///
    /// # Safety
    /// An address is one of valid memory for the slice's lifetime.
    pub(crate) unsafe fn part(self, place: u64, len: u64) -> Result<DeviceSlice<'a>> {
        match self {
            Self::Relative(range) => range.part(place, len),
            // SAFETY: the caller's promise.
            Self::Absolute => Ok(unsafe { DeviceSlice::from_raw_ordered(DevicePtr(place), len) }),
        }
    }

    fn holds(self, place: u64, len: u64) -> bool {
        let limit = match self {
            Self::Relative(range) => range.len(),
            Self::Absolute => u64::MAX,
        };
        place.checked_add(len).is_some_and(|end| end <= limit)
    }

    fn described(self) -> String {
        match self {
            Self::Relative(range) => format!("{} bytes of device memory", range.len()),
            Self::Absolute => "the address space".to_owned(),
        }
    }
}

/// The boundary at or before `ptr`, and how far `ptr` is beyond it.
pub(crate) fn align_down(ptr: DevicePtr, boundary: u64) -> (DevicePtr, u64) {
    let beyond = ptr.0 % boundary;
    (DevicePtr(ptr.0 - beyond), beyond)
}

/// The number of rows of `row_bytes` in a table of 64-bit words, or what is wrong with it.
pub(crate) fn rows(table: DeviceSlice<'_>, row_bytes: u64) -> Result<u64> {
    if table.len().is_multiple_of(row_bytes) && is_aligned(table, 8) {
        return Ok(table.len() / row_bytes);
    }
    let (len, ptr) = (table.len(), table.ptr());
    Err(bad(format!("a table needs rows of {row_bytes} bytes at an 8-byte boundary, got {len} bytes at {ptr}")))
}

/// Words as they lie in a table or in a parameter struct.
pub(crate) fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `N` words out of their bytes.
pub(crate) fn words_of<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: [[u8; 8]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_ne_bytes))
}

/// The 32-bit words in `bytes`.
pub(crate) fn u32s(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_its_range_or_between_boundaries_is_refused() {
        // SAFETY: nothing is read or written at the address.
        let range = Addressing::Relative(unsafe { DeviceSlice::from_raw_ordered(DevicePtr(4096), 100) });
        assert!(range.check("twin", 48, 52).is_ok());
        assert!(range.check("twin", 48, 53).unwrap_err().to_string().contains("the twin of 53 bytes at 0x30"));
        assert!(range.check("twin", 8, 1).is_err());
        assert!(range.check_bytes("tag", 83, 16).is_ok());
        assert!(range.check_bytes("tag", 85, 16).unwrap_err().to_string().contains("fit in 100 bytes"));
        let absolute = Addressing::Absolute;
        assert!(absolute.check("twin", 1 << 40, 1 << 20).is_ok());
        assert!(absolute.check("twin", u64::MAX - 15, 17).unwrap_err().to_string().contains("address space"));
        assert!(absolute.check_bytes("tag", u64::MAX, 2).unwrap_err().to_string().contains("address space"));
    }

    #[test]
    fn words_survive_the_trip_to_the_device() {
        assert_eq!(words_of(&to_bytes(&[1, u64::MAX, 3])), Some([1, u64::MAX, 3]));
        assert_eq!(words_of::<3>(&to_bytes(&[1, 2])), None);
        assert_eq!(words_of::<1>(&[0; 9]), None);
    }
}
