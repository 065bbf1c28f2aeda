//! The system sleeps, and device memory may have been lost meanwhile.

use crate::support::{CHUNK, backing, faulty_device, opens};
use bifolio_block::{BlockDevice, ErrorKind};
use bifolio_device::backend::fault::Faults as DeviceFaults;
use bifolio_paging::stats::Counter;
use bifolio_paging::{Mode, Options, PagingCache};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    /// How long the system has slept, as far as this thread's cache knows.
    static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn cache(mode: Mode) -> PagingCache {
    let device = faulty_device(&Arc::<DeviceFaults>::default(), 1 << 30);
    let options = Options::new(backing(8 << 20), opens(device), 2 * CHUNK);
    PagingCache::open(Options { mode, sleep_clock: || SLEPT.get(), ..options }).unwrap()
}

#[test]
fn after_a_sleep_the_backing_is_read_and_device_memory_is_taken_anew() {
    let cache = cache(Mode::WriteThrough);
    let bytes = bifolio_testing::noise(1 << 20, 5);
    cache.write(0, &bytes).unwrap();
    let mut seen = vec![0; 1 << 20];
    cache.read(0, &mut seen).unwrap();
    let hits = cache.directory().stats().get(Counter::HitPages);
    assert!(hits == 256 && seen == bytes);
    SLEPT.set(Duration::from_secs(60));
    seen.fill(0xee);
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    assert_eq!(cache.directory().stats().get(Counter::HitPages), hits, "nothing of before was believed");
    let told = cache.complaints();
    assert!(told.len() == 1 && told[0].contains("has slept"), "{told:?}");
    cache.tick();
    assert!(cache.is_serving() && cache.memory_bytes() == 2 * CHUNK);
    cache.write(0, &bytes[..4096]).unwrap();
    cache.read(0, &mut seen[..4096]).unwrap();
    assert_eq!(cache.directory().stats().get(Counter::HitPages), hits + 1);
}

#[test]
fn what_waited_in_device_memory_during_a_sleep_is_an_error_and_never_written_back() {
    let cache = cache(Mode::WriteBack);
    cache.write(0, &[1; 4096]).unwrap();
    cache.flush().unwrap();
    cache.write(0, &[2; 4096]).unwrap();
    SLEPT.set(Duration::from_secs(1));
    assert!(cache.flush().is_err());
    cache.tick();
    assert_eq!(cache.read(0, &mut [0; 4096]).unwrap_err().kind(), ErrorKind::Damaged);
    cache.write(0, &[3; 4096]).unwrap();
    let mut seen = [0; 4096];
    cache.read(0, &mut seen).unwrap();
    assert_eq!(seen, [3; 4096]);
}

#[test]
fn memory_that_was_given_back_before_a_sleep_costs_nothing() {
    let cache = cache(Mode::WriteBack);
    cache.write(0, &[4; 8192]).unwrap();
    cache.resize(0).unwrap();
    SLEPT.set(Duration::from_secs(3600));
    cache.resize(2 * CHUNK).unwrap();
    let mut seen = [0; 8192];
    cache.read(0, &mut seen).unwrap();
    assert_eq!(seen, [4; 8192]);
    cache.read(0, &mut seen).unwrap();
    assert!(cache.directory().stats().get(Counter::HitPages) >= 2 && cache.complaints().is_empty());
}
