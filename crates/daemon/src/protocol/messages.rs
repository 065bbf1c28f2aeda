//! What is said.

use super::limits::TEXT_BYTES_MAX;
use bifolio_cache::service::{Answer, Request};
use bifolio_cache::{Counts, Error, ErrorKind, FileId};
use std::ops::Range;

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
