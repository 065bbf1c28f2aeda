//! Batches and vectored reads against `pread`, in any cache state, on every device here.

use crate::support::{
    Fault, FaultStorage, Faulty, Random, content_of, devices_besides_host, file_of, folder, host, only, poisoned,
    random, small_options,
};
use bifolio_device::Device;
use bifolio_io::cache_state::{evict, load};
use bifolio_io::{EngineChoice, EngineKind, ErrorKind, OpenFile, ReadExtent, ReadOptions, Router, RouterOptions};
use std::sync::Arc;

const SIZE: u64 = 3_000_001;

/// Extents in random order with gaps between them in the destination; some share bytes of the file,
/// some end beyond it, some are empty.
fn draw(random: &mut Random, count: u64, longest: u64) -> (Vec<ReadExtent>, u64) {
    let mut place = random.below(50);
    let mut extents = Vec::new();
    for _ in 0..count {
        let length = if random.below(10) == 0 { 0 } else { 1 + random.below(longest) };
        extents.push(ReadExtent { offset: random.below(SIZE + 5000), length, place });
        place += length + random.below(2) * random.below(100);
    }
    for last in (1..extents.len()).rev() {
        extents.swap(last, random.below(last as u64 + 1) as usize);
    }
    (extents, place + 100)
}

/// What the destination must hold, poison included.
fn expected(content: &[u8], extents: &[ReadExtent], room: u64) -> Vec<u8> {
    let mut bytes = vec![0xa5; room as usize];
    for extent in extents {
        let start = extent.offset.min(SIZE) as usize;
        let end = (extent.offset + extent.length).min(SIZE) as usize;
        let place = extent.place as usize;
        bytes[place..place + (end - start)].copy_from_slice(&content[start..end]);
    }
    bytes
}

fn set_state(file: &OpenFile, random: &mut Random) {
    evict(file, 0..SIZE).unwrap();
    match random.below(3) {
        0 => {}
        1 => load(file, 0..SIZE).unwrap(),
        _ => (0..SIZE / 100_000).for_each(|part| {
            if random.below(2) == 0 {
                load(file, part * 100_000..(part + 1) * 100_000).unwrap();
            }
        }),
    }
}

fn check_batches(device: &Device, options: RouterOptions, rounds: u64) {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(device, options);
    for round in 0..rounds {
        let file = router.open(&path).unwrap();
        for (count, longest) in [(1, 100_000), (7, 9000), (300, 600), (1500, 5000), (40, 90_000)] {
            set_state(&file, &mut random);
            let (extents, room) = draw(&mut random, count, longest);
            let memory = poisoned(device, room);
            let engine = match round % 3 {
                0 => EngineChoice::Auto,
                1 => EngineChoice::Only(EngineKind::Cached),
                _ => EngineChoice::Only(EngineKind::Direct),
            };
            let options = ReadOptions { engine, ..ReadOptions::default() };
            let report = router.read_batch(&file, &extents, memory.slice(), &options).unwrap();
            let (seen, wanted) = (content_of(&memory), expected(&content, &extents, room));
            let wrong = seen.iter().zip(&wanted).position(|(one, two)| one != two);
            assert_eq!(wrong, None, "{engine}, {count} extents of up to {longest}: first wrong byte");
            let short: u64 = report.short.iter().map(|(number, got)| extents[*number].length - got).sum();
            assert_eq!(report.bytes + short, extents.iter().map(|extent| extent.length).sum::<u64>());
        }
    }
}

#[test]
fn extents_of_any_size_land_in_their_places_in_any_cache_state() {
    check_batches(&host(), small_options(), 9);
    check_batches(&host(), RouterOptions::default(), 3);
}

#[test]
fn every_opencl_and_cuda_device_shares_out_batches() {
    for device in devices_besides_host() {
        check_batches(&device, small_options(), 3);
    }
}

#[test]
fn one_range_is_read_into_many_places() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    for _ in 0..20 {
        set_state(&file, &mut random);
        let lengths: Vec<u64> = (0..=random.below(30)).map(|_| random.below(4) * random.below(200_000)).collect();
        let memories: Vec<_> = lengths.iter().map(|length| poisoned(router.device(), length + 10)).collect();
        let places: Vec<_> =
            memories.iter().zip(&lengths).map(|(memory, length)| memory.slice().part(5, *length).unwrap()).collect();
        let offset = random.below(SIZE);
        let report = router.read_vectored(&file, offset, &places, &ReadOptions::default()).unwrap();
        let total: u64 = lengths.iter().sum();
        assert_eq!(report.bytes, total.min(SIZE - offset));
        let mut at = offset;
        for (memory, length) in memories.iter().zip(&lengths) {
            let got = (*length).min(SIZE.saturating_sub(at));
            let mut wanted = vec![0xa5; *length as usize + 10];
            wanted[5..5 + got as usize].copy_from_slice(&content[at as usize..(at + got) as usize]);
            assert!(content_of(memory) == wanted, "{length} bytes at {at}");
            at += got;
        }
    }
}

/// Symptom: a vectored read failed where a plain one went through the page cache. Cause: only reads into one
/// place were repeated when the file system broke its promise of unbuffered reads.
#[test]
fn a_vectored_read_survives_refused_unbuffered_reads() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let storage = Arc::new(Faulty(FaultStorage::new(0, Fault::Unbuffered(libc::EINVAL))));
    let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
    let file = router.open(&path).unwrap();
    evict(&file, 0..SIZE).unwrap();
    let memories: Vec<_> = [2_000_000, 1_000_001].map(|length| poisoned(router.device(), length)).into();
    let places: Vec<_> = memories.iter().map(|memory| memory.slice()).collect();
    let report = router.read_vectored(&file, 0, &places, &ReadOptions::default()).unwrap();
    assert_eq!(report.bytes, SIZE);
    assert!(memories.iter().map(content_of).collect::<Vec<_>>().concat() == content);
}

#[test]
fn overlapping_extents_and_those_without_room_are_refused_before_anything_is_written() {
    let folder = folder();
    let path = file_of(folder.path(), "data", &random().bytes(10_000));
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let memory = poisoned(router.device(), 1000);
    let extent = |offset, length, place| ReadExtent { offset, length, place };
    for (extents, kind, says) in [
        ([extent(0, 10, 0), extent(50, 10, 9)], ErrorKind::BadDestination, "overlap"),
        ([extent(0, 10, 0), extent(50, 10, 991)], ErrorKind::BadDestination, "does not fit"),
        ([extent(0, 10, 0), extent(u64::MAX - 3, 10, 20)], ErrorKind::BadRange, "overflows"),
    ] {
        let error = router.read_batch(&file, &extents, memory.slice(), &ReadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), kind);
        let text = error.to_string();
        assert!(text.contains(says) && text.contains("data, offset") && text.contains("host:0"), "{text}");
        assert!(content_of(&memory).iter().all(|byte| *byte == 0xa5));
    }
    let error = router.read_batch(&file, &[extent(0, 1, 0)], memory.slice(), &only(EngineKind::P2p)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoEngine);
}

#[test]
fn a_batch_that_fails_half_way_says_where_and_loses_no_slot() {
    let (folder, mut random) = (folder(), random());
    let path = file_of(folder.path(), "data", &random.bytes(SIZE));
    for engine in [EngineKind::Cached, EngineKind::Direct] {
        for reads in [0, 3, 50] {
            let storage = Arc::new(Faulty(FaultStorage::new(reads, Fault::Error(libc::EIO))));
            let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
            let file = router.open(&path).unwrap();
            let extents: Vec<_> =
                (0..200).map(|n| ReadExtent { offset: n * 15_000, length: 1000, place: n * 1000 }).collect();
            let memory = poisoned(router.device(), 200_000);
            let error = router.read_batch(&file, &extents, memory.slice(), &only(engine)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            assert!(error.offset().is_some());
            let stats = router.pool_stats();
            assert_eq!(stats.idle_slots, stats.allocated_slots, "a slot was lost");
        }
    }
}
