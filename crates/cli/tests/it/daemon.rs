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

#[test]
fn it_says_as_much_as_it_is_asked_to() {
    for (filter, is_said) in [(None, false), (Some("bifolio_daemon=debug"), true)] {
        let folder = tempfile::tempdir().unwrap();
        let (socket, path) = (folder.path().join("socket"), folder.path().join("data"));
        std::fs::write(&path, [7; 5000]).unwrap();
        let mut daemon = bifolio(folder.path());
        daemon.args(["daemon", "--device", "host", "--memory", "64M", "--socket"]).arg(&socket).stderr(Stdio::piped());
        daemon.env_remove("RUST_LOG").envs(filter.map(|filter| ("RUST_LOG", filter)));
        let mut daemon = daemon.spawn().unwrap();
        until("it serves", || Client::connect(&socket).is_ok());
        let client = Client::connect(&socket).unwrap();
        let file = client.open_path(&path).unwrap();
        file.map(client.devices()[0], 0..5000, false).unwrap().acquire(0..5000).unwrap();
        drop((file, client));
        // SAFETY: a child of this process, which has not been waited for.
        unsafe { libc::kill(daemon.id() as i32, libc::SIGTERM) };
        assert!(daemon.wait().unwrap().success());
        let mut said = String::new();
        daemon.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let pid = format!("pid={}", std::process::id());
        for what in ["this server goes on", "connected", &pid, "pages moved", "fetched=1", "the daemon ends"] {
            assert_eq!(said.contains(what), is_said, "{what} in\n{said}");
        }
    }
}

/// A daemon with two devices, and a folder.
struct Running {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Running {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = bifolio(folder.path());
        daemon.args(["daemon", "--device", "host:0,host:1", "--memory", "64M"]).stderr(Stdio::null());
        // Places are in the folder.
        daemon.args(args.iter().map(|arg| if arg.contains('.') { folder.path().join(arg) } else { arg.into() }));
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

#[test]
fn what_it_holds_is_shown_and_served_to_prometheus() {
    let running = Running::start_with(&["--metrics", "metrics.sock"]);
    let path = running.folder.path().join("data");
    std::fs::write(&path, vec![7; 300_000]).unwrap();
    running.said(&["warm", "data"]);
    let top = |args: &[&str]| {
        let mut command = bifolio(running.folder.path());
        command.env("BIFOLIO_SOCKET", running.folder.path().join("socket")).arg("top").args(args).output().unwrap()
    };
    let output = top(&["--interval", "0.1", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["devices"][0]["counts"]["fetched"], 5);
    assert_eq!(shown["devices"][0]["read_bytes"]["cached"], 300_000);
    assert_eq!((shown["files"].as_u64(), shown["servers"].as_u64()), (Some(1), Some(1)));
    assert_eq!(shown["clients"], serde_json::json!([]), "who looks does not count");
    let text = String::from_utf8(top(&["--interval", "0.1", "--count", "2"]).stdout).unwrap();
    assert_eq!(text.matches("server 1, up").count(), 2, "{text}");
    assert!(text.contains("data") && text.contains("host:1"), "{text}");
    sentence(&top(&["--interval", "0"]), 2);
    let ask = |what: &str| {
        use std::io::Write;
        let mut stream = std::os::unix::net::UnixStream::connect(running.folder.path().join("metrics.sock")).unwrap();
        write!(stream, "GET {what} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let metrics = ask("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    for line in [
        "bifolio_daemon_up 1",
        "bifolio_cache_files 1",
        "bifolio_cache_page_events_total{device=\"host:0\",event=\"fetched\"} 5",
        "bifolio_cache_read_bytes_total{device=\"host:0\",path=\"cached\",from=\"page_cache\"} 300000",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line} in\n{metrics}");
    }
    assert!(ask("/graph.svg").starts_with("HTTP/1.1 404"), "it has no graph");
}

#[test]
fn who_has_acquired_what_is_listed() {
    let running = Running::start_with(&["--free", "1M", "--recall", "5"]);
    let path = running.folder.path().join("data");
    std::fs::write(&path, vec![7; 300_000]).unwrap();
    let client = Client::connect(running.folder.path().join("socket")).unwrap();
    let file = client.open_path(&path).unwrap();
    let mut mapping = file.map_on(1, 0..300_000, false).unwrap();
    assert!(!running.said(&["ls"]).contains("acquired"));
    mapping.acquire(0..2048).unwrap();
    let (text, own) = (running.said(&["ls"]), std::process::id().to_string());
    let line =
        text.lines().find(|line| line.trim_start().starts_with(&own)).unwrap_or_else(|| panic!("{own} in\n{text}"));
    assert!(line.contains("host:1") && line.contains("2 KiB") && line.ends_with("data"), "{line}");
    let listed: serde_json::Value = serde_json::from_str(&running.said(&["ls", "--json"])).unwrap();
    let held = &listed[0]["holders"][0];
    assert_eq!((held["device"].as_str(), held["acquired_bytes"].as_u64()), (Some("host:1"), Some(2048)));
    let mut top = bifolio(running.folder.path());
    top.env("BIFOLIO_SOCKET", running.folder.path().join("socket")).args(["top", "--interval", "0.1", "--count", "1"]);
    let text = String::from_utf8(top.output().unwrap().stdout).unwrap();
    assert!(text.contains("of 1 MiB that shall be"), "{text}");
    sentence(&running.run(&["ls", "--nonsense"]), 2);
}

#[test]
fn units_are_written_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let run =
        |args: &[&str]| bifolio(folder.path()).current_dir(folder.path()).arg("daemon").args(args).output().unwrap();
    let output = run(&["install", "--units", ".", "--", "--memory", "8G", "--idle-exit", "60"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let unit = std::fs::read_to_string(folder.path().join("bifolio-daemon.service")).unwrap();
    let started = "daemon --socket %t/bifolio/cache.sock \"--memory\" \"8G\" \"--idle-exit\" \"60\"\n";
    assert!(unit.contains(started) && unit.contains("NoNewPrivileges=yes"), "{unit}");
    let socket = std::fs::read_to_string(folder.path().join("bifolio-daemon.socket")).unwrap();
    assert!(socket.contains("ListenSequentialPacket=%t/bifolio/cache.sock\nSocketMode=0600\n"), "{socket}");
    sentence(&run(&["install", "--units", "/none/such"]), 1);
    assert!(run(&["uninstall", "--units", "."]).status.success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(run(&["uninstall", "--units", "."]).status.success(), "once more");
}

/// As service managers start it: they listen before it runs, and go on listening when it has ended.
#[test]
fn it_takes_the_socket_that_a_service_manager_listens_at() {
    use bifolio_daemon::socket::Socket;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("socket");
    let listener = Socket::listen(&place, 0o600).unwrap();
    let number = listener.as_fd().as_raw_fd();
    let program = bifolio(folder.path());
    let mut daemon = std::process::Command::new("/bin/sh");
    daemon.arg("-c").arg("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"").arg(program.get_program());
    daemon.args(["daemon", "--device", "host", "--memory", "64M", "--idle-exit", "1", "--socket"]).arg(&place);
    daemon.stderr(Stdio::null());
    let hand_over = move || {
        // SAFETY: the child has the descriptor, which may be this number already, and both calls are safe after a fork.
        let handed = unsafe { libc::dup2(number, 3) == 3 && libc::fcntl(3, libc::F_SETFD, 0) == 0 };
        if handed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: see there.
    unsafe { daemon.pre_exec(hand_over) };
    let path = folder.path().join("data");
    std::fs::write(&path, [7; 5000]).unwrap();
    for _ in 0..2 {
        let mut running = daemon.spawn().unwrap();
        let client = Client::connect(&place).unwrap();
        let file = client.open_path(&path).unwrap();
        file.map(client.devices()[0], 0..5000, false).unwrap().acquire(0..5000).unwrap();
        drop((file, client));
        assert!(running.wait().unwrap().success(), "it ends when nobody is there");
        assert!(place.exists(), "the socket is not its own");
    }
}
