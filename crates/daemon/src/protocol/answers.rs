//! What a server answers, and says unasked.

use super::limits::{DATA_BYTES_MAX, DEVICES_MAX, FILES_MAX, FRAMES_MAX};
use super::messages::{Event, ToClient};
use super::status::{counts, read_file, read_report, read_status, write_file, write_status};
use super::words::{Reader, Writer};
use bifolio_cache::service::Answer;
use bifolio_cache::{ErrorKind, FileId};

/// A server's message and the number of what it answers.
pub fn encode_answer(number: u64, message: &ToClient) -> Vec<u8> {
    let new = |kind| Writer::new(kind, number);
    let written = match message {
        ToClient::Welcome { version, devices } => {
            let head = new(1).word(*version).word(devices.len() as u64);
            devices.iter().fold(head, |to, name| to.text(name))
        }
        ToClient::Opened { size, is_lent } => new(2).word(*size).word(u64::from(*is_lent)),
        ToClient::Answered(Answer::Done) => new(3),
        ToClient::Answered(Answer::Reported(report)) => {
            new(4).words(counts(&report.counts)).word(report.seconds.to_bits()).word(u64::from(report.always_compared))
        }
        ToClient::Answered(Answer::Acquired { report, edition }) => new(18)
            .words(counts(&report.counts))
            .word(report.seconds.to_bits())
            .word(u64::from(report.always_compared))
            .word(*edition),
        // Addresses are nobody's business.
        ToClient::Answered(Answer::Mapped { range, .. }) => new(5).range(range),
        ToClient::Answered(Answer::Frames { frame_bytes, frames }) => {
            write_frames(new(6), *frame_bytes, u64::MAX, frames)
        }
        ToClient::Frames { frame_bytes, end, frames } => write_frames(new(6), *frame_bytes, *end, frames),
        ToClient::Lent { bytes } => new(7).word(*bytes),
        ToClient::NotLent => new(8),
        ToClient::Failed { kind, os_code, subject, detail } => {
            let kind = ErrorKind::ALL.iter().position(|known| known == kind).unwrap_or(0) as u64;
            let code = os_code.map_or(0, |code| u64::from(code.unsigned_abs()));
            new(9).word(kind).word(code).text(subject).text(detail)
        }
        ToClient::Again => new(10),
        ToClient::Recall { file, device, range, within_ms } => {
            new(15).words([*file, *device as u64]).range(range).word(*within_ms)
        }
        ToClient::NewVersion { file, device, range } => new(16).words([*file, *device as u64]).range(range),
        ToClient::Gone { why } => new(17).text(why),
        ToClient::Status(status) => write_status(new(14), status),
        ToClient::Files { is_all, files } => {
            files.iter().fold(new(11).words([u64::from(*is_all), files.len() as u64]), write_file)
        }
        ToClient::Data { bytes } => new(12).bytes(bytes),
        ToClient::Watched { number, event } => write_event(new(13).word(*number), event),
    };
    written.0
}

fn write_frames(to: Writer, frame_bytes: u64, end: u64, frames: &[(u64, u32)]) -> Writer {
    let head = to.words([frame_bytes, end, frames.len() as u64]);
    head.words(frames.iter().flat_map(|(at, frame)| [*at, u64::from(*frame)]))
}

fn write_event(to: Writer, event: &Event) -> Writer {
    let of = |to: Writer, kind, (device, inode): &FileId| to.words([kind, *device, *inode]);
    match event {
        Event::Wanted(file) => of(to, 1, file),
        Event::Unwanted(file) => of(to, 2, file),
        Event::All => to.word(3),
        Event::Recall(file, range) => of(to, 4, file).range(range),
    }
}

fn read_event(from: &mut Reader<'_>) -> Option<Event> {
    let kind = from.word()?;
    let file = if matches!(kind, 1 | 2 | 4) { (from.word()?, from.word()?) } else { (0, 0) };
    Some(match kind {
        1 => Event::Wanted(file),
        2 => Event::Unwanted(file),
        3 => Event::All,
        4 => Event::Recall(file, from.range()?),
        _ => return None,
    })
}

/// A server's message; none if it is none.
pub fn decode_answer(bytes: &[u8]) -> Option<(u64, ToClient)> {
    let mut from = Reader(bytes);
    let (kind, number) = (from.word()?, from.word()?);
    let message = match kind {
        1 => {
            let (version, count) = (from.word()?, from.count(DEVICES_MAX)?);
            ToClient::Welcome { version, devices: (0..count).map(|_| from.text()).collect::<Option<_>>()? }
        }
        2 => ToClient::Opened { size: from.word()?, is_lent: from.truth()? },
        3 => ToClient::Answered(Answer::Done),
        4 => ToClient::Answered(Answer::Reported(read_report(&mut from)?)),
        5 => ToClient::Answered(Answer::Mapped { range: from.range()?, address: 0 }),
        6 => {
            let (frame_bytes, end, count) = (from.word()?, from.word()?, from.count(FRAMES_MAX)?);
            let frame = |_| Some((from.word()?, from.small()? as u32));
            ToClient::Frames { frame_bytes, end, frames: (0..count).map(frame).collect::<Option<_>>()? }
        }
        7 => ToClient::Lent { bytes: from.word()? },
        8 => ToClient::NotLent,
        9 => {
            let kind = *ErrorKind::ALL.get(from.small()?)?;
            let code = i32::try_from(from.word()?).ok()?;
            let os_code = (code != 0).then_some(code);
            ToClient::Failed { kind, os_code, subject: from.text()?, detail: from.text()? }
        }
        10 => ToClient::Again,
        11 => {
            let (is_all, count) = (from.truth()?, from.count(FILES_MAX)?);
            ToClient::Files { is_all, files: (0..count).map(|_| read_file(&mut from)).collect::<Option<_>>()? }
        }
        12 => ToClient::Data { bytes: from.bytes(DATA_BYTES_MAX)? },
        13 => ToClient::Watched { number: from.word()?, event: read_event(&mut from)? },
        14 => ToClient::Status(read_status(&mut from)?),
        15 => ToClient::Recall {
            file: from.word()?,
            device: from.count(DEVICES_MAX)?,
            range: from.range()?,
            within_ms: from.word()?,
        },
        16 => ToClient::NewVersion { file: from.word()?, device: from.count(DEVICES_MAX)?, range: from.range()? },
        17 => ToClient::Gone { why: from.text()? },
        18 => ToClient::Answered(Answer::Acquired { report: read_report(&mut from)?, edition: from.word()? }),
        _ => return None,
    };
    from.end((number, message))
}
