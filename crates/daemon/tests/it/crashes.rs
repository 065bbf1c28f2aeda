//! Who dies in the middle: servers, clients, the keeper. What was released is there afterwards, what a dead client had not
//! released is not, and nobody waits for ever.

use crate::support::{FRAME, PAGE, Program, Running, folder, options};
use bifolio_cache::ErrorKind;
use bifolio_daemon::Client;
use bifolio_testing::{noise, seed, until};
use fastrand::Rng;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LEN: u64 = 2 * FRAME + 5000;

/// Bytes that belong to one of the writers in turn, so that they meet in every page.
const BLOCK: u64 = 512;

/// Writes what is its own of random ranges, and looks at it again; what it has at the end.
fn write(running: &Running, path: &Path, number: usize, turns: u32, seed: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(seed);
    let client = running.connect();
    let file = client.open_path(path).unwrap();
    let mut program = Program::on(&file, number, true);
    let mut own = std::fs::read(path).unwrap();
    let is_own = |at: u64| at / BLOCK % 2 == number as u64;
    for turn in 0..turns {
        let start = random.u64(..LEN);
        let part = start..(start + 1 + random.u64(..5 * PAGE)).min(LEN);
        program.mapping.acquire(part.clone()).unwrap();
        let seen = program.load(part.start, part.end - part.start);
        for at in part.clone().filter(|at| is_own(*at)) {
            assert_eq!(seen[(at - start) as usize], own[at as usize], "writer {number}, turn {turn}, byte {at}");
        }
        let mut at = part.start;
        while at < part.end {
            let end = ((at / BLOCK + 1) * BLOCK).min(part.end);
            if is_own(at) {
                let bytes = noise((end - at) as usize, random.u64(..));
                program.store(at, &bytes);
                own[at as usize..end as usize].copy_from_slice(&bytes);
            }
            at = end;
        }
        program.mapping.release(part).unwrap();
        if random.u8(..40) == 0 {
            program.mapping.sync().unwrap();
        }
    }
    program.mapping.acquire(0..LEN).unwrap();
    let seen = program.load(0, LEN);
    for at in (0..LEN).filter(|at| is_own(*at)) {
        assert_eq!(seen[at as usize], own[at as usize], "writer {number}, at the end, byte {at}");
    }
    program.mapping.release(0..LEN).unwrap();
    own
}

#[test]
fn a_server_that_is_killed_at_any_moment_loses_nothing_and_nobody_notices() {
    let mut random = Rng::with_seed(seed());
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, noise(LEN as usize, 1)).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 12));
    let done = AtomicBool::new(false);
    let (seeds, mut kills) = ([random.u64(..), random.u64(..)], 0);
    let written = thread::scope(|scope| {
        let work = |number: usize| {
            let (running, path, seed) = (&running, &path, seeds[number]);
            scope.spawn(move || write(running, path, number, 250, seed))
        };
        let writers = [work(0), work(1)];
        let killer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_micros(random.u64(..200_000)));
                running.kill_server();
                kills += 1;
            }
        });
        let written = writers.map(thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        written.map(Result::unwrap)
    });
    assert!(kills > 0);
    let client = running.connect();
    let file = client.open_path(&path).unwrap();
    let mut program = Program::on(&file, 1, true);
    program.mapping.sync().unwrap();
    program.mapping.acquire(0..LEN).unwrap();
    let (seen, on_disk) = (program.load(0, LEN), std::fs::read(&path).unwrap());
    for at in 0..LEN as usize {
        let expected = written[at / BLOCK as usize % 2][at];
        assert_eq!((seen[at], on_disk[at]), (expected, expected), "byte {at} after {kills} kills");
    }
    drop((program, file, client));
    running.end();
}

#[test]
fn pages_are_never_torn_whoever_dies() {
    let mut random = Rng::with_seed(seed());
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![0; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 12));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let client = running.connect();
            let mut program = Program::on(&client.open_path(&path).unwrap(), 0, true);
            for turn in 1..=120 {
                program.mapping.acquire(0..4 * PAGE).unwrap();
                program.store(0, &vec![turn; 4 * PAGE as usize]);
                program.mapping.release(0..4 * PAGE).unwrap();
            }
        });
        let reader = scope.spawn(|| {
            let client = running.connect();
            let mut program = Program::on(&client.open_path(&path).unwrap(), 1, false);
            let mut last = 0;
            while last < 120 {
                program.mapping.acquire(0..PAGE).unwrap();
                let seen = program.load(0, PAGE);
                program.mapping.release(0..PAGE).unwrap();
                assert!(seen.iter().all(|byte| *byte == seen[0]) && seen[0] >= last, "{} after {last}", seen[0]);
                last = seen[0];
            }
        });
        let killer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_micros(random.u64(..100_000)));
                running.kill_server();
            }
        });
        let ended = [writer.join(), reader.join()];
        done.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        ended.into_iter().for_each(Result::unwrap);
    });
    running.end();
}

const DYING: &str = "BIFOLIO_TEST_DYING";

/// Runs in a process of its own, which acquires everything, stores, releases some, and dies.
#[test]
fn the_client_that_dies() {
    let Ok(plan) = std::env::var(DYING) else { return };
    let (socket, path) = plan.split_once(' ').unwrap();
    let client = Client::connect(socket).unwrap();
    let mut program = Program::on(&client.open_path(path).unwrap(), 1, true);
    program.mapping.acquire(0..LEN).unwrap();
    let _pin = program.mapping.pin(0..LEN).unwrap();
    program.mapping.release(0..LEN).unwrap();
    program.mapping.acquire(0..100).unwrap();
    program.store(0, b"released");
    program.mapping.release(0..100).unwrap();
    program.mapping.acquire(0..LEN).unwrap();
    program.store(0, b"not");
    program.store(FRAME, b"not");
    // SAFETY: ends this process; nothing of it runs any more.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn what_a_dead_client_has_released_stays_and_all_else_of_it_goes() {
    for dies_with_server in [false, true] {
        let folder = folder();
        let path = folder.path().join("data");
        std::fs::write(&path, noise(LEN as usize, 1)).unwrap();
        let mut expected = noise(LEN as usize, 1);
        expected[..8].copy_from_slice(b"released");
        // No room for what the dead one holds and another file's frames.
        let running = Running::start(folder.path(), &options(folder.path(), 9));
        let mut dying = Command::new(std::env::current_exe().unwrap())
            .args(["crashes::the_client_that_dies", "--exact", "--nocapture"])
            .env(DYING, format!("{} {}", running.socket.display(), path.display()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(dying.wait().unwrap().signal(), Some(libc::SIGKILL));
        if dies_with_server {
            running.kill_server();
        }
        let client = running.connect();
        let file = client.open_path(&path).unwrap();
        for number in [0, 1] {
            let mut program = Program::on(&file, number, true);
            until("what it had not released has been taken back", || {
                program.mapping.acquire(0..LEN).unwrap();
                let seen = program.load(0, LEN);
                program.mapping.release(0..LEN).unwrap();
                seen == expected
            });
        }
        let other = folder.path().join("other");
        std::fs::write(&other, vec![7; 4 * FRAME as usize]).unwrap();
        let mut program = Program::on(&client.open_path(&other).unwrap(), 1, true);
        program.mapping.acquire(0..4 * FRAME).unwrap();
        assert!(program.load(0, 4 * FRAME).iter().all(|byte| *byte == 7));
        drop((program, file, client));
        running.end();
        assert!(std::fs::read(&path).unwrap() == expected);
    }
}

#[test]
fn what_a_server_is_asked_when_it_has_died_is_answered_by_the_next_and_leases_go_on() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 8));
    let client = running.connect();
    let file = client.open_path(&path).unwrap();
    let read = client.open(std::fs::File::open(&path).unwrap()).unwrap();
    let (mut program, mut reader) = (Program::on(&file, 0, true), Program::on(&read, 1, false));
    program.mapping.acquire(0..LEN).unwrap();
    reader.mapping.acquire(0..10).unwrap();
    program.store(7, b"held over");
    let pin = program.mapping.pin(0..20).unwrap();
    for _ in 0..3 {
        running.kill_server();
        // Acquired still, where it was.
        assert_eq!(program.load(7, 9), b"held over");
        assert_eq!(reader.load(0, 10), [1; 10]);
        // In memory that the next server has made for it, beside what it had.
        reader.mapping.acquire(PAGE..PAGE + 10).unwrap();
        assert_eq!((reader.load(0, 10), reader.load(PAGE, 10)), (vec![1; 10], vec![1; 10]));
        reader.mapping.release(PAGE..PAGE + 10).unwrap();
    }
    program.mapping.release(0..LEN).unwrap();
    drop(pin);
    reader.mapping.release(0..10).unwrap();
    reader.mapping.acquire(0..20).unwrap();
    assert_eq!(reader.load(7, 9), b"held over");
    drop((program, reader, read, file, client));
    running.end();
    assert_eq!(&std::fs::read(&path).unwrap()[7..16], b"held over");
}

/// A client takes a frame for one that it has mapped by its number. A server that began to number behind the frames that
/// were kept gave the number of one that was gone to the next, and the client went on looking at the old memory.
#[test]
fn frames_of_the_next_server_are_not_taken_for_those_that_are_gone() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; FRAME as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 8));
    let client = running.connect();
    let mut program = Program::on(&client.open_path(&path).unwrap(), 0, true);
    for turn in 2..6 {
        program.mapping.acquire(0..FRAME).unwrap();
        assert!(program.load(0, FRAME).iter().all(|byte| *byte == turn - 1), "before kill {turn}");
        program.mapping.release(0..FRAME).unwrap();
        program.mapping.advise(0..FRAME, bifolio_cache::Advice::DontNeed).unwrap();
        std::fs::write(&path, vec![turn; FRAME as usize]).unwrap();
        running.kill_server();
    }
    drop((program, client));
    running.end();
}

#[test]
fn the_end_of_a_daemon_writes_what_files_lack_also_while_servers_die() {
    let mut random = Rng::with_seed(seed());
    for _ in 0..3 {
        let folder = folder();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![1; FRAME as usize]).unwrap();
        let running = Running::start(folder.path(), &options(folder.path(), 8));
        let client = running.connect();
        let mut program = Program::on(&client.open_path(&path).unwrap(), 0, true);
        program.mapping.acquire(0..FRAME).unwrap();
        program.store(0, &vec![2; FRAME as usize]);
        program.mapping.release(0..FRAME).unwrap();
        running.kill_server();
        thread::sleep(Duration::from_micros(random.u64(..30_000)));
        running.end();
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 2));
        assert_eq!(program.mapping.acquire(0..1).unwrap_err().kind(), ErrorKind::Gone);
    }
}

#[test]
fn without_a_keeper_there_are_errors_and_what_is_mapped_stays() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![5; LEN as usize]).unwrap();
    let mut running = Running::start(folder.path(), &options(folder.path(), 8));
    let client = running.connect();
    let mut program = Program::on(&client.open_path(&path).unwrap(), 0, true);
    program.mapping.acquire(0..LEN).unwrap();
    running.keeper.kill().unwrap();
    running.keeper.wait().unwrap();
    assert_eq!(program.mapping.acquire(0..1).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(client.open_path(&path).unwrap_err().kind(), ErrorKind::Gone);
    assert!(program.load(0, LEN).iter().all(|byte| *byte == 5));
    program.store(0, b"its own");
    assert_eq!(program.mapping.release(0..LEN).unwrap_err().kind(), ErrorKind::Gone);
    // Another daemon at the same place knows nothing of it, and the file is as it was synced.
    drop(program);
    let again = Running::start(folder.path(), &options(folder.path(), 8));
    let other = again.connect();
    let mut program = Program::on(&other.open_path(&path).unwrap(), 0, true);
    program.mapping.acquire(0..LEN).unwrap();
    assert!(program.load(0, LEN).iter().all(|byte| *byte == 5));
    drop((program, other));
    again.end();
}
