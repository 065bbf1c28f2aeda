//! Random sequences of operations, on the mount and on a plain folder: what each returns, and what is there in the end.

use crate::support::{World, can_mount};
use bifolio_testing::{noise, seed, until};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SLOTS: usize = 6;
const PAGE: u64 = 4096;

/// One operation, the same for both.
#[derive(Debug, Clone)]
enum Step {
    Open { slot: usize, name: String, flags: i32, mode: u32 },
    Close { slot: usize },
    Write { slot: usize, at: u64, bytes: Vec<u8> },
    Append { slot: usize, bytes: Vec<u8> },
    Read { slot: usize, at: u64, len: usize },
    Map { slot: usize, at: u64, byte: u8 },
    Resize { slot: usize, size: u64 },
    Truncate { name: String, size: u64 },
    Allocate { slot: usize, mode: i32, at: u64, len: u64 },
    Copy { from: usize, to: usize, at: u64, to_at: u64, len: usize },
    Seek { slot: usize, at: u64, whence: i32 },
    Sync { slot: usize },
    Lock { slot: usize, kind: i32, at: u64, len: u64 },
    LockWhole { slot: usize, operation: i32 },
    MakeFolder { name: String, mode: u32 },
    RemoveFolder { name: String },
    Unlink { name: String },
    Rename { from: String, to: String, flags: u32 },
    Link { from: String, to: String },
    Symlink { target: String, name: String },
    ReadLink { name: String },
    Pipe { name: String },
    Chmod { name: String, mode: u32 },
    Chown { name: String, user: u32, group: u32 },
    Times { name: String, accessed: (i64, i64), modified: (i64, i64) },
    SetAttribute { name: String, key: usize, value: Vec<u8>, flags: i32 },
    GetAttribute { name: String, key: usize },
    RemoveAttribute { name: String, key: usize },
    List { name: String },
    State { name: String },
}

impl Step {
    fn forbid_set_id(&mut self) {
        if let Self::Open { mode, .. } | Self::Chmod { mode, .. } = self {
            *mode &= 0o1777;
        }
    }
}

/// What an operation returns: bytes, or the number of an error.
type Outcome = Result<Vec<u8>, i32>;

const KEYS: [&std::ffi::CStr; 4] = [c"user.a", c"user.bb", c"trusted.c", c"nonsense.d"];

fn random_name(random: &mut Rng) -> String {
    const NAMES: [&str; 6] = ["a", "b", "c", "\u{fc}nd\n*", "dir", "link"];
    let mut name = NAMES[random.usize(..NAMES.len())].to_owned();
    if random.u8(..3) == 0 {
        name = format!("dir/{name}");
    }
    if random.u8(..40) == 0 {
        name = "n".repeat(256);
    }
    name
}

fn random_place(random: &mut Rng) -> u64 {
    match random.u8(..12) {
        0 => (5 << 30) + random.u64(..100),
        1 => random.u64(..40) * PAGE,
        _ => random.u64(..8 * PAGE),
    }
}

fn random_step(random: &mut Rng) -> Step {
    let slot = random.usize(..SLOTS);
    let name = random_name(random);
    match random.u8(..47) {
        0..=5 => {
            let mut flags = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR][random.usize(..4)];
            for (flag, one_in) in [
                (libc::O_CREAT, 2),
                (libc::O_EXCL, 6),
                (libc::O_TRUNC, 5),
                (libc::O_APPEND, 4),
                (libc::O_NOFOLLOW, 6),
                (libc::O_DIRECTORY, 12),
                (libc::O_SYNC, 12),
            ] {
                if random.u8(..one_in) == 0 {
                    flags |= flag;
                }
            }
            Step::Open { slot, name, flags, mode: random.u32(..0o10000) }
        }
        6 | 7 => Step::Close { slot },
        8..=12 => {
            let len = random.usize(1..3 * PAGE as usize);
            Step::Write { slot, at: random_place(random), bytes: noise(len, random.u64(..)) }
        }
        13 => Step::Append { slot, bytes: noise(random.usize(1..500), random.u64(..)) },
        14..=17 => Step::Read { slot, at: random_place(random), len: random.usize(1..3 * PAGE as usize) },
        18 | 19 => Step::Map { slot, at: random.u64(..20 * PAGE), byte: random.u8(..) },
        20 => Step::Resize { slot, size: random_place(random) },
        21 => Step::Truncate { name, size: random_place(random) },
        22 | 23 => {
            const MODES: [i32; 5] = [
                0,
                libc::FALLOC_FL_KEEP_SIZE,
                libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
                libc::FALLOC_FL_ZERO_RANGE,
                libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            ];
            let (at, len) = (random.u64(..20 * PAGE), random.u64(..5 * PAGE));
            Step::Allocate { slot, mode: MODES[random.usize(..MODES.len())], at, len }
        }
        24 => {
            let (at, to_at, len) =
                (random.u64(..20 * PAGE), random.u64(..20 * PAGE), random.usize(..4 * PAGE as usize));
            Step::Copy { from: slot, to: random.usize(..SLOTS), at, to_at, len }
        }
        25 => Step::Seek {
            slot,
            at: random.u64(..20 * PAGE),
            whence: [libc::SEEK_DATA, libc::SEEK_HOLE][random.usize(..2)],
        },
        26 => Step::Sync { slot },
        27 => Step::MakeFolder { name, mode: random.u32(..0o10000) },
        28 => Step::RemoveFolder { name },
        29 | 30 => Step::Unlink { name },
        31 | 32 => Step::Rename { from: name, to: random_name(random), flags: [0, 0, 1, 2][random.usize(..4)] },
        33 => Step::Link { from: name, to: random_name(random) },
        34 => Step::Symlink { target: random_name(random), name },
        35 => Step::ReadLink { name },
        36 => Step::Pipe { name },
        37 => Step::Chmod { name, mode: random.u32(..0o10000) },
        38 => Step::Chown { name, user: random.u32(..3), group: random.u32(..3) },
        39 => {
            let mut time =
                || (random.i64(-5_000_000_000..8_000_000_000).max(-2_000_000_000), random.i64(..1_000_000_000));
            Step::Times { name, accessed: time(), modified: time() }
        }
        40 => {
            let (key, value) = (random.usize(..KEYS.len()), noise(random.usize(..60), random.u64(..)));
            let flags = [0, libc::XATTR_CREATE, libc::XATTR_REPLACE][random.usize(..3)];
            Step::SetAttribute { name, key, value, flags }
        }
        41 if random.bool() => Step::GetAttribute { name, key: random.usize(..KEYS.len()) },
        41 => Step::RemoveAttribute { name, key: random.usize(..KEYS.len()) },
        42 => Step::List { name },
        43 | 44 => Step::Lock {
            slot,
            kind: [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK][random.usize(..3)],
            at: random.u64(..20),
            len: random.u64(..10),
        },
        45 => Step::LockWhole { slot, operation: [libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN][random.usize(..3)] },
        _ => Step::State { name },
    }
}

/// Most of what follows finds files that are open, and a folder.
fn first_step(number: usize, random: &mut Rng) -> Option<Step> {
    match number {
        0 => Some(Step::MakeFolder { name: "dir".to_owned(), mode: 0o755 }),
        number if number % 60 < SLOTS => {
            let (name, flags) = (random_name(random), libc::O_RDWR | libc::O_CREAT);
            Some(Step::Open { slot: number % 60, name, flags, mode: 0o666 })
        }
        number if number % 60 < 2 * SLOTS => {
            let bytes = noise(random.usize(1..5 * PAGE as usize), random.u64(..));
            Some(Step::Write { slot: number % 60 - SLOTS, at: random_place(random), bytes })
        }
        _ => None,
    }
}

/// A folder, and files that are open there.
struct Side {
    root: PathBuf,
    open: [Option<File>; SLOTS],
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn done(result: i32) -> Outcome {
    if result < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(vec![]) }
}

fn number(result: i64) -> Outcome {
    done(if result < 0 { -1 } else { 0 }).map(|_| result.to_le_bytes().to_vec())
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

fn of_std<T>(result: io::Result<T>) -> Result<T, i32> {
    result.map_err(|error| errno(&error))
}

impl Side {
    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn file(&self, slot: usize) -> Result<&File, i32> {
        self.open[slot].as_ref().ok_or(-2)
    }

    fn run(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Open { slot, name, flags, mode } => {
                // A pipe is not to be waited for.
                self.open[*slot] = None;
                let path = c(&self.at(name));
                // SAFETY: the path ends with a zero byte.
                let fd = unsafe { libc::open(path.as_ptr(), *flags | libc::O_NONBLOCK | libc::O_CLOEXEC, *mode) };
                done(fd)?;
                // SAFETY: the descriptor is new.
                let file: File = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
                let kind = of_std(file.metadata())?.file_type();
                if kind.is_file() {
                    self.open[*slot] = Some(file);
                }
                Ok(vec![])
            }
            Step::Close { slot } => {
                self.open[*slot] = None;
                Ok(vec![])
            }
            Step::Write { slot, at, bytes } => {
                of_std(self.file(*slot)?.write_at(bytes, *at)).map(|len| len.to_le_bytes().to_vec())
            }
            Step::Append { slot, bytes } => {
                let file = self.file(*slot)?;
                // SAFETY: takes no memory.
                done(unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) } as i32 & i32::MAX)?;
                of_std(io::Write::write(&mut &*file, bytes)).map(|len| len.to_le_bytes().to_vec())
            }
            Step::Read { slot, at, len } => {
                let mut bytes = vec![0; *len];
                let read = of_std(self.file(*slot)?.read_at(&mut bytes, *at))?;
                bytes.truncate(read);
                Ok(bytes)
            }
            Step::Map { slot, at, byte } => self.map(*slot, *at, *byte),
            Step::Resize { slot, size } => of_std(self.file(*slot)?.set_len(*size)).map(|()| vec![]),
            Step::Truncate { name, size } => {
                let path = c(&self.at(name));
                // SAFETY: the path ends with a zero byte.
                done(unsafe { libc::truncate(path.as_ptr(), *size as i64) })
            }
            Step::Allocate { slot, mode, at, len } => {
                let fd = self.file(*slot)?.as_raw_fd();
                // SAFETY: takes no memory.
                done(unsafe { libc::fallocate(fd, *mode, *at as i64, *len as i64) })
            }
            Step::Copy { from, to, at, to_at, len } => {
                let (from, to) = (self.file(*from)?.as_raw_fd(), self.file(*to)?.as_raw_fd());
                let (mut at, mut to_at) = (*at as i64, *to_at as i64);
                // SAFETY: both offsets are there.
                number(unsafe { libc::copy_file_range(from, &raw mut at, to, &raw mut to_at, *len, 0) } as i64)
            }
            Step::Seek { slot, at, whence } => self.seek(*slot, *at, *whence),
            Step::Sync { slot } => of_std(self.file(*slot)?.sync_all()).map(|()| vec![]),
            Step::Lock { slot, kind, at, len } => {
                let mut lock = libc::flock {
                    l_type: *kind as libc::c_short,
                    l_whence: libc::SEEK_SET as libc::c_short,
                    l_start: *at as i64,
                    l_len: *len as i64,
                    l_pid: 0,
                };
                // SAFETY: the lock is there for as long as the call.
                done(unsafe { libc::fcntl(self.file(*slot)?.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) })
            }
            Step::LockWhole { slot, operation } => {
                // SAFETY: takes no memory.
                done(unsafe { libc::flock(self.file(*slot)?.as_raw_fd(), *operation | libc::LOCK_NB) })
            }
            Step::MakeFolder { name, mode } => {
                let path = c(&self.at(name));
                // SAFETY: the path ends with a zero byte.
                done(unsafe { libc::mkdir(path.as_ptr(), *mode) })
            }
            Step::RemoveFolder { name } => of_std(fs::remove_dir(self.at(name))).map(|()| vec![]),
            Step::Unlink { name } => of_std(fs::remove_file(self.at(name))).map(|()| vec![]),
            Step::Rename { from, to, flags } => {
                let (from, to) = (c(&self.at(from)), c(&self.at(to)));
                // SAFETY: the paths end with zero bytes.
                done(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), *flags) })
            }
            Step::Link { from, to } => of_std(fs::hard_link(self.at(from), self.at(to))).map(|()| vec![]),
            Step::Symlink { target, name } => {
                of_std(std::os::unix::fs::symlink(target, self.at(name))).map(|()| vec![])
            }
            Step::ReadLink { name } => {
                of_std(fs::read_link(self.at(name))).map(|target| target.as_os_str().as_bytes().to_vec())
            }
            Step::Pipe { name } => {
                let path = c(&self.at(name));
                // SAFETY: the path ends with a zero byte.
                done(unsafe { libc::mkfifo(path.as_ptr(), 0o640) })
            }
            Step::Chmod { name, mode } => {
                of_std(fs::set_permissions(self.at(name), fs::Permissions::from_mode(*mode))).map(|()| vec![])
            }
            Step::Chown { name, user, group } => {
                of_std(std::os::unix::fs::lchown(self.at(name), Some(*user), Some(*group))).map(|()| vec![])
            }
            Step::Times { name, accessed, modified } => {
                let path = c(&self.at(name));
                let time =
                    |(seconds, nanoseconds): (i64, i64)| libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
                let times = [time(*accessed), time(*modified)];
                let flags = libc::AT_SYMLINK_NOFOLLOW;
                // SAFETY: the path ends with a zero byte, and there are two times.
                done(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags) })
            }
            Step::SetAttribute { name, key, value, flags } => {
                let path = c(&self.at(name));
                let value_at = value.as_ptr().cast();
                // SAFETY: the strings end with zero bytes, and the value is given with its length.
                done(unsafe { libc::lsetxattr(path.as_ptr(), KEYS[*key].as_ptr(), value_at, value.len(), *flags) })
            }
            Step::GetAttribute { name, key } => {
                let path = c(&self.at(name));
                let mut room = [0; 100];
                let room_at = room.as_mut_ptr().cast();
                // SAFETY: the strings end with zero bytes, and the room is given with its length.
                let len = unsafe { libc::lgetxattr(path.as_ptr(), KEYS[*key].as_ptr(), room_at, room.len()) };
                number(len as i64).map(|_| room[..len as usize].to_vec())
            }
            Step::RemoveAttribute { name, key } => {
                let path = c(&self.at(name));
                // SAFETY: the strings end with zero bytes.
                done(unsafe { libc::lremovexattr(path.as_ptr(), KEYS[*key].as_ptr()) })
            }
            Step::List { name } => {
                let mut names: Vec<_> = of_std(fs::read_dir(self.at(name)))?
                    .map(|entry| of_std(entry).map(|entry| entry.file_name().as_bytes().to_vec()))
                    .collect::<Result<_, _>>()?;
                names.sort();
                Ok(names.join(&0))
            }
            Step::State { name } => state(&self.at(name)).map(String::into_bytes),
        }
    }

    /// Where a file says that data or a hole begins depends on what it has of extents that were allocated and not written,
    /// and on what is in the page cache of them. So the places are not compared; but nothing that is there is left out.
    fn seek(&self, slot: usize, at: u64, whence: i32) -> Outcome {
        const LOOK: u64 = 1 << 20;
        let file = self.file(slot)?;
        let size = of_std(file.metadata())?.len();
        // SAFETY: takes no memory.
        let found = number(unsafe { libc::lseek(file.as_raw_fd(), at as i64, whence) });
        let end = match &found {
            Ok(place) => u64::from_le_bytes(place[..].try_into().unwrap()),
            Err(libc::ENXIO) => size,
            Err(error) => return Err(*error),
        };
        assert!(found.is_err() || (at..=size).contains(&end), "{end} lies outside of {at}..={size}");
        if at >= size || whence == libc::SEEK_HOLE {
            return found.map(|_| vec![]);
        }
        for part in [at..end.min(at + LOOK), end.saturating_sub(LOOK).max(at)..end] {
            let mut bytes = vec![1; (part.end - part.start) as usize];
            match file.read_exact_at(&mut bytes, part.start) {
                Ok(()) => assert!(bytes.iter().all(|byte| *byte == 0), "there is data in {part:?}, before {end}"),
                // It was not opened to be read.
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EBADF), "reading {part:?}"),
            }
        }
        Ok(vec![])
    }

    /// Stores a byte through a mapping, inside the file.
    fn map(&self, slot: usize, at: u64, byte: u8) -> Outcome {
        let file = self.file(slot)?;
        if of_std(file.metadata())?.len() <= at {
            return Err(-3);
        }
        let start = at / PAGE * PAGE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a page, of which one byte that the file has is used.
        unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                PAGE as usize,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                start as i64,
            );
            if page == libc::MAP_FAILED {
                return done(-1);
            }
            let place = page.cast::<u8>().add((at - start) as usize);
            let before = place.read_volatile();
            place.write_volatile(byte);
            libc::msync(page, PAGE as usize, libc::MS_SYNC);
            libc::munmap(page, PAGE as usize);
            Ok(vec![before])
        }
    }
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Ok(bytes) if bytes.len() <= 200 => format!("{:?}", String::from_utf8_lossy(bytes)),
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(number) => format!("error {number}"),
    }
}

/// What is to be the same of a file; its times where they were set are part of [`Step::Times`] and compared with the source.
fn state(path: &Path) -> Result<String, i32> {
    let state = of_std(fs::symlink_metadata(path))?;
    let size = if state.is_dir() { 0 } else { state.size() };
    Ok(format!("{:o} {} {} {} {size}", state.mode(), state.uid(), state.gid(), state.nlink()))
}

/// All files below a folder: what they are and what they contain.
pub(crate) fn tree(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            let kind = fs::symlink_metadata(&path).unwrap();
            let content = if kind.is_dir() {
                folders.push(path.clone());
                String::new()
            } else if kind.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else if kind.is_file() {
                format!("{:x}", sum(&path))
            } else {
                String::new()
            };
            found.insert(name, format!("{} {content}", state(&path).unwrap()));
        }
    }
    found
}

/// A sum of a file's content that skips its holes.
fn sum(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let (mut sum, mut at, mut buffer) = (0_u64, 0_u64, vec![0; 1 << 20]);
    loop {
        // SAFETY: takes no memory.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        if data < 0 {
            return sum;
        }
        at = data as u64;
        let read = file.read_at(&mut buffer, at).unwrap();
        if read == 0 {
            return sum;
        }
        for (index, byte) in buffer[..read].iter().enumerate() {
            if *byte != 0 {
                sum = sum.wrapping_add(
                    (at + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(u32::from(*byte)),
                );
            }
        }
        at += read as u64;
    }
}

/// All that `stat` says, for the mount and the source of the same file.
fn exact(path: &Path) -> Result<String, i32> {
    let state = of_std(fs::symlink_metadata(path))?;
    Ok(format!(
        "{:o} {} {} {} {} {} {} {:?} {:?} {:?} {}",
        state.mode(),
        state.uid(),
        state.gid(),
        state.nlink(),
        state.size(),
        state.blocks(),
        state.ino(),
        (state.atime(), state.atime_nsec()),
        (state.mtime(), state.mtime_nsec()),
        (state.ctime(), state.ctime_nsec()),
        state.rdev(),
    ))
}

fn compare_all(new: fn() -> World, has_set_id: bool) {
    if !can_mount() {
        return;
    }
    for _ in 0..6 {
        compare(&new(), has_set_id, 3000);
    }
}

/// Does the same steps on a mount and in a folder beside it.
pub(crate) fn compare(world: &World, has_set_id: bool, steps: usize) {
    // Other tests mount in this process, which sets its file mode mask in the middle of this one: this thread has its own.
    // SAFETY: both change this thread alone.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_FS), 0);
        libc::umask(0o027);
    }
    let first = seed();
    let mut random = Rng::with_seed(first);
    let round = format!("seed {first}");
    {
        let plain = world.beside("plain");
        fs::create_dir(&plain).unwrap();
        let mut mount = Side { root: world.mount(""), open: Default::default() };
        let mut plain = Side { root: plain, open: Default::default() };
        let mut done = 0;
        for number in 0..steps {
            let mut step = first_step(number, &mut random).unwrap_or_else(|| random_step(&mut random));
            if !has_set_id {
                // Bits that have a program run as another user go with every write to a file that was passed when it was
                // opened, also with root's.
                step.forbid_set_id();
            }
            let (mut here, there) = (mount.run(&step), plain.run(&step));
            if matches!(step, Step::Lock { .. }) && there.is_ok() && here == Err(libc::EAGAIN) {
                // The kernel tells of the end of an opening, with which its locks go, when it is over.
                until(format_args!("round {round}, step {number}: {step:?}"), || {
                    here = mount.run(&step);
                    here != Err(libc::EAGAIN)
                });
            }
            done += usize::from(here.is_ok());
            assert!(
                here == there,
                "round {round}, step {number}, {step:?}: the mount has {}, a plain folder {}",
                shown(&here),
                shown(&there)
            );
        }
        assert!(done > steps / 5, "{done} of {steps} operations did something");
        let (here, there) = (tree(&mount.root), tree(&plain.root));
        assert!(here == there, "round {round}:\n{here:#?}\n{there:#?}");
        // The source has the same, and its states are seen as they are, once the kernel asks again.
        assert!(tree(&world.source("")) == there);
        for name in here.keys() {
            let name = std::str::from_utf8(name).unwrap();
            until(format_args!("the mount shows the state that {name:?} has in the source"), || {
                exact(&world.mount(name)) == exact(&world.source(name))
            });
        }
    }
}

#[test]
fn any_sequence_of_operations_does_what_it_does_in_a_plain_folder() {
    compare_all(|| World::new(false), false);
}

#[test]
fn any_sequence_of_operations_does_the_same_where_files_are_not_passed() {
    compare_all(|| World::new(true), true);
}

#[test]
fn any_sequence_of_operations_does_the_same_where_files_are_shared() {
    compare_all(World::of_shared_files, true);
}
