//! Sequential short reads: what is read ahead is what `pread` would return, stays out of the page
//! cache or leaves it again, and is never in the way.

use crate::support::{
    Fault, FaultStorage, Faulty, content_of, devices_besides_host, file_of, folder, host, poisoned, random, settle,
    small_options, stays_in_memory,
};
use bifolio_device::{Device, HostOptions};
use bifolio_io::cache_state::{evict, load};
use bifolio_io::{Advice, EngineChoice, OpenFile, ReadOptions, ReadReport, Router, RouterOptions};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 5_000_003;

fn cached_bytes(router: &Router, file: &OpenFile) -> u64 {
    router.explain(file, 0, None, EngineChoice::Auto).unwrap().1.cached_bytes()
}

fn was_ahead(report: &ReadReport) -> bool {
    report.reason.contains("read ahead")
}

/// Reads `range` in steps and compares; how many of the reads had been read ahead.
fn read_through(router: &Router, file: &OpenFile, content: &[u8], range: std::ops::Range<u64>, step: u64) -> u64 {
    let memory = poisoned(router.device(), step);
    let (mut at, mut ahead) = (range.start, 0);
    while at < range.end {
        let length = step.min(range.end - at);
        let report = router.read(file, at, Some(length), memory.slice(), &ReadOptions::default()).unwrap();
        assert_eq!(report.bytes, length);
        let seen = content_of(&memory);
        assert!(seen[..length as usize] == content[at as usize..(at + length) as usize], "{length} bytes at {at}");
        ahead += u64::from(was_ahead(&report));
        at += length;
    }
    ahead
}

#[test]
fn a_cold_file_read_in_small_steps_is_read_ahead_and_stays_out_of_the_page_cache() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    for step in [512, 4096, 5000, 100_000, 262_144] {
        let router = Router::new(&host(), RouterOptions::default());
        let file = router.open(&path).unwrap();
        if stays_in_memory(&file) {
            return;
        }
        evict(&file, 0..SIZE).unwrap();
        let start = if step == 5000 { 777 } else { 0 };
        // Steps of 512 bytes only for a part of the file.
        let end = SIZE.min(start + step * 2000);
        let ahead = read_through(&router, &file, &content, start..end, step);
        let reads = (end - start).div_ceil(step);
        assert!(ahead * 2 >= reads, "{ahead} of {reads} reads of {step} bytes were read ahead");
        let cached = cached_bytes(&router, &file);
        assert!(cached <= 3 * 262_144, "{cached} bytes in the page cache after steps of {step}");
    }
}

#[test]
fn several_readers_of_one_file_do_not_mix() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), RouterOptions::default());
    let file = router.open(&path).unwrap();
    evict_if_possible(&file);
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (router, file, content) = (&router, &file, &content);
            scope.spawn(move || {
                let start = reader * 1_200_000;
                read_through(router, file, content, start..start + 1_200_000, 3000 + reader * 1000)
            });
        }
    });
}

fn evict_if_possible(file: &OpenFile) {
    if !file.is_in_memory() {
        evict(file, 0..file.size().unwrap()).unwrap();
    }
}

/// Symptom to prevent: a reader gets bytes that were read ahead before a writer changed them.
#[test]
fn what_was_written_after_it_was_read_ahead_is_seen() {
    let (folder, mut random) = (folder(), random());
    for mapped in [false, true] {
        for opened_before in [false, true] {
            let mut content = random.bytes(SIZE);
            let path = file_of(folder.path(), &format!("data-{mapped}-{opened_before}"), &content);
            let router = Router::new(&host(), RouterOptions::default());
            let file = router.open(&path).unwrap();
            evict_if_possible(&file);
            let writer = || File::options().read(true).write(true).open(&path).unwrap();
            let early = opened_before.then(|| Writer::new(writer(), mapped));
            let memory = poisoned(router.device(), 4096);
            let mut late = None;
            for block in 0..SIZE / 4096 {
                let at = block * 4096;
                router.read(&file, at, Some(4096), memory.slice(), &ReadOptions::default()).unwrap();
                let seen = content_of(&memory);
                assert!(
                    seen == content[at as usize..at as usize + 4096],
                    "stale bytes at {at}, mapped {mapped}, opened before {opened_before}"
                );
                if random.below(7) == 0 {
                    // A little ahead of the reader, where windows are.
                    let place = (at + 4096 * (1 + random.below(40)) + random.below(4096)).min(SIZE - 100);
                    let bytes = random.bytes(100);
                    let writer =
                        early.as_ref().unwrap_or_else(|| late.get_or_insert_with(|| Writer::new(writer(), mapped)));
                    writer.write(&bytes, place);
                    content[place as usize..place as usize + 100].copy_from_slice(&bytes);
                }
                if random.below(50) == 0 {
                    // Nobody writes for a while: windows may be private again.
                    late = None;
                    settle(&path);
                }
            }
        }
    }
}

/// Writes by `pwrite`, or by stores into a shared mapping.
struct Writer {
    file: File,
    mapping: Option<*mut u8>,
}

impl Writer {
    fn new(file: File, mapped: bool) -> Self {
        use std::os::fd::AsRawFd;
        let mapping = mapped.then(|| {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping of an open file.
            let start = unsafe {
                libc::mmap(std::ptr::null_mut(), SIZE as usize, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
            };
            assert_ne!(start, libc::MAP_FAILED);
            start.cast()
        });
        Self { file, mapping }
    }

    fn write(&self, bytes: &[u8], offset: u64) {
        match self.mapping {
            // SAFETY: the place lies inside the mapping, and the file is not cut.
            Some(start) => unsafe {
                start.add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            },
            None => self.file.write_all_at(bytes, offset).unwrap(),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(start) = self.mapping {
            // SAFETY: our own mapping.
            unsafe { libc::munmap(start.cast(), SIZE as usize) };
        }
    }
}

#[test]
fn pages_that_a_shared_window_brought_leave_with_it_and_others_stay() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), RouterOptions::default());
    let file = router.open(&path).unwrap();
    if stays_in_memory(&file) {
        return;
    }
    // Somebody may write at any time: nothing may be kept in slots.
    let _writer = File::options().write(true).open(&path).unwrap();
    evict(&file, 0..SIZE).unwrap();
    let theirs = 1 << 20..(1 << 20) + (256 << 10);
    load(&file, theirs.clone()).unwrap();
    file.advise(Advice::Sequential);
    let ahead = read_through(&router, &file, &content, 0..4 << 20, 16 << 10);
    assert_eq!(ahead, 0, "nothing may be private while the file is open for writing");
    // Drops the last windows.
    file.advise(Advice::Random);
    let (_, residency) = router.explain(&file, 0, None, EngineChoice::Auto).unwrap();
    let kept: u64 =
        residency.cached().iter().map(|run| run.end.min(theirs.end).saturating_sub(run.start.max(theirs.start))).sum();
    assert_eq!(kept, theirs.end - theirs.start, "pages that were cached before were dropped");
    let ours = residency.cached_bytes() - kept;
    assert!(ours <= 1 << 20, "{ours} bytes of our own stay in the page cache");
}

#[test]
fn random_advice_turns_it_off() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), RouterOptions::default());
    let file = router.open(&path).unwrap();
    evict_if_possible(&file);
    file.advise(Advice::Random);
    assert_eq!(read_through(&router, &file, &content, 0..1 << 20, 4096), 0);
    let without = Router::new(&host(), RouterOptions { readahead_bytes: 0, ..RouterOptions::default() });
    let file = without.open(&path).unwrap();
    assert_eq!(read_through(&without, &file, &content, 1 << 20..2 << 20, 4096), 0);
}

#[test]
fn a_window_that_cannot_be_read_is_not_missed() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let storage = Arc::new(Faulty(FaultStorage::new(5, Fault::Error(libc::EIO))));
    let router = Router::new(&host(), RouterOptions { storage, ..RouterOptions::default() });
    let file = router.open(&path).unwrap();
    evict_if_possible(&file);
    let memory = poisoned(router.device(), 4096);
    let mut at = 0;
    let error = loop {
        match router.read(&file, at, Some(4096), memory.slice(), &ReadOptions::default()) {
            Ok(_) => assert!(content_of(&memory) == content[at as usize..at as usize + 4096], "{at}"),
            Err(error) => break error,
        }
        at += 4096;
    };
    assert_eq!(error.offset(), Some(at), "{error}");
    let stats = router.pool_stats();
    assert_eq!(stats.idle_slots, stats.allocated_slots, "a slot was lost");
}

/// Reads in stream order, sequential and not, on a device whose copies take their time: a slot that
/// is used again too early shows as wrong bytes.
fn check_ordered(device: &Device, options: RouterOptions) {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(device, options);
    let stream = device.create_stream().unwrap();
    for round in 0..4 {
        let file = router.open(&path).unwrap();
        evict_if_possible(&file);
        if round % 2 == 1 {
            load(&file, 0..SIZE / 2).unwrap();
        }
        let memory = poisoned(device, SIZE);
        let mut expected = vec![0xa5; SIZE as usize];
        let mut reader = router.ordered(&file, &stream).unwrap();
        let (mut at, mut step) = (0, 4096);
        for _ in 0..600 {
            match random.below(40) {
                0 => at = random.below(SIZE),
                1 => step = 1 + random.below(40_000),
                2 => step = 4096,
                _ => {}
            }
            let length = step.min(SIZE - at);
            let place = memory.slice().part(at, length).unwrap();
            // SAFETY: the memory lives until the stream is synchronised below.
            assert_eq!(unsafe { reader.read(at, step, place) }.unwrap(), length);
            let range = at as usize..(at + length) as usize;
            expected[range.clone()].copy_from_slice(&content[range]);
            at = if at + length == SIZE { 0 } else { at + length };
        }
        drop(reader);
        stream.synchronize().unwrap();
        let seen = content_of(&memory);
        let wrong = seen.iter().zip(&expected).position(|(one, two)| one != two);
        assert_eq!(wrong, None, "round {round}: first wrong byte");
    }
}

#[test]
fn reads_in_stream_order_bring_the_right_bytes_while_copies_are_slow() {
    let slow = HostOptions { latency: Some(Duration::from_micros(300)), ..HostOptions::default() };
    check_ordered(&Device::host(&slow), RouterOptions { readahead_bytes: 4 << 20, ..small_options() });
    check_ordered(&host(), RouterOptions::default());
}

#[test]
fn every_opencl_and_cuda_device_reads_in_stream_order() {
    for device in devices_besides_host() {
        check_ordered(&device, RouterOptions { readahead_bytes: 4 << 20, ..small_options() });
    }
}

/// Stores into pages that a mapping has made dirty already move no times of change: nothing but the
/// writer's open file tells that they may come.
#[test]
fn stores_into_pages_that_are_dirty_already_are_seen_in_stream_order() {
    let (folder, mut random) = (folder(), random());
    let mut content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), RouterOptions::default());
    let file = router.open(&path).unwrap();
    load(&file, 0..SIZE).unwrap();
    let writer = Writer::new(File::options().read(true).write(true).open(&path).unwrap(), true);
    for at in (0..SIZE).step_by(4096) {
        writer.write(&content[at as usize..=at as usize], at);
    }
    settle(&path);
    let stream = router.device().create_stream().unwrap();
    let memory = poisoned(router.device(), 4096);
    let mut reader = router.ordered(&file, &stream).unwrap();
    for block in 0..SIZE / 4096 - 20 {
        let at = block * 4096;
        // SAFETY: the memory lives until the stream is synchronised.
        unsafe { reader.read(at, 4096, memory.slice()) }.unwrap();
        stream.synchronize().unwrap();
        assert!(content_of(&memory) == content[at as usize..at as usize + 4096], "stale bytes at {at}");
        let place = at + 4096 * (1 + random.below(18)) + random.below(4000);
        let bytes = random.bytes(50);
        writer.write(&bytes, place);
        content[place as usize..place as usize + 50].copy_from_slice(&bytes);
    }
}
