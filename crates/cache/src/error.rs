//! The one error type of this crate: a kind to match on, what it is about, and a sentence.

use bifolio_device::DeviceId;
use std::fmt;
use std::path::Path;

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A range outside the mapping or the file, or an impossible size.
    BadRange,
    /// A release without an acquire, a write through a read-only mapping, a mapping that is closed.
    BadUse,
    /// The memory of the device, or the budget, holds no more of what is in use at a time.
    OutOfMemory,
    /// The device failed, or cannot do what a cache needs.
    Device,
    /// The file could not be opened, read, or looked at.
    Read,
    /// The file could not be written: changes stay on the device.
    Write,
    /// The descriptor was not opened for what the mapping is for.
    Permission,
    /// This process was forked from the one that made the cache.
    Forked,
    /// Another process that served the file has gone.
    Gone,
}

impl ErrorKind {
    /// All of them, in an order that stays.
    pub const ALL: [Self; 9] = [
        Self::BadRange,
        Self::BadUse,
        Self::OutOfMemory,
        Self::Device,
        Self::Read,
        Self::Write,
        Self::Permission,
        Self::Forked,
        Self::Gone,
    ];
}

/// A failed operation.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    subject: String,
    detail: String,
    cause: Option<Cause>,
    /// Somebody else had at that moment what was missing.
    is_passing: bool,
}

/// What this error was made of.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// About `subject`: the path of a file, or `the cache`, or `mapping`.
    pub(crate) fn new(kind: ErrorKind, subject: impl AsRef<Path>, detail: impl Into<String>) -> Self {
        let subject = subject.as_ref().display().to_string();
        Self { kind, subject, detail: detail.into(), cause: None, is_passing: false }
    }

    /// Wrong use, as a face of the cache has found it.
    pub fn bad_use(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadUse, "mapping", detail)
    }

    /// What another process has answered.
    pub fn told(kind: ErrorKind, subject: &str, detail: impl Into<String>, os_code: Option<i32>) -> Self {
        let error = Self::new(kind, subject, detail);
        match os_code {
            Some(code) => error.with_cause(std::io::Error::from_raw_os_error(code)),
            None => error,
        }
    }

    /// A device failed while it worked on `subject`.
    pub(crate) fn device(subject: impl AsRef<Path>, cause: bifolio_device::Error) -> Self {
        let kind = match cause.kind() {
            bifolio_device::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ => ErrorKind::Device,
        };
        Self::new(kind, subject, cause.to_string()).with_cause(cause)
    }

    /// A device is lost, for a reason, and what that means for `subject`.
    pub(crate) fn lost(subject: impl AsRef<Path>, device: DeviceId, why: &str, detail: impl fmt::Display) -> Self {
        let cause = bifolio_device::Error::new(bifolio_device::ErrorKind::Lost, why).on(device);
        Self::new(ErrorKind::Device, subject, format!("{device} is lost ({why}): {detail}")).with_cause(cause)
    }

    /// A request for a file failed. Its error names the file, and where in it.
    pub(crate) fn reading(cause: bifolio_io::Error) -> Self {
        Self::new(ErrorKind::Read, cause.subject(), cause.about_file()).with_cause(cause)
    }

    /// Flushing released bytes to a file failed.
    pub(crate) fn flushing(path: &Path, cause: std::io::Error) -> Self {
        let detail = format!("write failed: {cause}; what was released stays on the device and is written later");
        Self::new(ErrorKind::Write, path, detail).with_cause(cause)
    }

    /// What was released and will never be in the file, or perhaps not on its disk: sentences, which are told once.
    pub(crate) fn gone(path: &Path, sentences: &[String], cause: Option<&std::io::Error>) -> Self {
        let code = cause.map_or(Some(libc::EIO), std::io::Error::raw_os_error);
        let other = || cause.map_or(std::io::ErrorKind::Other, std::io::Error::kind).into();
        let cause = code.map_or_else(other, std::io::Error::from_raw_os_error);
        Self::new(ErrorKind::Write, path, sentences.join("; ")).with_cause(cause)
    }

    /// What was missing is perhaps there when another operation has ended.
    pub(crate) fn passing(self, is_passing: bool) -> Self {
        Self { is_passing, ..self }
    }

    /// Whether trying again may help once another operation has ended.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_passing
    }

    /// The same with another sentence.
    pub(crate) fn saying(self, detail: String) -> Self {
        Self { detail, ..self }
    }

    /// Keeps what the error was made of, whose words are in the detail already.
    pub(crate) fn with_cause(self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { cause: Some(Box::new(cause)), ..self }
    }

    /// What went wrong, for code that decides.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What it is about: the path of a file, `the cache` or `mapping`.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// What was wrong and what to do, without the subject.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The error of another crate, or of the operating system, that it was made of. Its words are in the detail.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// The operating system's number (`errno`) behind it, where there is one.
    pub fn os_code(&self) -> Option<i32> {
        let cause = self.cause()?;
        if let Some(error) = cause.downcast_ref::<bifolio_io::Error>() {
            return error.os_code();
        }
        if let Some(error) = cause.downcast_ref::<bifolio_device::Error>() {
            return error.os_code();
        }
        cause.downcast_ref::<std::io::Error>()?.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.detail)
    }
}

impl std::error::Error for Error {
    /// That of the cause, whose own words are said already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().and_then(std::error::Error::source)
    }
}
