//! Long work in parts, which the threads of this process share: members are read and written at the same time, and so
//! are P and Q computed.

use crate::{BlockDevice, Error, Result};
use bifolio_compute::ThreadPool;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// A part of a request has so many bytes at least.
const PART_BYTES_MIN: u64 = 1 << 20;
/// Stripes that are rebuilt, scrubbed or resynchronised at the same time: more than there may be processors, as each of
/// them waits for its members in between.
const STRIPES: usize = 4;

/// Does work on parts of a range, given as offset and length, which end at stripes; by several threads if it is
/// long.
pub(super) fn divide(
    stripe_bytes: u64,
    offset: u64,
    len: u64,
    work: &(dyn Fn(u64, u64) -> Result<()> + Sync),
) -> Result<()> {
    let pool = ThreadPool::of_process();
    let width = pool.width(len, PART_BYTES_MIN);
    if width == 1 {
        return work(offset, len);
    }
    pool.divide(width, parts(stripe_bytes, offset, len, width as u64), |(at, len)| work(at, len))
}

/// Flushes devices, at the same time where they are disks, whose large requests are the cheapest. The number of
/// one that failed, with its error.
pub(super) fn flush_all(devices: &[(usize, &dyn BlockDevice)]) -> Result<(), (usize, Error)> {
    let is_disk = |device: &dyn BlockDevice| device.geometry().optimal_bytes >= 65536;
    let width = if devices.iter().all(|(_, device)| is_disk(*device)) { devices.len() } else { 1 };
    let flush = |(number, device): &(usize, &dyn BlockDevice)| device.flush().map_err(|error| (*number, error.into()));
    ThreadPool::of_process().divide(width, devices, flush)
}

/// Does work on stripes, several at a time.
pub(super) fn each_stripe(stripes: Range<u64>, work: &(dyn Fn(u64) -> Result<()> + Sync)) -> Result<()> {
    let (pool, count) = (ThreadPool::of_process(), stripes.end.saturating_sub(stripes.start) as usize);
    let width = pool.width(u64::MAX, 1).max(STRIPES);
    pool.divide(width, (0..count).map(|number| stripes.start + number as u64), work)
}

/// Columns of stripes that were read, kept for the next ones: memory that is given back to the system and taken again
/// costs a page fault for every page of it, which is as much as reading a member from memory.
#[derive(Debug, Default)]
pub(super) struct Columns(Mutex<Vec<Vec<u8>>>);

/// Kept at most: those of the stripes that are worked on at the same time, of arrays of 16 members.
const KEPT_MAX: usize = 16 * STRIPES;
/// And none longer than this.
const KEPT_BYTES_MAX: usize = 1 << 20;

impl Columns {
    /// Memory of a length, with anything in it.
    pub(super) fn take(&self, len: usize) -> Vec<u8> {
        let kept = if len == 0 { None } else { self.0.lock().unwrap_or_else(PoisonError::into_inner).pop() };
        let mut column = kept.unwrap_or_default();
        column.resize(len, 0);
        column
    }

    pub(super) fn give_back(&self, columns: Vec<Vec<u8>>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_use = columns.into_iter().filter(|column| (1..=KEPT_BYTES_MAX).contains(&column.len()));
        let room = KEPT_MAX - kept.len();
        kept.extend(of_use.take(room));
    }
}

/// A range in `count` parts, or one more, which end at stripes.
fn parts(stripe_bytes: u64, offset: u64, len: u64, count: u64) -> Vec<(u64, u64)> {
    let part = len.div_ceil(count).next_multiple_of(stripe_bytes);
    let (mut at, end) = (offset, offset + len);
    let mut parts = vec![];
    while at < end {
        let next = end.min(at / stripe_bytes * stripe_bytes + part);
        parts.push((at, next - at));
        at = next;
    }
    parts
}

/// A buffer whose parts are filled by several threads.
pub(super) struct Shared<'a> {
    start: *mut u8,
    offset: u64,
    buffer: PhantomData<&'a mut [u8]>,
}

// SAFETY: threads use parts that do not overlap, see `part`.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// A buffer whose first byte is the one at an offset.
    pub(super) fn new(buffer: &'a mut [u8], offset: u64) -> Self {
        Self { start: buffer.as_mut_ptr(), offset, buffer: PhantomData }
    }

    /// # Safety
    /// The range is inside the buffer, and no other part that is in use overlaps it.
    #[allow(clippy::mut_from_ref, reason = "parts do not overlap")]
    pub(super) unsafe fn part(&self, at: u64, len: u64) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add((at - self.offset) as usize), len as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_tile_the_range_and_end_at_stripes(
            stripe in 1_u64..3 << 20, offset in 0_u64..1 << 30, len in 0_u64..64 << 20, count in 1_u64..9
        ) {
            let parts = parts(stripe, offset, len, count);
            prop_assert!(parts.len() as u64 <= count + 1);
            let mut at = offset;
            for (i, (start, len)) in parts.iter().enumerate() {
                prop_assert_eq!(*start, at);
                at += len;
                prop_assert!(at % stripe == 0 || i + 1 == parts.len());
            }
            prop_assert_eq!(at, offset + len);
        }
    }

    #[test]
    fn every_stripe_is_worked_on_once() {
        for stripes in [3..3, 3..4, 0..11] {
            let seen = Mutex::new(vec![]);
            each_stripe(stripes.clone(), &|stripe| {
                seen.lock().unwrap().push(stripe);
                Ok(())
            })
            .unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(stripes));
        }
    }
}
