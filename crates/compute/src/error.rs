//! The one error type of this crate: a kind to match on, the service, and a sentence.

use std::fmt;

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request does not fit its service or its memory.
    BadArgument,
    /// A message is not what was encrypted: the key is another one, or bytes were changed.
    BadTag,
    /// The caller has as many requests under way as it may.
    Busy,
    /// The request was cancelled.
    Cancelled,
    /// The device failed, and the CPU could not take over.
    Device,
    /// The service's work does not fit what the device path has room for: the CPU does it.
    Unsuited,
    /// The executor has ended.
    Closed,
    /// A service panicked.
    Panicked,
    /// The request belongs to the process that this one was forked from.
    Forked,
}

/// A request that failed.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    service: Option<&'static str>,
    detail: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` whose `detail` is a sentence without its full stop.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, service: None, detail: detail.into(), source: None }
    }

    /// A request that does not fit.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadArgument, detail)
    }

    /// Names the service that the request was for.
    #[must_use]
    pub fn of(mut self, service: &'static str) -> Self {
        self.service.get_or_insert(service);
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

    /// The service that the request was for, where there was one.
    pub fn service(&self) -> Option<&'static str> {
        self.service
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(service) = self.service {
            write!(f, "{service}: ")?;
        }
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<bifolio_device::Error> for Error {
    fn from(error: bifolio_device::Error) -> Self {
        let kind = match error.kind() {
            bifolio_device::ErrorKind::BadArgument => ErrorKind::BadArgument,
            _ => ErrorKind::Device,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}
