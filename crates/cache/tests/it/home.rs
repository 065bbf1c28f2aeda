//! Pages whose home is a device: what the file lacks comes to it, and nothing else, whatever happens on the way.

use crate::cpus::cpu_writes;
use crate::support::{FRAME, PAGE, Program, World, options, sets};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{CachedFile, Mode};
use bifolio_device::DeviceSlice;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

fn programs<const N: usize>(world: &World, file: &CachedFile, len: u64) -> [Program; N] {
    std::array::from_fn(|device| {
        let mut program = Program::on(world, file, device);
        program.mapping.acquire(0..len).unwrap();
        program
    })
}

fn fail_at(wanted: Point, time: u32) {
    let mut times = 0;
    fault::inject(move |point| {
        times += u32::from(point == wanted);
        if point == wanted && times == time { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    });
}

/// Symptom: a release was left out as if somebody else had written its bytes. Cause: a flush of home's had failed after it
/// had written something, and the device that was home before went on from what the file had had.
#[test]
fn after_half_a_flush_who_was_home_before_does_not_know_the_file() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 4096]);
        let file = world.open();
        let [mut one, mut two] = programs(&world, &file, 4096);
        one.store(10, &[1]);
        one.store(3000, &[1]);
        one.mapping.publish(&(0..4096)).unwrap();
        two.mapping.acquire(0..4096).unwrap();
        fail_at(Point::HomeRun, 2);
        file.flush().unwrap_err();
        fault::cease();
        assert_eq!((world.file()[10], world.file()[3000]), (1, 0));
        one.store(10, &[2]);
        one.mapping.publish(&(0..4096)).unwrap();
        file.sync().unwrap();
        assert_eq!((world.file()[10], world.file()[3000]), (2, 1));
        two.mapping.acquire(0..4096).unwrap();
        assert_eq!((two.load(10, 1), two.load(3000, 1)), (vec![2], vec![1]));
    }
}

/// Symptom: the same. Cause: a CPU had written what home had, and whether the file had changed was asked of what home has
/// instead of what the file had had.
#[test]
fn a_cpu_that_writes_what_home_has_is_somebody_else() {
    for devices in sets(1) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 4096]);
        let file = world.open();
        let [mut one] = programs(&world, &file, 4096);
        one.store(10, &[1]);
        one.mapping.publish(&(0..4096)).unwrap();
        // He keeps it open, so that nothing is certain.
        let cpu = File::options().write(true).open(&world.path).unwrap();
        cpu.write_all_at(&[1], 10).unwrap();
        one.mapping.acquire(0..4096).unwrap();
        one.store(10, &[2]);
        one.mapping.publish(&(0..4096)).unwrap();
        file.sync().unwrap();
        assert_eq!(world.file()[10], 2);
    }
}

/// Whoever only reads may become home; a stray store of its kernels is nobody's release.
#[test]
fn a_store_through_a_read_only_mapping_is_never_flushed() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 4096]);
        let file = world.open();
        let [mut one] = programs(&world, &file, 4096);
        one.store(10, &[1]);
        one.mapping.publish(&(0..4096)).unwrap();
        let mut reader = file.map_on(1, 0..4096, false).unwrap();
        reader.acquire(0..4096).unwrap();
        assert!(file.page_state(1, 0).is_pending, "it is home");
        // SAFETY: the part is acquired; that it is not to be written is what is tried.
        let stray = unsafe { DeviceSlice::from_raw(reader.ptr().offset_by(20), 1) };
        devices[1].create_stream().unwrap().upload(stray, &[9]).unwrap();
        let mut seen = [7; 1];
        file.read(20, &mut seen).unwrap();
        file.sync().unwrap();
        assert_eq!((seen[0], world.file()[20], world.file()[10]), (0, 0, 1));
    }
}

/// Symptom: a page of the file was overwritten with what was in a new twin's memory. Cause: home had no twin, got one when
/// the page was mapped to be written, and was flushed for its memory before the twin had content.
#[test]
fn home_without_room_writes_what_was_released_and_nothing_else() {
    for devices in sets(2) {
        let len = 6 * FRAME;
        for (frames, end) in (3..9).flat_map(|frames| (1..=6).map(move |count| (frames, count * FRAME))) {
            let world = World::new(&devices, options(PAGE, frames, Mode::Lazy), &vec![5; len as usize]);
            let file = world.open();
            let mut one = Program::on(&world, &file, 0);
            one.mapping.acquire(0..PAGE).unwrap();
            one.store(10, &[1]);
            one.mapping.release(0..PAGE).unwrap();
            let mut reader = file.map_on(1, 0..len, false).unwrap();
            reader.acquire(0..PAGE).unwrap();
            reader.release(0..PAGE).unwrap();
            let mut two = Program::on(&world, &file, 1);
            // As much as there is room for, or more.
            if two.mapping.acquire(0..end).is_ok() {
                two.mapping.release(0..end).unwrap();
            }
            file.sync().unwrap();
            let mut expected = vec![5; len as usize];
            expected[10] = 1;
            assert!(world.file() == expected, "{frames} frames, {end} bytes acquired");
        }
    }
}

/// Symptom: a release was gone. Cause: an acquire failed between the kernel that laid the device's own release on home's
/// content and the note of it; what tells the release from home's content was gone by then.
#[test]
fn an_acquire_that_fails_when_everything_is_folded_keeps_the_devices_own_release() {
    for devices in sets(3) {
        for point in [Point::FoldMerged, Point::FoldNoted] {
            let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 4096]);
            let file = world.open();
            let [mut one, mut two, mut three] = programs(&world, &file, 4096);
            one.store(10, &[1]);
            one.mapping.publish(&(0..4096)).unwrap();
            two.mapping.acquire(0..4096).unwrap();
            three.mapping.acquire(0..4096).unwrap();
            one.store(10, &[2]);
            one.mapping.publish(&(0..4096)).unwrap();
            three.store(20, &[3]);
            three.mapping.publish(&(0..4096)).unwrap();
            fail_at(point, 1);
            one.mapping.acquire(0..4096).unwrap_err();
            fault::cease();
            two.mapping.acquire(0..4096).unwrap();
            assert_eq!((two.load(10, 1), two.load(20, 1)), (vec![2], vec![3]), "{point:?}");
            file.sync().unwrap();
            assert_eq!((world.file()[10], world.file()[20]), (2, 3), "{point:?}");
        }
    }
}

/// A close that cannot take back what was not released takes nothing back that was.
#[test]
fn a_close_that_fails_keeps_what_was_released() {
    for devices in sets(1) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 4096]);
        let file = world.open();
        let [mut one] = programs(&world, &file, 4096);
        one.store(10, &[1]);
        one.mapping.publish(&(0..4096)).unwrap();
        one.store(20, &[9]);
        fail_at(Point::DiscardCompared, 1);
        one.mapping.close().unwrap();
        fault::cease();
        file.sync().unwrap();
        assert_eq!((world.file()[10], world.file()[20]), (1, 0));
    }
}

/// Symptom: what a CPU had appended was zeroes. Cause: home's base had an earlier page's content behind the end of the file,
/// and where the CPU appended the same, what home had there, zeroes, counted as newer.
#[test]
fn a_file_that_grows_while_a_device_is_home_gets_nothing_from_behind_its_end() {
    for devices in sets(2) {
        let len = FRAME + 5000;
        let world = World::new(&devices, options(64 << 10, 16, Mode::Lazy), &vec![0xab; len as usize]);
        let file = world.open();
        let [mut one, mut two] = programs(&world, &file, len);
        // Memory for bases that was another page's.
        two.store(10, &[1]);
        two.mapping.publish(&(0..len)).unwrap();
        file.flush().unwrap();
        one.store(FRAME + 10, &[1]);
        one.mapping.publish(&(0..len)).unwrap();
        two.mapping.acquire(0..len).unwrap();
        assert!(file.page_state(1, FRAME >> 16).is_pending, "it is home");
        cpu_writes(&world.path, len, &[0xab; 3000]);
        two.mapping.acquire(0..len).unwrap();
        file.sync().unwrap();
        let mut expected = vec![0xab; len as usize + 3000];
        (expected[10], expected[FRAME as usize + 10]) = (1, 1);
        assert!(world.file() == expected);
    }
}

/// What a CPU process has changed is laid under what home has for the file, on the device: nothing is written for it, and
/// everybody who acquires sees both.
#[test]
fn a_file_that_changes_under_home_is_followed_there() {
    for devices in sets(2) {
        let len = 3 * PAGE;
        for who in [0, 1] {
            let world = World::new(&devices, options(PAGE, 12, Mode::Lazy), &vec![5; len as usize]);
            let file = world.open();
            let [mut one, mut two] = programs(&world, &file, len);
            for program in [&mut one, &mut two] {
                program.mapping.release(0..len).unwrap();
            }
            one.mapping.acquire(0..len).unwrap();
            for page in 0..3 {
                one.store(page * PAGE + 10, &[1, 1, 1]);
            }
            one.mapping.release(0..len).unwrap();
            let cpu = File::options().read(true).write(true).open(&world.path).unwrap();
            // A byte of its own, and one that the device has released, who is older.
            cpu.write_all_at(&[2, 2], PAGE + 12).unwrap();
            let flushed = world.cache.counts().flushed;
            let acquirer = if who == 0 { &mut one } else { &mut two };
            acquirer.mapping.acquire(0..len).unwrap();
            assert_eq!(acquirer.load(PAGE + 9, 6), [5, 1, 1, 2, 2, 5], "device {who}");
            assert_eq!(acquirer.load(10, 3), [1, 1, 1]);
            let mut seen = [0; 6];
            file.read(PAGE + 9, &mut seen).unwrap();
            assert_eq!(seen, [5, 1, 1, 2, 2, 5]);
            assert_eq!(world.cache.counts().flushed, flushed, "something was written for device {who}");
            assert_eq!(world.file()[PAGE as usize + 9..][..6], [5, 5, 5, 2, 2, 5]);
            acquirer.store(PAGE + 13, &[3]);
            acquirer.mapping.release(0..len).unwrap();
            file.sync().unwrap();
            assert_eq!(world.file()[PAGE as usize + 9..][..6], [5, 1, 1, 2, 3, 5]);
            assert_eq!(world.file()[10..13], [1, 1, 1]);
        }
    }
}

/// What several devices have of a page is written at once: bytes by turns would be many short runs, and twice as many.
#[test]
fn what_donors_have_is_written_with_what_home_has() {
    for devices in sets(2) {
        let len = 5 * PAGE - 1000;
        let world = World::new(&devices, options(PAGE, 20, Mode::Lazy), &vec![5; len as usize]);
        let file = world.open();
        let mut programs: [Program; 2] = programs(&world, &file, len);
        let mut expected = vec![5; len as usize];
        for (number, piece) in expected.chunks_mut(100).enumerate() {
            piece.fill(10 + number as u8 % 2);
            programs[number % 2].store(number as u64 * 100, piece);
        }
        for program in &mut programs {
            program.mapping.release(0..len).unwrap();
        }
        // Of the one who is not home, and who comes too late.
        let cpu = File::options().write(true).open(&world.path).unwrap();
        for at in [10, 110] {
            cpu.write_all_at(&[77], PAGE + at).unwrap();
            expected[(PAGE + at) as usize] = 77;
        }
        file.sync().unwrap();
        assert_eq!(world.cache.counts().flushed, 5, "pages that were written");
        assert!(world.file() == expected);
        for program in &mut programs {
            program.mapping.acquire(0..len).unwrap();
            assert!(program.load(0, len) == expected);
        }
    }
}

/// A kernel that uses what is home finds nothing changed under it: there the bytes meet in the file, and what a CPU has
/// written is not taken back by a release that was begun without it.
#[test]
fn what_is_used_at_home_is_not_changed_for_others() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[5; 4096]);
        let file = world.open();
        let [mut one, mut two] = programs(&world, &file, 4096);
        one.store(10, &[1]);
        one.mapping.publish(&(0..4096)).unwrap();
        // Not released yet when a CPU writes the same byte.
        one.store(20, &[1]);
        let cpu = File::options().write(true).open(&world.path).unwrap();
        cpu.write_all_at(&[2, 2], 20).unwrap();
        two.mapping.acquire(0..4096).unwrap();
        assert_eq!((two.load(10, 1), two.load(20, 2)), (vec![1], vec![2, 2]));
        assert_eq!(one.load(20, 2), [1, 5]);
        one.mapping.publish(&(0..4096)).unwrap();
        file.sync().unwrap();
        assert_eq!((world.file()[10], &world.file()[20..22]), (1, &[2, 2][..]));
    }
}

/// Pages that a CPU process has changed come by the bytes that were read to compare them, and are not read again; what the
/// device has changed and not released stays on top.
#[test]
fn what_a_comparison_has_read_is_taken() {
    for devices in sets(1) {
        // The last one in part.
        let len = 4 * PAGE - 1000;
        let world = World::new(&devices, options(PAGE, 12, Mode::Lazy), &vec![5; len as usize]);
        let file = world.open();
        let [mut one] = programs(&world, &file, len);
        let mut reader = file.map_on(0, 0..len, false).unwrap();
        one.store(2 * PAGE + 7, &[1]);
        let cpu = File::options().write(true).open(&world.path).unwrap();
        cpu.write_all_at(&vec![6; (2 * PAGE) as usize - 1000], 2 * PAGE).unwrap();
        // The second read would fail.
        fail_at(Point::HomeRead, 2);
        let report = reader.acquire(0..len);
        fault::cease();
        let report = report.unwrap();
        assert_eq!((report.fetched, report.compared, report.hits), (2, 4, 2));
        assert_eq!(one.load(2 * PAGE + 6, 3), [6, 1, 6]);
        assert_eq!(one.load(len - 3, 3), [6, 6, 6]);
        assert_eq!(one.load(2 * PAGE - 1, 2), [5, 6]);
        one.mapping.release(0..len).unwrap();
        file.sync().unwrap();
        assert_eq!(world.file()[2 * PAGE as usize + 6..][..3], [6, 1, 6]);
        assert_eq!(world.file().len() as u64, len);
    }
}

/// Short reads that follow each other find most of what they ask for in host memory, and never what it was before.
#[test]
fn what_is_read_ahead_for_a_cpu_is_as_new_as_what_is_read() {
    for devices in sets(2) {
        let len = 40 * PAGE;
        let world = World::new(&devices, options(PAGE, 60, Mode::Lazy), &vec![5; len as usize]);
        let file = world.open();
        let [mut one] = programs(&world, &file, len);
        let mut expected = vec![5; len as usize];
        let store = |program: &mut Program, expected: &mut Vec<u8>, at: u64, value: u8| {
            program.store(at, &[value]);
            program.mapping.publish(&(0..len)).unwrap();
            expected[at as usize] = value;
        };
        // All of it is home on the device.
        (0..40).for_each(|page| store(&mut one, &mut expected, page * PAGE, 1));
        let mut seen = vec![0; 512];
        let cpu = File::options().write(true).open(&world.path).unwrap();
        for (number, at) in (0..len).step_by(512).enumerate() {
            let ahead = (at + 512 + number as u64 % 7 * 300).min(len - 1);
            match number % 11 {
                // Behind what was just read, where something is kept of it by now.
                3 => store(&mut one, &mut expected, ahead, number as u8 | 1),
                7 => {
                    file.write(ahead, &[number as u8 | 1]).unwrap();
                    expected[ahead as usize] = number as u8 | 1;
                }
                9 => {
                    cpu.write_all_at(&[number as u8 | 1], ahead).unwrap();
                    expected[ahead as usize] = number as u8 | 1;
                    // What the device has of it is older, and it acquires it before it stores there again.
                    one.mapping.acquire(0..len).unwrap();
                    one.mapping.release(0..len).unwrap();
                }
                _ => {}
            }
            assert_eq!(file.read(at, &mut seen).unwrap(), 512);
            assert!(seen == expected[at as usize..][..512], "what is at {at}");
        }
        assert!(world.cache.counts().served > 0);
    }
}

/// Symptom: pages counted as come from another device that the file had. Cause: every fold was taken for that.
#[test]
fn what_a_fold_reads_from_the_file_came_from_no_other_device() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 4096]);
        let file = world.open();
        let [mut one, mut two] = programs(&world, &file, 4096);
        one.store(10, &[1]);
        // One that has not seen it is a donor of the file's.
        file.write(20, &[2]).unwrap();
        one.mapping.publish(&(0..4096)).unwrap();
        let report = two.mapping.acquire(0..4096).unwrap();
        assert_eq!((report.fetched, report.from_peers), (1, 0), "{report:?}");
        let report = one.mapping.acquire(0..4096).unwrap();
        assert_eq!((report.fetched, report.from_peers), (1, 1), "{report:?}");
    }
}
