//! Long work divided among threads: members are read and written at the same time, and so are P and Q computed.

use crate::{BlockDevice, Error, Result};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;
use std::thread::ScopedJoinHandle;

/// A thread has so many bytes of a request at least.
const PART_BYTES: u64 = 1 << 20;
const PARTS_MAX: u64 = 8;
/// Stripes that are rebuilt, scrubbed or resynchronised at the same time.
const STRIPES: usize = 4;

/// Does work on parts of a range, given as offset and length, which end at stripes; by several threads if it is
/// long.
pub(super) fn divide(
    stripe_bytes: u64,
    offset: u64,
    len: u64,
    work: &(dyn Fn(u64, u64) -> Result<()> + Sync),
) -> Result<()> {
    let parts = parts(stripe_bytes, offset, len);
    if let [(at, len)] = parts[..] {
        return work(at, len);
    }
    std::thread::scope(|scope| {
        let threads = parts.into_iter().map(|(at, len)| scope.spawn(move || work(at, len)));
        join(threads.collect())
    })
}

/// Flushes devices, at the same time where they are disks, whose large requests are the cheapest. The number of
/// one that failed, with its error.
pub(super) fn flush_all(devices: &[(usize, &dyn BlockDevice)]) -> Result<(), (usize, Error)> {
    let is_disk = |device: &dyn BlockDevice| device.geometry().optimal_bytes >= 65536;
    if devices.len() < 2 || !devices.iter().all(|(_, device)| is_disk(*device)) {
        return devices.iter().try_for_each(|(number, device)| device.flush().map_err(|error| (*number, error.into())));
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            devices.iter().map(|(number, device)| (*number, scope.spawn(|| device.flush()))).collect();
        let ended: Vec<_> = threads.into_iter().map(|(number, thread)| (number, thread.join())).collect();
        ended.into_iter().try_for_each(|(number, end)| {
            end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(|error| (number, error.into()))
        })
    })
}

/// Does work on stripes, several at a time.
pub(super) fn each_stripe(stripes: Range<u64>, work: &(dyn Fn(u64) -> Result<()> + Sync)) -> Result<()> {
    let end = stripes.end;
    let one_in = |first: u64| (first..end).step_by(STRIPES).try_for_each(work);
    std::thread::scope(|scope| {
        let threads = stripes.take(STRIPES).map(|first| scope.spawn(move || one_in(first)));
        join(threads.collect())
    })
}

/// The first error of all threads, once they have ended.
fn join(threads: Vec<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    let ended: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
    ended.into_iter().try_for_each(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn parts(stripe_bytes: u64, offset: u64, len: u64) -> Vec<(u64, u64)> {
    let count = (len / PART_BYTES).clamp(1, PARTS_MAX.min(processors()));
    let part = len.div_ceil(count).next_multiple_of(stripe_bytes);
    let (mut at, end) = (offset, offset + len);
    let mut parts = vec![];
    loop {
        let next = if count == 1 { end } else { end.min(at / stripe_bytes * stripe_bytes + part) };
        parts.push((at, next - at));
        at = next;
        if at == end {
            return parts;
        }
    }
}

/// Asked once, as the answer takes 40 us where there are control groups.
fn processors() -> u64 {
    static COUNT: OnceLock<u64> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u64))
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
            stripe in 1_u64..3 << 20, offset in 0_u64..1 << 30, len in 0_u64..64 << 20
        ) {
            let parts = parts(stripe, offset, len);
            prop_assert!(parts.len() as u64 <= PARTS_MAX + 1);
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
            let seen = std::sync::Mutex::new(vec![]);
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
