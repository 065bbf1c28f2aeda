//! The OpenCL loader: the types, functions and numbers of OpenCL 1.2 that are used, and errors
//! as sentences.
//!
//! The loader is searched once a process and never unloaded: it brings each vendor's driver with
//! its threads into the process, and some of them (PoCL) crash when they are unloaded at exit.

use crate::library::{self, Search, api_table};
use crate::{Error, ErrorKind, LibraryReport, Result};
use std::ffi::{c_char, c_void};
use std::fmt::Arguments;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A status: 0 is success, failures are negative.
pub(super) type Status = i32;

// Handles are pointers that only the driver follows; as numbers they travel between threads.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
        pub(super) struct $name(pub(super) usize);
    )* };
}
handles!(
    /// `cl_platform_id`.
    PlatformId,
    /// `cl_device_id`.
    DeviceHandle,
    /// `cl_context`.
    ContextHandle,
    /// `cl_command_queue`.
    QueueHandle,
    /// `cl_mem`.
    MemoryHandle,
    /// `cl_program`.
    ProgramHandle,
    /// `cl_kernel`.
    KernelHandle,
    /// `cl_event`.
    EventHandle
);

pub(super) const SUCCESS: Status = 0;
pub(super) const DEVICE_NOT_FOUND: Status = -1;
pub(super) const MEM_OBJECT_ALLOCATION_FAILURE: Status = -4;
pub(super) const OUT_OF_RESOURCES: Status = -5;
pub(super) const OUT_OF_HOST_MEMORY: Status = -6;
pub(super) const BUILD_PROGRAM_FAILURE: Status = -11;
pub(super) const EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST: Status = -14;
pub(super) const INVALID_BUFFER_SIZE: Status = -61;
/// The loader found no driver (`cl_khr_icd`).
pub(super) const PLATFORM_NOT_FOUND: Status = -1001;

pub(super) const TRUE: u32 = 1;
pub(super) const FALSE: u32 = 0;

pub(super) const PLATFORM_VERSION: u32 = 0x0901;
pub(super) const PLATFORM_NAME: u32 = 0x0902;

pub(super) const DEVICE_TYPE_ALL: u64 = 0xFFFF_FFFF;
pub(super) const DEVICE_TYPE_GPU: u64 = 1 << 2;
pub(super) const DEVICE_TYPE_ACCELERATOR: u64 = 1 << 3;
pub(super) const DEVICE_TYPE: u32 = 0x1000;
pub(super) const DEVICE_MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
pub(super) const DEVICE_MEM_BASE_ADDR_ALIGN: u32 = 0x1019;
pub(super) const DEVICE_GLOBAL_MEM_SIZE: u32 = 0x101F;
pub(super) const DEVICE_ENDIAN_LITTLE: u32 = 0x1026;
pub(super) const DEVICE_AVAILABLE: u32 = 0x1027;
pub(super) const DEVICE_COMPILER_AVAILABLE: u32 = 0x1028;
pub(super) const DEVICE_NAME: u32 = 0x102B;
pub(super) const DRIVER_VERSION: u32 = 0x102D;
pub(super) const DEVICE_VERSION: u32 = 0x102F;
pub(super) const DEVICE_EXTENSIONS: u32 = 0x1030;
/// `cl_khr_device_uuid`.
pub(super) const DEVICE_UUID: u32 = 0x106A;

pub(super) const MEM_READ_WRITE: u64 = 1;
pub(super) const MEM_ALLOC_HOST_PTR: u64 = 1 << 4;
pub(super) const MAP_READ_WRITE: u64 = 3;
pub(super) const BUFFER_CREATE_TYPE_REGION: u32 = 0x1220;

pub(super) const PROGRAM_BINARY_SIZES: u32 = 0x1165;
pub(super) const PROGRAM_BINARIES: u32 = 0x1166;
pub(super) const PROGRAM_BUILD_LOG: u32 = 0x1183;

pub(super) const EVENT_COMMAND_EXECUTION_STATUS: u32 = 0x11D3;
/// The status of a finished command; those of unfinished ones are greater, of failed ones less.
pub(super) const COMPLETE: Status = 0;

/// `cl_buffer_region`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Region {
    pub(super) origin: usize,
    pub(super) size: usize,
}

api_table! {
    /// The functions of the loader.
    pub(super) OpenCl {
        fn clGetPlatformIDs(entries: u32, platforms: *mut PlatformId, count: *mut u32) -> Status;
        fn clGetPlatformInfo(platform: PlatformId, what: u32, len: usize, value: *mut c_void, size: *mut usize) -> Status;
        fn clGetDeviceIDs(
            platform: PlatformId,
            kind: u64,
            entries: u32,
            devices: *mut DeviceHandle,
            count: *mut u32,
        ) -> Status;
        fn clGetDeviceInfo(device: DeviceHandle, what: u32, len: usize, value: *mut c_void, size: *mut usize) -> Status;
        fn clCreateContext(
            properties: *const isize,
            count: u32,
            devices: *const DeviceHandle,
            notify: *const c_void,
            data: *mut c_void,
            status: *mut Status,
        ) -> ContextHandle;
        fn clCreateCommandQueue(
            context: ContextHandle,
            device: DeviceHandle,
            properties: u64,
            status: *mut Status,
        ) -> QueueHandle;
        fn clReleaseCommandQueue(queue: QueueHandle) -> Status;
        fn clFlush(queue: QueueHandle) -> Status;
        fn clFinish(queue: QueueHandle) -> Status;
        fn clCreateBuffer(
            context: ContextHandle,
            flags: u64,
            len: usize,
            host: *mut c_void,
            status: *mut Status,
        ) -> MemoryHandle;
        fn clCreateSubBuffer(
            memory: MemoryHandle,
            flags: u64,
            kind: u32,
            region: *const Region,
            status: *mut Status,
        ) -> MemoryHandle;
        fn clReleaseMemObject(memory: MemoryHandle) -> Status;
        fn clEnqueueReadBuffer(
            queue: QueueHandle,
            memory: MemoryHandle,
            blocking: u32,
            offset: usize,
            len: usize,
            dst: *mut c_void,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
        ) -> Status;
        fn clEnqueueWriteBuffer(
            queue: QueueHandle,
            memory: MemoryHandle,
            blocking: u32,
            offset: usize,
            len: usize,
            src: *const c_void,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
        ) -> Status;
        fn clEnqueueCopyBuffer(
            queue: QueueHandle,
            src: MemoryHandle,
            dst: MemoryHandle,
            src_offset: usize,
            dst_offset: usize,
            len: usize,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
        ) -> Status;
        fn clEnqueueFillBuffer(
            queue: QueueHandle,
            memory: MemoryHandle,
            pattern: *const c_void,
            pattern_len: usize,
            offset: usize,
            len: usize,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
        ) -> Status;
        fn clEnqueueMapBuffer(
            queue: QueueHandle,
            memory: MemoryHandle,
            blocking: u32,
            flags: u64,
            offset: usize,
            len: usize,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
            status: *mut Status,
        ) -> *mut c_void;
        fn clEnqueueUnmapMemObject(
            queue: QueueHandle,
            memory: MemoryHandle,
            mapped: *mut c_void,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
        ) -> Status;
        fn clEnqueueBarrierWithWaitList(
            queue: QueueHandle,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
        ) -> Status;
        fn clCreateProgramWithSource(
            context: ContextHandle,
            count: u32,
            sources: *const *const c_char,
            lens: *const usize,
            status: *mut Status,
        ) -> ProgramHandle;
        fn clCreateProgramWithBinary(
            context: ContextHandle,
            count: u32,
            devices: *const DeviceHandle,
            lens: *const usize,
            binaries: *const *const u8,
            each: *mut Status,
            status: *mut Status,
        ) -> ProgramHandle;
        fn clBuildProgram(
            program: ProgramHandle,
            count: u32,
            devices: *const DeviceHandle,
            options: *const c_char,
            notify: *const c_void,
            data: *mut c_void,
        ) -> Status;
        fn clGetProgramInfo(program: ProgramHandle, what: u32, len: usize, value: *mut c_void, size: *mut usize) -> Status;
        fn clGetProgramBuildInfo(
            program: ProgramHandle,
            device: DeviceHandle,
            what: u32,
            len: usize,
            value: *mut c_void,
            size: *mut usize,
        ) -> Status;
        fn clReleaseProgram(program: ProgramHandle) -> Status;
        fn clCreateKernel(program: ProgramHandle, name: *const c_char, status: *mut Status) -> KernelHandle;
        fn clReleaseKernel(kernel: KernelHandle) -> Status;
        fn clSetKernelArg(kernel: KernelHandle, index: u32, len: usize, value: *const c_void) -> Status;
        fn clEnqueueNDRangeKernel(
            queue: QueueHandle,
            kernel: KernelHandle,
            dimensions: u32,
            offset: *const usize,
            global: *const usize,
            local: *const usize,
            waits: u32,
            wait_list: *const EventHandle,
            event: *mut EventHandle,
        ) -> Status;
        fn clCreateUserEvent(context: ContextHandle, status: *mut Status) -> EventHandle;
        fn clSetUserEventStatus(event: EventHandle, status: Status) -> Status;
        fn clGetEventInfo(event: EventHandle, what: u32, len: usize, value: *mut c_void, size: *mut usize) -> Status;
        fn clWaitForEvents(count: u32, events: *const EventHandle) -> Status;
        fn clReleaseEvent(event: EventHandle) -> Status;
    }
}

/// The loader, searched on first use.
pub(super) fn loader() -> Result<&'static (OpenCl, LibraryReport), &'static LibraryReport> {
    static LOADER: OnceLock<Result<(OpenCl, LibraryReport), LibraryReport>> = OnceLock::new();
    LOADER.get_or_init(|| library::find(&search(), OpenCl::load)).as_ref()
}

fn search() -> Search<'static> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64", "/opt/rocm/lib"];
    Search {
        name: "OpenCL loader",
        variable: "BIFOLIO_OPENCL_LIBRARY",
        sonames: &["libOpenCL.so.1", "libOpenCL.so"],
        candidates: folders.iter().map(|folder| PathBuf::from(folder).join("libOpenCL.so.1")).collect(),
    }
}

/// Turns a status into a result; `doing` names the operation and costs nothing on success.
pub(super) fn check(status: Status, doing: Arguments<'_>) -> Result<()> {
    if status == SUCCESS { Ok(()) } else { Err(failure(status, doing)) }
}

/// The error for a status other than success.
pub(super) fn failure(status: Status, doing: Arguments<'_>) -> Error {
    Error::new(kind(status), format!("{doing} failed: {}", describe(status)))
}

fn kind(status: Status) -> ErrorKind {
    match status {
        MEM_OBJECT_ALLOCATION_FAILURE | OUT_OF_HOST_MEMORY | INVALID_BUFFER_SIZE => ErrorKind::OutOfMemory,
        BUILD_PROGRAM_FAILURE | -15 | -3 | -46..=-42 => ErrorKind::Kernel,
        DEVICE_NOT_FOUND | -2 | PLATFORM_NOT_FOUND => ErrorKind::Missing,
        -38..=-30 | -56..=-47 | -63 => ErrorKind::BadArgument,
        _ => ErrorKind::Execution,
    }
}

/// The status by its name in the header, and what it means where the name does not say it.
pub(super) fn describe(status: Status) -> String {
    let name = match status {
        DEVICE_NOT_FOUND => "CL_DEVICE_NOT_FOUND",
        -2 => "CL_DEVICE_NOT_AVAILABLE",
        -3 => "CL_COMPILER_NOT_AVAILABLE",
        MEM_OBJECT_ALLOCATION_FAILURE => "CL_MEM_OBJECT_ALLOCATION_FAILURE",
        OUT_OF_RESOURCES => "CL_OUT_OF_RESOURCES (often a fault or a time-out in a kernel)",
        OUT_OF_HOST_MEMORY => "CL_OUT_OF_HOST_MEMORY",
        -8 => "CL_MEM_COPY_OVERLAP",
        BUILD_PROGRAM_FAILURE => "CL_BUILD_PROGRAM_FAILURE",
        -12 => "CL_MAP_FAILURE",
        -13 => "CL_MISALIGNED_SUB_BUFFER_OFFSET",
        EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST => {
            "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST (work that was waited for failed)"
        }
        -15 => "CL_COMPILE_PROGRAM_FAILURE",
        -30 => "CL_INVALID_VALUE",
        -34 => "CL_INVALID_CONTEXT",
        -36 => "CL_INVALID_COMMAND_QUEUE",
        -38 => "CL_INVALID_MEM_OBJECT",
        -42 => "CL_INVALID_BINARY",
        -43 => "CL_INVALID_BUILD_OPTIONS",
        -45 => "CL_INVALID_PROGRAM_EXECUTABLE",
        -46 => "CL_INVALID_KERNEL_NAME",
        -48 => "CL_INVALID_KERNEL",
        -49 => "CL_INVALID_ARG_INDEX",
        -50 => "CL_INVALID_ARG_VALUE",
        -51 => "CL_INVALID_ARG_SIZE (the argument's size is not the parameter's)",
        -52 => "CL_INVALID_KERNEL_ARGS (an argument is missing)",
        -54 => "CL_INVALID_WORK_GROUP_SIZE (more threads a group than the kernel allows on this device)",
        -55 => "CL_INVALID_WORK_ITEM_SIZE (more threads a group than the device has)",
        INVALID_BUFFER_SIZE => "CL_INVALID_BUFFER_SIZE (larger than the device gives in one allocation)",
        -63 => "CL_INVALID_GLOBAL_WORK_SIZE",
        PLATFORM_NOT_FOUND => "CL_PLATFORM_NOT_FOUND_KHR",
        _ => return format!("OpenCL error {status}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_file_in_place_of_the_loader_is_reported_as_broken() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libOpenCL.so.1");
        std::fs::write(&file, "not an ELF file").unwrap();
        let search = Search { sonames: &[], candidates: vec![file], variable: "BIFOLIO_TEST_UNSET", ..search() };
        let problem = library::find(&search, OpenCl::load).unwrap_err().problem.unwrap();
        assert!(problem.contains("libOpenCL.so.1 does not load"), "{problem}");
    }

    #[test]
    fn statuses_that_callers_act_on_have_their_own_kind() {
        assert_eq!(kind(MEM_OBJECT_ALLOCATION_FAILURE), ErrorKind::OutOfMemory);
        assert_eq!(kind(BUILD_PROGRAM_FAILURE), ErrorKind::Kernel);
        assert_eq!(kind(-51), ErrorKind::BadArgument);
        assert_eq!(kind(OUT_OF_RESOURCES), ErrorKind::Execution);
    }
}
