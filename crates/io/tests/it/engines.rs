//! Every engine against `pread`: any offset, any length, any cache state, files of every kind.

use crate::support::{
    Random, check_read, choices, content_of, devices_besides_host, file_of, folder, host, only, poisoned, random,
    small_options, stays_in_memory,
};
use bifolio_device::{DeviceChoice, discover};
use bifolio_io::cache_state::{evict, load};
use bifolio_io::storage::{OsStorage, Storage};
use bifolio_io::{
    Costs, EngineChoice, EngineKind, ErrorKind, OpenFile, P2pDriver, PlainFile, ReadOptions, Router, RouterOptions,
};
use bifolio_testing::skip;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn every_engine_reads_any_range_in_any_cache_state() {
    let (folder, mut random) = (folder(), random());
    let size = 3_000_000 + random.below(5000);
    let content = random.bytes(size);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let edges = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65_535, 65_536, 65_537, 131_072];
    for round in 0..60 {
        set_random_state(&file, size, &mut random);
        let edge = |random: &mut Random| edges[random.below(edges.len() as u64) as usize];
        let (offset, length) = match round % 3 {
            0 => (edge(&mut random), edge(&mut random)),
            1 => (size - edge(&mut random), edge(&mut random) * 2),
            _ => (random.below(size), random.below(size)),
        };
        let expected = &content[offset as usize..(offset + length).min(size) as usize];
        for choice in choices() {
            check_read(&router, &file, offset, length, choice, expected);
        }
    }
    assert!(router.pool_stats().allocated_bytes <= router.pool_stats().limit_bytes);
}

/// Warm, cold, or random pages of both kinds.
fn set_random_state(file: &OpenFile, size: u64, random: &mut Random) {
    if file.is_in_memory() {
        return;
    }
    match random.below(3) {
        0 => load(file, 0..size).unwrap(),
        1 => evict(file, 0..size).unwrap(),
        _ => {
            evict(file, 0..size).unwrap();
            for _ in 0..random.below(12) {
                let start = random.below(size);
                load(file, start..(start + random.below(200_000)).min(size)).unwrap();
            }
        }
    }
}

#[test]
fn every_opencl_and_cuda_device_reads_what_pread_reads() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(9_000_001);
    let path = file_of(folder.path(), "data", &content);
    for device in devices_besides_host() {
        let router = Router::new(&device, RouterOptions::default());
        let file = router.open(&path).unwrap();
        let usable = choices().into_iter().filter(|choice| {
            *choice != EngineChoice::Only(EngineKind::Mapped) || device.capabilities().host_register_read_only.is_yes()
        });
        for choice in usable {
            for (offset, length) in [(0, 9_000_001), (1, 1), (4097, 5_000_000), (8_999_999, 100)] {
                set_random_state(&file, 9_000_001, &mut random);
                let end = (offset + length).min(9_000_001);
                check_read(&router, &file, offset, length, choice, &content[offset as usize..end as usize]);
            }
        }
    }
}

#[test]
fn a_half_cached_file_is_read_by_two_engines() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(32 << 20);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), RouterOptions::default());
    let file = router.open(&path).unwrap();
    if stays_in_memory(&file) {
        return;
    }
    evict(&file, 0..32 << 20).unwrap();
    load(&file, 8 << 20..16 << 20).unwrap();
    let memory = poisoned(router.device(), 32 << 20);
    let report = router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap();
    let engines: Vec<_> = report.plan.iter().map(|segment| segment.engine).collect();
    assert_eq!(engines, [EngineKind::Direct, EngineKind::Cached, EngineKind::Direct], "{report:?}");
    assert!(report.plan.iter().all(|segment| segment.actual_s > 0.0 && segment.predicted_s > 0.0), "{report:?}");
    assert!(content_of(&memory) == content);
}

#[test]
fn empty_short_and_sparse_files_are_ordinary() {
    let folder = folder();
    let router = Router::new(&host(), small_options());
    let empty = router.open(file_of(folder.path(), "empty", b"")).unwrap();
    let short = router.open(file_of(folder.path(), "short", b"xyz")).unwrap();
    let path = folder.path().join("sparse");
    let sparse = std::fs::File::create(&path).unwrap();
    sparse.set_len(1_000_000).unwrap();
    sparse.write_all_at(b"island", 500_000).unwrap();
    let mut expected = vec![0; 1_000_000];
    expected[500_000..500_006].copy_from_slice(b"island");
    let sparse = router.open(&path).unwrap();
    for choice in choices() {
        check_read(&router, &empty, 0, 10, choice, b"");
        check_read(&router, &short, 1, 10, choice, b"yz");
        check_read(&router, &short, 3, 10, choice, b"");
        check_read(&router, &sparse, 0, 1_000_000, choice, &expected);
    }
}

#[test]
fn a_file_in_memory_is_read_and_refuses_unbuffered_reads_with_a_sentence() {
    let path = Path::new("/dev/shm").join(format!("bifolio-engines-{}", std::process::id()));
    let content = random().bytes(700_001);
    if std::fs::write(&path, &content).is_err() {
        skip("/dev/shm is not writable here");
        return;
    }
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for choice in [EngineChoice::Auto, EngineChoice::Only(EngineKind::Cached), EngineChoice::Only(EngineKind::Mapped)] {
        check_read(&router, &file, 3, 700_000, choice, &content[3..]);
    }
    let memory = poisoned(router.device(), 10);
    let error = router.read(&file, 0, Some(10), memory.slice(), &only(EngineKind::Direct)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoEngine);
    assert!(error.to_string().contains("in memory"), "{error}");
}

#[test]
fn a_block_device_is_read_like_a_file() {
    let folder = folder();
    let content = random().bytes(1 << 20);
    let image = file_of(folder.path(), "disk.img", &content);
    let output = std::process::Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(&image).output();
    let node = match output {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap().trim().to_owned(),
        Ok(output) => {
            return skip(format_args!("no loop devices here: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Err(error) => return skip(format_args!("losetup does not run here: {error}")),
    };
    let outcome = std::panic::catch_unwind(|| {
        let router = Router::new(&host(), small_options());
        let file = router.open(&node).unwrap();
        assert_eq!(file.size().unwrap(), 1 << 20);
        for choice in choices() {
            check_read(&router, &file, 1000, 300_000, choice, &content[1000..301_000]);
        }
    });
    std::process::Command::new("losetup").args(["--detach", &node]).status().unwrap();
    outcome.unwrap();
}

#[test]
fn dirty_pages_are_visible_to_every_engine() {
    let (folder, mut random) = (folder(), random());
    let mut content = random.bytes(1 << 20);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let writer = std::fs::File::options().write(true).open(&path).unwrap();
    for choice in choices().into_iter().cycle().take(16) {
        let (at, patch) = (random.below(1 << 20), random.bytes(1));
        writer.write_all_at(&patch, at).unwrap();
        content[at as usize] = patch[0];
        check_read(&router, &file, 0, 1 << 20, choice, &content);
    }
}

#[test]
fn a_growing_file_is_read_as_it_was_or_longer() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(4 << 20);
    let path = file_of(folder.path(), "data", &content[..1 << 20]);
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = std::fs::File::options().append(true).open(&path).unwrap();
            for chunk in content[1 << 20..].chunks(5000) {
                writer.write_all(chunk).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        for choice in choices().into_iter().cycle() {
            let memory = poisoned(router.device(), 4 << 20);
            let options = ReadOptions { engine: choice, ..ReadOptions::default() };
            let report = router.read(&file, 0, None, memory.slice(), &options).unwrap();
            assert!(report.bytes >= 1 << 20);
            assert!(content_of(&memory)[..report.bytes as usize] == content[..report.bytes as usize], "{choice}");
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
    });
}

#[test]
fn many_requests_at_once_share_one_router() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(2 << 20);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let seeds: Vec<_> = (0..6).map(|_| random.below(u64::MAX)).collect();
    std::thread::scope(|scope| {
        for (seed, choice) in seeds.into_iter().zip(choices().into_iter().cycle()) {
            let (router, file, content) = (&router, &file, &content);
            scope.spawn(move || {
                let mut random = Random::of(seed);
                for _ in 0..20 {
                    let offset = random.below(2 << 20);
                    let length = random.below((2 << 20) - offset + 1);
                    check_read(
                        router,
                        file,
                        offset,
                        length,
                        choice,
                        &content[offset as usize..(offset + length) as usize],
                    );
                }
            });
        }
    });
    assert_eq!(router.pool_stats().idle_slots, router.pool_stats().allocated_slots, "no slot was lost");
}

#[test]
fn a_range_read_again_and_again_is_served_from_registered_pages() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(8 << 20);
    let router = Router::new(&host(), RouterOptions { mapped_bytes: 1 << 30, ..RouterOptions::default() });
    let file = router.open(file_of(folder.path(), "data", &content)).unwrap();
    let engines = || {
        let memory = poisoned(router.device(), 8 << 20);
        let report = router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap();
        assert!(content_of(&memory) == content);
        report.plan.iter().map(|segment| segment.engine).collect::<Vec<_>>()
    };
    assert_eq!(engines(), [EngineKind::Cached]);
    // Registration runs in the background; it is waited for by reading on.
    let registered = (0..1000).any(|_| engines() == [EngineKind::Mapped]);
    assert!(registered, "the range was never registered");
    // A file that shrank is not served from pages that it no longer has.
    std::fs::File::options().write(true).open(file.path()).unwrap().set_len(5_000_001).unwrap();
    check_read(&router, &file, 0, 8 << 20, EngineChoice::Auto, &content[..5_000_001]);
}

/// Symptom: after `truncate(0)` and a rewrite to the same size, reads through a kept registration
/// returned the old content, because registered pages outlive their place in the file.
#[test]
fn a_file_cut_and_written_anew_is_not_served_from_its_old_pages() {
    let (folder, mut random) = (folder(), random());
    let devices = discover().into_iter().flat_map(|report| report.devices);
    for info in devices.filter(|info| info.capabilities.host_register_read_only.is_yes()) {
        let device = bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap();
        let content = random.bytes(4 << 20);
        let router = Router::new(&device, RouterOptions { mapped_bytes: 1 << 30, ..RouterOptions::default() });
        let path = file_of(folder.path(), "data", &content);
        let file = router.open(&path).unwrap();
        check_read(&router, &file, 0, 4 << 20, EngineChoice::Only(EngineKind::Mapped), &content);
        let rewritten = random.bytes(4 << 20);
        std::fs::write(&path, &rewritten).unwrap();
        for choice in choices() {
            check_read(&router, &file, 0, 4 << 20, choice, &rewritten);
        }
    }
}

#[test]
fn without_a_budget_nothing_is_registered() {
    let folder = folder();
    let content = random().bytes(2 << 20);
    let router = Router::new(&host(), RouterOptions { mapped_bytes: 0, ..RouterOptions::default() });
    let file = router.open(file_of(folder.path(), "data", &content)).unwrap();
    for _ in 0..10 {
        let memory = poisoned(router.device(), 2 << 20);
        let report = router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap();
        assert!(report.plan.iter().all(|segment| segment.engine != EngineKind::Mapped));
    }
}

/// A driver whose "direct path" is a read and an upload, for alignment of 4 KiB.
#[derive(Debug)]
struct Double {
    used: AtomicBool,
    real: bool,
    device: bifolio_device::Device,
}

impl P2pDriver for Double {
    fn path_to(&self, _file: &PlainFile) -> Result<u64, String> {
        if self.real { Ok(4096) } else { Err("the driver is in compatibility mode".to_owned()) }
    }

    fn read(&self, file: &PlainFile, offset: u64, place: bifolio_device::DeviceSlice<'_>) -> io::Result<u64> {
        self.used.store(true, Ordering::Relaxed);
        let mut bytes = vec![0; place.len().min(300_000 / 4096 * 4096) as usize];
        let read = OsStorage.read_at(file.buffered(), &mut bytes, offset)?;
        let place = place.part(0, read as u64).map_err(io::Error::other)?;
        self.device
            .create_stream()
            .and_then(|stream| stream.upload(place, &bytes[..read]))
            .map_err(io::Error::other)?;
        Ok(read as u64)
    }
}

#[test]
fn the_direct_path_is_taken_only_where_the_driver_says_it_is_real() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(8 << 20);
    let path = file_of(folder.path(), "data", &content);
    for real in [true, false] {
        let device = host();
        let double = Arc::new(Double { used: AtomicBool::new(false), real, device: device.clone() });
        let p2p: Arc<dyn P2pDriver> = Arc::clone(&double) as _;
        // The planner takes it by itself where it is predicted to be quicker.
        let mut costs = Costs::default();
        costs.p2p.bytes_per_s = 100e9;
        let router = Router::new(&device, RouterOptions { p2p: Some(p2p), costs: Some(costs), ..small_options() });
        let file = router.open(&path).unwrap();
        if stays_in_memory(&file) {
            return;
        }
        evict(&file, 0..8 << 20).unwrap();
        let forced = router.read(&file, 0, Some(2 << 20), poisoned(&device, 2 << 20).slice(), &only(EngineKind::P2p));
        assert_eq!(forced.is_ok(), real);
        if let Err(error) = forced {
            assert!(error.to_string().contains("compatibility mode"), "{error}");
        }
        double.used.store(false, Ordering::Relaxed);
        evict(&file, 0..8 << 20).unwrap();
        check_read(&router, &file, 100, (8 << 20) - 300, EngineChoice::Auto, &content[100..(8 << 20) - 200]);
        assert_eq!(
            double.used.load(Ordering::Relaxed),
            real,
            "auto took the direct path without asking, or not at all"
        );
    }
}
