//! The one error type of this crate: a kind to match on, and a sentence with what it is about.

use std::fmt;
use std::io;

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file.
    NotFound,
    /// The file may not be read or written.
    Permission,
    /// Something is there already that would be lost.
    Exists,
    /// Somebody else uses it.
    InUse,
    /// Not a volume of the format asked for, or of any known one.
    NotAVolume,
    /// The volume's own description is damaged, or says what cannot be.
    Damaged,
    /// No passphrase or key that was given opens it.
    WrongKey,
    /// The format is known, and this variant of it is not implemented.
    Unsupported,
    /// Fewer members are there than the content needs.
    TooFewMembers,
    /// Members that do not belong together, or that have fallen behind the others.
    BadMembers,
    /// Offset and length do not describe a range of the volume.
    BadRange,
    /// A request that makes no sense, whatever the state.
    BadUse,
    /// A request that cannot be done in this state, such as rebuilding where no member is missing.
    BadState,
    /// The volume was opened for reading only.
    ReadOnly,
    /// The operating system reported an error while reading.
    Read,
    /// The operating system reported an error while writing; nothing is promised of the range.
    Write,
    /// There is no room left below.
    NoSpace,
    /// A library, program or driver that this needs is not there.
    Missing,
    /// The device failed; the source is its error.
    Device,
    /// The caller cancelled the request.
    Cancelled,
}

/// A failed request. Its sentence is [printable](crate::printable), whatever names and messages it quotes.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    subject: String,
    detail: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error about `subject`, which is the name of a file or volume; `detail` is a sentence without its full
    /// stop that says where (offset, member) and what to do.
    pub fn new(kind: ErrorKind, subject: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind, subject: subject.to_string(), detail: detail.into(), source: None }
    }

    /// An operating-system error while `doing` something, such as "reading 4096 bytes at offset 512".
    pub fn system(subject: impl fmt::Display, doing: impl fmt::Display, source: io::Error) -> Self {
        let (kind, advice) = match (source.kind(), source.raw_os_error()) {
            (io::ErrorKind::NotFound, _) => (ErrorKind::NotFound, ""),
            (io::ErrorKind::PermissionDenied, _) => (ErrorKind::Permission, " (check its permissions and owner)"),
            (io::ErrorKind::AlreadyExists, _) => (ErrorKind::Exists, ""),
            (io::ErrorKind::ResourceBusy, _) => {
                (ErrorKind::InUse, " (end what uses it: a mount, an array, another volume)")
            }
            (_, Some(libc::ENOSPC | libc::EDQUOT)) => {
                (ErrorKind::NoSpace, " (make room, or choose another file system)")
            }
            (_, Some(libc::EROFS)) => (ErrorKind::ReadOnly, " (the file system is mounted for reading only)"),
            _ => (ErrorKind::Read, ""),
        };
        Self::new(kind, subject, format!("{doing} failed: {source}{advice}")).with_source(source)
    }

    /// The same while writing: what has no kind of its own is `Write`.
    pub fn writing(subject: impl fmt::Display, doing: impl fmt::Display, source: io::Error) -> Self {
        let mut error = Self::system(subject, doing, source);
        if error.kind == ErrorKind::Read {
            error.kind = ErrorKind::Write;
        }
        error
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The number of the system's that comes nearest, for those who answer to a kernel or a client.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Permission => libc::EACCES,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::InUse => libc::EBUSY,
            ErrorKind::BadRange | ErrorKind::BadUse | ErrorKind::BadState => libc::EINVAL,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::Cancelled => libc::EINTR,
            _ => libc::EIO,
        }
    }

    /// The file or volume that this is about.
    pub fn subject(&self) -> &str {
        &self.subject
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", crate::printable(&self.subject), crate::printable(&self.detail))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<bifolio_io::Error> for Error {
    fn from(error: bifolio_io::Error) -> Self {
        use bifolio_io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::Permission => ErrorKind::Permission,
            Io::BadRange | Io::BadDestination => ErrorKind::BadRange,
            Io::Write | Io::Latched => ErrorKind::Write,
            Io::ReadOnly => ErrorKind::ReadOnly,
            Io::Read | Io::Truncated | Io::Changed | Io::NotAFile => ErrorKind::Read,
            Io::Cancelled => ErrorKind::Cancelled,
            // The way to the device, and not what lies on storage.
            _ => ErrorKind::Device,
        };
        // Its own message leads with the file.
        let text = error.to_string();
        let (subject, detail) = text.split_once(": ").unwrap_or(("volume", &text));
        Self::new(kind, subject, detail).with_source(error)
    }
}
