//! Exceptions: what the operating system said is an `OSError`, a bad argument is a `ValueError`, and the rest
//! is `bifolio.Error`. The sentences are those of the crates below, whose parts are attributes of the exception where
//! they are known: `path`, `offset` and `errno`.

use bifolio_cache::{Error as CacheError, ErrorKind as Kind};
use bifolio_crypt::Error as DirectoryError;
use bifolio_io::{Error as IoError, ErrorKind};
use bifolio_volume::Error as VolumeError;
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::fmt::Display;

create_exception!(
    bifolio,
    Error,
    PyRuntimeError,
    "A failure that is neither a bad argument (ValueError) nor the operating system's (OSError)."
);
create_exception!(bifolio, CancelledError, Error, "The request was cancelled before it was over.");
create_exception!(bifolio.safetensors, SafetensorError, Error, "A file that is not a valid safetensors file.");

/// The attributes of every `bifolio.Error`, also of one without a path, an offset or an errno.
pub(crate) fn declare(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<Error>();
    ["path", "offset", "errno"].into_iter().try_for_each(|name| class.setattr(name, py.None()))
}

/// An exception with the parts of an error as attributes.
fn with_parts(exception: PyErr, path: impl Display, offset: Option<u64>, errno: Option<i32>) -> PyErr {
    // An attribute that cannot be set must not replace the exception.
    let set = |py: Python<'_>| -> PyResult<()> {
        let value = exception.value(py);
        value.setattr("path", path.to_string())?;
        offset.map_or(Ok(()), |offset| value.setattr("offset", offset))?;
        errno.map_or(Ok(()), |errno| value.setattr("errno", errno))
    };
    let _ = Python::attach(set);
    exception
}

/// A bad argument.
pub(crate) fn bad(sentence: impl Into<String>) -> PyErr {
    PyValueError::new_err(sentence.into())
}

/// The exception for a failed request.
pub(crate) fn of_request(error: &IoError) -> PyErr {
    let sentence = error.to_string();
    let exception = match error.kind() {
        ErrorKind::BadRange | ErrorKind::BadDestination => bad(sentence),
        ErrorKind::NotFound => os_error(error.os_code().unwrap_or(libc::ENOENT), sentence),
        ErrorKind::Permission => os_error(error.os_code().unwrap_or(libc::EACCES), sentence),
        ErrorKind::NotAFile => os_error(error.os_code().unwrap_or(libc::EINVAL), sentence),
        ErrorKind::Read | ErrorKind::Write => os_error(error.os_code().unwrap_or(libc::EIO), sentence),
        ErrorKind::ReadOnly => unsupported(sentence),
        ErrorKind::Cancelled => CancelledError::new_err(sentence),
        _ => Error::new_err(sentence),
    };
    with_parts(exception, error.subject().display(), error.offset(), error.os_code())
}

/// Whether a read begins beyond the end of its file. Of the ranges that a file can have at all, only those are bad. The
/// file is not asked again: its size may be another one by now.
pub(crate) fn is_beyond_the_end(error: &IoError) -> bool {
    error.kind() == ErrorKind::BadRange
}

/// The exception for a failure of the cache.
pub(crate) fn of_cache(error: &CacheError) -> PyErr {
    let sentence = error.to_string();
    let exception = match error.kind() {
        Kind::BadRange | Kind::BadUse => bad(sentence),
        Kind::OutOfMemory => PyMemoryError::new_err(sentence),
        Kind::Read | Kind::Write => {
            if let Some(error) = error.cause().and_then(|cause| cause.downcast_ref::<IoError>()) {
                return of_request(error);
            }
            os_error(error.os_code().unwrap_or(libc::EIO), sentence)
        }
        Kind::Permission => os_error(error.os_code().unwrap_or(libc::EACCES), sentence),
        // A `ConnectionError`, whatever of it has gone.
        Kind::Gone => os_error(libc::ECONNREFUSED, sentence),
        _ => Error::new_err(sentence),
    };
    with_parts(exception, error.subject(), None, error.os_code())
}

/// The exception for a failure of a volume, or of an encrypted file.
pub(crate) fn of_volume(error: &VolumeError) -> PyErr {
    use bifolio_volume::ErrorKind;
    let sentence = error.to_string();
    let code = |default| error.os_code().unwrap_or(default);
    let exception = match error.kind() {
        ErrorKind::BadRange | ErrorKind::BadUse => bad(sentence),
        ErrorKind::NotFound => os_error(code(libc::ENOENT), sentence),
        // A wrong key is a lack of permission, as it is for zipfile and for keyrings.
        ErrorKind::Permission | ErrorKind::WrongKey => os_error(code(libc::EACCES), sentence),
        // What was stored cannot be given out as it was.
        ErrorKind::Read | ErrorKind::Write | ErrorKind::Damaged => os_error(code(libc::EIO), sentence),
        ErrorKind::NoSpace => os_error(code(libc::ENOSPC), sentence),
        ErrorKind::ReadOnly => unsupported(sentence),
        ErrorKind::Cancelled => CancelledError::new_err(sentence),
        _ => Error::new_err(sentence),
    };
    with_parts(exception, error.subject(), None, None)
}

/// The exception for a failure of an encrypted directory.
pub(crate) fn of_directory(error: &DirectoryError) -> PyErr {
    use bifolio_crypt::ErrorKind;
    let sentence = error.to_string();
    let code = |default| error.os_code().unwrap_or(default);
    let exception = match error.kind() {
        ErrorKind::BadName | ErrorKind::BadUse => bad(sentence),
        ErrorKind::NotFound => os_error(code(libc::ENOENT), sentence),
        ErrorKind::Permission | ErrorKind::WrongKey => os_error(code(libc::EACCES), sentence),
        ErrorKind::Read | ErrorKind::Damaged | ErrorKind::Corrupt => os_error(code(libc::EIO), sentence),
        _ => Error::new_err(sentence),
    };
    with_parts(exception, error.subject(), None, None)
}

/// The exception for a device's failure.
pub(crate) fn of_device(error: &bifolio_device::Error) -> PyErr {
    match error.kind() {
        bifolio_device::ErrorKind::OutOfMemory => PyMemoryError::new_err(error.to_string()),
        bifolio_device::ErrorKind::BadArgument => bad(error.to_string()),
        _ => Error::new_err(error.to_string()),
    }
}

/// The exception for a failure of a region, which stands on the kernel as well.
pub(crate) fn of_region(error: &bifolio_device::Error) -> PyErr {
    match (error.kind(), error.os_code()) {
        (bifolio_device::ErrorKind::System, Some(code)) => os_error(code, error.to_string()),
        _ => of_device(error),
    }
}

/// Python picks the subclass by the number: `FileNotFoundError`, `PermissionError`, ...
fn os_error(code: i32, sentence: String) -> PyErr {
    PyOSError::new_err((code, sentence))
}

/// `io.UnsupportedOperation`, which is what Python's own files raise; both an `OSError` and a `ValueError`.
pub(crate) fn unsupported(sentence: String) -> PyErr {
    let raise = |py: Python<'_>| -> PyResult<PyErr> {
        let class = py.import("io")?.getattr("UnsupportedOperation")?;
        Ok(PyErr::from_value(class.call1((PyString::new(py, &sentence),))?))
    };
    Python::attach(|py| raise(py).unwrap_or_else(|error| error))
}
