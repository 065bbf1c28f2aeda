//! The last close of a file whose content the disk does not take: who is told, what becomes of it, and what is said when
//! nobody is left.

use crate::losses::{losable, lose_after};
use crate::support::{FRAME, PAGE, Program, World, folder, host, options};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::process::address;
use bifolio_cache::{CacheOptions, CachedFile, ErrorKind, Mode};
use bifolio_testing::until;
use std::io;
use std::process::Command;
use std::time::Duration;

/// The disk takes nothing that this thread writes.
fn fail() {
    fault::inject(|point| match point {
        Point::HomeOpened => Err(io::Error::from_raw_os_error(libc::EIO)),
        _ => Ok(()),
    });
}

fn world(write_back_after: Duration) -> World {
    let options = CacheOptions { write_back_after, ..options(PAGE, 16, Mode::Lazy) };
    World::new(&[host(0), host(1)], options, &vec![0; 2 * FRAME as usize])
}

/// Releases a byte of the first page, and has fetched all else.
fn change(world: &World, file: &CachedFile) -> Program {
    let mut program = Program::on(world, file, 0);
    program.mapping.acquire(0..2 * FRAME).unwrap();
    program.store(10, &[7]);
    program.mapping.release(0..2 * FRAME).unwrap();
    program
}

fn assert_told(error: &bifolio_cache::Error) {
    let text = error.to_string();
    for word in ["data", "bytes 0 to 4096 (1 page)", "cannot be written", "os error 5", "goes on trying"] {
        assert!(text.contains(word), "\"{word}\" is not in: {text}");
    }
    assert_eq!((error.kind(), error.os_code()), (ErrorKind::Write, Some(libc::EIO)));
}

/// The content is there for who opens the file again, with no more memory than it takes, and is written when that works.
fn assert_kept(world: &World) {
    let stats = world.cache.stats();
    assert_eq!((stats[0].pending, stats[0].used_bytes), (1, 3 * FRAME));
    let file = world.open();
    let mut seen = [0; 1];
    file.read(10, &mut seen).unwrap();
    assert_eq!((seen, world.file()[10]), ([7], 0));
    assert_eq!(file.sync().unwrap_err().os_code(), Some(libc::EIO));
    fault::cease();
    file.sync().unwrap();
    assert_eq!(world.file()[10], 7);
    file.close().unwrap();
    assert_eq!(world.cache.stats()[0].used_bytes, 0);
}

/// Symptom: what was released and could not be written at the last close was gone, and nobody was told.
#[test]
fn the_last_who_closes_a_file_is_told_what_cannot_be_written() {
    let world = world(Duration::MAX);
    let (file, other) = (world.open(), world.open());
    let mut program = change(&world, &file);
    fail();
    // There are others, who will be told.
    program.mapping.close().unwrap();
    drop(program);
    other.close().unwrap();
    assert_told(&file.close().unwrap_err());
    assert_kept(&world);
}

#[test]
fn a_mapping_that_is_the_last_to_hold_its_file_is_told_as_well() {
    let world = world(Duration::MAX);
    let mut program = change(&world, &world.open());
    fail();
    assert_told(&program.mapping.close().unwrap_err());
    assert_eq!(program.mapping.close().unwrap_err().kind(), ErrorKind::BadUse, "it is closed");
    drop(program);
    assert_kept(&world);
}

#[test]
fn what_nobody_can_be_told_of_stays_with_the_cache() {
    let world = world(Duration::MAX);
    let program = change(&world, &world.open());
    fail();
    drop(program);
    assert_kept(&world);
}

/// Also where only the last of several pages cannot be written, or the first attempt fails.
#[test]
fn an_error_that_goes_away_in_the_middle_of_a_close_is_none() {
    let world = world(Duration::MAX);
    let mut program = change(&world, &world.open());
    let mut times = 0;
    fault::inject(move |point| {
        times += u32::from(point == Point::HomeOpened);
        if point == Point::HomeOpened && times == 1 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    });
    program.mapping.close().unwrap();
    fault::cease();
    assert_eq!(world.file()[10], 7);
}

#[test]
fn it_is_written_some_time_later_where_nobody_opens_the_file_again() {
    let world = world(Duration::from_millis(20));
    let file = world.open();
    let mut program = Program::on(&world, &file, 0);
    program.mapping.acquire(0..PAGE).unwrap();
    program.store(10, &[7]);
    fail();
    // This thread's errors are not those of the one that writes back.
    program.mapping.publish(&(0..PAGE)).unwrap();
    drop((program, file));
    until("it is in the file, and its memory is free", || {
        world.file()[10] == 7 && world.cache.stats()[0].used_bytes == 0
    });
    fault::cease();
    let file = world.open();
    file.sync().unwrap();
    file.close().unwrap();
}

/// The thread that writes back and who opens the file again meet: nothing is lost, and nothing is taken from who has it.
#[test]
fn what_is_kept_is_opened_again_while_it_is_written() {
    let world = world(Duration::ZERO);
    for round in 1..=60_u8 {
        let file = world.open();
        let mut program = Program::on(&world, &file, usize::from(round % 2));
        let at = u64::from(round);
        program.mapping.acquire(0..PAGE).unwrap();
        assert_eq!(program.load(at - 1, 2), [round - 1, 0]);
        program.store(at, &[round]);
        program.mapping.release(0..PAGE).unwrap();
        drop(file);
        fail();
        // It may be written already.
        if let Err(error) = program.mapping.close() {
            assert_told(&error);
        }
        drop(program);
        fault::cease();
    }
    let file = world.open();
    file.sync().unwrap();
    let content = world.file();
    assert!((0..=60).all(|at| content[at] == at as u8));
    file.close().unwrap();
    assert!(world.cache.stats().iter().all(|stats| (stats.pending, stats.used_bytes) == (0, 0)));
}

/// What is lost while nobody holds the file is told to who opens it again.
#[test]
fn a_device_that_is_lost_takes_what_could_not_be_written() {
    let (devices, faults) = losable(1);
    let options = CacheOptions { write_back_after: Duration::MAX, ..options(PAGE, 16, Mode::Lazy) };
    let world = World::new(&devices, options, &vec![0; 2 * FRAME as usize]);
    let program = change(&world, &world.open());
    fail();
    drop(program);
    fault::cease();
    lose_after(&faults[0], 0);
    let file = world.open();
    let error = file.sync().unwrap_err().to_string();
    assert!(error.contains("host:0 is lost") && error.contains("bytes 0 to 4096 (1 page)"), "{error}");
    file.sync().unwrap();
    file.close().unwrap();
}

const ENDING: &str = "BIFOLIO_TEST_ENDING";

/// At the end of a cache, or of a process with a mapping by address: one sentence.
#[test]
fn what_is_lost_with_the_process_is_said_on_standard_error() {
    for ending in ["cache", "leak", "address"] {
        let folder = folder();
        std::fs::write(folder.path().join("data"), vec![0; PAGE as usize]).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["closes::the_process_that_ends", "--exact", "--nocapture"])
            .env(ENDING, format!("{ending} {}", folder.path().display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{ending}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let said: Vec<_> = text.lines().filter(|line| line.starts_with("bifolio: ")).collect();
        let [sentence] = said[..] else { panic!("{ending}: {text}") };
        for word in ["/data: ", "bytes 0 to 4096 (1 page)", "is lost", "File too large"] {
            assert!(sentence.contains(word), "{ending}: \"{word}\" is not in: {sentence}");
        }
        assert_eq!(std::fs::read(folder.path().join("data")).unwrap()[10], 0);
    }
}

/// This process may not write to any file any more, memory of host devices included.
fn forbid_writing() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: numbers. It is an error then, and no signal.
    let forbidden = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none)
    };
    assert_eq!(forbidden, 0);
}

/// Runs in a process of its own, which ends when it may not write to any file.
#[test]
fn the_process_that_ends() {
    let Ok(plan) = std::env::var(ENDING) else { return };
    let (ending, folder) = plan.split_once(' ').unwrap();
    if ending == "address" {
        let data = std::fs::File::options().read(true).write(true).open(format!("{folder}/data")).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&data);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | address::MAP_ONGPU);
        let ptr = address::mmap(PAGE, protection, flags, fd, 0, "host:0".parse().unwrap()).unwrap();
        address::acquire(ptr, PAGE).unwrap();
        // SAFETY: the page is acquired, and host memory.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(ptr.0 as usize + 10).write(7) };
        address::release(ptr, PAGE).unwrap();
        forbid_writing();
        return;
    }
    let world = World::in_folder(&[host(0)], options(PAGE, 16, Mode::Lazy), folder.as_ref());
    let mut program = Program::on(&world, &world.open(), 0);
    program.mapping.acquire(0..PAGE).unwrap();
    program.store(10, &[7]);
    program.mapping.release(0..PAGE).unwrap();
    forbid_writing();
    let error = program.mapping.close().unwrap_err();
    assert_eq!(error.os_code(), Some(libc::EFBIG), "{error}");
    drop(program);
    if ending == "leak" {
        std::mem::forget(world);
    }
}
