//! The one error type of this crate: a kind to match on, what it is about, a sentence and a cause.

use crate::printable;
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
    /// Something is there already that would be lost or hidden.
    Exists,
    /// Somebody else uses it.
    InUse,
    /// It has no bytes at offsets, such as a directory or a pipe.
    NotADevice,
    /// What is stored is not what was written.
    Damaged,
    /// Fewer devices below are left than the content needs.
    TooFewMembers,
    /// Offset and length do not describe a range of the device.
    BadRange,
    /// A request that makes no sense, whatever the state.
    BadUse,
    /// A request that cannot be done in this state.
    BadState,
    /// The device was opened for reading only.
    ReadOnly,
    /// A read failed.
    Read,
    /// A write or a flush failed; nothing is promised of the range.
    Write,
    /// There is no room left below.
    NoSpace,
    /// A program or a facility of the kernel that this needs is missing.
    Missing,
}

/// A cause of whatever type.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// A failed request. Its sentence is [printable], whatever names and messages it quotes.
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
    /// An error about `subject`, which is the name of a file or device; `detail` is a sentence without its full stop that
    /// says where (offset, length) and what to do.
    pub fn new(kind: ErrorKind, subject: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind, subject: subject.to_string(), detail: detail.into(), cause: None }
    }

    /// An operating-system error while `doing` something, such as "reading 4096 bytes at offset 512".
    pub fn system(subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        Self::of_system(ErrorKind::Read, subject, doing, cause)
    }

    /// The same while writing: what has no kind of its own is `Write`.
    pub fn writing(subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        Self::of_system(ErrorKind::Write, subject, doing, cause)
    }

    fn of_system(other: ErrorKind, subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        let (kind, advice) = match (cause.kind(), cause.raw_os_error()) {
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
            _ => (other, ""),
        };
        Self::new(kind, subject, format!("{doing} failed: {cause}{advice}")).with_cause(cause)
    }

    /// The same error with its cause, whose words are in the detail already, as far as somebody should read them.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file or device that this is about, by its name as it is; in the sentence it is [printable].
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

    /// Subject, detail and cause, for an error of another crate that says the same.
    pub fn into_parts(self) -> (String, String, Option<Cause>) {
        (self.subject, self.detail, self.cause)
    }

    /// The system's number, where the system reported the failure.
    pub fn os_code(&self) -> Option<i32> {
        let cause = self.cause()? as &(dyn StdError + 'static);
        match cause.downcast_ref::<Self>() {
            Some(inner) => inner.os_code(),
            None => cause.downcast_ref::<io::Error>()?.raw_os_error(),
        }
    }

    /// The system's number that comes nearest, for those who answer to a kernel or a client.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Permission => libc::EACCES,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::InUse => libc::EBUSY,
            ErrorKind::BadRange | ErrorKind::BadUse | ErrorKind::BadState => libc::EINVAL,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NoSpace => libc::ENOSPC,
            _ => libc::EIO,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", printable(&self.subject), printable(&self.detail))
    }
}

impl StdError for Error {
    /// The cause's own source: the cause's words are in the sentence.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause()?.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_causes_says_everything_once_and_keeps_the_systems_number() {
        let system = io::Error::from_raw_os_error(libc::ENOSPC);
        let inner = Error::writing("disk", "writing 512 bytes at offset 0", system);
        assert_eq!(
            (inner.kind(), inner.os_code(), inner.errno()),
            (ErrorKind::NoSpace, Some(libc::ENOSPC), libc::ENOSPC)
        );
        assert!(inner.to_string().starts_with("disk: writing 512 bytes at offset 0 failed: No space left on device"));
        assert!(inner.source().is_none(), "the cause is in the sentence");
        let outer = Error::new(ErrorKind::Write, "array", format!("a member failed: {inner}")).with_cause(inner);
        assert!(outer.source().is_none());
        assert_eq!(outer.os_code(), Some(libc::ENOSPC));
        assert!(outer.cause().unwrap().is::<Error>());
    }
}
