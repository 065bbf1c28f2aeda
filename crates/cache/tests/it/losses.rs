//! Devices that are lost: at every call that anybody makes of them and at every point between two steps, against an
//! oracle that knows what must survive; and what everybody is told.

use crate::support::{Draw, FRAME, PAGE, World, host, options, random};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{Advice, CachedFile, Error, ErrorKind, Mapping, Mode};
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{Device, DeviceSlice, Stream};
use fastrand::Rng;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Devices that can be lost, and how.
pub(crate) fn losable(devices: u32) -> (Vec<Device>, Vec<Arc<Faults>>) {
    let device = |index| {
        let faults = Arc::new(Faults::default());
        (Device::from_backend(FaultBackend::new(host(index).backend(), &faults)), faults)
    };
    (0..devices).map(device).unzip()
}

/// The device is gone after so many more calls.
pub(crate) fn lose_after(faults: &Faults, calls: i64) {
    faults.life.store(calls, Ordering::SeqCst);
}

/// Kernels of a device that may be lost.
pub(crate) struct Kernels {
    pub(crate) mapping: Mapping,
    stream: Option<Stream>,
}

impl Kernels {
    pub(crate) fn new(world: &World, file: &CachedFile, number: usize, range: Range<u64>) -> Self {
        let mapping = file.map_on(number, range, true).unwrap();
        Self { mapping, stream: Some(world.devices[number].create_stream().unwrap()) }
    }

    fn at(&self, at: u64, len: u64) -> DeviceSlice<'_> {
        // SAFETY: callers have acquired it.
        unsafe { DeviceSlice::from_raw(self.mapping.ptr().offset_by(at), len) }
    }

    /// False if the device is gone.
    pub(crate) fn store(&self, at: u64, bytes: &[u8]) -> bool {
        self.stream.as_ref().unwrap().upload(self.at(at, bytes.len() as u64), bytes).is_ok()
    }

    pub(crate) fn load(&self, at: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0x5a; len as usize];
        self.stream.as_ref().unwrap().download(&mut bytes, self.at(at, len)).is_ok().then_some(bytes)
    }

    pub(crate) fn change(&mut self, at: u64, value: u8) -> Result<(), Error> {
        self.mapping.acquire(at..at + 1)?;
        self.store(at, &[value]);
        self.mapping.release(at..at + 1).map(drop)
    }
}

#[track_caller]
pub(crate) fn assert_lost(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for word in words.iter().chain(&["is lost", "on purpose"]) {
        assert!(text.contains(word), "\"{word}\" is not in: {text}");
    }
}

fn world(devices: &[Device], content: &[u8]) -> World {
    World::new(devices, options(PAGE, 16, Mode::Lazy), content)
}

/// Symptom: a device that was gone failed for ever, and every sync with it. Cause: nothing gave it up.
#[test]
fn what_a_lost_device_alone_had_is_told_once_to_everybody_and_the_others_go_on() {
    let (devices, faults) = losable(2);
    let world = world(&devices, &vec![0; 5 * PAGE as usize]);
    let (file, other) = (world.open(), world.open());
    let [mut one, mut two] = [0, 1].map(|number| Kernels::new(&world, &file, number, 0..5 * PAGE));
    one.change(10, 1).unwrap();
    two.change(PAGE + 10, 2).unwrap();
    two.change(3 * PAGE + 10, 3).unwrap();
    two.change(4 * PAGE + 10, 4).unwrap();
    lose_after(&faults[1], 0);

    let error = two.mapping.acquire(0..PAGE).unwrap_err();
    let bytes = format!("bytes {} to {} and {} to {} (3 pages)", PAGE, 2 * PAGE, 3 * PAGE, 5 * PAGE);
    assert_lost(&error, &["data", "host:1", &bytes, "close its mappings"]);
    assert_eq!(error.kind(), ErrorKind::Device);
    let again = two.mapping.acquire(0..PAGE).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    assert_lost(&file.map_on(1, 0..PAGE, false).unwrap_err(), &["host:1", "use another device"]);

    for holder in [&file, &other, &file.clone()] {
        let error = holder.sync().unwrap_err();
        assert_lost(&error, &["data", "host:1", &bytes, "write it again"]);
        assert_eq!((error.kind(), error.os_code()), (ErrorKind::Write, Some(libc::EIO)));
    }
    for holder in [&file, &other, &world.open()] {
        holder.sync().unwrap();
    }
    assert_eq!((world.cache.counts().lost, world.file()[10], world.file()[PAGE as usize + 10]), (3, 1, 0));

    one.mapping.acquire(0..5 * PAGE).unwrap();
    assert_eq!(one.load(PAGE + 10, 1).unwrap(), [0]);
    one.store(PAGE + 10, &[5]);
    one.mapping.release(0..5 * PAGE).unwrap();
    let mut seen = [0; 1];
    file.read(PAGE + 10, &mut seen).unwrap();
    assert_eq!(seen, [5]);
    two.mapping.close().unwrap();
    drop((two, one, other));
    file.sync().unwrap();
    assert_eq!(world.file()[PAGE as usize + 10], 5);
}

#[test]
fn what_others_have_of_a_lost_device_is_in_the_file_at_once() {
    let (devices, faults) = losable(3);
    let world = world(&devices, &[0; PAGE as usize]);
    let file = world.open();
    let mut all = [0, 1, 2].map(|number| Kernels::new(&world, &file, number, 0..PAGE));
    for (at, device) in (20..).zip(&mut all[..2]) {
        device.mapping.acquire(0..PAGE).unwrap();
        device.store(at, &[7]);
    }
    for device in &mut all[..2] {
        device.mapping.release(0..PAGE).unwrap();
    }
    // It has released nothing itself, and is home.
    all[2].mapping.acquire(0..PAGE).unwrap();
    all[2].mapping.release(0..PAGE).unwrap();
    assert_eq!(world.file()[20..22], [0, 0]);
    lose_after(&faults[2], 0);
    // What there is to acquire is there, which no device is asked for.
    all[2].mapping.acquire(0..PAGE).unwrap();
    assert_lost(&all[2].mapping.release(0..PAGE).unwrap_err(), &["nothing that was released is gone"]);
    assert_eq!(world.file()[20..22], [7, 7]);
    file.sync().unwrap();
    assert_eq!(world.cache.counts().lost, 0);
}

/// The device is lost for all files of the cache, whoever meets it first.
#[test]
fn files_that_nobody_uses_at_that_moment_are_told_as_well() {
    let (devices, faults) = losable(2);
    let world = world(&devices, &[0; PAGE as usize]);
    std::fs::write(world.folder().join("idle"), [0; 100]).unwrap();
    let (busy, idle) = (world.open(), world.cache.open(world.folder().join("idle")).unwrap());
    let mut at_work = Kernels::new(&world, &busy, 1, 0..100);
    let [mut gone, mut left] = [1, 0].map(|number| Kernels::new(&world, &idle, number, 0..100));
    gone.change(10, 1).unwrap();
    left.change(20, 2).unwrap();
    gone.change(30, 3).unwrap();
    lose_after(&faults[1], 0);
    at_work.mapping.acquire(0..1).unwrap_err();
    busy.sync().unwrap();
    let mut seen = [0; 40];
    idle.read(0, &mut seen).unwrap();
    // The other had acquired the first.
    assert_eq!((seen[10], seen[20], seen[30]), (1, 2, 0));
    assert_lost(&idle.sync().unwrap_err(), &["idle", "host:1", "bytes 0 to 100 (1 page)"]);
    idle.sync().unwrap();
}

/// What survivors have is written when the disk takes it, and not lost with the error.
#[test]
fn a_disk_that_fails_when_a_device_is_lost_gets_it_later() {
    let (devices, faults) = losable(2);
    let world = world(&devices, &[0; PAGE as usize]);
    let file = world.open();
    let [mut one, mut two] = [0, 1].map(|number| Kernels::new(&world, &file, number, 0..PAGE));
    one.change(10, 1).unwrap();
    two.mapping.acquire(0..PAGE).unwrap();
    lose_after(&faults[1], 0);
    fault::inject(|point| match point {
        Point::HomeRun => Err(std::io::Error::from_raw_os_error(libc::EIO)),
        _ => Ok(()),
    });
    assert_lost(&two.mapping.release(0..PAGE).unwrap_err(), &["nothing that was released is gone"]);
    assert_eq!(file.sync().unwrap_err().os_code(), Some(libc::EIO));
    fault::cease();
    assert_eq!(world.file()[10], 0);
    file.sync().unwrap();
    assert_eq!(world.file()[10], 1);
}

#[test]
fn all_devices_at_once() {
    let (devices, faults) = losable(3);
    let world = world(&devices, &[0; PAGE as usize]);
    let file = world.open();
    let mut all = [0, 1, 2].map(|number| Kernels::new(&world, &file, number, 0..PAGE));
    for (at, device) in (20..).zip(&mut all) {
        device.change(at, 7).unwrap();
    }
    for faults in &faults {
        lose_after(faults, 0);
    }
    file.write(40, &[9]).unwrap();
    let mut seen = [0; 1];
    file.read(40, &mut seen).unwrap();
    let error = file.sync().unwrap_err();
    assert_lost(&error, &["bytes 0 to 4096 (1 page)"]);
    file.sync().unwrap();
    assert_eq!((seen[0], world.file()[40]), (9, 9));
    drop(all);
}

/// Places in a page: a byte for each device, beside each other, and a CPU's.
const FIRST: u64 = 4090;
const CPU: usize = 3;
const PLACES: u64 = 4;
const PAGES: [u64; 3] = [0, 1, FRAME / PAGE];
const LEN: u64 = FRAME + 2 * PAGE;

/// By page and writer: a value that counts up.
type Values = [[u8; PLACES as usize]; PAGES.len()];

/// A program on several devices, one of which is lost on the way, and what is known of every byte.
struct Scene<'a> {
    world: &'a World,
    faults: &'a [Arc<Faults>],
    file: CachedFile,
    devices: Vec<Kernels>,
    victim: usize,
    /// By device: what it has acquired at the moment.
    acquired: Vec<Vec<usize>>,
    stored: Values,
    /// What a release has begun to publish, and what one that has succeeded did.
    begun: Values,
    released: Values,
    /// What survivors have seen, or the file has had: that cannot be lost.
    safe: Values,
    told: Vec<String>,
}

impl<'a> Scene<'a> {
    fn new(world: &'a World, faults: &'a [Arc<Faults>], victim: usize) -> Self {
        let file = world.open();
        let devices: Vec<_> = (0..faults.len()).map(|number| Kernels::new(world, &file, number, 0..LEN)).collect();
        let acquired = devices.iter().map(|_| vec![]).collect();
        let [stored, begun, released, safe] = Default::default();
        Self { world, faults, file, devices, victim, acquired, stored, begun, released, safe, told: vec![] }
    }

    fn at(page: usize) -> u64 {
        PAGES[page] * PAGE + FIRST
    }

    fn part(page: usize) -> Range<u64> {
        PAGES[page] * PAGE..(PAGES[page] + 1) * PAGE
    }

    /// An operation of a device: only the victim's fails, and only as it is lost.
    fn expect<T>(&self, device: usize, outcome: Result<T, Error>) -> Option<T> {
        let lost = device == self.victim && self.faults[self.victim].is_lost();
        match outcome {
            Ok(done) => Some(done),
            Err(error) if lost && error.kind() == ErrorKind::Device => {
                assert_lost(&error, &[&format!("host:{device}")]);
                None
            }
            Err(error) => panic!("device {device}, of which {} is lost: {error}", self.victim),
        }
    }

    /// What somebody has seen of a page; of the victim's bytes it may have lost what nobody has seen.
    fn check(&mut self, page: usize, seen: &[u8], own: Option<usize>, is_safe: bool, what: &str) {
        for (writer, value) in seen.iter().copied().enumerate() {
            let is_lost = writer == self.victim && self.faults[self.victim].is_lost();
            let least = if is_lost { self.safe } else { self.released }[page][writer];
            // Nobody else sees what is not released.
            let most = if own == Some(writer) { self.stored } else { self.begun }[page][writer];
            assert!(
                (least..=most).contains(&value),
                "{what}: page {page} has {value} of {writer}, of {least}..={most}"
            );
            if is_safe {
                self.safe[page][writer] = self.safe[page][writer].max(value.min(self.begun[page][writer]));
            }
        }
    }

    fn acquire(&mut self, device: usize, page: usize) {
        if self.acquired[device].contains(&page) {
            return;
        }
        let outcome = self.devices[device].mapping.acquire(Self::part(page));
        if self.expect(device, outcome).is_none() {
            return;
        }
        self.acquired[device].push(page);
        if let Some(seen) = self.devices[device].load(Self::at(page), PLACES) {
            assert_eq!(seen[device], self.stored[page][device], "its own stores stay");
            self.check(page, &seen, Some(device), device != self.victim, &format!("device {device} has acquired"));
        }
    }

    fn store(&mut self, device: usize, page: usize) {
        if self.acquired[device].contains(&page) {
            let value = self.stored[page][device] + 1;
            if self.devices[device].store(Self::at(page) + device as u64, &[value]) {
                self.stored[page][device] = value;
            }
        }
    }

    fn release(&mut self, device: usize, page: usize) {
        let Some(at) = self.acquired[device].iter().position(|acquired| *acquired == page) else { return };
        self.begun[page][device] = self.stored[page][device];
        let outcome = self.devices[device].mapping.release(Self::part(page));
        if self.expect(device, outcome).is_some() {
            self.acquired[device].swap_remove(at);
            self.released[page][device] = self.stored[page][device];
        }
    }

    /// Another mapping of the device acquires a page, and ends without a release.
    fn look(&mut self, device: usize, page: usize) {
        let mapped = self.file.map_on(device, 0..LEN, true);
        let Some(mut other) = self.expect(device, mapped) else { return };
        let acquired = other.acquire(Self::part(page));
        self.expect(device, acquired);
        other.close().unwrap();
    }

    fn sync(&mut self) {
        match self.file.sync() {
            Ok(()) => self.check_file("after a sync"),
            Err(error) => {
                assert_lost(&error, &["data", &format!("host:{}", self.victim), "write it again"]);
                self.told.push(error.to_string());
            }
        }
    }

    fn check_file(&mut self, what: &str) {
        let content = self.world.file();
        for page in 0..PAGES.len() {
            let at = Self::at(page) as usize;
            self.check(page, &content[at..at + PLACES as usize], None, true, what);
        }
    }

    fn step(&mut self, random: &mut Rng) {
        let (device, page) = (random.usize(..self.devices.len()), random.usize(..PAGES.len()));
        match random.u32(..18) {
            0..4 => self.acquire(device, page),
            4..7 => {
                self.acquire(device, page);
                self.store(device, page);
            }
            7..12 => {
                self.acquire(device, page);
                self.store(device, page);
                self.release(device, page);
            }
            12 => {
                let outcome = self.devices[device].mapping.advise(Self::part(page).start..LEN, Advice::DontNeed);
                self.expect(device, outcome);
            }
            13 => {
                self.stored[page][CPU] += 1;
                self.begun[page][CPU] += 1;
                self.file.write(Self::at(page) + CPU as u64, &[self.stored[page][CPU]]).unwrap();
                self.released[page][CPU] += 1;
            }
            14 => {
                let mut seen = [0x5a; PLACES as usize];
                self.file.read(Self::at(page), &mut seen).unwrap();
                self.check(page, &seen, None, false, "a CPU has read");
            }
            15 => self.sync(),
            _ => self.look(device, page),
        }
    }

    /// Everybody who is left releases everything and sees everything; the file has it, and what is gone was told.
    fn end(mut self) {
        for device in 0..self.devices.len() {
            for page in 0..PAGES.len() {
                self.release(device, page);
            }
        }
        for device in 0..self.devices.len() {
            for page in 0..PAGES.len() {
                self.acquire(device, page);
                self.release(device, page);
            }
        }
        self.sync();
        self.sync();
        self.check_file("in the end");
        let content = self.world.file();
        let is_gone = |page: usize| content[Self::at(page) as usize + self.victim] < self.released[page][self.victim];
        if (0..PAGES.len()).any(is_gone) {
            assert_eq!(self.told.len(), 1, "what is gone is told once: {:?}", self.told);
        }
        assert!(self.told.len() <= usize::from(self.faults[self.victim].is_lost()), "{:?}", self.told);
        assert_eq!(self.world.cache.counts().lost > 0, !self.told.is_empty());
        let mut rest = content;
        (0..PAGES.len()).for_each(|page| rest[Self::at(page) as usize..][..PLACES as usize].fill(0));
        assert!(rest.iter().all(|byte| *byte == 0), "a byte that nobody wrote");
    }
}

/// One program, by its seed; `arm` is called some steps after its beginning, and says when the victim is lost.
fn play(count: u32, seed: u64, frames: u64, mode: Mode, victim: usize, arm: impl FnOnce(&Arc<Faults>)) {
    let (devices, faults) = losable(count);
    let world = World::new(&devices, options(PAGE, frames, mode), &vec![0; LEN as usize]);
    let (mut scene, mut random) = (Scene::new(&world, &faults, victim), Rng::with_seed(seed));
    let before = random.u32(4..16);
    (0..before).for_each(|_| scene.step(&mut random));
    arm(&faults[victim]);
    (0..24).for_each(|_| scene.step(&mut random));
    fault::cease();
    scene.end();
}

/// How many more calls a device takes: far more than a program makes.
const MANY: i64 = 1 << 40;

fn setups(random: &mut Rng) -> (u32, u64, u64, Mode, usize) {
    let devices = random.u32(2..4);
    let mode = if random.u32(..4) == 0 { Mode::Eager } else { Mode::Lazy };
    (devices, random.u64(..), random.u64(4..9), mode, random.usize(..devices as usize))
}

#[test]
fn a_device_that_is_lost_at_any_call_takes_nothing_that_others_have() {
    let mut random = random();
    for _ in 0..3 {
        let (devices, seed, frames, mode, victim) = setups(&mut random);
        let left = Cell::new(None);
        play(devices, seed, frames, mode, victim, |faults| {
            lose_after(faults, MANY);
            left.set(Some(Arc::clone(faults)));
        });
        let calls = MANY - left.take().unwrap().life.load(Ordering::SeqCst);
        for _ in 0..8 {
            let call = random.below(calls as u64 + 1) as i64;
            println!("{devices} devices, seed {seed}, {frames} frames, {mode:?}: {victim} at call {call} of {calls}");
            play(devices, seed, frames, mode, victim, |faults| lose_after(faults, call));
        }
    }
}

#[test]
fn a_device_that_is_lost_at_any_point_takes_nothing_that_others_have() {
    let mut random = random();
    let mut missed: Vec<Point> = vec![];
    // These programs neither cut the file nor go on where another has ended, and no other process has versions of its own.
    let of_files = [Point::CutFound, Point::CutBlanked, Point::Recovered];
    let of_others = [Point::AsideCopied, Point::AsideLeft, Point::AsideExchanged];
    let elsewhere = [of_files, of_others].concat();
    for point in Point::ALL.iter().filter(|point| !elsewhere.contains(point)) {
        let (mut reached, mut tries) = (0, 0);
        while reached == 0 && tries < 12 {
            tries += 1;
            let (devices, seed, frames, mode, victim) = setups(&mut random);
            let (time, times) = (random.u32(1..3), Rc::new(Cell::new(0)));
            println!("{devices} devices, seed {seed}, {frames} frames, {mode:?}: {victim} at {point:?}, time {time}");
            let seen = Rc::clone(&times);
            play(devices, seed, frames, mode, victim, |faults| {
                let faults = Arc::clone(faults);
                fault::inject(move |here| {
                    seen.set(seen.get() + u32::from(here == *point));
                    if here == *point && seen.get() == time {
                        lose_after(&faults, 0);
                    }
                    Ok(())
                });
            });
            reached += u32::from(times.get() >= time);
        }
        missed.extend((reached == 0).then_some(*point));
    }
    println!("never met in these programs: {missed:?}");
    assert!(missed.len() < Point::ALL.len() / 8, "{missed:?}");
}
