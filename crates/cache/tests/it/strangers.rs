//! A stranger who makes the file longer and shorter at any moment: between operations and in the middle of them, by
//! a byte, by pages, and far behind the addresses that anybody has reserved.

use crate::support::{Draw, FRAME, PAGE, Program, World, host, options, random, sets, until_aged};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{Advice, CachedFile, Error, ErrorKind, Mode};
use fastrand::Rng;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const MODES: [Mode; 2] = [Mode::Lazy, Mode::Eager];

/// Addresses are reserved for at least so many bytes.
const ROOM: u64 = 64 << 20;

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
    let devices = [bifolio_device::Device::from_backend(FaultBackend::new(host(0).backend(), &faults)), host(1)];
    let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![7; 50_000]);
    let file = world.open();
    let [mut one, mut two] = [0, 1].map(|number| Program::on(&world, &file, number));
    two.mapping.acquire(0..50_000).unwrap();
    writer(&world.path).set_len(20_000).unwrap();
    until_aged(&world.path);
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

/// Symptom: a file that somebody had cut had its old length again. Cause: nobody looked before memory was given back,
/// to advice or to another file, and after a look nobody looked again before each write.
#[test]
fn no_flush_makes_a_file_longer_that_was_cut() {
    let ways = ["advice", "another file", "the middle of a sync", "the middle of many runs", "the middle of a release"];
    for devices in sets(2) {
        for way in ways {
            let mode = if way == "the middle of a release" { Mode::Eager } else { Mode::Lazy };
            let world = World::new(&devices, options(PAGE, 4, mode), &vec![1; 50_000]);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            program.mapping.acquire(0..50_000).unwrap();
            program.store(5, &[7]);
            program.store(40_000, &[7; 100]);
            if way == "the middle of many runs" {
                (0..10_000).step_by(2).for_each(|at| program.store(30_000 + at, &[7]));
            }
            let path = world.path.clone();
            let in_the_middle =
                move |point: Point| if point == Point::HomeRun { writer(&path).set_len(20_000) } else { Ok(()) };
            if mode == Mode::Eager {
                fault::inject(in_the_middle);
                program.mapping.release(0..50_000).unwrap();
            } else {
                program.mapping.release(0..50_000).unwrap();
                match way {
                    "advice" => {
                        writer(&world.path).set_len(20_000).unwrap();
                        program.mapping.advise(0..50_000, Advice::DontNeed).unwrap();
                    }
                    "another file" => {
                        writer(&world.path).set_len(20_000).unwrap();
                        let other = world.path.with_file_name("other");
                        std::fs::write(&other, vec![1; 2 * FRAME as usize]).unwrap();
                        let mapping = world.cache.open(&other).unwrap().map_on(0, 0..2 * FRAME, true).unwrap();
                        Program::new(&devices[0], mapping).mapping.acquire(0..2 * FRAME).unwrap();
                    }
                    _ => {
                        fault::inject(in_the_middle);
                        file.sync().unwrap();
                    }
                }
            }
            fault::cease();
            drop((program, file));
            let content = world.file();
            assert_eq!(content.len(), 20_000, "{way}");
            assert_eq!((content[5], content[6]), (7, 1), "{way}");
        }
    }
}

/// Symptom: zeroes in the file, in the place of what another process had written where it was cut. Cause: of a page with
/// a release on its way the content and the base were blanked, and what had been set aside of it was not: zeroes looked
/// like changes of the device's.
#[test]
fn zeroes_behind_a_cut_are_no_change_of_a_page_that_is_pending() {
    for devices in sets(1) {
        for anew in [1, 2] {
            let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[1; 5000]);
            let file = world.open();
            let mut program = Program::on(&world, &file, 0);
            program.mapping.acquire(0..5000).unwrap();
            program.store(4100, &[7]);
            program.store(4700, &[7]);
            program.mapping.release(0..5000).unwrap();
            writer(&world.path).set_len(4500).unwrap();
            // It is noticed, and the page stays pending.
            file.read(0, &mut [0; 10]).unwrap();
            writer(&world.path).write_all_at(&[anew; 500], 4500).unwrap();
            file.read(0, &mut [0; 10]).unwrap();
            file.sync().unwrap();
            let content = world.file();
            assert_eq!((content.len(), content[4100], content[4099]), (5000, 7, 1));
            assert!(content[4500..].iter().all(|byte| *byte == anew), "{anew}");
            program.mapping.acquire(0..5000).unwrap();
            assert!(program.load(0, 5000) == content);
        }
    }
}

/// Bytes that devices map, of a file that may be longer.
const MAPPED: u64 = 3 * PAGE + 700;

/// What a byte may be.
type Values = Vec<u8>;

/// The plain oracle: the file's length, and for each byte that devices map what it may be. That is one value, save
/// where what was released and a cut have met: of those either may win, until somebody has looked.
#[derive(Debug, Clone)]
struct Oracle {
    size: u64,
    bytes: Vec<Values>,
    /// Released, and perhaps not home.
    pending: Vec<Option<u8>>,
    /// By device: stored and not released.
    stored: [Vec<Option<u8>>; 2],
    /// By device: the byte was cut off since the device has acquired it. A file that has grown again has zeroes there,
    /// which are newer than what the device had stored, as anything that a CPU writes is: a release that was begun
    /// without them may leave them.
    overtaken: [Vec<bool>; 2],
}

impl Oracle {
    fn new(content: &[u8]) -> Self {
        let nothing = vec![None; MAPPED as usize];
        Self {
            size: content.len() as u64,
            bytes: content.iter().map(|byte| vec![*byte]).collect(),
            pending: nothing.clone(),
            stored: [nothing.clone(), nothing],
            overtaken: [0, 1].map(|_| vec![false; MAPPED as usize]),
        }
    }

    fn end(&self) -> usize {
        self.size.min(MAPPED) as usize
    }

    /// The file has another length.
    fn cut_or_grow(&mut self, size: u64) {
        for at in (size.min(MAPPED) as usize)..self.end() {
            self.bytes[at] = vec![0];
            self.bytes[at].extend(self.pending[at]);
            // Nor is what is stored there certain to be: advice in the background may look before the file grows again.
            self.overtaken.iter_mut().for_each(|overtaken| overtaken[at] = true);
        }
        self.size = size;
    }

    /// The cache has looked at the file's length: what lies behind is nobody's.
    fn looked(&mut self) {
        for at in self.end()..MAPPED as usize {
            self.bytes[at] = vec![0];
            self.pending[at] = None;
            self.stored.iter_mut().for_each(|stored| stored[at] = None);
        }
    }

    fn write(&mut self, at: u64, value: u8) {
        self.size = self.size.max(at + 1);
        if let Some(values) = self.bytes.get_mut(at as usize) {
            *values = vec![value];
            self.pending[at as usize] = None;
        }
    }

    fn release(&mut self, device: usize, part: &std::ops::Range<u64>) {
        for at in part.start as usize..(part.end as usize).min(self.end()) {
            if let Some(value) = self.stored[device][at].take() {
                self.bytes[at] = if self.overtaken[device][at] { vec![0, value] } else { vec![value] };
                self.pending[at] = Some(value);
            }
        }
    }

    fn store(&mut self, device: usize, at: u64, value: u8) {
        self.stored[device][at as usize] = Some(value);
        self.overtaken[device][at as usize] = false;
    }

    /// A device has acquired some pages, and this is in them. What it had stored stays on top of zeroes that a cut has
    /// left, and is newer than they are once it is released; or the cut has taken it away.
    fn acquire(&mut self, device: usize, start: u64, content: &[u8]) {
        for (at, value) in (start as usize..).zip(content) {
            if std::mem::take(&mut self.overtaken[device][at]) && *value == 0 {
                self.stored[device][at] = None;
            }
        }
    }

    /// Somebody has seen what everybody has to see from now on.
    fn saw(&mut self, start: u64, seen: &[u8], except: Option<usize>, who: &str) {
        for (at, value) in (start as usize..).zip(seen).take_while(|(at, _)| *at < MAPPED as usize) {
            if let Some(stored) = except.and_then(|device| self.stored[device][at]) {
                assert_eq!(*value, stored, "what {who} has stored at byte {at}");
                continue;
            }
            assert!(
                self.bytes[at].contains(value),
                "{who} reads {value} at byte {at}, of {:?}; the file has {} bytes",
                self.bytes[at],
                self.size
            );
            self.bytes[at] = vec![*value];
        }
    }
}

/// Where a file may end.
fn some_size(random: &mut Rng) -> u64 {
    let around = |random: &mut Rng, place: u64| (place + random.below(3)).saturating_sub(1);
    match random.below(8) {
        0 => random.below(3),
        1 => {
            let page = random.below(5) * PAGE;
            around(random, page)
        }
        2 => around(random, MAPPED),
        3 => around(random, FRAME),
        4 => around(random, ROOM),
        5 => ROOM + random.below(ROOM),
        6 => 5 * ROOM + random.below(40 * ROOM),
        _ => random.below(MAPPED + 100),
    }
}

/// One file and everybody who uses it. A byte's writer is its place modulo 4: the devices, a CPU through the cache,
/// the stranger.
struct Stage<'a> {
    world: &'a World,
    path: PathBuf,
    file: CachedFile,
    programs: [Option<Program>; 2],
    acquired: [Vec<std::ops::Range<u64>>; 2],
    oracle: Oracle,
    /// Bytes of a page.
    page: u64,
    next: u8,
    /// Where a CPU's last write ended.
    wrote: u64,
}

impl Stage<'_> {
    fn value(&mut self) -> u8 {
        self.next = self.next % 250 + 1;
        self.next
    }

    /// A place in the file that is one's own.
    fn place(&self, random: &mut Rng, who: u64) -> Option<u64> {
        let count = (self.oracle.size.min(MAPPED) + 3 - who) / 4;
        (count > 0).then(|| random.below(count) * 4 + who)
    }

    fn stranger(&mut self, random: &mut Rng) {
        if random.below(3) > 0 {
            let size = some_size(random);
            writer(&self.path).set_len(size).unwrap();
            self.oracle.cut_or_grow(size);
        } else {
            let (at, value) = (some_size(random) / 4 * 4 + 3, self.value());
            writer(&self.path).write_all_at(&[value], at).unwrap();
            self.oracle.write(at, value);
        }
    }

    /// One operation of somebody who uses the cache; what went wrong, and whether it has looked at the file's length.
    fn operate(&mut self, random: &mut Rng, is_disturbed: bool) -> Result<(), Error> {
        let device = random.below(2) as usize;
        let start = random.below(MAPPED);
        let part = start..(start + 1 + random.below(MAPPED)).min(MAPPED);
        match random.below(10) {
            0..3 => {
                let Some(program) = &mut self.programs[device] else { return self.map(device) };
                program.mapping.acquire(part.clone())?;
                self.acquired[device].push(part.clone());
                self.oracle.looked();
                if is_disturbed {
                    return Ok(());
                }
                // Whole pages are brought up to date, of which the device may have stored into other parts before.
                let pages = part.start / self.page * self.page..part.end.next_multiple_of(self.page).min(MAPPED);
                let content = program.load(pages.start, pages.end - pages.start);
                self.oracle.acquire(device, pages.start, &content);
                let seen = &content[(part.start - pages.start) as usize..][..(part.end - part.start) as usize];
                self.oracle.saw(part.start, seen, Some(device), &format!("device {device}"));
                for _ in 0..3 {
                    let value = self.value();
                    if let Some(at) = self.place(random, device as u64).filter(|at| part.contains(at)) {
                        self.programs[device].as_ref().unwrap().store(at, &[value]);
                        self.oracle.store(device, at, value);
                    }
                }
            }
            3..5 => {
                let Some(program) = &mut self.programs[device] else { return self.map(device) };
                if let Some(part) = self.acquired[device].last().cloned() {
                    // Whole pages are released.
                    let pages = part.start / self.page * self.page..part.end.next_multiple_of(self.page);
                    // What a failed release has published is not known.
                    self.oracle.looked();
                    self.oracle.release(device, &pages);
                    program.mapping.release(part)?;
                    self.acquired[device].pop();
                }
            }
            5 => {
                let mut seen = vec![0x5a; (part.end - part.start) as usize];
                let read = self.file.read(part.start, &mut seen)?;
                self.oracle.looked();
                if !is_disturbed {
                    let there = self.oracle.size.clamp(part.start, part.end) - part.start;
                    assert_eq!(read as u64, there, "a CPU reads {part:?} of {} bytes", self.oracle.size);
                    self.oracle.saw(part.start, &seen[..read], None, "a CPU");
                }
            }
            6 => {
                let (at, value) = (some_size(random) / 4 * 4 + 2, self.value());
                self.wrote = at + 1;
                let outcome = self.file.write(at, &[value]);
                self.oracle.looked();
                self.oracle.write(at, value);
                outcome?;
            }
            7 => {
                self.file.sync()?;
                self.oracle.looked();
            }
            8 => {
                let Some(program) = &mut self.programs[device] else { return self.map(device) };
                program.mapping.advise(part, [Advice::DontNeed, Advice::WillNeed][random.below(2) as usize])?;
            }
            _ => {
                // What is not released is gone, save where somebody else's release of the page took it along.
                if let Some(mut program) = self.programs[device].take() {
                    self.acquired[device].clear();
                    self.oracle.stored[device].fill(None);
                    program.mapping.close()?;
                }
            }
        }
        Ok(())
    }

    fn map(&mut self, device: usize) -> Result<(), Error> {
        // As long as all that is ever mapped, so that parts stay in their places.
        if self.oracle.size < MAPPED {
            return Ok(());
        }
        let mapping = self.file.map_on(device, 0..MAPPED, true)?;
        if mapping.len() == MAPPED {
            self.programs[device] = Some(Program::new(&self.world.devices[device], mapping));
        }
        Ok(())
    }

    /// Everything is home; the file is what it may be, and so are its replicas.
    fn settle(&mut self) {
        self.file.sync().unwrap();
        self.oracle.looked();
        let size = std::fs::metadata(&self.path).unwrap().len();
        assert_eq!(size, self.oracle.size, "what was cut stays cut");
        let mut content = vec![0; size.min(MAPPED) as usize];
        File::open(&self.path).unwrap().read_exact_at(&mut content, 0).unwrap();
        self.oracle.saw(0, &content, None, "the file");
        // What a CPU has only read is on a device still, and may come home after a cut that nobody has seen.
        self.oracle.pending.fill(None);
    }

    /// The stranger comes in the middle of an operation, of which afterwards only the file can tell how far it came.
    fn disturbed(&mut self, random: &mut Rng) {
        let before = self.oracle.clone();
        let sizes = Rc::new(RefCell::new(Vec::new()));
        let (mut left, path, done, size) =
            (1 + random.below(12), self.path.clone(), Rc::clone(&sizes), some_size(random));
        fault::inject(move |_: Point| {
            left = left.saturating_sub(1);
            if left == 0 && done.borrow().is_empty() {
                // Another process does it: one's own threads are not noticed at the moment of a flush.
                let status = std::process::Command::new("truncate").arg("-s").arg(size.to_string()).arg(&path).status();
                assert!(status?.success());
                done.borrow_mut().push(size);
            }
            Ok(())
        });
        self.wrote = 0;
        let outcome = self.operate(random, true);
        let wrote = self.wrote;
        fault::cease();
        if let Err(error) = &outcome {
            assert!(matches!(error.kind(), ErrorKind::Read | ErrorKind::Write | ErrorKind::BadRange), "{error}");
        }
        let Some(size) = sizes.take().pop() else { return };
        let after = self.oracle.clone();
        self.file.sync().unwrap();
        // A CPU's write may have come behind the new end.
        let now = std::fs::metadata(&self.path).unwrap().len();
        assert!(now == size || now == wrote && size < wrote, "{now} bytes, cut to {size}");
        let least = before.end().min(size.min(MAPPED) as usize);
        for at in 0..MAPPED as usize {
            let mut values = [&before.bytes[at][..], &after.bytes[at]].concat();
            let unsure = [before.pending[at], after.pending[at], before.stored[0][at], before.stored[1][at], Some(0)];
            if at >= least {
                values.extend(unsure.into_iter().flatten());
            }
            self.oracle.bytes[at] = values;
        }
        self.oracle.size = now;
        self.settle();
        for stored in &mut self.oracle.stored {
            // Whether it is there still depends on who looked when.
            stored[least..].fill(None);
        }
        if least < MAPPED as usize {
            self.let_go();
        }
    }

    /// Nobody goes on with what was stored where a cut may have taken it away or not.
    fn let_go(&mut self) {
        for device in 0..2 {
            if let Some(mut program) = self.programs[device].take() {
                self.acquired[device].clear();
                self.oracle.stored[device].fill(None);
                program.mapping.close().unwrap();
            }
        }
    }
}

#[test]
fn a_stranger_who_grows_and_cuts_at_any_moment_is_followed() {
    let mut random = random();
    for devices in sets(2) {
        for round in 0..40 {
            let mode = MODES[round % 2];
            let content = random.bytes(MAPPED);
            let page = [PAGE, 64 << 10][round / 2 % 2];
            let world = World::new(&devices, options(page, 8, mode), &content);
            let mut stage = Stage {
                world: &world,
                path: world.path.clone(),
                file: world.open(),
                programs: [0, 1].map(|number| Some(Program::on(&world, &world.open(), number))),
                acquired: [vec![], vec![]],
                oracle: Oracle::new(&content),
                page,
                next: 0,
                wrote: 0,
            };
            for _ in 0..60 {
                match random.below(8) {
                    0 => stage.stranger(&mut random),
                    1 => stage.disturbed(&mut random),
                    2 => stage.settle(),
                    _ => stage.operate(&mut random, false).unwrap(),
                }
            }
            stage.settle();
            drop((stage.programs, stage.file));
            assert_eq!(
                std::fs::metadata(&world.path).unwrap().len(),
                stage.oracle.size,
                "at the end of the last holder"
            );
        }
    }
}
