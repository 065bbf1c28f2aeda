//! What a client asks for.

use super::limits::{DATA_BYTES_MAX, DEVICES_MAX};
use super::messages::ToServer;
use super::words::{Reader, Writer};
use bifolio_cache::LeaseNumber;
use bifolio_cache::service::Request;

/// A client's message and its number.
pub fn encode_request(number: u64, message: &ToServer) -> Vec<u8> {
    let new = |kind| Writer::new(kind, number);
    let written = match message {
        ToServer::Hello { version } => new(1).word(*version),
        ToServer::Open { file } => new(2).word(*file),
        ToServer::Close { file } => new(3).word(*file),
        ToServer::Lend { file, device, at, frame } => new(5).words([*file, *device as u64, *at, u64::from(*frame)]),
        ToServer::Bye => new(6),
        ToServer::Files { after: (device, inode) } => new(7).words([*device, *inode]),
        ToServer::Status => new(13),
        ToServer::Keep { file, device, is_kept } => new(8).words([*file, *device as u64, u64::from(*is_kept)]),
        ToServer::Read { file, offset, len } => new(9).words([*file, *offset, *len as u64]),
        ToServer::Write { file, offset, bytes } => new(10).words([*file, *offset]).bytes(bytes),
        ToServer::Sync { file } => new(11).word(*file),
        ToServer::Watch { done, is_past } => new(12).words([*done, u64::from(*is_past)]),
        ToServer::Ask { file, request } => write_request(new(4).word(*file), request),
    };
    written.0
}

fn write_request(to: Writer, request: &Request) -> Writer {
    let numbers = |to: Writer, numbers: &[LeaseNumber]| to.word(numbers.len() as u64).words(numbers.iter().copied());
    match request {
        Request::Map { lease, device, range } => to.words([1, *lease, *device as u64]).range(range),
        Request::Unmap { lease, device, acquired, writable } => {
            numbers(to.words([2, *lease, *device as u64, u64::from(*writable)]), acquired)
        }
        Request::Acquire { lease, device, range, writable } => {
            to.words([3, *lease, *device as u64, u64::from(*writable)]).range(range)
        }
        Request::Release { lease, device, range, writable } => {
            to.words([4, *lease, *device as u64, u64::from(*writable)]).range(range)
        }
        Request::Sync { device, acquired } => numbers(to.words([5, *device as u64]), acquired),
        Request::Bring { device, range, writable } => to.words([6, *device as u64, u64::from(*writable)]).range(range),
        Request::GiveBack { device, range } => to.words([7, *device as u64]).range(range),
        Request::Pin { lease, device, range } => to.words([8, *lease, *device as u64]).range(range),
        Request::Unpin { lease } => to.words([9, *lease]),
        Request::Frames { lease, device, range } => to.words([10, *lease, *device as u64]).range(range),
    }
}

/// A client's message, as anybody may have sent it; none if it is none.
pub fn decode_request(bytes: &[u8]) -> Option<(u64, ToServer)> {
    let mut from = Reader(bytes);
    let (kind, number) = (from.word()?, from.word()?);
    let message = match kind {
        1 => ToServer::Hello { version: from.word()? },
        2 => ToServer::Open { file: from.word()? },
        3 => ToServer::Close { file: from.word()? },
        4 => ToServer::Ask { file: from.word()?, request: read_request(&mut from)? },
        5 => ToServer::Lend {
            file: from.word()?,
            device: from.count(DEVICES_MAX)?,
            at: from.word()?,
            frame: from.small()? as u32,
        },
        6 => ToServer::Bye,
        7 => ToServer::Files { after: (from.word()?, from.word()?) },
        13 => ToServer::Status,
        8 => ToServer::Keep { file: from.word()?, device: from.count(DEVICES_MAX)?, is_kept: from.truth()? },
        9 => ToServer::Read { file: from.word()?, offset: from.word()?, len: from.count(DATA_BYTES_MAX)? },
        10 => ToServer::Write { file: from.word()?, offset: from.word()?, bytes: from.bytes(DATA_BYTES_MAX)? },
        11 => ToServer::Sync { file: from.word()? },
        12 => ToServer::Watch { done: from.word()?, is_past: from.truth()? },
        _ => return None,
    };
    from.end((number, message))
}

fn read_request(from: &mut Reader<'_>) -> Option<Request> {
    let operation = from.word()?;
    let lease = if matches!(operation, 1..=4 | 8..=10) { from.word()? } else { 0 };
    let device = if operation == 9 { 0 } else { from.count(DEVICES_MAX)? };
    let writable = if matches!(operation, 2..=4 | 6) { from.truth()? } else { false };
    Some(match operation {
        1 => Request::Map { lease, device, range: from.range()? },
        2 => Request::Unmap { lease, device, acquired: from.numbers()?, writable },
        3 => Request::Acquire { lease, device, range: from.range()?, writable },
        4 => Request::Release { lease, device, range: from.range()?, writable },
        5 => Request::Sync { device, acquired: from.numbers()? },
        6 => Request::Bring { device, range: from.range()?, writable },
        7 => Request::GiveBack { device, range: from.range()? },
        8 => Request::Pin { lease, device, range: from.range()? },
        9 => Request::Unpin { lease },
        10 => Request::Frames { lease, device, range: from.range()? },
        _ => return None,
    })
}
