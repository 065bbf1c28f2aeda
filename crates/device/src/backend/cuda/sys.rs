//! NVIDIA's driver library: its types, its functions, and its errors as sentences.
//!
//! The library is searched once a process and never unloaded: unloading a driver while its
//! threads run crashes at exit.

use crate::library::{self, Search, api_table};
use crate::{Error, ErrorKind, LibraryReport, Result, Rows};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::fmt::Arguments;
use std::path::PathBuf;
use std::sync::OnceLock;

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
const INVALID_DEVICE: Status = 101;
const NO_BINARY_FOR_GPU: Status = 209;
const INVALID_IMAGE: Status = 200;
const INVALID_PTX: Status = 218;
const UNSUPPORTED_PTX: Status = 222;
const ILLEGAL_ADDRESS: Status = 700;
const HOST_MEMORY_ALREADY_REGISTERED: Status = 712;
/// Assertion, stack, instruction, address and launch failures of a running kernel.
const KERNEL_FAILURES: std::ops::RangeInclusive<Status> = 714..=719;
const ASSERT: Status = 710;
pub(super) const NOT_SUPPORTED: Status = 801;
/// A call would join the default stream to the capture of another stream.
pub(super) const CAPTURE_IMPLICIT: Status = 906;

pub(super) const ATTRIBUTE_COMPUTE_MODE: c_int = 20;
pub(super) const ATTRIBUTE_CONCURRENT_KERNELS: c_int = 31;
pub(super) const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
pub(super) const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
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

api_table! {
    /// The functions of `libcuda.so.1`; all are in drivers for CUDA 12.0.
    pub(super) Cuda {
        fn cuInit(flags: c_uint) -> Status;
        fn cuDriverGetVersion(version: *mut c_int) -> Status;
        fn cuGetErrorName(status: Status, text: *mut *const c_char) -> Status;
        fn cuGetErrorString(status: Status, text: *mut *const c_char) -> Status;
        fn cuDeviceGetCount(count: *mut c_int) -> Status;
        fn cuDeviceGet(device: *mut Ordinal, index: c_int) -> Status;
        fn cuDeviceGetName(name: *mut c_char, len: c_int, device: Ordinal) -> Status;
        fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: Ordinal) -> Status;
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: Ordinal) -> Status;
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: Ordinal) -> Status;
        fn cuDeviceCanAccessPeer(can: *mut c_int, device: Ordinal, peer: Ordinal) -> Status;
        fn cuDevicePrimaryCtxRetain(context: *mut ContextHandle, device: Ordinal) -> Status;
        fn cuDevicePrimaryCtxRelease_v2(device: Ordinal) -> Status;
        fn cuCtxGetCurrent(context: *mut ContextHandle) -> Status;
        fn cuCtxSetCurrent(context: ContextHandle) -> Status;
        fn cuCtxSynchronize() -> Status;
        fn cuCtxEnablePeerAccess(peer: ContextHandle, flags: c_uint) -> Status;
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status;
        fn cuMemAlloc_v2(ptr: *mut u64, len: usize) -> Status;
        fn cuMemFree_v2(ptr: u64) -> Status;
        fn cuMemHostAlloc(ptr: *mut *mut c_void, len: usize, flags: c_uint) -> Status;
        fn cuMemFreeHost(ptr: *mut c_void) -> Status;
        fn cuMemHostGetDevicePointer_v2(device_ptr: *mut u64, ptr: *mut c_void, flags: c_uint) -> Status;
        fn cuMemHostRegister_v2(ptr: *mut c_void, len: usize, flags: c_uint) -> Status;
        fn cuMemHostUnregister(ptr: *mut c_void) -> Status;
        fn cuMemAddressReserve(ptr: *mut u64, len: usize, alignment: usize, hint: u64, flags: c_ulonglong) -> Status;
        fn cuMemAddressFree(ptr: u64, len: usize) -> Status;
        fn cuMemGetAllocationGranularity(bytes: *mut usize, what: *const FrameProperties, option: c_int) -> Status;
        fn cuMemCreate(frame: *mut u64, len: usize, what: *const FrameProperties, flags: c_ulonglong) -> Status;
        fn cuMemRelease(frame: u64) -> Status;
        fn cuMemMap(ptr: u64, len: usize, offset: usize, frame: u64, flags: c_ulonglong) -> Status;
        fn cuMemUnmap(ptr: u64, len: usize) -> Status;
        fn cuMemSetAccess(ptr: u64, len: usize, access: *const AccessDescription, count: usize) -> Status;
        fn cuMemExportToShareableHandle(shared: *mut c_void, frame: u64, kind: c_int, flags: c_ulonglong) -> Status;
        fn cuMemImportFromShareableHandle(frame: *mut u64, shared: *mut c_void, kind: c_int) -> Status;
        fn cuStreamCreate(stream: *mut StreamHandle, flags: c_uint) -> Status;
        fn cuStreamDestroy_v2(stream: StreamHandle) -> Status;
        fn cuStreamWaitEvent(stream: StreamHandle, event: EventHandle, flags: c_uint) -> Status;
        fn cuLaunchHostFunc(
            stream: StreamHandle,
            function: unsafe extern "C" fn(*mut c_void),
            data: *mut c_void,
        ) -> Status;
        fn cuStreamQuery(stream: StreamHandle) -> Status;
        fn cuEventCreate(event: *mut EventHandle, flags: c_uint) -> Status;
        fn cuEventDestroy_v2(event: EventHandle) -> Status;
        fn cuEventRecord(event: EventHandle, stream: StreamHandle) -> Status;
        fn cuEventQuery(event: EventHandle) -> Status;
        fn cuEventSynchronize(event: EventHandle) -> Status;
        fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, len: usize, stream: StreamHandle) -> Status;
        fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, len: usize, stream: StreamHandle) -> Status;
        fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, stream: StreamHandle) -> Status;
        fn cuMemcpy2DAsync_v2(copy: *const RowCopy, stream: StreamHandle) -> Status;
        fn cuMemcpyPeerAsync(
            dst: u64,
            dst_context: ContextHandle,
            src: u64,
            src_context: ContextHandle,
            len: usize,
            stream: StreamHandle,
        ) -> Status;
        fn cuMemsetD8Async(dst: u64, value: c_uchar, len: usize, stream: StreamHandle) -> Status;
        fn cuModuleLoadDataEx(
            module: *mut ModuleHandle,
            image: *const c_void,
            options: c_uint,
            names: *mut c_int,
            values: *mut *mut c_void,
        ) -> Status;
        fn cuModuleUnload(module: ModuleHandle) -> Status;
        fn cuModuleGetFunction(function: *mut FunctionHandle, module: ModuleHandle, name: *const c_char) -> Status;
        fn cuLaunchKernel(
            function: FunctionHandle,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: StreamHandle,
            args: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> Status;
        fn cuPointerGetAttributes(
            count: c_uint,
            attributes: *const c_int,
            values: *const *mut c_void,
            ptr: u64,
        ) -> Status;
        fn cuDevicePrimaryCtxGetState(device: Ordinal, flags: *mut c_uint, active: *mut c_int) -> Status;
        fn cuStreamGetCtx(stream: StreamHandle, context: *mut ContextHandle) -> Status;
        fn cuCtxGetDevice(device: *mut Ordinal) -> Status;
        optional fn cuCtxGetId(context: ContextHandle, id: *mut c_ulonglong) -> Status;
        optional fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Status;
        optional fn cuStreamIsCapturing(stream: StreamHandle, is_capturing: *mut c_int) -> Status;
        optional fn cuStreamWaitValue32_v2(stream: StreamHandle, word: u64, value: u32, flags: c_uint) -> Status;
    }
}

/// The driver, searched on first use.
pub(super) fn driver() -> Result<&'static (Cuda, LibraryReport), &'static LibraryReport> {
    static DRIVER: OnceLock<Result<(Cuda, LibraryReport), LibraryReport>> = OnceLock::new();
    DRIVER.get_or_init(|| library::find(&search(), Cuda::load)).as_ref()
}

fn search() -> Search<'static> {
    // Containers mount the host's driver at the first folder; WSL keeps it at the last.
    let folders = ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"];
    Search {
        name: "CUDA driver",
        variable: "BIFOLIO_CUDA_LIBRARY",
        sonames: &["libcuda.so.1"],
        candidates: folders.iter().map(|folder| PathBuf::from(folder).join("libcuda.so.1")).collect(),
    }
}

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
        self.check(status, format_args!("asking for the CUDA driver's version"))?;
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
        STUB_LIBRARY => "; this is the toolkit's stub, so put the folder of the real driver library first",
        3 => "; a process that was forked after CUDA was first used cannot use it",
        ASSERT | ILLEGAL_ADDRESS => LOST,
        status if KERNEL_FAILURES.contains(&status) => LOST,
        _ => "",
    }
}

/// Such errors are sticky: the driver answers every later call on the context with them.
const LOST: &str = "; this process has lost its CUDA context, so start it anew";

/// `13000` as `13.0`.
pub(super) fn version_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_file_in_place_of_the_driver_is_reported_as_broken() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libcuda.so.1");
        std::fs::write(&file, "INPUT(libcuda.so)").unwrap();
        let search = Search { sonames: &[], candidates: vec![file], variable: "BIFOLIO_TEST_UNSET", ..search() };
        let problem = library::find(&search, Cuda::load).unwrap_err().problem.unwrap();
        assert!(problem.contains("libcuda.so.1 does not load"), "{problem}");
    }

    #[test]
    fn a_library_that_is_not_the_driver_is_reported_by_its_first_missing_function() {
        let search = Search { sonames: &["libc.so.6"], candidates: vec![], variable: "BIFOLIO_TEST_UNSET", ..search() };
        let problem = library::find(&search, Cuda::load).unwrap_err().problem.unwrap();
        assert!(problem.contains("no function cuInit"), "{problem}");
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!([12000, 12080, 13000].map(version_text), ["12.0", "12.8", "13.0"]);
    }

    #[test]
    fn statuses_that_callers_act_on_have_their_own_kind() {
        assert_eq!(kind(OUT_OF_MEMORY), ErrorKind::OutOfMemory);
        assert_eq!(kind(NOT_SUPPORTED), ErrorKind::Unsupported);
        assert_eq!(kind(UNSUPPORTED_PTX), ErrorKind::Kernel);
        assert_eq!(kind(ILLEGAL_ADDRESS), ErrorKind::Execution);
        assert!(advice(719).contains("start it anew"));
    }
}
