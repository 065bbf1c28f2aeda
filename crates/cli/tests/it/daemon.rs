//! `bifolio daemon`: it serves, and ends when it is told to.

use crate::support::bifolio;
use bifolio_daemon::Client;
use bifolio_testing::until;
use std::io::Read;
use std::process::Stdio;

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
