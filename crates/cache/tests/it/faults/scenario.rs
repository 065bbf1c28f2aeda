//! A program that uses everything: two devices that share pages, windows of a file that does not fit, races, a CPU
//! that writes and reads, syncs, and changes that are never released. What it has done is written to a file
//! beside the data, so that somebody can look when it has died.

use crate::support::{FRAME, HostMapping, Program, World};
use bifolio_cache::{CachedFile, Error};
use std::path::Path;

pub(crate) const LEN: u64 = 2 * FRAME + 70_000;
const ROUNDS: u8 = 5;
/// Bytes that a CPU writes at once, in each frame.
const CPU: std::ops::Range<u64> = 10_000..10_064;

/// What a place is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Device(usize),
    Race,
    Cpu,
    /// Written, and never released.
    Scribble,
    /// Written by somebody who holds it all the time; neighbours may release it with theirs.
    Living,
}

const SCRIBBLE: u8 = 0xee;
const ALIVE: u8 = 0xa1;

/// Places that are written, over the ends of pages; everything else stays 0.
fn places() -> Vec<(u64, Use)> {
    let uses = [Use::Device(0), Use::Device(1), Use::Race, Use::Scribble];
    let mut places = Vec::new();
    for start in (0..LEN).step_by(FRAME as usize) {
        let end = (start + FRAME).min(LEN);
        for group in [start, start + 4094, start + 65_534, end - 4] {
            places.extend(uses.into_iter().enumerate().map(|(byte, of)| (group + byte as u64, of)));
        }
        if start == 0 {
            places.extend([start + 9, start + 4110, start + 65_530, end - 9].map(|at| (at, Use::Living)));
        }
        places.extend(CPU.map(|at| (start + at, Use::Cpu)));
    }
    places
}

/// What has been done: by place, which value a release, or a CPU's write, has begun to publish, and which a
/// finished sync has covered. It is in a file, which outlives its process.
pub(crate) struct Truth {
    bytes: HostMapping,
    places: Vec<(u64, Use)>,
}

impl Truth {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        let (path, places) = (folder.join("truth"), places());
        if !path.exists() {
            std::fs::write(&path, vec![0; 3 * places.len()]).unwrap();
        }
        Self { bytes: HostMapping::new(&path, 3 * places.len()), places }
    }

    fn started(&self, place: usize) -> u8 {
        self.bytes.load(3 * place as u64)
    }

    fn done(&self, place: usize) -> u8 {
        self.bytes.load(3 * place as u64 + 1)
    }

    fn synced(&self, place: usize) -> u8 {
        self.bytes.load(3 * place as u64 + 2)
    }

    /// Places in a part of the file that somebody writes.
    fn of(&self, part: &std::ops::Range<u64>, of: Use) -> Vec<usize> {
        let is = |place: &usize| part.contains(&self.places[*place].0) && self.places[*place].1 == of;
        (0..self.places.len()).filter(is).collect()
    }

    fn start(&self, places: &[usize], value: u8) {
        for place in places {
            self.bytes.store(3 * *place as u64, value);
        }
    }

    fn finish(&self, places: &[usize]) {
        for place in places {
            self.bytes.store(3 * *place as u64 + 1, self.started(*place));
        }
    }

    fn sync(&self) {
        for place in 0..self.places.len() {
            self.bytes.store(3 * place as u64 + 2, self.done(place));
        }
    }

    /// What a file may hold after its program died: by byte an old value or a released one, not older than what
    /// was synced; nothing that was not released.
    pub(crate) fn check_after_death(&self, content: &[u8], what: &str) {
        assert_eq!(content.len() as u64, LEN, "{what}");
        self.check_others(content, what);
        for (place, (at, of)) in self.places.iter().enumerate() {
            let (value, least, most) = (content[*at as usize], self.synced(place), self.started(place));
            match of {
                Use::Scribble => assert_eq!(value, 0, "{what}: byte {at} was never released"),
                Use::Living => assert!(value == 0 || value == ALIVE, "{what}: byte {at} is {value}"),
                Use::Race => assert!(value / 2 <= most, "{what}: byte {at} is {value}, and {most} was begun"),
                _ => assert!(
                    (least..=most).contains(&value),
                    "{what}: byte {at} ({of:?}) is {value}, of {least}..={most}"
                ),
            }
        }
    }

    /// What it holds after everything was released and synced.
    pub(crate) fn check_complete(&self, content: &[u8], what: &str) {
        self.check_after_death(content, what);
        for (place, (at, of)) in self.places.iter().enumerate() {
            if matches!(of, Use::Device(_) | Use::Cpu) {
                assert_eq!(content[*at as usize], self.started(place), "{what}: byte {at} ({of:?})");
            }
        }
    }

    /// What everybody sees after its program died and another went on: what was released is there, whether it was synced
    /// or not, and what a CPU has written.
    pub(crate) fn check_after_crash(&self, content: &[u8], what: &str) {
        self.check_after_death(content, what);
        self.check_part(content, 0, what);
    }

    /// The same of a part.
    pub(crate) fn check_part(&self, content: &[u8], start: u64, what: &str) {
        for (place, (at, of)) in self.places.iter().enumerate() {
            let Some(value) = at.checked_sub(start).and_then(|at| content.get(at as usize)) else { continue };
            let least = self.done(place);
            match of {
                Use::Scribble => assert_eq!(*value, 0, "{what}: byte {at} was never released"),
                Use::Device(_) | Use::Cpu => {
                    assert!(*value >= least, "{what}: byte {at} ({of:?}) is {value}, and {least} was released");
                    assert!(*value <= self.started(place), "{what}: byte {at} ({of:?}) is {value}");
                }
                Use::Race | Use::Living => {}
            }
        }
    }

    /// Somebody stores what he will not release.
    pub(crate) fn live(&self, store: impl Fn(u64, u8)) {
        for place in self.of(&(0..LEN), Use::Living) {
            store(self.places[place].0, ALIVE);
            self.bytes.store(3 * place as u64 + 1, ALIVE);
        }
    }

    /// He ends.
    pub(crate) fn leave(&self) {
        for place in self.of(&(0..LEN), Use::Living) {
            self.bytes.store(3 * place as u64 + 1, 0);
        }
    }

    /// The bytes that he holds.
    pub(crate) fn living(&self) -> Vec<std::ops::Range<u64>> {
        self.of(&(0..LEN), Use::Living)
            .into_iter()
            .map(|place| self.places[place].0..self.places[place].0 + 1)
            .collect()
    }

    /// Whether he has stored all of it.
    pub(crate) fn lives(&self) -> bool {
        self.of(&(0..LEN), Use::Living).into_iter().all(|place| self.done(place) == ALIVE)
    }

    /// It is there on his device.
    pub(crate) fn check_living(&self, load: impl Fn(u64) -> u8, what: &str) {
        for place in self.of(&(0..LEN), Use::Living) {
            let at = self.places[place].0;
            assert_eq!(load(at), ALIVE, "{what}: byte {at} of somebody who is still there");
        }
    }

    /// A CPU process writes newer values to its places.
    pub(crate) fn write_as_cpu(&self, write: impl Fn(u64, u8)) {
        for place in self.of(&(0..LEN), Use::Cpu) {
            let value = self.started(place) + 1;
            self.start(&[place], value);
            write(self.places[place].0, value);
            self.finish(&[place]);
        }
    }

    fn check_others(&self, content: &[u8], what: &str) {
        let mut rest = content.to_vec();
        for (at, _) in &self.places {
            rest[*at as usize] = 0;
        }
        let wrong = rest.iter().position(|byte| *byte != 0);
        assert_eq!(wrong, None, "{what}: a byte that nobody wrote");
    }
}

/// Runs an operation until it succeeds; failures are those that were asked for.
pub(crate) fn persist<T>(mut operation: impl FnMut() -> Result<T, Error>) -> T {
    for _ in 0..4 {
        match operation() {
            Ok(done) => return done,
            Err(error) => assert!(error.to_string().contains("os error"), "{error}"),
        }
    }
    panic!("it fails although the fault has ceased");
}

/// The program, from its beginning to its end.
pub(crate) fn run(world: &World, truth: &Truth) {
    let file = world.open();
    let mut programs: Vec<_> = (0..2).map(|number| Program::on(world, &file, number)).collect();
    let frame = |number: u64| number * FRAME..((number + 1) * FRAME).min(LEN);
    for round in 1..=ROUNDS {
        // Windows of its own for each device, now and then more than there is room to keep bases for.
        for (number, program) in programs.iter_mut().enumerate() {
            let first = u64::from(round + number as u8) % 3;
            let part =
                if round % 2 == 1 { frame(first.min(1)).start..frame(first.min(1) + 1).end } else { frame(first) };
            persist(|| program.mapping.acquire(part.clone()));
            write(program, truth, number, &part, round);
            release(program, truth, number, &part);
        }
        // The same window for both, at once.
        let part = frame(u64::from(round) % 3);
        for (number, program) in programs.iter_mut().enumerate() {
            persist(|| program.mapping.acquire(part.clone()));
            write(program, truth, number, &part, round);
        }
        for number in [usize::from(round % 2), usize::from(1 - round % 2)] {
            release(&mut programs[number], truth, number, &part);
            if round % 3 == 0 {
                sync(&file, truth);
            }
        }
        cpu(&file, truth, round);
        if round % 2 == 0 {
            sync(&file, truth);
        }
        scribble(world, &file, truth);
    }
    // Everybody sees everything.
    for (number, program) in programs.iter_mut().enumerate() {
        for part in [frame(0), frame(1), frame(2)] {
            persist(|| program.mapping.acquire(part.clone()));
            for of in [Use::Device(0), Use::Device(1), Use::Cpu, Use::Scribble] {
                for place in truth.of(&part, of) {
                    let seen = program.load(truth.places[place].0, 1)[0];
                    assert_eq!(seen, truth.started(place), "device {number}, byte {}", truth.places[place].0);
                }
            }
            persist(|| program.mapping.release(part.clone()));
        }
    }
    sync(&file, truth);
    truth.check_complete(&world.file(), "in the end");
}

fn write(program: &Program, truth: &Truth, number: usize, part: &std::ops::Range<u64>, round: u8) {
    let mine = truth.of(part, Use::Device(number));
    for place in &mine {
        program.store(truth.places[*place].0, &[round]);
    }
    for place in truth.of(part, Use::Race) {
        program.store(truth.places[place].0, &[round * 2 + number as u8]);
    }
}

fn release(program: &mut Program, truth: &Truth, number: usize, part: &std::ops::Range<u64>) {
    for of in [Use::Device(number), Use::Race] {
        for place in truth.of(part, of) {
            let value = program.load(truth.places[place].0, 1)[0];
            truth.start(&[place], if of == Use::Race { (value / 2).max(truth.started(place)) } else { value });
        }
    }
    persist(|| program.mapping.release(part.clone()));
    truth.finish(&truth.of(part, Use::Device(number)));
}

fn sync(file: &CachedFile, truth: &Truth) {
    persist(|| file.sync());
    truth.sync();
}

/// A CPU writes, and sees what has been released.
fn cpu(file: &CachedFile, truth: &Truth, round: u8) {
    for start in (0..LEN).step_by(FRAME as usize) {
        let part = start + CPU.start..start + CPU.end;
        let mine = truth.of(&part, Use::Cpu);
        truth.start(&mine, round);
        persist(|| file.write(part.start, &[round; (CPU.end - CPU.start) as usize]));
        truth.finish(&mine);
        let mut seen = vec![0; 100_000.min(LEN - start) as usize];
        persist(|| file.read(start, &mut seen));
        for number in 0..2 {
            for place in truth.of(&(start..start + seen.len() as u64), Use::Device(number)) {
                let at = truth.places[place].0;
                assert_eq!(seen[(at - start) as usize], truth.done(place), "a CPU at byte {at}");
            }
        }
    }
}

/// Changes that are never released, by a mapping of their own.
fn scribble(world: &World, file: &CachedFile, truth: &Truth) {
    let mut program = Program::on(world, file, 0);
    let part = 0..FRAME;
    persist(|| program.mapping.acquire(part.clone()));
    for place in truth.of(&part, Use::Scribble) {
        program.store(truth.places[place].0, &[SCRIBBLE]);
    }
    program.mapping.close().unwrap();
}
