//! The one error type of this crate: a kind to match on, and a sentence with what it is about.

use bifolio_volume::printable;
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
    /// Something with that name is there already.
    Exists,
    /// Not an encrypted directory.
    NotACipherDir,
    /// The configuration, a name or a header is damaged, or says what cannot be.
    Damaged,
    /// A block of a file is not what was encrypted for this place.
    Corrupt,
    /// The passphrase or the master key is another one.
    WrongKey,
    /// The format is known, and this variant of it is not implemented.
    Unsupported,
    /// A name that cannot be, or one that is too long when encrypted.
    BadName,
    /// A request that makes no sense here, such as reading a directory as a file.
    BadUse,
    /// Opened, or mounted, for reading only.
    ReadOnly,
    /// The operating system reported an error while reading.
    Read,
    /// The operating system reported an error while writing.
    Write,
    /// There is no room left below.
    NoSpace,
    /// The file system could not be mounted or unmounted.
    Mount,
}

/// A failed request.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    subject: String,
    detail: String,
    source: Option<io::Error>,
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error about `subject`, which is the name of a file; `detail` is a sentence without its full stop that says
    /// where and what to do.
    pub(crate) fn new(kind: ErrorKind, subject: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind, subject: subject.to_string(), detail: detail.into(), source: None }
    }

    /// An operating-system error while `doing` something, such as "reading 4096 bytes at offset 512".
    pub(crate) fn system(subject: impl fmt::Display, doing: impl fmt::Display, source: io::Error) -> Self {
        Self::of_system(ErrorKind::Read, subject, doing, source)
    }

    /// The same while writing.
    pub(crate) fn writing(subject: impl fmt::Display, doing: impl fmt::Display, source: io::Error) -> Self {
        Self::of_system(ErrorKind::Write, subject, doing, source)
    }

    fn of_system(other: ErrorKind, subject: impl fmt::Display, doing: impl fmt::Display, source: io::Error) -> Self {
        let (kind, advice) = match (source.kind(), source.raw_os_error()) {
            (io::ErrorKind::NotFound, _) => (ErrorKind::NotFound, ""),
            (io::ErrorKind::PermissionDenied, _) => (ErrorKind::Permission, " (check its permissions and owner)"),
            (io::ErrorKind::AlreadyExists, _) => (ErrorKind::Exists, ""),
            (_, Some(libc::ENOSPC | libc::EDQUOT)) => (ErrorKind::NoSpace, " (make room)"),
            (_, Some(libc::EROFS)) => (ErrorKind::ReadOnly, " (the file system is mounted for reading only)"),
            _ => (other, ""),
        };
        let mut error = Self::new(kind, subject, format!("{doing} failed: {source}{advice}"));
        error.source = Some(source);
        error
    }

    /// The same, with what to do about it.
    pub(crate) fn with_advice(mut self, advice: &str) -> Self {
        self.detail = format!("{}; {advice}", self.detail);
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file that this is about, by its name as it is; in the sentence it is [`printable`].
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The error number that a system call would give for it.
    pub fn errno(&self) -> i32 {
        if let Some(number) = self.source.as_ref().and_then(io::Error::raw_os_error) {
            return number;
        }
        match self.kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Permission | ErrorKind::WrongKey => libc::EACCES,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::BadName => libc::ENAMETOOLONG,
            ErrorKind::BadUse => libc::EINVAL,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::NotACipherDir
            | ErrorKind::Damaged
            | ErrorKind::Corrupt
            | ErrorKind::Read
            | ErrorKind::Write
            | ErrorKind::Mount => libc::EIO,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both can hold names that somebody else gave to files.
        write!(f, "{}: {}", printable(&self.subject), printable(&self.detail))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
