//! What the tests of all crates share.
//!
//! ```text
//!   skip  require        a test, or a part of one, that cannot run here: counted, listed, or a failure
//!   has  command         programs that tests compare with
//!   until                waiting for a condition instead of for a while
//!   noise  seed          bytes without a pattern, drawn afresh in every run
//! ```
//!
//! The test runner swallows what a passing test prints, and a skip must not be silent: each one is a line in the file
//! that `BIFOLIO_TEST_SKIPS` names, which `make test` lists at its end.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long [`until`] waits for what should happen at once, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says that this test, or what follows in it, is left out here, and why: the reason is about this machine.
#[track_caller]
pub fn skip(reason: impl Display) {
    record(&reason.to_string(), Location::caller());
}

/// Says that `missing` is not here, and what that leaves out. Where everything is required (`BIFOLIO_TEST_REQUIRE_ALL`
/// is 1, as in `make test`, whose set-up installs all tools) that is a failure.
#[track_caller]
pub fn require(missing: impl Display) {
    assert!(!requires_all(), "this test has to run here, and {missing}");
    skip(missing);
}

/// Whether a test that lacks a tool fails, instead of being skipped.
pub fn requires_all() -> bool {
    std::env::var_os("BIFOLIO_TEST_REQUIRE_ALL").is_some_and(|value| value == "1")
}

/// Whether a program is installed; [`require`] tells of one that is not.
#[track_caller]
pub fn has(program: &str) -> bool {
    let found = std::env::split_paths(&path()).any(|folder| folder.join(program).is_file());
    if !found {
        require(format_args!("{program} is missing: scripts/setup.sh test installs it"));
    }
    found
}

/// A command whose program may be in the folders of the system's administrator.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path());
    command
}

/// The folders with programs, the administrator's too.
fn path() -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    std::env::join_paths(folders).unwrap_or_default()
}

/// Waits until `condition` holds, and fails with `what` after a minute: no test depends on how fast a machine is.
#[track_caller]
pub fn until(what: impl Display, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not so after {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `len` bytes without a pattern, the same for the same seed.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// A seed drawn afresh; it is printed, so that a failure can be repeated with `BIFOLIO_TEST_SEED`.
#[track_caller]
pub fn seed() -> u64 {
    let given =
        std::env::var("BIFOLIO_TEST_SEED").ok().map(|text| text.parse().expect("BIFOLIO_TEST_SEED is a number"));
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("BIFOLIO_TEST_SEED={seed} ({})", Location::caller());
    seed
}

/// One line for one skip, appended by one write, as many test programs run at the same time.
fn record(reason: &str, place: &Location<'_>) {
    let thread = std::thread::current();
    let line = format!("{}\t{}\t{reason}\n", place.file(), thread.name().unwrap_or("a thread"));
    println!("skipped: {reason}");
    if let Some(path) = std::env::var_os("BIFOLIO_TEST_SKIPS") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(written.is_ok(), "{} (BIFOLIO_TEST_SKIPS): {}", path.display(), written.unwrap_err());
    }
}
