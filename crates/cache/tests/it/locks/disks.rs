//! Who waits for a disk leaves other pages, other files and CPUs alone.

use super::{Opening, check, is_sure, pass_at, watched, while_waiting, while_waiting_at, world};
use crate::support::{FRAME, PAGE, Program};
use bifolio_cache::CachedFile;
use bifolio_cache::fault::{self, Gate, Point};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Symptom: who acquired one page of a file waited until eight gibibytes of it were read. Cause: one lock of the file,
/// held while a disk was waited for.
#[test]
fn a_cold_read_leaves_other_ranges_to_others() {
    watched(2, |devices| {
        // A long read is another thread's.
        for frames in [1, 12] {
            let (world, mut content) = world(devices, 40, 16);
            let file = world.open();
            let [mut one, mut two, mut far] = [0, 0, 1].map(|device| Program::on(&world, &file, device));
            let mut slow = Program::on(&world, &file, 0);
            check(&mut two, &content, 15 * FRAME..16 * FRAME);
            let expected = content.clone();
            while_waiting(
                Point::HomeRead,
                move || assert_eq!(check(&mut slow, &expected, 0..frames * FRAME), frames * FRAME / PAGE),
                || {
                    assert_eq!(check(&mut one, &content, 13 * FRAME..14 * FRAME), FRAME / PAGE);
                    assert_eq!(check(&mut far, &content, 13 * FRAME..14 * FRAME), FRAME / PAGE);
                    assert_eq!(check(&mut two, &content, 15 * FRAME..16 * FRAME), 0, "nothing new");
                    // And what one of them releases, the other sees.
                    let part = 13 * FRAME..13 * FRAME + 100;
                    far.mapping.acquire(part.clone()).unwrap();
                    far.store(part.start, &[1; 100]);
                    far.mapping.release(part.clone()).unwrap();
                    content[part.start as usize..][..100].fill(1);
                    check(&mut one, &content, part);
                },
            );
        }
    });
}

/// An acquire that has nothing to do but look at numbers does not wait for who works on other pages of its frame.
#[test]
fn what_is_there_already_waits_for_no_other_page_of_its_frame() {
    watched(1, |devices| {
        for settled in [true, false] {
            let (world, content) = world(devices, 8, 1);
            let file = world.open();
            let [mut warm, mut other, mut slow] = [0; 3].map(|device| Program::on(&world, &file, device));
            let reading = file.map_on(0, 0..u64::MAX, false).unwrap();
            let mut reading = Program::new(&devices[0], reading);
            if !is_sure(&world, &mut warm) {
                return;
            }
            check(&mut warm, &content, 0..8 * PAGE);
            if !settled {
                // The range that was acquired last is another one.
                check(&mut other, &content, 16 * PAGE..17 * PAGE);
            }
            while_waiting(
                Point::HomeRead,
                || slow.mapping.acquire(32 * PAGE..64 * PAGE).map(drop).unwrap(),
                || {
                    assert_eq!(warm.mapping.acquire(PAGE..8 * PAGE).unwrap().fetched, 0);
                    assert!(warm.load(PAGE, PAGE) == content[PAGE as usize..2 * PAGE as usize]);
                    warm.store(PAGE, &[9]);
                    reading.mapping.acquire(PAGE..8 * PAGE).unwrap();
                    reading.mapping.release(PAGE..8 * PAGE).unwrap();
                },
            );
            warm.mapping.release(PAGE..8 * PAGE).unwrap();
            file.sync().unwrap();
            assert_eq!(world.file()[PAGE as usize], 9);
        }
    });
}

#[test]
fn a_cold_read_leaves_cpus_alone() {
    watched(1, |devices| {
        let (world, content) = world(devices, 16, 4);
        let file = world.open();
        let mut slow = Program::on(&world, &file, 0);
        let mut seen = vec![0; FRAME as usize];
        while_waiting(
            Point::HomeRead,
            || slow.mapping.acquire(0..FRAME).map(drop).unwrap(),
            || {
                // Also where the device reads: the file has all of it.
                for frame in 0..4 {
                    assert_eq!(file.read(frame * FRAME, &mut seen).unwrap(), seen.len());
                    assert!(seen == content[(frame * FRAME) as usize..][..FRAME as usize]);
                }
                file.write(2 * FRAME + 5, &[1, 2, 3]).unwrap();
                file.write(4 * FRAME, &[4; 10]).unwrap();
                assert_eq!(file.read(2 * FRAME + 4, &mut seen[..5]).unwrap(), 5);
                assert_eq!(seen[1..4], [1, 2, 3]);
                file.sync().unwrap();
                assert_eq!(file.size(), 4 * FRAME + 10);
            },
        );
    });
}

/// Symptom: files waited for each other's disks. Cause: one scratch memory of a device, lent to one operation at a time,
/// also while it read.
#[test]
fn a_cold_read_leaves_other_files_of_the_device_alone() {
    watched(1, |devices| {
        let (world, content) = world(devices, 40, 1);
        let gate = Arc::new(Gate::default());
        let open = |name: &str| {
            let path = world.folder().join(name);
            std::fs::write(&path, &content).unwrap();
            world.cache.open(path).unwrap()
        };
        // More than there is scratch memory for.
        let slow: Vec<CachedFile> = (0..5).map(|number| open(&format!("slow {number}"))).collect();
        thread::scope(|scope| {
            let opening = Opening(&gate);
            for file in &slow {
                let mut program = Program::on(&world, file, 0);
                program.mapping.acquire(0..FRAME).unwrap();
                program.store(5, &[1]);
                // It has to be merged with what the device has stored.
                file.write(6, &[2]).unwrap();
                let shut = Arc::clone(&gate);
                scope.spawn(move || {
                    pass_at((Point::HomeRead, 1), &shut);
                    program.mapping.acquire(0..FRAME).unwrap();
                    assert_eq!(program.load(5, 2), [1, 2]);
                    fault::cease();
                });
            }
            gate.until_reached(3);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            check(&mut program, &content, 0..FRAME);
            program.mapping.acquire(0..100).unwrap();
            program.store(50, &[7]);
            program.mapping.release(0..100).unwrap();
            file.sync().unwrap();
            assert_eq!(world.file()[50], 7);
            drop(opening);
        });
    });
}

/// What is written to the file is read meanwhile, from the device that has it, and may be acquired where it is there.
#[test]
fn a_flush_leaves_readers_alone() {
    watched(2, |devices| {
        let (world, mut content) = world(devices, 24, 4);
        let file = world.open();
        let [mut home, mut again, mut far] = [0, 0, 1].map(|device| Program::on(&world, &file, device));
        if !is_sure(&world, &mut home) {
            return;
        }
        home.mapping.acquire(0..FRAME).unwrap();
        home.store(10, &[7; 1000]);
        home.mapping.release(0..FRAME).unwrap();
        content[10..1010].fill(7);
        while_waiting(
            Point::HomeRun,
            || file.sync().unwrap(),
            || {
                let mut seen = vec![0; 2000];
                assert_eq!(file.read(0, &mut seen).unwrap(), 2000);
                assert!(seen == content[..2000]);
                check(&mut far, &content, FRAME..2 * FRAME);
                assert_eq!(again.mapping.acquire(0..FRAME).unwrap().fetched, 0);
                again.store(20, &[8]);
            },
        );
        // What was stored meanwhile was not released.
        assert!(world.file() == content);
        again.mapping.release(0..FRAME).unwrap();
        content[20] = 8;
        while_waiting(
            Point::SyncFlushed,
            || file.sync().unwrap(),
            || {
                far.mapping.acquire(0..FRAME).unwrap();
                far.store(30, &[9]);
                far.mapping.release(0..FRAME).unwrap();
                content[30] = 9;
                check(&mut again, &content, 0..FRAME);
                file.write(40, &[3]).unwrap();
                content[40] = 3;
            },
        );
        check(&mut far, &content, 0..FRAME);
        file.sync().unwrap();
        assert!(world.file() == content);
    });
}

/// Whoever needs the same pages waits, and sees what he would have seen before or after.
#[test]
fn who_needs_what_another_is_at_work_on_waits_for_him() {
    watched(2, |devices| {
        for (point, is_write) in [(Point::HomeRead, false), (Point::WriteHalf, true)] {
            let (world, mut content) = world(devices, 24, 2);
            let file = world.open();
            let mut slow = Program::on(&world, &file, 0);
            if is_write {
                content[PAGE as usize - 50..][..100].fill(7);
            }
            let (has_asked, is_over) = (Arc::new(Gate::default()), AtomicBool::new(false));
            has_asked.open();
            thread::scope(|scope| {
                let work = || {
                    if is_write {
                        file.write(PAGE - 50, &[7; 100]).unwrap();
                    } else {
                        slow.mapping.acquire(0..FRAME).unwrap();
                    }
                };
                while_waiting(point, work, || {
                    for device in 0..2 {
                        let (world, file, content, is_over) = (&world, &file, &content, &is_over);
                        let has_asked = Arc::clone(&has_asked);
                        scope.spawn(move || {
                            let mut program = Program::on(world, file, device);
                            pass_at((Point::AcquireLooked, 1), &has_asked);
                            program.mapping.acquire(0..3 * PAGE).unwrap();
                            fault::cease();
                            assert!(is_over.load(Ordering::SeqCst), "device {device} has not waited");
                            assert!(program.load(0, 3 * PAGE) == content[..3 * PAGE as usize]);
                        });
                    }
                    has_asked.until_reached(2);
                    is_over.store(true, Ordering::SeqCst);
                });
            });
            slow.mapping.acquire(0..2 * PAGE).unwrap();
            assert!(slow.load(0, 2 * PAGE) == content[..2 * PAGE as usize]);
        }
    });
}

/// Symptom: a CPU's long read returned what another process had replaced before it began. Cause: while it read the first
/// of it from the disk, a device released what it had not compared with the file, and became home.
#[test]
fn what_a_device_releases_while_a_cpu_reads_hides_no_older_write() {
    watched(2, |devices| {
        let (world, mut content) = world(devices, 40, 3);
        let file = world.open();
        let [mut near, mut far] = [0, 1].map(|device| Program::on(&world, &file, device));
        // So that the read comes from several places.
        far.mapping.acquire(FRAME..FRAME + 10).unwrap();
        far.store(FRAME, &[1]);
        far.mapping.release(FRAME..FRAME + 10).unwrap();
        near.mapping.acquire(2 * FRAME..2 * FRAME + 100).unwrap();
        near.store(2 * FRAME + 10, &[2]);
        File::options().write(true).open(&world.path).unwrap().write_all_at(&[3], 2 * FRAME + 20).unwrap();
        let mut seen = vec![0; 3 * FRAME as usize];
        while_waiting_at(
            // What was released is compared with the file before.
            (Point::HomeRead, 2),
            || assert_eq!(file.read(0, &mut seen).unwrap() as u64, 3 * FRAME),
            || assert_eq!(near.mapping.release(2 * FRAME..2 * FRAME + 100).unwrap().released, 1),
        );
        for (at, value) in [(FRAME, 1), (2 * FRAME + 10, 2), (2 * FRAME + 20, 3)] {
            content[at as usize] = value;
        }
        assert_eq!(seen.iter().zip(&content).position(|(one, other)| one != other), None);
    });
}
