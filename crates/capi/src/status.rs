//! Status codes, the sentence behind the latest one, and the boundary that every call crosses.

use bifolio_io::{Error, ErrorKind};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Why a call failed; [`bf_last_error`] has the sentence. Functions that return a number of bytes return
/// these negative values instead.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "C names")]
pub enum bf_status {
    /// It worked.
    BF_OK = 0,
    /// NULL where something is needed, text that is not UTF-8, a flag that does not exist.
    BF_ERROR_ARGUMENT = -1,
    /// There is no such file or folder.
    BF_ERROR_NOT_FOUND = -2,
    /// The file may not be read or written, or page faults not be handled.
    BF_ERROR_PERMISSION = -3,
    /// A folder, pipe, socket or terminal.
    BF_ERROR_NOT_A_FILE = -4,
    /// Offset and length do not describe a range of the file.
    BF_ERROR_RANGE = -5,
    /// The destination is shorter than what should land there.
    BF_ERROR_DESTINATION = -6,
    /// The file became shorter while it was being read.
    BF_ERROR_TRUNCATED = -7,
    /// The operating system reported an error while reading.
    BF_ERROR_READ = -8,
    /// The operating system reported an error while writing.
    BF_ERROR_WRITE = -9,
    /// Not a striped set, or a damaged one.
    BF_ERROR_STRIPE = -10,
    /// The file was opened for reading only.
    BF_ERROR_READ_ONLY = -11,
    /// An earlier write failed; open the file again.
    BF_ERROR_LATCHED = -12,
    /// The engine or device cannot serve this file.
    BF_ERROR_ENGINE = -13,
    /// The device failed, or does not exist.
    BF_ERROR_DEVICE = -14,
    /// The request was cancelled.
    BF_ERROR_CANCELLED = -15,
    /// A profile is damaged or belongs to something else, or calibration failed.
    BF_ERROR_PROFILE = -16,
    /// A bug in Bifolio; please report it with the sentence.
    BF_ERROR_PANIC = -17,
    /// The request was waited for already.
    BF_ERROR_TAKEN = -18,
    /// This process was forked from the one that opened the context, or made the mapping.
    BF_ERROR_FORKED = -19,
    /// The device's memory, or the cache's part of it, holds no more than what is acquired already; or there are no
    /// addresses left.
    BF_ERROR_MEMORY = -20,
}

pub(crate) use bf_status::*;

/// A failure on its way to the caller.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: bf_status,
    pub(crate) text: String,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { status: BF_ERROR_ARGUMENT, text: text.into() }
    }
}

fn status_of(kind: ErrorKind) -> bf_status {
    match kind {
        ErrorKind::NotFound => BF_ERROR_NOT_FOUND,
        ErrorKind::Permission => BF_ERROR_PERMISSION,
        ErrorKind::NotAFile => BF_ERROR_NOT_A_FILE,
        ErrorKind::BadRange => BF_ERROR_RANGE,
        ErrorKind::BadDestination => BF_ERROR_DESTINATION,
        ErrorKind::Truncated => BF_ERROR_TRUNCATED,
        ErrorKind::Write => BF_ERROR_WRITE,
        ErrorKind::BadStripe => BF_ERROR_STRIPE,
        ErrorKind::ReadOnly => BF_ERROR_READ_ONLY,
        ErrorKind::Latched => BF_ERROR_LATCHED,
        ErrorKind::DirectRefused | ErrorKind::NoEngine => BF_ERROR_ENGINE,
        ErrorKind::Device => BF_ERROR_DEVICE,
        ErrorKind::Cancelled => BF_ERROR_CANCELLED,
        ErrorKind::Profile | ErrorKind::Calibration => BF_ERROR_PROFILE,
        ErrorKind::Panicked => BF_ERROR_PANIC,
        ErrorKind::Forked => BF_ERROR_FORKED,
        _ => BF_ERROR_READ,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { status: status_of(error.kind()), text: error.to_string() }
    }
}

impl From<bifolio_cache::Error> for Failure {
    fn from(error: bifolio_cache::Error) -> Self {
        use bifolio_cache::ErrorKind::{BadRange, BadUse, Device, Forked, OutOfMemory, Permission, Write};
        // Of what happened to the file, its own error knows more.
        let source = error.cause().and_then(|cause| cause.downcast_ref::<Error>());
        let status = match error.kind() {
            BadRange => BF_ERROR_RANGE,
            BadUse => BF_ERROR_ARGUMENT,
            OutOfMemory => BF_ERROR_MEMORY,
            Device => BF_ERROR_DEVICE,
            Write => BF_ERROR_WRITE,
            Permission => BF_ERROR_PERMISSION,
            Forked => BF_ERROR_FORKED,
            _ => source.map_or(BF_ERROR_READ, |source| status_of(source.kind())),
        };
        Self { status, text: error.to_string() }
    }
}

impl From<bifolio_device::Error> for Failure {
    fn from(error: bifolio_device::Error) -> Self {
        Self { status: BF_ERROR_DEVICE, text: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(failure: &Failure) -> bf_status {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
    failure.status
}

/// Runs a call: failures are remembered for this thread, and panics become one.
fn guard<T>(call: impl FnOnce() -> Outcome<T>) -> Result<T, bf_status> {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure { status: BF_ERROR_PANIC, text: format!("a bug in Bifolio, please report it: {text}") })
    });
    outcome.map_err(|failure| remember(&failure))
}

/// For calls that return a status.
pub(crate) fn status(call: impl FnOnce() -> Outcome<()>) -> bf_status {
    guard(call).err().unwrap_or(BF_OK)
}

/// For calls that return bytes.
pub(crate) fn bytes(call: impl FnOnce() -> Outcome<u64>) -> i64 {
    guard(call).map_or_else(|status| status as i64, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// What a pointer to a handle points to.
///
/// # Safety
/// The pointer is NULL or a live handle of that kind.
pub(crate) unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Outcome<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::argument(format!("the {what} is NULL")))
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

/// Text from the caller; none for NULL.
///
/// # Safety
/// The pointer is NULL or ends with a zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format!("the {what} is not UTF-8")))
}

/// A path from the caller, which may be any bytes.
///
/// # Safety
/// The pointer is NULL or ends with a zero byte.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Outcome<&'a Path> {
    use std::os::unix::ffi::OsStrExt;
    if path.is_null() {
        return Err(Failure::argument("the path is NULL"));
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())))
}

/// A string that the caller frees with [`bf_string_free`].
pub(crate) fn owned_text(text: &str) -> *mut c_char {
    CString::new(text.replace('\0', " ")).unwrap_or_default().into_raw()
}

/// The version of the library, such as "0.1.0". Static; never freed.
#[unsafe(no_mangle)]
pub extern "C" fn bf_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// The sentence of this thread's latest failure, with file, offset and device; empty before the first.
/// Valid until the thread's next failure; never freed.
#[unsafe(no_mangle)]
pub extern "C" fn bf_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// Frees a string that a call has returned; NULL is allowed.
///
/// # Safety
/// It was returned by a call of this library that says so, and is not freed twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(string) });
    }
}
