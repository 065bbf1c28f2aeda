//! The cache against an oracle: two devices, CPU processes that write by several ways, and what may go wrong.

use crate::support::{Draw, PAGE, World, drop_cached, random, sets};
use bifolio_cache::{Advice, Cache, CacheOptions, ErrorKind, Mapping, Mode};
use bifolio_device::{Device, DeviceSlice};
use bifolio_io::{Router, RouterOptions};
use bifolio_testing::until;
use fastrand::Rng;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn small(mode: Mode) -> CacheOptions {
    CacheOptions { page_bytes: PAGE, budget_bytes: 64 << 20, mode, ..CacheOptions::default() }
}

/// A kernel that writes.
fn store(device: &Device, mapping: &Mapping, at: u64, bytes: &[u8]) {
    // SAFETY: the part is acquired, so that it has memory.
    let slice = unsafe { DeviceSlice::from_raw(mapping.ptr().offset_by(at), bytes.len() as u64) };
    device.create_stream().unwrap().upload(slice, bytes).unwrap();
}

/// A kernel that reads.
fn load(device: &Device, mapping: &Mapping, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0x5a; len as usize];
    // SAFETY: as above.
    let slice = unsafe { DeviceSlice::from_raw(mapping.ptr().offset_by(at), len) };
    device.create_stream().unwrap().download(&mut bytes, slice).unwrap();
    bytes
}

/// A process that knows nothing of caches.
pub(crate) fn cpu_writes(path: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn a_mapped_file_is_on_the_device_and_comes_once() {
    for devices in sets(2) {
        let content = random().bytes(5_000_001);
        let world = World::new(&devices, small(Mode::Lazy), &content);
        let file = world.open();
        let mut mapping = file.map(devices[0].id(), 0..u64::MAX, false).unwrap();
        let len = mapping.len();
        let first = mapping.acquire(0..len).unwrap();
        assert_eq!((first.fetched, first.hits), (len.div_ceil(PAGE), 0));
        assert!(load(&devices[0], &mapping, 0, len) == content);
        mapping.release(0..len).unwrap();
        // Once nobody can have changed it unseen.
        until("nothing is fetched or compared", || {
            let again = mapping.acquire(100..len).unwrap();
            mapping.release(100..len).unwrap();
            assert_eq!((again.fetched, again.hits), (0, len.div_ceil(PAGE)));
            again.compared == 0 || again.always_compared
        });
    }
}

#[test]
fn what_one_releases_the_other_acquires_and_cpus_see() {
    for devices in sets(2) {
        for mode in [Mode::Lazy, Mode::Eager] {
            let content = random().bytes(100_000);
            let world = World::new(&devices, small(mode), &content);
            let file = world.open();
            let [mut one, mut two] = [0, 1].map(|n| file.map_on(n, 0..100_000, true).unwrap());
            one.acquire(0..100_000).unwrap();
            two.acquire(0..100_000).unwrap();
            store(&devices[0], &one, 5000, b"first");
            assert_eq!(load(&devices[1], &two, 5000, 5), &content[5000..5005], "it was not released");
            one.release(0..100_000).unwrap();
            if mode == Mode::Eager {
                assert_eq!(&world.file()[5000..5005], b"first");
            }
            two.acquire(0..100_000).unwrap();
            assert_eq!(load(&devices[1], &two, 5000, 5), b"first");
            // Message passing, and through a third: the second's own write on top of the first's.
            store(&devices[1], &two, 5003, b"XY");
            two.release(0..100_000).unwrap();
            let mut seen = [0; 5];
            assert_eq!(file.read(5000, &mut seen).unwrap(), 5);
            assert_eq!(&seen, b"firXY");
            if mode == Mode::Lazy {
                assert_eq!(
                    &world.file()[5000..5005],
                    &content[5000..5005],
                    "devices and a CPU have met without the file"
                );
            }
            file.sync().unwrap();
            assert_eq!(&world.file()[5000..5005], b"firXY");
            one.acquire(0..100_000).unwrap();
            assert_eq!(load(&devices[0], &one, 5000, 5), b"firXY");
        }
    }
}

/// Nobody asks for what was released, and it comes to the file.
#[test]
fn what_was_released_is_written_some_time_later() {
    for devices in sets(2) {
        let options = CacheOptions { write_back_after: Duration::from_millis(1), ..small(Mode::Lazy) };
        let world = World::new(&devices, options, &[0; 10_000]);
        let file = world.open();
        let mut both: Vec<_> = (0..2).map(|n| file.map_on(n, 0..10_000, true).unwrap()).collect();
        for round in 1..5 {
            for (number, mapping) in both.iter_mut().enumerate() {
                mapping.acquire(0..10_000).unwrap();
                store(&devices[number], mapping, 77 + number as u64 * 5000, &[round]);
                mapping.release(0..10_000).unwrap();
            }
            until("the file has it", || world.file()[77] == round && world.file()[5077] == round);
        }
    }
}

/// False sharing, down to neighbouring bytes of one word, over the ends of pages and frames.
#[test]
fn writers_of_neighbouring_bytes_never_disturb_each_other() {
    for devices in sets(2) {
        let len: u64 = (2 << 20) + 3 * PAGE + 17;
        let content = vec![0; len as usize];
        let world = World::new(&devices, small(Mode::Lazy), &content);
        let file = world.open();
        let mut both: Vec<_> = (0..2).map(|n| file.map_on(n, 0..len, true).unwrap()).collect();
        for mapping in &mut both {
            mapping.acquire(0..len).unwrap();
        }
        // The CPU has every third byte, the devices the others.
        for around in [0, PAGE, 5 * PAGE, 2 << 20, len - 20] {
            for at in around.saturating_sub(20)..(around + 20).min(len) {
                match at % 3 {
                    2 => cpu_writes(&world.path, at, &[3]),
                    who => store(&devices[who as usize], &both[who as usize], at, &[who as u8 + 1]),
                }
            }
        }
        for mapping in &mut both {
            mapping.release(0..len).unwrap();
        }
        for (number, mapping) in both.iter_mut().enumerate() {
            mapping.acquire(0..len).unwrap();
            let seen = load(&devices[number], mapping, 0, len);
            for around in [0, PAGE, 5 * PAGE, 2 << 20, len - 20] {
                for at in around.saturating_sub(20)..(around + 20).min(len) {
                    assert_eq!(u64::from(seen[at as usize]), at % 3 + 1, "byte {at} on device {number}");
                }
            }
        }
        file.sync().unwrap();
        assert!(world.file() == load(&devices[0], &both[0], 0, len));
    }
}

#[test]
fn of_two_that_race_one_wins_for_all() {
    for devices in sets(2) {
        for order in [[0, 1], [1, 0]] {
            for early in [false, true] {
                let world = World::new(&devices, small(Mode::Lazy), &[0; 10_000]);
                let file = world.open();
                let mut both: Vec<_> = (0..2).map(|n| file.map_on(n, 0..10_000, true).unwrap()).collect();
                for (number, mapping) in both.iter_mut().enumerate() {
                    mapping.acquire(0..10_000).unwrap();
                    store(&devices[number], mapping, 77, &[number as u8 + 1]);
                }
                for number in order {
                    both[number].release(0..10_000).unwrap();
                    if early {
                        file.sync().unwrap();
                    }
                }
                for (number, mapping) in both.iter_mut().enumerate() {
                    mapping.acquire(0..10_000).unwrap();
                    assert_eq!(load(&devices[number], mapping, 77, 1), [order[0] as u8 + 1], "{order:?} {early}");
                }
                file.sync().unwrap();
                assert_eq!(world.file()[77], order[0] as u8 + 1, "{order:?} {early}");
            }
        }
    }
}

#[test]
fn every_way_in_which_a_cpu_changes_a_file_is_noticed() {
    for devices in sets(2) {
        let len = 3 << 20;
        let content = random().bytes(len);
        let world = World::new(&devices, small(Mode::Lazy), &content);
        let file = world.open();
        let mut mapping = file.map_on(0, 0..len, true).unwrap();
        mapping.acquire(0..len).unwrap();
        let mut expected = content.clone();
        let mut check = |what: &str, expected: &[u8]| {
            mapping.acquire(0..len).unwrap();
            assert!(load(&devices[0], &mapping, 0, len) == expected, "{what}");
        };
        expected[10..14].copy_from_slice(b"abcd");
        cpu_writes(&world.path, 10, b"abcd");
        check("write", &expected);
        file.write(2_000_000, b"through the cache").unwrap();
        expected[2_000_000..2_000_017].copy_from_slice(b"through the cache");
        check("a write through the cache", &expected);
        // A mapping that lives on: its later stores move no times.
        let opened = File::options().read(true).write(true).open(&world.path).unwrap();
        // SAFETY: a new mapping of a file that stays as long as it is.
        let mapped = unsafe {
            use std::os::fd::AsRawFd;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len as usize, protection, libc::MAP_SHARED, opened.as_raw_fd(), 0)
                .cast::<u8>()
        };
        for round in 0..3_u8 {
            // SAFETY: inside the mapping.
            unsafe { mapped.add(1_000_000).write(round) };
            expected[1_000_000] = round;
            check("a store", &expected);
        }
        // SAFETY: nobody uses it any more.
        unsafe { libc::munmap(mapped.cast(), len as usize) };
        drop(opened);
        std::fs::write(&world.path, &expected[..2_500_000]).unwrap();
        assert_eq!(mapping.acquire(0..2_000_000).unwrap().released, 0);
        assert!(load(&devices[0], &mapping, 0, 2_000_000) == expected[..2_000_000], "a file that was cut");
    }
}

#[test]
fn files_larger_than_the_budget_are_used_by_windows_and_nothing_dirty_is_lost() {
    for devices in sets(2) {
        let (window, windows) = (2 << 20, 12);
        let mut expected = random().bytes(window * windows);
        // Three frames at a time, with twins and origins.
        let options = CacheOptions {
            page_bytes: 64 << 10,
            budget_bytes: 4 * (2 << 20),
            mode: Mode::Lazy,
            ..CacheOptions::default()
        };
        let world = World::new(&devices, options, &expected);
        let file = world.open();
        let mut mapping = file.map_on(0, 0..u64::MAX, true).unwrap();
        let mut random = random();
        for round in 0..40 {
            let at = random.below(windows) * window;
            mapping.acquire(at..at + window).unwrap();
            let place = at + random.below(window - 100);
            let bytes = random.bytes(100);
            store(&devices[0], &mapping, place, &bytes);
            expected[place as usize..place as usize + 100].copy_from_slice(&bytes);
            mapping.release(at..at + window).unwrap();
            assert!(world.cache.stats()[0].used_bytes <= options.budget_bytes, "round {round}");
        }
        // More than there is room for, at once.
        let error = mapping.acquire(0..window * windows).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("budget"), "{error}");
        file.sync().unwrap();
        assert!(world.file() == expected);
    }
}

/// Long runs are read to their places while others are prepared, save pages with changes of the device's own.
#[test]
fn a_file_that_was_written_anew_comes_under_what_the_device_has_changed() {
    for devices in sets(2) {
        let mut random = random();
        let len: u64 = (40 << 20) + 77;
        let options = CacheOptions { budget_bytes: 128 << 20, ..small(Mode::Lazy) };
        let world = World::new(&devices, options, &random.bytes(len));
        let file = world.open();
        let mut mapping = file.map_on(0, 0..len, true).unwrap();
        mapping.acquire(0..len).unwrap();
        // Everything is written anew, save the bytes that the device changes.
        let (mut expected, home) = (random.bytes(len), world.file());
        let mut anew = expected.clone();
        for at in (0..20).map(|_| random.below(len)).collect::<std::collections::BTreeSet<_>>() {
            let value = !home[at as usize];
            store(&devices[0], &mapping, at, &[value]);
            (expected[at as usize], anew[at as usize]) = (value, home[at as usize]);
        }
        file.write(0, &anew).unwrap();
        let report = mapping.acquire(0..len).unwrap();
        assert_eq!(report.fetched, len.div_ceil(PAGE));
        assert!(report.merged > 0 && report.merged <= 20, "{report:?}");
        assert!(load(&devices[0], &mapping, 0, len) == expected);
        mapping.release(0..len).unwrap();
        file.sync().unwrap();
        assert!(world.file() == expected);
    }
}

#[test]
fn a_file_may_grow_and_be_cut_while_it_is_mapped() {
    for devices in sets(2) {
        let content = random().bytes(3 * PAGE + 100);
        let world = World::new(&devices, small(Mode::Lazy), &content);
        let file = world.open();
        let mut mapping = file.map_on(0, 0..u64::MAX, true).unwrap();
        let len = mapping.len();
        mapping.acquire(0..len).unwrap();
        store(&devices[0], &mapping, PAGE + 5, b"before the end");
        store(&devices[0], &mapping, 2 * PAGE + 5, b"behind it");
        let cut = 2 * PAGE + 3;
        File::options().write(true).open(&world.path).unwrap().set_len(cut).unwrap();
        // What is behind the end reads as zeroes, and is never written.
        mapping.acquire(0..len).unwrap();
        assert_eq!(load(&devices[0], &mapping, cut, len - cut), vec![0; (len - cut) as usize]);
        mapping.release(0..len).unwrap();
        file.sync().unwrap();
        let mut expected = content[..cut as usize].to_vec();
        expected[PAGE as usize + 5..][..14].copy_from_slice(b"before the end");
        assert!(world.file() == expected);
        // It grows: by a little, which the mapping sees, and by a lot, for which it is mapped anew.
        file.write(len - 10, b"grown").unwrap();
        expected.resize(len as usize - 10, 0);
        expected.extend_from_slice(b"grown");
        mapping.acquire(0..len).unwrap();
        assert!(load(&devices[0], &mapping, 0, len - 5) == expected);
        file.write(300 << 20, b"far").unwrap();
        let error = file.map_on(0, 0..u64::MAX, true).unwrap_err();
        assert!(error.kind() == ErrorKind::BadUse && error.to_string().contains("close its other mappings"), "{error}");
        mapping.close().unwrap();
        let mut anew = file.map_on(0, 300 << 20..u64::MAX, true).unwrap();
        anew.acquire(0..3).unwrap();
        assert_eq!(load(&devices[0], &anew, 0, 3), b"far");
    }
}

#[test]
fn advice_brings_pages_and_gives_them_back() {
    for devices in sets(2) {
        let len = 20 << 20;
        let content = random().bytes(len);
        let world = World::new(&devices, small(Mode::Lazy), &content);
        let file = world.open();
        let mut mapping = file.map_on(0, 0..len, true).unwrap();
        let held = || world.cache.stats()[0].pages;
        mapping.advise(0..4 << 20, Advice::WillNeed).unwrap();
        until("what will be needed is there", || held() == (4 << 20) / PAGE);
        assert_eq!(mapping.acquire(0..4 << 20).unwrap().fetched, 0);
        store(&devices[0], &mapping, 7, b"kept");
        mapping.release(0..4 << 20).unwrap();
        mapping.acquire(0..PAGE).unwrap();
        mapping.advise(0..len, Advice::DontNeed).unwrap();
        // The frame that is acquired stays.
        assert_eq!(held(), (2 << 20) / PAGE);
        mapping.release(0..PAGE).unwrap();
        mapping.advise(0..len, Advice::DontNeed).unwrap();
        assert_eq!((held(), world.cache.stats()[0].used_bytes), (0, 0));
        assert_eq!(&world.file()[7..11], b"kept", "what was released has reached home");
        // A sequence brings what follows.
        mapping.acquire(0..1 << 20).unwrap();
        mapping.acquire(1 << 20..2 << 20).unwrap();
        until("what follows is there", || held() > (2 << 20) / PAGE);
        assert!(mapping.advise(0..len + 1, Advice::Random).is_err());
    }
}

/// A CPU's read of what is on a device, and not in the page cache, is what is in the file.
#[test]
fn cpus_read_what_only_a_device_has() {
    for devices in sets(2) {
        let mut random = random();
        let len: u64 = (24 << 20) + 333;
        let mut expected = random.bytes(len);
        let world = World::new(&devices, small(Mode::Lazy), &expected);
        let file = world.open();
        let (mut one, mut two) = (file.map_on(0, 0..len, false).unwrap(), file.map_on(1, 0..len, true).unwrap());
        // The first has the beginning, without twins; the second the end, with changes.
        one.acquire(0..10 << 20).unwrap();
        two.acquire(8 << 20..len - (2 << 20)).unwrap();
        store(&devices[1], &two, 15 << 20, b"released");
        expected[15 << 20..][..8].copy_from_slice(b"released");
        two.release(8 << 20..len - (2 << 20)).unwrap();
        two.acquire(15 << 20..16 << 20).unwrap();
        store(&devices[1], &two, 15 << 20, b"not so");
        file.sync().unwrap();
        let uncached = File::open(&world.path).unwrap();
        for _ in 0..8 {
            drop_cached(&uncached, 0..len);
            let at = random.below(len);
            let mut seen = vec![0x5a; (len - at) as usize];
            assert_eq!(file.read(at, &mut seen).unwrap() as u64, len - at);
            assert!(seen == expected[at as usize..], "from {at}");
        }
        assert!(world.cache.counts().served > 0);
    }
}

/// In the order of a program: a release comes before a write through the cache that follows it.
#[test]
fn a_cpu_overwrites_what_was_released_before() {
    for devices in sets(2) {
        let world = World::new(&devices, small(Mode::Lazy), &[0; 100]);
        let file = world.open();
        let mut mapping = file.map_on(0, 0..100, true).unwrap();
        mapping.acquire(0..100).unwrap();
        store(&devices[0], &mapping, 0, b"first, and released");
        mapping.release(0..100).unwrap();
        file.write(0, b"then").unwrap();
        file.sync().unwrap();
        assert_eq!(&world.file()[..19], b"thent, and released");
        mapping.acquire(0..100).unwrap();
        assert_eq!(load(&devices[0], &mapping, 0, 19), b"thent, and released");
    }
}

#[test]
fn a_release_publishes_its_own_pages_and_no_others_of_the_frame() {
    for devices in sets(2) {
        let world = World::new(&devices, small(Mode::Lazy), &[0; 4 * PAGE as usize]);
        let file = world.open();
        let mut one = file.map_on(0, 0..PAGE, true).unwrap();
        let mut two = file.map_on(0, 2 * PAGE..3 * PAGE, true).unwrap();
        one.acquire(0..PAGE).unwrap();
        two.acquire(0..PAGE).unwrap();
        store(&devices[0], &one, 0, b"released");
        store(&devices[0], &two, 0, b"not yet");
        assert_eq!(one.release(0..PAGE).unwrap().released, 1);
        file.sync().unwrap();
        assert_eq!(&world.file()[..8], b"released");
        assert_eq!(&world.file()[2 * PAGE as usize..][..7], &[0; 7]);
        two.release(0..PAGE).unwrap();
        file.sync().unwrap();
        assert_eq!(&world.file()[2 * PAGE as usize..][..7], b"not yet");
    }
}

#[test]
fn what_was_not_released_is_discarded_by_close_and_kept_by_sync() {
    for devices in sets(2) {
        let world = World::new(&devices, small(Mode::Lazy), &vec![0; 20_000]);
        let file = world.open();
        let mut mapping = file.map_on(0, 0..20_000, true).unwrap();
        mapping.acquire(0..20_000).unwrap();
        store(&devices[0], &mapping, 0, b"kept");
        mapping.sync().unwrap();
        assert_eq!(&world.file()[..4], b"kept");
        store(&devices[0], &mapping, 0, b"lost");
        assert_eq!(mapping.close().unwrap().discarded, 1);
        assert_eq!(mapping.close().unwrap_err().kind(), ErrorKind::BadUse);
        assert_eq!(mapping.acquire(0..1).unwrap_err().kind(), ErrorKind::BadUse);
        let mut again = file.map_on(0, 0..20_000, true).unwrap();
        again.acquire(0..20_000).unwrap();
        assert_eq!(load(&devices[0], &again, 0, 4), b"kept");
        file.sync().unwrap();
        assert_eq!(&world.file()[..4], b"kept");
    }
}

#[test]
fn wrong_use_is_refused_with_a_sentence() {
    let devices = sets(2).swap_remove(0);
    let one = &devices[0];
    let world = World::new(&devices, small(Mode::Lazy), &vec![1; 20_000]);
    let file = world.open();
    let refused = |outcome: Result<bifolio_cache::Report, bifolio_cache::Error>, kind: ErrorKind| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    };
    let mut mapping = file.map_on(0, 5000..15_000, false).unwrap();
    refused(mapping.acquire(0..10_001), ErrorKind::BadRange);
    refused(mapping.acquire(5..5), ErrorKind::BadRange);
    refused(mapping.release(0..100), ErrorKind::BadUse);
    mapping.acquire(0..100).unwrap();
    refused(mapping.release(0..99), ErrorKind::BadUse);
    mapping.release(0..100).unwrap();
    refused(mapping.release(0..100), ErrorKind::BadUse);
    assert_eq!(file.map_on(0, 20_000..u64::MAX, false).unwrap_err().kind(), ErrorKind::BadRange);
    let outside = file.map_on(0, 20_000..20_100, false).unwrap_err().to_string();
    assert!(outside.contains("bytes 20000 to 20100 lie outside the file"), "{outside}");
    assert_eq!(file.map_on(7, 0..10, false).unwrap_err().kind(), ErrorKind::BadUse);
    assert!(world.cache.open(world.path.with_file_name("absent")).unwrap_err().to_string().contains("no such file"));
    // Writes through a read-only mapping reach nobody.
    mapping.acquire(0..10_000).unwrap();
    store(one, &mapping, 0, b"unseen");
    mapping.release(0..10_000).unwrap();
    file.sync().unwrap();
    assert!(world.file() == vec![1; 20_000]);
    let bad = CacheOptions { page_bytes: 5000, ..CacheOptions::default() };
    let router = Arc::new(Router::new(one, RouterOptions::default()));
    assert_eq!(Cache::new(&[router], bad).unwrap_err().kind(), ErrorKind::BadRange);
}

/// Two devices, the CPU through the cache and a CPU process, each with bytes of its own in every page, in any
/// order, against an array.
#[test]
fn random_operations_agree_with_an_array() {
    for devices in sets(2) {
        for (round, mode) in [Mode::Lazy, Mode::Eager, Mode::Lazy].into_iter().enumerate() {
            let mut random = random();
            let len: u64 = (5 << 20) + 1234;
            let mut truth = random.bytes(len);
            // In the third round there is not room for everything.
            let budget_bytes = if round == 2 { 4 << 21 } else { 64 << 20 };
            let options = CacheOptions {
                page_bytes: PAGE << (random.below(3) * 2),
                budget_bytes,
                mode,
                ..CacheOptions::default()
            };
            let world = World::new(&devices, options, &truth);
            let file = world.open();
            let mut both: Vec<_> = (0..2).map(|n| file.map_on(n, 0..len, true).unwrap()).collect();
            for _ in 0..150 {
                // Each writer has the bytes of its number modulo 4.
                let (start, who) = (random.below(len - 5000), random.below(4));
                let own = |random: &mut Rng| {
                    let at = start + random.below(4000);
                    (at - at % 4 + who).min(len - 1 - (len - 1 - who) % 4)
                };
                match who {
                    0 | 1 => {
                        let mapping = &mut both[who as usize];
                        let part = start..start + 5000;
                        mapping.acquire(part.clone()).unwrap();
                        assert!(
                            load(&devices[who as usize], mapping, start, 5000)
                                == truth[start as usize..start as usize + 5000],
                            "device {who} at {start}"
                        );
                        for _ in 0..5 {
                            let (at, value) =
                                (own(&mut random).clamp(part.start, part.end - 1), random.below(256) as u8);
                            if at % 4 == who {
                                store(&devices[who as usize], mapping, at, &[value]);
                                truth[at as usize] = value;
                            }
                        }
                        mapping.release(part).unwrap();
                    }
                    _ => {
                        let (at, value) = (own(&mut random), random.below(256) as u8);
                        if at % 4 == who {
                            if who == 2 {
                                file.write(at, &[value]).unwrap();
                            } else {
                                cpu_writes(&world.path, at, &[value]);
                            }
                            truth[at as usize] = value;
                        }
                        let mut seen = vec![0; 5000];
                        file.read(start, &mut seen).unwrap();
                        assert!(seen == truth[start as usize..start as usize + 5000], "the CPU at {start}");
                    }
                }
            }
            file.sync().unwrap();
            assert!(world.file() == truth);
        }
    }
}
