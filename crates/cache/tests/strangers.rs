//! A stranger who makes the file longer and shorter at any moment: between operations and in the middle of them, by
//! a byte, by pages, and far behind the addresses that anybody has reserved.

mod support;

use bifolio_cache::{ErrorKind, Mode};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{FRAME, PAGE, Program, World, options, sets};

const MODES: [Mode; 2] = [Mode::Lazy, Mode::Eager];

fn writer(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

/// Symptom: index out of bounds in `replica.rs`, in every later operation, in close and at the end of the process.
/// Cause: what is cut off was blanked by the file's size, which a stranger had made larger than the addresses that
/// were reserved.
#[test]
fn a_file_that_was_long_for_a_moment_is_used_on() {
    for devices in sets(2) {
        for mode in MODES {
            let world = World::new(&devices, options(PAGE, 8, mode), &[7; 5000]);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            writer(&world.path).write_all_at(b"x", 70 << 20).unwrap();
            program.mapping.acquire(0..5000).unwrap();
            program.store(10, &[1]);
            writer(&world.path).set_len(5000).unwrap();
            let mut seen = vec![0; 5000];
            assert_eq!(file.read(0, &mut seen).unwrap(), 5000);
            assert!(seen == [7; 5000]);
            program.mapping.release(0..5000).unwrap();
            assert_eq!(file.read(0, &mut seen).unwrap(), 5000);
            assert_eq!(seen[10], 1);
            program.mapping.sync().unwrap();
            program.mapping.close().unwrap();
            assert_eq!(world.file().len(), 5000);
        }
    }
}

/// Symptom: the end of the process, as memory for the states of so many pages could not be had. Cause: every page of
/// the file had one, wherever it lay.
#[test]
fn a_file_as_long_as_files_may_be_costs_no_memory() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[7; 5000]);
        let file = world.open();
        let mut program = Program::on(&world, &file, 0);
        program.mapping.acquire(0..5000).unwrap();
        program.store(10, &[1]);
        // As long as the file system takes it.
        let longest = (40..63).rev().find(|bits| writer(&world.path).set_len((1 << bits) - 4096).is_ok()).unwrap();
        println!("2^{longest} bytes");
        let end = (1 << longest) - 4096;
        let mut seen = [9; 3];
        assert_eq!(file.read(end - 2, &mut seen).unwrap(), 2);
        assert_eq!(seen, [0, 0, 9]);
        program.mapping.release(0..5000).unwrap();
        file.write(end - 1, b"e").unwrap();
        // Its end cannot be mapped: an error, and no more.
        let refused = file.map_on(1, end - 10..end, true).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Device | ErrorKind::OutOfMemory), "{refused}");
        writer(&world.path).set_len(5000).unwrap();
        program.mapping.acquire(0..5000).unwrap();
        assert_eq!(program.load(9, 3), [7, 1, 7]);
        file.sync().unwrap();
        assert_eq!((world.file().len(), world.file()[10]), (5000, 1));
    }
}

/// Symptom: a panic, and without checks of overflow a copy of almost 2^64 bytes. Cause: a close took back changes of
/// its part of a page whose end had come to lie before that part.
#[test]
fn a_close_takes_nothing_back_behind_the_end_of_a_page() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
        let file = world.open();
        let [mut one, mut two] = [0, 0].map(|device| Program::on(&world, &file, device));
        one.mapping.acquire(0..100).unwrap();
        two.mapping.acquire(200..300).unwrap();
        one.store(50, &[1]);
        writer(&world.path).set_len(100).unwrap();
        file.sync().unwrap();
        two.mapping.close().unwrap();
        one.mapping.release(0..100).unwrap();
        file.sync().unwrap();
        assert_eq!((world.file().len(), world.file()[50]), (100, 1));
    }
}

/// Symptom: a file never became shorter for the cache. Cause: a look that found a cut and failed to follow it, as the
/// device failed at that moment, had noted the file's new state by then.
#[test]
fn a_cut_that_could_not_be_followed_at_once_is_followed_later() {
    use bifolio_device::backend::fault::{FaultBackend, Faults};
    use std::sync::{Arc, atomic::Ordering};
    let faults = Arc::new(Faults::default());
    let devices = [
        bifolio_device::Device::from_backend(FaultBackend::new(support::host(0).backend(), &faults)),
        support::host(1),
    ];
    let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![7; 50_000]);
    let file = world.open();
    let [mut one, mut two] = [0, 1].map(|number| Program::on(&world, &file, number));
    two.mapping.acquire(0..50_000).unwrap();
    writer(&world.path).set_len(20_000).unwrap();
    // It may take a moment until nobody can have changed it unseen.
    std::thread::sleep(std::time::Duration::from_millis(50));
    // The first has made no scratch memory yet.
    faults.allocations.store(0, Ordering::SeqCst);
    let failed = file.read(0, &mut [0; 10]).unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Device | ErrorKind::OutOfMemory), "{failed}");
    faults.allocations.store(-1, Ordering::SeqCst);
    assert_eq!(file.read(0, &mut vec![0; 50_000]).unwrap(), 20_000);
    for program in [&mut one, &mut two] {
        program.mapping.acquire(0..50_000).unwrap();
        assert_eq!(program.load(19_999, 2), [7, 0]);
    }
}

/// Symptom: a program saw bytes of another file. Cause: memory that came from there, and that was mapped where the file
/// had just become shorter, kept its content.
#[test]
fn what_is_acquired_behind_the_end_of_a_file_is_zeroes_in_memory_of_others_too() {
    for devices in sets(2) {
        for writable in [false, true] {
            let world = World::new(&devices, options(PAGE, 2, Mode::Lazy), &vec![0xff; FRAME as usize]);
            let mut program = Program::on(&world, &world.open(), 0);
            program.mapping.acquire(0..FRAME).unwrap();
            drop(program);
            let other = world.path.with_file_name("other");
            std::fs::write(&other, vec![1; 70_000]).unwrap();
            let mapping = world.cache.open(&other).unwrap().map_on(0, 0..70_000, writable).unwrap();
            let mut program = Program::new(&devices[0], mapping);
            for size in [0, 5000] {
                writer(&other).set_len(size).unwrap();
                program.mapping.acquire(0..70_000).unwrap();
                assert!(program.load(0, 70_000).iter().all(|byte| *byte == 0), "{size} bytes");
                program.mapping.release(0..70_000).unwrap();
            }
        }
    }
}
