//! `bifolio cache stat`, beside a process that has a cache.

use crate::support::{Place, json, sentence};
use bifolio_device::DeviceId;
use bifolio_testing::until;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Tells the process below from the tests, and names its file.
const VARIABLE: &str = "BIFOLIO_TEST_CACHED_FILE";

/// The other process, which the tests start: it has 4 pages of a file on two devices, and changes of one that the other has not seen.
#[test]
#[ignore = "the other tests run it, as a process of its own"]
fn a_process_with_a_cache() {
    let path = std::env::var_os(VARIABLE).expect("the other tests run this one");
    let cache = bifolio_cache::process::cache().unwrap();
    let file = cache.open(path).unwrap();
    let map = |index| file.map(DeviceId::new(bifolio_device::BackendKind::Host, index), 0..u64::MAX, true).unwrap();
    let (mut one, mut two) = (map(0), map(1));
    for _ in 0..2 {
        one.acquire(0..200_000).unwrap();
        one.release(0..200_000).unwrap();
    }
    two.acquire(0..200_000).unwrap();
    let place = std::ptr::with_exposed_provenance_mut::<u8>(two.ptr().offset_by(70_000).0 as usize);
    // SAFETY: it is acquired, and on a host.
    unsafe { place.write(1) };
    two.release(0..200_000).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line);
        let _ = done.send(read);
    });
    println!("\nready");
    // Whoever was too busy to tell at the last operation tells at one of these.
    while is_done.recv_timeout(Duration::from_millis(5)).is_err() {
        drop(map(0));
    }
}

struct Cached {
    place: Place,
    child: Child,
}

impl Cached {
    fn start() -> Self {
        let place = Place::new();
        let (path, _) = place.file("data", 200_000);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cache::a_process_with_a_cache", "--ignored", "--nocapture"])
            .env(VARIABLE, path)
            .env("XDG_RUNTIME_DIR", place.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut cached = Self { place, child };
        let out = BufReader::new(cached.child.stdout.as_mut().unwrap());
        assert!(out.lines().map_while(Result::ok).any(|line| line == "ready"));
        cached
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn folder(&self) -> PathBuf {
        self.place.dir.path().join("bifolio")
    }

    fn file(&self) -> PathBuf {
        self.folder().join(format!("cache-{}", self.child.id()))
    }

    fn stat(&self, args: &[&str]) -> std::process::Output {
        let mut command = self.place.command(&[&["cache", "stat"], args].concat());
        command.env("XDG_RUNTIME_DIR", self.place.dir.path()).output().unwrap()
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn pages_and_what_happened_to_them_are_shown_while_the_process_runs() {
    let mut cached = Cached::start();
    let mut shown = serde_json::Value::Null;
    until("it tells what it has", || {
        shown = json(&cached.stat(&[&cached.pid(), "--json"]));
        shown[0]["devices"][1]["pending"] == 1
    });
    let process = &shown[0];
    assert_eq!(process["pid"].to_string(), cached.pid());
    assert!(process["name"].as_str().is_some_and(|name| !name.is_empty()), "{process}");
    let [one, two, total] = [&process["devices"][0], &process["devices"][1], &process["total"]];
    assert_eq!((one["device"].as_str(), two["device"].as_str()), (Some("host:0"), Some("host:1")));
    let states = |of: &serde_json::Value| ["pages", "behind", "pending"].map(|state| of[state].as_u64().unwrap());
    assert_eq!([states(one), states(two), states(total)], [[4, 1, 0], [4, 0, 1], [8, 1, 1]]);
    let counts =
        |of: &serde_json::Value| ["hits", "fetched", "released"].map(|name| of["counts"][name].as_u64().unwrap());
    assert_eq!([counts(one), counts(two), counts(total)], [[4, 4, 0], [0, 4, 1], [4, 8, 1]]);
    assert_eq!(one["budget_bytes"].as_u64(), Some(1 << 30));
    assert!(one["used_bytes"].as_u64() >= Some(200_000), "{one}");

    let text = String::from_utf8(cached.stat(&[&cached.pid()]).stdout).unwrap();
    assert!(text.starts_with(&cached.pid()) && text.contains("host:1") && text.contains("total"), "{text}");
    let all = String::from_utf8(cached.stat(&[]).stdout).unwrap();
    assert!(all.contains(&format!("{}  ", cached.pid())), "{all}");

    // The process ends by itself, and takes its file with it.
    assert!(cached.file().exists());
    cached.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(cached.child.wait().unwrap().success());
    assert!(!cached.file().exists());
    assert!(sentence(&cached.stat(&[&cached.pid()]), 1).contains("has ended"));
}

fn pids_of(shown: &serde_json::Value) -> Vec<String> {
    shown.as_array().unwrap().iter().map(|process| process["pid"].to_string()).collect()
}

#[test]
fn what_dead_processes_and_others_have_left_is_ignored_and_removed() {
    let mut cached = Cached::start();
    let pid = cached.pid();
    let mut content = Vec::new();
    std::fs::File::open(cached.file()).unwrap().read_to_end(&mut content).unwrap();
    // A copy under another number is not that process's, and neither is what is no such file.
    let plant = |name: &str, content: &[u8]| {
        let path = cached.folder().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let copied = plant("cache-99999999", &content);
    let garbage = [plant("cache-99999998", b"x"), plant("cache-", &content[..100]), plant("cache-x", &[0xff; 10_000])];
    let running = plant(&format!("cache-{}", std::process::id()), b"of another version");
    let (precious, link) = (cached.place.dir.path().join("precious"), cached.folder().join("cache-99999997"));
    std::fs::write(&precious, &content).unwrap();
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    let shown = json(&cached.stat(&["--json"]));
    let pids = pids_of(&shown);
    assert_eq!(pids.iter().filter(|shown| **shown == pid).count(), 1, "{pids:?}");
    assert!(!pids.iter().any(|shown| shown.starts_with("9999999")), "{pids:?}");
    assert!(!copied.exists() && garbage.iter().all(|path| !path.exists()));
    assert!(running.exists(), "of a process that runs");
    assert!(std::fs::read(precious).unwrap() == content);

    // Killed: nobody takes the file away but the next reader.
    cached.child.kill().unwrap();
    cached.child.wait().unwrap();
    assert!(cached.file().exists());
    let shown = json(&cached.stat(&["--json"]));
    assert!(!pids_of(&shown).contains(&pid), "{shown}");
    assert!(!cached.file().exists() && cached.file().parent().is_some_and(Path::exists));
    assert!(sentence(&cached.stat(&[&pid]), 1).contains(&pid));
}

#[test]
fn bad_input_is_refused_with_a_sentence() {
    let place = Place::new();
    for pid in ["0", "-1", "x", "99999999999"] {
        assert!(sentence(&place.run(&["cache", "stat", pid]), 2).contains(pid));
    }
    let missing = sentence(&place.run(&["cache", "stat", "4294967295"]), 1);
    assert!(missing.contains("4294967295"), "{missing}");
    assert_eq!(place.run(&["cache", "nonsense"]).status.code(), Some(2));
    for help in [&["cache", "--help"][..], &["cache", "stat", "--help"]] {
        let output = place.run(help);
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("stat"));
    }
    // No folder is needed.
    let output = place.command(&["cache", "stat"]).env("XDG_RUNTIME_DIR", "/nonexistent").output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty());
}
