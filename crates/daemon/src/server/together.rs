//! Files that several devices want at once: each byte is read once, by one of them, and the others copy it from there.
//!
//! A file comes in parts. A device begins with its own share of them, and reads those that nobody else is reading; the
//! others come at last, when they are on a device. So links to the host carry each byte once, and so does the disk. Who
//! comes alone gets all of it in the same way.

use super::holding::Holding;
use bifolio_cache::{Advice, CachedFile, FileId, Mapping, Report, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Shorter ranges are acquired as they are: what is saved is less than what parts cost.
const BYTES_MIN: u64 = 32 << 20;

/// Bytes of a part: each is a request, with a millisecond in which the link is not busy, and several for each device.
const PART_BYTES: Range<u64> = 16 << 20..512 << 20;
const PARTS_OF_DEVICE: u64 = 4;

/// What is brought to a number of devices.
#[derive(Debug)]
pub(super) struct Together {
    holding: Arc<Holding>,
    parts: Parts,
    /// By device: pages that were brought before they were acquired, and found there then, which are no hits.
    brought: Vec<AtomicU64>,
}

/// Parts that some device reads at the moment.
#[derive(Debug, Default)]
struct Parts {
    /// By file, and the first byte of the part.
    read: Mutex<BTreeSet<(FileId, u64)>>,
    changed: Condvar,
}

impl Parts {
    /// Whether the part is this one's to be read now; it is until it ends.
    fn begin(&self, file: FileId, part: u64) -> Option<Reading<'_>> {
        let is_new = self.read.lock().unwrap_or_else(PoisonError::into_inner).insert((file, part));
        is_new.then_some(Reading { all: self, part: (file, part) })
    }

    /// Waits until nobody reads the part.
    fn wait(&self, file: FileId, part: u64) {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_read = |read: &mut BTreeSet<_>| read.contains(&(file, part));
        drop(self.changed.wait_while(read, is_read).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A part that is being read.
struct Reading<'a> {
    all: &'a Parts,
    part: (FileId, u64),
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.all.read.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.part);
        self.all.changed.notify_all();
    }
}

/// The parts of a range: those that a device begins with first. They meet at the same places whoever asks for which range.
fn parts(range: &Range<u64>, size: u64, device: usize, devices: usize) -> Vec<Range<u64>> {
    let even = size / (devices as u64 * PARTS_OF_DEVICE);
    let bytes = even.clamp(PART_BYTES.start, PART_BYTES.end).next_multiple_of(PART_BYTES.start);
    let own = size / bytes * device as u64 / devices as u64;
    let (first, end) = (range.start / bytes, range.end.div_ceil(bytes));
    let split = own.clamp(first, end);
    let part = |number: u64| (number * bytes).max(range.start)..((number + 1) * bytes).min(range.end);
    (split..end).chain(first..split).map(part).collect()
}

impl Together {
    pub(super) fn new(holding: &Arc<Holding>, devices: usize) -> Self {
        let brought = (0..devices).map(|_| AtomicU64::new(0)).collect();
        Self { holding: Arc::clone(holding), parts: Parts::default(), brought }
    }

    /// Pages that a device's acquires have found as they were brought for them.
    pub(super) fn brought(&self, device: usize) -> u64 {
        self.brought[device].load(Ordering::Relaxed)
    }

    /// Brings what is about to be acquired to a device, together with others that want it elsewhere. What has been done;
    /// nothing where it is there, or would not be worth it.
    pub(super) fn bring(&self, id: FileId, file: &CachedFile, device: usize, range: &Range<u64>) -> Option<Report> {
        let devices = self.brought.len();
        let range = range.start..range.end.min(file.size());
        let bytes = range.end.saturating_sub(range.start);
        if devices < 2 || bytes < BYTES_MIN {
            return None;
        }
        // What is missing in the middle of a part is fetched by the acquire.
        let parts = parts(&range, file.size(), device, devices);
        if file.is_cached(device, parts.iter().flat_map(|part| [part.start, part.end - 1])) {
            return None;
        }
        let holder = self.holding.new_client();
        self.holding.note_alive(holder);
        let mapping = file.for_client(holder).map_on(device, range.clone(), false);
        // Why it cannot be brought is said by who acquires it then.
        let done = mapping.ok().and_then(|mapping| self.bring_parts(id, mapping, &range, parts));
        self.holding.note_gone(holder);
        // Those that were there are acquired twice, too.
        let pages = done.map_or(0, |report| report.fetched + report.hits);
        self.brought[device].fetch_add(pages, Ordering::Relaxed);
        done
    }

    fn bring_parts(
        &self,
        id: FileId,
        mut mapping: Mapping,
        range: &Range<u64>,
        parts: Vec<Range<u64>>,
    ) -> Option<Report> {
        // What would be brought ahead may be somebody else's part.
        mapping.advise(0..mapping.len(), Advice::Random).ok()?;
        let (mut all, mut others) = (None, vec![]);
        let mut bring = |part: &Range<u64>| -> Result<()> {
            let within = part.start - range.start..part.end - range.start;
            let report = mapping.acquire(within.clone())?;
            all = Some(all.map_or(report, |before: Report| before.and(&report)));
            mapping.release(within).map(drop)
        };
        let bring_all = || -> Result<()> {
            for part in parts {
                match self.parts.begin(id, part.start) {
                    Some(_reading) => bring(&part)?,
                    None => others.push(part),
                }
            }
            for part in others {
                self.parts.wait(id, part.start);
                bring(&part)?;
            }
            Ok(())
        };
        let _ = bring_all();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_a_range_and_devices_begin_at_different_ones() {
        let mut random = fastrand::Rng::new();
        for _ in 0..500 {
            let size = random.u64(1..20 << 30);
            let start = random.u64(..size);
            let range = start..random.u64(start + 1..=size);
            let devices = random.usize(2..9);
            let all: Vec<Vec<_>> = (0..devices).map(|device| parts(&range, size, device, devices)).collect();
            for mut parts in all.clone() {
                parts.sort_by_key(|part| part.start);
                assert_eq!((parts[0].start, parts[parts.len() - 1].end), (range.start, range.end));
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(parts.iter().all(|part| part.start < part.end && part.end - part.start <= PART_BYTES.end));
            }
        }
        let first: BTreeSet<u64> = (0..8).map(|device| parts(&(0..8 << 30), 8 << 30, device, 8)[0].start).collect();
        assert_eq!(first, (0..8).map(|device| device << 30).collect());
    }

    #[test]
    fn a_part_is_read_by_one_at_a_time_and_by_the_next_when_that_one_has_failed() {
        let all = Parts::default();
        let (file, other) = ((1, 1), (1, 2));
        let reading = all.begin(file, 0).unwrap();
        assert!(all.begin(file, 0).is_none() && all.begin(file, 1).is_some() && all.begin(other, 0).is_some());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| all.wait(file, 0));
            drop(reading);
            waits.join().unwrap();
        });
        assert!(all.begin(file, 0).is_some());
    }
}
