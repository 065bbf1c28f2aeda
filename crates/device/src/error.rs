//! The one error type of this crate: a kind to match on, the device that it is about, a sentence that says what was
//! wrong and what to do, and the cause.
//!
//! The parts are accessors, and the whole is put together once: `Display` is "device: detail". The detail has the
//! cause's words in it, so `source` passes the cause over: a printer of chains says nothing twice.

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
    /// The device is gone with all that was in its memory, as far as this process goes: every later call fails, too. Each
    /// backend says in its `status` which of its driver's errors mean that.
    Lost,
    /// A stream is being recorded into a graph, and what was asked for would end that.
    Capturing,
    /// This process was forked from the one that made what was to be used.
    Forked,
    /// An operating-system call failed.
    System,
}

/// A failed device operation.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    device: Option<DeviceId>,
    detail: String,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a device operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` whose `detail` is a sentence without its final full stop.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, device: None, detail: detail.into(), cause: None }
    }

    /// An operating-system error, with what was being done.
    pub fn system(doing: impl fmt::Display, cause: std::io::Error) -> Self {
        let kind = match cause.raw_os_error() {
            Some(libc::ENOMEM) => ErrorKind::OutOfMemory,
            _ => ErrorKind::System,
        };
        Self::new(kind, format!("{doing} failed: {cause}")).with_cause(cause)
    }

    /// The last operating-system error of this thread, with what was being done.
    pub(crate) fn last_os(doing: impl fmt::Display) -> Self {
        Self::system(doing, std::io::Error::last_os_error())
    }

    /// Names the device that the operation was for.
    #[must_use]
    pub fn on(mut self, device: DeviceId) -> Self {
        self.device.get_or_insert(device);
        self
    }

    /// Keeps the cause, whose words the detail has already.
    #[must_use]
    pub fn with_cause(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Box::new(cause));
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

    /// The sentence without the device.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What caused it.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// The operating system's code behind it, if that was the cause.
    pub fn os_code(&self) -> Option<i32> {
        let cause = self.cause()?;
        match cause.downcast_ref::<Self>() {
            Some(error) => error.os_code(),
            None => cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error),
        }
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
        self.cause().and_then(|cause| cause.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_has_device_detail_and_the_words_of_the_cause_once() {
        let refused = std::io::Error::from_raw_os_error(libc::ENOMEM);
        let words = refused.to_string();
        let error = Error::system("mapping a frame", refused).on(DeviceId::HOST);
        assert_eq!((error.kind(), error.device()), (ErrorKind::OutOfMemory, Some(DeviceId::HOST)));
        assert_eq!(error.detail(), format!("mapping a frame failed: {words}"));
        assert_eq!(error.to_string(), format!("host:0: {}", error.detail()));
        assert!(error.cause().is_some_and(|cause| cause.to_string() == words));
        assert!(std::error::Error::source(&error).is_none(), "a printer of chains would say it twice");
        assert_eq!(error.os_code(), Some(libc::ENOMEM));
        let above = Error::new(ErrorKind::OutOfPinnedMemory, error.detail()).with_cause(error);
        assert_eq!(above.os_code(), Some(libc::ENOMEM));
    }
}
