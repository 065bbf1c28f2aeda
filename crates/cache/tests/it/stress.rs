//! Everybody at once: threads with mappings of their own on two devices, CPUs that write through the cache, by
//! `write`, by stores into a mapping, and from another process, and another file, in memory that is too small, of which
//! the kernel takes pages of the file back. Each byte has one writer, whose values count up, so that what a reader sees has
//! a lower and an upper bound at any moment.
//!
//! `BIFOLIO_STRESS_SECONDS` runs it longer.

use crate::support::{
    Draw, FRAME, HostMapping, PAGE, Program, World, drop_cached, is_told_of_threads, options, random, sets,
};
use bifolio_cache::{Advice, CachedFile, ErrorKind, Mode, fault};
use bifolio_device::Device;
use fastrand::Rng;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LEN: u64 = 3 * FRAME + 12_345;
/// Neighbouring bytes, one for each writer, and one for which all devices race.
const GROUP: u64 = 8;
/// The owners' numbers: two threads for each device, and behind them:
const DEVICE_THREADS: u64 = 4;
const CACHE: u64 = 4;
const PROCESS: u64 = 5;
const MAPPED: u64 = 6;
const RACE: u64 = 7;
/// Values end here, as they are bytes.
const VALUE_MAX: u8 = 250;

/// Where groups begin: at the ends of pages and frames, and anywhere.
fn groups(seed: u64) -> Vec<u64> {
    let mut random = Rng::with_seed(seed);
    let mut groups = vec![0, PAGE - 3, 16 * PAGE - 5, FRAME - 4, 2 * FRAME - 1, 2 * FRAME + 64 * PAGE - 7, LEN - GROUP];
    while groups.len() < 60 {
        let at = random.below(LEN - GROUP);
        if groups.iter().all(|other| other.abs_diff(at) >= GROUP) {
            groups.push(at);
        }
    }
    groups
}

/// What is promised of each byte; in a file, so that another process can share it.
struct Truth {
    groups: Vec<u64>,
    bytes: HostMapping,
}

#[derive(Clone, Copy)]
enum Bound {
    /// No reader sees more.
    Started = 0,
    /// Whoever acquires, or reads through the cache, from now on sees no less.
    Done = 1,
    /// Every reader does.
    Synced = 2,
}

impl Truth {
    fn new(seed: u64, path: &Path) -> Self {
        let groups = groups(seed);
        let len = groups.len() * GROUP as usize * 3 + 1;
        if !path.exists() {
            std::fs::write(path, vec![0; len]).unwrap();
        }
        Self { groups, bytes: HostMapping::new(path, len) }
    }

    fn place(&self, bound: Bound, group: usize, owner: u64) -> u64 {
        (bound as u64 * self.groups.len() as u64 + group as u64) * GROUP + owner
    }

    fn get(&self, bound: Bound, group: usize, owner: u64) -> u8 {
        self.bytes.load(self.place(bound, group, owner))
    }

    fn set(&self, bound: Bound, group: usize, owner: u64, value: u8) {
        self.bytes.store(self.place(bound, group, owner), value);
    }

    /// A flag behind the bounds.
    fn end(&self) -> u64 {
        3 * GROUP * self.groups.len() as u64
    }

    fn has_ended(&self) -> bool {
        self.bytes.load(self.end()) != 0
    }

    fn all(&self, bound: Bound) -> Vec<u8> {
        (0..self.groups.len() as u64 * GROUP).map(|at| self.get(bound, (at / GROUP) as usize, at % GROUP)).collect()
    }

    /// Writes the next value of a byte by `store`, if there is one; it is visible from the first moment on.
    fn write(&self, group: usize, owner: u64, store: impl FnOnce(u64, u8)) {
        let value = self.get(Bound::Started, group, owner) + 1;
        if value <= VALUE_MAX {
            self.set(Bound::Started, group, owner, value);
            store(self.groups[group] + owner, value);
            self.set(Bound::Done, group, owner, value);
            self.set(Bound::Synced, group, owner, value);
        }
    }

    /// Compares what somebody has read of a group with what it may be: no less than was promised before.
    fn check(&self, group: usize, seen: &[u8], before: &[u8], who: &str) {
        for owner in (0..GROUP).filter(|owner| *owner != RACE) {
            let (least, most) = (before[owner as usize], self.get(Bound::Started, group, owner));
            let value = seen[owner as usize];
            let at = self.groups[group] + owner;
            assert!(
                (least..=most).contains(&value),
                "{who} reads {value} at byte {at} of owner {owner}: not of {least}..={most}"
            );
        }
    }

    fn promised(&self, bound: Bound, group: usize) -> Vec<u8> {
        (0..GROUP).map(|owner| self.get(bound, group, owner)).collect()
    }
}

/// One run: what its threads share.
struct Turmoil<'a> {
    world: &'a World,
    file: CachedFile,
    truth: Truth,
    mode: Mode,
    threads_per_device: u64,
    /// One in so many points that operations come to takes a while; none if 0.
    slow: u64,
    until: Instant,
    operations: AtomicU64,
    refused: AtomicU64,
}

impl Turmoil<'_> {
    fn goes_on(&self) -> bool {
        self.operations.fetch_add(1, Ordering::Relaxed);
        Instant::now() < self.until
    }

    /// Operations of this thread are interrupted for a while, now and then: others see what is half done, as far as anybody
    /// may.
    fn is_interrupted(&self, mut random: Rng) {
        let slow = self.slow;
        fault::inject(move |_| {
            if slow > 0 && random.below(slow) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(1000)));
            }
            Ok(())
        });
    }

    /// A thread with a mapping of its own on a device, whose kernels run while another thread of the same device acquires
    /// and releases.
    fn use_device(&self, thread: u64, mut random: Rng) {
        self.is_interrupted(random.fork());
        let device = (thread / 2) as usize;
        let is_alone = self.threads_per_device == 1;
        let mut program = Program::on(self.world, &self.file, device);
        let who = format!("thread {thread} on device {device}");
        while self.goes_on() {
            let first = random.below(self.truth.groups.len() as u64) as usize;
            let start = self.truth.groups[first] / PAGE * PAGE;
            let part = start..(self.truth.groups[first] + GROUP + random.below(200_000)).min(LEN);
            let inside: Vec<usize> = (0..self.truth.groups.len())
                .filter(|group| {
                    part.contains(&self.truth.groups[*group]) && self.truth.groups[*group] + GROUP <= part.end
                })
                .collect();
            let before: Vec<_> = inside.iter().map(|group| self.truth.promised(Bound::Done, *group)).collect();
            let acquired = program.mapping.acquire(part.clone());
            if let Err(error) = acquired {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                self.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            for (group, before) in inside.iter().zip(&before) {
                let seen = program.load(self.truth.groups[*group], GROUP);
                self.truth.check(*group, &seen, before, &who);
            }
            let mut written = Vec::new();
            for group in inside.iter().copied() {
                if random.below(3) > 0 {
                    continue;
                }
                let value = self.truth.get(Bound::Started, group, thread) + 1;
                if value <= VALUE_MAX {
                    if !is_alone {
                        // The other thread's release may publish it.
                        self.truth.set(Bound::Started, group, thread, value);
                    }
                    program.store(self.truth.groups[group] + thread, &[value]);
                    program.store(self.truth.groups[group] + RACE, &[random.below(256) as u8]);
                    written.push((group, value));
                }
            }
            if random.below(20) == 0 {
                let advice = [Advice::WillNeed, Advice::DontNeed][random.below(2) as usize];
                program.mapping.advise(random.below(LEN)..LEN, advice).unwrap();
            }
            if random.below(20) == 0 {
                // Nothing of it was released.
                program = Program::on(self.world, &self.file, device);
                continue;
            }
            for (group, value) in &written {
                self.truth.set(Bound::Started, *group, thread, *value);
            }
            program.mapping.release(part).unwrap();
            for (group, value) in written {
                self.truth.set(Bound::Done, group, thread, value);
                if self.mode == Mode::Eager {
                    self.truth.set(Bound::Synced, group, thread, value);
                }
            }
        }
    }

    /// A thread that only reads, on a device on which others write: what they have not released it may see, too. What nobody
    /// writes gets memory without twins so.
    fn read_on_device(&self, device: usize, mut random: Rng) {
        self.is_interrupted(random.fork());
        let mapping = self.file.map_on(device, 0..u64::MAX, false).unwrap();
        let mut program = Program::new(&self.world.devices[device], mapping);
        let who = format!("a reader on device {device}");
        while self.goes_on() {
            let group = random.below(self.truth.groups.len() as u64) as usize;
            let start = self.truth.groups[group];
            let before = self.truth.promised(Bound::Done, group);
            if let Err(error) = program.mapping.acquire(start..start + GROUP) {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                self.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let seen = program.load(start, GROUP);
            self.truth.check(group, &seen, &before, &who);
            program.mapping.release(start..start + GROUP).unwrap();
            if random.below(20) == 0 {
                program.mapping.advise(random.below(LEN)..LEN, Advice::DontNeed).unwrap();
            }
        }
    }

    /// A CPU that reads and writes through the cache.
    fn use_cache(&self, mut random: Rng) {
        self.is_interrupted(random.fork());
        while self.goes_on() {
            let group = random.below(self.truth.groups.len() as u64) as usize;
            self.truth.write(group, CACHE, |at, value| self.file.write(at, &[value]).unwrap());
            let group = random.below(self.truth.groups.len() as u64) as usize;
            let before = self.truth.promised(Bound::Done, group);
            let mut seen = [0x5a; GROUP as usize];
            assert_eq!(self.file.read(self.truth.groups[group], &mut seen).unwrap(), seen.len());
            self.truth.check(group, &seen, &before, "a CPU through the cache");
            if random.below(50) == 0 {
                let done = self.truth.all(Bound::Done);
                self.file.sync().unwrap();
                for (at, value) in done.into_iter().enumerate() {
                    let (group, owner) = (at / GROUP as usize, at as u64 % GROUP);
                    // Those of CPUs are higher already, and those of eager releases.
                    if owner < DEVICE_THREADS && self.mode == Mode::Lazy {
                        self.truth.set(Bound::Synced, group, owner, value);
                    }
                }
            }
        }
    }

    /// A CPU that reads much at a time, while others work on other parts of it and on the same.
    fn read_all(&self, mut random: Rng) {
        self.is_interrupted(random.fork());
        let mut seen = vec![0x5a; LEN as usize];
        while self.goes_on() {
            let start = random.below(LEN - GROUP);
            let inside: Vec<usize> =
                (0..self.truth.groups.len()).filter(|at| self.truth.groups[*at] >= start).collect();
            let before: Vec<_> = inside.iter().map(|group| self.truth.promised(Bound::Done, *group)).collect();
            let read = self.file.read(start, &mut seen).unwrap();
            assert_eq!(read as u64, LEN - start);
            for (group, before) in inside.iter().zip(&before) {
                let at = (self.truth.groups[*group] - start) as usize;
                self.truth.check(*group, &seen[at..at + GROUP as usize], before, "a CPU that reads much");
            }
        }
    }

    /// A thread with another file, which needs the same memory.
    fn use_another_file(&self, mut random: Rng) {
        self.is_interrupted(random.fork());
        let content = random.bytes(3 * FRAME);
        let path = self.world.folder().join("another");
        std::fs::write(&path, &content).unwrap();
        let file = self.world.cache.open(&path).unwrap();
        let mut programs = [0, 1].map(|device| Program::on(self.world, &file, device));
        while self.goes_on() {
            let program = &mut programs[random.below(2) as usize];
            let start = random.below(3 * FRAME);
            let part = start..(start + 1 + random.below(FRAME)).min(3 * FRAME);
            if let Err(error) = program.mapping.acquire(part.clone()) {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                self.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let seen = program.load(start, part.end - start);
            assert!(seen == content[start as usize..part.end as usize], "another file, at {part:?}");
            // What is stored is what is there: it is released, or not, and nothing changes.
            program.store(start, &seen[..1]);
            program.mapping.release(part).unwrap();
        }
    }

    /// Threads of this process that know nothing of caches. They come and go at any moment, where that is noticed.
    fn write_past_it(&self, mut random: Rng) {
        let open = || File::options().read(true).write(true).open(&self.world.path).unwrap();
        let mut file = Some(open());
        while self.goes_on() {
            write_and_read(&self.truth, file.get_or_insert_with(open), &mut random);
            if random.below(2) == 0 && is_told_of_threads() {
                file = None;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    fn store_past_it(&self, mut random: Rng) {
        let map = || HostMapping::new(&self.world.path, LEN as usize);
        let mut kept = Some(map());
        while self.goes_on() {
            let mapped = kept.get_or_insert_with(map);
            let group = random.below(self.truth.groups.len() as u64) as usize;
            self.truth.write(group, MAPPED, |at, value| mapped.store(at, value));
            let group = random.below(self.truth.groups.len() as u64) as usize;
            let before = self.truth.promised(Bound::Synced, group);
            let seen: Vec<u8> = (0..GROUP).map(|byte| mapped.load(self.truth.groups[group] + byte)).collect();
            self.truth.check(group, &seen, &before, "a mapping");
            if random.below(4) == 0 && is_told_of_threads() {
                kept = None;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// The kernel, which needs memory for something else: it takes pages of the file back, which come from the disk, or from a
    /// device, when they are needed again.
    fn take_pages_back(&self, mut random: Rng) {
        // Who has it open for writing is watched.
        let file = File::open(&self.world.path).unwrap();
        while self.goes_on() {
            let start = random.below(LEN);
            file.sync_data().unwrap();
            drop_cached(&file, start..(start + random.below(2 * FRAME)).min(LEN));
            std::thread::sleep(Duration::from_micros(random.below(3000)));
        }
    }

    /// Everybody has stopped: all agree on what was released.
    fn check_end(&self) {
        self.file.sync().unwrap();
        let content = self.world.file();
        for device in 0..2 {
            let mut program = Program::on(self.world, &self.file, device);
            for start in (0..LEN).step_by(FRAME as usize) {
                let part = start..(start + FRAME).min(LEN);
                program.mapping.acquire(part.clone()).unwrap();
                assert!(
                    program.load(start, part.end - start) == content[start as usize..part.end as usize],
                    "device {device}"
                );
                program.mapping.release(part).unwrap();
            }
        }
        let mut rest = content.clone();
        for (group, start) in self.truth.groups.iter().enumerate() {
            let seen = &content[*start as usize..][..GROUP as usize];
            self.truth.check(group, seen, &self.truth.promised(Bound::Done, group), "the file in the end");
            rest[*start as usize..][..GROUP as usize].fill(0);
        }
        assert_eq!(rest.iter().position(|byte| *byte != 0), None, "a byte that nobody wrote");
    }
}

/// One write and one read by system calls.
fn write_and_read(truth: &Truth, file: &File, random: &mut Rng) {
    let group = random.below(truth.groups.len() as u64) as usize;
    truth.write(group, PROCESS, |at, value| file.write_all_at(&[value], at).unwrap());
    let group = random.below(truth.groups.len() as u64) as usize;
    let before = truth.promised(Bound::Synced, group);
    let mut seen = [0x5a; GROUP as usize];
    file.read_exact_at(&mut seen, truth.groups[group]).unwrap();
    truth.check(group, &seen, &before, "a process");
}

const OTHER: &str = "BIFOLIO_TEST_OTHER_PROCESS";

/// A process that opens the file, writes, and closes it, again and again.
fn start_other_process(folder: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["stress::the_other_process", "--exact", "--nocapture"])
        .env(OTHER, format!("{seed} {}", folder.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs in a process of its own.
#[test]
fn the_other_process() {
    let Ok(plan) = std::env::var(OTHER) else { return };
    let (seed, folder) = plan.split_once(' ').unwrap();
    let folder = Path::new(folder);
    let truth = Truth::new(seed.parse().unwrap(), &folder.join("truth"));
    let mut random = random();
    let parent = std::os::unix::process::parent_id();
    while !truth.has_ended() && std::os::unix::process::parent_id() == parent {
        let file = File::options().read(true).write(true).open(folder.join("data")).unwrap();
        write_and_read(&truth, &file, &mut random);
        drop(file);
        std::thread::sleep(Duration::from_micros(random.below(2000)));
    }
}

fn seconds() -> f64 {
    std::env::var("BIFOLIO_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0)
}

/// Runs for a time; with another process instead of threads that write past the cache, or with neither.
fn stress(devices: &[Device], threads_per_device: u64, past: Past, seconds: f64) {
    let mut random = random();
    let mode = [Mode::Lazy, Mode::Eager][random.below(2) as usize];
    let page_bytes = PAGE << (4 * random.below(3) / 2);
    let budget_frames = 5 + random.below(5);
    let slow = [0, 3, 10, 50][random.below(4) as usize];
    let world = World::new(devices, options(page_bytes, budget_frames, mode), &vec![0; LEN as usize]);
    let seed = random.u64(..);
    let run = Turmoil {
        world: &world,
        file: world.open(),
        truth: Truth::new(seed, &world.folder().join("truth")),
        mode,
        threads_per_device,
        slow,
        until: Instant::now() + Duration::from_secs_f64(seconds),
        operations: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    };
    let other = (past == Past::Process).then(|| start_other_process(world.folder(), seed));
    let mut fork = || random.fork();
    std::thread::scope(|scope| {
        for thread in (0..DEVICE_THREADS).filter(|thread| thread % 2 < threads_per_device) {
            let random = fork();
            let run = &run;
            scope.spawn(move || run.use_device(thread, random));
        }
        // Alone on a device, a thread is sure that nobody sees what it has not released.
        for device in (0..2).filter(|_| threads_per_device > 1) {
            let (random, run) = (fork(), &run);
            scope.spawn(move || run.read_on_device(device, random));
        }
        let random = [fork(), fork(), fork(), fork()];
        let [one, two, three, four] = random;
        scope.spawn(|| run.use_cache(one));
        scope.spawn(|| run.read_all(two));
        scope.spawn(|| run.use_another_file(three));
        scope.spawn(|| run.take_pages_back(four));
        if past == Past::Threads {
            let random = [fork(), fork()];
            let [one, other] = random;
            scope.spawn(|| run.write_past_it(one));
            scope.spawn(|| run.store_past_it(other));
        }
    });
    run.truth.bytes.store(run.truth.end(), 1);
    if let Some(mut other) = other {
        assert!(other.wait().unwrap().success(), "the other process has failed; its words are above");
    }
    run.check_end();
    let [operations, refused] = [&run.operations, &run.refused].map(|count| count.load(Ordering::Relaxed));
    println!(
        "{operations} operations, {refused} refused for memory; {mode:?}, pages of {page_bytes}, {budget_frames} frames, {past:?}, interrupted at one point of {slow}"
    );
    // Where there is room for few, who is refused tries again and again; and others may have the processor.
    assert!(operations > refused, "nothing was done");
}

/// Who writes past the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Past {
    Nobody,
    Threads,
    Process,
}

#[test]
fn everybody_at_once_sees_what_was_released_and_nothing_that_was_not() {
    let kinds = [
        (1, Past::Nobody),
        (1, Past::Process),
        (1, Past::Threads),
        (2, Past::Nobody),
        (2, Past::Process),
        (2, Past::Threads),
    ];
    let sets = sets(2);
    let until = Instant::now() + Duration::from_secs_f64(seconds());
    // Short runs, as values end, in other settings each.
    loop {
        for devices in &sets {
            for (threads_per_device, past) in kinds {
                stress(devices, threads_per_device, past, (seconds() / 4.0).min(0.7));
            }
        }
        if Instant::now() >= until {
            break;
        }
    }
}

/// Symptom: who opened a file while its last holder let go of it missed what that had released. Cause: see
/// `schedules.rs`.
#[test]
fn a_file_that_is_opened_and_let_go_again_and_again_loses_nothing() {
    for devices in sets(2) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
        let until = Instant::now() + Duration::from_secs_f64((seconds() / 3.0).min(60.0));
        let done: [AtomicU64; 2] = Default::default();
        let promised = || [0, 1].map(|number: usize| done[number].load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            for number in 0..2 {
                let (world, done, promised) = (&world, &done, &promised);
                scope.spawn(move || {
                    while Instant::now() < until {
                        let least = promised();
                        let mut program = Program::on(world, &world.open(), number);
                        program.mapping.acquire(0..5000).unwrap();
                        let counts = [0, 1]
                            .map(|number| u64::from_le_bytes(program.load(4090 + 8 * number, 8).try_into().unwrap()));
                        assert!(
                            counts[0] >= least[0] && counts[1] >= least[1] && counts[number] == least[number],
                            "device {number} sees {counts:?}, of at least {least:?}"
                        );
                        let next = counts[number] + 1;
                        program.store(4090 + 8 * number as u64, &next.to_le_bytes());
                        program.mapping.release(0..5000).unwrap();
                        done[number].store(next, Ordering::SeqCst);
                    }
                });
            }
        });
        let content = world.file();
        let counts = [4090, 4098].map(|at| u64::from_le_bytes(content[at..at + 8].try_into().unwrap()));
        assert_eq!(counts, promised());
        println!("{counts:?} times");
    }
}
