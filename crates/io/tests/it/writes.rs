//! Writes from device memory against an oracle in host memory, and what happens when they fail.

use crate::support::{
    Fault, FaultStorage, Faulty, check_read, choices, content_of, devices_besides_host, file_of, folder, host,
    poisoned, random, small_options, stays_in_memory,
};
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{Allocation, Device, HostOptions};
use bifolio_io::cache_state::{evict, load};
use bifolio_io::{
    Buffer, EngineChoice, EngineKind, ErrorKind, OpenFile, ReadOptions, Router, RouterOptions, WriteOptions,
};
use bifolio_testing::{skip, until};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn memory_of(device: &Device, bytes: &[u8]) -> Allocation {
    let memory = device.alloc(bytes.len() as u64).unwrap();
    device.create_stream().unwrap().upload(memory.slice(), bytes).unwrap();
    memory
}

fn options(engine: EngineChoice) -> WriteOptions {
    WriteOptions { engine, ..WriteOptions::default() }
}

fn writers(file: &OpenFile) -> Vec<EngineChoice> {
    let mut writers = vec![EngineChoice::Auto, EngineChoice::Only(EngineKind::Cached)];
    if !file.is_in_memory() {
        writers.push(EngineChoice::Only(EngineKind::Direct));
    }
    writers
}

fn check_writes(device: &Device, router_options: RouterOptions, rounds: u64) {
    let (folder, mut random) = (folder(), random());
    let path = folder.path().join("data");
    let router = Router::new(device, router_options);
    let mut oracle: Vec<u8> = vec![];
    for round in 0..rounds {
        let file = router.open_for_writing(&path, true).unwrap();
        if !file.is_in_memory() && !oracle.is_empty() {
            evict(&file, 0..oracle.len() as u64).unwrap();
            if random.below(2) == 0 {
                load(&file, 0..oracle.len() as u64 / 2).unwrap();
            }
        }
        let writers = writers(&file);
        let engine = writers[random.below(writers.len() as u64) as usize];
        let largest = if random.below(3) == 0 { 3_000_000 } else { 20_000 };
        let (offset, length) = (random.below(3_000_000) as usize, random.below(largest) as usize);
        let bytes = random.bytes(length as u64);
        let memory = memory_of(device, &bytes);
        let write =
            WriteOptions { durable: random.below(2) == 0, preallocate: random.below(2) == 0, ..options(engine) };
        let report = router.write(&file, offset as u64, memory.slice(), &write).unwrap();
        assert_eq!((report.bytes, report.durable), (length as u64, write.durable));
        if length > 0 {
            oracle.resize(oracle.len().max(offset + length), 0);
            oracle[offset..offset + length].copy_from_slice(&bytes);
        }
        let seen = std::fs::read(&path).unwrap();
        assert_eq!(seen.len(), oracle.len(), "round {round}: {engine} {offset}+{length}");
        let wrong = seen.iter().zip(&oracle).position(|(one, two)| one != two);
        assert_eq!(wrong, None, "round {round}: {engine} {offset}+{length}: first wrong byte");
        if round % 5 == 0 {
            for choice in choices() {
                let usable = choice != EngineChoice::Only(EngineKind::Mapped)
                    || device.capabilities().host_register_read_only.is_yes();
                let unbuffered = choice != EngineChoice::Only(EngineKind::Direct) || !file.is_in_memory();
                if usable && unbuffered && !oracle.is_empty() {
                    check_read(&router, &file, 0, oracle.len() as u64, choice, &oracle);
                }
            }
        }
    }
}

#[test]
fn every_engine_writes_any_range_and_readers_see_it() {
    check_writes(&host(), small_options(), 60);
    check_writes(&host(), RouterOptions::default(), 20);
}

#[test]
fn every_opencl_and_cuda_device_writes_what_it_holds() {
    for device in devices_besides_host() {
        check_writes(&device, RouterOptions::default(), 15);
    }
}

/// Symptom to prevent: an unbuffered write of whole blocks puts back the bytes that another program
/// writes to the same block, beyond the end of ours.
#[test]
fn other_writers_bytes_in_the_blocks_at_the_edges_are_not_lost() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(4 << 20);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), RouterOptions::default());
    let file = router.open_for_writing(&path, false).unwrap();
    if stays_in_memory(&file) {
        return;
    }
    let other = File::options().write(true).open(&path).unwrap();
    let (start, end) = (4096 + 1000_u64, (3 << 20) + 2000_u64);
    let (first, last) = (start - 1, end);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                for at in [first, last] {
                    other.write_all_at(&[value], at).unwrap();
                    let mut seen = [0];
                    other.read_exact_at(&mut seen, at).ok();
                    let reader = File::open(&path).unwrap();
                    reader.read_exact_at(&mut seen, at).unwrap();
                    assert_eq!(seen[0], value, "a byte beside the range was put back");
                }
            }
        });
        for _ in 0..40 {
            let bytes = random.bytes(end - start);
            let memory = memory_of(router.device(), &bytes);
            router.write(&file, start, memory.slice(), &options(EngineChoice::Only(EngineKind::Direct))).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn read_only_again(router: &Router, path: &Path) {
    let file = router.open_for_writing(path, false).unwrap();
    let memory = memory_of(router.device(), b"fresh");
    assert_eq!(router.write(&file, 0, memory.slice(), &WriteOptions::default()).unwrap().bytes, 5);
}

#[test]
fn a_failed_write_is_not_reported_written_is_latched_and_grows_nothing() {
    let (folder, mut random) = (folder(), random());
    for engine in [EngineKind::Cached, EngineKind::Direct] {
        for (writes, code) in [(0, libc::ENOSPC), (3, libc::EIO), (9, libc::ENOSPC)] {
            let path = file_of(folder.path(), "data", &random.bytes(100_000));
            let storage = Arc::new(Faulty(FaultStorage::new(writes, Fault::Error(code))));
            let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
            let file = router.open_for_writing(&path, false).unwrap();
            if file.is_in_memory() && engine == EngineKind::Direct {
                skip("the file system keeps files in memory");
                continue;
            }
            let memory = memory_of(router.device(), &random.bytes(3 << 20));
            let error = router.write(&file, 50_000, memory.slice(), &options(EngineChoice::Only(engine))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Write, "{engine}: {error}");
            let text = error.to_string();
            assert!(text.contains("data, offset") && text.contains("write failed"), "{text}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 100_000, "{engine}: a failed write grew the file");
            let again = router.write(&file, 0, memory.slice(), &WriteOptions::default()).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::Latched, "{again}");
            assert_eq!(router.sync(&file).unwrap_err().kind(), ErrorKind::Latched);
            let stats = router.pool_stats();
            assert_eq!(stats.idle_slots, stats.allocated_slots, "a slot was lost");
            read_only_again(&Router::new(&host(), small_options()), &path);
        }
    }
}

#[test]
fn short_writes_are_completed() {
    let (folder, mut random) = (folder(), random());
    for (engine, most) in [(EngineKind::Cached, 777), (EngineKind::Direct, 4096), (EngineKind::Direct, 12_288)] {
        let path = folder.path().join("data");
        let storage = Arc::new(Faulty(FaultStorage::new(0, Fault::Short(most))));
        let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
        let file = router.open_for_writing(&path, true).unwrap();
        if file.is_in_memory() && engine == EngineKind::Direct {
            continue;
        }
        let bytes = random.bytes(400_001);
        let memory = memory_of(router.device(), &bytes);
        router.write(&file, 5, memory.slice(), &options(EngineChoice::Only(engine))).unwrap();
        assert!(std::fs::read(&path).unwrap()[5..] == bytes, "{engine} {most}");
        std::fs::remove_file(&path).unwrap();
    }
}

/// Symptom: a file of zeroes, reported as written. Cause: a write whose unbuffered part was refused was tried again
/// through the page cache with the same stop flag, did nothing, and was reported as done.
#[test]
fn a_refused_unbuffered_write_goes_through_the_page_cache() {
    let (folder, mut random) = (folder(), random());
    for (code, transfers) in [(libc::EINVAL, 0), (libc::EOPNOTSUPP, 0), (libc::EINVAL, 7)] {
        let path = folder.path().join("data");
        let storage = Arc::new(Faulty(FaultStorage::new(transfers, Fault::Unbuffered(code))));
        let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
        let file = router.open_for_writing(&path, true).unwrap();
        if stays_in_memory(&file) {
            return;
        }
        let bytes = random.bytes(3_000_001);
        let memory = memory_of(router.device(), &bytes);
        let durable = WriteOptions { durable: true, ..options(EngineChoice::Auto) };
        let report = router.write(&file, 5, memory.slice(), &durable).unwrap();
        assert_eq!(report.plan.iter().map(|segment| segment.length).sum::<u64>(), 3_000_001);
        assert!(std::fs::read(&path).unwrap()[5..] == bytes);
        // It is not latched, and what was asked for by name stays refused.
        router.write(&file, 0, memory.slice(), &durable).unwrap();
        let fresh = router.open_for_writing(&path, true).unwrap();
        let error = router.write(&fresh, 0, memory.slice(), &options(EngineChoice::Only(EngineKind::Direct)));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::DirectRefused);
        std::fs::remove_file(&path).unwrap();
    }
}

/// Symptom: all but the first of several writes failed, and the handle was latched. Cause: those that were planned
/// before the first was refused were not repeated.
#[test]
fn several_refused_unbuffered_writes_all_go_through_the_page_cache() {
    let (folder, mut random) = (folder(), random());
    let path = folder.path().join("data");
    let storage = Arc::new(Faulty(FaultStorage::new(0, Fault::Unbuffered(libc::EINVAL))));
    let router = Arc::new(Router::new(&host(), RouterOptions { storage, ..small_options() }));
    let file = router.open_for_writing(&path, true).unwrap();
    let bytes = random.bytes(24 << 20);
    // Two folios apart, so that they run at the same time; the file grows under all of them.
    let (length, apart) = (2 << 20, 6 << 20);
    let writes: Vec<_> = (0..8)
        .map(|number| {
            let memory = Arc::new(memory_of(router.device(), &bytes[number * (3 << 20)..][..length]));
            let durable = WriteOptions { durable: true, ..options(EngineChoice::Auto) };
            router.submit_write(&file, (number * apart) as u64, &Buffer::new(&memory), &durable)
        })
        .collect();
    for write in writes {
        assert_eq!(write.wait().unwrap().bytes, length as u64);
    }
    let seen = std::fs::read(&path).unwrap();
    for number in 0..8 {
        assert!(seen[number * apart..][..length] == bytes[number * (3 << 20)..][..length], "write {number}");
    }
}

/// Symptom: a request that never ends. Cause: writes that are shorter than a block each time were repeated
/// for ever.
#[test]
fn a_write_that_makes_no_progress_ends() {
    let (folder, mut random) = (folder(), random());
    let storage = Arc::new(Faulty(FaultStorage::new(0, Fault::Short(100))));
    let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
    let file = router.open_for_writing(folder.path().join("data"), true).unwrap();
    if stays_in_memory(&file) {
        return;
    }
    let memory = memory_of(router.device(), &random.bytes(400_000));
    let error = router.write(&file, 0, memory.slice(), &options(EngineChoice::Only(EngineKind::Direct))).unwrap_err();
    // Whether a short write of 100 bytes is refused or takes nothing is the file system's choice.
    assert!(matches!(error.kind(), ErrorKind::Write | ErrorKind::DirectRefused), "{error}");
}

/// Symptom: a finished write was gone. Cause: a cancelled write cut the file back to the size that it had
/// when the write began, and what another had written in between was gone.
#[test]
fn a_write_that_ends_early_leaves_what_others_have_written() {
    let (folder, mut random) = (folder(), random());
    let slow = HostOptions { latency: Some(std::time::Duration::from_millis(3)), ..HostOptions::default() };
    // Slots for both: the long one takes one after the other.
    let many = RouterOptions { pool_bytes: 16 << 20, ..small_options() };
    let router = Arc::new(Router::new(&Device::host(&slow), many));
    let (first, second) = (random.bytes(60_000), random.bytes(24 << 20));
    let [first_memory, second_memory] = [&first, &second].map(|bytes| Arc::new(memory_of(router.device(), bytes)));
    let path = folder.path().join("data");
    for engine in [EngineKind::Cached, EngineKind::Direct] {
        let file = router.open_for_writing(&path, true).unwrap();
        if file.is_in_memory() && engine == EngineKind::Direct {
            continue;
        }
        let write = options(EngineChoice::Only(engine));
        let second = router.submit_write(&file, 4 << 20, &Buffer::new(&second_memory), &write);
        // As the file was still empty.
        until("the long one has begun", || std::fs::metadata(&path).unwrap().len() > 0);
        router.submit_write(&file, 0, &Buffer::new(&first_memory), &options(EngineChoice::Auto)).wait().unwrap();
        second.cancel();
        assert_eq!(second.wait().unwrap_err().kind(), ErrorKind::Cancelled);
        let seen = std::fs::read(&path).unwrap();
        assert!(seen.len() >= first.len() && seen[..first.len()] == first, "{engine}: a finished write is gone");
        std::fs::remove_file(&path).unwrap();
    }
}

/// Symptom: none seen. Requests were queued in another order than their tickets, so
/// that all threads could wait for one that had no thread left.
#[test]
fn many_threads_write_the_same_bytes_and_all_come_to_an_end() {
    let (folder, mut random) = (folder(), random());
    let router = Arc::new(Router::new(&host(), small_options()));
    let file = router.open_for_writing(folder.path().join("data"), true).unwrap();
    let memory = Arc::new(memory_of(router.device(), &random.bytes(5000)));
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let write = router.submit_write(&file, 0, &Buffer::new(&memory), &options(EngineChoice::Auto));
                    assert_eq!(write.wait().unwrap().bytes, 5000);
                }
            });
        }
    });
}

/// A file system of 8 MiB in memory, where one may be mounted.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = folder();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(folder.path())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_found_before_anything_is_written_or_said() {
    let Some(disk) = SmallDisk::mount() else {
        return skip("no small file system can be mounted here (that takes root)");
    };
    let router = Router::new(&host(), small_options());
    let memory = memory_of(router.device(), &random().bytes(20 << 20));
    for preallocate in [true, false] {
        let path = disk.0.path().join(format!("data-{preallocate}"));
        std::fs::write(&path, [7; 1000]).unwrap();
        let file = router.open_for_writing(&path, false).unwrap();
        let write = WriteOptions { preallocate, ..WriteOptions::default() };
        let error = router.write(&file, 1000, memory.slice(), &write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Write, "{error}");
        assert!(error.to_string().contains("make room"), "{error}");
        assert!(std::fs::read(&path).unwrap() == [7; 1000], "preallocate {preallocate}: the file is not as it was");
    }
}

#[test]
fn what_cannot_be_written_is_refused_with_a_sentence() {
    let folder = folder();
    let path = file_of(folder.path(), "data", b"content");
    let router = Router::new(&host(), small_options());
    let memory = memory_of(router.device(), b"new");
    let file = router.open(&path).unwrap();
    let refused =
        |file: &OpenFile, offset, engine| router.write(file, offset, memory.slice(), &options(engine)).unwrap_err();
    assert_eq!(refused(&file, 0, EngineChoice::Auto).kind(), ErrorKind::ReadOnly);
    assert_eq!(router.sync(&file).unwrap_err().kind(), ErrorKind::ReadOnly);
    let file = router.open_for_writing(&path, false).unwrap();
    assert_eq!(refused(&file, u64::MAX, EngineChoice::Auto).kind(), ErrorKind::BadRange);
    assert_eq!(refused(&file, 0, EngineChoice::Only(EngineKind::Mapped)).kind(), ErrorKind::NoEngine);
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    assert_eq!(router.open_for_writing(folder.path().join("absent"), false).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(router.open_for_writing(folder.path(), true).unwrap_err().kind(), ErrorKind::NotAFile);
}

#[test]
fn a_device_that_fails_while_it_is_read_from_is_an_error() {
    let folder = folder();
    let faults = Arc::new(Faults::default());
    let device = Device::from_backend(FaultBackend::new(host().backend(), &faults));
    let router = Router::new(&device, small_options());
    let memory = memory_of(&device, &random().bytes(1 << 20));
    let path = folder.path().join("data");
    let file = router.open_for_writing(&path, true).unwrap();
    faults.downloads.store(1, Ordering::SeqCst);
    let error = router.write(&file, 0, memory.slice(), &options(EngineChoice::Only(EngineKind::Cached))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn a_cancelled_write_ends_and_may_be_made_again() {
    let (folder, mut random) = (folder(), random());
    let path = folder.path().join("data");
    let slow = HostOptions { latency: Some(std::time::Duration::from_millis(3)), ..HostOptions::default() };
    let router = Router::new(&Device::host(&slow), small_options());
    let bytes = random.bytes(3 << 20);
    let memory = memory_of(router.device(), &bytes);
    let file = router.open_for_writing(&path, true).unwrap();
    for engine in writers(&file) {
        let write = options(engine);
        let (cancel, progress) = (write.cancel.clone(), Arc::clone(&write.progress));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                until("some of it is written", || progress.load(Ordering::Relaxed) > 0);
                cancel.cancel();
            });
            let error = router.write(&file, 0, memory.slice(), &write).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        });
        router.write(&file, 0, memory.slice(), &options(engine)).unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    }
}

#[test]
fn reads_and_writes_of_the_same_bytes_come_in_the_order_of_their_submission() {
    let (folder, mut random) = (folder(), random());
    let path = file_of(folder.path(), "data", &vec![0; 600_000]);
    let router = Arc::new(Router::new(&host(), small_options()));
    let file = router.open_for_writing(&path, false).unwrap();
    let sources: Vec<_> = (1..40_u8).map(|value| Arc::new(memory_of(router.device(), &vec![value; 600_000]))).collect();
    let mut writes = vec![];
    let mut reads = vec![];
    for (value, source) in (1..40_u8).zip(&sources) {
        writes.push(router.submit_write(&file, 0, &Buffer::new(source), &options(EngineChoice::Auto)));
        let memory = Arc::new(poisoned(router.device(), 1 + random.below(600_000)));
        let pending = router.submit_read(&file, 0, Some(memory.len()), &Buffer::new(&memory), &ReadOptions::default());
        reads.push((value, memory, pending));
    }
    for write in writes {
        assert_eq!(write.wait().unwrap().bytes, 600_000);
    }
    for (value, memory, pending) in reads {
        pending.wait().unwrap();
        assert!(
            content_of(&memory).iter().all(|byte| *byte == value),
            "a read saw another write than the one before it"
        );
    }
}
