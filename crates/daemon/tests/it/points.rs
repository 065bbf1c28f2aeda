//! Servers that are killed at every named place between two steps, of the cache and of the server itself, and between two
//! steps of the next server that goes on. A program on two devices compares every byte that it acquires.

use crate::support::{FRAME, PAGE, Program, Running, folder, options};
use bifolio_cache::fault::Point;
use bifolio_cache::{Advice, ErrorKind};
use bifolio_daemon::{Options, SharedFile, fault};
use bifolio_testing::{noise, seed, until};
use fastrand::Rng;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

const LEN: u64 = 2 * FRAME + 5000;

/// Turns of a program before it is taken that its server does not come to a point.
const TURNS_MAX: u32 = 60;

/// Names the folder of plans to a server.
pub(crate) const PLAN: &str = "BIFOLIO_TEST_PLAN";

/// A line for each kill that is still to come: the point, and at which time there.
pub(crate) fn plan_of(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("plan")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn set_plan(folder: &Path, lines: &[String]) {
    std::fs::write(folder.join("plan.new"), lines.join("\n")).unwrap();
    std::fs::rename(folder.join("plan.new"), folder.join("plan")).unwrap();
}

/// In a server: it ends at the point that the plan's first line names.
pub(crate) fn obey_plan() {
    if std::env::var_os(PLAN).is_some() {
        bifolio_cache::fault::watch(|point| come_to(&format!("{point:?}")));
        fault::watch(|point| come_to(&format!("{point:?}")));
        fault::measure(free_bytes);
    }
}

/// Says how many bytes of a device are free: none, for what the system says.
pub(crate) fn set_free(folder: &Path, device: usize, bytes: Option<u64>) {
    let place = folder.join(format!("free-{device}"));
    match bytes {
        Some(bytes) => {
            std::fs::write(folder.join("free.new"), bytes.to_string()).unwrap();
            std::fs::rename(folder.join("free.new"), place).unwrap();
        }
        None => _ = std::fs::remove_file(place),
    }
}

fn free_bytes(device: usize) -> Option<u64> {
    let folder = std::path::PathBuf::from(std::env::var_os(PLAN)?);
    std::fs::read_to_string(folder.join(format!("free-{device}"))).ok()?.parse().ok()
}

fn come_to(name: &str) {
    static TIMES: Mutex<u32> = Mutex::new(0);
    static FOLDER: OnceLock<std::path::PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| std::env::var_os(PLAN).unwrap().into());
    let mut times = TIMES.lock().unwrap();
    let plan = plan_of(folder);
    let Some((wanted, time)) = plan.first().and_then(|line| line.split_once(' ')) else { return };
    if wanted != name {
        return;
    }
    *times += 1;
    if *times >= time.parse().unwrap() {
        set_plan(folder, &plan[1..]);
        // SAFETY: ends this process, which says goodbye to nobody.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        // The signal comes before this thread goes on, or soon.
        loop {
            std::thread::park();
        }
    }
}

/// What a program does in one turn, which the oracle repeats.
struct Life<'a> {
    running: &'a Running,
    path: &'a Path,
    folder: &'a Path,
    random: Rng,
    oracle: Vec<u8>,
    held: Option<Held>,
}

/// A reader of another process that keeps the version of a part that it has acquired.
struct Held {
    device: usize,
    file: SharedFile,
    reader: Program,
    part: std::ops::Range<u64>,
    bytes: Vec<u8>,
}

impl Held {
    fn check(&self) {
        let seen = self.reader.load(self.part.start, self.part.end - self.part.start);
        assert!(seen == self.bytes, "the version of {:?} that a reader keeps", self.part);
    }
}

/// Acquires a part. Where a version that a reader keeps leaves no memory for it, the reader goes; where others have needed
/// memory until now, there is some in a moment.
fn acquire(held: &mut Option<Held>, program: &mut Program, part: &std::ops::Range<u64>) {
    until("there is memory", || match program.mapping.acquire(part.clone()) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => {
            *held = None;
            false
        }
        outcome => outcome.map(|_| true).unwrap(),
    });
}

impl Life<'_> {
    fn part(&mut self) -> std::ops::Range<u64> {
        let start = self.random.u64(..LEN);
        start..(start + 1 + self.random.u64(..40 * PAGE)).min(LEN)
    }

    fn turn(&mut self, programs: &mut [Program; 2], file: &SharedFile) {
        let (which, kind) = (self.random.usize(..2), self.random.u8(..16));
        let part = self.part();
        let (from, to) = (part.start as usize, part.end as usize);
        let bytes = noise(to - from, self.random.u64(..));
        match kind {
            0 => {
                programs[which].mapping.sync().unwrap();
                self.check_file();
            }
            1 if self.random.bool() => programs[which].mapping.advise(0..LEN, Advice::DontNeed).unwrap(),
            1 => {
                // Others need memory: what nobody uses goes, and what a reader keeps is asked for.
                let client = self.running.connect();
                set_free(self.folder, which, Some(0));
                until("it was looked", || client.status().unwrap().devices[which].free_bytes == 0);
                if let Some(held) = self.held.as_ref().filter(|held| held.device == which) {
                    until("a reader is asked", || !held.file.recalls().is_empty());
                }
                set_free(self.folder, which, None);
            }
            2 => {
                // What is not released when a mapping ends is nobody's.
                let mut other = Program::on(file, which, true);
                acquire(&mut self.held, &mut other, &part);
                other.store(part.start, &bytes);
            }
            3 => {
                // A CPU changes the file, once it has everything.
                programs[which].mapping.sync().unwrap();
                File::options().write(true).open(self.path).unwrap().write_all_at(&bytes, part.start).unwrap();
                self.oracle[from..to].copy_from_slice(&bytes);
            }
            4 => {
                // It is cut, which is seen before it grows again, by whoever keeps a version, too.
                self.held = None;
                programs[which].mapping.sync().unwrap();
                let home = File::options().write(true).open(self.path).unwrap();
                home.set_len(part.start.max(1)).unwrap();
                acquire(&mut self.held, &mut programs[which], &(0..1));
                programs[which].mapping.release(0..1).unwrap();
                home.set_len(LEN).unwrap();
                self.oracle[from.max(1)..].fill(0);
            }
            5 => {
                let client = self.running.connect();
                let again = client.open_path(self.path).unwrap();
                let mut reader = Program::on(&again, which, false);
                acquire(&mut self.held, &mut reader, &part);
                assert!(reader.load(part.start, part.end - part.start) == self.oracle[from..to], "{part:?}");
                let bytes = self.oracle[from..to].to_vec();
                self.held = Some(Held { device: which, file: again, reader, part, bytes });
            }
            6 | 7 => {
                // Both devices change pages at the same time, each its half; one sees the other's while it has its own.
                let half = part.start + (part.end - part.start) / 2;
                let middle = (half - part.start) as usize;
                let [one, other] = programs.get_disjoint_mut([which, 1 - which]).unwrap();
                acquire(&mut self.held, one, &part);
                one.store(part.start, &bytes[..middle]);
                acquire(&mut self.held, other, &part);
                other.store(half, &bytes[middle..]);
                other.mapping.release(part.clone()).unwrap();
                acquire(&mut self.held, one, &part);
                assert!(one.load(part.start, part.end - part.start) == bytes, "device {which}, both halves, {part:?}");
                one.mapping.release(part.clone()).unwrap();
                one.mapping.release(part).unwrap();
                self.oracle[from..to].copy_from_slice(&bytes);
            }
            8 | 9 => {
                // A device and a CPU do.
                let half = part.start + (part.end - part.start) / 2;
                let middle = (half - part.start) as usize;
                programs[1 - which].mapping.sync().unwrap();
                let one = &mut programs[which];
                acquire(&mut self.held, one, &part);
                one.store(part.start, &bytes[..middle]);
                File::options().write(true).open(self.path).unwrap().write_all_at(&bytes[middle..], half).unwrap();
                acquire(&mut self.held, one, &part);
                assert!(one.load(part.start, part.end - part.start) == bytes, "device {which} and a CPU, {part:?}");
                one.mapping.release(part.clone()).unwrap();
                one.mapping.release(part).unwrap();
                self.oracle[from..to].copy_from_slice(&bytes);
            }
            10 => {
                // All of it, where that leaves no memory to keep what is released.
                let one = &mut programs[which].mapping;
                match one.acquire(0..LEN) {
                    Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                        self.held = None;
                        return;
                    }
                    outcome => _ = outcome.unwrap(),
                }
                assert!(programs[which].load(0, LEN) == self.oracle, "device {which}, all");
                programs[which].store(part.start, &bytes);
                self.oracle[from..to].copy_from_slice(&bytes);
                programs[which].mapping.release(0..LEN).unwrap();
            }
            _ => {
                let program = &mut programs[which];
                acquire(&mut self.held, program, &part);
                let seen = program.load(part.start, part.end - part.start);
                assert!(seen == self.oracle[from..to], "device {which}, {part:?}");
                program.store(part.start, &bytes);
                if self.random.u8(..4) == 0 {
                    // Another process sees what was released, and nothing else.
                    let file = self.running.connect().open_path(self.path).unwrap();
                    let mut reader = Program::on(&file, which, false);
                    match reader.mapping.acquire(part.clone()) {
                        // What is written, and twins, leave no memory for another version.
                        Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                        outcome => {
                            outcome.unwrap();
                            let old = self.oracle[from..to].to_vec();
                            let seen = reader.load(part.start, part.end - part.start);
                            assert!(seen == old, "beside a writer, {part:?}");
                            self.held = Some(Held { device: which, file, reader, part: part.clone(), bytes: old });
                        }
                    }
                }
                self.oracle[from..to].copy_from_slice(&bytes);
                program.mapping.release(part).unwrap();
            }
        }
    }

    fn check_file(&self) {
        assert!(std::fs::read(self.path).unwrap() == self.oracle, "the file after a sync");
    }
}

/// Whether all kills of the plan happened.
fn survive(plan: &[String], frames: u64, seed: u64) -> bool {
    let folder = folder();
    let path = folder.path().join("data");
    let oracle = noise(LEN as usize, seed);
    std::fs::write(&path, &oracle).unwrap();
    let options = Options { free_bytes: 1 << 20, recall_ms: 60_000, ..options(folder.path(), frames) };
    let running = Running::start_with(folder.path(), &options, &[(PLAN, folder.path())]);
    let client = running.connect();
    let file = client.open_path(&path).unwrap();
    let mut programs = [0, 1].map(|number| Program::on(&file, number, true));
    let mut life = Life {
        running: &running,
        path: &path,
        folder: folder.path(),
        random: Rng::with_seed(seed),
        oracle,
        held: None,
    };
    set_plan(folder.path(), plan);
    let mut turns = 0;
    while turns < TURNS_MAX && !plan_of(folder.path()).is_empty() {
        turns += 1;
        life.turn(&mut programs, &file);
        if let Some(held) = &life.held {
            held.check();
        }
    }
    life.held = None;
    let is_done = plan_of(folder.path()).is_empty();
    set_plan(folder.path(), &[]);
    for program in &mut programs {
        // There may be no room for all of it at a time.
        for start in (0..LEN).step_by(FRAME as usize) {
            let part = start..(start + FRAME).min(LEN);
            acquire(&mut life.held, program, &part);
            let seen = program.load(part.start, part.end - part.start);
            assert!(seen == life.oracle[part.start as usize..part.end as usize], "at the end, {part:?}");
            program.mapping.release(part).unwrap();
        }
    }
    programs[0].mapping.sync().unwrap();
    life.check_file();
    drop((programs, file, client));
    running.end();
    is_done
}

#[test]
fn a_server_that_is_killed_between_any_two_steps_loses_nothing() {
    let mut random = Rng::with_seed(seed());
    let mut missed = vec![];
    let own = fault::Point::ALL.iter().map(|point| format!("{point:?}"));
    for point in Point::ALL.iter().map(|point| format!("{point:?}")).chain(own) {
        // The next server comes there, or another one has to end before that.
        let goes_on = ["Recovered", "FoundAll"].contains(&&point[..]);
        let first = if goes_on { vec![format!("ReleaseNoted {}", random.u32(1..4))] } else { vec![] };
        let is_met = (0..4).any(|_| {
            let time = if goes_on { 1 } else { random.u32(1..4) };
            let plan = [&first[..], &[format!("{point} {time}")]].concat();
            let (frames, seed) = (random.u64(4..9), random.u64(..));
            println!("{plan:?}, {frames} frames, seed {seed}");
            survive(&plan, frames, seed)
        });
        missed.extend((!is_met).then_some(point));
    }
    println!("never met in these programs: {missed:?}");
    // No program of another process writes through the cache as a CPU does.
    missed.retain(|point| !["WriteLooked", "WriteHalf", "Written"].contains(&&point[..]));
    assert!(missed.len() < Point::ALL.len() / 8, "{missed:?}");
}

#[test]
fn servers_that_are_killed_while_they_go_on_lose_nothing() {
    let mut random = Rng::with_seed(seed());
    let points: Vec<String> = Point::ALL.iter().map(|point| format!("{point:?}")).collect();
    for _ in 0..12 {
        // Whatever was being done is redone or dropped by the next, which ends at its first step or a later one.
        let next = ["Recovered", "FoundAll", "Emptied", "FoldMerged", "MergeDone"][random.usize(..5)];
        let first = &points[random.usize(..points.len())];
        let plan = [format!("{first} {}", random.u32(1..3)), format!("{next} 1")];
        let (frames, seed) = (random.u64(4..12), random.u64(..));
        println!("{plan:?}, {frames} frames, seed {seed}");
        survive(&plan, frames, seed);
    }
}
