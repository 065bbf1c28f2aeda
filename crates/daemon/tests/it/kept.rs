//! What is cached, and files that stay.

use crate::support::{FRAME, PAGE, Program, Running, folder, options};
use bifolio_cache::ErrorKind;
use bifolio_daemon::protocol::FileStatus;
use bifolio_testing::{noise, seed};
use std::path::Path;

const LEN: u64 = 3 * FRAME + 5000;

fn status(running: &Running, path: &Path) -> Option<FileStatus> {
    let path = path.canonicalize().unwrap().display().to_string();
    running.connect().files().unwrap().into_iter().find(|file| file.path == path)
}

/// Uses more than there is.
fn press(running: &Running, path: &Path) {
    let file = running.connect().open_path(path).unwrap();
    let mut program = Program::on(&file, 0, false);
    for at in (0..file.size()).step_by(FRAME as usize) {
        let part = at..(at + FRAME).min(file.size());
        program.mapping.acquire(part.clone()).unwrap();
        program.mapping.release(part).unwrap();
    }
}

#[test]
fn a_file_that_is_kept_stays_whoever_needs_memory_and_whoever_serves() {
    let folder = folder();
    let [path, other] = ["kept", "other"].map(|name| folder.path().join(name));
    let bytes = noise(LEN as usize, seed());
    std::fs::write(&path, &bytes).unwrap();
    std::fs::write(&other, noise(12 * FRAME as usize, 1)).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 8));
    let whole = LEN.next_multiple_of(PAGE);
    {
        let file = running.connect().open_path(&path).unwrap();
        file.keep(0, true).unwrap();
        // Whoever says it again says nothing new.
        file.keep(0, true).unwrap();
        let big = running.connect().open_path(&other).unwrap();
        let refused = Program::on(&big, 0, false).mapping.acquire(0..6 * FRAME).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    }
    for round in 0..3 {
        press(&running, &other);
        let found = status(&running, &path).unwrap();
        assert_eq!(
            (found.size, found.users, found.devices),
            (LEN, 0, vec![(whole, true), (0, false)]),
            "round {round}"
        );
        running.kill_server();
    }
    let file = running.connect().open_path(&path).unwrap();
    let mut program = Program::on(&file, 0, false);
    let report = program.mapping.acquire(0..LEN).unwrap();
    assert_eq!((report.fetched, report.hits), (0, whole / PAGE));
    assert!(program.load(0, LEN) == bytes);
    program.mapping.release(0..LEN).unwrap();
    file.keep(1, false).unwrap();
    file.keep(0, false).unwrap();
    let big = running.connect().open_path(&other).unwrap();
    // With what is kept there would be no room for it.
    Program::on(&big, 0, false).mapping.acquire(0..6 * FRAME).unwrap();
    let found = status(&running, &path).unwrap();
    assert!(found.devices[0].0 < whole && !found.devices[0].1 && found.users == 1, "{found:?}");
    drop((program, file, big));
    running.end();
}

#[test]
fn a_file_that_was_kept_is_forgotten_with_its_name_or_as_one_wishes() {
    let folder = folder();
    let running = Running::start(folder.path(), &options(folder.path(), 8));
    let path = folder.path().join("data");
    std::fs::write(&path, noise(PAGE as usize, 1)).unwrap();
    let file = running.connect().open_path(&path).unwrap();
    file.keep(0, true).unwrap();
    assert_eq!(file.keep(2, true).unwrap_err().kind(), ErrorKind::BadUse);
    std::fs::remove_file(&path).unwrap();
    drop(file);
    assert!(running.connect().files().unwrap().is_empty());
    let empty = folder.path().join("empty");
    std::fs::write(&empty, []).unwrap();
    let file = running.connect().open_path(&empty).unwrap();
    assert_eq!(file.keep(0, true).unwrap_err().kind(), ErrorKind::BadRange);
    drop(file);
    running.end();
}

#[test]
fn all_files_are_named_page_by_page() {
    let folder = folder();
    let running = Running::start(folder.path(), &options(folder.path(), 8));
    let client = running.connect();
    let mut expected: Vec<String> = (0..41)
        .map(|number| {
            let path = folder.path().join(format!("file {number}"));
            std::fs::write(&path, noise(1 + number, 1)).unwrap();
            path.canonicalize().unwrap().display().to_string()
        })
        .collect();
    let files: Vec<_> = expected.iter().map(|path| client.open_path(path).unwrap()).collect();
    let found = client.files().unwrap();
    assert!(found.iter().all(|file| file.users == 1 && file.devices == [(0, false); 2]), "{found:?}");
    assert!(found.windows(2).all(|two| two[0].id < two[1].id));
    let mut names: Vec<String> = found.into_iter().map(|file| file.path).collect();
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    drop((files, client));
    running.end();
}

#[test]
fn a_daemon_that_nobody_uses_ends_if_it_is_to_with_everything_written() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; PAGE as usize]).unwrap();
    let mut options = options(folder.path(), 8);
    options.idle_exit_seconds = 1;
    let mut running = Running::start(folder.path(), &options);
    let client = running.connect();
    let mut program = Program::on(&client.open_path(&path).unwrap(), 0, true);
    program.mapping.acquire(0..PAGE).unwrap();
    program.store(0, &[2; PAGE as usize]);
    program.mapping.release(0..PAGE).unwrap();
    // As long as somebody is connected it stays.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    program.mapping.acquire(0..PAGE).unwrap();
    drop((program, client));
    assert!(running.keeper.wait().unwrap().success());
    assert!(!running.socket.exists());
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 2));
}
