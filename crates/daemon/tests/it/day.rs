//! A day in the life of a daemon: programs come, load, change, keep versions, are killed and leave; files are changed by CPUs
//! and replaced; memory is needed by others and given back; servers are killed. Every byte is compared with an array. So many
//! things happen as `BIFOLIO_SOAK_ROUNDS` says, each kind once in a round, whatever the machine's speed.

use crate::points::{PLAN, set_free, set_plan};
use crate::support::{FRAME, PAGE, Program, Running, folder, options};
use bifolio_cache::fault::Point;
use bifolio_cache::{Advice, ErrorKind};
use bifolio_daemon::{Client, Options, SharedFile, fault};
use bifolio_testing::{noise, seed, until};
use fastrand::Rng;
use std::cell::RefCell;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Some ten seconds on two processors.
const ROUNDS: u32 = 8;

const FILES: usize = 3;
const LEN_MAX: u64 = 2 * FRAME + 5000;
/// Fewer than files and versions would have: something has to go now and then.
const FRAMES: u64 = 12;
const MEMBERS_MAX: usize = 6;
/// More than anything that is free.
const ENOUGH: Option<u64> = Some(1 << 50);

/// One thing that happens.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Load,
    Read,
    Update,
    Store,
    StorePast,
    Replace,
    Evict,
    Sync,
    Leave,
    Die,
    KillServer,
    KillServerLater,
    Reclaim,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Load,
        Self::Read,
        Self::Update,
        Self::Store,
        Self::StorePast,
        Self::Replace,
        Self::Evict,
        Self::Sync,
        Self::Leave,
        Self::Die,
        Self::KillServer,
        Self::KillServerLater,
        Self::Reclaim,
    ];
}

/// A file, as long as somebody has it, whatever its name names by now.
#[derive(Debug)]
struct Original {
    file: File,
    /// What was released.
    bytes: Vec<u8>,
}

/// A program with a file on a device, which it has open twice: versions are kept for who has a part to read it.
struct Member {
    client: Client,
    file: SharedFile,
    reader: Program,
    writer: Program,
    device: usize,
    of: Rc<RefCell<Original>>,
    /// A part that its reader has acquired, and what was there then.
    held: Option<(Range<u64>, Vec<u8>)>,
}

impl Member {
    fn check(&self) {
        if let Some((part, bytes)) = &self.held {
            let seen = self.reader.load(part.start, part.end - part.start);
            assert!(seen == *bytes, "the version of {part:?} on device {}", self.device);
        }
    }

    fn release(&mut self) {
        if let Some((part, _)) = self.held.take() {
            self.reader.mapping.release(part).unwrap();
        }
    }
}

struct Day<'a> {
    running: &'a Running,
    folder: &'a Path,
    random: Rng,
    files: Vec<(PathBuf, Rc<RefCell<Original>>)>,
    members: Vec<Member>,
}

impl Day<'_> {
    fn happen(&mut self, kind: Kind) {
        let number = self.random.usize(..FILES);
        match kind {
            Kind::Load => self.join(number),
            Kind::Read => self.with_member(|day, at| {
                let part = day.part(at);
                day.read(at, part);
            }),
            Kind::Update => self.with_member(Self::update),
            Kind::Store => self.with_member(|day, at| {
                let (part, bytes) = day.change(at);
                day.members[at].file.write(part.start, &bytes).unwrap();
            }),
            Kind::StorePast => self.with_member(|day, at| {
                // Who writes past the cache finds what was released.
                day.members[at].writer.mapping.sync().unwrap();
                let (part, bytes) = day.change(at);
                day.members[at].of.borrow().file.write_all_at(&bytes, part.start).unwrap();
            }),
            Kind::Replace => self.replace(number),
            Kind::Evict => self.with_member(|day, at| {
                let mapping = &mut day.members[at].writer.mapping;
                mapping.advise(0..mapping.len(), Advice::DontNeed).unwrap();
            }),
            Kind::Sync => self.with_member(|day, at| {
                day.members[at].writer.mapping.sync().unwrap();
                day.check_file(at);
            }),
            Kind::Leave => self.with_member(|day, at| drop(day.members.swap_remove(at))),
            Kind::Die => self.with_member(|day, at| {
                // What it has stored and not released is nobody's.
                let part = day.part(at);
                day.acquire(at, |member| &mut member.writer, &part);
                let bytes = noise((part.end - part.start) as usize, day.random.u64(..));
                day.members[at].writer.store(part.start, &bytes);
                day.members[at].client.disconnect();
                day.members.swap_remove(at);
            }),
            Kind::KillServer => self.running.kill_server(),
            Kind::KillServerLater => {
                let own = fault::Point::ALL.iter().map(|point| format!("{point:?}"));
                let all: Vec<String> = Point::ALL.iter().map(|point| format!("{point:?}")).chain(own).collect();
                let point = &all[self.random.usize(..all.len())];
                set_plan(self.folder, &[format!("{point} {}", self.random.u32(1..4))]);
            }
            Kind::Reclaim => self.reclaim(),
        }
    }

    /// One of the programs; where there is none, one comes.
    fn with_member(&mut self, work: impl FnOnce(&mut Self, usize)) {
        if self.members.is_empty() {
            self.join(0);
        }
        let at = self.random.usize(..self.members.len());
        work(self, at);
    }

    fn part(&mut self, at: usize) -> Range<u64> {
        let len = self.members[at].of.borrow().bytes.len() as u64;
        let start = self.random.u64(..len);
        start..(start + 1 + self.random.u64(..100 * PAGE)).min(len)
    }

    /// Acquires a part, and compares it. Where versions that programs keep leave no memory for it, they release them; where
    /// others have needed memory until now, there is some in a moment.
    fn acquire(&mut self, at: usize, which: impl Fn(&mut Member) -> &mut Program, part: &Range<u64>) {
        until("there is memory", || match which(&mut self.members[at]).mapping.acquire(part.clone()) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                self.members.iter_mut().for_each(Member::release);
                false
            }
            outcome => outcome.map(|_| true).unwrap(),
        });
        let seen = which(&mut self.members[at]).load(part.start, part.end - part.start);
        let Member { of, device, .. } = &self.members[at];
        assert!(seen == of.borrow().bytes[part.start as usize..part.end as usize], "{part:?} on device {device}");
    }

    /// A member keeps the version of a part that there is.
    fn read(&mut self, at: usize, part: Range<u64>) {
        self.members[at].release();
        self.acquire(at, |member| &mut member.reader, &part);
        let bytes = self.members[at].of.borrow().bytes[part.start as usize..part.end as usize].to_vec();
        self.members[at].held = Some((part, bytes));
    }

    fn join(&mut self, number: usize) {
        if self.members.len() == MEMBERS_MAX {
            self.members.swap_remove(0);
        }
        let (path, of) = &self.files[number];
        let (client, device) = (self.running.connect(), self.random.usize(..2));
        let file = client.open_path(path).unwrap();
        let reader = Program::on(&client.open_path(path).unwrap(), device, false);
        let writer = Program::on(&file, device, true);
        self.members.push(Member { client, file, reader, writer, device, of: Rc::clone(of), held: None });
        let at = self.members.len() - 1;
        let all = 0..self.members[at].of.borrow().bytes.len() as u64;
        self.read(at, all);
    }

    fn update(&mut self, at: usize) {
        let part = self.part(at);
        self.acquire(at, |member| &mut member.writer, &part);
        let bytes = noise((part.end - part.start) as usize, self.random.u64(..));
        self.members[at].writer.store(part.start, &bytes);
        self.members[at].of.borrow_mut().bytes[part.start as usize..part.end as usize].copy_from_slice(&bytes);
        self.members[at].writer.mapping.release(part).unwrap();
    }

    /// New bytes for a part of a member's file, which are its content from now on.
    fn change(&mut self, at: usize) -> (Range<u64>, Vec<u8>) {
        let part = self.part(at);
        let bytes = noise((part.end - part.start) as usize, self.random.u64(..));
        self.members[at].of.borrow_mut().bytes[part.start as usize..part.end as usize].copy_from_slice(&bytes);
        (part, bytes)
    }

    /// Another file gets the name. Who has the old one keeps it.
    fn replace(&mut self, number: usize) {
        let path = self.files[number].0.clone();
        self.files[number].1 = original(&path, &mut self.random);
    }

    fn check_file(&self, at: usize) {
        let of = self.members[at].of.borrow();
        let mut seen = vec![0x5a; of.bytes.len()];
        of.file.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == of.bytes && of.file.metadata().unwrap().len() == of.bytes.len() as u64, "after a sync");
    }

    /// Others need memory of a device. Programs that have some are asked for it: all but one release it, and that one is
    /// disconnected, and sees what it saw.
    fn reclaim(&mut self) {
        let device = self.random.usize(..2);
        let is_asked = |member: &Member| member.device == device && member.held.is_some();
        let asked: Vec<usize> = (0..self.members.len()).filter(|at| is_asked(&self.members[*at])).collect();
        set_free(self.folder, device, Some(0));
        if !asked.is_empty() {
            let keeps = asked[self.random.usize(..asked.len())];
            for at in asked.iter().copied().filter(|at| *at != keeps) {
                let (part, bytes) = self.members[at].held.take().unwrap();
                let released = self.members[at].reader.mapping.release(part.clone());
                // It was too late, on a machine that had no time for it.
                if released.is_err_and(|error| error.kind() == ErrorKind::Gone) {
                    self.members[at].held = Some((part, bytes));
                }
            }
            until("who keeps memory is disconnected", || {
                self.members[keeps].client.greet().is_err_and(|error| error.to_string().contains("has disconnected"))
            });
        }
        self.members.retain(|member| {
            let is_there = member.client.greet().is_ok();
            // What a program has mapped stays its own.
            member.check();
            is_there
        });
        set_free(self.folder, device, ENOUGH);
    }
}

/// A file of random length and content, at a place where another may be.
fn original(path: &Path, random: &mut Rng) -> Rc<RefCell<Original>> {
    let bytes = noise(random.usize(1..LEN_MAX as usize), random.u64(..));
    let new = path.with_extension("new");
    std::fs::write(&new, &bytes).unwrap();
    let file = File::options().read(true).write(true).open(&new).unwrap();
    std::fs::rename(new, path).unwrap();
    Rc::new(RefCell::new(Original { file, bytes }))
}

#[test]
fn a_day_of_a_daemon_loses_no_byte() {
    let rounds = std::env::var("BIFOLIO_SOAK_ROUNDS");
    let rounds = rounds.map_or(ROUNDS, |text| text.parse().expect("BIFOLIO_SOAK_ROUNDS is a number"));
    let mut random = Rng::with_seed(seed());
    let folder = folder();
    let folder = folder.path();
    let options = Options { free_bytes: 1 << 40, recall_ms: 300, ..options(folder, FRAMES) };
    for device in [0, 1] {
        set_free(folder, device, ENOUGH);
    }
    let running = Running::start_with(folder, &options, &[(PLAN, folder)]);
    let paths = (0..FILES).map(|number| folder.join(format!("file{number}")));
    let files = paths.map(|path| (path.clone(), original(&path, &mut random))).collect();
    let mut day = Day { running: &running, folder, random, files, members: vec![] };
    for round in 0..rounds {
        let mut kinds = Kind::ALL;
        day.random.shuffle(&mut kinds);
        for kind in kinds {
            println!("round {round}: {kind:?}, {} programs", day.members.len());
            day.happen(kind);
            day.members.iter().for_each(Member::check);
        }
    }
    set_plan(folder, &[]);
    day.members.clear();
    for number in 0..FILES {
        day.join(number);
        let at = day.members.len() - 1;
        day.members[at].writer.mapping.sync().unwrap();
        day.check_file(at);
    }
    drop(day);
    running.end();
}
