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
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
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
            source: None,
        }
    }

    /// An operating-system error while `doing` something with `path`.
    pub fn system(path: &Path, doing: impl fmt::Display, source: io::Error) -> Self {
        let (kind, advice) = match source.kind() {
            io::ErrorKind::NotFound => (ErrorKind::NotFound, ""),
            io::ErrorKind::PermissionDenied => (ErrorKind::Permission, " (check its permissions and owner)"),
            _ => (ErrorKind::Read, advice_on_descriptors(&source)),
        };
        Self::new(kind, path, format!("{doing} failed: {source}{advice}")).with_source(source)
    }

    /// An operating-system error while writing to `path`.
    pub fn writing(path: &Path, source: io::Error) -> Self {
        let advice = match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => " (make room, or choose another file system)",
            Some(libc::EFBIG) => " (the file system's or the process's limit on file sizes is reached)",
            _ => "",
        };
        Self::new(ErrorKind::Write, path, format!("writing it failed: {source}{advice}")).with_source(source)
    }

    /// A device's error while working on `path`.
    pub fn device(path: &Path, source: bifolio_device::Error) -> Self {
        let device = source.device();
        // The device's own message leads with its name, which this error writes already.
        let text = source.to_string();
        let detail = device.and_then(|id| text.strip_prefix(&format!("{id}: ")).map(str::to_owned)).unwrap_or(text);
        let mut error = Self::new(ErrorKind::Device, path, detail).with_source(source);
        error.device = device;
        error
    }

    /// A request in a child of the process that opened the device.
    pub(crate) fn forked(path: &Path) -> Self {
        let detail = "this process was forked from one that had opened the device, and neither its threads nor its \
                      driver came along; fork before the first use, or start the child by exec (in Python, \
                      multiprocessing's \"spawn\")";
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

    /// The operating system's number (`errno`) behind it, where there is one.
    pub fn os_code(&self) -> Option<i32> {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                return Some(code);
            }
            cause = error.source();
        }
        None
    }

    /// Where in the file, where that is known.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}

fn advice_on_descriptors(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => " (this process has as many files open as it may: close some, or raise `ulimit -n`)",
        Some(libc::ENFILE) => " (the system has as many files open as it may)",
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
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
