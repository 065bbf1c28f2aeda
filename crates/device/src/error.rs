//! The one error type of this crate: a kind to match on, the device and the operation, and a
//! sentence that says what was wrong and what to do.

use crate::DeviceId;
use std::fmt;

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text does not name a device (`auto`, `host`, `host:N`, `cuda:N`, `opencl:N`).
    BadName,
    /// No such device here: the driver or library is missing or broken, or the index is too high.
    Missing,
    /// The device has no memory left for the request.
    OutOfMemory,
    /// Pinned (page-locked) host memory could not be had.
    OutOfPinnedMemory,
    /// The device, its driver or this host cannot do this at all.
    Unsupported,
    /// The arguments do not fit: a range outside its allocation, a misaligned address.
    BadArgument,
    /// A kernel did not compile or load; the detail carries the compiler's log.
    Kernel,
    /// A copy, launch or wait failed on the device.
    Execution,
    /// A stream is being recorded into a graph, and what was asked for would end that.
    Capturing,
    /// An operating-system call failed.
    System,
}

/// A failed device operation.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    device: Option<DeviceId>,
    detail: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a device operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` whose `detail` is a sentence without its final full stop.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, device: None, detail: detail.into(), source: None }
    }

    /// An operating-system error, with what was being done.
    pub fn system(doing: impl fmt::Display, source: std::io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(libc::ENOMEM) => ErrorKind::OutOfMemory,
            _ => ErrorKind::System,
        };
        Self::new(kind, format!("{doing} failed: {source}")).with_source(source)
    }

    /// The last operating-system error of this thread, with what was being done.
    pub fn last_os(doing: impl fmt::Display) -> Self {
        Self::system(doing, std::io::Error::last_os_error())
    }

    /// Names the device that the operation was for.
    #[must_use]
    pub fn on(mut self, device: DeviceId) -> Self {
        self.device.get_or_insert(device);
        self
    }

    /// Keeps the cause for `std::error::Error::source`.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// What went wrong, for code that decides.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The device that the operation was for, where one was involved.
    pub fn device(&self) -> Option<DeviceId> {
        self.device
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = self.device {
            write!(f, "{device}: ")?;
        }
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
