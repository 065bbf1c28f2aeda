//! The one error type of this crate: a kind to match on, and a sentence with what it is about.

use bifolio_block::{self as block, Cause, printable};
use std::error::Error as StdError;
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
    cause: Option<Cause>,
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error about `subject`, which is the name of a file; `detail` is a sentence without its full stop that says
    /// where and what to do.
    pub(crate) fn new(kind: ErrorKind, subject: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind, subject: subject.to_string(), detail: detail.into(), cause: None }
    }

    /// An operating-system error while `doing` something, such as "reading 4096 bytes at offset 512".
    pub(crate) fn system(subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        Self::of_system(ErrorKind::Read, subject, doing, cause)
    }

    /// The same while writing.
    pub(crate) fn writing(subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        Self::of_system(ErrorKind::Write, subject, doing, cause)
    }

    fn of_system(other: ErrorKind, subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        let (kind, advice) = match (cause.kind(), cause.raw_os_error()) {
            (io::ErrorKind::NotFound, _) => (ErrorKind::NotFound, ""),
            (io::ErrorKind::PermissionDenied, _) => (ErrorKind::Permission, " (check its permissions and owner)"),
            (io::ErrorKind::AlreadyExists, _) => (ErrorKind::Exists, ""),
            (_, Some(libc::ENOSPC | libc::EDQUOT)) => (ErrorKind::NoSpace, " (make room)"),
            (_, Some(libc::EROFS)) => (ErrorKind::ReadOnly, " (the file system is mounted for reading only)"),
            _ => (other, ""),
        };
        let mut error = Self::new(kind, subject, format!("{doing} failed: {cause}{advice}"));
        error.cause = Some(Box::new(cause));
        error
    }

    /// The same, with what to do about it.
    pub(crate) fn with_advice(mut self, advice: &str) -> Self {
        self.detail = format!("{}; {advice}", self.detail);
        self
    }

    /// The same error of another kind.
    pub(crate) fn of_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// The same error about something that is known by another name.
    pub(crate) fn about(self, subject: &str) -> Self {
        Self { subject: subject.to_owned(), ..self }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file that this is about, by its name as it is; in the sentence it is [`printable`].
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The sentence without the subject.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What it was caused by, where that has a type of its own.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// The system's number, where the system reported the failure.
    pub fn os_code(&self) -> Option<i32> {
        let cause = self.cause()? as &(dyn StdError + 'static);
        cause.downcast_ref::<io::Error>()?.raw_os_error()
    }

    /// The error number that a system call would give for it.
    pub fn errno(&self) -> i32 {
        if let Some(number) = self.os_code() {
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

impl StdError for Error {
    /// The cause's own source: the cause's words are in the sentence.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause()?.source()
    }
}

/// What a device below or the mount helper reports.
impl From<block::Error> for Error {
    fn from(error: block::Error) -> Self {
        let kind = match error.kind() {
            block::ErrorKind::NotFound => ErrorKind::NotFound,
            block::ErrorKind::Permission => ErrorKind::Permission,
            block::ErrorKind::Exists => ErrorKind::Exists,
            block::ErrorKind::Damaged => ErrorKind::Damaged,
            block::ErrorKind::BadUse | block::ErrorKind::BadRange | block::ErrorKind::NotADevice => ErrorKind::BadUse,
            block::ErrorKind::ReadOnly => ErrorKind::ReadOnly,
            block::ErrorKind::Write => ErrorKind::Write,
            block::ErrorKind::NoSpace => ErrorKind::NoSpace,
            block::ErrorKind::BadState | block::ErrorKind::Missing => ErrorKind::Mount,
            _ => ErrorKind::Read,
        };
        let (subject, detail, cause) = error.into_parts();
        Self { kind, subject, detail, cause }
    }
}

/// What an encrypted file reports as a block device.
impl From<Error> for block::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::Corrupt | ErrorKind::Damaged => block::ErrorKind::Damaged,
            _ => block::ErrorKind::Read,
        };
        let block = Self::new(kind, error.subject, error.detail);
        match error.cause {
            Some(cause) => block.with_cause(cause),
            None => block,
        }
    }
}
