//! Versions that readers keep while others change the file.

use crate::support::{FRAME, PAGE, Program, Raw, Running, device, folder, options};
use bifolio_cache::ErrorKind;
use bifolio_cache::service::{Answer, Request};
use bifolio_daemon::protocol::{ToClient, ToServer};
use bifolio_device::{Access, Device};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

const FRAMES: u64 = 3;
const LEN: u64 = FRAMES * FRAME;

/// What is in a frame.
fn content(device: &Device, bytes: u64, frame: OwnedFd) -> Vec<u8> {
    let frame = device.import_frame_of(frame, bytes).unwrap();
    let place = device.reserve(bytes).unwrap();
    place.map(0, &frame, Access::ReadWrite).unwrap();
    let mut seen = vec![0x5a; bytes as usize];
    // SAFETY: the frame is mapped there.
    device.create_stream().unwrap().download(&mut seen, unsafe { place.slice() }).unwrap();
    seen
}

/// Symptom: a reader saw stores that were not released, or a later version. Cause: until it had been lent a frame it counted
/// as nobody who sees it.
#[test]
fn a_writer_between_an_acquire_and_the_mapping_of_its_frames_is_not_seen() {
    let device = device(0);
    for (is_lent, is_killed) in [(true, false), (false, false), (true, true), (false, true)] {
        let folder = folder();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![1; LEN as usize]).unwrap();
        let running = Running::start(folder.path(), &options(folder.path(), 20));
        let client = running.connect();
        let mut writer = Program::on(&client.open_path(&path).unwrap(), 0, true);
        let mut reader = Raw::connect(&running.socket);
        let file = File::options().read(true).write(is_lent).open(&path).unwrap();
        reader.ask(&ToServer::Open { file: 1 }, Some(file.as_fd())).unwrap();
        let (device_number, range) = (0, 0..LEN);
        let ask = |reader: &mut Raw, request| reader.again(&ToServer::Ask { file: 1, request });
        ask(&mut reader, Request::Map { lease: 1, device: device_number, range: range.clone() });
        let acquire = Request::Acquire { lease: 2, device: device_number, range: range.clone(), writable: false };
        assert!(matches!(ask(&mut reader, acquire).0, ToClient::Answered(Answer::Acquired { .. })));
        writer.mapping.acquire(0..LEN).unwrap();
        writer.store(0, &vec![2; LEN as usize]);
        if is_killed {
            running.kill_server();
        }
        let frames = Request::Frames { lease: 2, device: device_number, range: range.clone() };
        let ToClient::Frames { frames, .. } = ask(&mut reader, frames).0 else { panic!("frames") };
        assert_eq!(frames.len() as u64, FRAMES);
        writer.mapping.release(0..LEN).unwrap();
        for (at, frame) in frames {
            let lend = ToServer::Lend { file: 1, device: device_number, at, frame };
            let (ToClient::Lent { bytes }, Some(lent)) = reader.again(&lend) else { panic!("byte {at}") };
            let seen = content(&device, bytes, lent);
            assert!(seen.iter().all(|byte| *byte == 1), "lent {is_lent}, killed {is_killed}, from {at}");
        }
        // Another number stands for what was acquired later.
        let acquire = Request::Acquire { lease: 3, device: device_number, range: range.clone(), writable: false };
        ask(&mut reader, acquire);
        let ToClient::Frames { frames, .. } =
            ask(&mut reader, Request::Frames { lease: 3, device: device_number, range }).0
        else {
            panic!("frames")
        };
        let lend = ToServer::Lend { file: 1, device: device_number, at: frames[1].0, frame: frames[1].1 };
        let (ToClient::Lent { bytes }, Some(lent)) = reader.again(&lend) else { panic!("lent") };
        assert!(content(&device, bytes, lent).iter().all(|byte| *byte == 2));
    }
}

/// Symptom: the daemon used more memory than it was given. Cause: what readers keep was nobody's.
#[test]
fn versions_that_readers_keep_are_in_the_budget_until_they_are_released() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 3 * FRAMES));
    let (one, two) = (running.connect(), running.connect());
    let used = || two.status().unwrap().devices[0].used_bytes;
    let mut reader = Program::on(&one.open_path(&path).unwrap(), 0, false);
    let mut writer = Program::on(&two.open_path(&path).unwrap(), 0, true);
    reader.mapping.acquire(0..LEN).unwrap();
    assert_eq!(used(), LEN);
    writer.mapping.acquire(0..LEN).unwrap();
    assert_eq!(used(), 3 * LEN, "what the reader has, what the writer has, and twins");
    writer.store(0, &vec![2; LEN as usize]);
    writer.mapping.release(0..LEN).unwrap();
    running.kill_server();
    assert!(used() >= 2 * LEN, "{} after another server came", used());
    assert!(reader.load(0, LEN).iter().all(|byte| *byte == 1));
    // The reader's new version is seen by it, and the writer needs another copy for which there is no room.
    let mut later = Program::on(&one.open_path(&path).unwrap(), 0, false);
    later.mapping.acquire(0..LEN).unwrap();
    let error = writer.mapping.acquire(0..LEN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("versions that readers keep"), "{error}");
    assert!(later.load(0, LEN).iter().all(|byte| *byte == 2), "nobody has written");
    reader.mapping.release(0..LEN).unwrap();
    assert!(used() <= 2 * LEN, "{} after the release", used());
    writer.mapping.acquire(0..LEN).unwrap();
    writer.store(0, &vec![3; LEN as usize]);
    writer.mapping.release(0..LEN).unwrap();
    assert!(later.load(0, LEN).iter().all(|byte| *byte == 2));
    drop(later);
    reader.mapping.acquire(0..LEN).unwrap();
    assert!(reader.load(0, LEN).iter().all(|byte| *byte == 3));
    assert!(used() <= 2 * LEN, "{} after the reader has gone", used());
}

/// Symptom: frames that somebody sees were read as a whole when a page of them had changed. Cause: whoever wanted the new
/// version got memory without content.
#[test]
fn only_what_has_changed_is_fetched_where_readers_keep_a_version() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 20));
    let (one, two) = (running.connect(), running.connect());
    let mut reader = Program::on(&one.open_path(&path).unwrap(), 0, false);
    let mut later = Program::on(&two.open_path(&path).unwrap(), 0, false);
    reader.mapping.acquire(0..LEN).unwrap();
    let changed = [5 * PAGE, FRAME + 7 * PAGE];
    let home = File::options().write(true).open(&path).unwrap();
    for at in changed {
        home.write_all_at(&[2; 100], at).unwrap();
    }
    let report = later.mapping.acquire(0..LEN).unwrap();
    assert_eq!((report.fetched, report.copied), (2, 2 * FRAME / PAGE), "{report:?}");
    let mut now = vec![1; LEN as usize];
    for at in changed {
        now[at as usize..at as usize + 100].fill(2);
    }
    assert!(later.load(0, LEN) == now);
    assert!(reader.load(0, LEN).iter().all(|byte| *byte == 1));
    // A device that releases moves nothing at all.
    let mut writer = Program::on(&one.open_path(&path).unwrap(), 0, true);
    let report = writer.mapping.acquire(0..PAGE).unwrap();
    assert_eq!((report.fetched, report.copied), (0, FRAME / PAGE), "{report:?}");
    writer.store(0, &[3; 10]);
    writer.mapping.release(0..PAGE).unwrap();
    reader.mapping.release(0..LEN).unwrap();
    let report = reader.mapping.acquire(0..LEN).unwrap();
    assert_eq!(report.fetched, 0, "{report:?}");
    now[..10].fill(3);
    assert!(reader.load(0, LEN) == now);
}

/// Symptom: who acquired a file while another process on the device was writing saw half of what that did. Cause: all of a
/// device shared a frame that somebody writes.
#[test]
fn stores_that_are_not_released_are_not_seen_by_other_processes() {
    for is_killed in [false, true] {
        let folder = folder();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![1; LEN as usize]).unwrap();
        let running = Running::start(folder.path(), &options(folder.path(), 24));
        let [one, two, three] = [(); 3].map(|()| running.connect());
        let mut writer = Program::on(&one.open_path(&path).unwrap(), 0, true);
        let mut reader = Program::on(&two.open_path(&path).unwrap(), 0, false);
        let copies = three.open(File::open(&path).unwrap()).unwrap();
        let mut copy = Program::on(&copies, 0, false);
        let part = PAGE..FRAME + PAGE;
        writer.mapping.acquire(part.clone()).unwrap();
        writer.store(PAGE, &vec![2; FRAME as usize]);
        for program in [&mut reader, &mut copy] {
            let report = program.mapping.acquire(0..LEN).unwrap();
            assert_eq!(report.copied, 2 * FRAME / PAGE, "{report:?}");
        }
        if is_killed {
            running.kill_server();
        }
        for program in [&reader, &copy] {
            assert!(program.load(0, LEN).iter().all(|byte| *byte == 1), "killed {is_killed}");
        }
        writer.mapping.release(part.clone()).unwrap();
        let mut now = vec![1; LEN as usize];
        now[PAGE as usize..][..FRAME as usize].fill(2);
        for program in [&mut reader, &mut copy] {
            assert!(program.load(0, LEN).iter().all(|byte| *byte == 1), "killed {is_killed}");
            program.mapping.release(0..LEN).unwrap();
            program.mapping.acquire(0..LEN).unwrap();
            assert!(program.load(0, LEN) == now, "killed {is_killed}");
        }
    }
}

/// Who knows the edition need not ask for frames again.
#[test]
fn frames_have_another_edition_whenever_they_are_others() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 20));
    let client = running.connect();
    let mut writer = Program::on(&client.open_path(&path).unwrap(), 0, true);
    let mut reader = Raw::connect(&running.socket);
    let files = [File::options().read(true).write(true).open(&path).unwrap(), File::open(&path).unwrap()];
    for (number, file) in (1..).zip(&files) {
        reader.ask(&ToServer::Open { file: number }, Some(file.as_fd())).unwrap();
        let map = Request::Map { lease: 1, device: 0, range: 0..LEN };
        reader.again(&ToServer::Ask { file: number, request: map });
    }
    let mut lease = 1;
    let mut edition = |file: u64| {
        lease += 1;
        let acquire = Request::Acquire { lease, device: 0, range: 0..LEN, writable: false };
        let answer = reader.again(&ToServer::Ask { file, request: acquire }).0;
        let ToClient::Answered(Answer::Acquired { edition, .. }) = answer else { panic!("{answer:?}") };
        edition
    };
    let first = edition(1);
    assert_ne!(first, 0);
    assert_eq!(edition(1), first, "nothing has happened");
    assert_eq!(edition(2), 0, "copies are made for each acquire");
    // What readers see is left to them.
    writer.mapping.acquire(0..PAGE).unwrap();
    assert_eq!(edition(1), 0, "a version beside a writer's");
    writer.mapping.release(0..PAGE).unwrap();
    let second = edition(1);
    assert!(second > first, "{second} after {first}");
    running.kill_server();
    let third = edition(1);
    assert!(third > second, "{third} after {second}");
    assert_eq!(edition(1), third);
}
