//! Whether what device memory returns can be believed, and how long it may take.
//!
//! While the system sleeps, a GPU may lose its memory, and some drivers say nothing. So what was read is believed only if the
//! system has not slept since the memory was taken; else it is dropped whole, as if the device had been lost. Host memory
//! is kept by any sleep.
//!
//! In a virtual machine whose host moves device memory away (WSL2) a copy can take seconds. A device that does so is left
//! alone like one that fails, but what it holds stays good.

use super::PagingCache;
use crate::directory::Head;
use crate::store::Store;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A clock that tells how long the system has slept since it was started.
pub type SleepClock = fn() -> Duration;

/// Differences below are of reading two clocks one after the other.
const SLEPT_MIN_MS: u64 = 500;
/// A copy of at most a block that takes longer is not a copy within a machine.
const SLOW: Duration = Duration::from_millis(200);

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

impl PagingCache {
    /// Copies out of a slot that the caller has pinned. After a failure, which is noted, the bytes are of no use.
    pub(super) fn copy_out(&self, slot: u32, at: u64, buffer: &mut [u8]) -> Result<(), ()> {
        let store = self.store();
        let store = store.as_ref().ok_or(())?;
        self.timed(|| store.read(slot, at, buffer))?;
        if self.is_stale(store) { Err(()) } else { Ok(()) }
    }

    /// Copies into a slot that the caller has pinned. After a failure, which is noted, the slot's bytes are of no use.
    pub(super) fn copy_in(&self, slot: u32, at: u64, data: &[u8]) -> Result<(), ()> {
        let store = self.store();
        let store = store.as_ref().ok_or(())?;
        self.timed(|| store.write(slot, at, data))?;
        if self.is_stale(store) { Err(()) } else { Ok(()) }
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
        let done = copy();
        let took = begun.elapsed();
        if done.is_ok() && took > SLOW {
            self.device_slow(took);
        }
        done.map_err(|error| self.device_failed(&error))
    }

    fn device_slow(&self, took: Duration) {
        let is_news = self.health().failed(self.now_ms());
        self.serves.store(false, Ordering::Release);
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
