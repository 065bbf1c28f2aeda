//! Striped sets against an oracle in host memory: reads by every engine, batches, vectors, streams and
//! writes; and sets that are not whole.

use crate::support::{
    Fault, FaultStorage, Faulty, Random, check_read, choices, content_of, folder, host, only, poisoned, random, settle,
    small_options,
};
use bifolio_device::Device;
use bifolio_io::cache_state::{evict, load, look};
use bifolio_io::stripe::{Layout, create};
use bifolio_io::{
    Buffer, EngineChoice, EngineKind, ErrorKind, OpenFile, ReadExtent, ReadOptions, Router, RouterOptions, WriteOptions,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes the members of a set with this content, and names it.
fn set_of(folder: &Path, chunk: u64, members: usize, content: &[u8]) -> String {
    let paths: Vec<PathBuf> = (0..members).map(|member| folder.join(format!("member{member}"))).collect();
    let descriptor = folder.join("set.toml");
    let name = create(&descriptor, chunk, content.len() as u64, &paths).unwrap();
    let layout = Layout::new(chunk, members);
    for (number, piece) in content.chunks(chunk as usize).enumerate() {
        let (member, offset) = layout.locate(number as u64 * chunk);
        File::options().write(true).open(&paths[member]).unwrap().write_all_at(piece, offset).unwrap();
    }
    for path in paths {
        File::open(&path).unwrap().sync_all().unwrap();
        settle(&path);
    }
    name
}

fn check_sets(device: &Device, options: &RouterOptions, rounds: u64) {
    let mut random = random();
    for round in 0..rounds {
        let folder = folder();
        let size = 1 + random.below(4_000_000);
        let content = random.bytes(size);
        let chunk = 4096 * [1, 3, 16, 128][random.below(4) as usize];
        let members = 1 + random.below(5) as usize;
        let name = set_of(folder.path(), chunk, members, &content);
        let router = Router::new(device, options.clone());
        let file = router.open(&name).unwrap();
        assert_eq!(file.size().unwrap(), size);
        for choice in choices() {
            if !file.is_in_memory() {
                evict(&file, 0..size).unwrap();
                let half = random.below(size);
                if random.below(2) == 0 {
                    load(&file, half..size).unwrap();
                    let seen = look(&file, 0..size).unwrap().cached_bytes();
                    assert!(seen >= size - half, "{seen} of {} bytes are cached", size - half);
                }
            }
            let unbuffered = choice != EngineChoice::Only(EngineKind::Direct) || !file.is_in_memory();
            for (offset, length) in [(0, size), (random.below(size), 1 + random.below(300_000)), (size - 1, 100)] {
                let end = (offset + length).min(size);
                if unbuffered {
                    let expected = &content[offset as usize..end as usize];
                    check_read(&router, &file, offset, length, choice, expected);
                }
            }
        }
        check_scattered(&router, &file, &content, &mut random);
        println!("round {round}: {members} members of chunks of {chunk}, {size} bytes");
    }
}

fn check_scattered(router: &Router, file: &OpenFile, content: &[u8], random: &mut Random) {
    let size = content.len() as u64;
    let device = router.device();
    let extents: Vec<_> = (0..200)
        .map(|number| ReadExtent { offset: random.below(size + 100), length: random.below(3000), place: number * 3000 })
        .collect();
    let memory = poisoned(device, 600_000);
    router.read_batch(file, &extents, memory.slice(), &ReadOptions::default()).unwrap();
    let mut expected = vec![0xa5; 600_000];
    for extent in &extents {
        let (start, end) = (extent.offset.min(size) as usize, (extent.offset + extent.length).min(size) as usize);
        expected[extent.place as usize..extent.place as usize + end - start].copy_from_slice(&content[start..end]);
    }
    assert!(content_of(&memory) == expected, "a batch");
    let places = [poisoned(device, 1000), poisoned(device, 70_000), poisoned(device, 5)];
    let slices = places.each_ref().map(bifolio_device::Allocation::slice);
    let offset = random.below(size);
    router.read_vectored(file, offset, &slices, &ReadOptions::default()).unwrap();
    let mut at = offset;
    for place in &places {
        let end = (at + place.len()).min(size);
        assert!(content_of(place)[..(end - at) as usize] == content[at as usize..end as usize], "a vector");
        at = end;
    }
    let (stream, length) = (device.create_stream().unwrap(), (size - offset).min(200_000));
    let memory = Arc::new(poisoned(device, length));
    let expected = &content[offset as usize..(offset + length) as usize];
    let mut reader = router.ordered(file, &stream).unwrap();
    // SAFETY: the memory lives until the stream is synchronised.
    unsafe { reader.read(offset, length, memory.slice()) }.unwrap();
    drop(reader);
    stream.synchronize().unwrap();
    assert!(content_of(&memory) == expected, "in stream order");
    let memory = Arc::new(poisoned(device, length));
    let (buffer, options) = (Buffer::new(&memory), ReadOptions::default());
    let pending = router.submit_read_on(&stream, file, offset, Some(length), &buffer, &options).unwrap();
    assert_eq!(pending.wait().unwrap(), length);
    assert!(content_of(&memory) == expected, "on a stream");
}

#[test]
fn any_set_is_read_like_one_file() {
    check_sets(&host(), &small_options(), 6);
    check_sets(&host(), &RouterOptions::default(), 3);
}

#[test]
fn any_set_is_written_like_one_file() {
    let mut random = random();
    for round in 0..6 {
        let folder = folder();
        let size = 1 + random.below(5_000_000);
        let mut content = random.bytes(size);
        let name = set_of(folder.path(), 4096 * (1 + random.below(40)), 1 + random.below(4) as usize, &content);
        let router = Router::new(&host(), RouterOptions::default());
        let file = Arc::new(OpenFile::open_for_writing(&name, false).unwrap());
        for engine in
            [EngineChoice::Auto, EngineChoice::Only(EngineKind::Cached), EngineChoice::Only(EngineKind::Direct)]
        {
            if file.is_in_memory() && engine == EngineChoice::Only(EngineKind::Direct) {
                continue;
            }
            let offset = random.below(size);
            let length = 1 + random.below(size - offset);
            let bytes = random.bytes(length);
            let memory = device_memory(router.device(), &bytes);
            let write = WriteOptions { engine, durable: round % 2 == 0, ..WriteOptions::default() };
            assert_eq!(router.write(&file, offset, memory.slice(), &write).unwrap().bytes, bytes.len() as u64);
            content[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
            check_read(&router, &file, 0, size, EngineChoice::Auto, &content);
        }
        let beyond = device_memory(router.device(), &[1; 2]);
        let error = router.write(&file, size - 1, beyond.slice(), &WriteOptions::default()).unwrap_err();
        assert!(error.kind() == ErrorKind::BadRange && error.to_string().contains("cannot grow"), "{error}");
    }
}

fn device_memory(device: &Device, bytes: &[u8]) -> bifolio_device::Allocation {
    let memory = device.alloc(bytes.len() as u64).unwrap();
    device.create_stream().unwrap().upload(memory.slice(), bytes).unwrap();
    memory
}

#[test]
fn sets_that_are_not_whole_are_refused_by_the_member_s_name() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let name = set_of(folder.path(), 8192, 3, &random().bytes(100_000));
    let refused = |name: &str| {
        let error = OpenFile::open(name).unwrap_err();
        (error.kind(), error.to_string())
    };
    let set = |list: &[&str]| {
        let paths: Vec<_> = list.iter().map(|name| at(name).display().to_string()).collect();
        format!("stripe:8K:{}", paths.join(","))
    };
    assert!(OpenFile::open(&name).is_ok());
    // Without the descriptor the sizes are not whole chunks.
    let (kind, text) = refused(&set(&["member0", "member1", "member2"]));
    assert!(kind == ErrorKind::BadStripe && text.contains("without a descriptor"), "{text}");
    assert_eq!(refused(&set(&["member0", "absent"])).0, ErrorKind::NotFound);
    std::os::unix::fs::symlink(at("member0"), at("alias")).unwrap();
    File::create(at("even")).unwrap().set_len(8192 * 4).unwrap();
    std::os::unix::fs::symlink(at("even"), at("twin")).unwrap();
    let (_, text) = refused(&set(&["even", "twin"]));
    assert!(text.contains("same file"), "{text}");
    File::options().write(true).open(at("member1")).unwrap().set_len(5).unwrap();
    let (kind, text) = refused(&name);
    assert!(kind == ErrorKind::BadStripe && text.contains("member1") && text.contains("must have"), "{text}");
    std::fs::remove_file(at("member1")).unwrap();
    let (kind, text) = refused(&name);
    assert!(kind == ErrorKind::NotFound && text.contains("member1"), "{text}");
    std::fs::write(at("set.toml"), "version = 1\nchunk = ").unwrap();
    let (kind, text) = refused(&name);
    assert!(kind == ErrorKind::BadStripe && text.contains("damaged: line 2"), "{text}");
    assert_eq!(refused("stripe:nonsense.toml").0, ErrorKind::NotFound);
    let error = create(&at("new.toml"), 4096, 100, &[at("new0"), at("even")]).unwrap_err();
    assert!(error.to_string().contains("even"), "{error}");
    assert!(!at("new0").exists() && !at("new.toml").exists(), "what was made before the error stays");
}

/// One member's refusal stops the others half way; all of the range is written again.
#[test]
fn a_set_that_refuses_unbuffered_writes_is_written_through_the_page_cache() {
    let folder = folder();
    let content = random().bytes(6_000_000);
    let name = set_of(folder.path(), 64 << 10, 4, &vec![0; 6_000_000]);
    for transfers in [0, 3, 12] {
        let storage = Arc::new(Faulty(FaultStorage::new(transfers, Fault::Unbuffered(libc::EINVAL))));
        let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
        let file = Arc::new(OpenFile::open_for_writing(&name, false).unwrap());
        let memory = device_memory(router.device(), &content[..5_900_000]);
        let write = WriteOptions { durable: true, ..WriteOptions::default() };
        let report = router.write(&file, 100_000, memory.slice(), &write).unwrap();
        assert_eq!(report.plan.iter().map(|segment| segment.length).sum::<u64>(), 5_900_000);
        check_read(&router, &file, 100_000, 5_900_000, EngineChoice::Only(EngineKind::Cached), &content[..5_900_000]);
    }
}

#[test]
fn what_is_named_as_a_descriptor_and_is_none_is_refused_at_once() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let big = folder.path().join("big");
    File::create(&big).unwrap().set_len(1 << 40).unwrap();
    for path in [&pipe, &big, Path::new("/dev/zero"), folder.path()] {
        let error = OpenFile::open(format!("stripe:{}", path.display())).unwrap_err();
        assert!(error.kind() == ErrorKind::BadStripe && error.to_string().contains("not a descriptor"), "{error}");
    }
}

#[test]
fn a_member_that_fails_half_way_fails_the_request_by_its_name() {
    let folder = folder();
    let content = random().bytes(6_000_000);
    let name = set_of(folder.path(), 64 << 10, 4, &content);
    for engine in [EngineKind::Cached, EngineKind::Direct] {
        for reads in [0, 5, 30] {
            let storage = Arc::new(Faulty(FaultStorage::new(reads, Fault::Error(libc::EIO))));
            let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
            let file = router.open(&name).unwrap();
            if file.is_in_memory() && engine == EngineKind::Direct {
                continue;
            }
            let memory = poisoned(router.device(), 6_000_000);
            let error = router.read(&file, 0, None, memory.slice(), &only(engine)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            assert!(error.to_string().contains("member") && error.to_string().contains("offset"), "{error}");
            let stats = router.pool_stats();
            assert_eq!(stats.idle_slots, stats.allocated_slots, "a slot was lost");
        }
    }
    // A member that is cut after the set was opened.
    let router = Router::new(&host(), small_options());
    let file = router.open(&name).unwrap();
    File::options().write(true).open(folder.path().join("member2")).unwrap().set_len(70_000).unwrap();
    let memory = poisoned(router.device(), 6_000_000);
    let error = router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Truncated && error.to_string().contains("member2"), "{error}");
}
