//! What the driver's statuses mean: results, kinds of errors, and sentences.

use super::abi::{
    ASSERT, CAPTURE_IMPLICIT, CONTAINED, CONTEXT_IS_DESTROYED, ECC_UNCORRECTABLE, EXTERNAL_DEVICE,
    HOST_MEMORY_ALREADY_REGISTERED, ILLEGAL_ADDRESS, INVALID_DEVICE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE,
    KERNEL_FAILURES, LAUNCH_TIMEOUT, MPS_CLIENT_TERMINATED, NO_BINARY_FOR_GPU, NO_DEVICE, NOT_SUPPORTED,
    NVLINK_UNCORRECTABLE, OUT_OF_MEMORY, Ordinal, STUB_LIBRARY, SUCCESS, Status, TENSOR_MEMORY_LEAK, UNSUPPORTED_PTX,
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
        status if is_sticky(status) => ErrorKind::Lost,
        _ => ErrorKind::Execution,
    }
}

/// Whether the driver answers every later call on the context with this status, so that all that is in it is gone:
/// - kernels that failed: `CUDA_ERROR_ILLEGAL_ADDRESS`, `_LAUNCH_TIMEOUT`, `_ASSERT`, `_HARDWARE_STACK_ERROR`,
///   `_ILLEGAL_INSTRUCTION`, `_MISALIGNED_ADDRESS`, `_INVALID_ADDRESS_SPACE`, `_INVALID_PC`, `_LAUNCH_FAILED`
///   ("unspecified launch failure") and `_TENSOR_MEMORY_LEAK`;
/// - hardware that did: `CUDA_ERROR_ECC_UNCORRECTABLE`, `_NVLINK_UNCORRECTABLE`, `_CONTAINED`, `_EXTERNAL_DEVICE`;
/// - contexts that others have ended: `CUDA_ERROR_CONTEXT_IS_DESTROYED`, `_MPS_CLIENT_TERMINATED`.
///
/// `CUDA_ERROR_UNKNOWN` is none of them, as it may concern one call alone.
fn is_sticky(status: Status) -> bool {
    let of_kernels = matches!(status, ILLEGAL_ADDRESS | LAUNCH_TIMEOUT | ASSERT | TENSOR_MEMORY_LEAK);
    let of_hardware = matches!(status, ECC_UNCORRECTABLE | NVLINK_UNCORRECTABLE | CONTAINED | EXTERNAL_DEVICE);
    let of_contexts = matches!(status, CONTEXT_IS_DESTROYED | MPS_CLIENT_TERMINATED);
    of_kernels || KERNEL_FAILURES.contains(&status) || of_hardware || of_contexts
}

fn advice(status: Status) -> &'static str {
    match status {
        STUB_LIBRARY => "; this is the toolkit's stub library: put the folder of the real driver first",
        3 => "; a process forked after CUDA was initialised cannot use it",
        status if is_sticky(status) => "; this process has lost its CUDA context: restart it",
        _ => "",
    }
}

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
        assert!(advice(719).contains("restart it"));
    }

    #[test]
    fn a_device_that_is_gone_is_told_from_a_request_that_failed() {
        for status in [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911] {
            assert_eq!(kind(status), ErrorKind::Lost, "{status}");
        }
        // Arguments, memory, a launch that is too large, what the device or the system refuses, and what is unknown.
        for status in [1, 2, 100, 101, 200, 201, 209, 218, 304, 400, 600, 701, 712, 713, 720, 800, 801, 802, 906, 999] {
            assert_ne!(kind(status), ErrorKind::Lost, "{status}");
        }
    }
}
