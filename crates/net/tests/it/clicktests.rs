//! Runs test files in the format of Click's own: scripts that call `click` and its tools, with files to compare.
//!
//! Ours lie in `tests/clicktests`, in a folder for each group of elements. Those in the folder (or the file) that
//! `BIFOLIO_CLICKTESTS` names are run as well, such as a checkout of Click's `test` folder: what passes, what fails and what is
//! not supported is listed.

mod compare;
mod file;

use bifolio_testing::until;
use file::Test;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// Names by which the program is called.
const NAMES: &[&str] = &["click", "click-flatten", "click-align", "click-xform", "click-buildtool", "click-pretty"];

/// What became of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    /// What it requires is not there.
    Unsupported(String),
}

/// Where the program is, under all its names.
struct Tools {
    path: OsString,
    _folder: tempfile::TempDir,
}

impl Tools {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in NAMES {
            symlink(env!("CARGO_BIN_EXE_click"), folder.path().join(name)).unwrap();
        }
        let mut path = folder.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        Self { path, _folder: folder }
    }

    /// Runs commands by `sh`, in a folder; each has to succeed. Says whether all did.
    fn sh(&self, folder: &Path, commands: &str, [stdout, stderr]: &[PathBuf; 2]) -> bool {
        let stdin = File::open(folder.join("stdin")).map_or_else(|_| Stdio::null(), Stdio::from);
        let script = format!("clicktest_subtest () {{ :; }}\n{commands}");
        // A script that hangs ends; none takes a part of that time.
        let mut command = Command::new("timeout");
        command.args(["100", "sh", "-e", "-c", &script]).current_dir(folder).env("PATH", &self.path);
        command.env("LC_ALL", "C").env("rundir", folder).stdin(stdin);
        command.stdout(File::create(stdout).unwrap()).stderr(File::create(stderr).unwrap());
        // A group of its own, which is over with the script.
        let mut child = command.process_group(0).spawn().unwrap();
        let is_done = ends_well(&child);
        // SAFETY: no memory is passed. The group's number is the child's as long as nobody has waited for that.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        child.wait().unwrap();
        is_done
    }

    fn run(&self, test: &Test) -> Outcome {
        let (folder, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let outputs = &["stdout", "stderr"].map(|name| output.path().join(name));
        if !test.require.trim().is_empty() && !self.sh(folder.path(), &test.require, outputs) {
            return Outcome::Unsupported(format!("required: {}", test.require.trim().replace('\n', ", ")));
        }
        for (name, content) in &test.files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let is_done = self.sh(folder.path(), &test.script, outputs);
        let stderr = fs::read(&outputs[1]).unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        let outcome = judge(test, |name| match name {
            "stdout" => fs::read(&outputs[0]).ok(),
            "stderr" => fs::read(&outputs[1]).ok(),
            name => fs::read(folder.path().join(name)).ok(),
        });
        match outcome {
            _ if !is_done && lacks_element(&stderr) => Outcome::Unsupported(stderr.trim().replace('\n', ", ")),
            Ok(()) if is_done => Outcome::Passed,
            Ok(()) => Outcome::Failed(format!("a command failed\n{stderr}")),
            Err(told) if !is_done => Outcome::Failed(format!("a command failed\n{stderr}\n{told}")),
            Err(told) => Outcome::Failed(format!("{told}\nstandard error:\n{stderr}")),
        }
    }
}

/// Whether a child ends with success; it stays there, to be waited for.
fn ends_well(child: &Child) -> bool {
    // SAFETY: what it is filled with may be zeroes, and it is alive.
    let info = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOWAIT;
        assert_eq!(libc::waitid(libc::P_PID, child.id(), &raw mut info, flags), 0, "{}", io::Error::last_os_error());
        info
    };
    // SAFETY: it is about a child.
    info.si_code == libc::CLD_EXITED && unsafe { info.si_status() } == 0
}

/// Whether a configuration names elements that are not there.
fn lacks_element(stderr: &str) -> bool {
    let undeclared =
        |line: &str| line.split_once("undeclared element '").map(|(_, name)| name.starts_with(char::is_uppercase));
    stderr.lines().any(|line| line.contains("unknown element class '") || undeclared(line) == Some(true))
}

/// Compares all files that a test expects.
fn judge(test: &Test, read: impl Fn(&str) -> Option<Vec<u8>>) -> Result<(), String> {
    let mut names: Vec<&str> = test.expected.iter().map(|section| section.file.as_str()).collect();
    names.dedup();
    for name in names {
        let actual = read(name).ok_or_else(|| format!("there is no {name}"))?;
        let ignored = test.ignored.iter().filter(|section| section.file == name || section.file == "all");
        let ignored: Vec<_> =
            ignored.map(compare::patterns).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let alternatives = test.expected.iter().filter(|section| section.file == name);
        let told: Vec<_> = alternatives.map(|section| compare::compare(section, &actual, &ignored)).collect();
        if !told.iter().any(Result::is_ok) {
            return told.into_iter().next().expect("one of this name");
        }
    }
    Ok(())
}

/// Test files in a folder and those below, or a file.
fn find(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let mut found: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let is_test = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "clicktest" || ext == "testie");
    found.into_iter().filter(|path| path.is_dir() || is_test(path)).flat_map(|path| find(&path)).collect()
}

/// Runs all tests in a folder, some at a time.
fn run_all(folder: &Path) -> Vec<(String, Outcome)> {
    let tools = Tools::new();
    let mut open = Vec::new();
    for path in find(folder) {
        let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
        match file::read(&path) {
            Ok(tests) => open.extend(tests.into_iter().map(|test| (name.clone(), Ok(test)))),
            Err(error) => open.push((name, Err(error))),
        }
    }
    let (open, done) = (Mutex::new(open.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((name, test)) = open.lock().unwrap().next() else { return };
                    let outcome = test.map_or_else(Outcome::Failed, |test| tools.run(&test));
                    done.lock().unwrap().push((name, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by(|(a, _), (b, _)| a.cmp(b));
    done
}

/// A line for each test, and what went wrong with those that failed.
fn report(outcomes: &[(String, Outcome)]) -> String {
    let mut text = String::new();
    for (name, outcome) in outcomes {
        let _ = match outcome {
            Outcome::Passed => writeln!(text, "passes         {name}"),
            Outcome::Failed(why) => writeln!(text, "FAILS          {name}\n{why}"),
            Outcome::Unsupported(why) => writeln!(text, "not supported  {name}: {why}"),
        };
    }
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|(_, outcome)| is(outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let passed = count(|outcome| *outcome == Outcome::Passed);
    let _ = writeln!(text, "{passed} pass, {failed} fail, {} are not supported", outcomes.len() - passed - failed);
    text
}

#[test]
fn our_test_files_pass() {
    let outcomes = run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clicktests"));
    assert!(outcomes.len() > 10, "the test files are there");
    let rest: Vec<_> = outcomes.into_iter().filter(|(_, outcome)| *outcome != Outcome::Passed).collect();
    // What a test requires may not be there; that is told.
    eprint!("{}", report(&rest));
    assert!(!rest.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_))), "{}", report(&rest));
}

#[test]
fn test_files_of_a_checkout_pass() {
    let Some(folder) = std::env::var_os("BIFOLIO_CLICKTESTS") else {
        eprintln!("BIFOLIO_CLICKTESTS names no folder of test files: none but ours are run");
        return;
    };
    let outcomes = run_all(Path::new(&folder));
    let told = report(&outcomes);
    println!("{told}");
    assert!(!outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_))), "{told}");
}

#[test]
fn a_test_passes_fails_or_is_not_supported() {
    let tools = Tools::new();
    let run = |text: &str| tools.run(&file::parse(text.as_bytes(), Path::new("")).unwrap()[0]);
    assert_eq!(run("%script\ncat > out\n%stdin\na\n%expect out\n{{[a-c]}}\n%expect stdout\n"), Outcome::Passed);
    assert_eq!(
        run("%script\ncat d/in; echo b >&2\n%file d/in\na\n%stdout -a\nc\n%stdout -a\na\n%stderr\nb\n"),
        Outcome::Passed
    );
    let failures = ["false", "false\ntrue", "cat nowhere", "echo b", "exit 3", "echo a\nfalse"];
    for script in failures {
        let outcome = run(&format!("%script\n{script}\n%expect stdout\na\n"));
        assert!(matches!(outcome, Outcome::Failed(_)), "{script}: {outcome:?}");
    }
    assert!(matches!(run("%script\ntrue\n%expect nowhere\na\n"), Outcome::Failed(_)));
    assert!(matches!(run("%require\ntrue\nfalse\n%script\nfalse\n"), Outcome::Unsupported(_)));
}

/// They ran on, and wrote to files of tests that came later.
#[test]
fn what_a_failing_test_leaves_in_the_background_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
    let text = format!("%script\nexec 3> {}\nsleep 1000 &\nexec 3>&-\nfalse\n%expect stdout\n", pipe.display());
    let outcome = Tools::new().run(&file::parse(text.as_bytes(), Path::new("")).unwrap()[0]);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    until("nobody has the pipe any more", || matches!(reader.read(&mut [0]), Ok(0)));
}
