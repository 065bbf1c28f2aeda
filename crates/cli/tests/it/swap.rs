//! `bifolio swap`: on and off, refusals, and a program that verifies every word while processes are killed.
//!
//! Swap is the whole system's, so these tests take turns, and whatever happens they switch off what they switched on.

use crate::support::{Place, json, sentence};
use bifolio_bench::paging::cgroup::Group;
use bifolio_bench::paging::load::LoadReport;
use bifolio_testing::{skip, until};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The way that was asked for.
fn attach() -> Option<String> {
    std::env::var("BIFOLIO_TEST_ATTACH").ok()
}

/// One swap space of these tests at a time.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether swap can be switched on here.
#[track_caller]
pub(crate) fn can_swap() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() == 0 };
    let is_there = ["/dev/fuse", "/dev/loop-control", "/proc/swaps"].iter().all(|path| Path::new(path).exists());
    if !is_root || !is_there || Command::new("mkswap").arg("--version").output().is_err() {
        skip("swap takes root, FUSE, loop devices and mkswap");
        return false;
    }
    true
}

/// A place with a run folder of its own, where everything is switched off at the end.
struct Swapping {
    place: Place,
    _alone: MutexGuard<'static, ()>,
}

impl Swapping {
    fn new() -> Self {
        let alone = one_at_a_time();
        Self { place: Place::new(), _alone: alone }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.dir.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = self.place.command(&line.split_whitespace().collect::<Vec<_>>());
        command.current_dir(self.place.dir.path()).env("BIFOLIO_RUN_DIR", self.path("run")).stdin(Stdio::null());
        command
    }

    /// `BIFOLIO_TEST_ATTACH` names the way in which disks are attached, so that all of this can be run with each.
    fn run(&self, line: &str) -> Output {
        let mut command = self.command(line);
        if let (Some(way), true) = (attach(), line.starts_with("swap on ") && !line.contains("--attach")) {
            command.args(["--attach", &way]);
        }
        command.output().unwrap()
    }

    #[track_caller]
    fn done(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What `swap status` says of the only one.
    #[track_caller]
    fn status(&self) -> serde_json::Value {
        json(&self.run("swap status --json"))[0].clone()
    }

    /// A program with more memory than its cgroup has; none where cgroups cannot be made.
    fn program(&self, limit: u64, bytes: u64, seconds: f64) -> Option<(Group, Child)> {
        let group = match Group::new(limit) {
            Ok(group) => group,
            Err(error) => {
                skip(error);
                return None;
            }
        };
        let mut command = self.command(&format!("bench paging-load --bytes {bytes} --seconds {seconds} --cgroup"));
        let child = command.arg(group.entrance()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Some((group, child))
    }

    /// Whether workers serve the disk itself, which the kernel keeps without them.
    fn has_server(&self) -> bool {
        self.record()["attachment"] != "loop"
    }

    fn record(&self) -> serde_json::Value {
        record(&self.path("run/swap/0"))
    }

    fn used(&self) -> u64 {
        let disk = self.status()["disk"].as_str().unwrap_or_default().to_owned();
        used(&disk).unwrap_or(0)
    }
}

fn swaps() -> String {
    std::fs::read_to_string("/proc/swaps").unwrap()
}

/// KiB in use on a disk; none if it is not swap.
fn used(disk: &str) -> Option<u64> {
    let all = swaps();
    let line = all.lines().find(|line| line.split_whitespace().next() == Some(disk))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

impl Drop for Swapping {
    fn drop(&mut self) {
        // A worker that hangs would keep the kernel waiting for ever; without its keeper requests fail.
        let run = self.path("run/swap");
        let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
        for folder in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
            let mut off = self.command("swap off --force");
            let Ok(mut off) = off.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else { continue };
            let begin = Instant::now();
            while off.try_wait().is_ok_and(|status| status.is_none()) {
                if begin.elapsed() > Duration::from_secs(20) {
                    kill(keeper(&folder));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn record(folder: &Path) -> serde_json::Value {
    let record = std::fs::read_to_string(folder.join("record.json")).unwrap_or_default();
    serde_json::from_str(&record).unwrap_or_default()
}

fn keeper(folder: &Path) -> u32 {
    record(folder)["keeper"]["id"].as_u64().unwrap_or(0) as u32
}

fn kill(process: u32) {
    if process > 1 {
        // SAFETY: takes numbers; the process is one of this test's.
        unsafe { libc::kill(process as i32, libc::SIGKILL) };
    }
}

/// What the program has found; none if the kernel has ended it.
fn report(child: Child) -> Option<LoadReport> {
    let output = child.wait_with_output().unwrap();
    if output.status.signal() == Some(libc::SIGKILL) {
        return None;
    }
    assert!(output.status.success(), "{} {}", output.status, String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Runs a test until the kernel lets its program live: now and then it ends a program whose small cgroup swaps, on a plain
/// swap file as well.
fn until_it_lives(test: impl Fn() -> Option<()>) {
    const TRIES: u32 = 6;
    let lives = (0..TRIES).any(|_| test().is_some());
    assert!(lives, "the kernel has ended the program {TRIES} times");
}

#[test]
fn swap_is_switched_on_and_off_and_leaves_nothing() {
    if !can_swap() {
        return;
    }
    let swapping = Swapping::new();
    let said = swapping.done("swap on --backing s.img --size 32M --device-memory 8M --priority 7 --force");
    assert!(said.contains("32 MiB of swap") && said.contains("write-through"), "{said}");
    let status = swapping.status();
    let disk = status["disk"].as_str().unwrap().to_owned();
    let line = swaps().lines().find(|line| line.starts_with(&disk)).unwrap().to_owned();
    assert!(line.ends_with("\t7") && line.contains("partition"), "{line}");
    assert_eq!((&status["memory"]["wanted"], &status["device_serves"]), (&(8 << 20).into(), &true.into()));
    let shown = swapping.done("swap status");
    assert!(shown.contains("good for") && shown.contains(&disk), "{shown}");

    let resized = json(&swapping.run("swap resize --device-memory 4M --json"));
    assert_eq!(resized["device_memory"], 4 << 20);
    until("memory is given back", || swapping.status()["memory"]["present"] == 4 << 20);
    let said = sentence(&swapping.run("swap resize --device-memory 1T"), 2);
    assert!(said.contains("more than"), "{said}");
    swapping.done("swap suspend");
    assert_eq!(swapping.status()["memory"]["present"], 0);
    swapping.done("swap resume");
    until("memory is taken again", || swapping.status()["memory"]["present"] == 4 << 20);

    let second = refused(&swapping.run("swap on --backing s.img --size 32M --device-memory 8M --force --json"), 1);
    assert!(second.contains("s.img"), "{second}");
    swapping.done("swap off");
    assert!(used(&disk).is_none());
    assert!(!swapping.path("s.img").exists() && !swapping.path("run/swap/0").exists());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(swapping.path("run").to_str().unwrap()), "{mounts}");
    let said = sentence(&swapping.run("swap off"), 1);
    assert!(said.contains("no swap space"), "{said}");
}

/// The first line is advice about the device host.
#[track_caller]
fn refused(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().last().unwrap_or_default().to_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(last.starts_with("bifolio: ") && !stderr.contains("panicked"), "{stderr}");
    last
}

#[test]
fn what_would_be_lost_or_cannot_be_is_refused_and_leaves_nothing() {
    if !can_swap() {
        return;
    }
    let swapping = Swapping::new();
    std::fs::write(swapping.path("mine"), "something of mine").unwrap();
    let said = refused(&swapping.run("swap on --backing mine --size 4M --device-memory 2M --force"), 5);
    assert!(said.contains("mine") && said.contains("would be lost"), "{said}");
    assert_eq!(std::fs::read(swapping.path("mine")).unwrap(), b"something of mine");
    let said = refused(&swapping.run("swap on --backing none/s.img --size 4M --device-memory 2M --force"), 1);
    assert!(said.contains("none/s.img") && said.contains("folder"), "{said}");
    let said = refused(&swapping.run("swap on --backing s.img --size 64K --device-memory 2M --force"), 2);
    assert!(said.contains("too few"), "{said}");
    let said = refused(&swapping.run("swap on --backing s.img --size 9999T --device-memory 2M --force"), 1);
    assert!(said.contains("are free there") && !swapping.path("s.img").exists(), "{said}");
    let said = refused(&swapping.run("swap on --backing s.img --size 4M --device-memory 2M --force --attach tape"), 2);
    assert!(said.contains("tape"), "{said}");
    if Path::new("/dev/shm").is_dir() {
        let said = refused(&swapping.run("swap on --backing /dev/shm/bifolio-s.img --size 4M --device-memory 2M"), 1);
        assert!(said.contains("in memory") || said.contains("IO_FLUSHER"), "{said}");
    }
    sentence(&swapping.run("swap on --size 4M"), 2);
    assert!(!swapping.path("run/swap/0").exists());
}

#[test]
fn a_worker_that_is_killed_sixty_times_under_swap_load_loses_no_word() {
    const KILLS: u64 = 60;
    if !can_swap() {
        return;
    }
    until_it_lives(|| {
        let swapping = Swapping::new();
        swapping.done("swap on --backing s.img --size 128M --device-memory 32M --priority 32767 --force");
        let Some((group, mut child)) = swapping.program(16 << 20, 64 << 20, 20.0) else { return Some(()) };
        until("the program swaps", || swapping.used() > 8 << 10 || child.try_wait().unwrap().is_some());
        let mut last = 0;
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        for round in 0..KILLS {
            until(format_args!("worker {round} serves"), || swapping.status()["worker"] != last);
            last = swapping.status()["worker"].as_u64().unwrap();
            std::thread::sleep(Duration::from_millis(draw.u64(..100)));
            kill(last as u32);
        }
        let report = report(child)?;
        drop(group);
        until("the last one has a successor", || swapping.status()["restarts"].as_u64() >= Some(KILLS));
        let status = swapping.status();
        eprintln!("longest request {} us, longest fault {} us", status["longest_us"], report.longest_us);
        assert_eq!(report.wrong_words, 0, "{report:?}");
        assert!(report.pages_verified >= 16_384 && report.slow_faults > 0, "{report:?}");
        assert!(status["hit_pages"].as_u64() > Some(0) && status["lost_pages"] == 0, "{status}");
        swapping.done("swap off");
        Some(())
    });
}

/// How long the system is under pressure: `BIFOLIO_SWAP_SECONDS`, else two minutes.
fn pressure_seconds() -> f64 {
    std::env::var("BIFOLIO_SWAP_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(120.0)
}

#[test]
fn under_pressure_every_word_is_verified_while_memory_comes_and_goes() {
    if !can_swap() {
        return;
    }
    until_it_lives(|| {
        let swapping = Swapping::new();
        swapping.done("swap on --backing s.img --size 128M --device-memory 64M --priority 32767 --discard --force");
        let Some((group, mut child)) = swapping.program(32 << 20, 64 << 20, pressure_seconds()) else {
            return Some(());
        };
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        while child.try_wait().unwrap().is_none() {
            match draw.u32(..4) {
                0 => drop(swapping.done("swap suspend")),
                1 => drop(swapping.done("swap resume")),
                _ => drop(swapping.done(&format!("swap resize --device-memory {}M", draw.u32(..=64)))),
            }
            std::thread::sleep(Duration::from_millis(draw.u64(..500)));
        }
        let report = report(child)?;
        drop(group);
        let status = swapping.status();
        eprintln!("{} pages verified, {} faults waited", report.pages_verified, report.slow_faults);
        eprintln!("longest request {} us, longest fault {} us", status["longest_us"], report.longest_us);
        assert!(report.wrong_words == 0 && report.slow_faults > 0, "{report:?}");
        assert!(status["restarts"] == 0 && status["device_errors"] == 0, "{status}");
        swapping.done("swap off");
        Some(())
    });
}

#[test]
fn a_keeper_that_is_killed_leaves_errors_and_nothing_hangs() {
    if !can_swap() {
        return;
    }
    let swapping = Swapping::new();
    swapping.done("swap on --backing s.img --size 128M --device-memory 16M --priority 32767 --force");
    let Some((_group, mut child)) = swapping.program(16 << 20, 64 << 20, 60.0) else { return };
    until("the program swaps", || swapping.used() > 8 << 10 || child.try_wait().unwrap().is_some());
    kill(keeper(&swapping.path("run/swap/0")));
    if swapping.has_server() {
        // The worker goes on alone.
        assert_eq!(swapping.run("swap status").status.code(), Some(1));
        assert!(report(child).is_none_or(|report| report.wrong_words == 0));
        return drop(swapping.done("swap off"));
    }
    // What it had swapped cannot be read any more, which ends it.
    until("the program ends", || child.try_wait().unwrap().is_some());
    assert!(!child.wait().unwrap().success());
    let output = swapping.run("swap status");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("keeper has died"));
    swapping.done("swap off");
    assert!(!swapping.path("s.img").exists() && !swapping.path("run/swap/0").exists());
}

#[test]
fn a_disk_that_nobody_serves_any_more_is_served_by_off() {
    if !can_swap() {
        return;
    }
    if attach().as_deref() != Some("ublk") {
        return skip("only ublk has requests wait for as long as nobody serves (BIFOLIO_TEST_ATTACH=ublk)");
    }
    until_it_lives(|| {
        let swapping = Swapping::new();
        swapping.done("swap on --backing s.img --size 128M --device-memory 16M --priority 32767 --force");
        let Some((group, mut child)) = swapping.program(16 << 20, 64 << 20, 5.0) else { return Some(()) };
        until("the program swaps", || swapping.used() > 8 << 10 || child.try_wait().unwrap().is_some());
        let worker = swapping.status()["worker"].as_u64().unwrap() as u32;
        kill(keeper(&swapping.path("run/swap/0")));
        kill(worker);
        // What comes back has to have room.
        std::fs::write(group.entrance().with_file_name("memory.max"), "max").unwrap();
        swapping.done("swap off");
        assert_eq!(report(child)?.wrong_words, 0);
        assert!(!swapping.path("s.img").exists() && !swapping.path("run/swap/0").exists());
        Some(())
    });
}

/// In write-back mode everything that was on it waited until the system was started anew.
#[test]
fn off_brings_back_what_was_written_back_before_both_processes_were_killed() {
    if !can_swap() {
        return;
    }
    if attach().as_deref() != Some("ublk") {
        return skip("only ublk has requests wait for as long as nobody serves (BIFOLIO_TEST_ATTACH=ublk)");
    }
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip("there is no file system of memory at /dev/shm");
    };
    let swapping = Swapping::new();
    std::os::unix::fs::symlink(memory.path(), swapping.path("run")).unwrap();
    let on = "swap on --backing s.img --size 128M --device-memory 16M --priority 32767 --force --mode write-back";
    swapping.done(&format!("{on} --flush-interval 3600"));
    let Some((group, mut child)) = swapping.program(16 << 20, 64 << 20, 5.0) else { return };
    until("the program swaps", || swapping.used() > 8 << 10 || child.try_wait().unwrap().is_some());
    let worker = swapping.status()["worker"].as_u64().unwrap() as u32;
    kill(keeper(&swapping.path("run/swap/0")));
    kill(worker);
    std::fs::write(group.entrance().with_file_name("memory.max"), "max").unwrap();
    let said = refused(&swapping.run("swap off"), 1);
    assert!(said.contains("pages that were not written back") && said.contains("--force"), "{said}");
    swapping.done("swap off --force");
    assert!(!swapping.path("s.img").exists() && !swapping.path("run/swap/0").exists());
    // Whoever touches a page that is lost gets a signal, and never other words.
    let output = child.wait_with_output().unwrap();
    match output.status.signal() {
        Some(libc::SIGBUS | libc::SIGKILL) => {}
        _ => assert_eq!(serde_json::from_slice::<LoadReport>(&output.stdout).unwrap().wrong_words, 0),
    }
}

#[test]
fn a_way_that_works_is_taken_and_why_is_told() {
    if !can_swap() {
        return;
    }
    let swapping = Swapping::new();
    for way in ["ublk", "loop", "nbd"] {
        let on = format!("swap on --backing s.img --size 8M --device-memory 4M --force --attach {way} --json");
        let output = swapping.run(&on);
        if output.status.success() {
            assert_eq!(json(&output)["attachment"], way);
            assert_eq!(swapping.status()["attachment"], way);
            swapping.done("swap off");
        } else {
            let said = refused(&output, 3);
            assert!(said.contains(way) && said.contains("does not work here"), "{said}");
            skip(said);
        }
    }
    let said = swapping.done("swap on --backing s.img --size 8M --device-memory 4M --force --attach auto");
    assert!(said.contains("works here"), "{said}");
    assert!(swapping.done("swap status").contains("attached   by "), "{said}");
    swapping.done("swap off");
}

#[test]
fn swap_that_has_no_room_elsewhere_stays_on_and_consistent() {
    if !can_swap() {
        return;
    }
    until_it_lives(|| {
        let swapping = Swapping::new();
        swapping.done("swap on --backing s.img --size 128M --device-memory 32M --priority 32767 --force");
        let Some((group, mut child)) = swapping.program(16 << 20, 64 << 20, 4.0) else { return Some(()) };
        until("the program swaps", || swapping.used() > 32 << 10 || child.try_wait().unwrap().is_some());
        let said = sentence(&swapping.run("swap off"), 1);
        assert!(said.contains("stays on"), "{said}");
        assert_eq!(report(child)?.wrong_words, 0);
        drop(group);
        swapping.done("swap off");
        Some(())
    });
}

#[test]
fn a_device_with_too_little_memory_serves_with_what_it_has() {
    if !can_swap() {
        return;
    }
    until_it_lives(|| {
        let swapping = Swapping::new();
        let mut on =
            swapping.command("swap on --backing s.img --size 64M --device-memory 32M --priority 32767 --force");
        let on = on.env("BIFOLIO_HOST_MEMORY", "6M").output().unwrap();
        assert!(on.status.success(), "{}", String::from_utf8_lossy(&on.stderr));
        until("it has what there is", || swapping.status()["memory"]["present"].as_u64() > Some(0));
        let Some((_group, child)) = swapping.program(8 << 20, 32 << 20, 0.5) else { return Some(()) };
        assert_eq!(report(child)?.wrong_words, 0);
        let status = swapping.status();
        assert!(
            status["memory"]["present"].as_u64() <= Some(6 << 20) && status["miss_pages"].as_u64() > Some(0),
            "{status}"
        );
        swapping.done("swap off");
        Some(())
    });
}

#[test]
fn units_are_written_and_taken_away() {
    if !can_swap() {
        return;
    }
    let swapping = Swapping::new();
    std::fs::create_dir(swapping.path("units")).unwrap();
    swapping.done("swap install --units units -- --backing /var/lib/s.img --size 1G");
    let unit = std::fs::read_to_string(swapping.path("units/bifolio-swap.service")).unwrap();
    assert!(unit.contains("swap on \"--backing\" \"/var/lib/s.img\" \"--size\" \"1G\""), "{unit}");
    let sleep = std::fs::read_to_string(swapping.path("units/bifolio-swap-sleep.service")).unwrap();
    assert!(sleep.contains("swap suspend") && sleep.contains("swap resume"), "{sleep}");
    swapping.done("swap uninstall --units units");
    assert_eq!(std::fs::read_dir(swapping.path("units")).unwrap().count(), 0);
    let failed = sentence(&swapping.run("swap install --units /none/such"), 1);
    assert!(failed.contains("/none/such"), "{failed}");
}
