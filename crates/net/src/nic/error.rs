//! Errors of devices and sockets.

use std::fmt;
use std::io;

/// What is wrong, to decide on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// There is no device of this name.
    Missing,
    /// The device has disappeared while it was in use.
    Gone,
    /// The right to do it is missing.
    Denied,
    /// The kernel or the device does not have it.
    Unsupported,
    /// Somebody else has it.
    Busy,
    /// A packet that the system does not take.
    Refused,
    /// Anything else.
    System,
}

/// An error of a device or a socket: a sentence without a full stop, and what the system said.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    text: String,
    source: Option<io::Error>,
}

/// A result with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), source: None }
    }

    /// `text` failed with `source`, which decides on the kind.
    pub(super) fn system(text: impl Into<String>, source: io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => Kind::Missing,
            Some(libc::EPERM | libc::EACCES) => Kind::Denied,
            Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT | libc::EAFNOSUPPORT | libc::ENOSYS | libc::EINVAL) => {
                Kind::Unsupported
            }
            Some(libc::EBUSY | libc::EEXIST | libc::EADDRINUSE) => Kind::Busy,
            _ => Kind::System,
        };
        Self { kind, text: text.into(), source: Some(source) }
    }

    pub(super) fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// The same with a hint of what to do, where it is of `kind`.
    pub(super) fn hint(mut self, kind: Kind, hint: &str) -> Self {
        if self.kind == kind {
            self.text = format!("{}: {hint}", self.text);
        }
        self
    }

    /// What is wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The system's number of the error; 0 where it did not come from the system.
    pub fn number(&self) -> i32 {
        self.source.as_ref().and_then(io::Error::raw_os_error).unwrap_or(0)
    }

    /// The sentence with its cause, as one line.
    pub fn line(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {source}", self.text),
            None => self.text.clone(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
