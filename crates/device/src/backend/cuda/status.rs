//! What the driver's statuses mean: results, kinds of errors, and sentences.

use super::abi::{
    ASSERT, CAPTURE_IMPLICIT, HOST_MEMORY_ALREADY_REGISTERED, ILLEGAL_ADDRESS, INVALID_DEVICE, INVALID_IMAGE,
    INVALID_PTX, INVALID_VALUE, KERNEL_FAILURES, NO_BINARY_FOR_GPU, NO_DEVICE, NOT_SUPPORTED, OUT_OF_MEMORY, Ordinal,
    STUB_LIBRARY, SUCCESS, Status, UNSUPPORTED_PTX,
};
use super::sys::Cuda;
use crate::{Error, ErrorKind, Result};
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Arguments;

impl Cuda {
    /// The driver's name and description of a status.
    pub(super) fn describe(&self, status: Status) -> String {
        let text = |function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = std::ptr::null();
            // SAFETY: the driver stores a pointer to a static string, or null for a status that
            // it does not know.
            let found = unsafe { function(status, &raw mut text) } == SUCCESS && !text.is_null();
            // SAFETY: a static NUL-terminated string, as above.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (text(self.cuGetErrorName), text(self.cuGetErrorString)) {
            (Some(name), Some(description)) => format!("{name} ({description})"),
            (Some(name), None) => name,
            _ => format!("CUDA error {status}"),
        }
    }

    /// Turns a status into a result; `doing` names the operation and costs nothing on success.
    pub(super) fn check(&self, status: Status, doing: Arguments<'_>) -> Result<()> {
        if status == SUCCESS { Ok(()) } else { Err(self.failure(status, doing)) }
    }

    /// The error for a status other than success.
    pub(super) fn failure(&self, status: Status, doing: Arguments<'_>) -> Error {
        Error::new(kind(status), format!("{doing} failed: {}{}", self.describe(status), advice(status)))
    }

    /// The newest CUDA version that the driver supports, as 1000 * major + 10 * minor.
    pub(super) fn version(&self) -> Result<u32> {
        let mut version = 0;
        // SAFETY: the driver stores one integer.
        let status = unsafe { (self.cuDriverGetVersion)(&raw mut version) };
        self.check(status, format_args!("querying the CUDA driver version"))?;
        Ok(version.unsigned_abs())
    }

    /// A device's attribute; 0 for one that the driver does not know.
    pub(super) fn attribute(&self, device: Ordinal, attribute: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: the driver stores one integer.
        let status = unsafe { (self.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
        if status == SUCCESS { value } else { 0 }
    }
}

fn kind(status: Status) -> ErrorKind {
    match status {
        INVALID_VALUE | HOST_MEMORY_ALREADY_REGISTERED => ErrorKind::BadArgument,
        OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        STUB_LIBRARY | NO_DEVICE | INVALID_DEVICE => ErrorKind::Missing,
        INVALID_IMAGE | NO_BINARY_FOR_GPU | INVALID_PTX | UNSUPPORTED_PTX => ErrorKind::Kernel,
        NOT_SUPPORTED => ErrorKind::Unsupported,
        CAPTURE_IMPLICIT => ErrorKind::Capturing,
        _ => ErrorKind::Execution,
    }
}

fn advice(status: Status) -> &'static str {
    match status {
        STUB_LIBRARY => "; this is the toolkit's stub library: put the folder of the real driver first",
        3 => "; a process forked after CUDA was initialised cannot use it",
        ASSERT | ILLEGAL_ADDRESS => LOST,
        status if KERNEL_FAILURES.contains(&status) => LOST,
        _ => "",
    }
}

/// Such errors are sticky: the driver answers every later call on the context with them.
const LOST: &str = "; this process has lost its CUDA context: restart it";

/// Page-locked memory that is not to be had.
pub(super) fn no_pinned_memory(doing: Arguments<'_>) -> Error {
    let detail = format!(
        "{doing} failed: not enough lockable host memory; use fewer or smaller pinned slots, or raise the container's \
         memory limit"
    );
    Error::new(ErrorKind::OutOfPinnedMemory, detail)
}

/// Something of another device.
pub(super) fn foreign(what: &str) -> Error {
    Error::new(ErrorKind::BadArgument, format!("the {what} belongs to another device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_that_callers_act_on_have_their_own_kind() {
        assert_eq!(kind(OUT_OF_MEMORY), ErrorKind::OutOfMemory);
        assert_eq!(kind(NOT_SUPPORTED), ErrorKind::Unsupported);
        assert_eq!(kind(UNSUPPORTED_PTX), ErrorKind::Kernel);
        assert_eq!(kind(ILLEGAL_ADDRESS), ErrorKind::Execution);
        assert!(advice(719).contains("restart it"));
    }
}
