//! Long ranges in parts, of which a few of this process's threads take one after the other.

use crate::Result;
use bifolio_compute::ThreadPool;
use std::ops::Range;

/// Bytes of a part: enough for the rate of the link, and little beside the volumes that are worth a GPU.
const PART_BYTES: u64 = 128 << 20;
/// Parts at a time: one that is computed on and two that are on their way, as each begins and ends slowly.
const PARTS: usize = 3;

/// Calls `load` for the parts of a range, several at a time. Parts begin and end at multiples of `unit`, except where
/// the range itself does not.
///
/// # Errors
/// The first failure, which stops the others.
pub(crate) fn in_parts<E: Send>(
    range: &Range<u64>,
    unit: u64,
    load: &(dyn Fn(Range<u64>) -> Result<(), E> + Sync),
) -> Result<(), E> {
    let part_bytes = PART_BYTES.next_multiple_of(unit);
    if range.end - range.start <= part_bytes {
        return if range.is_empty() { Ok(()) } else { load(range.clone()) };
    }
    let (first, last) = (range.start / part_bytes, range.end.div_ceil(part_bytes));
    let bytes_of = |part: u64| (part * part_bytes).max(range.start)..((part + 1) * part_bytes).min(range.end);
    let parts = (0..(last - first) as usize).map(|number| bytes_of(first + number as u64));
    ThreadPool::of_process().divide(PARTS, parts, load)
}
