//! The one error type of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A range outside the mapping or the file, a size that is none.
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
}

/// A failed operation.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
    detail: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, path: &Path, detail: impl Into<String>) -> Self {
        Self { kind, path: path.to_owned(), detail: detail.into(), source: None }
    }

    /// Wrong use, as a face of the cache has found it.
    pub fn bad_use(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadUse, Path::new("mapping"), detail)
    }

    pub(crate) fn device(path: &Path, error: bifolio_device::Error) -> Self {
        let kind = match error.kind() {
            bifolio_device::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ => ErrorKind::Device,
        };
        Self { source: Some(Box::new(error)), ..Self::new(kind, path, "") }.say()
    }

    pub(crate) fn reading(path: &Path, error: bifolio_io::Error) -> Self {
        Self { source: Some(Box::new(error)), ..Self::new(ErrorKind::Read, path, "") }.say()
    }

    pub(crate) fn writing(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        let detail = format!("{error}; what was released stays on the device and is written later");
        Self { source: Some(Box::new(error)), ..Self::new(ErrorKind::Write, path, detail) }
    }

    /// Bytes that reached the operating system, and perhaps not the disk.
    pub(crate) fn undurable(path: &Path, error: &std::io::Error) -> Self {
        let detail = format!(
            "making it durable failed: {error}; some of what was written may be lost, and another sync cannot tell: write it again"
        );
        let source = error.raw_os_error().map_or_else(|| error.kind().into(), std::io::Error::from_raw_os_error);
        Self { source: Some(Box::new(source)), ..Self::new(ErrorKind::Write, path, detail) }
    }

    fn say(mut self) -> Self {
        self.detail = self.source.as_ref().map(ToString::to_string).unwrap_or_default();
        self
    }

    /// The operating system's number (`errno`) behind it, where there is one.
    pub fn os_code(&self) -> Option<i32> {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if let Some(code) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
                return Some(code);
            }
            if let Some(error) = error.downcast_ref::<bifolio_io::Error>() {
                return error.os_code();
            }
            cause = error.source();
        }
        None
    }

    /// What went wrong, for code that decides.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        if self.detail.starts_with(&path) { f.write_str(&self.detail) } else { write!(f, "{path}: {}", self.detail) }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
