//! A device that fails, is lost, and comes back.

use crate::support::{CHUNK, backing, cache, faulty_device, host, opens};
use bifolio_block::{BlockDevice, ErrorKind};
use bifolio_device::backend::fault::Faults as DeviceFaults;
use bifolio_device::{Device, HostOptions};
use bifolio_keeper::SharedMemory;
use bifolio_paging::directory::Head;
use bifolio_paging::stats::Counter;
use bifolio_paging::{ChunkKeeper, Housekeeper, Legacy, Mode, OpenDevice, Options, PagingCache, new_directory};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A device that can be lost the first time, and works when it is opened again.
fn replaced(faults: &Arc<DeviceFaults>, opened: &Arc<AtomicU64>) -> OpenDevice {
    let (first, opened) = (faulty_device(faults, 1 << 30), Arc::clone(opened));
    Box::new(move || {
        let is_first = opened.fetch_add(1, Ordering::SeqCst) == 0;
        Ok(if is_first { first.clone() } else { Device::host(&HostOptions::default()) })
    })
}

#[test]
fn a_lost_device_costs_a_write_through_cache_nothing_and_is_opened_again() {
    let (faults, opened) = (Arc::<DeviceFaults>::default(), Arc::<AtomicU64>::default());
    let backing = backing(8 << 20);
    let cache = cache(&backing, replaced(&faults, &opened), Mode::WriteThrough, 2);
    let bytes = bifolio_testing::noise(2 << 20, 9);
    cache.write(0, &bytes).unwrap();
    faults.life.store(0, Ordering::SeqCst);
    let mut seen = vec![0; 2 << 20];
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes && !cache.is_serving());
    cache.tick();
    cache.read(0, &mut seen).unwrap();
    cache.write(4096, &bytes[..4096]).unwrap();
    let told = cache.complaints();
    assert!(told.len() == 1 && told[0].contains("serves from the backing"), "{told:?}");
    cache.retry_now();
    cache.tick();
    assert!(cache.is_serving() && opened.load(Ordering::SeqCst) == 2);
    assert_eq!(cache.memory_bytes(), 2 * CHUNK);
    cache.read(0, &mut seen).unwrap();
    assert!(seen[..4096] == bytes[..4096] && seen[4096..8192] == bytes[..4096] && seen[8192..] == bytes[8192..]);
    let hits = cache.directory().stats().get(Counter::HitPages);
    cache.read(0, &mut seen).unwrap();
    assert!(cache.directory().stats().get(Counter::HitPages) > hits, "the second read is from the new device");
}

#[test]
fn what_only_a_lost_device_had_reads_as_an_error_until_it_is_written_again() {
    let (faults, opened) = (Arc::<DeviceFaults>::default(), Arc::<AtomicU64>::default());
    let backing = backing(8 << 20);
    let cache = cache(&backing, replaced(&faults, &opened), Mode::WriteBack, 2);
    cache.write(0, &[1; 3 * 4096]).unwrap();
    cache.flush().unwrap();
    cache.write(4096, &[2; 4096]).unwrap();
    cache.write(9 * 4096, &[3; 2 * 4096]).unwrap();
    faults.life.store(0, Ordering::SeqCst);
    let mut page = [0; 4096];
    assert_eq!(cache.read(4096, &mut page).unwrap_err().kind(), ErrorKind::Read);
    cache.tick();
    cache.retry_now();
    cache.tick();
    assert!(cache.is_serving());
    cache.read(0, &mut page).unwrap();
    assert_eq!(page, [1; 4096]);
    for at in [4096, 9 * 4096, 10 * 4096] {
        let error = cache.read(at, &mut page).unwrap_err();
        assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains(&at.to_string()), "{error}");
    }
    assert_eq!(cache.flush().unwrap_err().kind(), ErrorKind::Write, "who flushes hears of it");
    cache.flush().unwrap();
    cache.write(4096, &[4; 4096]).unwrap();
    cache.discard(9 * 4096, 4096).unwrap();
    cache.read(4096, &mut page).unwrap();
    assert_eq!(page, [4; 4096]);
    cache.read(9 * 4096, &mut page).unwrap();
    assert_eq!(page, [0; 4096]);
    assert!(cache.read(10 * 4096, &mut page).is_err());
    assert!(cache.complaints().iter().any(|said| said.contains("3 pages")));
}

/// Swap hung with a device that hung, though the backing has everything.
#[test]
fn a_copy_that_does_not_end_holds_nobody_else_up() {
    let faults = Arc::<DeviceFaults>::default();
    let backing = backing(8 << 20);
    let open = opens(faulty_device(&faults, 1 << 30));
    let cache = cache(&backing, open, Mode::WriteThrough, 2);
    let bytes = bifolio_testing::noise(2 << 20, bifolio_testing::seed());
    cache.write(0, &bytes).unwrap();
    faults.hangs.store(true, Ordering::SeqCst);
    let read = |at: usize| {
        let mut seen = vec![0; 4096];
        cache.read(at as u64, &mut seen).unwrap();
        assert!(seen == bytes[at..at + 4096]);
    };
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| read(0));
        bifolio_testing::until("the device is left alone", || {
            cache.tick();
            !cache.is_serving()
        });
        assert!(!hanging.is_finished());
        (0..bytes.len()).step_by(65536).for_each(read);
        cache.write(65536, &bytes[..4096]).unwrap();
        cache.flush().unwrap();
        cache.retry_now();
        cache.tick();
        assert!(!cache.is_serving(), "it is not tried while somebody waits for it");
        let told = cache.complaints();
        assert!(told.len() == 1 && told[0].contains("has not ended"), "{told:?}");
        faults.hangs.store(false, Ordering::SeqCst);
    });
    cache.retry_now();
    cache.tick();
    assert!(cache.is_serving());
    let mut seen = vec![0; 4096];
    cache.read(65536, &mut seen).unwrap();
    assert!(seen == bytes[..4096], "what was written meanwhile");
}

/// Chunks as a keeper has them.
#[derive(Debug, Clone, Default)]
struct Held(Arc<Mutex<BTreeMap<u32, OwnedFd>>>);

impl ChunkKeeper for Held {
    fn keep(&self, chunk: u32, memory: OwnedFd) -> bifolio_block::Result<()> {
        self.0.lock().unwrap().insert(chunk, memory);
        Ok(())
    }

    fn release(&self, chunk: u32) {
        self.0.lock().unwrap().remove(&chunk);
    }
}

/// Dirty pages were given up where a successor could not map their memory at once, though a keeper had it.
#[test]
fn memory_that_cannot_be_mapped_for_the_moment_is_waited_for() {
    let (backing, held) = (backing(8 << 20), Held::default());
    let directory = new_directory(8 << 20, 4 * CHUNK, Mode::WriteBack).unwrap();
    let adopt = |open: OpenDevice| {
        let own = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let chunks = held.0.lock().unwrap().iter().map(|(chunk, fd)| (*chunk, own(fd))).collect();
        let legacy = Legacy { directory: SharedMemory::map(own(&directory)).unwrap(), chunks };
        let options = Options { mode: Mode::WriteBack, ..Options::new(backing.clone(), open, 2 * CHUNK) };
        PagingCache::adopt(options, legacy, Some(Box::new(held.clone()))).unwrap()
    };
    let bytes = bifolio_testing::noise(1 << 20, bifolio_testing::seed());
    let first = adopt(host());
    first.set_target(2 * CHUNK);
    first.tick();
    first.write(0, &bytes).unwrap();
    drop(first);
    let had = held.0.lock().unwrap().len();
    assert_eq!(had, 2);
    let faults = Arc::<DeviceFaults>::default();
    faults.maps.store(0, Ordering::SeqCst);
    let second = adopt(opens(faulty_device(&faults, 1 << 30)));
    assert!(!second.is_serving());
    let mut seen = vec![0; 1 << 20];
    assert_eq!(second.read(0, &mut seen).unwrap_err().kind(), ErrorKind::Read);
    assert_eq!((second.directory().stats().get(Counter::LostPages), held.0.lock().unwrap().len()), (0, had));
    faults.maps.store(-1, Ordering::SeqCst);
    second.retry_now();
    second.tick();
    second.read(0, &mut seen).unwrap();
    assert!(second.is_serving() && seen == bytes);
    second.flush().unwrap();
    // What nobody could map, and what the backing has, is nobody's any more.
    drop(second);
    faults.maps.store(0, Ordering::SeqCst);
    let third = adopt(opens(faulty_device(&faults, 1 << 30)));
    assert!(held.0.lock().unwrap().is_empty() && third.directory().stats().get(Counter::LostPages) == 0);
    third.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
}

/// Lets calls of the device end, whatever happened.
struct Freed<'a>(&'a DeviceFaults);

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        self.0.memory_hangs.store(false, Ordering::SeqCst);
    }
}

fn is_hanging(faults: &DeviceFaults) -> bool {
    faults.hanging.load(Ordering::SeqCst) > 0
}

/// A question about free memory that was never answered ended all writing back, and a cache could not be ended any more.
#[test]
fn a_call_that_does_not_end_holds_neither_writing_back_nor_the_end_up() {
    let faults = Arc::<DeviceFaults>::default();
    let backing = backing(8 << 20);
    let options = Options::new(backing.clone(), opens(faulty_device(&faults, 1 << 30)), 2 * CHUNK);
    let options = Options { mode: Mode::WriteBack, flush_interval: Duration::ZERO, ..options };
    let cache = Arc::new(PagingCache::open(options).unwrap());
    cache.directory().head(Head::FreeBytes).store(CHUNK, Ordering::SeqCst);
    let housekeeper = Housekeeper::start(Arc::clone(&cache)).unwrap();
    let freed = Freed(&faults);
    faults.memory_hangs.store(true, Ordering::SeqCst);
    bifolio_testing::until("the housekeeper waits for the device", || is_hanging(&faults));
    cache.write(0, &[5; 8192]).unwrap();
    let is_clean = || cache.directory().head(Head::DirtyPages).load(Ordering::SeqCst) == 0;
    bifolio_testing::until("what was written is written back", is_clean);
    bifolio_testing::until("the device is left alone", || !cache.is_serving());
    cache.write(4096, &[6; 4096]).unwrap();
    let mut seen = [0; 8192];
    cache.read(0, &mut seen).unwrap();
    assert!(seen[..4096] == [5; 4096] && seen[4096..] == [6; 4096]);
    drop(housekeeper);
    assert!(is_hanging(&faults), "nobody has waited for it");
    cache.settle().unwrap();
    let told = cache.complaints();
    assert!(told.len() == 1 && told[0].contains("a call of the device has not ended"), "{told:?}");
    drop(freed);
    bifolio_testing::until("the device is let go", || Arc::strong_count(&cache) == 1);
    cache.retry_now();
    cache.tick();
    assert!(cache.is_serving());
}

/// A worker whose driver hung at the start never served, though the backing had everything.
#[test]
fn a_device_that_does_not_open_is_done_without_until_it_does() {
    let (backing, held) = (backing(8 << 20), Held::default());
    let directory = new_directory(8 << 20, 4 * CHUNK, Mode::WriteThrough).unwrap();
    let adopt = |open: OpenDevice| {
        let own = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let chunks = held.0.lock().unwrap().iter().map(|(chunk, fd)| (*chunk, own(fd))).collect();
        let legacy = Legacy { directory: SharedMemory::map(own(&directory)).unwrap(), chunks };
        let options = Options::new(backing.clone(), open, CHUNK);
        Arc::new(PagingCache::adopt_closed(options, legacy, Some(Box::new(held.clone()))).unwrap())
    };
    let first = adopt(host());
    first.set_target(CHUNK);
    first.tick();
    assert!(first.is_serving() && first.await_device(Duration::ZERO));
    first.write(0, &[7; 4096]).unwrap();
    drop(first);
    let is_stuck = Arc::<std::sync::atomic::AtomicBool>::new(true.into());
    let waits = Arc::clone(&is_stuck);
    let second = adopt(Box::new(move || {
        while waits.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Device::host(&HostOptions::default()))
    }));
    let housekeeper = Housekeeper::start(Arc::clone(&second)).unwrap();
    assert!(!second.await_device(Duration::from_millis(20)));
    let mut seen = [0; 4096];
    second.read(0, &mut seen).unwrap();
    assert!(seen == [7; 4096] && !second.is_serving());
    second.write(8192, &[8; 4096]).unwrap();
    is_stuck.store(false, Ordering::SeqCst);
    bifolio_testing::until("the device is opened", || second.is_serving());
    drop(housekeeper);
    let hits = || second.directory().stats().get(Counter::HitPages);
    let before = hits();
    second.read(0, &mut seen).unwrap();
    assert!(seen == [7; 4096] && hits() == before + 1, "what the predecessor had there is there");
    second.read(8192, &mut seen).unwrap();
    assert_eq!(seen, [8; 4096]);
    let told = second.complaints();
    assert!(told.len() == 1 && told[0].contains("has not been opened"), "{told:?}");
}

/// Memory that a worker had handed over when it was killed, and not noted, was held for ever and used by nobody.
#[test]
fn memory_that_was_handed_over_and_not_noted_is_let_go() {
    let (backing, held) = (backing(8 << 20), Held::default());
    let directory = new_directory(8 << 20, 4 * CHUNK, Mode::WriteThrough).unwrap();
    let device = Device::host(&HostOptions::default());
    let stray = || device.create_frame_of(CHUNK).unwrap().export().unwrap();
    held.0.lock().unwrap().insert(3, stray());
    let legacy = Legacy { directory, chunks: vec![(3, stray())] };
    let options = Options::new(backing, host(), CHUNK);
    let cache = PagingCache::adopt(options, legacy, Some(Box::new(held.clone()))).unwrap();
    assert!(cache.is_serving() && held.0.lock().unwrap().is_empty());
}

/// A chunk that could not be unmapped once could not be taken again, and no other one was tried.
#[test]
fn memory_that_could_not_be_given_back_once_can_be_taken_again() {
    let faults = Arc::<DeviceFaults>::default();
    let backing = backing(8 << 20);
    let cache = cache(&backing, opens(faulty_device(&faults, 1 << 30)), Mode::WriteThrough, 2);
    let bytes = bifolio_testing::noise(8 << 20, bifolio_testing::seed());
    cache.write(0, &bytes).unwrap();
    faults.unmaps.store(1, Ordering::SeqCst);
    cache.resize(0).unwrap();
    assert!(!cache.is_serving() && cache.memory_bytes() == 0);
    faults.unmaps.store(-1, Ordering::SeqCst);
    cache.retry_now();
    cache.tick();
    cache.resize(4 * CHUNK).unwrap();
    assert_eq!(cache.memory_bytes(), 4 * CHUNK);
    cache.write(0, &bytes).unwrap();
    let mut seen = vec![0; 8 << 20];
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
}

/// Nothing was given back while a device was left alone after an error, for up to a minute.
#[test]
fn a_device_that_is_left_alone_gives_clean_memory_back() {
    let faults = Arc::<DeviceFaults>::default();
    let backing = backing(8 << 20);
    let cache = cache(&backing, opens(faulty_device(&faults, 1 << 30)), Mode::WriteBack, 4);
    let bytes = bifolio_testing::noise(8 << 20, bifolio_testing::seed());
    cache.write(0, &bytes).unwrap();
    cache.flush().unwrap();
    cache.write(5 << 20, &bytes[5 << 20..][..4096]).unwrap();
    faults.downloads.store(0, Ordering::SeqCst);
    let mut seen = vec![0; 8 << 20];
    cache.read(0, &mut seen[..4096]).unwrap();
    assert!(!cache.is_serving());
    cache.set_target(0);
    cache.tick();
    assert!(!cache.is_serving());
    assert_eq!(cache.memory_bytes(), CHUNK, "what has the only copy of a page stays");
    faults.downloads.store(-1, Ordering::SeqCst);
    cache.retry_now();
    cache.tick();
    assert!(cache.memory_bytes() == 0 && cache.is_serving());
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
}
