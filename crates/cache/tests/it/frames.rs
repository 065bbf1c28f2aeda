//! Memory goes from file to file, and what was in it does not.

use crate::support::{FRAME, PAGE, Program, World, host, options, sets};
use bifolio_cache::{Advice, CachedFile, Mode};
use bifolio_device::Device;
use bifolio_device::backend::fault::{FaultBackend, Faults};
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
