//! Long ranges in parts, of which a few threads take one after the other.

use crate::Result;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

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
    let (next, is_stopped) = (AtomicU64::new(first), AtomicBool::new(false));
    let failure = Mutex::new(None);
    let work = || {
        while !is_stopped.load(Ordering::Acquire) {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= last {
                break;
            }
            let bytes = (part * part_bytes).max(range.start)..((part + 1) * part_bytes).min(range.end);
            if let Err(error) = load(bytes) {
                is_stopped.store(true, Ordering::Release);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..PARTS.min((last - first) as usize) {
            // Without a thread more, this one does its parts.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
