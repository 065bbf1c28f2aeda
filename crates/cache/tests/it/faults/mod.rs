//! What goes wrong between any two steps of any operation: an error after which the program tries again, or the
//! end of the process.

pub(crate) mod scenario;
use crate::support::{Draw, PAGE, World, host, options, random};
use bifolio_cache::Mode;
use bifolio_cache::fault::{self, Point};
use bifolio_device::Device;
use scenario::{LEN, Truth, run};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::rc::Rc;

/// Room for the content and the twins of two windows of a frame, or for one and what it has released.
const BUDGET_FRAMES: u64 = 4;

/// Asks for something at the n-th time that a point is reached.
fn at_the(wanted: Point, time: u32, mut what: impl FnMut() -> io::Result<()> + 'static) {
    let mut times = 0;
    fault::inject(move |point| {
        times += u32::from(point == wanted);
        if point == wanted && times == time { what() } else { Ok(()) }
    });
}

/// How often the scenario comes to each point.
fn count(devices: &[Device], page_bytes: u64, mode: Mode) -> HashMap<Point, u32> {
    let counts = Rc::new(RefCell::new(HashMap::new()));
    let seen = Rc::clone(&counts);
    fault::inject(move |point| {
        *seen.borrow_mut().entry(point).or_default() += 1;
        Ok(())
    });
    scenario_of(devices, page_bytes, mode);
    fault::cease();
    counts.take()
}

fn scenario_of(devices: &[Device], page_bytes: u64, mode: Mode) {
    let world = World::new(devices, options(page_bytes, BUDGET_FRAMES, mode), &vec![0; LEN as usize]);
    run(&world, &Truth::in_folder(world.folder()));
}

#[test]
fn after_an_error_at_any_point_a_retry_succeeds_and_nothing_is_lost() {
    let mut random = random();
    for devices in crate::support::sets(2) {
        let mut reached: HashMap<Point, u32> = HashMap::new();
        for (page_bytes, mode) in [(PAGE, Mode::Lazy), (64 << 10, Mode::Eager)] {
            let counts = count(&devices, page_bytes, mode);
            for point in Point::ALL {
                let times = counts.get(point).copied().unwrap_or(0);
                *reached.entry(*point).or_default() += times;
                // By hand more of them.
                let most = std::env::var("BIFOLIO_FAULT_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
                for _ in 0..most.min(times) {
                    let time = 1 + random.below(u64::from(times)) as u32;
                    println!("{point:?}, {time} of {times}, {mode:?}");
                    let code = [libc::EIO, libc::ENOSPC][random.below(2) as usize];
                    at_the(*point, time, move || Err(io::Error::from_raw_os_error(code)));
                    scenario_of(&devices, page_bytes, mode);
                    fault::cease();
                }
            }
        }
        // A cut, going on after the end of a process, and versions of readers have tests of their own (`mishaps`, `crash`,
        // `apart`).
        let cut = [Point::CutFound, Point::CutBlanked, Point::Recovered];
        let elsewhere = [&cut[..], &[Point::AsideCopied, Point::AsideLeft, Point::AsideExchanged]].concat();
        let missed = Point::ALL.iter().filter(|point| reached[point] == 0 && !elsewhere.contains(point));
        let missed: Vec<_> = missed.collect();
        assert!(missed.is_empty(), "the scenario never comes to {missed:?}");
    }
}

const KILL: &str = "BIFOLIO_TEST_KILL";

#[test]
fn a_process_that_dies_at_any_point_leaves_old_or_released_bytes_and_all_that_was_synced() {
    let mut random = random();
    let devices = [host(0), host(1)];
    for (page_bytes, mode) in [(PAGE, Mode::Eager), (64 << 10, Mode::Lazy)] {
        let counts = count(&devices, page_bytes, mode);
        for point in Point::ALL {
            let Some(times) = counts.get(point) else { continue };
            let mut time = 1 + random.below(u64::from(*times)) as u32;
            let number = Point::ALL.iter().position(|other| other == point).unwrap();
            let (folder, what) = loop {
                let what = format!("killed at {point:?}, {time} of {times}, {mode:?}, pages of {page_bytes}");
                let folder = crate::support::folder();
                std::fs::write(folder.path().join("data"), vec![0; LEN as usize]).unwrap();
                let eager = u8::from(mode == Mode::Eager);
                let plan = format!("{number} {time} {page_bytes} {eager} {}", folder.path().display());
                let status = Command::new(std::env::current_exe().unwrap())
                    .args(["faults::the_process_that_dies", "--exact", "--nocapture"])
                    .env(KILL, plan)
                    .output()
                    .unwrap();
                if status.status.signal() == Some(libc::SIGKILL) {
                    break (folder, what);
                }
                // Threads in the background come to some points more often in one run than in another.
                assert!(status.status.success() && time > 1, "{what}: {status:?}");
                println!("{what}: not so often this time");
                time /= 2;
            };
            let truth = Truth::in_folder(folder.path());
            truth.check_after_death(&std::fs::read(folder.path().join("data")).unwrap(), &what);
        }
    }
}

/// Runs in a process of its own, where it is told when to die.
#[test]
fn the_process_that_dies() {
    let Ok(plan) = std::env::var(KILL) else { return };
    let mut words = plan.splitn(5, ' ');
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let (point, time, page_bytes, is_eager) = (number(), number(), number(), number() == 1);
    let folder = std::path::Path::new(words.next().unwrap());
    let mode = if is_eager { Mode::Eager } else { Mode::Lazy };
    at_the(Point::ALL[point as usize], time as u32, || {
        // SAFETY: ends this process; nothing of it runs any more.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        unreachable!("a process that was killed");
    });
    let world = World::in_folder(&[host(0), host(1)], options(page_bytes, BUDGET_FRAMES, mode), folder);
    run(&world, &Truth::in_folder(folder));
}
