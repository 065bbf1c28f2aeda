//! A process ends in the midst of copying, of a kernel, or of writing: bytes are torn, and some have been changed by others
//! before somebody goes on.

use super::keeper::Holder;
use super::{End, LIVING, cache, in_another_process};
use crate::support::{Draw, FRAME, Program, World, host, options, random};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{CachedFile, Mode};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Room for three images of the file.
pub(super) const BUDGET_FRAMES: u64 = 64;

const LEN: u64 = 8 * FRAME;
const PAGE: u64 = 64 << 10;
/// Where in a page its user stores what he does not release.
const OWN: u64 = 7;

/// An operation, and what others have to do with it.
struct Case {
    name: &'static str,
    /// Its process ends some time after it has come there, for the n-th time.
    point: Point,
    time: u32,
    /// Leads to the operation and does it.
    run: fn(&World, &CachedFile),
    /// What a CPU process does before anybody goes on.
    meanwhile: fn(&File),
    /// Whether the one who is still there has everything acquired.
    holds: bool,
    /// What he does.
    after: fn(&CachedFile, &mut Program),
    /// What a byte of the file is then, by its place.
    right: fn(u64) -> u8,
}

fn all(value: u8) -> Vec<u8> {
    vec![value; LEN as usize]
}

/// One value where something holds, and 1 elsewhere.
fn where_it(value: u8, is: impl Fn(u64) -> bool) -> Vec<u8> {
    (0..LEN).map(|at| if is(at) { value } else { 1 }).collect()
}

/// All but where somebody stores what he does not release.
fn write_around(file: &File, value: u8) {
    for page in (0..LEN).step_by(PAGE as usize) {
        file.write_all_at(&[value; OWN as usize], page).unwrap();
        file.write_all_at(&vec![value; (PAGE - OWN - 1) as usize], page + OWN + 1).unwrap();
    }
}

/// It has its mapping as long as the process lasts: one that ended in order, before the process is ended a little later, would
/// have given up what the program goes on with.
fn living(world: &World, file: &CachedFile, number: usize) -> ManuallyDrop<Program> {
    let file = file.for_client(LIVING);
    let mut program = Program::new(&world.devices[number], file.map_on(number, 0..LEN, true).unwrap());
    program.mapping.acquire(0..LEN).unwrap();
    ManuallyDrop::new(program)
}

fn store_own(program: &Program) {
    (0..LEN).step_by(PAGE as usize).for_each(|page| program.store(page + OWN, &[9]));
}

/// Ends this process at a point, with words of what kernels see changed as by a kernel that was at work.
fn tear_at(point: Point, program: &Program, value: fn(u64) -> u8) {
    let (start, mut random) = (program.mapping.ptr().0, random());
    fault::inject(move |reached| {
        if reached == point {
            for at in (0..LEN).step_by(8).filter(|_| random.below(2) == 0).flat_map(|word| word..word + 8) {
                let byte = (start + at) as *mut u8;
                // SAFETY: memory of the host that is mapped as long as this process is there; nobody else uses it now.
                unsafe { byte.write_volatile(if is_own(at) { byte.read_volatile() } else { value(at) }) };
            }
            super::die();
        }
        Ok(())
    });
}

fn by_hand(world: &World) -> File {
    File::options().write(true).open(&world.path).unwrap()
}

fn is_own(at: u64) -> bool {
    at % PAGE == OWN
}

const FETCH: Case = Case {
    name: "fetch",
    point: Point::AcquireCompared,
    time: 2,
    run: |world, file| {
        let mut program = living(world, file, 0);
        program.mapping.release(0..LEN).unwrap();
        write_around(&by_hand(world), 2);
        program.mapping.acquire(0..LEN).unwrap();
    },
    meanwhile: |file| write_around(file, 3),
    holds: false,
    after: |_, program| {
        program.mapping.acquire(0..LEN).unwrap();
        program.mapping.release(0..LEN).unwrap();
    },
    right: |at| if is_own(at) { 1 } else { 3 },
};

/// As a GPU leaves it: many words have what was merged, and their twins do not.
const MERGE_IN_WORDS: Case = Case {
    name: "merge-in-words",
    run: |world, file| {
        let mut program = living(world, file, 0);
        store_own(&program);
        write_around(&by_hand(world), 2);
        tear_at(Point::MergeBegun, &program, |_| 2);
        program.mapping.acquire(0..LEN).unwrap();
    },
    // As it was: what looks like the device's change would go home over it.
    meanwhile: |file| write_around(file, 1),
    right: |at| if is_own(at) { 9 } else { 1 },
    ..MERGE
};

const MERGE: Case = Case {
    name: "merge",
    point: Point::MergeRead,
    time: 1,
    run: |world, file| {
        let mut program = living(world, file, 0);
        store_own(&program);
        write_around(&by_hand(world), 2);
        program.mapping.acquire(0..LEN).unwrap();
    },
    meanwhile: |file| write_around(file, 3),
    holds: true,
    after: |_, program| _ = program.mapping.release(0..LEN).unwrap(),
    right: |at| if is_own(at) { 9 } else { 3 },
};

/// Home is another device.
const FOLD: Case = Case {
    name: "fold",
    point: Point::FoldRead,
    time: 1,
    run: |world, file| {
        let mut program = living(world, file, 1);
        store_own(&program);
        let mut other = Program::on(world, file, 0);
        other.mapping.acquire(0..LEN).unwrap();
        other.store(0, &where_it(4, |at| at % 2 == 0));
        other.mapping.release(0..LEN).unwrap();
        program.mapping.acquire(0..LEN).unwrap();
    },
    meanwhile: |_| {},
    holds: true,
    after: |_, program| _ = program.mapping.release(0..LEN).unwrap(),
    right: |at| match at {
        at if is_own(at) => 9,
        at if at % 2 == 0 => 4,
        _ => 1,
    },
};

/// As a GPU leaves it; and what was folded is not newest any more when its device next releases.
const FOLD_IN_WORDS: Case = Case {
    name: "fold-in-words",
    run: |world, file| {
        let mut program = living(world, file, 1);
        store_own(&program);
        let mut other = Program::on(world, file, 0);
        other.mapping.acquire(0..LEN).unwrap();
        other.store(0, &where_it(4, |at| at % 2 == 0));
        other.mapping.release(0..LEN).unwrap();
        tear_at(Point::FoldRead, &program, |at| if at % 2 == 0 { 4 } else { 1 });
        program.mapping.acquire(0..LEN).unwrap();
    },
    after: |file, program| {
        let mut other = Program::new(&host(0), file.map_on(0, 0..LEN, true).unwrap());
        other.mapping.acquire(0..LEN).unwrap();
        other.store(0, &where_it(5, |at| at % 2 == 0));
        other.mapping.release(0..LEN).unwrap();
        program.mapping.acquire(0..LEN).unwrap();
        program.mapping.release(0..LEN).unwrap();
    },
    right: |at| match at {
        at if is_own(at) => 9,
        at if at % 2 == 0 => 5,
        _ => 1,
    },
    ..FOLD
};

/// Home is the device itself, and what it has is an input.
const FOLD_AT_HOME: Case = Case {
    name: "fold-at-home",
    run: |world, file| {
        let mut other = Program::on(world, file, 0);
        other.mapping.acquire(0..LEN).unwrap();
        let mut program = living(world, file, 1);
        program.store(0, &where_it(6, |at| at % 4 == 1));
        program.mapping.release(0..LEN).unwrap();
        program.mapping.acquire(0..LEN).unwrap();
        store_own(&program);
        other.store(0, &where_it(4, |at| at % 2 == 0));
        other.mapping.release(0..LEN).unwrap();
        program.mapping.acquire(0..LEN).unwrap();
    },
    right: |at| match at {
        at if is_own(at) => 9,
        at if at % 2 == 0 => 4,
        at if at % 4 == 1 => 6,
        _ => 1,
    },
    ..FOLD
};

/// The device itself is a donor: both have released without having seen each other.
const FOLD_BY_DONOR: Case = Case {
    name: "fold-by-donor",
    run: |world, file| {
        let mut program = living(world, file, 1);
        let mut other = Program::on(world, file, 0);
        other.mapping.acquire(0..LEN).unwrap();
        other.store(0, &where_it(4, |at| at % 2 == 0));
        other.mapping.release(0..LEN).unwrap();
        program.store(0, &where_it(6, |at| at % 4 == 1));
        program.mapping.publish(&(0..LEN)).unwrap();
        store_own(&program);
        program.mapping.acquire(0..LEN).unwrap();
    },
    ..FOLD_AT_HOME
};

const RELEASE: Case = Case {
    name: "release",
    point: Point::ReleaseNoted,
    time: 1,
    run: |world, file| {
        let mut program = living(world, file, 0);
        program.store(0, &all(5));
        program.mapping.release(0..LEN).unwrap();
    },
    meanwhile: |_| {},
    holds: true,
    after: |file, _| {
        // Nobody has asked for it again.
        let mut seen = all(0xa5);
        file.read(0, &mut seen).unwrap();
        assert_eq!(seen.iter().position(|byte| *byte != 5), None, "a release that was done in part");
    },
    right: |_| 5,
};

const FLUSH: Case = Case {
    name: "flush",
    point: Point::HomeOpened,
    time: 1,
    run: |world, file| {
        let mut program = living(world, file, 0);
        program.store(0, &all(5));
        program.mapping.sync().unwrap();
    },
    meanwhile: |_| {},
    holds: true,
    after: |_, program| {
        program.store(0, &all(6));
        program.mapping.release(0..LEN).unwrap();
    },
    right: |_| 6,
};

const CUT: Case = Case {
    name: "cut",
    point: Point::CutFound,
    time: 1,
    run: |world, file| {
        let program = living(world, file, 0);
        store_own(&program);
        by_hand(world).set_len(LEN / 2).unwrap();
        file.read(0, &mut [0; 10]).unwrap();
    },
    meanwhile: |file| {
        file.set_len(LEN).unwrap();
        // As it was: zeroes that look like a device's change would go home over it.
        file.write_all_at(&vec![1; (LEN / 2) as usize], LEN / 2).unwrap();
    },
    holds: true,
    after: |_, program| _ = program.mapping.release(0..LEN).unwrap(),
    right: |at| if is_own(at) && at < LEN / 2 { 9 } else { 1 },
};

const CASES: [Case; 10] =
    [FETCH, MERGE, MERGE_IN_WORDS, FOLD, FOLD_IN_WORDS, FOLD_AT_HOME, FOLD_BY_DONOR, RELEASE, FLUSH, CUT];

/// In a process of its own.
pub(super) fn run(name: &str, world: &World) {
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    let file = world.open();
    (case.run)(world, &file);
    std::mem::forget(file);
}

/// Symptom without records: a kernel that ends half-way leaves words that look like a device's own changes, and what a CPU
/// has written since is taken back by them; what was released is there in part.
#[test]
fn torn_bytes_are_whole_again_and_nobodys_byte_is_taken_back() {
    let mut random = random();
    let most: u32 = std::env::var("BIFOLIO_FAULT_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for case in &CASES {
        // Nanoseconds that it may take to the end, as a power of two; longer than the operation takes, at first.
        let mut longest = 22;
        let mut ended = 0;
        while ended < 3 * most {
            let after = Duration::from_nanos(random.below(1 << longest));
            let what = format!("{}, ended after {after:?}", case.name);
            println!("{what}");
            let folder = crate::support::folder();
            std::fs::write(folder.path().join("data"), all(1)).unwrap();
            if crash(case, folder.path(), after, &what) {
                ended += 1;
            } else {
                assert!(longest > 0, "{}: no process has come to {:?}", case.name, case.point);
                longest -= 1;
            }
        }
    }
}

fn crash(case: &Case, folder: &Path, after: Duration, what: &str) -> bool {
    let options = options(PAGE, BUDGET_FRAMES, Mode::Lazy);
    let keeper = Arc::new(Holder::new([LIVING]));
    let end = End::After(case.point, case.time, after);
    let status = in_another_process(case.name, folder, &options, end, &keeper);
    if status.success() {
        return false;
    }
    (case.meanwhile)(&File::options().write(true).open(folder.join("data")).unwrap());
    let devices = [host(0), host(1)];
    let world = World::over(cache(&devices, options, &keeper), &devices, folder);
    let file = world.open();
    assert!(file.is_sound(), "{what}");
    let number = usize::from(case.name.starts_with("fold"));
    let acquired = if case.holds { std::iter::once(0..LEN).collect() } else { vec![] };
    let mapping = file.for_client(LIVING).resume(number, 0..LEN, acquired).unwrap();
    let mut program = Program::new(&devices[number], mapping);
    (case.after)(&file, &mut program);
    file.sync().unwrap();
    let wrong = (0..).zip(world.file()).find(|(at, value)| *value != (case.right)(*at));
    assert_eq!(wrong, None, "{what}: a byte of the file");
    assert!(file.is_sound(), "{what}");
    true
}
