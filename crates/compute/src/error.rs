//! The one error type of this crate: a kind to match on, the service, a sentence, and what caused it.

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
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` whose `detail` is a sentence without its full stop.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, service: None, detail: detail.into(), cause: None }
    }

    /// A request that does not fit.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadArgument, detail)
    }

    /// What could not be done, and why.
    pub(crate) fn caused(
        kind: ErrorKind,
        doing: impl fmt::Display,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::new(kind, format!("{doing}: {cause}")).with_cause(cause)
    }

    /// Names the service that the request was for.
    #[must_use]
    pub fn of(mut self, service: &'static str) -> Self {
        self.service.get_or_insert(service);
        self
    }

    /// Keeps the cause, whose words the detail has.
    fn with_cause(self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { cause: Some(Box::new(cause)), ..self }
    }

    /// What went wrong, for code that decides.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The service that the request was for, where there was one.
    pub fn subject(&self) -> Option<&'static str> {
        self.service
    }

    /// The sentence without the service and without its full stop.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What caused it.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.cause.as_deref()
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
    /// What is behind the cause: its own words are in the sentence already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().and_then(|cause| cause.source())
    }
}

impl From<bifolio_device::Error> for Error {
    fn from(error: bifolio_device::Error) -> Self {
        let kind = match error.kind() {
            bifolio_device::ErrorKind::BadArgument => ErrorKind::BadArgument,
            _ => ErrorKind::Device,
        };
        Self::new(kind, error.to_string()).with_cause(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::DeviceId;
    use std::error::Error as _;

    #[test]
    fn a_sentence_has_its_causes_words_once() {
        let device = bifolio_device::Error::new(bifolio_device::ErrorKind::Execution, "the launch failed");
        let error = Error::from(device.on(DeviceId::HOST)).of("copy");
        assert_eq!(error.to_string(), "copy: host:0: the launch failed");
        assert_eq!((error.subject(), error.detail()), (Some("copy"), "host:0: the launch failed"));
        assert!(error.cause().is_some() && error.source().is_none());
    }
}
