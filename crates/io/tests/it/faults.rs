//! What goes wrong half-way: each failure is an error with file, offset and device, never a
//! success, and leaves no slot and no pinned buffer behind.

use crate::support::{
    Fault, FaultStorage, Faulty, check_read, choices, content_of, file_of, folder, host, only, poisoned, random,
    small_options,
};
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{Device, DeviceChoice, HostOptions, discover};
use bifolio_io::cache_state::evict;
use bifolio_io::{Cancel, EngineChoice, EngineKind, ErrorKind, ReadOptions, Router, RouterOptions};
use bifolio_testing::until;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: u64 = 2 << 20;

fn reading_engines() -> [EngineKind; 2] {
    [EngineKind::Cached, EngineKind::Direct]
}

/// A router whose reads go wrong as `fault` says, after `reads` good ones.
fn faulty_router(reads: i64, fault: Fault) -> Router {
    let storage = Arc::new(Faulty(FaultStorage::new(reads, fault)));
    Router::new(&host(), RouterOptions { storage, ..small_options() })
}

fn no_slot_is_lost(router: &Router) {
    let stats = router.pool_stats();
    assert_eq!(stats.idle_slots, stats.allocated_slots, "a slot was lost");
}

#[test]
fn an_i_o_error_half_way_is_reported_with_its_place() {
    let folder = folder();
    let content = random().bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    for engine in reading_engines() {
        for reads in [0, 1, 7, 20] {
            let router = faulty_router(reads, Fault::Error(libc::EIO));
            let file = router.open(&path).unwrap();
            let memory = poisoned(router.device(), SIZE);
            let error = router.read(&file, 0, None, memory.slice(), &only(engine)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Read, "{engine}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("data, offset ") && text.contains("into host:0") && text.contains("Input/output"),
                "{text}"
            );
            no_slot_is_lost(&router);
        }
    }
}

#[test]
fn short_reads_are_completed() {
    let folder = folder();
    let content = random().bytes(300_000);
    let path = file_of(folder.path(), "data", &content);
    for (engine, most) in [(EngineKind::Cached, 777), (EngineKind::Direct, 4096), (EngineKind::Direct, 12_288)] {
        let router = faulty_router(0, Fault::Short(most));
        let file = router.open(&path).unwrap();
        check_read(&router, &file, 5, 299_000, EngineChoice::Only(engine), &content[5..299_005]);
    }
}

#[test]
fn a_file_truncated_during_the_read_is_an_error_under_each_engine() {
    let folder = folder();
    let content = random().bytes(SIZE);
    for engine in reading_engines() {
        for (reads, size) in [(0, 0), (0, 100_001), (5, 700_000), (3, 4096), (10, SIZE - 1)] {
            let path = file_of(folder.path(), "data", &content);
            let router = faulty_router(reads, Fault::Truncate(path.clone(), size));
            let file = router.open(&path).unwrap();
            let memory = poisoned(router.device(), SIZE);
            let outcome = router.read(&file, 0, None, memory.slice(), &only(engine));
            // The last bytes may have been read before the cut: then the read is whole.
            match outcome {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Truncated, "{engine} {reads} {size}: {error}"),
                Ok(report) => assert!(content_of(&memory) == content, "{engine} {reads} {size}: {report:?}"),
            }
            no_slot_is_lost(&router);
        }
    }
}

#[test]
fn a_file_truncated_under_a_registration_is_an_error_and_no_signal() {
    let folder = folder();
    let content = random().bytes(SIZE);
    for size in [0, 1, 4096, 1_000_000, SIZE - 4096] {
        let path = file_of(folder.path(), "data", &content);
        // The shaped link gives the truncation time to come between planning and copying.
        let options = HostOptions { latency: Some(std::time::Duration::from_millis(60)), ..HostOptions::default() };
        let router = Router::new(&Device::host(&options), small_options());
        let file = router.open(&path).unwrap();
        let memory = router.device().alloc(SIZE).unwrap();
        let path = &path;
        let outcome = std::thread::scope(|scope| {
            let options = only(EngineKind::Mapped);
            let progress = Arc::clone(&options.progress);
            scope.spawn(move || {
                until("the copy is on its way", || progress.load(Ordering::SeqCst) > 0);
                std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
            });
            router.read(&file, 0, None, memory.slice(), &options)
        });
        let error = outcome.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Device | ErrorKind::BadRange),
            "{size}: {error}"
        );
        assert!(error.to_string().contains("truncated"), "{error}");
        no_slot_is_lost(&router);
    }
}

/// On a GPU the driver copies short pieces with the CPU: a page that the truncation took away is
/// then a SIGBUS, unless no short piece ever comes from a mapping.
#[test]
fn a_truncation_at_any_moment_under_any_engine_on_any_device_is_an_error_or_too_late() {
    let (folder, mut random) = (folder(), random());
    let size = 6_000_000 + random.below(200_000);
    let content = random.bytes(size);
    let devices = discover().into_iter().flat_map(|report| report.devices);
    for device in devices.map(|info| bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap()) {
        let router = Router::new(&device, RouterOptions::default());
        let maps = device.capabilities().host_register_read_only.is_yes();
        let choices = choices().into_iter().filter(|choice| maps || *choice != EngineChoice::Only(EngineKind::Mapped));
        for choice in choices.cycle().take(40) {
            let path = file_of(folder.path(), "data", &content);
            let file = router.open(&path).unwrap();
            let memory = poisoned(&device, size);
            let (cut, moved, is_over) = (random.below(size), random.below(size), &AtomicBool::new(false));
            let outcome = std::thread::scope(|scope| {
                let options = ReadOptions { engine: choice, ..ReadOptions::default() };
                let (path, progress) = (&path, Arc::clone(&options.progress));
                scope.spawn(move || {
                    while progress.load(Ordering::SeqCst) < moved && !is_over.load(Ordering::SeqCst) {
                        std::hint::spin_loop();
                    }
                    std::fs::File::options().write(true).open(path).unwrap().set_len(cut).unwrap();
                });
                let outcome = router.read(&file, 0, None, memory.slice(), &options);
                is_over.store(true, Ordering::SeqCst);
                outcome
            });
            match outcome {
                // Whole, or what was left when the request began.
                Ok(report) => {
                    let bytes = report.bytes as usize;
                    assert!(report.bytes == size || report.bytes == cut, "{choice}: {report:?}");
                    let seen = content_of(&memory);
                    // A `pread` that found the old size may still see the zeroes with which the kernel fills
                    // the rest of the last page, or folio, while it cuts the file.
                    let differs =
                        (0..bytes).find(|&at| seen[at] != content[at] && (seen[at] != 0 || at < cut as usize));
                    assert_eq!(differs, None, "{choice} on {}, cut to {cut}", device.id());
                }
                Err(error) => assert!(error.to_string().contains("truncated"), "{choice}: {error}"),
            }
            no_slot_is_lost(&router);
        }
    }
}

#[test]
fn a_device_that_fails_a_copy_fails_the_request_and_leaks_nothing() {
    let folder = folder();
    let content = random().bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    for choice in choices() {
        for good in [0, 1, 5] {
            let faults = Arc::new(Faults::default());
            let device = Device::from_backend(FaultBackend::new(host().backend(), &faults));
            let router = Router::new(&device, small_options());
            let file = router.open(&path).unwrap();
            let memory = poisoned(&device, SIZE);
            faults.copies.store(good, Ordering::SeqCst);
            let options = ReadOptions { engine: choice, ..ReadOptions::default() };
            let outcome = router.read(&file, 0, None, memory.slice(), &options);
            // One mapped copy carries it all, so with one good copy that read is whole.
            let Err(error) = outcome else {
                assert!(good > 0 && choice == EngineChoice::Only(EngineKind::Mapped), "{choice} {good}");
                continue;
            };
            assert_eq!(error.kind(), ErrorKind::Device, "{choice}: {error}");
            assert!(error.to_string().contains("into host:0: a copy to the device failed on purpose"), "{error}");
            no_slot_is_lost(&router);
            // The router works again once the device does.
            faults.copies.store(-1, Ordering::SeqCst);
            check_read(&router, &file, 0, SIZE, choice, &content);
            drop(router);
            assert_eq!(faults.pinned_held.load(Ordering::SeqCst), 0, "pinned memory leaked");
        }
    }
}

#[test]
fn pinned_memory_that_runs_out_makes_a_read_slower_or_fails_it() {
    let folder = folder();
    let content = random().bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    for engine in reading_engines() {
        for good in [1, 2, 0] {
            let faults = Arc::new(Faults::default());
            faults.pinned.store(good, Ordering::SeqCst);
            let device = Device::from_backend(FaultBackend::new(host().backend(), &faults));
            let router = Router::new(&device, small_options());
            let file = router.open(&path).unwrap();
            if good > 0 {
                check_read(&router, &file, 0, SIZE, EngineChoice::Only(engine), &content);
                assert!(router.pool_stats().allocated_slots <= good as usize);
            } else {
                let memory = poisoned(&device, SIZE);
                let error = router.read(&file, 0, None, memory.slice(), &only(engine)).unwrap_err();
                assert!(error.to_string().contains("no pinned host memory"), "{error}");
            }
            drop(router);
            assert_eq!(faults.pinned_held.load(Ordering::SeqCst), 0);
        }
    }
}

#[test]
fn a_registration_that_fails_is_an_error_for_mapped_and_none_for_auto() {
    let folder = folder();
    let content = random().bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let faults = Arc::new(Faults::default());
    faults.registrations.store(0, Ordering::SeqCst);
    let device = Device::from_backend(FaultBackend::new(host().backend(), &faults));
    let router = Router::new(&device, small_options());
    let file = router.open(&path).unwrap();
    let error = router.read(&file, 0, None, poisoned(&device, SIZE).slice(), &only(EngineKind::Mapped)).unwrap_err();
    assert!(error.to_string().contains("a registration failed on purpose"), "{error}");
    for _ in 0..10 {
        check_read(&router, &file, 0, SIZE, EngineChoice::Auto, &content);
    }
}

/// Symptom: without a budget, `mapped` registered the same window of 256 MiB once for every 64 MiB
/// that it copied. Cause: windows that are not kept were not looked for among those in use.
#[test]
fn a_window_that_cannot_be_kept_is_registered_once_for_a_request() {
    let size = 130 << 20;
    let folder = folder();
    let path = folder.path().join("sparse");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let faults = Arc::new(Faults::default());
    faults.registrations.store(1, Ordering::SeqCst);
    let device = Device::from_backend(FaultBackend::new(host().backend(), &faults));
    let router = Router::new(&device, RouterOptions { mapped_bytes: 0, ..small_options() });
    let file = router.open(&path).unwrap();
    let memory = device.alloc(size).unwrap();
    router.read(&file, 0, None, memory.slice(), &only(EngineKind::Mapped)).unwrap();
}

/// Symptom: a read of which some bytes never arrived was reported as a success. Cause: a panic in
/// a helping thread was swallowed, and the batch that it was moving was missed by nobody.
#[test]
fn a_panic_in_an_engine_fails_the_request() {
    let folder = folder();
    let content = random().bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    for reads in [0, 3, 10, 20] {
        for engine in reading_engines() {
            let router = faulty_router(reads, Fault::Panic);
            let file = router.open(&path).unwrap();
            let memory = poisoned(router.device(), SIZE);
            let error = router.read(&file, 0, None, memory.slice(), &only(engine)).unwrap_err();
            assert!(error.to_string().contains("panicked"), "{engine}: {error}");
            no_slot_is_lost(&router);
        }
    }
}

/// Symptom: a short read of cached bytes went through although it was cancelled, and its bytes
/// were not counted as progress. Cause: the quick path looked at neither option.
#[test]
fn a_short_cached_read_can_be_cancelled_and_counts_as_progress() {
    let folder = folder();
    let path = file_of(folder.path(), "data", &random().bytes(5000));
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let memory = poisoned(router.device(), 5000);
    let options = ReadOptions::default();
    router.read(&file, 0, None, memory.slice(), &options).unwrap();
    assert_eq!(options.progress.load(Ordering::SeqCst), 5000);
    options.cancel.cancel();
    let error = router.read(&file, 0, None, memory.slice(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}

#[test]
fn ranges_that_make_no_sense_are_refused_with_the_file_and_the_offset() {
    let folder = folder();
    let path = file_of(folder.path(), "data", b"0123456789");
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let memory = poisoned(router.device(), 5);
    for choice in choices() {
        let options = ReadOptions { engine: choice, ..ReadOptions::default() };
        let refuse = |offset, length| router.read(&file, offset, length, memory.slice(), &options).unwrap_err();
        let beyond = refuse(11, None);
        assert_eq!(beyond.kind(), ErrorKind::BadRange);
        assert!(beyond.to_string().contains("data, offset 11, into host:0: offset is beyond the end"), "{beyond}");
        assert_eq!(refuse(1, Some(u64::MAX)).kind(), ErrorKind::BadRange);
        assert_eq!(refuse(0, Some(i64::MAX as u64 + 1)).kind(), ErrorKind::BadRange);
        assert_eq!(refuse(0, Some(10)).kind(), ErrorKind::BadDestination);
    }
}

#[test]
fn a_cancelled_read_says_so_and_leaves_nothing_in_flight() {
    let folder = folder();
    let content = random().bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    for choice in choices() {
        let options = HostOptions { bandwidth: Some(50e6), ..HostOptions::default() };
        let router = Router::new(&Device::host(&options), small_options());
        let file = router.open(&path).unwrap();
        if choice != EngineChoice::Only(EngineKind::Cached) && !file.is_in_memory() {
            evict(&file, 0..SIZE).unwrap();
        }
        let cancel = Cancel::default();
        let options = ReadOptions { engine: choice, cancel: cancel.clone(), ..ReadOptions::default() };
        let memory = router.device().alloc(SIZE).unwrap();
        cancel.cancel();
        let error = router.read(&file, 0, None, memory.slice(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        no_slot_is_lost(&router);
    }
}

#[test]
fn a_stale_or_foreign_or_impossible_profile_is_refused() {
    let folder = folder();
    let router = Router::new(&host(), small_options());
    let file = router.open(file_of(folder.path(), "data", b"x")).unwrap();
    let options = bifolio_io::calibrate::Options { bytes: 64 << 20, repetitions: 1, seed: 3 };
    let profile = bifolio_io::calibrate::calibrate(&router, folder.path(), &options, &mut |_, _| {}).unwrap();
    assert!(profile.costs.are_sane());
    let path = folder.path().join("profile.json");
    profile.store(&path).unwrap();
    let load = || bifolio_io::Profile::load(&path, router.device(), &file);
    assert_eq!(load().unwrap(), profile);
    let text = std::fs::read_to_string(&path).unwrap();
    let refused = |changed: String, why: &str| {
        std::fs::write(&path, changed).unwrap();
        let error = load().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Profile);
        assert!(error.to_string().contains(why) && error.to_string().contains("bifolio calibrate"), "{error}");
    };
    refused(text[..text.len() / 2].to_owned(), "damaged");
    refused("[]".to_owned(), "damaged");
    refused(text.replace("\"version\": 1", "\"version\": 7"), "version 7");
    refused(text.replace("\"device\": \"host", "\"device\": \"GPU"), "another device");
    refused(text.replace("\"file_system\": \"type ", "\"file_system\": \"type f"), "another file system");
    refused(text.replacen("\"bytes_per_s\": ", "\"bytes_per_s\": -", 1), "impossible");
}
