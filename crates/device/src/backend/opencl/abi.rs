//! Types and numbers of OpenCL 1.2, as its header (`cl.h`) has them.

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
pub(super) const DEVICE_NOT_AVAILABLE: Status = -2;
pub(super) const MEM_OBJECT_ALLOCATION_FAILURE: Status = -4;
pub(super) const OUT_OF_RESOURCES: Status = -5;
pub(super) const OUT_OF_HOST_MEMORY: Status = -6;
pub(super) const BUILD_PROGRAM_FAILURE: Status = -11;
pub(super) const EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST: Status = -14;
pub(super) const INVALID_CONTEXT: Status = -34;
pub(super) const INVALID_COMMAND_QUEUE: Status = -36;
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
