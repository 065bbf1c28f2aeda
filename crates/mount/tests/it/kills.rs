//! Servers that are killed, at any moment and at named points: programs notice nothing, and each byte and each name is as it
//! would be without. A keeper that is killed: see `whole.rs`.

use crate::mirror::{compare, tree};
use crate::support::{World, can_mount};
use bifolio_mount::fault::Point;
use bifolio_testing::{noise, seed, until};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const PAGE: usize = 4096;

/// Kills servers one after the other while `work` is done, each some time after it serves; how many.
fn while_killing<T>(world: &World, work: impl FnOnce() -> T) -> (T, u64) {
    let is_done = AtomicBool::new(false);
    let (_, before) = world.server();
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Rng::with_seed(seed());
            let mut last = 0;
            while !is_done.load(Ordering::Relaxed) {
                let (_, count) = world.server();
                if count > last {
                    last = count;
                    // A moment that nobody chooses, and no condition that is waited for.
                    let moment = std::time::Instant::now() + std::time::Duration::from_micros(random.u64(..30_000));
                    while std::time::Instant::now() < moment {
                        std::thread::yield_now();
                    }
                    world.kill_server();
                }
                std::thread::yield_now();
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_done.store(true, Ordering::Relaxed);
        done
    });
    let (_, after) = world.server();
    match done {
        Ok(done) => (done, after - before),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn kinds() -> [(bool, &'static str); 3] {
    [(false, "none"), (true, "none"), (false, "all")]
}

#[test]
fn any_sequence_of_operations_does_the_same_whenever_servers_are_killed() {
    if !can_mount() {
        return;
    }
    for (serves_all, replicas) in kinds() {
        let world = World::killed_at(serves_all, replicas, None);
        let ((), killed) = while_killing(&world, || compare(&world, serves_all || replicas == "all", 3000));
        println!("{killed} servers were killed");
        assert!(killed >= 3, "{killed} servers were killed");
    }
}

#[test]
fn any_sequence_of_operations_does_the_same_at_whatever_point_servers_are_killed() {
    if !can_mount() {
        return;
    }
    for (serves_all, replicas) in kinds() {
        for point in Point::ALL {
            let world = World::killed_at(serves_all, replicas, Some(*point));
            if *point == Point::Adopted {
                world.kill_server();
            }
            compare(&world, serves_all || replicas == "all", 400);
            world.disarm();
            until("the last server serves", || fs::metadata(world.mount("")).is_ok());
        }
    }
}

/// A mapping of a file, to be stored into.
struct Mapped(&'static [AtomicU8]);

impl Mapped {
    fn new(file: &File, len: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: as many bytes as were mapped, until this is dropped, and all accesses to them are atomic.
        Self(unsafe { std::slice::from_raw_parts(start.cast(), len) })
    }

    fn all(&self) -> Vec<u8> {
        self.0.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()) };
    }
}

fn write_lock(file: &File) -> io::Result<()> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 10,
        l_pid: 0,
    };
    // SAFETY: the lock is there for as long as the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Symptom that this keeps away: a killed server took the mount with it, and what programs had stored into mappings.
#[test]
fn what_programs_have_open_mapped_and_locked_outlives_servers() {
    if !can_mount() {
        return;
    }
    let mut random = Rng::with_seed(seed());
    for (serves_all, replicas) in kinds() {
        let world = World::killed_at(serves_all, replicas, None);
        let len = 20 * PAGE + 77;
        let mut expected = noise(len, random.u64(..));
        fs::write(world.mount("data"), &expected).unwrap();
        fs::create_dir(world.mount("here")).unwrap();
        let open = |name: &str| File::options().create(true).truncate(false).read(true).write(true).open(name);
        let file = open(world.mount("data").to_str().unwrap()).unwrap();
        let beside = open(world.source("data").to_str().unwrap()).unwrap();
        let mapped = Mapped::new(&file, len);
        // A file without a name, that only this process has open; and a folder without one.
        let nameless = open(world.mount("nameless").to_str().unwrap()).unwrap();
        nameless.write_all_at(b"before", 0).unwrap();
        fs::remove_file(world.mount("nameless")).unwrap();
        write_lock(&file).unwrap();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "while read -r line; do echo \"$line\" >> said; cat said; done"])
            .current_dir(world.mount("here"));
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut input, mut output) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let mut said = String::new();
        for turn in 0..8_u8 {
            for _ in 0..30 {
                let at = random.usize(..len);
                mapped.0[at].store(turn, Ordering::Relaxed);
                expected[at] = turn;
            }
            world.replace_server();
            assert!(mapped.all() == expected, "turn {turn}: what was stored into the mapping");
            let refused = write_lock(&beside).unwrap_err().raw_os_error();
            assert_eq!(refused, Some(libc::EAGAIN), "turn {turn}: the lock");
            nameless.write_all_at(&[turn], 6 + u64::from(turn)).unwrap();
            writeln!(input, "{turn}").unwrap();
            said.extend([turn.to_string().as_str(), "\n"]);
            let mut heard = vec![0; said.len()];
            output.read_exact(&mut heard).unwrap();
            assert_eq!(String::from_utf8(heard).unwrap(), said, "a program whose current directory is on the mount");
        }
        let mut found = vec![];
        let mut reader = File::open(format!("/proc/self/fd/{}", nameless.as_raw_fd())).unwrap();
        reader.read_to_end(&mut found).unwrap();
        assert_eq!(found, b"before\0\x01\x02\x03\x04\x05\x06\x07");
        drop((input, output));
        shell.wait().unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(world.source("data")).unwrap() == expected);
        drop((mapped, file, reader, nameless));
        until("the lock goes with its owner", || write_lock(&beside).is_ok());
        assert_eq!(tree(&world.source("")), tree(&world.mount("")));
    }
}

/// Symptom: a program that made a file which it may write only now was refused. Cause: the server was killed when it had made and
/// opened the file, and its successor, who has no more rights than others, could not open it again.
#[test]
fn a_file_that_is_made_to_be_read_can_be_written_by_who_makes_it_whenever_servers_are_killed() {
    if !can_mount() {
        return;
    }
    for serves_all in [false, true] {
        for point in [Point::Changed, Point::Done, Point::Opened, Point::Noted] {
            let world = World::without_override(serves_all, point);
            for number in 0..40_u8 {
                let mut options = File::options();
                options.read(true).write(true).create(true).mode(0o444);
                let file = options.open(world.mount(&number.to_string()));
                let file = file.unwrap_or_else(|error| panic!("{point:?}, file {number}: {error}"));
                file.write_all_at(&[number], 0).unwrap();
                assert_eq!(fs::read(world.source(&number.to_string())).unwrap(), [number]);
            }
            world.disarm();
            assert!(world.server().1 > 1, "no server was killed at {point:?}");
        }
    }
}

/// Symptom: a keeper waited for a killed server for ever, and programs for both. Cause: a server asked its own mount for
/// something, so that the end of that thread waited for the answer.
#[test]
fn a_server_that_is_killed_when_it_is_asked_first_is_replaced() {
    if !can_mount() {
        return;
    }
    let world = World::killed_once_at(Point::Asked);
    assert!(fs::metadata(world.mount("")).unwrap().is_dir());
    until("another server serves", || world.server().1 == 2);
}

/// Linux before 6.9 does not send to another server what a killed one had not answered.
#[test]
fn nobody_waits_where_requests_are_not_sent_again() {
    if !can_mount() {
        return;
    }
    let world = World::without_resend();
    fs::write(world.mount("data"), "text").unwrap();
    let file = File::open(world.mount("data")).unwrap();
    world.kill_server();
    until("reads fail", || {
        let error = file.read_at(&mut [0; 4], 0).err().and_then(|error| error.raw_os_error());
        matches!(error, Some(libc::ENOTCONN | libc::ECONNABORTED))
    });
    until("it is unmounted", || fs::read_dir(world.mount("")).is_ok_and(|mut names| names.next().is_none()));
    assert_eq!(fs::read(world.source("data")).unwrap(), b"text");
}

/// A database by Python, whose program is killed as well: what it has said to be committed is there, on the mount and in the
/// source, and the database is whole.
#[test]
fn a_database_has_what_was_committed_when_its_program_and_servers_are_killed() {
    const COMMITS: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
db.execute('pragma journal_mode = ' + sys.argv[2])
db.execute('create table if not exists t (n integer primary key, text blob)')
n = db.execute('select coalesce(max(n), -1) from t').fetchone()[0] + 1
while True:
    db.execute('insert into t values (?, ?)', (n, bytes([n % 251]) * 3000))
    db.execute('update t set text = ? where n = ?', (bytes([n % 241]) * 3000, n // 2))
    db.commit()
    print(n, flush=True)
    n += 1
";
    const CHECK: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
print(db.execute('pragma integrity_check').fetchone()[0], db.execute('select count(*), max(n) from t').fetchone())
";
    if !can_mount() {
        return;
    }
    if !bifolio_testing::has("python3") {
        bifolio_testing::skip("a database is tried by python3, which is missing");
        return;
    }
    for (serves_all, replicas) in kinds() {
        for journal in ["delete", "wal"] {
            let world = World::killed_at(serves_all, replicas, None);
            let ((count, last), _) = while_killing(&world, || {
                let (mut last, mut count) = (0, 0);
                for _ in 0..3 {
                    let mut program = Command::new("python3");
                    program.args(["-c", COMMITS]).arg(world.mount("db")).arg(journal).stdout(Stdio::piped());
                    let mut program = program.spawn().unwrap();
                    let said = io::BufReader::new(program.stdout.take().unwrap());
                    for line in io::BufRead::lines(said).take(15) {
                        last = line.unwrap().parse::<u32>().unwrap();
                        count += 1;
                    }
                    program.kill().unwrap();
                    program.wait().unwrap();
                }
                (count, last)
            });
            assert_eq!(count, 45, "the program has failed, and says why above");
            let check = |path: std::path::PathBuf| {
                let output = Command::new("python3").args(["-c", CHECK]).arg(path).output().unwrap();
                String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
            };
            let seen = check(world.mount("db"));
            // What was committed and not read may be there as well.
            let found = seen.strip_prefix("ok (").and_then(|rest| rest.trim_end().strip_suffix(')')?.split_once(", "));
            let is_whole = found.is_some_and(|(count, newest)| {
                let (count, newest) = (count.parse::<u32>().unwrap(), newest.parse::<u32>().unwrap());
                count == newest + 1 && newest >= last
            });
            assert!(is_whole, "{journal}: {last} was the last to be committed, and there is {seen}");
            assert_eq!(check(world.source("db")), seen);
        }
    }
}

/// What one program does to names and contents in a folder of its own, and what it expects there. Nothing may fail.
fn work(world: &World, number: u8, random: &mut Rng, steps: u32) -> BTreeMap<String, Vec<u8>> {
    let folder = format!("{number}");
    fs::create_dir(world.mount(&folder)).unwrap();
    let path = |name: &str| world.mount(&format!("{folder}/{name}"));
    let mut log = File::options().append(true).create(true).open(world.mount("log")).unwrap();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for step in 0..steps {
        // Others append at the same time, each record by one call.
        log.write_all(&[&[number][..], &step.to_le_bytes(), &[0x55; 300]].concat()).unwrap();
        let some = files.keys().nth(random.usize(..files.len().max(1))).cloned();
        let new = format!("n{step}");
        match (random.u8(..8), some) {
            (0, Some(old)) => {
                fs::rename(path(&old), path(&new)).unwrap();
                let bytes = files.remove(&old).unwrap();
                files.insert(new, bytes);
            }
            (1, Some(old)) => {
                fs::remove_file(path(&old)).unwrap();
                files.remove(&old);
            }
            (2, Some(old)) => {
                let mut file = File::options().append(true).open(path(&old)).unwrap();
                let bytes = noise(random.usize(1..2 * PAGE), random.u64(..));
                file.write_all(&bytes).unwrap();
                files.get_mut(&old).unwrap().extend(bytes);
            }
            (3, Some(old)) => {
                fs::hard_link(path(&old), path(&new)).unwrap();
                fs::remove_file(path(&old)).unwrap();
                let bytes = files.remove(&old).unwrap();
                files.insert(new, bytes);
            }
            (4, Some(old)) if !files[&old].is_empty() => {
                let len = files[&old].len();
                let file = File::options().read(true).write(true).open(path(&old)).unwrap();
                let mapped = Mapped::new(&file, len);
                for _ in 0..5 {
                    let (at, value) = (random.usize(..len), random.u8(..));
                    mapped.0[at].store(value, Ordering::Relaxed);
                    files.get_mut(&old).unwrap()[at] = value;
                }
            }
            (5, _) => {
                fs::create_dir(path(&new)).unwrap();
                fs::remove_dir(path(&new)).unwrap();
                std::os::unix::fs::symlink("nowhere", path(&new)).unwrap();
                fs::remove_file(path(&new)).unwrap();
            }
            _ => {
                let bytes = noise(random.usize(..3 * PAGE), random.u64(..));
                let mut file = File::create_new(path(&new)).unwrap();
                file.write_all(&bytes).unwrap();
                files.insert(new, bytes);
            }
        }
    }
    files.into_iter().map(|(name, bytes)| (format!("{folder}/{name}"), bytes)).collect()
}

#[test]
fn several_programs_at_once_lose_and_double_nothing_whenever_servers_are_killed() {
    const PROGRAMS: u8 = 4;
    const STEPS: u32 = 300;
    if !can_mount() {
        return;
    }
    let first = seed();
    for (serves_all, replicas) in kinds() {
        let world = World::killed_at(serves_all, replicas, None);
        let (expected, killed) = while_killing(&world, || {
            std::thread::scope(|scope| {
                let start = |number| {
                    let world = &world;
                    scope.spawn(move || work(world, number, &mut Rng::with_seed(first ^ u64::from(number)), STEPS))
                };
                let working: Vec<_> = (0..PROGRAMS).map(start).collect();
                working.into_iter().map(|program| program.join().unwrap()).collect::<Vec<_>>()
            })
        });
        assert!(killed >= 3, "{killed} servers were killed");
        for (number, files) in expected.iter().enumerate() {
            let listed = |folder: std::path::PathBuf| {
                let mut names: Vec<_> = fs::read_dir(folder)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                names.sort_unstable();
                names
            };
            let names: Vec<_> = files.keys().map(|name| name.split_once('/').unwrap().1.to_owned()).collect();
            assert_eq!(listed(world.source(&number.to_string())), names);
            assert_eq!(listed(world.mount(&number.to_string())), names);
            for (name, bytes) in files {
                assert!(fs::read(world.source(name)).unwrap() == *bytes, "{name} in the source");
                assert!(fs::read(world.mount(name)).unwrap() == *bytes, "{name} on the mount");
            }
        }
        // Each record once, and each program's in its order.
        let log = fs::read(world.source("log")).unwrap();
        assert_eq!(log.len(), usize::from(PROGRAMS) * STEPS as usize * 305);
        let mut next = [0; PROGRAMS as usize];
        for record in log.chunks(305) {
            let step = u32::from_le_bytes(record[1..5].try_into().unwrap());
            assert!(record[5..] == [0x55; 300] && step == next[usize::from(record[0])], "{:?}", &record[..5]);
            next[usize::from(record[0])] += 1;
        }
    }
}
