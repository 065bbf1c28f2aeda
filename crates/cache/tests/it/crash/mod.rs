//! A process that works with a file ends, at any point of any operation, and another one goes on where it was: with a
//! region and frames whose descriptors somebody keeps.

mod broken;
pub(crate) mod keeper;
mod torn;

use crate::faults::scenario::{LEN, Truth, run};
use crate::support::{Draw, FRAME, PAGE, Program, World, host, options, random, routers};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{Cache, CacheOptions, Keeper, Mode};
use bifolio_device::Device;
use keeper::{Holder, socket};
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Room for two windows of a frame with twins, and for what somebody holds all the time.
const BUDGET_FRAMES: u64 = 6;

/// Who is there whatever becomes of the process that serves him.
const LIVING: u64 = 1;

/// When the process that works ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// At the n-th time that a point is reached.
    At(Point, u32),
    /// Some time after it, by a thread of its own: in the midst of something.
    After(Point, u32, Duration),
    /// At the n-th point, whichever that is.
    Point(u32),
    Never,
}

fn die() -> ! {
    // SAFETY: ends this process; nothing of it runs any more.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("a process that was killed");
}

fn arm(end: End) {
    let mut times = 0;
    fault::inject(move |point| {
        let (wanted, time) = match end {
            End::At(wanted, time) | End::After(wanted, time, _) => (wanted, time),
            End::Point(time) => (point, time),
            End::Never => return Ok(()),
        };
        times += u32::from(point == wanted);
        if point != wanted || times != time {
            return Ok(());
        }
        let End::After(_, _, after) = end else { die() };
        thread::spawn(move || {
            let begin = Instant::now();
            while begin.elapsed() < after {
                std::hint::spin_loop();
            }
            die();
        });
        Ok(())
    });
}

fn cache(devices: &[Device], options: CacheOptions, keeper: &Arc<Holder>) -> Cache {
    Cache::kept(&routers(devices), options, Arc::clone(keeper) as Arc<dyn Keeper>).unwrap()
}

/// The program, while somebody holds what he has stored and not released.
fn work(world: &World, truth: &Truth) {
    let file = world.open();
    let of_living = file.for_client(LIVING).map_on(1, 0..LEN, true).unwrap();
    let mut living = Program::new(&world.devices[1], of_living);
    truth.living().into_iter().for_each(|byte| _ = living.mapping.acquire(byte).unwrap());
    truth.live(|at, value| living.store(at, &[value]));
    run(world, truth);
    truth.leave();
    drop(living);
}

const PLAN: &str = "BIFOLIO_TEST_CRASH";

/// Another process, which does `what` and ends at `end`; what it has kept is the keeper's.
fn in_another_process(what: &str, folder: &Path, options: &CacheOptions, end: End, keeper: &Holder) -> ExitStatus {
    let number = |point: Point| Point::ALL.iter().position(|other| *other == point).unwrap();
    let end = match end {
        End::At(point, time) => format!("{} {time} 0", number(point)),
        End::After(point, time, after) => format!("{} {time} {}", number(point), after.as_nanos()),
        End::Point(time) => format!("1000 {time} 0"),
        End::Never => "1001 0 0".to_owned(),
    };
    let eager = u8::from(options.mode == Mode::Eager);
    let plan = format!("{what} {end} {} {eager} {}", options.page_bytes, folder.display());
    let (ours, theirs) = socket();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["crash::the_process_that_ends", "--exact", "--nocapture"])
        .env(PLAN, plan)
        .stdin(theirs)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    keeper.serve(&ours);
    child.wait().unwrap()
}

/// Runs in a process of its own.
#[test]
fn the_process_that_ends() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let mut words = plan.splitn(7, ' ');
    let what = words.next().unwrap();
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let (point, time, nanos, page_bytes, is_eager) = (number(), number() as u32, number(), number(), number() == 1);
    let folder = Path::new(words.next().unwrap());
    let mode = if is_eager { Mode::Eager } else { Mode::Lazy };
    // SAFETY: the other end of a socket, which is nobody else's here.
    let socket: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(libc::dup(0)) };
    let keeper = Arc::new(Holder::of(socket, [LIVING]));
    let end = match (point, nanos) {
        (1001, _) => End::Never,
        (1000, _) => End::Point(time),
        (point, 0) => End::At(Point::ALL[point as usize], time),
        (point, nanos) => End::After(Point::ALL[point as usize], time, Duration::from_nanos(nanos)),
    };
    let devices = [host(0), host(1)];
    let frames = if what == "work" || what == "recover" { BUDGET_FRAMES } else { torn::BUDGET_FRAMES };
    arm(end);
    let world = World::over(cache(&devices, options(page_bytes, frames, mode), &keeper), &devices, folder);
    match what {
        "work" => work(&world, &Truth::in_folder(folder)),
        // As a process that ends without a word.
        "recover" => std::mem::forget(world.open()),
        case => torn::run(case, &world),
    }
    // SAFETY: ends this process.
    unsafe { libc::_exit(0) };
}

/// How often the program comes to each point.
fn count(page_bytes: u64, mode: Mode) -> HashMap<Point, u32> {
    let devices = [host(0), host(1)];
    let folder = new_folder();
    let counts = Rc::new(RefCell::new(HashMap::new()));
    let seen = Rc::clone(&counts);
    fault::inject(move |point| {
        *seen.borrow_mut().entry(point).or_default() += 1;
        Ok(())
    });
    let keeper = Arc::new(Holder::new([LIVING]));
    let world =
        World::over(cache(&devices, options(page_bytes, BUDGET_FRAMES, mode), &keeper), &devices, folder.path());
    work(&world, &Truth::in_folder(folder.path()));
    fault::cease();
    assert_eq!(keeper.regions(), 0, "a file that nobody has open any more");
    counts.take()
}

fn new_folder() -> tempfile::TempDir {
    let folder = crate::support::folder();
    std::fs::write(folder.path().join("data"), vec![0; LEN as usize]).unwrap();
    folder
}

/// A CPU process writes to the file while nobody serves it: its bytes are the newest.
fn write_meanwhile(folder: &Path, truth: &Truth) {
    let file = std::fs::File::options().write(true).open(folder.join("data")).unwrap();
    truth.write_as_cpu(|at, value| file.write_all_at(&[value], at).unwrap());
}

/// Goes on where another process has ended, and looks at everything.
fn check(folder: &Path, options: CacheOptions, keeper: &Arc<Holder>, what: &str) {
    let devices = [host(0), host(1)];
    let truth = Truth::in_folder(folder);
    let world = World::over(cache(&devices, options, keeper), &devices, folder);
    let file = world.open();
    world.cache.forget_left_frames();
    assert!(file.is_sound(), "{what}");
    let mut seen = vec![0xa5; LEN as usize];
    assert_eq!(file.read(0, &mut seen).unwrap() as u64, LEN, "{what}");
    truth.check_after_crash(&seen, what);
    // What the living has stored is where he has stored it, and is released now.
    let living = truth.lives().then(|| {
        let mapping = file.for_client(LIVING).resume(1, 0..LEN, truth.living()).unwrap();
        let mut living = Program::new(&devices[1], mapping);
        truth.check_living(|at| living.load(at, 1)[0], what);
        truth.living().into_iter().for_each(|byte| _ = living.mapping.release(byte).unwrap());
        living
    });
    // All see the same, and go on.
    let frames = (0..LEN).step_by(FRAME as usize).map(|start| start..(start + FRAME).min(LEN));
    for (number, device) in devices.iter().enumerate() {
        let mut program = Program::new(device, file.map_on(number, 0..u64::MAX, true).unwrap());
        for frame in frames.clone() {
            program.mapping.acquire(frame.clone()).unwrap();
            let here = program.load(frame.start, frame.end - frame.start);
            let mut of_cpu = vec![0xa5; here.len()];
            file.read(frame.start, &mut of_cpu).unwrap();
            // Where he has stored some of it, and nobody knows of which he had, it is on his device alone.
            let is_his = |at: &usize| {
                living.is_none() && truth.living().contains(&(frame.start + *at as u64..frame.start + *at as u64 + 1))
            };
            let wrong = (0..here.len()).find(|at| here[*at] != of_cpu[*at] && !is_his(at));
            let wrong = wrong.map(|at| (frame.start + at as u64, here[at], of_cpu[at]));
            assert_eq!(wrong, None, "{what}: device {number} and a CPU");
            truth.check_part(&here, frame.start, what);
            program.store(frame.start + 77, &[number as u8 + 1]);
            program.mapping.release(frame).unwrap();
        }
    }
    file.sync().unwrap();
    let mut content = world.file();
    for start in (0..LEN).step_by(FRAME as usize) {
        assert_eq!(std::mem::take(&mut content[start as usize + 77]), devices.len() as u8, "{what}");
    }
    truth.check_after_crash(&content, what);
    assert!(file.is_sound(), "{what}");
    drop((living, file, world));
    assert_eq!((keeper.regions(), keeper.frames(0), keeper.frames(1)), (0, vec![], vec![]), "{what}");
}

/// Ends a process at a point, or some time after it, and goes on; false if it never came to that.
fn crash(page_bytes: u64, mode: Mode, end: End, ends_again: Option<u32>, what: &str) -> bool {
    let (folder, options) = (new_folder(), options(page_bytes, BUDGET_FRAMES, mode));
    let keeper = Arc::new(Holder::new([LIVING]));
    let status = in_another_process("work", folder.path(), &options, end, &keeper);
    if status.signal() != Some(libc::SIGKILL) {
        assert!(status.success(), "{what}: {status:?}");
        return false;
    }
    write_meanwhile(folder.path(), &Truth::in_folder(folder.path()));
    if let Some(point) = ends_again {
        for end in [End::Point(point), End::Never] {
            let status = in_another_process("recover", folder.path(), &options, end, &keeper);
            assert!(status.signal() == Some(libc::SIGKILL) || status.success(), "{what}: {status:?}");
        }
    }
    check(folder.path(), options, &keeper, what);
    true
}

#[test]
fn where_a_process_ends_at_any_point_another_one_goes_on() {
    let mut random = random();
    let most = std::env::var("BIFOLIO_FAULT_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for (page_bytes, mode) in [(PAGE, Mode::Lazy), (64 << 10, Mode::Eager)] {
        let counts = count(page_bytes, mode);
        for point in Point::ALL {
            let Some(times) = counts.get(point) else { continue };
            for _ in 0..most.min(*times) {
                let time = 1 + random.below(u64::from(*times)) as u32;
                let ends_again = (random.below(2) == 0).then(|| 1 + random.below(12) as u32);
                let what = format!("ended at {point:?}, {time} of {times}, {mode:?}, and again at {ends_again:?}");
                println!("{what}");
                crash(page_bytes, mode, End::At(*point, time), ends_again, &what);
            }
        }
    }
}

/// What was left stays as it is until somebody can go on with it.
#[test]
fn after_an_error_in_going_on_it_is_tried_again() {
    let (page_bytes, mode) = (PAGE, Mode::Lazy);
    for point in [Point::HomeRun, Point::ReleaseNoted, Point::MergeBegun] {
        let (folder, options) = (new_folder(), options(page_bytes, BUDGET_FRAMES, mode));
        let keeper = Arc::new(Holder::new([LIVING]));
        let status = in_another_process("work", folder.path(), &options, End::At(point, 3), &keeper);
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{point:?}");
        let devices = [host(0), host(1)];
        let mut failures = 0;
        loop {
            let mut left = failures + 1;
            fault::inject(move |_| {
                left -= 1;
                if left == 0 { Err(std::io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
            });
            let world = World::over(cache(&devices, options, &keeper), &devices, folder.path());
            let opened = world.cache.open(&world.path);
            fault::cease();
            if opened.is_ok() {
                // Nobody has worked with it, and it ends as it was found.
                drop(opened);
                break;
            }
            failures += 1;
            assert_eq!(keeper.regions(), 1, "{point:?}");
        }
        assert!(failures > 0, "{point:?}");
        let truth = Truth::in_folder(folder.path());
        truth.check_after_crash(&std::fs::read(folder.path().join("data")).unwrap(), &format!("{point:?}, {failures}"));
    }
}

/// In the midst of copies, kernels and writes.
#[test]
fn where_a_process_ends_at_any_moment_another_one_goes_on() {
    let mut random = random();
    let most = std::env::var("BIFOLIO_FAULT_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let before = [Point::MergeRead, Point::BaseKept, Point::ReleaseNoted, Point::FlushRead, Point::AcquireCompared];
    for (page_bytes, mode) in [(PAGE, Mode::Lazy), (64 << 10, Mode::Eager)] {
        let counts = count(page_bytes, mode);
        for point in before {
            let Some(times) = counts.get(&point) else { continue };
            for _ in 0..4 * most {
                let time = 1 + random.below(u64::from(*times)) as u32;
                let after = Duration::from_nanos(1 + random.below(400_000));
                let what = format!("ended {after:?} after {point:?}, {time} of {times}, {mode:?}");
                println!("{what}");
                crash(page_bytes, mode, End::After(point, time, after), None, &what);
            }
        }
    }
}
