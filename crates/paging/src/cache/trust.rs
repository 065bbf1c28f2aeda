//! Whether what device memory returns can be believed, and how long it may take.
//!
//! While the system sleeps, a GPU may lose its memory, and some drivers say nothing. So what was read is believed only if the
//! system has not slept since the memory was taken; else it is dropped whole, as if the device had been lost. Host memory
//! is kept by any sleep.
//!
//! A copy that does not end is noticed by the housekeeper, and then nobody else begins one: whoever is in it waits, and all
//! others are served from the backing. Any other call that does not end (the housekeeper's: counting, taking and giving back
//! memory) has the device left alone as well, but what only the device has is still copied from it.
//!
//! In a virtual machine whose host moves device memory away (WSL2) a copy can take seconds. A device that does so is left
//! alone like one that fails, but what it holds stays good.

use super::PagingCache;
use crate::directory::Head;
use crate::store::{Piece, Store};
use crate::table::Pinned;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock that tells how long the system has slept since it was started.
pub type SleepClock = fn() -> Duration;

/// Differences below are of reading two clocks one after the other.
const SLEPT_MIN_MS: u64 = 500;
/// A copy of at most a request that takes longer is not a copy within a machine.
const SLOW: Duration = Duration::from_millis(200);
/// One that takes longer may never end.
const HANGING_MS: u64 = 1000;
/// Copies whose time is watched; more than threads that serve.
const COPIES_MAX: usize = 64;
/// Other calls: the housekeeper's, and one of whoever changes the size.
const CALLS_MAX: usize = 4;

/// What is under way in the device.
#[derive(Debug)]
pub(super) struct UnderWay {
    copies: Watched<COPIES_MAX>,
    calls: Watched<CALLS_MAX>,
}

impl UnderWay {
    pub(super) const fn new() -> Self {
        Self { copies: Watched::new(), calls: Watched::new() }
    }
}

/// When each began, in milliseconds plus one; 0 for none.
#[derive(Debug)]
struct Watched<const N: usize> {
    begun: [AtomicU64; N],
    is_hanging: AtomicBool,
}

impl<const N: usize> Watched<N> {
    const fn new() -> Self {
        Self { begun: [const { AtomicU64::new(0) }; N], is_hanging: AtomicBool::new(false) }
    }

    /// Has one watched; where too many are already, it is not.
    fn begin(&self, now_ms: u64) -> Option<&AtomicU64> {
        self.begun
            .iter()
            .find(|begun| begun.compare_exchange(0, now_ms + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Looks whether one does not end.
    fn look(&self, now_ms: u64) -> bool {
        let is_old = |begun: u64| begun != 0 && now_ms.saturating_sub(begun - 1) > HANGING_MS;
        let hangs = self.begun.iter().any(|begun| is_old(begun.load(Ordering::Acquire)));
        self.is_hanging.store(hangs, Ordering::Release);
        hangs
    }
}

/// How long the system has slept: the clock that runs meanwhile beside the one that does not.
pub(super) fn slept() -> Duration {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a structure of ours; both clocks exist.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let awake = read(libc::CLOCK_MONOTONIC);
    read(libc::CLOCK_BOOTTIME).saturating_sub(awake)
}

/// Why bytes did not get into a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotCopied {
    /// The slot has what it had.
    Untouched,
    /// What it has of these bytes is of no use.
    Broken,
}

impl PagingCache {
    /// Copies out of a slot that the caller has pinned, as [`PagingCache::copy_out_all`] does.
    pub(super) fn copy_out(&self, slot: Pinned, at: u64, buffer: &mut [u8]) -> Result<(), ()> {
        self.copy_out_all(&[Piece { slot, at, len: buffer.len() }], buffer)
    }

    /// Copies out of slots that the caller has pinned. After a failure, which is noted, the bytes are of no use. A slot whose
    /// memory was lost meanwhile may be somebody else's by now, and is not touched.
    pub(super) fn copy_out_all(&self, pieces: &[Piece], buffer: &mut [u8]) -> Result<(), ()> {
        let store = self.store();
        let are_there = !self.is_hanging() && pieces.iter().all(|piece| self.is_there(piece.slot));
        let store = store.as_ref().filter(|_| are_there).ok_or(())?;
        self.timed(|| store.read(pieces, buffer))?;
        if self.is_stale(store) { Err(()) } else { Ok(()) }
    }

    /// Copies into a slot that the caller has pinned. After a failure, which is noted, the slot's bytes are of no use. As in
    /// [`PagingCache::copy_out`], a slot whose memory was lost is not touched.
    pub(super) fn copy_in(&self, slot: Pinned, at: u64, data: &[u8]) -> Result<(), NotCopied> {
        let store = self.store();
        let store = store.as_ref().filter(|_| self.is_there(slot) && !self.is_hanging());
        let store = store.ok_or(NotCopied::Untouched)?;
        self.timed(|| store.write(slot.at, at, data)).map_err(|()| NotCopied::Broken)?;
        if self.is_stale(store) { Err(NotCopied::Broken) } else { Ok(()) }
    }

    /// Whether the memory that a slot was pinned in is there. The store is locked, so that stays as it is.
    fn is_there(&self, slot: Pinned) -> bool {
        slot.opening == self.opening.load(Ordering::Acquire)
    }

    fn is_hanging(&self) -> bool {
        self.under_way.copies.is_hanging.load(Ordering::Acquire)
    }

    /// Leaves a device alone in which something does not end; whether that is a copy, so that somebody has the store.
    pub(super) fn leave_hanging(&self, now: u64) -> bool {
        let is_copy = self.under_way.copies.look(now);
        if !self.under_way.calls.look(now) && !is_copy {
            return false;
        }
        let is_news = self.health().failed(now);
        self.leave_alone();
        if is_news {
            let what = if is_copy { "a copy" } else { "a call" };
            self.complain(format!(
                "{what} of the device has not ended for {HANGING_MS} ms; {} serves from the backing, and the device is tried \
                 again when it has",
                self.name
            ));
        }
        is_copy
    }

    /// Calls the device, and has that watched.
    pub(super) fn watched<T>(&self, call: impl FnOnce() -> T) -> T {
        let watched = self.under_way.calls.begin(self.now_ms());
        let done = call();
        if let Some(watched) = watched {
            watched.store(0, Ordering::Release);
        }
        done
    }

    /// Notes that the cache has no memory that a sleep could have harmed.
    pub(super) fn believe(&self) {
        self.directory.head(Head::SleptMs).store(self.slept_ms(), Ordering::Release);
    }

    /// Whether the memory may have been lost in a sleep; it is dropped then.
    fn is_stale(&self, store: &Store) -> bool {
        let before = self.directory.head(Head::SleptMs).load(Ordering::Acquire);
        if store.is_host_memory() || self.slept_ms().saturating_sub(before) < SLEPT_MIN_MS {
            return false;
        }
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            self.serves.store(false, Ordering::Release);
            self.health().failed(self.now_ms());
            self.retry_now();
            self.complain(format!("the system has slept, so {} drops what it had in device memory", self.name));
        }
        true
    }

    fn slept_ms(&self) -> u64 {
        (self.sleep_clock)().as_millis() as u64
    }

    /// Copies, and leaves the device alone for a while if that failed or took too long.
    fn timed(&self, copy: impl FnOnce() -> bifolio_device::Result<()>) -> Result<(), ()> {
        let begun = Instant::now();
        let watched = self.under_way.copies.begin(self.now_ms());
        let done = copy();
        if let Some(watched) = watched {
            watched.store(0, Ordering::Release);
        }
        let took = begun.elapsed();
        if done.is_ok() && took > SLOW {
            self.device_slow(took);
        }
        done.map_err(|error| self.device_failed(&error))
    }

    fn device_slow(&self, took: Duration) {
        let is_news = self.health().failed(self.now_ms());
        self.leave_alone();
        if is_news {
            self.complain(format!(
                "the device took {} ms for a copy, as where somebody else moves its memory away (a virtual machine's host, \
                 WSL2); {} serves from the backing, and the device is tried again later",
                took.as_millis(),
                self.name
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Mode, Options, format_backing};
    use crate::header::HEADER_BYTES;
    use crate::pages::Pages;
    use bifolio_block::BlockDevice;
    use bifolio_block::faults::FaultyDevice;
    use bifolio_device::backend::fault::{FaultBackend, Faults};
    use bifolio_device::{Device, HostOptions};
    use std::sync::Arc;

    const CHUNK: u64 = 2 << 20;

    fn cache(device: Device) -> PagingCache {
        let backing = FaultyDevice::new("swap.img", vec![0; (HEADER_BYTES + CHUNK) as usize]);
        format_backing(&backing, CHUNK).unwrap();
        let options = Options::new(Arc::new(backing), Box::new(move || Ok(device.clone())), CHUNK);
        PagingCache::open(Options { mode: Mode::WriteThrough, ..options }).unwrap()
    }

    /// A request that was about to copy from a lost device waited for that to give its memory back.
    #[test]
    fn memory_of_a_lost_device_is_given_back_without_holding_a_request_up() {
        let (host, faults) = (Device::host(&HostOptions::default()), Arc::<Faults>::default());
        let cache = cache(Device::from_backend(FaultBackend::new(host.backend(), &faults)));
        cache.write(0, &[1; 4096]).unwrap();
        let (slot, _) = cache.table().look(&cache.directory, 0, Pages(1)).slot.unwrap();
        cache.is_lost.store(true, Ordering::Release);
        faults.memory_hangs.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let dropping = scope.spawn(|| cache.tick());
            bifolio_testing::until("memory is given back", || faults.hanging.load(Ordering::SeqCst) > 0);
            let copying = scope.spawn(|| cache.copy_out(slot, 0, &mut [0; 4096]));
            // One that waits ends with what it waits for.
            let begun = Instant::now();
            while !copying.is_finished() && begun.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            let has_waited = !copying.is_finished();
            faults.memory_hangs.store(false, Ordering::SeqCst);
            assert!(!has_waited && dropping.join().is_ok());
            assert_eq!(copying.join().unwrap(), Err(()));
        });
    }

    #[test]
    fn bytes_are_not_copied_by_what_was_looked_up_in_memory_that_was_lost() {
        let cache = cache(Device::host(&HostOptions::default()));
        cache.write(0, &[1; 4096]).unwrap();
        let (old, _) = cache.table().look(&cache.directory, 0, Pages(1)).slot.unwrap();
        let mut seen = [0; 4096];
        cache.copy_out(old, 0, &mut seen).unwrap();
        assert_eq!(seen, [1; 4096]);
        // As after an error that takes the device's memory with it.
        cache.health().failed(0);
        cache.is_lost.store(true, Ordering::Release);
        cache.retry_now();
        cache.tick();
        assert!(cache.is_serving() && cache.memory_bytes() == CHUNK);
        (0..32).for_each(|block| cache.write(block << 16, &[2; 4096]).unwrap());
        assert!(cache.copy_out(old, 0, &mut seen).is_err() && cache.copy_in(old, 0, &[3; 4096]).is_err());
        assert_eq!(seen, [1; 4096]);
        for block in 0..32 {
            cache.read(block << 16, &mut seen).unwrap();
            assert_eq!(seen, [2; 4096], "block {block}");
        }
        cache.table().unpin(&cache.directory, old);
    }
}
