//! The one error type of this crate: a kind to match on, and a sentence with what it is about.

use bifolio_block::{Cause, Error as BlockError, ErrorKind as BlockKind, printable};
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
    /// Something is there already that would be lost.
    Exists,
    /// Somebody else uses it.
    InUse,
    /// Not a volume of the format asked for, or of any known one.
    NotAVolume,
    /// The volume's own description is damaged, or says what cannot be.
    Damaged,
    /// No passphrase or key that was given opens it.
    WrongKey,
    /// The format is known, and this variant of it is not implemented.
    Unsupported,
    /// Fewer members are there than the content needs.
    TooFewMembers,
    /// Members that do not belong together, or that have fallen behind the others.
    BadMembers,
    /// Offset and length do not describe a range of the volume.
    BadRange,
    /// A request that makes no sense, whatever the state.
    BadUse,
    /// A request that cannot be done in this state, such as rebuilding where no member is missing.
    BadState,
    /// The volume was opened for reading only.
    ReadOnly,
    /// The operating system reported an error while reading.
    Read,
    /// The operating system reported an error while writing; nothing is promised of the range.
    Write,
    /// There is no room left below.
    NoSpace,
    /// A library, program or driver that this needs is not there.
    Missing,
    /// The device failed; the cause is its error.
    Device,
    /// The caller cancelled the request.
    Cancelled,
}

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
    /// An error about `subject`, which is the name of a file or volume; `detail` is a sentence without its full
    /// stop that says where (offset, member) and what to do.
    pub fn new(kind: ErrorKind, subject: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind, subject: subject.to_string(), detail: detail.into(), cause: None }
    }

    /// An operating-system error while `doing` something, such as "reading 4096 bytes at offset 512".
    pub fn system(subject: impl fmt::Display, doing: impl fmt::Display, cause: io::Error) -> Self {
        BlockError::system(subject, doing, cause).into()
    }

    /// The same error with its cause, whose words are in the detail already, as far as somebody should read them.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// The same error about something that is made of what it is about.
    #[must_use]
    pub(crate) fn about(mut self, subject: &str) -> Self {
        subject.clone_into(&mut self.subject);
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file, device or volume that this is about, by its name as it is; in the sentence it is [printable].
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

    /// The system's number, where the system reported the failure.
    pub fn os_code(&self) -> Option<i32> {
        let cause = self.cause()? as &(dyn StdError + 'static);
        if let Some(error) = cause.downcast_ref::<bifolio_io::Error>() {
            return error.os_code();
        }
        if let Some(error) = cause.downcast_ref::<bifolio_device::Error>() {
            return error.os_code();
        }
        cause.downcast_ref::<io::Error>()?.raw_os_error()
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

/// What a device below reports, which is a volume's error as it is.
impl From<BlockError> for Error {
    fn from(error: BlockError) -> Self {
        let kind = match error.kind() {
            BlockKind::NotFound => ErrorKind::NotFound,
            BlockKind::Permission => ErrorKind::Permission,
            BlockKind::Exists => ErrorKind::Exists,
            BlockKind::InUse => ErrorKind::InUse,
            BlockKind::NotADevice => ErrorKind::NotAVolume,
            BlockKind::Damaged => ErrorKind::Damaged,
            BlockKind::TooFewMembers => ErrorKind::TooFewMembers,
            BlockKind::BadRange => ErrorKind::BadRange,
            BlockKind::BadUse => ErrorKind::BadUse,
            BlockKind::BadState => ErrorKind::BadState,
            BlockKind::ReadOnly => ErrorKind::ReadOnly,
            BlockKind::Write => ErrorKind::Write,
            BlockKind::NoSpace => ErrorKind::NoSpace,
            BlockKind::Missing => ErrorKind::Missing,
            _ => ErrorKind::Read,
        };
        let (subject, detail, cause) = error.into_parts();
        Self { kind, subject, detail, cause }
    }
}

/// What a volume reports as a device; the kinds that no read, write or flush has become `Read`.
impl From<Error> for BlockError {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::NotFound => BlockKind::NotFound,
            ErrorKind::Permission => BlockKind::Permission,
            ErrorKind::Exists => BlockKind::Exists,
            ErrorKind::InUse => BlockKind::InUse,
            ErrorKind::NotAVolume => BlockKind::NotADevice,
            ErrorKind::Damaged => BlockKind::Damaged,
            ErrorKind::TooFewMembers => BlockKind::TooFewMembers,
            ErrorKind::BadRange => BlockKind::BadRange,
            ErrorKind::BadUse => BlockKind::BadUse,
            ErrorKind::BadState => BlockKind::BadState,
            ErrorKind::ReadOnly => BlockKind::ReadOnly,
            ErrorKind::Write => BlockKind::Write,
            ErrorKind::NoSpace => BlockKind::NoSpace,
            ErrorKind::Missing => BlockKind::Missing,
            _ => BlockKind::Read,
        };
        let block = Self::new(kind, error.subject, error.detail);
        match error.cause {
            Some(cause) => block.with_cause(cause),
            None => block,
        }
    }
}

impl From<bifolio_io::Error> for Error {
    fn from(error: bifolio_io::Error) -> Self {
        use bifolio_io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::Permission => ErrorKind::Permission,
            Io::BadRange | Io::BadDestination => ErrorKind::BadRange,
            Io::Write | Io::Latched => ErrorKind::Write,
            Io::ReadOnly => ErrorKind::ReadOnly,
            Io::Read | Io::Truncated | Io::Changed | Io::NotAFile => ErrorKind::Read,
            Io::Cancelled => ErrorKind::Cancelled,
            // The way to the device, and not what lies on storage.
            _ => ErrorKind::Device,
        };
        let (subject, detail) = (error.subject().display().to_string(), error.about_file());
        Self::new(kind, subject, detail).with_cause(error)
    }
}
