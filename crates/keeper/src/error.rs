//! The one error type of this crate: a kind to match on, a sentence, and the system's error behind it.

use std::fmt;
use std::io;

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The kernel or the machine lacks what this needs.
    Missing,
    /// Only root may do this.
    Permission,
    /// Somebody else uses it.
    InUse,
    /// A request that makes no sense.
    BadUse,
    /// What came from another process is not what it should be.
    Damaged,
    /// The other side has gone.
    Gone,
    /// A call of the system's failed.
    System,
}

/// A failed operation. Its text is a sentence without its full stop.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: String,
    cause: Option<io::Error>,
}

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error whose `detail` is a sentence that says what was wrong and what to do.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), cause: None }
    }

    /// A call of the system's that failed while `doing` something.
    pub fn system(doing: impl fmt::Display, cause: io::Error) -> Self {
        let kind = match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => ErrorKind::Permission,
            Some(libc::EBUSY) => ErrorKind::InUse,
            Some(libc::ENODEV | libc::ENOSYS | libc::ENXIO) => ErrorKind::Missing,
            Some(libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED) => ErrorKind::Gone,
            _ => ErrorKind::System,
        };
        Self { kind, detail: format!("{doing} failed: {cause}"), cause: Some(cause) }
    }

    /// The same for the last error of this thread.
    pub fn last_os(doing: impl fmt::Display) -> Self {
        Self::system(doing, io::Error::last_os_error())
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The system's number, where the system reported the failure.
    pub fn os_code(&self) -> Option<i32> {
        self.cause.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Error {}
