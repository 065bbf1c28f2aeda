//! The steps of the model, taken by the code: walks through the model are applied to a cache with a real file, and
//! after every step contents, pages' flags and the file are what the model says.

use crate::losses::{losable, lose_after};
use crate::model::{Small, Step, World as Modelled};
use crate::support::{Draw, FRAME, PAGE, Program, World, options, random, sets};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{CachedFile, Mode};
use bifolio_device::backend::fault::Faults;
use fastrand::Rng;
use stateright::Model;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// From byte to byte: what is changed comes in runs of one.
const STRIDE: usize = 3;

/// The model's world as a file: its pages lie in frames of their own, its bytes near each other.
struct Real<'a> {
    world: &'a World,
    /// Of devices that may be lost, if they may.
    faults: &'a [Arc<Faults>],
    /// Something was lost, and no sync has told of it.
    untold: bool,
    path: std::path::PathBuf,
    file: CachedFile,
    /// One for each device, except for those whose program has ended.
    programs: Vec<Option<Program>>,
    /// Where in a page the bytes are.
    start: u64,
}

impl<'a> Real<'a> {
    fn new(world: &'a World, faults: &'a [Arc<Faults>], small: &Small, name: u64, random: &mut Rng) -> Self {
        let path = world.folder().join(format!("walk-{name}"));
        let len = (small.pages as u64 - 1) * FRAME + PAGE;
        File::create(&path).unwrap().set_len(len).unwrap();
        let file = world.cache.open(&path).unwrap();
        let programs = (0..small.devices).map(|_| None).collect();
        let start = random.below(PAGE - (STRIDE * small.writers.len()) as u64);
        Self { world, faults, untold: false, path, file, programs, start }
    }

    fn at(&self, page: usize, byte: usize) -> u64 {
        page as u64 * FRAME + self.start + (STRIDE * byte) as u64
    }

    /// The bytes of the model among those that lie there.
    fn bytes_of(span: &[u8]) -> Vec<u8> {
        span.iter().copied().step_by(STRIDE).collect()
    }

    fn is_lost(&self, device: usize) -> bool {
        self.faults.get(device).is_some_and(|faults| faults.is_lost())
    }

    /// Whether a step of the model can be taken: a lost device does not come back, what is cut is the last page, and a
    /// disk fails between two runs of bytes.
    fn can_take(&self, step: Step, modelled: &Modelled) -> bool {
        let is_alone = modelled.pages.len() == 1;
        match step {
            Step::Acquire(device) => !self.is_lost(device),
            Step::Lose(device) => !self.faults.is_empty() && !self.is_lost(device),
            Step::Cut { .. } | Step::FlushOne { .. } => is_alone,
            Step::FlushHalf { page } => is_alone && modelled.pages[page].contents.has_halves(),
            // In `faults`.
            Step::AcquireTwice(_) => false,
            _ => true,
        }
    }

    /// Writes to the file until it fails at the n-th of some points.
    fn flush_until(&self, wanted: Point, time: u32) -> bool {
        let mut times = 0;
        fault::inject(move |point| {
            times += u32::from(point == wanted);
            if point == wanted && times == time { Err(std::io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
        });
        let outcome = self.file.flush();
        fault::cease();
        outcome.is_err()
    }

    fn sync(&mut self) {
        let outcome = self.file.sync();
        assert_eq!(outcome.is_err(), std::mem::take(&mut self.untold), "{outcome:?}");
    }

    fn part(page: usize) -> std::ops::Range<u64> {
        page as u64 * FRAME..page as u64 * FRAME + PAGE
    }

    fn program(&mut self, device: usize) -> &mut Program {
        let (world, file) = (self.world, &self.file);
        self.programs[device].get_or_insert_with(|| Program::on(world, file, device))
    }

    /// Takes a step; `next` is the model after it.
    fn take(&mut self, step: Step, next: &Modelled, small: &Small) {
        match step {
            Step::CpuWrites { page, byte } => {
                let (at, value) = (self.at(page, byte), [next.pages[page].contents.file[byte]]);
                if small.known {
                    self.file.write(at, &value).unwrap();
                } else {
                    File::options().write(true).open(&self.path).unwrap().write_all_at(&value, at).unwrap();
                }
            }
            Step::CpuReads { page } => {
                let mut seen = vec![0x5a; STRIDE * small.writers.len()];
                self.file.read(self.at(page, 0), &mut seen).unwrap();
                let seen = Self::bytes_of(&seen);
                assert_eq!(seen, next.pages[page].contents.incoming().content[..seen.len()], "a CPU's read");
            }
            Step::DeviceWrites { device, page, byte } => {
                let value = next.pages[page].contents.replicas[device].as_ref().unwrap().now[byte];
                let at = self.at(page, byte);
                self.program(device).store(at, &[value]);
            }
            Step::Acquire(device) => {
                for page in 0..next.pages.len() {
                    self.program(device).mapping.acquire(Self::part(page)).unwrap();
                }
            }
            Step::Release(device) if self.is_lost(device) => {}
            Step::Release(device) => {
                // Also of what was not acquired again since its last release.
                for page in 0..next.pages.len() {
                    self.program(device).mapping.publish(&Self::part(page)).unwrap();
                }
            }
            Step::Flush { .. } => self.sync(),
            // Nobody may have released anything.
            Step::FlushOne { .. } => _ = self.flush_until(Point::FlushNoted, 1),
            Step::FlushHalf { .. } => assert!(self.flush_until(Point::HomeRun, 2)),
            Step::Cut { page } => {
                let file = File::options().write(true).open(&self.path).unwrap();
                let len = file.metadata().unwrap().len();
                for len in [self.at(page, 1), len] {
                    file.set_len(len).unwrap();
                    self.file.look();
                }
            }
            Step::Lose(device) => {
                lose_after(&self.faults[device], 0);
                self.file.find_losses();
                self.programs[device] = None;
            }
            Step::Evict { device, page } => self.file.evict(device, page).unwrap(),
            Step::Crash(device) => {
                self.programs[device] = None;
                for page in 0..next.pages.len() {
                    if self.file.page_state(device, page as u64 * FRAME / PAGE).is_held {
                        self.file.evict(device, page).unwrap();
                    }
                }
            }
            // Not in the worlds that are taken here: `faults` and `neighbours` have them.
            _ => unreachable!("{step:?} is not of the worlds that are replayed"),
        }
    }

    /// Whether everything is as in the model.
    fn check(&self, world: &Modelled, small: &Small) -> Result<(), String> {
        let content = File::open(&self.path).unwrap();
        for (page, state) in world.pages.iter().enumerate() {
            let mut file = vec![0x5a; STRIDE * small.writers.len()];
            content.read_exact_at(&mut file, self.at(page, 0)).unwrap();
            let file = Self::bytes_of(&file);
            let state = &state.contents;
            if file != state.file[..file.len()] {
                return Err(format!("page {page} has {file:?} in the file"));
            }
            for (device, replica) in state.replicas.iter().enumerate() {
                let flags = self.file.page_state(device, page as u64 * FRAME / PAGE);
                let is_behind = replica.is_some() && state.page.is_behind(device);
                let is_pending = state.page.is_pending(device);
                if (flags.is_held, flags.is_behind, flags.is_pending) != (replica.is_some(), is_behind, is_pending) {
                    return Err(format!("page {page} on device {device} is {flags:?}"));
                }
                if let (Some(replica), Some(program)) = (replica, &self.programs[device]) {
                    let now = Self::bytes_of(&program.load(self.at(page, 0), (STRIDE * file.len()) as u64));
                    if now != replica.now[..now.len()] {
                        return Err(format!("page {page} on device {device} has {now:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Walks through the model from its beginning, by steps that `choose` picks, and through the code beside it.
fn walk(
    (world, faults): (&World, &[Arc<Faults>]),
    small: &Small,
    name: u64,
    random: &mut Rng,
    choose: &mut dyn FnMut(&[Step], &mut Rng) -> Option<Step>,
) {
    let mut real = Real::new(world, faults, small, name, random);
    let mut modelled = small.init_states().swap_remove(0);
    let mut taken = Vec::new();
    loop {
        let mut steps = Vec::new();
        small.actions(&modelled, &mut steps);
        steps.retain(|step| real.can_take(*step, &modelled));
        let Some(step) = choose(&steps, random) else { break };
        taken.push(step);
        // A sync is one of all pages.
        let steps = match step {
            Step::Flush { .. } => (0..small.pages).map(|page| Step::Flush { page }).collect(),
            _ => vec![step],
        };
        if let Step::Lose(device) = step {
            real.untold |= modelled.pages.iter().any(|state| state.contents.page.is_lost_with(device));
        }
        for step in steps {
            modelled = small.next_state(&modelled, step).unwrap_or(modelled);
        }
        assert_eq!(modelled.wrong, None);
        real.take(step, &modelled, small);
        if let Err(wrong) = real.check(&modelled, small) {
            panic!("{wrong}; {small:?}, after {taken:?} the model has {modelled:?}");
        }
    }
    // In the end the file has everything that was released.
    real.sync();
    let content = std::fs::read(&real.path).unwrap();
    for (page, state) in modelled.pages.iter().enumerate() {
        let at = real.at(page, 0) as usize;
        let bytes = small.writers.len();
        let seen = Real::bytes_of(&content[at..at + STRIDE * bytes]);
        assert_eq!(seen, state.contents.settled()[..bytes], "page {page} after {taken:?}");
    }
    drop(real.programs);
    std::fs::remove_file(&real.path).unwrap();
}

/// Walks through one small world: `walks` by chance, and all of `depth` steps behind some first ones.
fn replay(small: &Small, walks: u64, steps: u64, first: &[Step], depth: usize) {
    // The programs stay as they are.
    let small = &Small { in_use: true, whole: true, ..small.clone() };
    let mut random = random();
    let mode = if small.eager { Mode::Eager } else { Mode::Lazy };
    for devices in sets(small.devices as u32) {
        let world = World::new(&devices, options(PAGE, 32, mode), &[0]);
        let mut name = 0;
        for number in 0..walks {
            let small = Small { known: number % 2 == 1, ..small.clone() };
            let mut left = steps;
            name += 1;
            walk((&world, &[]), &small, name, &mut random, &mut |open, random| {
                left = left.checked_sub(1)?;
                Some(open[random.below(open.len() as u64) as usize])
            });
        }
        // As an odometer: which of the open steps is taken at each depth.
        let mut next = (depth > 0).then(|| vec![0; depth]);
        while let Some(mut turns) = next.take() {
            let (mut at, mut open_at, mut first) = (0, vec![1; depth], first.iter());
            name += 1;
            walk((&world, &[]), small, name, &mut random, &mut |open, _| {
                if let Some(step) = first.next() {
                    return Some(*step);
                }
                let turn = *turns.get(at)?;
                open_at[at] = open.len();
                at += 1;
                Some(open[turn])
            });
            if let Some(place) = (0..depth).rev().find(|place| turns[*place] + 1 < open_at[*place]) {
                turns[place] += 1;
                turns[place + 1..].fill(0);
                next = Some(turns);
            }
        }
        println!("{name} walks through {small:?}");
    }
}

#[test]
fn two_devices_and_a_cpu_with_bytes_of_their_own() {
    for eager in [false, true] {
        replay(&Small { eager, ..Small::disjoint(2, 1, 20) }, 60, 40, &[], 0);
        replay(&Small { eager, ..Small::disjoint(2, 2, 20) }, 30, 50, &[], 0);
    }
}

#[test]
fn three_devices_and_a_cpu_with_bytes_of_their_own() {
    replay(&Small::disjoint(3, 2, 20), 40, 60, &[], 0);
}

#[test]
fn values_that_come_back() {
    replay(&Small { back: true, ..Small::disjoint(2, 1, 40) }, 60, 40, &[], 0);
    replay(&Small { back: true, ..Small::disjoint(3, 1, 40) }, 40, 60, &[], 0);
}

#[test]
fn devices_that_race() {
    for eager in [false, true] {
        replay(&Small { eager, ..Small::racing(2, 20) }, 50, 40, &[], 0);
        replay(&Small { eager, ..Small::racing(3, 20) }, 50, 40, &[], 0);
    }
}

#[test]
fn devices_and_a_cpu_that_race() {
    for eager in [false, true] {
        replay(&Small { eager, ..Small::racing_with_a_cpu(2, 20) }, 50, 40, &[], 0);
        replay(&Small { eager, ..Small::racing_with_a_cpu(3, 20) }, 50, 40, &[], 0);
    }
}

/// Behind writes by both devices, so that there is something to do.
#[test]
fn every_short_walk() {
    let write = |device| Step::DeviceWrites { device, page: 0, byte: 1 };
    let first = [Step::Acquire(0), Step::Acquire(1), write(0), write(1)];
    replay(&Small::racing(2, 4), 0, 0, &first, 3);
}

#[test]
fn a_file_that_is_cut_and_grows() {
    replay(&Small { cuts: true, ..Small::disjoint(2, 1, 20) }, 40, 40, &[], 0);
    replay(&Small { cuts: true, ..Small::disjoint(3, 1, 20) }, 20, 60, &[], 0);
}

#[test]
fn disks_that_fail_half_way() {
    replay(&Small { errors: true, ..Small::disjoint(2, 1, 20) }, 40, 40, &[], 0);
    replay(&Small { errors: true, ..Small::disjoint(3, 1, 20) }, 30, 60, &[], 0);
    replay(&Small { errors: true, back: true, cuts: true, ..Small::disjoint(2, 1, 40) }, 30, 40, &[], 0);
}

/// Each walk has devices of its own, as they do not come back.
#[test]
fn devices_that_are_lost() {
    let mut random = random();
    for walks in 0..24 {
        let (devices, errors) = (random.usize(2..4), random.bool());
        let small = match random.u32(..4) {
            0 => Small { back: true, ..Small::disjoint(devices, 1, 40) },
            1 => Small::disjoint(devices, 2, 20),
            2 => Small::racing(devices, 20),
            _ => Small::disjoint(devices, 1, 20),
        };
        let errors = errors && small.pages == 1 && !small.has_a_race();
        let eager = random.u32(..4) == 0;
        let small = Small { losses: true, in_use: true, whole: true, known: random.bool(), errors, eager, ..small };
        let mode = if eager { Mode::Eager } else { Mode::Lazy };
        let (devices, faults) = losable(devices as u32);
        let world = World::new(&devices, options(PAGE, 32, mode), &[0]);
        let mut left = 60;
        walk((&world, &faults), &small, walks, &mut random, &mut |open, random| {
            left -= 1;
            if left == 0 {
                return None;
            }
            // Losses are rare, so that there is something to lose.
            let others: Vec<_> = open.iter().filter(|step| !matches!(step, Step::Lose(_))).copied().collect();
            let open = if random.u32(..20) == 0 { open } else { &others };
            Some(open[random.below(open.len() as u64) as usize])
        });
    }
}
