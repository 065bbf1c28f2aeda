//! Messages come out as they went in.

use super::limits::*;
use super::*;
use bifolio_cache::service::{Answer, Request};
use bifolio_cache::{Counts, Error, ErrorKind, Report};

fn requests() -> Vec<ToServer> {
    let ask = |request| ToServer::Ask { file: 3, request };
    let (lease, device, range, writable) = (7, 2, 5..u64::MAX, true);
    vec![
        ToServer::Hello { version: 9 },
        ToServer::Open { file: 1 },
        ToServer::Close { file: u64::MAX },
        ToServer::Lend { file: 3, device: 1, at: 4096, frame: 77 },
        ToServer::Bye,
        ToServer::Files { after: (0, u64::MAX) },
        ToServer::Keep { file: 2, device: 63, is_kept: true },
        ToServer::Read { file: 2, offset: u64::MAX, len: DATA_BYTES_MAX },
        ToServer::Write { file: 2, offset: 5, bytes: vec![255, 0, 7] },
        ToServer::Sync { file: 9 },
        ToServer::Watch { done: 77, is_past: true },
        ToServer::Status,
        ask(Request::Map { lease, device, range: range.clone() }),
        ask(Request::Unmap { lease, device, acquired: vec![1, 2, 3], writable }),
        ask(Request::Acquire { lease, device, range: range.clone(), writable }),
        ask(Request::Release { lease, device, range: range.clone(), writable: false }),
        ask(Request::Sync { device, acquired: vec![] }),
        ask(Request::Bring { device, range: range.clone(), writable }),
        ask(Request::GiveBack { device, range: range.clone() }),
        ask(Request::Pin { lease, device, range: range.clone() }),
        ask(Request::Unpin { lease }),
        ask(Request::Frames { lease, device, range }),
    ]
}

fn file(devices: &[(u64, bool)], path: &str) -> FileStatus {
    let holders = devices.iter().map(|(bytes, _)| (7, 63, *bytes)).collect();
    FileStatus { id: (1, 2), size: 3, users: 4, devices: devices.to_vec(), holders, path: path.to_owned() }
}

fn status(devices: usize, clients: usize) -> Status {
    let counts = Counts { hits: 5, evicted: 7, copied: 8, ..Counts::default() };
    let device =
        DeviceStatus { used_bytes: 1, pages: 3, free_bytes: 9, read_bytes: [1, 2, 3, 4], ..Default::default() };
    let client = ClientStatus { pid: 77, uid: 1000, files: 2, used_bytes: u64::MAX, recalled_bytes: 4 };
    let (devices, clients) = (vec![DeviceStatus { counts, ..device }; devices], vec![client; clients]);
    Status { servers: 3, uptime_ms: 12, counts, devices, clients }
}

fn answers() -> Vec<ToClient> {
    let counts = Counts { hits: 1, fetched: 2, lost: 12, released: 6, flushed: 7, ..Counts::default() };
    vec![
        ToClient::Welcome { version: 1, devices: vec!["host:0".into(), "cuda:11".into()] },
        ToClient::Opened { size: 12, is_lent: true },
        ToClient::Answered(Answer::Done),
        ToClient::Answered(Answer::Reported(Report { counts, seconds: 0.25, always_compared: true })),
        ToClient::Answered(Answer::Acquired {
            report: Report { counts, seconds: 0.5, always_compared: false },
            edition: u64::MAX,
        }),
        ToClient::Answered(Answer::Mapped { range: 4..9, address: 0 }),
        ToClient::Frames { frame_bytes: 2 << 20, end: 99, frames: vec![(0, 1), (2 << 20, 5)] },
        ToClient::Lent { bytes: 2 << 20 },
        ToClient::NotLent,
        ToClient::failed(&Error::told(ErrorKind::Write, "a file", "is full \u{2713}", Some(28))),
        ToClient::Again,
        ToClient::Recall { file: 7, device: 63, range: 5..u64::MAX, within_ms: 10_000 },
        ToClient::NewVersion { file: 7, device: 0, range: 5..9 },
        ToClient::Gone { why: "it kept what was recalled".into() },
        ToClient::Data { bytes: vec![] },
        ToClient::Data { bytes: vec![0xff; 9] },
        ToClient::Watched { number: 8, event: Event::Wanted((1, 2)) },
        ToClient::Watched { number: 8, event: Event::Unwanted((1, 2)) },
        ToClient::Watched { number: 9, event: Event::All },
        ToClient::Watched { number: 9, event: Event::Recall((1, 2), 5..u64::MAX) },
        ToClient::Status(status(0, 0)),
        ToClient::Status(status(2, 3)),
        ToClient::Files { is_all: true, files: vec![] },
        ToClient::Files { is_all: false, files: vec![file(&[], "/a"), file(&[(1, false), (u64::MAX, true)], "")] },
    ]
}

#[test]
fn messages_come_out_as_they_went_in_and_no_part_of_one_is_one() {
    let check = |bytes: Vec<u8>, read: &dyn Fn(&[u8]) -> bool| {
        assert!(read(&bytes));
        for len in 0..bytes.len() {
            assert!(!read(&bytes[..len]), "{len} of {} bytes", bytes.len());
        }
        assert!(!read(&[&bytes[..], &[0; 8]].concat()));
    };
    for message in requests() {
        let bytes = encode_request(42, &message);
        let known = decode_request(&bytes);
        assert_eq!(known, Some((42, message)));
        check(bytes, &|bytes| decode_request(bytes).is_some());
    }
    for message in answers() {
        let bytes = encode_answer(42, &message);
        assert_eq!(decode_answer(&bytes), Some((42, message)));
        check(bytes, &|bytes| decode_answer(bytes).is_some());
    }
}

#[test]
fn whatever_is_read_as_a_message_is_written_as_the_same_bytes() {
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    let all: Vec<Vec<u8>> = requests().iter().map(|message| encode_request(1, message)).collect();
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = random.choice(&all).unwrap().clone();
        for _ in 0..random.usize(0..3) {
            let at = random.usize(..bytes.len());
            bytes[at] = if random.bool() { random.u8(..) } else { random.u8(..3) };
        }
        if let Some((number, message)) = decode_request(&bytes) {
            assert_eq!(encode_request(number, &message), bytes);
            read += 1;
        }
    }
    assert!(read > 1000, "{read} were messages");
}

#[test]
fn longest_messages_fit() {
    let (device, frame_bytes) = (1, 1);
    let numbers = ToServer::Ask { file: 1, request: Request::Sync { device, acquired: vec![1; NUMBERS_MAX] } };
    let frames = ToClient::Frames { frame_bytes, end: 1, frames: vec![(1, 1); FRAMES_MAX] };
    let text = "x".repeat(TEXT_BYTES_MAX * 2);
    let longest = file(&[(1, true); DEVICES_MAX], &"\u{2713}".repeat(PATH_BYTES_MAX));
    assert!(longest.holders.len() >= HOLDERS_MAX);
    let files = ToClient::Files { is_all: true, files: vec![longest; FILES_MAX] };
    let error = ToClient::failed(&Error::told(ErrorKind::Write, &text, text.clone(), None));
    let write = ToServer::Write { file: 1, offset: 1, bytes: vec![1; DATA_BYTES_MAX] };
    let data = ToClient::Data { bytes: vec![1; DATA_BYTES_MAX] };
    let status = ToClient::Status(status(DEVICES_MAX, 2 * CLIENTS_MAX));
    let requests = [numbers, write].map(|message| encode_request(1, &message));
    let answers = [&frames, &error, &files, &data, &status].map(|message| encode_answer(1, message));
    for bytes in requests.into_iter().chain(answers) {
        assert!(bytes.len() <= crate::socket::MESSAGE_BYTES_MAX, "{}", bytes.len());
    }
    assert!(decode_answer(&encode_answer(1, &error)).is_some() && decode_answer(&encode_answer(1, &files)).is_some());
}
