//! Devices that are lost while several operations are under way, some of which wait for a disk: all of them come to their
//! end, without the device or with word of it.

use crate::locks::{in_time, while_waiting};
use crate::losses::{Kernels, assert_lost, losable, lose_after};
use crate::support::{FRAME, PAGE, World, options};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{CacheOptions, CachedFile, ErrorKind, Mode};
use bifolio_device::Device;
use bifolio_device::backend::fault::Faults;
use bifolio_testing::until;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

const FRAMES: u64 = 4;

/// What the survivor has released, and the other has taken over; and what the other alone has.
const SHARED: u64 = PAGE + 10;
const ALONE: [u64; 2] = [10, 3 * FRAME + 10];

/// A file whose home is device 1 where something was released.
fn world(devices: &[Device]) -> World {
    // Nothing is written unless somebody asks for it.
    let options = CacheOptions { write_back_after: Duration::MAX, ..options(PAGE, 40, Mode::Lazy) };
    World::new(devices, options, &vec![0; (FRAMES * FRAME) as usize])
}

fn share(survivor: &mut Kernels, other: &mut Kernels) {
    survivor.change(SHARED, 7).unwrap();
    other.mapping.acquire(SHARED..SHARED + 1).unwrap();
    other.mapping.release(SHARED..SHARED + 1).unwrap();
    for at in ALONE {
        other.change(at, 8).unwrap();
    }
}

/// Whoever asks a device after a failure knows of its loss; and gives it up when nobody is at work on the file any more.
fn until_known(world: &World, file: &CachedFile) {
    until("somebody has met the loss", || world.cache.stats()[1].used_bytes == 0);
    assert!(file.page_state(1, 0).is_pending, "it is given up under somebody who is at work");
}

fn assert_survived(world: &World) {
    let content = world.file();
    assert_eq!((content[SHARED as usize], ALONE.map(|at| content[at as usize])), (7, [0, 0]));
    assert_eq!(world.cache.counts().lost, 2);
}

/// One waits for a disk with pages locked; the next finds out that the device is lost, and waits for the first; a third
/// comes while he does; and the first meets the loss when it goes on.
#[test]
fn operations_that_meet_a_loss_at_once_give_it_up_once() {
    in_time(|| {
        let (devices, faults) = losable(2);
        let world = world(&devices);
        let file = world.open();
        let [mut slow, mut third] = [0; 2].map(|device| Kernels::new(&world, &file, device, 0..FRAMES * FRAME));
        let mut other = Kernels::new(&world, &file, 1, 0..FRAMES * FRAME);
        share(&mut slow, &mut other);
        let (known, opened, last) = (&world, &file, &mut third);
        thread::scope(|scope| {
            let acquired = while_waiting(
                Point::HomeRead,
                || slow.mapping.acquire(0..2 * FRAME).map(drop),
                || {
                    lose_after(&faults[1], 0);
                    scope.spawn(move || {
                        let mut seen = [5; 1];
                        // It lies behind what is locked.
                        assert_eq!(opened.read(ALONE[1], &mut seen).unwrap(), 1);
                        assert_eq!(seen, [0]);
                    });
                    until_known(known, opened);
                    scope.spawn(move || last.mapping.acquire(3 * FRAME..4 * FRAME).unwrap());
                },
            );
            acquired.unwrap();
        });
        assert_survived(&world);
        assert_eq!(slow.load(ALONE[0], 1).unwrap(), [0]);
        assert_eq!(slow.load(SHARED, 1).unwrap(), [7]);
        assert_lost(&other.mapping.acquire(0..1).unwrap_err(), &["host:1", "(2 pages)"]);
        assert_lost(&file.sync().unwrap_err(), &["data", "host:1", "(2 pages)"]);
        file.sync().unwrap();
    });
}

/// Its own reader fails when the disk has answered, and is told.
#[test]
fn a_device_is_lost_while_it_waits_for_what_is_read_into_it() {
    in_time(|| {
        let (devices, faults) = losable(2);
        let world = world(&devices);
        let file = world.open();
        let [mut one, mut other] = [0, 1].map(|device| Kernels::new(&world, &file, device, 0..FRAMES * FRAME));
        share(&mut one, &mut other);
        let left = &mut one;
        thread::scope(|scope| {
            let acquired = while_waiting(
                Point::HomeRead,
                || other.mapping.acquire(FRAME..2 * FRAME).map(drop),
                || {
                    lose_after(&faults[1], 0);
                    scope.spawn(move || left.mapping.acquire(0..2 * PAGE).unwrap());
                    until_known(&world, &file);
                },
            );
            assert_lost(&acquired.unwrap_err(), &["host:1", "(2 pages)"]);
        });
        assert_survived(&world);
        assert_eq!((one.load(ALONE[0], 1).unwrap(), one.load(SHARED, 1).unwrap()), (vec![0], vec![7]));
    });
}

/// Who writes for a sync goes on with what is left, and then tells what is gone.
#[test]
fn a_device_is_lost_while_another_is_written_from() {
    in_time(|| {
        let (devices, faults) = losable(2);
        let world = world(&devices);
        let (file, again) = (world.open(), world.open());
        let [mut one, mut other] = [0, 1].map(|device| Kernels::new(&world, &file, device, 0..FRAMES * FRAME));
        share(&mut one, &mut other);
        one.change(FRAME, 9).unwrap();
        let gone = &mut other;
        thread::scope(|scope| {
            let synced = while_waiting(
                Point::HomeOpened,
                || file.sync(),
                || {
                    lose_after(&faults[1], 0);
                    // Where nothing is written from.
                    scope.spawn(move || {
                        assert_lost(&gone.mapping.acquire(2 * FRAME..2 * FRAME + 1).unwrap_err(), &["(2 pages)"]);
                    });
                    until_known(&world, &file);
                },
            );
            assert_lost(&synced.unwrap_err(), &["data", "host:1", "(2 pages)"]);
        });
        assert_survived(&world);
        assert_eq!(world.file()[FRAME as usize], 9);
        assert_lost(&again.sync().unwrap_err(), &["data", "host:1", "(2 pages)"]);
        again.sync().unwrap();
    });
}

/// Symptom: `map` came to no end. Cause: it made another replica on the device each time that it began again.
#[test]
fn a_device_that_is_lost_while_a_file_is_first_mapped_there_ends_that() {
    in_time(|| {
        let mut calls = 0;
        loop {
            let (devices, faults) = losable(2);
            let world = world(&devices);
            let file = world.open();
            lose_after(&faults[1], calls);
            let Err(error) = file.map_on(1, 0..FRAME, true) else { break };
            assert_lost(&error, &["host:1"]);
            assert_lost(&file.map_on(1, 0..FRAME, true).unwrap_err(), &["host:1", "use another device"]);
            Kernels::new(&world, &file, 0, 0..FRAME).change(10, 1).unwrap();
            file.sync().unwrap();
            assert_eq!(world.file()[10], 1);
            calls += 1;
        }
        assert!(calls > 0);
    });
}

/// A kernel that reads another device's memory where it lies fails with that device: the error is its own.
#[test]
fn a_kernel_that_fails_as_it_reads_a_lost_device_is_run_again_without_it() {
    in_time(|| {
        let (devices, faults) = losable(2);
        let world = world(&devices);
        let file = world.open();
        let [mut one, mut other] = [0, 1].map(|device| Kernels::new(&world, &file, device, 0..PAGE));
        // One that has not seen what a CPU has written is a donor of the file's.
        other.mapping.acquire(0..PAGE).unwrap();
        file.write(20, &[2]).unwrap();
        other.store(10, &[1]);
        other.mapping.release(0..PAGE).unwrap();
        let (working, lost) = (Arc::clone(&faults[0]), Arc::clone(&faults[1]));
        let launches = |faults: &Faults, left| faults.launches.store(left, Ordering::SeqCst);
        let mut is_met = false;
        fault::inject(move |point| {
            match point {
                // What is folded on is read, and which donors are read where they lie is decided.
                Point::HomeRead if !is_met => {
                    is_met = true;
                    lose_after(&lost, 0);
                    launches(&working, 0);
                }
                Point::AcquireLooked => launches(&working, -1),
                _ => {}
            }
            Ok(())
        });
        let acquired = one.mapping.acquire(0..PAGE);
        fault::cease();
        acquired.unwrap();
        assert!(faults[1].is_lost(), "the fold was met");
        assert_eq!((one.load(10, 1).unwrap(), one.load(20, 1).unwrap()), (vec![0], vec![2]));
        assert_lost(&file.sync().unwrap_err(), &["data", "host:1", "bytes 0 to 4096 (1 page)"]);
        file.sync().unwrap();
        assert_eq!(other.mapping.acquire(0..PAGE).unwrap_err().kind(), ErrorKind::Device);
    });
}
