//! `bifolio daemon`: it serves, and ends when it is told to.

use crate::support::{bifolio, sentence};
use bifolio_daemon::Client;
use bifolio_testing::until;
use std::io::Read;
use std::process::{Child, Output, Stdio};

#[test]
fn it_serves_until_it_is_told_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, path) = (folder.path().join("socket"), folder.path().join("data"));
    std::fs::write(&path, [7; 5000]).unwrap();
    let args = ["daemon", "--device", "host", "--memory", "64M", "--socket"];
    let mut daemon = bifolio(folder.path()).args(args).arg(&socket).stderr(Stdio::piped()).spawn().unwrap();
    until("it serves", || Client::connect(&socket).is_ok());
    let other = bifolio(folder.path()).args(args).arg(&socket).output().unwrap();
    assert_eq!(other.status.code(), Some(2), "two serve at one place");
    let client = Client::connect(&socket).unwrap();
    let file = client.open_path(&path).unwrap();
    let mut mapping = file.map(client.devices()[0], 0..5000, false).unwrap();
    mapping.acquire(0..5000).unwrap();
    // SAFETY: a child of this process, which has not been waited for.
    unsafe { libc::kill(daemon.id() as i32, libc::SIGTERM) };
    assert!(daemon.wait().unwrap().success());
    let mut said = String::new();
    daemon.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("serving at"), "{said}");
    assert!(!socket.exists());
}

/// A daemon with two devices, and a folder.
struct Running {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Running {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = bifolio(folder.path());
        daemon.args(["daemon", "--device", "host:0,host:1", "--memory", "64M"]).stderr(Stdio::null());
        let daemon = daemon.env("BIFOLIO_SOCKET", folder.path().join("socket")).spawn().unwrap();
        let running = Self { folder, daemon };
        until("it serves", || running.run(&["ls"]).status.success());
        running
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = bifolio(self.folder.path());
        command.arg("cache").args(args).current_dir(self.folder.path());
        command.env("BIFOLIO_SOCKET", self.folder.path().join("socket")).output().unwrap()
    }

    #[track_caller]
    fn said(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn files_are_brought_pinned_listed_and_given_back() {
    let running = Running::start();
    let path = running.folder.path().canonicalize().unwrap().join("data").display().to_string();
    std::fs::write(&path, bifolio_testing::noise(3 << 20, 1)).unwrap();
    std::fs::write(running.folder.path().join("empty"), []).unwrap();
    assert_eq!(running.said(&["ls"]), "the daemon has no file cached\n");
    let said = running.said(&["warm", "data", "empty"]);
    assert!(said.starts_with("data  3 MiB brought to host:0, 3 MiB of it read in "), "{said}");
    assert!(said.ends_with("empty  0 B brought to host:0, all of which was there\n"), "{said}");
    let said = running.said(&["warm", "data"]);
    assert_eq!(said, "data  3 MiB brought to host:0, all of which was there\n");
    let said = running.said(&["pin", "data", "--device", "host:1"]);
    assert!(said.starts_with("data  3 MiB pinned on host:1, 3 MiB of it read in "), "{said}");
    let listed = running.said(&["ls"]);
    let line = listed.lines().find(|line| line.starts_with(&path)).unwrap();
    let columns: Vec<_> = line.split("  ").map(str::trim).filter(|text| !text.is_empty()).collect();
    assert_eq!(columns, [&path, "3 MiB", "3 MiB", "3 MiB pinned", "0"], "{listed}");
    running.said(&["drop", "data", "--device", "host:0,host:1"]);
    let listed: serde_json::Value = serde_json::from_str(&running.said(&["ls", "--json"])).unwrap();
    let file = listed.as_array().unwrap().iter().find(|file| file["path"] == path.as_str()).unwrap();
    let on = |device: usize| (&file["devices"][device]["cached_bytes"], &file["devices"][device]["pinned"]);
    assert_eq!((on(0), on(1)), ((&0.into(), &false.into()), (&(3 << 20).into(), &true.into())));
    assert_eq!(running.said(&["unpin", "data", "--device", "host:1"]), "data  3 MiB unpinned on host:1\n");
    running.said(&["drop", "data", "--device", "host:1"]);
    let listed: serde_json::Value = serde_json::from_str(&running.said(&["ls", "--json"])).unwrap();
    assert!(listed.as_array().unwrap().iter().all(|file| file["devices"][1]["cached_bytes"] == 0), "{listed}");
}

#[test]
fn what_cannot_be_is_said_in_a_sentence() {
    let running = Running::start();
    std::fs::write(running.folder.path().join("data"), [1; 100]).unwrap();
    let refused = |args: &[&str], code: i32, words: &str| {
        let said = sentence(&running.run(args), code);
        assert!(said.contains(words), "{args:?}: {said}");
    };
    refused(&["warm", "nothing"], 1, "nothing: cannot be opened");
    refused(&["warm", "."], 1, ": only regular files are cached");
    refused(
        &["warm", "data", "--device", "host:3"],
        2,
        "host:3 is no device of the daemon's, which has host:0, host:1",
    );
    refused(&["warm", "data", "--socket", "/dev/null/s"], 1, "/dev/null");
    std::fs::create_dir(running.folder.path().join("run")).unwrap();
    refused(&["ls", "--socket", "run/s"], 3, "start one first");
}
