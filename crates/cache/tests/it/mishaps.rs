//! What programs, processes beside them, devices and disks do to a cache: wrong order of calls, files that are cut,
//! grown, deleted and replaced, memory that runs out, disks that fail for a while.

use crate::support::{Draw, FRAME, PAGE, Program, World, host, options, random, sets, until_sure};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{ErrorKind, Mode};
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{Device, FRAME_BYTES};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const MODES: [Mode; 2] = [Mode::Lazy, Mode::Eager];

/// Every write to the file fails from now on, in this thread.
fn break_disk(code: i32) {
    fault::inject(move |point| match point {
        Point::HomeRun | Point::WriteLooked => Err(io::Error::from_raw_os_error(code)),
        _ => Ok(()),
    });
}

#[test]
fn a_disk_that_fails_is_reported_until_it_works_and_nothing_is_lost() {
    for devices in sets(2) {
        for mode in MODES {
            for code in [libc::EIO, libc::ENOSPC] {
                let world = World::new(&devices, options(PAGE, 8, mode), &vec![1; 100_000]);
                let file = world.open();
                let [mut one, mut two] = [0, 1].map(|number| Program::on(&world, &file, number));
                one.mapping.acquire(0..50_000).unwrap();
                two.mapping.acquire(0..50_000).unwrap();
                one.store(4095, b"ab");
                break_disk(code);
                for _ in 0..3 {
                    let refused = |outcome: Result<(), bifolio_cache::Error>| {
                        let error = outcome.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Write, "{error}");
                        assert!(error.to_string().contains(&world.path.display().to_string()), "{error}");
                    };
                    if mode == Mode::Eager {
                        refused(one.mapping.release(0..50_000).map(drop));
                    } else if one.mapping.release(0..50_000).is_ok() {
                        one.mapping.acquire(0..50_000).unwrap();
                    }
                    refused(one.mapping.sync());
                    refused(file.sync());
                    refused(file.write(60_000, b"x"));
                    refused(file.write(4000, b"x"));
                    // It stays on devices, and who asks these needs no disk.
                    let mut seen = [0; 2];
                    file.read(4095, &mut seen).unwrap();
                    two.mapping.acquire(0..50_000).unwrap();
                    let all = [&seen[..], &one.load(4095, 2), &two.load(4095, 2)];
                    assert_eq!(all, [b"ab"; 3]);
                }
                fault::cease();
                one.mapping.release(0..50_000).unwrap();
                if mode == Mode::Eager {
                    assert_eq!(&world.file()[4095..4097], b"ab");
                }
                two.mapping.acquire(0..50_000).unwrap();
                assert_eq!(two.load(4094, 4), [1, b'a', b'b', 1]);
                file.sync().unwrap();
                assert_eq!(&world.file()[4094..4098], [1, b'a', b'b', 1]);
            }
        }
    }
}

/// Symptom: what the lower of two racing devices released last was lost. Cause: a careful flush that had failed
/// half-way took the bytes that it had written for somebody else's.
#[test]
fn a_careful_flush_that_failed_half_way_does_not_take_its_own_bytes_for_others() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
        let file = world.open();
        let [mut one, mut two] = [0, 1].map(|number| Program::on(&world, &file, number));
        for program in [&mut one, &mut two] {
            program.mapping.acquire(0..5000).unwrap();
            program.mapping.acquire(0..5000).unwrap();
        }
        two.store(4000, &[9]);
        two.mapping.release(0..5000).unwrap();
        file.sync().unwrap();
        // Two runs of bytes: the second fails.
        one.store(10, &[1]);
        one.store(20, &[1]);
        one.mapping.release(0..5000).unwrap();
        let mut runs = 0;
        fault::inject(move |point| {
            runs += u32::from(point == Point::HomeRun);
            if runs >= 2 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
        });
        file.sync().unwrap_err();
        fault::cease();
        assert_eq!((world.file()[10], world.file()[20]), (1, 0));
        one.store(10, &[2]);
        one.mapping.release(0..5000).unwrap();
        file.sync().unwrap();
        let content = world.file();
        assert_eq!((content[10], content[20], content[4000]), (2, 1, 9));
    }
}

/// Symptom: devices never saw what a CPU's failed write through the cache had left in the file. Cause: the file's
/// state after the write counted as known, and the pages as unchanged.
#[test]
fn what_a_failed_write_has_left_in_the_file_is_seen() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
        let file = world.open();
        let mut program = Program::on(&world, &file, 0);
        program.mapping.acquire(0..5000).unwrap();
        until_sure(&mut program.mapping, 0..5000);
        fault::inject(|point| match point {
            Point::WriteHalf => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        });
        assert_eq!(file.write(100, &[7; 20]).unwrap_err().kind(), ErrorKind::Write);
        fault::cease();
        program.mapping.acquire(0..5000).unwrap();
        assert_eq!(program.load(100, 20), world.file()[100..120]);
    }
}

/// Symptom: pages that were never released came to the file. Cause: a release went on to the end of its frame.
#[test]
fn a_release_publishes_its_pages_and_no_others() {
    for devices in sets(2) {
        for mode in MODES {
            let world = World::new(&devices, options(PAGE, 8, mode), &vec![0; 50_000]);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            for part in [PAGE..2 * PAGE, 0..PAGE, 5 * PAGE..6 * PAGE] {
                program.mapping.acquire(part).unwrap();
            }
            for page in [0, 1, 5] {
                program.store(page * PAGE + 3, &[7]);
            }
            assert_eq!(program.mapping.release(PAGE..2 * PAGE).unwrap().released, 1);
            file.sync().unwrap();
            program.mapping.close().unwrap();
            file.sync().unwrap();
            let content = world.file();
            assert_eq!([0, 1, 5].map(|page| content[page * PAGE as usize + 3]), [0, 7, 0]);
        }
    }
}

/// Symptom: what a program had written was gone when another closed its mapping of the same page. Cause: a close
/// took back whole pages, up to the end of the frame.
#[test]
fn a_close_takes_back_its_own_changes_and_no_other_mappings() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![0; 50_000]);
        let file = world.open();
        let [mut mine, mut other, mut reader] =
            [true, true, false].map(|writable| Program::new(&devices[0], file.map_on(0, 0..50_000, writable).unwrap()));
        mine.mapping.acquire(0..5000).unwrap();
        reader.mapping.acquire(0..50_000).unwrap();
        for part in [0..100, 200..300, 4000..10_000] {
            other.mapping.acquire(part).unwrap();
        }
        mine.store(150, &[1]);
        mine.store(350, &[1]);
        for at in [99, 200, 4999, 9000] {
            other.store(at, &[2]);
        }
        mine.mapping.close().unwrap();
        assert_eq!([99, 150, 200, 350, 4999, 9000].map(|at| other.load(at, 1)[0]), [2, 0, 2, 0, 2, 2]);
        for part in [0..100, 200..300, 4000..10_000] {
            other.mapping.release(part).unwrap();
        }
        file.sync().unwrap();
        assert_eq!([99, 150, 200, 350, 4999, 9000].map(|at| world.file()[at]), [2, 0, 2, 0, 2, 2]);
    }
}

/// Symptom: a sync, or the end of the last mapping, gave a file its old length back that somebody had cut. Cause:
/// nobody looked before what had been released was written behind the new end.
#[test]
fn a_file_that_was_cut_stays_cut() {
    for devices in sets(2) {
        for mode in MODES {
            for end in ["sync", "release", "drop"] {
                let world = World::new(&devices, options(PAGE, 8, mode), &vec![1; 50_000]);
                let file = world.open();
                let mut program = Program::on(&world, &file, 0);
                program.mapping.acquire(0..50_000).unwrap();
                program.mapping.acquire(0..50_000).unwrap();
                for at in [5, 19_999, 20_001, 45_000] {
                    program.store(at, &[7]);
                }
                if end != "release" && mode == Mode::Lazy {
                    program.mapping.release(0..50_000).unwrap();
                }
                File::options().write(true).open(&world.path).unwrap().set_len(20_000).unwrap();
                match end {
                    "sync" => program.mapping.sync().unwrap(),
                    "release" => {
                        program.mapping.release(0..50_000).unwrap();
                        file.sync().unwrap();
                    }
                    _ => drop((program, file)),
                }
                let content = world.file();
                assert_eq!(content.len(), 20_000, "{end} {mode:?}");
                if end != "drop" || mode == Mode::Lazy {
                    assert_eq!((content[5], content[19_999]), (7, 7), "{end} {mode:?}");
                }
            }
        }
    }
}

#[test]
fn a_file_that_shrinks_and_grows_shows_zeroes_in_between() {
    for devices in sets(2) {
        let mut random = random();
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![1; 50_000]);
        let file = world.open();
        let mut both = [0, 1].map(|number| Program::on(&world, &file, number));
        let mut expected = vec![1; 50_000];
        for round in 0..30_u8 {
            let outside = File::options().write(true).open(&world.path).unwrap();
            let small = random.below(50_000) as usize;
            outside.set_len(small as u64).unwrap();
            if random.below(2) == 0 && small > 0 {
                both[usize::from(round % 2)].mapping.acquire(0..small as u64).unwrap();
                both[usize::from(round % 2)].mapping.release(0..small as u64).unwrap();
            }
            outside.set_len(50_000).unwrap();
            expected[small..].fill(0);
            drop(outside);
            let program = &mut both[random.below(2) as usize];
            program.mapping.acquire(0..50_000).unwrap();
            let seen = program.load(0, 50_000);
            let wrong = (0..50_000).find(|at| seen[*at] != expected[*at]);
            assert_eq!(wrong, None, "round {round}, cut to {small}");
            let at = random.below(50_000);
            program.store(at, &[round]);
            expected[at as usize] = round;
            program.mapping.release(0..50_000).unwrap();
            // Of a release that is not home and a cut of the file, either may win.
            file.sync().unwrap();
        }
        file.sync().unwrap();
        assert!(world.file() == expected);
    }
}

#[test]
fn a_file_that_is_deleted_or_replaced_stays_what_it_was_for_who_has_it() {
    for devices in sets(2) {
        for is_replaced in [false, true] {
            let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![1; 50_000]);
            let file = world.open();
            let [mut one, mut two] = [0, 1].map(|number| Program::on(&world, &file, number));
            one.mapping.acquire(0..50_000).unwrap();
            one.store(9, &[7]);
            if is_replaced {
                let other = world.path.with_file_name("other");
                std::fs::write(&other, vec![2; 50_000]).unwrap();
                std::fs::rename(other, &world.path).unwrap();
            } else {
                std::fs::remove_file(&world.path).unwrap();
            }
            one.mapping.release(0..50_000).unwrap();
            two.mapping.acquire(0..50_000).unwrap();
            assert_eq!(two.load(8, 3), [1, 7, 1]);
            file.sync().unwrap();
            file.write(0, &[3]).unwrap();
            one.mapping.acquire(0..50_000).unwrap();
            assert_eq!(one.load(0, 1), [3]);
            if is_replaced {
                assert!(world.file() == vec![2; 50_000]);
                // Who opens it now has the new one.
                let mut new = Program::on(&world, &world.open(), 0);
                new.mapping.acquire(0..50_000).unwrap();
                assert!(new.load(0, 50_000) == vec![2; 50_000]);
            } else {
                assert_eq!(world.cache.open(&world.path).unwrap_err().kind(), ErrorKind::Read);
            }
        }
    }
}

/// Symptom: a panic, and behind it a message that asked for what could not be done. Cause: addresses were reserved
/// once, for the size that the file had then.
#[test]
fn a_file_that_has_grown_can_be_mapped_to_its_new_end() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![1; 50_000]);
        let file = world.open();
        let mut old = Program::on(&world, &file, 0);
        old.mapping.acquire(0..50_000).unwrap();
        old.store(17, &[5]);
        old.mapping.release(0..50_000).unwrap();
        let end = 5 * FRAME + 100;
        file.write(end - 3, &[9; 3]).unwrap();
        // What is mapped has its addresses, so as long the new end has none.
        match file.map_on(0, 0..end, true) {
            Ok(mut mapping) => assert!(mapping.acquire(4 * FRAME..end).is_ok()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::BadUse);
                assert!(error.to_string().contains("close"), "{error}");
            }
        }
        drop(old);
        let mut new = Program::on(&world, &file, 0);
        assert_eq!(new.mapping.len(), end);
        new.mapping.acquire(0..100).unwrap();
        assert_eq!(new.load(16, 3), [1, 5, 1]);
        new.mapping.acquire(4 * FRAME..end).unwrap();
        assert_eq!(new.load(end - 4, 4), [0, 9, 9, 9]);
        new.store(end - 4, &[4]);
        new.mapping.release(4 * FRAME..end).unwrap();
        file.sync().unwrap();
        assert_eq!(&world.file()[end as usize - 4..], [4, 9, 9, 9]);
    }
}

/// Symptom: a file could not be acquired, as another, which nobody used, had the whole budget.
#[test]
fn one_files_frames_make_room_for_anothers() {
    for devices in sets(2) {
        let world = World::new(&devices, options(64 << 10, 4, Mode::Lazy), &vec![1; 4 * FRAME as usize]);
        let other = world.path.with_file_name("other");
        std::fs::write(&other, vec![2; 4 * FRAME as usize]).unwrap();
        let files = [world.open(), world.cache.open(&other).unwrap()];
        let mut programs = [0, 1].map(|file| Program::on(&world, &files[file], 0));
        for round in 0..3_u8 {
            for (number, program) in programs.iter_mut().enumerate() {
                program.mapping.acquire(FRAME..3 * FRAME).unwrap();
                assert_eq!(program.load(FRAME, 1), [if round == 0 { number as u8 + 1 } else { round - 1 }]);
                program.store(FRAME, &[round]);
                program.mapping.release(FRAME..3 * FRAME).unwrap();
            }
        }
        // What is in use stays.
        programs[0].mapping.acquire(0..2 * FRAME).unwrap();
        assert_eq!(programs[1].mapping.acquire(0..2 * FRAME).unwrap_err().kind(), ErrorKind::OutOfMemory);
        programs[0].mapping.release(0..2 * FRAME).unwrap();
        programs[1].mapping.acquire(0..2 * FRAME).unwrap();
    }
}

/// Symptom: each file whose last bytes could not be written made the budget smaller, for good, and one bad page
/// kept all the others of its file from being written.
#[test]
fn a_file_that_ends_with_a_failed_write_gives_its_memory_back() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![1; 3 * FRAME as usize]);
        for round in 0..4_u8 {
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            program.mapping.acquire(0..2 * FRAME).unwrap();
            for frame in 0..2 {
                program.store(frame * FRAME, &[round + 10]);
            }
            program.mapping.release(0..2 * FRAME).unwrap();
            let mut runs = 0;
            fault::inject(move |point| {
                runs += u32::from(point == Point::HomeRun);
                if point == Point::HomeRun && runs == 1 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
            });
            drop((program, file));
            fault::cease();
            assert_eq!(world.cache.stats()[0].used_bytes, 0);
            assert_eq!(world.file()[FRAME as usize], round + 10, "the second frame could be written");
        }
    }
}

/// Each operation of a device fails in turn; then the device works again, and nothing is lost but the time.
#[test]
fn a_device_that_fails_or_has_no_memory_left_loses_nothing() {
    type Which = fn(&Faults) -> &AtomicI64;
    let operations: [(&str, Which); 9] = [
        ("frames", |faults| &faults.frames),
        ("maps", |faults| &faults.maps),
        ("allocations", |faults| &faults.allocations),
        ("reservations", |faults| &faults.reservations),
        ("copies", |faults| &faults.copies),
        ("downloads", |faults| &faults.downloads),
        ("device copies", |faults| &faults.device_copies),
        ("fills", |faults| &faults.fills),
        ("kernels", |faults| &faults.launches),
    ];
    let mut random = random();
    for (name, of) in operations {
        let mut good = -1;
        loop {
            good += if good < 4 { 1 } else { 1 + random.below(8) as i64 };
            let faults = Arc::new(Faults::default());
            let faulty = Device::from_backend(FaultBackend::new(host(0).backend(), &faults));
            let world = World::new(&[faulty, host(1)], options(PAGE, 6, Mode::Lazy), &vec![1; 4 * FRAME as usize]);
            of(&faults).store(good, Ordering::SeqCst);
            let mut failures = 0;
            // The n-th call fails, and those after it until somebody has noticed.
            let mut persist = |operation: &mut dyn FnMut() -> Result<(), bifolio_cache::Error>| {
                while let Err(error) = operation() {
                    failures += 1;
                    assert!(failures < 4, "{name}: {error}");
                    assert!(
                        matches!(error.kind(), ErrorKind::Device | ErrorKind::OutOfMemory | ErrorKind::Read),
                        "{error}"
                    );
                    assert!(
                        error.to_string().contains("on purpose") || error.kind() == ErrorKind::OutOfMemory,
                        "{error}"
                    );
                    of(&faults).store(-1, Ordering::SeqCst);
                }
            };
            let file = world.open();
            let mut mapping = None;
            persist(&mut || file.map_on(0, 0..u64::MAX, true).map(|mapped| mapping = Some(mapped)));
            let mut one = Program::new(&host(0), mapping.unwrap());
            let mut two = Program::on(&world, &file, 1);
            let parts = [0..2 * FRAME, FRAME..3 * FRAME];
            for (round, part) in parts.iter().enumerate() {
                persist(&mut || one.mapping.acquire(part.clone()).map(drop));
                one.store(part.start + 5, &[round as u8 + 7]);
                one.store(FRAME + 6, &[round as u8 + 7]);
                persist(&mut || one.mapping.release(part.clone()).map(drop));
                persist(&mut || two.mapping.acquire(FRAME..FRAME + PAGE).map(drop));
                assert_eq!(two.load(FRAME + 6, 1), [round as u8 + 7], "{name} {good}");
                two.store(FRAME + 8, &[round as u8 + 70]);
                persist(&mut || two.mapping.release(FRAME..FRAME + PAGE).map(drop));
                persist(&mut || file.sync());
            }
            persist(&mut || one.mapping.acquire(FRAME..2 * FRAME).map(drop));
            assert_eq!(one.load(FRAME + 4, 6), [1, 8, 8, 1, 71, 1], "{name} {good}");
            assert!(world.file()[5] == 7 && world.file()[FRAME as usize + 5..][..4] == [8, 8, 1, 71], "{name} {good}");
            let was_reached = of(&faults).load(Ordering::SeqCst) <= 0;
            drop((one, two, file));
            assert_eq!(world.cache.stats()[0].used_bytes, 0, "{name} {good}");
            // All of the budget is there: two windows with twins.
            of(&faults).store(-1, Ordering::SeqCst);
            let mut all = Program::on(&world, &world.open(), 0);
            all.mapping.acquire(0..3 * FRAME).unwrap();
            assert_eq!(world.cache.stats()[0].used_bytes, 6 * FRAME_BYTES, "{name} {good}");
            if !was_reached {
                println!("{name}: {good} calls");
                break;
            }
        }
    }
}

/// Symptom: what another process wrote while released bytes came home was never seen by devices. Cause: it was asked
/// whether somebody had opened the file before the file's new state was looked at.
#[test]
fn what_another_process_writes_during_a_flush_is_seen() {
    for devices in sets(2) {
        for moment in [Point::HomeOpened, Point::HomeRun, Point::HomeLooked, Point::FlushWritten] {
            let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            program.mapping.acquire(0..5000).unwrap();
            program.store(10, &[7]);
            program.mapping.publish(&(0..5000)).unwrap();
            until_sure(&mut program.mapping, 0..5000);
            let path = world.path.clone();
            fault::inject(move |point| {
                if point == moment {
                    let script = "printf x | dd of=\"$0\" bs=1 seek=3000 conv=notrunc 2> /dev/null";
                    assert!(std::process::Command::new("sh").args(["-c", script]).arg(&path).status()?.success());
                }
                Ok(())
            });
            file.flush().unwrap();
            fault::cease();
            assert_eq!((world.file()[10], world.file()[3000]), (7, b'x'), "{moment:?}");
            program.mapping.acquire(0..5000).unwrap();
            assert_eq!((program.load(10, 1)[0], program.load(3000, 1)[0]), (7, b'x'), "{moment:?}");
        }
    }
}

/// As in a mapping of the file: also where its last page was longer, and in memory that another file has left.
#[test]
fn bytes_behind_the_end_of_a_file_are_zeroes() {
    for devices in sets(2) {
        let world = World::new(&devices, options(64 << 10, 2, Mode::Lazy), &vec![0xff; FRAME as usize]);
        let other = world.path.with_file_name("other");
        let mut program = Program::on(&world, &world.open(), 0);
        program.mapping.acquire(0..FRAME).unwrap();
        drop(program);
        std::fs::write(&other, vec![1; 70_000]).unwrap();
        let file = world.cache.open(&other).unwrap();
        let mut program = Program::on(&world, &file, 0);
        for len in [70_000, 69_000, 66_000] {
            File::options().write(true).open(&other).unwrap().set_len(len).unwrap();
            program.mapping.acquire(0..len).unwrap();
            let seen = program.load(0, 128 << 10);
            assert_eq!(seen.iter().rposition(|byte| *byte != 0), Some(len as usize - 1));
            assert!(seen[..len as usize].iter().all(|byte| *byte == 1));
        }
    }
}

/// At any point of any operation: an error that says so or none, and whoever looks again sees the file.
#[test]
fn a_file_that_is_cut_in_the_middle_of_an_operation_is_an_error_or_too_late() {
    let mut random = random();
    for devices in sets(2) {
        for (number, moment) in Point::ALL.iter().enumerate() {
            let world = World::new(&devices, options(PAGE, 4, MODES[number % 2]), &vec![1; FRAME as usize + 9000]);
            let file = world.open();
            let mut both = [0, 1].map(|number| Program::on(&world, &file, number));
            let (path, mut left, cut) = (world.path.clone(), 1 + random.below(3), 1 + random.below(FRAME));
            let point = *moment;
            fault::inject(move |reached| {
                left -= u64::from(reached == point && left > 0);
                if reached == point && left == 0 {
                    // Another process does it: one's own threads are not noticed at the moment of a flush.
                    let status =
                        std::process::Command::new("truncate").arg("-s").arg(cut.to_string()).arg(&path).status();
                    assert!(status?.success());
                }
                Ok(())
            });
            let mut errors = Vec::new();
            for round in 0..4 {
                for (number, program) in both.iter_mut().enumerate() {
                    let part = FRAME * (round % 2)..FRAME * (round % 2) + 9000;
                    match program.mapping.acquire(part.clone()) {
                        Ok(_) => {
                            program.store(part.start + 4093 + number as u64, &[5; 6]);
                            errors.extend(program.mapping.release(part).err());
                        }
                        Err(error) => errors.push(error),
                    }
                }
                errors.extend(file.write(100 + round, &[7; 8]).err());
                errors.extend(file.read(0, &mut [0; 9000]).err());
                errors.extend(file.sync().err());
            }
            fault::cease();
            for error in errors {
                assert!(matches!(error.kind(), ErrorKind::Read | ErrorKind::Write), "{moment:?}: {error}");
            }
            file.sync().unwrap();
            let content = world.file();
            assert_eq!(file.read(0, &mut vec![0; FRAME as usize + 9000]).unwrap(), content.len());
            for (number, program) in both.iter_mut().enumerate() {
                program.mapping.close().unwrap();
                let mut mapping = file.map_on(number, 0..u64::MAX, false).unwrap();
                mapping.acquire(0..content.len() as u64).unwrap();
                let program = Program::new(&world.devices[number], mapping);
                assert!(program.load(0, content.len() as u64) == content, "{moment:?}, cut to {cut}");
            }
        }
    }
}

/// Symptom: two programs had written, the disk failed, one was told, and the other's sync said that all was well. Cause:
/// the operating system tells once, and nobody remembered.
#[test]
fn a_disk_that_failed_is_told_to_everybody_who_holds_the_file() {
    for devices in sets(1) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
        let [one, two] = [world.open(), world.open()];
        let mut mapped = Program::on(&world, &two, 0);
        mapped.mapping.acquire(0..5000).unwrap();
        fault::inject(|point| match point {
            Point::SyncFlushed => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        });
        assert_eq!(one.sync().unwrap_err().os_code(), Some(libc::EIO));
        fault::cease();
        let late = world.open();
        one.sync().unwrap();
        for _ in 0..2 {
            late.sync().unwrap();
        }
        let told = [two.sync(), mapped.mapping.sync(), world.cache.sync()].map(Result::unwrap_err);
        for error in told {
            assert_eq!((error.kind(), error.os_code()), (ErrorKind::Write, Some(libc::EIO)), "{error}");
        }
        two.sync().unwrap();
        mapped.mapping.sync().unwrap();
        world.cache.sync().unwrap();
    }
}

#[test]
fn a_cut_that_cannot_be_followed_is_followed_when_it_can() {
    for devices in sets(1) {
        for point in [Point::CutFound, Point::CutBlanked] {
            let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![1; 50_000]);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            program.mapping.acquire(0..50_000).unwrap();
            program.store(40_000, b"gone");
            File::options().write(true).open(&world.path).unwrap().set_len(30_000).unwrap();
            fault::inject(
                move |reached| {
                    if reached == point { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
                },
            );
            assert!(program.mapping.release(0..50_000).is_err());
            fault::cease();
            program.mapping.release(0..50_000).unwrap();
            assert_eq!(program.load(40_000, 4), [0; 4]);
            file.sync().unwrap();
            assert_eq!(world.file(), vec![1; 30_000]);
        }
    }
}
