//! The one error type of this crate: a kind to match on, and a sentence with what it is about.

use std::fmt;
use std::io;

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Options that make no sense, whatever the machine.
    BadUse,
    /// A device, an engine or a kernel feature is not here.
    Unavailable,
    /// An operation failed.
    Failed,
    /// Wrong bytes: a verification failed.
    Wrong,
    /// Somebody interrupted it.
    Interrupted,
}

/// A measurement that failed.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    subject: String,
    detail: String,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a measurement.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error about `subject`, which is a file, a device or a part of a benchmark; `detail` is a sentence without its
    /// full stop.
    pub fn new(kind: ErrorKind, subject: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind, subject: subject.to_string(), detail: detail.into(), cause: None }
    }

    /// An operation that failed.
    pub fn failed(subject: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, subject, detail)
    }

    /// An operating-system error while `doing` something, such as "creating the file".
    pub fn system(subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        let detail = format!("{doing} failed: {cause}");
        Self { cause: Some(cause.into()), ..Self::failed(subject, detail) }
    }

    /// Something that this machine does not have.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, "", detail)
    }

    /// Options that make no sense.
    pub fn bad_use(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadUse, "", detail)
    }

    /// Somebody interrupted it.
    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "", "interrupted")
    }

    /// The error of another crate, whose sentence says what it is about.
    fn of_room(kind: ErrorKind, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { kind, subject: String::new(), detail: cause.to_string(), cause: Some(Box::new(cause)) }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file, device or part of a benchmark that this is about; empty where the detail says it.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// What was wrong, as a sentence without the subject.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The error that this one reports, whose words are in the detail.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.subject {
            "" => f.write_str(&self.detail),
            subject => write!(f, "{subject}: {}", self.detail),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The words of the cause itself are in this error's sentence.
        self.cause.as_ref()?.source()
    }
}

impl From<bifolio_io::Error> for Error {
    fn from(error: bifolio_io::Error) -> Self {
        use bifolio_io::ErrorKind as Io;
        let device = error.cause().and_then(|cause| cause.downcast_ref::<bifolio_device::Error>());
        let kind = match error.kind() {
            Io::Cancelled => ErrorKind::Interrupted,
            Io::NoEngine => ErrorKind::Unavailable,
            Io::Device => device.map_or(ErrorKind::Failed, kind_of_device),
            _ => ErrorKind::Failed,
        };
        Self::of_room(kind, error)
    }
}

impl From<bifolio_block::Error> for Error {
    fn from(error: bifolio_block::Error) -> Self {
        let kind = match error.kind() {
            bifolio_block::ErrorKind::BadUse => ErrorKind::BadUse,
            bifolio_block::ErrorKind::Missing => ErrorKind::Unavailable,
            _ => ErrorKind::Failed,
        };
        Self::of_room(kind, error)
    }
}

impl From<bifolio_device::Error> for Error {
    fn from(error: bifolio_device::Error) -> Self {
        Self::of_room(kind_of_device(&error), error)
    }
}

fn kind_of_device(error: &bifolio_device::Error) -> ErrorKind {
    use bifolio_device::ErrorKind as Device;
    match error.kind() {
        Device::BadName => ErrorKind::BadUse,
        Device::Missing | Device::Unsupported => ErrorKind::Unavailable,
        _ => ErrorKind::Failed,
    }
}

#[cfg(feature = "volumes")]
impl From<bifolio_volume::Error> for Error {
    fn from(error: bifolio_volume::Error) -> Self {
        let kind = match error.kind() {
            bifolio_volume::ErrorKind::Cancelled => ErrorKind::Interrupted,
            bifolio_volume::ErrorKind::BadUse => ErrorKind::BadUse,
            bifolio_volume::ErrorKind::Missing | bifolio_volume::ErrorKind::Unsupported => ErrorKind::Unavailable,
            _ => ErrorKind::Failed,
        };
        Self::of_room(kind, error)
    }
}

#[cfg(feature = "volumes")]
impl From<bifolio_crypt::Error> for Error {
    fn from(error: bifolio_crypt::Error) -> Self {
        Self::of_room(ErrorKind::Failed, error)
    }
}

#[cfg(feature = "volumes")]
impl From<bifolio_compute::Error> for Error {
    fn from(error: bifolio_compute::Error) -> Self {
        let kind = match error.kind() {
            bifolio_compute::ErrorKind::BadTag => ErrorKind::Wrong,
            _ => ErrorKind::Failed,
        };
        Self::of_room(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_sentence_has_its_subject_and_its_cause_once() {
        let error = Error::system("scratch", "creating the file", io::ErrorKind::PermissionDenied.into());
        assert_eq!(error.to_string(), "scratch: creating the file failed: permission denied");
        assert_eq!((error.subject(), error.kind()), ("scratch", ErrorKind::Failed));
        assert!(error.cause().unwrap().is::<io::Error>() && error.source().is_none());
        assert_eq!(Error::interrupted().to_string(), "interrupted");
    }

    #[test]
    fn the_error_of_another_crate_speaks_for_itself() {
        let missing = bifolio_device::open("cuda:9999".parse().unwrap()).unwrap_err();
        let sentence = missing.to_string();
        let error = Error::from(missing);
        assert_eq!((error.to_string(), error.kind()), (sentence, ErrorKind::Unavailable));
        assert!(error.cause().unwrap().is::<bifolio_device::Error>());
    }
}
