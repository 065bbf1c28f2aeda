//! Memory goes from file to file, and what was in it does not. Addresses are those of what is mapped, wherever in the
//! file that lies.

use crate::support::{Draw, FRAME, PAGE, Program, World, host, options, random, sets, until_sure};
use bifolio_cache::{Advice, CachedFile, ErrorKind, Mode};
use bifolio_device::Device;
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_testing::until;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SECRET: u8 = 0xff;

/// A budget of some frames, all of which have been a file's, and the bytes of that in them.
pub(crate) fn world_with_secrets(devices: &[Device], frames: u64) -> World {
    let len = frames / 2 * FRAME;
    let world = World::new(devices, options(PAGE, frames, Mode::Lazy), &vec![SECRET; len as usize]);
    let mut program = Program::on(&world, &world.open(), 0);
    // Writable, so that half of the frames are twins.
    program.mapping.acquire(0..len).unwrap();
    drop(program);
    assert_eq!(world.cache.stats()[0].used_bytes, 0);
    world
}

pub(crate) fn other(world: &World, content: &[u8]) -> CachedFile {
    let path = world.path.with_file_name("other");
    std::fs::write(&path, content).unwrap();
    world.cache.open(path).unwrap()
}

/// What is in some memory: a file's content up to some byte, and zeroes.
pub(crate) fn assert_clean(memory: &[u8], content: &[u8], fetched: usize, what: &str) {
    assert!(memory[..fetched] == content[..fetched], "{what}: the content");
    let dirty = memory[fetched..].iter().position(|byte| *byte != 0);
    assert_eq!(dirty.map(|at| (fetched + at, memory[fetched + at])), None, "{what}");
}

/// Symptom: a program that had mapped one file read the bytes of another. Cause: frames that came back were given to the
/// next file as they were, and of a frame only the pages that were acquired are fetched.
#[test]
fn memory_that_was_another_files_holds_nothing_of_it() {
    for devices in sets(1) {
        for writable in [false, true] {
            let world = world_with_secrets(&devices, 4);
            // Shorter than a page, and than a frame, of which only a part is acquired.
            for len in [100, 70_000, FRAME] {
                let content: Vec<u8> = (0..len).map(|at| (at % 97 + 1) as u8).collect();
                let file = other(&world, &content);
                let mapping = file.map_on(0, 0..len, writable).unwrap();
                let mut program = Program::new(&devices[0], mapping);
                program.mapping.acquire(0..50).unwrap();
                let fetched = PAGE.min(len) as usize;
                assert_clean(&program.load(0, FRAME), &content, fetched, &format!("{len} bytes, {writable}"));
                // What was written back is no other's either.
                if writable {
                    program.store(7, b"own");
                    program.mapping.release(0..50).unwrap();
                    file.sync().unwrap();
                }
                drop((program, file));
                refill(&world);
            }
        }
    }
}

/// All frames have the secret again.
fn refill(world: &World) {
    Program::on(world, &world.open(), 0).mapping.acquire(0..2 * FRAME).unwrap();
}

/// A device that counts what it fills, and fails when it is told to.
fn faulty() -> (Device, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    (Device::from_backend(FaultBackend::new(host(0).backend(), &faults)), faults)
}

/// Symptom: bytes of another file, after an acquire that had failed. Cause: memory that could not be cleared was the new
/// file's from then on.
#[test]
fn memory_that_could_not_be_cleared_is_not_used() {
    let (device, faults) = faulty();
    let world = world_with_secrets(std::slice::from_ref(&device), 2);
    let content = vec![7; 5000];
    let mut program = Program::new(&device, other(&world, &content).map_on(0, 0..5000, false).unwrap());
    for _ in 0..3 {
        faults.fills.store(0, Ordering::SeqCst);
        program.mapping.acquire(0..50).unwrap_err();
        assert_eq!(world.cache.stats()[0].used_bytes, 0);
    }
    faults.fills.store(-1, Ordering::SeqCst);
    program.mapping.acquire(0..50).unwrap();
    assert_clean(&program.load(0, FRAME), &content, PAGE as usize, "once it works");
}

#[test]
fn a_file_that_gets_its_own_memory_back_does_not_wait_for_its_being_cleared() {
    let (device, faults) = faulty();
    let world = world_with_secrets(std::slice::from_ref(&device), 4);
    let file = other(&world, &vec![7; FRAME as usize]);
    let mut program = Program::new(&device, file.map_on(0, 0..FRAME, true).unwrap());
    let mut fills_of_a_round = || {
        faults.fills.store(1000, Ordering::SeqCst);
        program.mapping.acquire(0..FRAME).unwrap();
        program.mapping.release(0..FRAME).unwrap();
        program.mapping.advise(0..FRAME, Advice::DontNeed).unwrap();
        assert_eq!(world.cache.stats()[0].used_bytes, 0);
        1000 - faults.fills.load(Ordering::SeqCst)
    };
    assert_eq!(fills_of_a_round(), 2, "what kernels see, and its twin");
    for _ in 0..5 {
        assert_eq!(fills_of_a_round(), 0);
    }
}

/// Addresses of a longer file are reserved by multiples of this.
const CELL: u64 = 128 << 30;

/// A file that is far longer than anybody would reserve addresses for, in pages of 2 MiB.
fn long_world(devices: &[Device], len: u64) -> World {
    let world = World::new(devices, options(FRAME, 16, Mode::Lazy), &[]);
    File::options().write(true).open(&world.path).unwrap().set_len(len).unwrap();
    world
}

/// A part of it on the first device.
fn part(world: &World, file: &CachedFile, start: u64, len: u64) -> Program {
    Program::new(&world.devices[0], file.map_on(0, start..start + len, true).unwrap())
}

fn read_file(world: &World, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    File::open(&world.path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Symptom: mapping the end of a long file took addresses for twice its length, three times, and on a GPU gigabytes of
/// host memory, until the process was ended. Cause: addresses were reserved from the file's first byte on.
#[test]
fn parts_of_a_very_long_file_are_mapped_beside_each_other() {
    for devices in sets(2) {
        let len = 7 * CELL + 12_345;
        let world = long_world(&devices, len);
        let file = world.open();
        // The second and the third touch in the file and not in memory.
        let starts = [100, 2 * CELL - 500, 2 * CELL, len - 1000];
        let mut programs = starts.map(|start| part(&world, &file, start, if start == 100 { 400 } else { 500 }));
        for (number, program) in (1..).zip(&mut programs) {
            program.mapping.acquire(0..400).unwrap();
            assert_eq!(program.load(0, 400), [0; 400]);
            program.store(0, &[number; 400]);
        }
        for program in &mut programs {
            program.mapping.release(0..400).unwrap();
        }
        // A CPU sees all of it, over the seam, and so does another device that maps both sides at once.
        let mut seen = [9; 600];
        assert_eq!(file.read(2 * CELL - 200, &mut seen).unwrap(), 600);
        assert_eq!(
            seen,
            std::array::from_fn(|at| if at < 100 {
                2
            } else if (200..).contains(&at) {
                3
            } else {
                0
            })
        );
        let mut both = Program::new(&devices[1], file.map_on(1, CELL * 2 - 500..CELL * 2 + 500, true).unwrap());
        both.mapping.acquire(0..1000).unwrap();
        assert_eq!(both.load(300, 600), seen);
        both.store(399, &[7; 102]);
        both.mapping.release(0..1000).unwrap();
        programs[1].mapping.acquire(0..500).unwrap();
        programs[2].mapping.acquire(0..500).unwrap();
        assert_eq!((programs[1].load(398, 3), programs[2].load(0, 2)), (vec![2, 7, 7], vec![7, 3]));
        file.sync().unwrap();
        assert_eq!(read_file(&world, 2 * CELL - 102, 4), [2, 7, 7, 7]);
        assert_eq!(read_file(&world, len - 1000, 401), [vec![4; 400], vec![0]].concat());
    }
}

/// What touches in the file and not in memory is read by CPUs, and by another device, in one go.
#[test]
fn a_read_over_the_seam_of_two_parts_is_whole() {
    for devices in sets(2) {
        let world = long_world(&devices, 4 * CELL);
        let (half, start) = (4 * FRAME, 2 * CELL - 4 * FRAME);
        let content = random().bytes(2 * half);
        File::options().write(true).open(&world.path).unwrap().write_all_at(&content, start).unwrap();
        let file = world.open();
        let mut parts = [start, start + half].map(|at| file.map_on(0, at..at + half, false).unwrap());
        let mut both = file.map_on(1, start..start + 2 * half, false).unwrap();
        let mut seen = vec![0; 2 * half as usize];
        until("both halves come from the device", || {
            for part in &mut parts {
                until_sure(part, 0..half);
            }
            let before = world.cache.counts().served;
            assert_eq!(file.read(start, &mut seen).unwrap(), seen.len());
            assert!(seen == content);
            world.cache.counts().served - before == 8
        });
        let report = both.acquire(0..2 * half).unwrap();
        assert_eq!((report.fetched, report.from_peers), (8, 8));
        assert!(Program::new(&devices[1], both).load(0, 2 * half) == content);
    }
}

#[test]
fn mappings_of_one_range_share_addresses_wherever_it_lies() {
    for devices in sets(1) {
        let world = long_world(&devices, 7 * CELL);
        let file = world.open();
        let mut one = part(&world, &file, 5 * CELL + 77, 5000);
        let [two, inside] = [(77, 5000), (1000, 10)].map(|(at, len)| part(&world, &file, 5 * CELL + at, len));
        assert_eq!(one.mapping.ptr(), two.mapping.ptr());
        assert_eq!(inside.mapping.ptr().0 - one.mapping.ptr().0, 1000 - 77);
        // What lies in it in part only cannot be as long as it is there; afterwards it can, and nothing is lost.
        one.mapping.acquire(0..100).unwrap();
        one.store(3, b"kept");
        one.mapping.release(0..100).unwrap();
        let refused = file.map_on(0, 5 * CELL - 10..5 * CELL + 100, true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadUse);
        assert!(refused.to_string().contains("close its other mappings"), "{refused}");
        drop((one, two, inside));
        let mut over = part(&world, &file, 5 * CELL - 10, 200);
        over.mapping.acquire(0..200).unwrap();
        assert_eq!(over.load(10 + 77 + 2, 6), b"\0kept\0");
        assert_eq!(read_file(&world, 5 * CELL + 77 + 3, 4), b"kept", "it was written when its addresses were needed");
    }
}

/// Memory is taken from all parts.
#[test]
fn parts_of_a_very_long_file_make_room_for_each_other() {
    for devices in sets(1) {
        let world = long_world(&devices, 7 * CELL);
        let file = world.open();
        let mut programs = [0, 3, 6].map(|cell| part(&world, &file, cell * CELL, 3 * FRAME));
        for round in 0..3_u8 {
            for (number, program) in (1..).zip(&mut programs) {
                program.mapping.acquire(0..3 * FRAME).unwrap();
                let expected = if round == 0 { 0 } else { number * 10 + round - 1 };
                assert_eq!([0, 1, 2].map(|frame| program.load(frame * FRAME + 5, 1)[0]), [expected; 3]);
                (0..3).for_each(|frame| program.store(frame * FRAME + 5, &[number * 10 + round]));
                program.mapping.release(0..3 * FRAME).unwrap();
            }
        }
        file.sync().unwrap();
        for (cell, number) in [(0, 1), (3, 2), (6, 3)] {
            assert_eq!(read_file(&world, cell * CELL + 2 * FRAME + 5, 1), [number * 10 + 2]);
        }
    }
}
