//! Types and numbers of NVIDIA's driver interface, as its header (`cuda.h`) has them.

use crate::Rows;
use std::ffi::{c_int, c_uint, c_void};

/// A status: 0 is success.
pub(super) type Status = c_int;
/// A device's number in the driver's order.
pub(super) type Ordinal = c_int;

// The driver's handles are pointers that nobody but the driver follows. Kept as numbers of the
// same size they travel between threads without unsafe promises.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub(super) struct $name(pub(super) usize);
    )* };
}
handles!(
    /// A context.
    ContextHandle,
    /// A stream; 0, 1 and 2 are the default streams.
    StreamHandle,
    /// An event.
    EventHandle,
    /// A loaded module.
    ModuleHandle,
    /// A kernel of a module.
    FunctionHandle
);

pub(super) const SUCCESS: Status = 0;
pub(super) const INVALID_VALUE: Status = 1;
pub(super) const OUT_OF_MEMORY: Status = 2;
pub(super) const STUB_LIBRARY: Status = 34;
pub(super) const NO_DEVICE: Status = 100;
pub(super) const NOT_READY: Status = 600;
pub(super) const INVALID_DEVICE: Status = 101;
pub(super) const NO_BINARY_FOR_GPU: Status = 209;
pub(super) const INVALID_IMAGE: Status = 200;
pub(super) const INVALID_PTX: Status = 218;
pub(super) const UNSUPPORTED_PTX: Status = 222;
pub(super) const ECC_UNCORRECTABLE: Status = 214;
pub(super) const NVLINK_UNCORRECTABLE: Status = 220;
pub(super) const CONTAINED: Status = 226;
pub(super) const ILLEGAL_ADDRESS: Status = 700;
pub(super) const LAUNCH_TIMEOUT: Status = 702;
pub(super) const CONTEXT_IS_DESTROYED: Status = 709;
pub(super) const HOST_MEMORY_ALREADY_REGISTERED: Status = 712;
/// Assertion, stack, instruction, address and launch failures of a running kernel.
pub(super) const KERNEL_FAILURES: std::ops::RangeInclusive<Status> = 714..=719;
pub(super) const ASSERT: Status = 710;
pub(super) const TENSOR_MEMORY_LEAK: Status = 721;
pub(super) const NOT_SUPPORTED: Status = 801;
pub(super) const MPS_CLIENT_TERMINATED: Status = 810;
/// A call would join the default stream to the capture of another stream.
pub(super) const CAPTURE_IMPLICIT: Status = 906;
pub(super) const EXTERNAL_DEVICE: Status = 911;

pub(super) const ATTRIBUTE_COMPUTE_MODE: c_int = 20;
pub(super) const ATTRIBUTE_CONCURRENT_KERNELS: c_int = 31;
pub(super) const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
pub(super) const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`.
pub(super) const ATTRIBUTE_HOST_POINTERS: c_int = 91;
pub(super) const ATTRIBUTE_VIRTUAL_MEMORY: c_int = 102;
pub(super) const ATTRIBUTE_HANDLE_TYPE_FD: c_int = 103;
pub(super) const ATTRIBUTE_READ_ONLY_HOST_REGISTER: c_int = 113;
/// Streams wait for and write 64-bit values by the second version of these operations. The older
/// attribute of 32-bit ones (92) speaks of the first version and is 0 where the second works.
pub(super) const ATTRIBUTE_STREAM_MEMORY_OPERATIONS: c_int = 122;
pub(super) const COMPUTE_MODE_PROHIBITED: c_int = 2;

/// The stream of everybody who names none: it waits for all streams that were not made non-blocking, the default
/// streams of threads included, and these wait for it.
pub(super) const STREAM_LEGACY: StreamHandle = StreamHandle(1);
/// In this mode of a thread its calls do not end captures that other streams are in.
pub(super) const CAPTURE_MODE_RELAXED: c_int = 2;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`: until the word, less the value, is not negative as a signed number.
pub(super) const WAIT_AT_LEAST: c_uint = 0;
pub(super) const HOST_PORTABLE: c_uint = 1;
pub(super) const HOST_DEVICE_MAP: c_uint = 2;
pub(super) const HOST_REGISTER_READ_ONLY: c_uint = 8;
pub(super) const HANDLE_FD: c_int = 1;
pub(super) const GRANULARITY_MINIMUM: c_int = 0;
pub(super) const JIT_ERROR_LOG: c_int = 5;
pub(super) const JIT_ERROR_LOG_BYTES: c_int = 6;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FrameProperties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct AccessDescription {
    location: Location,
    flags: c_int,
}

const _: () = assert!(size_of::<FrameProperties>() == 32 && size_of::<AccessDescription>() == 12);

impl Location {
    fn device(ordinal: Ordinal) -> Self {
        Self { kind: 1, id: ordinal }
    }
}

impl FrameProperties {
    /// Memory that stays on a device, exportable as a descriptor or not.
    pub(super) fn on(ordinal: Ordinal, exportable: bool) -> Self {
        let handle_types = if exportable { HANDLE_FD } else { 0 };
        Self { kind: 1, handle_types, location: Location::device(ordinal), win32: 0, flags: [0; 8] }
    }
}

impl AccessDescription {
    /// What kernels of a device may do.
    pub(super) fn of(ordinal: Ordinal, access: crate::Access) -> Self {
        let flags = match access {
            crate::Access::Read => 1,
            crate::Access::ReadWrite => 3,
        };
        Self { location: Location::device(ordinal), flags }
    }
}

/// The most bytes from row to row (`CU_DEVICE_ATTRIBUTE_MAX_PITCH` of all GPUs so far).
pub(super) const PITCH_MAX: u64 = i32::MAX as u64;

/// Memory types of a copy of rows.
const HOST_MEMORY: c_uint = 1;
const DEVICE_MEMORY: c_uint = 2;

/// `CUDA_MEMCPY2D`, with one side in host and one in device memory.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RowCopy {
    src: RowsAt,
    dst: RowsAt,
    width: usize,
    height: usize,
}

/// One side of it.
#[repr(C)]
#[derive(Debug)]
struct RowsAt {
    x: usize,
    y: usize,
    kind: c_uint,
    host: *const c_void,
    device: u64,
    array: usize,
    pitch: usize,
}

const _: () = assert!(size_of::<RowCopy>() == 128);

impl RowsAt {
    fn host(ptr: *const c_void, pitch: u64) -> Self {
        Self { x: 0, y: 0, kind: HOST_MEMORY, host: ptr, device: 0, array: 0, pitch: pitch as usize }
    }

    fn device(ptr: u64, pitch: u64) -> Self {
        Self { x: 0, y: 0, kind: DEVICE_MEMORY, host: std::ptr::null(), device: ptr, array: 0, pitch: pitch as usize }
    }
}

impl RowCopy {
    pub(super) fn to_device(dst: u64, src: *const c_void, rows: Rows) -> Self {
        Self {
            src: RowsAt::host(src, rows.bytes),
            dst: RowsAt::device(dst, rows.pitch),
            width: rows.bytes as usize,
            height: rows.count as usize,
        }
    }

    pub(super) fn to_host(dst: *mut c_void, src: u64, rows: Rows) -> Self {
        Self {
            src: RowsAt::device(src, rows.pitch),
            dst: RowsAt::host(dst, rows.bytes),
            width: rows.bytes as usize,
            height: rows.count as usize,
        }
    }
}
