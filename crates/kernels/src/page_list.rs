//! How a kernel that works on a list of pages finds them: a table on the device with an entry for
//! each page, and for each operand a base to which the entries' places are added.
//!
//! An entry is four 64-bit words, three places and a length. Every place is a multiple of 16; one
//! group of threads takes one entry.

use crate::{Error, ErrorKind, Result, WORD_BYTES};
use bifolio_device::{Allocation, Device, DevicePtr, DeviceSlice};

/// Size of an entry in the device's table.
pub(crate) const ENTRY_BYTES: u64 = 32;

/// What the places of one operand in a table are counted from.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// Places are offsets in this range. It works on every device. Operands that lie in one
    /// allocation are best given as that whole allocation: what OpenCL kernels do through parts of
    /// a buffer that overlap is undefined, and there a range reaches to its allocation's end.
    Range(DeviceSlice<'a>),
    /// Places are addresses, so that every page may lie in another allocation. It needs a device
    /// with addresses of its own, which those with `virtual_memory` have.
    Addresses,
}

impl<'a> Base<'a> {
    /// The base as a kernel gets it: a buffer, and what is added to every place.
    pub(crate) fn argument(self, device: &Device) -> Result<(DevicePtr, u64)> {
        match self {
            Self::Range(range) if !range.is_empty() && !range.ptr().0.is_multiple_of(WORD_BYTES) => {
                Err(bad(format!("a list of pages counts from {}, which is no 16-byte boundary", range.ptr())))
            }
            Self::Range(range) => {
                let beyond = range.ptr().0 % device.info().kernel_buffer_alignment.max(WORD_BYTES);
                Ok((DevicePtr(range.ptr().0 - beyond), beyond))
            }
            Self::Addresses => match device.capabilities().virtual_memory.reason() {
                None => Ok((DevicePtr(0), 0)),
                Some(missing) => Err(bad(format!(
                    "a list of pages holds addresses, which kernels on {} cannot follow ({missing}); give it ranges and offsets in them",
                    device.id()
                ))),
            },
        }
    }

    /// Refuses `len` bytes at `place` that are not at a 16-byte boundary inside the base.
    pub(crate) fn check(self, operand: &str, place: u64, len: u64) -> Result<()> {
        let limit = match self {
            Self::Range(range) => range.len(),
            Self::Addresses => u64::MAX,
        };
        if place.is_multiple_of(WORD_BYTES) && place.checked_add(len).is_some_and(|end| end <= limit) {
            return Ok(());
        }
        let base = match self {
            Self::Range(range) => format!("{} bytes of device memory", range.len()),
            Self::Addresses => "the address space".to_owned(),
        };
        Err(bad(format!("a {operand} page of {len} bytes at {place:#x} is not at a 16-byte boundary inside {base}")))
    }

    /// Refuses `len` bytes at `place` that are not inside the base, at whatever boundary.
    pub(crate) fn check_bytes(self, what: &str, place: u64, len: u64) -> Result<()> {
        let limit = match self {
            Self::Range(range) => range.len(),
            Self::Addresses => u64::MAX,
        };
        if place.checked_add(len).is_some_and(|end| end <= limit) {
            return Ok(());
        }
        Err(bad(format!("a {what} of {len} bytes at {place:#x} is not inside {limit} bytes of device memory")))
    }

    /// The memory of `len` bytes at `place`.
    ///
    /// # Safety
    /// An address in the list is one of valid memory for the slice's lifetime.
    pub(crate) unsafe fn part(self, place: u64, len: u64) -> Result<DeviceSlice<'a>> {
        match self {
            Self::Range(range) => range.part(place, len),
            // SAFETY: the caller's promise.
            Self::Addresses => Ok(unsafe { DeviceSlice::from_raw_ordered(DevicePtr(place), len) }),
        }
    }
}

/// The number of entries in a table, or what is wrong with it or with `results`, which has a u32
/// for each entry.
pub(crate) fn count(table: DeviceSlice<'_>, results: DeviceSlice<'_>) -> Result<u32> {
    if !table.len().is_multiple_of(ENTRY_BYTES) || !(table.is_empty() || table.ptr().0.is_multiple_of(8)) {
        let detail = format!("{} bytes at {} are no array of pages of 32 bytes each", table.len(), table.ptr());
        return Err(bad(detail));
    }
    let count = table.len() / ENTRY_BYTES;
    if results.len() < count * 4 || !(results.is_empty() || results.ptr().0.is_multiple_of(4)) {
        return Err(bad(format!(
            "the results of {count} pages need {} bytes at a 4-byte boundary; there are {} at {}",
            count * 4,
            results.len(),
            results.ptr()
        )));
    }
    // The limit of a grid is the smallest among the devices', CUDA's.
    i32::try_from(count).map(i32::cast_unsigned).map_err(|_| bad(format!("{count} pages are too many for one launch")))
}

/// The number of rows of `row_bytes` in a table of 64-bit words, or what is wrong with it.
pub(crate) fn rows(table: DeviceSlice<'_>, row_bytes: u64) -> Result<u64> {
    if table.len().is_multiple_of(row_bytes) && (table.is_empty() || table.ptr().0.is_multiple_of(8)) {
        return Ok(table.len() / row_bytes);
    }
    Err(bad(format!("{} bytes at {} are no table of rows of {row_bytes} bytes each", table.len(), table.ptr())))
}

/// Refuses a page whose bytes a u32 could not count.
pub(crate) fn check_len(len: u64) -> Result<()> {
    match u32::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(bad(format!("a page of {len} bytes is too long; list it as several"))),
    }
}

/// For known-answer cases: a base for each of three allocations, of which the operand begins
/// `shift` bytes into it, and what is to be added to offsets to make places of them.
pub(crate) fn bases(
    memory: &[Allocation; 3],
    shift: [usize; 3],
    by_address: bool,
) -> Result<([Base<'_>; 3], [u64; 3])> {
    let range = |i: usize| memory[i].slice().part(shift[i] as u64, memory[i].len() - shift[i] as u64);
    let ranges = [range(0)?, range(1)?, range(2)?];
    if by_address {
        return Ok(([Base::Addresses; 3], ranges.map(|range| range.ptr().0)));
    }
    Ok((ranges.map(Base::Range), [0; 3]))
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

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_outside_their_base_or_between_boundaries_are_refused() {
        // SAFETY: nothing is read or written at the address.
        let range = Base::Range(unsafe { DeviceSlice::from_raw_ordered(DevicePtr(4096), 100) });
        assert!(range.check("twin", 48, 52).is_ok());
        assert!(range.check("twin", 48, 53).unwrap_err().to_string().contains("a twin page of 53 bytes at 0x30"));
        assert!(range.check("twin", 8, 1).is_err());
        assert!(Base::Addresses.check("twin", 1 << 40, 1 << 20).is_ok());
        assert!(Base::Addresses.check("twin", u64::MAX - 15, 17).unwrap_err().to_string().contains("address space"));
        assert!(check_len(u64::from(u32::MAX)).is_ok());
        assert!(check_len(1 << 32).is_err());
    }

    #[test]
    fn words_survive_the_trip_to_the_device() {
        assert_eq!(words_of(&to_bytes(&[1, u64::MAX, 3])), Some([1, u64::MAX, 3]));
        assert_eq!(words_of::<3>(&to_bytes(&[1, 2])), None);
        assert_eq!(words_of::<1>(&[0; 9]), None);
    }
}
