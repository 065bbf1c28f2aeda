//! `bifolio mount` and `bifolio unmount`, beside a daemon and without one.

use crate::support::{bifolio, sentence};
use bifolio_daemon::Client;
use bifolio_device::{Device, DeviceSlice, HostOptions};
use bifolio_testing::{skip, until};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn can_mount() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() == 0 };
    let can = is_root && fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        skip("mounting takes root and FUSE, and /dev/fuse cannot be opened here");
    }
    can
}

/// A folder with a source and a mount point; what is mounted is unmounted in the end.
struct Place {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("bifolio-cli-mount-").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["source", "mount", "full", "run"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("full/file"), []).unwrap();
        Self { folder, daemon: None }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = bifolio(self.folder.path());
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("BIFOLIO_SOCKET", self.at("run/socket"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn start_daemon(&mut self) {
        let mut command = self.command(&["daemon", "--memory", "64M"]);
        self.daemon = Some(command.stderr(Stdio::null()).spawn().unwrap());
        until("the daemon serves", || Client::connect(self.at("run/socket")).is_ok());
    }

    fn is_mounted(&self) -> bool {
        let (mounts, place) = (fs::read("/proc/self/mountinfo").unwrap(), self.at("mount"));
        let place = place.as_os_str().as_bytes();
        mounts.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(self.at("mount")).status();
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn a_mount_shares_files_with_clients_of_the_daemon() {
    if !can_mount() {
        return;
    }
    let mut place = Place::new();
    let (path, shown) = (place.at("source/data"), place.at("mount/data"));
    fs::write(&path, [1; 8192]).unwrap();
    place.start_daemon();
    let mounted = place.run(&["mount", "source", "mount"]);
    assert!(mounted.status.success() && mounted.stderr.is_empty(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let client = Client::connect(place.at("run/socket")).unwrap();
    let file = client.open_path(&path).unwrap();
    let mut mapping = file.map(client.devices()[0], 0..8192, true).unwrap();
    let device = Device::host(&HostOptions::default());
    let stream = device.create_stream().unwrap();
    mapping.acquire(0..8192).unwrap();
    let slice = |at: u64, len: u64| {
        // SAFETY: what is used of it is acquired.
        unsafe { DeviceSlice::from_raw(mapping.ptr().offset_by(at), len) }
    };
    let (start, pair) = (slice(0, 10), slice(5000, 2));
    stream.upload(start, &[2; 10]).unwrap();
    mapping.release(0..8192).unwrap();
    // Of a released range nothing is in the file yet.
    assert_eq!(fs::read(&path).unwrap()[..12], [1; 12]);
    assert_eq!(fs::read(&shown).unwrap()[..12], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
    fs::File::options().write(true).open(&shown).unwrap().write_all_at(&[3, 4], 5000).unwrap();
    let report = mapping.acquire(0..8192).unwrap();
    let mut seen = [0; 2];
    stream.download(&mut seen, pair).unwrap();
    assert_eq!(seen, [3, 4]);
    assert_eq!(report.counts.compared, 0, "what the mount has written is known, and nothing is compared");
    mapping.release(0..8192).unwrap();
    drop((mapping, file, client));
    assert!(place.run(&["unmount", "mount"]).status.success());
    until("it is unmounted", || !place.is_mounted());
}

#[test]
fn without_a_daemon_it_says_so_and_a_folder_is_shown_as_it_is() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::write(place.at("source/data"), "text").unwrap();
    let said = sentence(&place.run(&["mount", "source", "mount"]), 0);
    assert!(said.contains("no daemon answers at") && said.contains("served plainly"), "{said}");
    assert_eq!(fs::read(place.at("mount/data")).unwrap(), b"text");
    fs::write(place.at("mount/data"), "other").unwrap();
    assert_eq!(fs::read(place.at("source/data")).unwrap(), b"other");
    assert!(place.run(&["unmount", "mount"]).status.success());
    let said = sentence(&place.run(&["unmount", "mount"]), 2);
    assert!(said.contains("is no mount of bifolio mount"), "{said}");
}

/// The guard, which is told the mount point, is a child of the keeper, and so is the server.
fn keeper_of(place: &Place) -> u32 {
    let (name, mut found) = (place.at("mount"), None);
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if words.contains(&&b"--guard"[..]) && words.contains(&name.as_os_str().as_bytes()) {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            found = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        }
    }
    found.expect("a mount has a guard")
}

fn server_of(keeper: u32) -> Option<u32> {
    let is_guard = |id: &u32| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.ends_with(b"/mount\0"));
    children_of(keeper).into_iter().find(|id| !is_guard(id))
}

/// Symptom that this keeps away: a killed server took the mount with it.
#[test]
fn a_server_that_was_killed_is_replaced_and_programs_go_on() {
    if !can_mount() {
        return;
    }
    for args in [&["mount", "source", "mount"][..], &["mount", "--serve-all", "source", "mount"]] {
        let place = Place::new();
        fs::write(place.at("source/data"), "text").unwrap();
        assert!(place.run(args).status.success());
        let keeper = keeper_of(&place);
        let file = fs::File::options().read(true).append(true).open(place.at("mount/data")).unwrap();
        for turn in 0..5 {
            let server = server_of(keeper).expect("a keeper has a server");
            // SAFETY: takes numbers.
            unsafe { libc::kill(server as i32, libc::SIGKILL) };
            std::io::Write::write_all(&mut &file, b" more").unwrap();
            fs::write(place.at("mount/other"), [turn]).unwrap();
            assert_eq!(fs::read(place.at("source/other")).unwrap(), [turn]);
            until("another server serves", || server_of(keeper).is_some_and(|id| id != server));
        }
        assert_eq!(fs::read(place.at("source/data")).unwrap(), b"text more more more more more");
        drop(file);
        assert!(place.run(&["unmount", "mount"]).status.success());
        until("keeper and server end", || !Path::new(&format!("/proc/{keeper}")).exists());
    }
}

/// What is shown of a mount whose keeper was killed is an error until it is unmounted.
#[test]
fn the_mount_of_a_keeper_that_was_killed_is_taken_away() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::write(place.at("source/data"), "text").unwrap();
    for turn in 0..2 {
        let mut command = place.command(&["mount", "--fg", "--serve-all", "source", "mount"]);
        let mut server = command.stderr(Stdio::null()).spawn().unwrap();
        until("it is mounted", || place.is_mounted() && place.at("mount/data").exists());
        let guards = || children_of(server.id());
        until("it has a guard and a server", || guards().len() == 2);
        let file = fs::File::open(place.at("mount/data")).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        until("it is taken away", || !place.is_mounted());
        let error = file.read_at(&mut [0; 4], 0).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "turn {turn}: {error}");
    }
}

/// By the kernel's list.
fn children_of(process: u32) -> Vec<u32> {
    let children = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let all: Vec<String> = tasks.map(children).collect();
    all.iter().flat_map(|text| text.split_whitespace()).filter_map(|id| id.parse().ok()).collect()
}

#[test]
fn what_cannot_be_mounted_is_said_in_a_sentence() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::write(place.at("file"), []).unwrap();
    fs::create_dir(place.at("source/below")).unwrap();
    let refused = |args: &[&str], code: i32, words: &str| {
        let said = sentence(&place.run(args), code);
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(!place.is_mounted());
    };
    refused(&["mount", "none", "mount"], 1, "none: finding the source failed");
    refused(&["mount", "file", "mount"], 2, "file: the source is not a directory");
    refused(&["mount", "source", "none"], 1, "none: finding the mount point failed");
    refused(&["mount", "source", "file"], 2, "file: the mount point is not a directory");
    refused(&["mount", "source", "full"], 5, "full: the mount point is not empty");
    refused(&["mount", "source", "source/below"], 2, "source/below: the mount point lies in the source");
    refused(&["unmount", "none"], 2, "is no mount of bifolio mount");
    // Another user, who has to be able to start it.
    let program = place.at("bifolio");
    // Not by this process: another test that starts a program meanwhile would have it open for writing for a moment.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_bifolio")).arg(&program).status().unwrap();
    assert!(copied.success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["source", "mount"] {
        std::os::unix::fs::chown(place.at(name), Some(1234), Some(1234)).unwrap();
    }
    let mut command = Command::new(&program);
    command.args(["mount", "source", "mount"]).current_dir(place.folder.path()).stdin(Stdio::null());
    command.env("FUSERMOUNT_PATH", Path::new("/nonexistent/fusermount3")).uid(1234).gid(1234);
    let said = sentence(&command.output().unwrap(), 3);
    assert!(said.contains("takes fusermount3, which is missing: install fuse3, or mount as root"), "{said}");
}
