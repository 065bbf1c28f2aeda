//! Of what a CPU process writes: it stays, whatever brings home what devices have released before or after.

use crate::support::{FRAME, HostMapping, PAGE, Program, World, options, sets, until_sure};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{Advice, Mode};
use bifolio_io::{OpenFile, cache_state};
use bifolio_testing::{noise, seed, skip};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

pub(crate) fn cpu_writes(path: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Symptom: a device released byte 10 = 1, a CPU process wrote 2 there afterwards, and the next acquire put 1 into the
/// file. Cause: a flush asked whether a higher device had changed the page, and not whether a CPU had.
#[test]
fn what_a_cpu_wrote_after_a_release_stays_whatever_brings_the_release_home() {
    let ways =
        ["acquire", "another's acquire", "sync", "read", "write", "advice", "eviction", "close", "another release"];
    for devices in sets(2) {
        for way in ways {
            for (is_sure, is_stored) in [(false, false), (true, false), (false, true)] {
                let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
                let file = world.open();
                let [mut one, mut two] = [0, 1].map(|number| Program::on(&world, &file, number));
                one.mapping.acquire(0..5000).unwrap();
                two.mapping.acquire(0..5000).unwrap();
                one.mapping.acquire(0..5000).unwrap();
                if is_sure {
                    until_sure(&mut one.mapping, 0..5000);
                }
                let mapped = is_stored.then(|| HostMapping::new(&world.path, 5000));
                one.store(10, &[1, 1, 1]);
                one.mapping.release(0..5000).unwrap();
                match &mapped {
                    Some(mapped) => mapped.store(11, 2),
                    None => cpu_writes(&world.path, 11, &[2]),
                }
                match way {
                    "acquire" => drop(one.mapping.acquire(0..5000).unwrap()),
                    "another's acquire" => drop(two.mapping.acquire(0..5000).unwrap()),
                    "read" => drop(file.read(0, &mut [0; 100]).unwrap()),
                    "write" => file.write(20, b"x").unwrap(),
                    "advice" => {
                        while one.mapping.release(0..5000).is_ok() {}
                        one.mapping.advise(0..5000, Advice::DontNeed).unwrap();
                    }
                    "eviction" => file.evict(0, 0).unwrap(),
                    "another release" => {
                        // Of what was not acquired since, either.
                        one.store(11, &[3]);
                        one.mapping.publish(&(0..5000)).unwrap();
                        file.sync().unwrap();
                    }
                    _ => file.sync().unwrap(),
                }
                if way == "close" {
                    drop((one, two, file));
                } else {
                    file.sync().unwrap();
                    assert_eq!(&world.file()[10..13], [1, 2, 1], "{way}, sure {is_sure}, stored {is_stored}");
                    for program in [&mut one, &mut two] {
                        program.mapping.acquire(0..5000).unwrap();
                        assert_eq!(program.load(10, 3), [1, 2, 1], "{way}, sure {is_sure}, stored {is_stored}");
                    }
                    // What was acquired may be overwritten.
                    one.store(11, &[4]);
                    one.mapping.publish(&(0..5000)).unwrap();
                    drop((one, two, file));
                    assert_eq!(&world.file()[10..13], [1, 4, 1], "{way}, sure {is_sure}, stored {is_stored}");
                    continue;
                }
                assert_eq!(&world.file()[10..13], [1, 2, 1], "{way}, sure {is_sure}, stored {is_stored}");
            }
        }
    }
}

/// The same where a release goes to the file at once: in eager mode, and in windows of a budget that has no room for
/// what is released.
#[test]
fn what_a_cpu_wrote_before_a_release_that_goes_home_at_once_stays() {
    for devices in sets(2) {
        for (mode, frames) in [(Mode::Eager, 8), (Mode::Eager, 2), (Mode::Lazy, 2)] {
            let world = World::new(&devices, options(PAGE, frames, mode), &vec![0; FRAME as usize]);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            program.mapping.acquire(0..FRAME).unwrap();
            program.store(10, &[1, 1, 1]);
            program.store(100_000, &[1]);
            cpu_writes(&world.path, 11, &[2]);
            program.mapping.publish(&(0..FRAME)).unwrap();
            assert_eq!(&world.file()[10..13], [1, 2, 1], "{mode:?}, {frames} frames");
            assert_eq!(world.file()[100_000], 1);
            // Again, in the same pages.
            program.store(20, &[5]);
            program.mapping.release(0..FRAME).unwrap();
            file.sync().unwrap();
            assert_eq!((&world.file()[10..13], world.file()[20]), (&[1, 2, 1][..], 5), "{mode:?}, {frames} frames");
            program.mapping.acquire(0..FRAME).unwrap();
            assert_eq!((program.load(10, 3), program.load(20, 1)), (vec![1, 2, 1], vec![5]), "{mode:?}");
        }
    }
}

/// A CPU's byte beside one for which devices race: who comes home first wins, for all.
#[test]
fn devices_that_race_beside_a_cpu_agree_with_it() {
    for devices in sets(3) {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            for mode in [Mode::Lazy, Mode::Eager] {
                for cpu_comes in 0..4 {
                    let world = World::new(&devices, options(PAGE, 8, mode), &[0; 5000]);
                    let file = world.open();
                    let mut all = [0, 1, 2].map(|number| Program::on(&world, &file, number));
                    for (number, program) in all.iter_mut().enumerate() {
                        program.mapping.acquire(0..5000).unwrap();
                        program.store(10, &[number as u8 + 1; 2]);
                    }
                    for (turn, number) in order.into_iter().enumerate() {
                        if turn == cpu_comes {
                            cpu_writes(&world.path, 11, &[9]);
                        }
                        all[number].mapping.release(0..5000).unwrap();
                        file.sync().unwrap();
                    }
                    if cpu_comes == 3 {
                        cpu_writes(&world.path, 11, &[9]);
                    }
                    file.sync().unwrap();
                    let won = [order[0] as u8 + 1, 9];
                    assert_eq!(&world.file()[10..12], won, "{order:?}, {mode:?}, a CPU at {cpu_comes}");
                    for program in &mut all {
                        program.mapping.acquire(0..5000).unwrap();
                        assert_eq!(program.load(10, 2), won, "{order:?}, {mode:?}, a CPU at {cpu_comes}");
                    }
                }
            }
        }
    }
}

/// Symptom: a CPU's read of a megabyte that a device had asked the disk for it. Cause: the read tried first what the page
/// cache gives without waiting, and a kernel that meets what it lacks there reads ahead.
#[test]
fn what_a_device_has_is_not_asked_of_the_disk() {
    let cached = |file: &OpenFile| cache_state::look(file, 0..file.size().unwrap()).unwrap().cached_bytes();
    for devices in sets(1) {
        let mut expected = noise(4 << 20, seed());
        let world = World::new(&devices, options(64 << 10, 8, Mode::Lazy), &expected);
        let file = world.open();
        let mut program = Program::on(&world, &file, 0);
        let part = 0..1 << 20;
        program.mapping.acquire(part.clone()).unwrap();
        until_sure(&mut program.mapping, part.clone());
        // Not in the first 4 KiB of its page, so that the page cache has a part of the page between two that it lacks.
        program.store(5000, &[1, 1]);
        expected[5000..5002].fill(1);
        program.mapping.release(part).unwrap();
        let home = OpenFile::open(&world.path).unwrap();
        File::open(&world.path).unwrap().sync_all().unwrap();
        if cache_state::evict(&home, 0..4 << 20).is_err() || cached(&home) > 0 {
            skip("this file system keeps a file in memory that nobody uses");
            return;
        }
        let mut seen = vec![0; 1 << 20];
        assert_eq!(file.read(0, &mut seen).unwrap(), seen.len());
        assert!(seen == expected[..1 << 20]);
        // What was released is home now, which takes the page that it is in.
        assert!(cached(&home) <= 8192, "{} bytes came from the disk", cached(&home));
        assert_eq!(world.cache.counts().served, 16);
        // What is cached comes from there, whole or in part.
        let mut half = vec![0; 256 << 10];
        File::open(&world.path).unwrap().read_exact_at(&mut half, 512 << 10).unwrap();
        assert_eq!(file.read(0, &mut seen).unwrap(), seen.len());
        assert!(seen == expected[..1 << 20]);
        // However scattered that is, a device is asked for a page once.
        let scattered: Vec<_> = (0..256).step_by(2).map(|page| page * 4096..(page + 1) * 4096).collect();
        cache_state::arrange(&home, 0..4 << 20, &scattered).unwrap();
        let before = world.cache.counts().served;
        seen.fill(0);
        assert_eq!(file.read(100, &mut seen[100..]).unwrap(), seen.len() - 100);
        assert!(seen[100..] == expected[100..1 << 20]);
        assert!((1..=16).contains(&(world.cache.counts().served - before)), "{}", world.cache.counts().served - before);
    }
}

/// Symptom: a CPU read zeroes of a page that a device held, now and then. Cause: a neighbouring page was acquired to be
/// written and the disk waited for, when the twin of both had memory and no content yet.
#[test]
fn what_a_device_has_is_read_while_its_frame_gets_a_twin() {
    for devices in sets(1) {
        let content = noise(2 * PAGE as usize, seed());
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &content);
        let file = world.open();
        let mut reader = file.map_on(0, 0..PAGE, false).unwrap();
        reader.acquire(0..PAGE).unwrap();
        until_sure(&mut reader, 0..PAGE);
        let mut program = Program::on(&world, &file, 0);
        File::open(&world.path).unwrap().sync_all().unwrap();
        let (other, path, seen) = (file.clone(), world.path.clone(), Rc::new(RefCell::new(None)));
        let noted = Rc::clone(&seen);
        fault::inject(move |point| {
            if point == Point::HomeRead && noted.borrow().is_none() {
                let home = OpenFile::open(&path).unwrap();
                let is_evicted = cache_state::evict(&home, 0..2 * PAGE).is_ok();
                let is_evicted =
                    is_evicted && cache_state::look(&home, 0..PAGE).is_ok_and(|seen| seen.cached_bytes() == 0);
                let mut buffer = vec![0x5a; PAGE as usize];
                *noted.borrow_mut() = Some((is_evicted, vec![]));
                other.read(0, &mut buffer).unwrap();
                *noted.borrow_mut() = Some((is_evicted, buffer));
            }
            Ok(())
        });
        program.mapping.acquire(0..2 * PAGE).unwrap();
        fault::cease();
        let (is_evicted, buffer) = seen.borrow_mut().take().expect("the second page is read");
        if !is_evicted {
            skip("this file system keeps a file in memory that nobody uses");
            return;
        }
        assert!(buffer == content[..PAGE as usize], "what the device holds is read");
    }
}
