//! The one error type of this crate: a kind to match on, and a sentence with the file, the offset
//! and the device.

use bifolio_device::DeviceId;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// What went wrong, for code that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file.
    NotFound,
    /// The file may not be read.
    Permission,
    /// A directory, pipe, socket or terminal: not something with offsets.
    NotAFile,
    /// Offset and length do not describe a range of the file.
    BadRange,
    /// The destination is shorter than the request.
    BadDestination,
    /// The file became shorter than the request while it was being read.
    Truncated,
    /// The operating system reported an error while reading.
    Read,
    /// The operating system reported an error while writing; nothing is promised of the range.
    Write,
    /// Not a striped set: a member is missing or has the wrong size, or the descriptor is damaged.
    BadStripe,
    /// The file was opened for reading only.
    ReadOnly,
    /// An earlier write failed; the file must be opened again.
    Latched,
    /// The file system refuses unbuffered transfers of this file after all.
    DirectRefused,
    /// The file was changed while bytes that were already worked on were being read.
    Changed,
    /// The engine asked for cannot read this file into this device.
    NoEngine,
    /// The device failed; the source is its error.
    Device,
    /// The caller cancelled the request.
    Cancelled,
    /// An engine panicked: a bug.
    Panicked,
    /// A calibration profile is damaged or belongs to something else.
    Profile,
    /// Calibration could not write or measure its scratch file.
    Calibration,
    /// This process was forked from the one that opened the device.
    Forked,
}

impl ErrorKind {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::NotFound,
        Self::Permission,
        Self::NotAFile,
        Self::BadRange,
        Self::BadDestination,
        Self::Truncated,
        Self::Read,
        Self::Write,
        Self::BadStripe,
        Self::ReadOnly,
        Self::Latched,
        Self::DirectRefused,
        Self::Changed,
        Self::NoEngine,
        Self::Device,
        Self::Cancelled,
        Self::Panicked,
        Self::Profile,
        Self::Calibration,
        Self::Forked,
    ];
}

/// A failed request.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
    offset: Option<u64>,
    device: Option<DeviceId>,
    /// Bytes went from the device to the file.
    is_write: bool,
    detail: String,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error about `path`, whose `detail` is a sentence without its full stop.
    pub fn new(kind: ErrorKind, path: &Path, detail: impl Into<String>) -> Self {
        Self {
            kind,
            path: path.to_owned(),
            offset: None,
            device: None,
            is_write: false,
            detail: detail.into(),
            cause: None,
        }
    }

    /// An operating-system error while `doing` something with `path`.
    pub fn system(path: &Path, doing: impl fmt::Display, cause: io::Error) -> Self {
        let (kind, advice) = match cause.kind() {
            io::ErrorKind::NotFound => (ErrorKind::NotFound, ""),
            io::ErrorKind::PermissionDenied => (ErrorKind::Permission, " (check its permissions and owner)"),
            _ => (ErrorKind::Read, advice_on_descriptors(&cause)),
        };
        Self::new(kind, path, format!("{doing} failed: {cause}{advice}")).with_cause(cause)
    }

    /// An operating-system error while writing to `path`.
    pub fn writing(path: &Path, cause: io::Error) -> Self {
        let advice = match cause.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => " (make room, or choose another file system)",
            Some(libc::EFBIG) => " (a limit of the file system or of the process)",
            _ => "",
        };
        Self::new(ErrorKind::Write, path, format!("write failed: {cause}{advice}")).with_cause(cause)
    }

    /// A device's error while working on `path`.
    pub fn device(path: &Path, cause: bifolio_device::Error) -> Self {
        let device = cause.device();
        // The sentence names the device itself.
        let mut error = Self::new(ErrorKind::Device, path, cause.detail()).with_cause(cause);
        error.device = device;
        error
    }

    /// A request in a child of the process that opened the device.
    pub(crate) fn forked(path: &Path) -> Self {
        let detail = "the process was forked after the device was opened, without its threads and its driver; fork before \
                      the first use, or start the child by exec (in Python, multiprocessing's \"spawn\")";
        Self::new(ErrorKind::Forked, path, detail)
    }

    /// Says at which offset of the file.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset.get_or_insert(offset);
        self
    }

    /// Says which device was being read into.
    #[must_use]
    pub fn into_device(mut self, device: DeviceId) -> Self {
        self.device.get_or_insert(device);
        self
    }

    /// Says which device was being written from.
    #[must_use]
    pub fn from_device(self, device: DeviceId) -> Self {
        Self { is_write: true, ..self.into_device(device) }
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

    /// The file, or what else it is about.
    pub fn subject(&self) -> &Path {
        &self.path
    }

    /// Where in the file, where that is known.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// The sentence without file, offset and device.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The sentence without the file: offset and device where they are known, and the detail. For errors of rooms above,
    /// whose own subject is the file.
    pub fn about_file(&self) -> String {
        let offset = self.offset.map(|offset| format!("offset {offset}"));
        let device = self.device.map(|device| format!("{} {device}", if self.is_write { "from" } else { "into" }));
        match [offset, device].into_iter().flatten().reduce(|one, two| format!("{one}, {two}")) {
            Some(place) => format!("{place}: {}", self.detail),
            None => self.detail.clone(),
        }
    }

    /// What caused it: an [`io::Error`] or a [`bifolio_device::Error`].
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// The operating system's number (`errno`) behind it, where there is one.
    pub fn os_code(&self) -> Option<i32> {
        let cause = self.cause()?;
        match cause.downcast_ref::<bifolio_device::Error>() {
            Some(error) => error.os_code(),
            None => cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error),
        }
    }
}

fn advice_on_descriptors(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => " (close some, or raise `ulimit -n`)",
        Some(libc::ENFILE) => " (the limit of the whole system is reached)",
        _ => "",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(offset) = self.offset {
            write!(f, ", offset {offset}")?;
        }
        if let Some(device) = self.device {
            write!(f, ", {} {device}", if self.is_write { "from" } else { "into" })?;
        }
        write!(f, ": {}", self.detail)
    }
}

impl std::error::Error for Error {
    /// What is behind the cause, whose own words are in the sentence already: a printer of chains would repeat them.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().and_then(|cause| cause.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_has_file_offset_device_detail_and_the_words_of_the_cause_once() {
        let refused = io::Error::from_raw_os_error(libc::EIO);
        let words = refused.to_string();
        let device = bifolio_device::Error::system("mapping a frame", refused).on(DeviceId::HOST);
        let error = Error::device(Path::new("data"), device).at(5).into_device(DeviceId::HOST);
        assert_eq!((error.kind(), error.subject(), error.offset()), (ErrorKind::Device, Path::new("data"), Some(5)));
        assert_eq!(error.detail(), format!("mapping a frame failed: {words}"));
        assert_eq!(error.to_string(), format!("data, offset 5, into host:0: {}", error.detail()));
        assert_eq!(error.os_code(), Some(libc::EIO));
        assert!(error.cause().and_then(|cause| cause.downcast_ref::<bifolio_device::Error>()).is_some());
        assert!(std::error::Error::source(&error).is_none());
    }
}
