//! Messages as words, and back: pure functions. `docs/protocol.md` says what they mean.
//!
//! A message is a sequence of 64-bit words in little-endian order: what it is, its number, and what it says. Text is its
//! length in bytes and the bytes, filled up to whole words. Whoever reads one believes nothing: what is too short, too
//! long, or says what cannot be, is no message.

use bifolio_cache::service::{Answer, Request};
use bifolio_cache::{Counts, Error, ErrorKind, FileId, LeaseNumber, Report};
use std::ops::Range;

/// Of the protocol. Who speaks another one is told so, and goes.
pub const VERSION: u64 = 1;

/// Numbers in one message at most.
pub const NUMBERS_MAX: usize = 16_384;

/// Frames in one answer at most; who wants more asks from the end of these on.
pub const FRAMES_MAX: usize = 4096;

/// Files in one answer at most; who wants more asks for those behind the last.
pub const FILES_MAX: usize = 16;

/// Connections that one answer tells of at most.
pub const CLIENTS_MAX: usize = 2048;

/// Connections of which one answer says what they have of a file, at most.
pub const HOLDERS_MAX: usize = 64;

/// Bytes of a file in one message at most.
pub const DATA_BYTES_MAX: usize = 128 << 10;

/// Bytes of a path in an answer at most; of a longer one this many are told.
const PATH_BYTES_MAX: usize = 4096;

/// Bytes of text at most.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Numbers of what has happened to pages.
const COUNTS: usize = 13;

/// Devices of a cache at most.
const DEVICES_MAX: usize = 64;

/// From a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToServer {
    /// The first message.
    Hello {
        /// Of the protocol.
        version: u64,
    },
    /// Opens the file whose descriptor comes with it, under a number of the client's choice.
    Open {
        /// That number.
        file: u64,
    },
    /// Does not use a file any more, nor anything mapped of it.
    Close {
        /// Its number.
        file: u64,
    },
    /// What a mapping asks for.
    Ask {
        /// Of which file.
        file: u64,
        /// What.
        request: Request,
    },
    /// Wants the descriptor of a frame.
    Lend {
        /// Of which file.
        file: u64,
        /// On which device.
        device: usize,
        /// From which byte of the file on it lies.
        at: u64,
        /// Its number.
        frame: u32,
    },
    /// Which files are cached, behind this one in the order of their identities.
    Files {
        /// Device and inode of the last one that is known; (0, 0) for the first files.
        after: FileId,
    },
    /// Keeps all of a file on a device until it is told otherwise, whoever has it open.
    Keep {
        /// Its number.
        file: u64,
        /// On which device.
        device: usize,
        /// Or does not keep it any more.
        is_kept: bool,
    },
    /// Reads a file as a CPU does.
    Read {
        /// Its number.
        file: u64,
        /// From which byte on.
        offset: u64,
        /// How many.
        len: usize,
    },
    /// Writes to a file as a CPU does.
    Write {
        /// Its number.
        file: u64,
        /// From which byte on.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Has everything that was released of a file on the disk.
    Sync {
        /// Its number.
        file: u64,
    },
    /// A mount has done what it was told last, if anything, and waits for what it is told next.
    Watch {
        /// The number of what it has done, or 0.
        done: u64,
        /// Whether programs read and write that file past the mount.
        is_past: bool,
    },
    /// What the daemon holds and has done.
    Status,
    /// The last message.
    Bye,
}

/// What a daemon holds, and what its present server has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Servers that there were, this one included.
    pub servers: u64,
    /// For how long this one has served, in milliseconds.
    pub uptime_ms: u64,
    /// What has happened to pages, of all devices and CPUs.
    pub counts: Counts,
    /// In the order of their numbers.
    pub devices: Vec<DeviceStatus>,
    /// Connections, in the order in which they came.
    pub clients: Vec<ClientStatus>,
}

/// What a daemon holds on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Bytes of frames in use, twins included, and the most there may be; zeroes while nothing was mapped there.
    pub used_bytes: u64,
    /// See there.
    pub budget_bytes: u64,
    /// Pages with a replica there; those that others have changed, and those that their files lack changes of.
    pub pages: u64,
    /// See there.
    pub behind: u64,
    /// See there.
    pub pending: u64,
    /// What was done for it.
    pub counts: Counts,
    /// Of those in use, bytes of versions that readers keep.
    pub left_bytes: u64,
    /// Bytes of the device that are free for anybody, when that was last looked at, and how many there shall be; zeroes where
    /// nobody wants any.
    pub free_bytes: u64,
    /// See there.
    pub target_bytes: u64,
    /// Bytes of frames that were given back as others needed memory.
    pub reclaimed_bytes: u64,
    /// Bytes that were read from files, in the order of [`bifolio_io::EngineKind::ALL`].
    pub read_bytes: [u64; ENGINES],
}

/// Ways to read a file.
const ENGINES: usize = bifolio_io::EngineKind::ALL.len();

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStatus {
    /// The process that connected, and its user.
    pub pid: u32,
    /// See there.
    pub uid: u32,
    /// Files that it has open.
    pub files: u64,
    /// Bytes that stay where they are, as it has acquired or pinned them.
    pub used_bytes: u64,
    /// Of those, bytes that it was asked to release.
    pub recalled_bytes: u64,
}

/// What a mount is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A file may be on devices from now on.
    Wanted(FileId),
    /// It is not any more.
    Unwanted(FileId),
    /// Everything that is cached has been told.
    All,
    /// A device is about to acquire a range of a file, or has released it: what programs have stored into mappings is wanted
    /// back, and what they were given is out of date.
    Recall(FileId, Range<u64>),
}

/// What is said of a file that is cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStatus {
    /// Device and inode.
    pub id: FileId,
    /// Its size when it was last looked at.
    pub size: u64,
    /// How often clients have it open.
    pub users: u64,
    /// By device: bytes that are cached there, and whether all of it is kept there.
    pub devices: Vec<(u64, bool)>,
    /// Who has acquired or pinned something of it: processes, devices and bytes.
    pub holders: Vec<(u32, usize, u64)>,
    /// Its path at present.
    pub path: String,
}

/// To a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ToClient {
    /// Hello.
    Welcome {
        /// Of the protocol.
        version: u64,
        /// Names of the devices, in the order of their numbers.
        devices: Vec<String>,
    },
    /// The file is open.
    Opened {
        /// How long it is.
        size: u64,
        /// Whether frames are lent; else the client sees copies, which are read only.
        is_lent: bool,
    },
    /// What was asked for is done.
    Answered(Answer),
    /// The frames of the first bytes of what was asked for.
    Frames {
        /// How long they are.
        frame_bytes: u64,
        /// Up to which byte of the file.
        end: u64,
        /// From which byte of the file on which one lies.
        frames: Vec<(u64, u32)>,
    },
    /// The frame, whose descriptor comes with it.
    Lent {
        /// How long it is.
        bytes: u64,
    },
    /// It is another frame by now.
    NotLent,
    /// It could not be done.
    Failed {
        /// Of the kinds of errors.
        kind: ErrorKind,
        /// The system's number, if there is one.
        os_code: Option<i32>,
        /// What it is about.
        subject: String,
        /// What is wrong, and what to do.
        detail: String,
    },
    /// Files.
    Files {
        /// Whether there are no more behind these.
        is_all: bool,
        /// In the order of their identities.
        files: Vec<FileStatus>,
    },
    /// Bytes of a file: fewer than were asked for at its end.
    Data {
        /// Those.
        bytes: Vec<u8>,
    },
    /// What a mount is told next.
    Watched {
        /// Its number.
        number: u64,
        /// What.
        event: Event,
    },
    /// What there is and was done.
    Status(Status),
    /// Unasked: another server serves now. What was not answered is asked again.
    Again,
    /// Unasked: memory of a device is needed.
    Recall {
        /// The client's number of the file.
        file: u64,
        /// Of the device.
        device: usize,
        /// Bytes of the file that are to be released; none if what is shown and not in use is to go.
        range: Range<u64>,
        /// Until when, in milliseconds from now; 0 if it is not wanted any more.
        within_ms: u64,
    },
    /// Unasked: what the client has acquired is not what the file has by now.
    NewVersion {
        /// The client's number of the file.
        file: u64,
        /// The device on which it was acquired.
        device: usize,
        /// What was acquired.
        range: Range<u64>,
    },
    /// Unasked, at last: the client has nothing any more.
    Gone {
        /// Why, and what to do.
        why: String,
    },
}

impl ToClient {
    /// An error, as it crosses.
    pub fn failed(error: &Error) -> Self {
        let text = |text: &str| text.chars().take(TEXT_BYTES_MAX / 8).collect();
        let (subject, detail) = (text(error.subject()), text(error.detail()));
        Self::Failed { kind: error.kind(), os_code: error.os_code(), subject, detail }
    }
}

/// Words that are read one by one.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn small(&mut self) -> Option<usize> {
        self.word().filter(|word| *word < u64::from(u32::MAX)).map(|word| word as usize)
    }

    fn count(&mut self, most: usize) -> Option<usize> {
        self.small().filter(|count| *count <= most)
    }

    fn truth(&mut self) -> Option<bool> {
        match self.word()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn range(&mut self) -> Option<Range<u64>> {
        let (start, end) = (self.word()?, self.word()?);
        (start <= end).then_some(start..end)
    }

    fn numbers(&mut self) -> Option<Vec<LeaseNumber>> {
        let count = self.count(NUMBERS_MAX)?;
        (0..count).map(|_| self.word()).collect()
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes(TEXT_BYTES_MAX)?).ok()
    }

    fn bytes(&mut self, most: usize) -> Option<Vec<u8>> {
        let len = self.count(most)?;
        let (bytes, rest) = self.0.split_at_checked(len.next_multiple_of(8))?;
        self.0 = rest;
        let (text, fill) = bytes.split_at(len);
        if fill.iter().any(|byte| *byte != 0) {
            return None;
        }
        Some(text.to_vec())
    }

    fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Words that are written one by one.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u64, number: u64) -> Self {
        Self(Vec::with_capacity(64)).word(kind).word(number)
    }

    fn word(mut self, word: u64) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn words(self, words: impl IntoIterator<Item = u64>) -> Self {
        words.into_iter().fold(self, Self::word)
    }

    fn range(self, range: &Range<u64>) -> Self {
        self.word(range.start).word(range.end)
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let mut written = self.word(bytes.len() as u64);
        written.0.extend(bytes);
        let fill = bytes.len().next_multiple_of(8) - bytes.len();
        written.0.extend(std::iter::repeat_n(0, fill));
        written
    }
}

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

fn write_file(to: Writer, file: &FileStatus) -> Writer {
    let FileStatus { id: (device, inode), size, users, devices, holders, path } = file;
    let end = (0..=path.len().min(PATH_BYTES_MAX)).rev().find(|at| path.is_char_boundary(*at)).unwrap_or(0);
    let head = to.words([*device, *inode, *size, *users, devices.len() as u64]);
    let told = &holders[..holders.len().min(HOLDERS_MAX)];
    let to = head.words(devices.iter().flat_map(|(bytes, is_kept)| [*bytes, u64::from(*is_kept)]));
    let to = to.word(told.len() as u64);
    to.words(told.iter().flat_map(|(process, device, bytes)| [u64::from(*process), *device as u64, *bytes]))
        .text(&path[..end])
}

fn read_file(from: &mut Reader<'_>) -> Option<FileStatus> {
    let (id, size, users) = ((from.word()?, from.word()?), from.word()?, from.word()?);
    let count = from.count(DEVICES_MAX)?;
    let devices = (0..count).map(|_| Some((from.word()?, from.truth()?))).collect::<Option<_>>()?;
    let count = from.count(HOLDERS_MAX)?;
    let holder = |_| Some((from.small()? as u32, from.count(DEVICES_MAX)?, from.word()?));
    let holders = (0..count).map(holder).collect::<Option<_>>()?;
    Some(FileStatus { id, size, users, devices, holders, path: from.text()? })
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

fn write_status(to: Writer, status: &Status) -> Writer {
    let Status { servers, uptime_ms, counts: all, devices, clients } = status;
    let head = to.words([*servers, *uptime_ms]).words(counts(all)).word(devices.len() as u64);
    let device = |to: Writer, device: &DeviceStatus| {
        let DeviceStatus { used_bytes, budget_bytes, pages, behind, pending, counts: done, read_bytes, .. } = device;
        let DeviceStatus { left_bytes, free_bytes, target_bytes, reclaimed_bytes, .. } = device;
        let to = to.words([*used_bytes, *budget_bytes, *pages, *behind, *pending]).words(counts(done));
        to.words([*left_bytes, *free_bytes, *target_bytes, *reclaimed_bytes]).words(*read_bytes)
    };
    let told = &clients[..clients.len().min(CLIENTS_MAX)];
    let to = devices.iter().fold(head, device).word(told.len() as u64);
    let client = |client: &ClientStatus| {
        let ClientStatus { pid, uid, files, used_bytes, recalled_bytes } = *client;
        [pid.into(), uid.into(), files, used_bytes, recalled_bytes]
    };
    to.words(told.iter().flat_map(client))
}

fn read_status(from: &mut Reader<'_>) -> Option<Status> {
    let (servers, uptime_ms, counts) = (from.word()?, from.word()?, read_counts(from)?);
    let devices = from.count(DEVICES_MAX)?;
    let devices = (0..devices).map(|_| read_device(from)).collect::<Option<_>>()?;
    let clients = from.count(CLIENTS_MAX)?;
    let client = |_| {
        let (pid, uid) = (from.small()? as u32, from.small()? as u32);
        let (files, used_bytes) = (from.word()?, from.word()?);
        Some(ClientStatus { pid, uid, files, used_bytes, recalled_bytes: from.word()? })
    };
    Some(Status { servers, uptime_ms, counts, devices, clients: (0..clients).map(client).collect::<Option<_>>()? })
}

fn read_device(from: &mut Reader<'_>) -> Option<DeviceStatus> {
    let mut status = DeviceStatus {
        used_bytes: from.word()?,
        budget_bytes: from.word()?,
        pages: from.word()?,
        behind: from.word()?,
        pending: from.word()?,
        counts: read_counts(from)?,
        left_bytes: from.word()?,
        free_bytes: from.word()?,
        target_bytes: from.word()?,
        reclaimed_bytes: from.word()?,
        ..DeviceStatus::default()
    };
    for bytes in &mut status.read_bytes {
        *bytes = from.word()?;
    }
    Some(status)
}

fn counts(counts: &Counts) -> [u64; COUNTS] {
    let Counts { hits, fetched, from_peers, merged, races, released, .. } = *counts;
    let Counts { flushed, compared, evicted, copied, served, discarded, lost, .. } = *counts;
    [hits, fetched, from_peers, merged, races, released, flushed, compared, evicted, copied, served, discarded, lost]
}

fn read_counts(from: &mut Reader<'_>) -> Option<Counts> {
    let mut words = [0; COUNTS];
    for word in &mut words {
        *word = from.word()?;
    }
    let [hits, fetched, from_peers, merged, races, released, ..] = words;
    let [.., flushed, compared, evicted, copied, served, discarded, lost] = words;
    Some(Counts {
        hits,
        fetched,
        from_peers,
        merged,
        races,
        released,
        flushed,
        compared,
        evicted,
        copied,
        served,
        discarded,
        lost,
    })
}

fn read_report(from: &mut Reader<'_>) -> Option<Report> {
    let counts = read_counts(from)?;
    let seconds = f64::from_bits(from.word()?);
    let seconds = if seconds.is_finite() { seconds } else { 0.0 };
    Some(Report { counts, seconds, always_compared: from.truth()? })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(
            decode_answer(&encode_answer(1, &error)).is_some() && decode_answer(&encode_answer(1, &files)).is_some()
        );
    }
}
