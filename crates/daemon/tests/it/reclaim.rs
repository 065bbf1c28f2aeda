//! Other programs need memory: what nobody uses is given back, and clients are asked for the rest.

use crate::points::{PLAN, plan_of, set_free, set_plan};
use crate::support::{FRAME, PAGE, Program, Running, folder, options};
use bifolio_cache::{Advice, ErrorKind};
use bifolio_daemon::protocol::{DeviceStatus, FileStatus};
use bifolio_daemon::{Client, Options};
use bifolio_testing::{noise, seed, until};
use std::path::Path;

const LEN: u64 = 3 * FRAME + 5000;
const FRAMES: u64 = 4;

/// More than anything that is free.
const ENOUGH: Option<u64> = Some(1 << 50);

fn start(folder: &Path, recall_ms: u64) -> Running {
    let options = Options { free_bytes: 1 << 40, recall_ms, ..options(folder, 24) };
    for device in [0, 1] {
        set_free(folder, device, ENOUGH);
    }
    Running::start_with(folder, &options, &[(PLAN, folder)])
}

fn on(client: &Client, device: usize) -> DeviceStatus {
    client.status().unwrap().devices[device].clone()
}

fn file_of(client: &Client) -> FileStatus {
    client.files().unwrap().remove(0)
}

#[test]
fn clean_frames_are_given_back_and_what_files_lack_stays() {
    let folder = folder();
    let path = folder.path().join("data");
    let mut oracle = noise(LEN as usize, seed());
    std::fs::write(&path, &oracle).unwrap();
    let running = start(folder.path(), 60_000);
    let client = running.connect();
    let file = client.open_path(&path).unwrap();
    let (mut writer, mut reader) = (Program::on(&file, 0, true), Program::on(&file, 1, false));
    for program in [&mut writer, &mut reader] {
        program.mapping.acquire(0..LEN).unwrap();
        program.mapping.release(0..LEN).unwrap();
        assert_eq!(program.mapping.window().shown_bytes(), FRAMES * FRAME);
    }
    writer.mapping.acquire(0..PAGE).unwrap();
    writer.store(0, &[7; 100]);
    oracle[..100].fill(7);
    writer.mapping.release(0..PAGE).unwrap();
    let on_disk = std::fs::read(&path).unwrap();
    for device in [0, 1] {
        set_free(folder.path(), device, Some(0));
    }
    until("clean frames are gone", || on(&client, 0).used_bytes <= 3 * FRAME && on(&client, 1).used_bytes == 0);
    let status = on(&client, 0);
    // Unless it was written after some seconds, as it would be in any case.
    if std::fs::read(&path).unwrap() == on_disk {
        assert!(status.used_bytes >= 2 * FRAME, "what the file lacks: {status:?}");
    }
    assert!(status.reclaimed_bytes >= 3 * FRAME && status.target_bytes == 1 << 40, "{status:?}");
    until("clients have unmapped what they do not use", || {
        [&writer, &reader].iter().all(|program| program.mapping.window().shown_bytes() == 0)
    });
    // No more is taken while others need it, and nobody was disconnected who has released.
    let error = reader.mapping.acquire(0..LEN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().contains("others leave"), "{error}");
    for device in [0, 1] {
        set_free(folder.path(), device, ENOUGH);
    }
    for program in [&mut writer, &mut reader] {
        until("memory is there again", || program.mapping.acquire(0..LEN).is_ok());
        assert!(program.load(0, LEN) == oracle);
        program.mapping.release(0..LEN).unwrap();
    }
    writer.mapping.sync().unwrap();
    assert!(std::fs::read(&path).unwrap() == oracle);
    drop((writer, reader, file, client));
    running.end();
}

#[test]
fn who_releases_what_was_recalled_stays_and_who_keeps_it_is_disconnected() {
    let folder = folder();
    let path = folder.path().join("data");
    let oracle = noise(LEN as usize, seed());
    std::fs::write(&path, &oracle).unwrap();
    let running = start(folder.path(), 1500);
    let (watching, kind, unkind) = (running.connect(), running.connect(), running.connect());
    let (files, other) = ([&kind, &unkind].map(|client| client.open_path(&path).unwrap()), watching.open_path(&path));
    let mut releases = Program::on(&files[0], 0, false);
    let mut keeps = Program::on(&files[1], 0, true);
    let mut elsewhere = Program::on(other.as_ref().unwrap(), 1, false);
    releases.mapping.acquire(0..LEN).unwrap();
    keeps.mapping.acquire(PAGE..2 * FRAME).unwrap();
    // Nobody else's, as it is not released.
    keeps.store(PAGE, &[9; 50]);
    elsewhere.mapping.acquire(0..LEN).unwrap();
    set_free(folder.path(), 0, Some(0));
    until("both are asked", || files.iter().all(|file| !file.recalls().is_empty()));
    let recall = files[0].recalls().remove(0);
    assert_eq!((recall.device, recall.range.clone()), (0, 0..LEN));
    assert!(other.as_ref().unwrap().recalls().is_empty(), "nobody needs memory of the other device");
    let held = file_of(&watching).holders;
    let own = std::process::id();
    for (device, bytes) in [(0, LEN), (0, 2 * FRAME - PAGE), (1, LEN)] {
        assert!(held.contains(&(own, device, bytes)), "{held:?}");
    }
    let recalled: u64 = watching.status().unwrap().clients.iter().map(|client| client.recalled_bytes).sum();
    assert_eq!(recalled, LEN + 2 * FRAME - PAGE);
    releases.mapping.release(0..LEN).unwrap();
    until("who keeps it is disconnected", || unkind.greet().is_err());
    let error = unkind.greet().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    let said = error.to_string();
    assert!(said.contains("disconnected this program") && said.contains("connect again"), "{said}");
    assert!(keeps.mapping.acquire(0..PAGE).unwrap_err().to_string().contains("disconnected this program"));
    until("all of the device is given back", || on(&watching, 0).used_bytes == 0);
    // What it has mapped stays, and what it had not released is taken back.
    assert!(keeps.load(PAGE, 2 * FRAME - PAGE) == oracle[PAGE as usize..2 * FRAME as usize]);
    kind.greet().unwrap();
    set_free(folder.path(), 0, ENOUGH);
    until("nothing is asked for any more", || files[0].recalls().is_empty());
    until("memory is there again", || releases.mapping.acquire(0..LEN).is_ok());
    assert!(releases.load(0, LEN) == oracle && elsewhere.load(0, LEN) == oracle);
    assert!(std::fs::read(&path).unwrap() == oracle);
}

#[test]
fn servers_that_are_killed_while_they_take_memory_back_lose_nothing() {
    for point in ["Reclaimed", "Recalled", "Detaching", "EvictDropped"] {
        let folder = folder();
        let path = folder.path().join("data");
        let mut oracle = noise(LEN as usize, seed());
        std::fs::write(&path, &oracle).unwrap();
        let running = start(folder.path(), 400);
        let (watching, unkind) = (running.connect(), running.connect());
        let mut writer = Program::on(&watching.open_path(&path).unwrap(), 0, true);
        let mut keeps = Program::on(&unkind.open_path(&path).unwrap(), 0, false);
        writer.mapping.acquire(0..LEN).unwrap();
        writer.store(5, &[1; 3 * PAGE as usize]);
        oracle[5..5 + 3 * PAGE as usize].fill(1);
        writer.mapping.release(0..LEN).unwrap();
        writer.mapping.sync().unwrap();
        keeps.mapping.acquire(FRAME..FRAME + 10).unwrap();
        set_plan(folder.path(), &[format!("{point} 1")]);
        set_free(folder.path(), 0, Some(0));
        until("the server was killed there", || plan_of(folder.path()).is_empty());
        until("who keeps it is disconnected", || unkind.greet().is_err());
        until("all is given back", || on(&watching, 0).used_bytes == 0);
        set_free(folder.path(), 0, ENOUGH);
        until("memory is there again", || writer.mapping.acquire(0..LEN).is_ok());
        assert!(writer.load(0, LEN) == oracle, "{point}");
        assert!(keeps.load(FRAME, 10) == oracle[FRAME as usize..FRAME as usize + 10], "{point}");
        writer.store(LEN - 9, &[2; 9]);
        oracle[LEN as usize - 9..].fill(2);
        writer.mapping.release(0..LEN).unwrap();
        writer.mapping.advise(0..LEN, Advice::DontNeed).unwrap();
        writer.mapping.sync().unwrap();
        assert!(std::fs::read(&path).unwrap() == oracle, "{point}");
    }
}

#[test]
fn versions_that_were_released_are_not_shown_any_longer() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 24));
    let (one, two) = (running.connect(), running.connect());
    let mut reader = Program::on(&one.open_path(&path).unwrap(), 0, false);
    let mut writer = Program::on(&two.open_path(&path).unwrap(), 0, true);
    reader.mapping.acquire(0..LEN).unwrap();
    writer.mapping.acquire(0..PAGE).unwrap();
    writer.mapping.release(0..PAGE).unwrap();
    assert!(reader.load(0, LEN).iter().all(|byte| *byte == 1));
    let pin = reader.mapping.pin(FRAME..FRAME + 1).unwrap();
    reader.mapping.release(0..LEN).unwrap();
    // It hears of it by the answer or beside it.
    until("it is told", || reader.mapping.window().shown_bytes() == FRAME);
    assert_eq!(reader.load(FRAME, 1), [1]);
    drop(pin);
    assert_eq!(reader.mapping.window().shown_bytes(), 0);
}
