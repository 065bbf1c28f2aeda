//! What others do to a file is seen, whatever file system it is on: by looking at it where that tells of everything, by
//! comparing it where not. Others are other processes, and other caches of this one.

use crate::mounts::{KINDS, Mounted};
use crate::support::{FRAME, HostMapping, PAGE, Program, World, host, is_told_of_threads, options, until_sure};
use bifolio_cache::Mode;
use bifolio_cache::fault::{self, Point};
use bifolio_testing::skip;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const STRANGER: &str = "BIFOLIO_TEST_STRANGER";

/// Another process, which has a file mapped and nothing of it open, does as it is told, and says when it is done.
struct Stranger {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Stranger {
    fn new(path: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["detection::the_process_that_is_a_stranger", "--exact", "--nocapture"])
            .env(STRANGER, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, orders, answers: BufReader::new(answers) }
    }

    fn obey(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        while line != format!("done: {order}\n") {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "{order}: the stranger has ended");
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs in a process of its own.
#[test]
fn the_process_that_is_a_stranger() {
    let Some(path) = std::env::var_os(STRANGER) else { return };
    let path = Path::new(&path);
    let mut mapped = None;
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let words: Vec<&str> = order.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "map" => mapped = Some(HostMapping::new(path, 5000)),
            "load" => _ = mapped.as_ref().unwrap().load(number(1)),
            "store" => mapped.as_ref().unwrap().store(number(1), number(2) as u8),
            "unmap" => mapped = None,
            "write" => {
                File::options().write(true).open(path).unwrap().write_all_at(&[number(2) as u8], number(1)).unwrap();
            }
            "cut" => {
                let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
                // SAFETY: the name is a C string. The file is not opened for it.
                assert_eq!(unsafe { libc::truncate(name.as_ptr(), number(1) as i64) }, 0);
            }
            other => panic!("no such order: {other}"),
        }
        println!("done: {order}");
    }
}

/// Runs a test on each kind of file system, with a file of 5,000 zeroes.
fn on_each_kind(test: impl Fn(&World, &str) + Send + Sync) {
    for kind in KINDS {
        // Of each the thread has a mount namespace of its own.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let Some(mounted) = Mounted::new(kind) else { return };
                println!("{}", kind.name);
                std::fs::write(mounted.path().join("data"), [0; 5000]).unwrap();
                test(&World::in_folder(&[host(0)], options(PAGE, 8, Mode::Lazy), mounted.path()), kind.name);
            });
        });
    }
}

/// A program that has acquired the file, and whose cache is as sure of it as it can be.
fn mapped(world: &World) -> Program {
    let mut program = Program::on(world, &world.open(), 0);
    program.mapping.acquire(0..5000).unwrap();
    program.mapping.release(0..5000).unwrap();
    until_sure(&mut program.mapping, 0..5000);
    program
}

fn check(program: &mut Program, at: u64, value: u8, what: &str) {
    program.mapping.acquire(0..5000).unwrap();
    assert_eq!(program.load(at, 1), [value], "{what}");
    program.mapping.release(0..5000).unwrap();
}

/// Symptom: on overlayfs, what a process had stored was not seen. Cause: its mapping, whose descriptor was closed, holds
/// the file below the overlay, so that the read lease was given; and a store to a page that is dirty moves no time.
#[test]
fn second_stores_of_a_stranger_whose_descriptor_is_closed_are_seen() {
    on_each_kind(|world, kind| {
        let mut program = mapped(world);
        let mut stranger = Stranger::new(&world.path);
        stranger.obey("map");
        for value in 1..5 {
            for at in [10, 11, 4999] {
                stranger.obey(&format!("store {at} {value}"));
                check(&mut program, at, value, &format!("{kind}: store {value} at {at}"));
            }
        }
        stranger.obey("store 10 9");
        stranger.obey("unmap");
        check(&mut program, 10, 9, &format!("{kind}: the last store"));
    });
}

/// Stores of a mapping that comes and goes between two acquires, to pages that were loaded first, or are dirty. In memory
/// (tmpfs) such stores move no time, and who has made them does not refuse a lease any more.
#[test]
fn stores_of_a_mapping_that_came_and_went_are_seen() {
    on_each_kind(|world, kind| {
        let mut program = mapped(world);
        let mut stranger = Stranger::new(&world.path);
        for value in 1..5 {
            if value % 2 == 0 {
                stranger.obey("write 5 1");
                check(&mut program, 5, 1, kind);
            }
            for order in ["map", "load 10", &format!("store 10 {value}"), "unmap"] {
                stranger.obey(order);
            }
            check(&mut program, 10, value, &format!("{kind}: store {value}"));
        }
    });
}

/// Symptom: of two writes within a second, or a tick of a clock, the second was not seen. Cause: whether each has times of
/// its own was judged by the kernel's version, and there are file systems that give none (ext2), or no nanoseconds.
#[test]
fn writes_that_follow_each_other_at_once_are_seen() {
    on_each_kind(|world, kind| {
        let mut program = mapped(world);
        let mut stranger = Stranger::new(&world.path);
        for value in 1..100 {
            stranger.obey(&format!("write 10 {value}"));
            check(&mut program, 10, value, &format!("{kind}: write {value}"));
        }
        for size in [10, 5000] {
            stranger.obey(&format!("cut {size}"));
        }
        check(&mut program, 10, 0, &format!("{kind}: a cut"));
    });
}

/// A report says when comparing is because of the file system, and only then nothing else ends it.
#[test]
fn a_report_tells_where_every_acquire_compares() {
    on_each_kind(|world, kind| {
        let mut program = mapped(world);
        let is_trusted = ["ext", "xfs", "btrfs"].iter().any(|name| kind.starts_with(name));
        let report = program.mapping.acquire(0..5000).unwrap();
        assert_eq!((report.always_compared, report.compared), (!is_trusted, if is_trusted { 0 } else { 2 }), "{kind}");
        // Also after a write of the cache's own.
        program.store(7, &[7]);
        program.mapping.sync().unwrap();
        let compared = program.mapping.acquire(0..5000).unwrap().compared;
        assert!(is_trusted || compared == 2, "{kind}: {compared}");
    });
}

/// A file's cache, a program that has released a byte, and the cache is sure of the file.
fn about_to_write(world: &World) -> (bifolio_cache::CachedFile, Program) {
    let file = world.open();
    let mut program = Program::on(world, &file, 0);
    program.mapping.acquire(0..5000).unwrap();
    program.mapping.release(0..5000).unwrap();
    until_sure(&mut program.mapping, 0..5000);
    program.mapping.acquire(0..5000).unwrap();
    program.store(10, &[1]);
    program.mapping.release(0..5000).unwrap();
    (file, program)
}

/// Does something once, when an operation of this thread comes to a point.
fn once_at(point: Point, what: impl FnOnce() + 'static) {
    let mut what = Some(what);
    fault::inject(move |reached| {
        if reached == point
            && let Some(what) = what.take()
        {
            what();
        }
        Ok(())
    });
}

/// Symptom: what one cache of a process had written, another did not see. Cause: while it wrote to the file itself, it
/// was told of others who opened the file by the number of their process, and both had the same.
#[test]
fn another_cache_of_the_process_is_a_stranger() {
    for point in [Point::HomeOpened, Point::HomeRun, Point::HomeLooked] {
        for comes_late in [false, true] {
            let world = World::new(&[host(0)], options(PAGE, 8, Mode::Lazy), &[0; 5000]);
            let other = World::in_folder(&[host(1)], options(PAGE, 8, Mode::Lazy), world.folder());
            let before = (!comes_late).then(|| other.open());
            let (file, mut program) = about_to_write(&world);
            // Of another thread, as points are reached by this one.
            once_at(point, move || {
                std::thread::spawn(move || before.unwrap_or_else(|| other.open()).write(20, &[2]).unwrap())
                    .join()
                    .unwrap();
            });
            file.sync().unwrap();
            fault::cease();
            check(&mut program, 20, 2, &format!("{point:?}, late {comes_late}"));
            assert_eq!((world.file()[10], world.file()[20]), (1, 2));
            // It has gone, and the cache is as sure as ever.
            until_sure(&mut program.mapping, 0..5000);
        }
    }
}

/// A process that opens the file in the middle of a write, and one that cuts it by its name, which opens nothing.
#[test]
fn a_stranger_in_the_middle_of_a_write_is_seen() {
    for orders in [&["write 20 2"][..], &["cut 15", "cut 5000"]] {
        let world = World::new(&[host(0)], options(PAGE, 8, Mode::Lazy), &[7; 5000]);
        let (file, mut program) = about_to_write(&world);
        let mut stranger = Stranger::new(&world.path);
        once_at(Point::HomeRun, move || orders.iter().for_each(|order| stranger.obey(order)));
        file.sync().unwrap();
        fault::cease();
        let content = world.file();
        assert_eq!((content[10], content[20]), (1, if orders.len() == 1 { 2 } else { 0 }));
        check(&mut program, 20, content[20], &format!("{orders:?}"));
    }
}

/// Symptom: what a thread of the process had written past the cache, a device and CPUs did not see for as long as the
/// cache wrote to the file. Cause: it was told of those who opened the file by the number of their process alone.
#[test]
fn a_thread_that_comes_in_the_middle_of_a_write_is_seen_at_once() {
    let world = World::new(&[host(0)], options(PAGE, 8, Mode::Lazy), &vec![7; (FRAME + 5000) as usize]);
    let (file, _program) = about_to_write(&world);
    let mut other = Program::on(&world, &file, 0);
    let part = FRAME..FRAME + 5000;
    other.mapping.acquire(part.clone()).unwrap();
    other.mapping.release(part.clone()).unwrap();
    until_sure(&mut other.mapping, part.clone());
    let (path, (said, seen)) = (world.path.clone(), std::sync::mpsc::channel());
    once_at(Point::HomeRun, move || {
        let comes = move || {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&[2], FRAME + 20).unwrap();
            other.mapping.acquire(part).unwrap();
            said.send((other.load(FRAME + 20, 1), file)).unwrap();
        };
        std::thread::spawn(comes).join().unwrap();
    });
    file.sync().unwrap();
    fault::cease();
    assert_eq!(seen.recv().unwrap().0, [2]);
}

/// The same of one that has come and gone when the write ends.
#[test]
fn a_thread_that_came_and_went_in_the_middle_of_a_write_is_seen() {
    let world = World::new(&[host(0)], options(PAGE, 8, Mode::Lazy), &[7; 5000]);
    let (file, mut program) = about_to_write(&world);
    let path = world.path.clone();
    once_at(Point::HomeRun, move || {
        let comes = move || File::options().write(true).open(path).unwrap().write_all_at(&[2], 20).unwrap();
        std::thread::spawn(comes).join().unwrap();
    });
    file.sync().unwrap();
    fault::cease();
    if is_told_of_threads() {
        check(&mut program, 20, 2, "who came and went");
    } else {
        skip("who opens a file is told thread by thread only to who may administer the system (CAP_SYS_ADMIN)");
    }
    // It has gone, and the cache is as sure as ever.
    until_sure(&mut program.mapping, 0..5000);
}
