//! Failures on their way to a program, and the boundary that every call crosses.
//!
//! Calls that return a struct return the error; those that return bytes return -1 with `errno` for what the
//! operating system refused, and a negated error otherwise. The sentence is there, too:
//! [`bifolio_cufile_last_error`], and on standard error where `BIFOLIO_CUFILE_LOG` is set.

use crate::abi::CUfileOpError::{
    self, CU_FILE_CUDA_DRIVER_ERROR, CU_FILE_CUDA_POINTER_RANGE_ERROR, CU_FILE_INTERNAL_ERROR,
    CU_FILE_INVALID_FILE_TYPE, CU_FILE_INVALID_VALUE, CU_FILE_IO_ERROR, CU_FILE_IO_NOT_SUPPORTED,
    CU_FILE_PERMISSION_DENIED, CU_FILE_SUCCESS,
};
use crate::abi::{CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_UNKNOWN, CUfileError_t};
use bifolio_device::fork::Birth;
use bifolio_io::{Error, ErrorKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// Why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: CUfileOpError,
    /// What the driver said, as far as we know; 0 where it is not the reason.
    cuda: c_int,
    /// What the operating system said; 0 where it is not the reason.
    errno: c_int,
    pub(crate) text: String,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(error: CUfileOpError, text: impl Into<String>) -> Self {
        let cuda = if error == CU_FILE_CUDA_DRIVER_ERROR { CUDA_ERROR_UNKNOWN } else { 0 };
        Self { error, cuda, errno: 0, text: text.into() }
    }

    /// Arguments that fit nothing.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(CU_FILE_INVALID_VALUE, text)
    }

    /// What the operating system refused, or would.
    pub(crate) fn system(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, ..Self::new(CU_FILE_IO_ERROR, text) }
    }

    fn forked() -> Self {
        let text = "this process was forked after cuFile was first used: fork before that, or start the child by exec";
        Self { cuda: CUDA_ERROR_NOT_INITIALIZED, ..Self::new(CU_FILE_CUDA_DRIVER_ERROR, text) }
    }

    /// As a call with a status returns it.
    fn status(&self) -> CUfileError_t {
        CUfileError_t { err: self.error as c_int, cu_err: self.cuda }
    }

    /// As a number of bytes that is none.
    pub(crate) fn bytes(&self) -> isize {
        if self.errno == 0 { -(self.error as isize) } else { -1 }
    }

    /// As a result in memory, beside which there is no `errno`: negated, as all errors.
    pub(crate) fn in_memory(&self) -> isize {
        -(if self.errno == 0 { self.error as isize } else { self.errno as isize })
    }

    /// Whether the request was stopped before its end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.errno == libc::ECANCELED
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::NotAFile => Self::new(CU_FILE_INVALID_FILE_TYPE, &text),
            ErrorKind::Permission => Self::new(CU_FILE_PERMISSION_DENIED, &text),
            ErrorKind::BadRange => Self::argument(&text),
            ErrorKind::BadDestination => Self::new(CU_FILE_CUDA_POINTER_RANGE_ERROR, &text),
            ErrorKind::NoEngine | ErrorKind::DirectRefused => Self::new(CU_FILE_IO_NOT_SUPPORTED, &text),
            ErrorKind::Device => Self::new(CU_FILE_CUDA_DRIVER_ERROR, &text),
            ErrorKind::Forked => Self::forked(),
            ErrorKind::Panicked => Self::new(CU_FILE_INTERNAL_ERROR, &text),
            ErrorKind::ReadOnly => Self::system(libc::EBADF, &text),
            ErrorKind::Cancelled => Self::system(libc::ECANCELED, &text),
            _ => Self::system(error.os_code().unwrap_or(libc::EIO), &text),
        }
    }
}

impl From<bifolio_device::Error> for Failure {
    fn from(error: bifolio_device::Error) -> Self {
        Self::new(CU_FILE_CUDA_DRIVER_ERROR, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the sentence, and writes it where that was asked for.
pub(crate) fn note(call: &str, failure: &Failure) {
    if log_is_on() {
        // A program without standard error is no reason to panic.
        let _ = writeln!(io::stderr(), "bifolio: {call}: {}", failure.text);
    }
    let text = CString::new(format!("{call}: {}", failure.text).replace('\0', " ")).unwrap_or_default();
    // While a thread ends there is no place for it any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

fn log_is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("BIFOLIO_CUFILE_LOG").is_some_and(|value| !value.is_empty() && value != "0"))
}

/// In which process the library was first used; none has used it before.
static BIRTH: OnceLock<Birth> = OnceLock::new();

/// Whether the library was first used in a process that this one was forked from.
pub(crate) fn is_forked() -> bool {
    BIRTH.get_or_init(Birth::here).was_elsewhere()
}

/// Runs a call: panics become failures, and a child of `fork` is refused before it waits for locks and
/// threads that only its parent has.
fn guard<T>(name: &str, call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let outcome = if is_forked() {
        Err(Failure::forked())
    } else {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Failure::new(CU_FILE_INTERNAL_ERROR, format!("a bug in Bifolio, please report it: {text}")))
        })
    };
    outcome.inspect_err(|failure| note(name, failure))
}

/// For calls that return a status.
pub(crate) fn status(name: &str, call: impl FnOnce() -> Outcome<()>) -> CUfileError_t {
    let success = CUfileError_t { err: CU_FILE_SUCCESS as c_int, cu_err: 0 };
    guard(name, call).map_or_else(|failure| failure.status(), |()| success)
}

/// For calls that return bytes.
pub(crate) fn bytes(name: &str, call: impl FnOnce() -> Outcome<u64>) -> isize {
    match guard(name, call) {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        Err(failure) => {
            if failure.errno != 0 {
                // SAFETY: `errno` of this thread may always be written.
                unsafe { *libc::__errno_location() = failure.errno };
            }
            failure.bytes()
        }
    }
}

/// For calls that return nothing.
pub(crate) fn nothing(name: &str, call: impl FnOnce() -> Outcome<()>) {
    let _ = guard(name, call);
}

/// Stores a result where the caller wants it.
///
/// # Safety
/// The pointer is NULL or may be written.
pub(crate) unsafe fn store<T>(out: *mut T, value: T) -> Outcome<()> {
    if out.is_null() {
        return Err(Failure::argument("the pointer for the result is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// The sentence of this thread's latest failure; empty before the first. Valid until the next; never freed.
/// The original has no such function: it tells the two apart.
#[unsafe(no_mangle)]
pub extern "C" fn bifolio_cufile_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_the_system_refused_is_in_errno_and_the_rest_in_the_result() {
        let full = Error::writing(Path::new("data"), io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(bytes("call", || Err(full.into())), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSPC));
        let range = Error::new(ErrorKind::BadRange, Path::new("data"), "no");
        assert_eq!(bytes("call", || Err(range.into())), -5022);
        assert_eq!(bytes("call", || Ok(7)), 7);
    }

    #[test]
    fn a_panic_is_an_internal_error_with_its_words() {
        let result = status("call", || panic!("of this kind"));
        assert_eq!((result.err, result.cu_err), (5030, 0));
        // SAFETY: the function returns text of this thread.
        let text = unsafe { std::ffi::CStr::from_ptr(bifolio_cufile_last_error()) };
        assert!(text.to_str().unwrap().contains("call: a bug in Bifolio, please report it: of this kind"));
    }
}
