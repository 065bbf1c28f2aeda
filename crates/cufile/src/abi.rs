//! Types and numbers of the interface, as programs were compiled with them. Their sizes and offsets are
//! asserted here, and against a C compiler in the tests.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

/// A registered file.
pub type CUfileHandle_t = *mut c_void;

/// A batch.
pub type CUfileBatchHandle_t = *mut c_void;

/// A stream of the CUDA driver's.
pub type CUstream = *mut c_void;

/// What calls return: a [`CUfileOpError`], and an error of the CUDA driver where that is the reason.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct CUfileError_t {
    /// The error.
    pub err: c_int,
    /// `CUresult`.
    pub cu_err: c_int,
}

/// Errors. Those that this library never returns are left out.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CUfileOpError {
    CU_FILE_SUCCESS = 0,
    CU_FILE_DRIVER_NOT_INITIALIZED = 5001,
    CU_FILE_DRIVER_CLOSING = 5006,
    CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
    CU_FILE_IO_NOT_SUPPORTED = 5008,
    CU_FILE_CUDA_DRIVER_ERROR = 5011,
    CU_FILE_CUDA_POINTER_RANGE_ERROR = 5014,
    CU_FILE_INVALID_MAPPING_RANGE = 5017,
    CU_FILE_INVALID_FILE_TYPE = 5018,
    CU_FILE_INVALID_FILE_OPEN_FLAG = 5019,
    CU_FILE_INVALID_VALUE = 5022,
    CU_FILE_MEMORY_ALREADY_REGISTERED = 5023,
    CU_FILE_PERMISSION_DENIED = 5025,
    CU_FILE_DRIVER_ALREADY_OPEN = 5026,
    CU_FILE_HANDLE_ALREADY_REGISTERED = 5028,
    CU_FILE_INTERNAL_ERROR = 5030,
    CU_FILE_GETNEWFD_FAILED = 5031,
    CU_FILE_BATCH_FULL = 5037,
    CU_FILE_ASYNC_NOT_SUPPORTED = 5038,
    CU_FILE_IO_ERROR = 5044,
    CU_FILE_INVALID_CONTEXT_ERROR = 5047,
}

/// `CUDA_ERROR_NOT_INITIALIZED`: what the driver answers in a child of `fork`.
pub const CUDA_ERROR_NOT_INITIALIZED: c_int = 3;
/// `CUDA_ERROR_UNKNOWN`.
pub const CUDA_ERROR_UNKNOWN: c_int = 999;

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
pub const CU_FILE_HANDLE_TYPE_OPAQUE_FD: c_int = 1;
/// `CU_FILE_HANDLE_TYPE_OPAQUE_WIN32`.
pub const CU_FILE_HANDLE_TYPE_OPAQUE_WIN32: c_int = 2;
/// `CU_FILE_HANDLE_TYPE_USERSPACE_FS`.
pub const CU_FILE_HANDLE_TYPE_USERSPACE_FS: c_int = 3;

/// A descriptor, or a pointer for other kinds of file.
#[repr(C)]
#[derive(Clone, Copy)]
pub union FileOrHandle {
    /// A descriptor of this process.
    pub fd: c_int,
    /// Something else.
    pub handle: *mut c_void,
}

/// A file to be registered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUfileDescr_t {
    /// `CU_FILE_HANDLE_TYPE_*`.
    pub kind: c_int,
    /// The file.
    pub handle: FileOrHandle,
    /// Functions of a file system in user space.
    pub fs_ops: *const c_void,
}

/// Properties of the kernel module, which is not there.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct NvfsProps {
    /// Version.
    pub major_version: c_uint,
    /// Version.
    pub minor_version: c_uint,
    /// KiB of a request up to which one polls.
    pub poll_thresh_size: usize,
    /// KiB of the longest request to the module.
    pub max_direct_io_size: usize,
    /// File systems and drives with a direct path, a bit each.
    pub dstatusflags: c_uint,
    /// Bits of `CU_FILE_*_MODE`.
    pub dcontrolflags: c_uint,
}

/// `CU_FILE_ALLOW_COMPAT_MODE`, as a bit.
pub const CONTROL_ALLOW_COMPAT_MODE: c_uint = 1 << 1;
/// `CU_FILE_USE_POLL_MODE`, as a bit.
pub const CONTROL_USE_POLL_MODE: c_uint = 1;

/// `CU_FILE_BATCH_IO_SUPPORTED`, `CU_FILE_STREAMS_SUPPORTED` and `CU_FILE_PARALLEL_IO_SUPPORTED`, as bits.
pub const FEATURES: c_uint = 1 << 1 | 1 << 2 | 1 << 3;

/// Properties of the library.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUfileDrvProps_t {
    /// Of the kernel module.
    pub nvfs: NvfsProps,
    /// Features, a bit each.
    pub fflags: c_uint,
    /// KiB.
    pub max_device_cache_size: c_uint,
    /// KiB.
    pub per_buffer_cache_size: c_uint,
    /// KiB.
    pub max_device_pinned_mem_size: c_uint,
    /// Requests in a batch.
    pub max_batch_io_size: c_uint,
    /// Milliseconds.
    pub max_batch_io_timeout_msecs: c_uint,
}

/// `CUFILE_BATCH`.
pub const CUFILE_BATCH: c_int = 1;
/// `CUFILE_READ`.
pub const CUFILE_READ: c_int = 0;
/// `CUFILE_WRITE`.
pub const CUFILE_WRITE: c_int = 1;

/// A request of a batch; the fields of the only member of its union are here.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUfileIOParams_t {
    /// [`CUFILE_BATCH`].
    pub mode: c_int,
    /// Base address of the memory.
    pub devPtr_base: *mut c_void,
    /// Offset in the file.
    pub file_offset: i64,
    /// Offset from the base address.
    pub devPtr_offset: i64,
    /// Bytes.
    pub size: usize,
    /// The file.
    pub fh: CUfileHandle_t,
    /// [`CUFILE_READ`] or [`CUFILE_WRITE`].
    pub opcode: c_int,
    /// Given back with the result.
    pub cookie: *mut c_void,
}

/// `CUFILE_CANCELED`.
pub const CUFILE_CANCELED: c_int = 0x08;
/// `CUFILE_COMPLETE`.
pub const CUFILE_COMPLETE: c_int = 0x10;
/// `CUFILE_FAILED`.
pub const CUFILE_FAILED: c_int = 0x40;

/// The result of a request of a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUfileIOEvents_t {
    /// That of the request.
    pub cookie: *mut c_void,
    /// `CUFILE_*`.
    pub status: c_int,
    /// Bytes, or a negative number.
    pub ret: usize,
}

/// A piece of memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUfileIOVec_t {
    /// Its address.
    pub base: *mut c_void,
    /// Its length.
    pub len: usize,
}

/// The offset in memory is read when a request is submitted.
pub const CU_FILE_STREAM_FIXED_BUF_OFFSET: c_uint = 1;
/// The offset in the file is.
pub const CU_FILE_STREAM_FIXED_FILE_OFFSET: c_uint = 2;
/// The size is.
pub const CU_FILE_STREAM_FIXED_FILE_SIZE: c_uint = 4;
/// Everything is a multiple of 4 KiB.
pub const CU_FILE_STREAM_PAGE_ALIGNED_INPUTS: c_uint = 8;

/// `CU_FILE_RDMA_REGISTER` and `CU_FILE_RDMA_RELAXED_ORDERING`.
pub const REGISTER_FLAGS: c_int = 1 | 1 << 1;

/// GPUs in the statistics of level 3.
pub const GPUS_MAX: usize = 16;

/// Buckets of a histogram of sizes.
pub const SIZE_BUCKETS: usize = 32;

/// How often something succeeded, and failed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CUfileOpCounter_t {
    pub ok: u64,
    pub err: u64,
}

/// Statistics of level 1 as version 1.19 and later have it; in 1.15 to 1.18 it ends before `readv_ops`. In those of
/// level 2 two histograms follow, of reads and of writes, and in those of level 3 the number of GPUs and
/// [`GPUS_MAX`] times [`CUfilePerGpuStats_t`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CUfileStatsLevel1_t {
    pub read_ops: CUfileOpCounter_t,
    pub write_ops: CUfileOpCounter_t,
    pub hdl_register_ops: CUfileOpCounter_t,
    pub hdl_deregister_ops: CUfileOpCounter_t,
    pub buf_register_ops: CUfileOpCounter_t,
    pub buf_deregister_ops: CUfileOpCounter_t,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_bw_bytes_per_sec: u64,
    pub write_bw_bytes_per_sec: u64,
    pub read_lat_avg_us: u64,
    pub write_lat_avg_us: u64,
    pub read_ops_per_sec: u64,
    pub write_ops_per_sec: u64,
    pub read_lat_sum_us: u64,
    pub write_lat_sum_us: u64,
    pub batch_submit_ops: CUfileOpCounter_t,
    pub batch_complete_ops: CUfileOpCounter_t,
    pub batch_setup_ops: CUfileOpCounter_t,
    pub batch_cancel_ops: CUfileOpCounter_t,
    pub batch_destroy_ops: CUfileOpCounter_t,
    pub batch_enqueued_ops: CUfileOpCounter_t,
    pub batch_posix_enqueued_ops: CUfileOpCounter_t,
    pub batch_processed_ops: CUfileOpCounter_t,
    pub batch_posix_processed_ops: CUfileOpCounter_t,
    pub batch_nvfs_submit_ops: CUfileOpCounter_t,
    pub batch_p2p_submit_ops: CUfileOpCounter_t,
    pub batch_aio_submit_ops: CUfileOpCounter_t,
    pub batch_iouring_submit_ops: CUfileOpCounter_t,
    pub batch_mixed_io_submit_ops: CUfileOpCounter_t,
    pub batch_total_submit_ops: CUfileOpCounter_t,
    pub batch_read_bytes: u64,
    pub batch_write_bytes: u64,
    pub batch_read_bw_bytes: u64,
    pub batch_write_bw_bytes: u64,
    pub batch_submit_lat_avg_us: u64,
    pub batch_completion_lat_avg_us: u64,
    pub batch_submit_ops_per_sec: u64,
    pub batch_complete_ops_per_sec: u64,
    pub batch_submit_lat_sum_us: u64,
    pub batch_completion_lat_sum_us: u64,
    pub last_batch_read_bytes: u64,
    pub last_batch_write_bytes: u64,
    pub readv_ops: CUfileOpCounter_t,
    pub writev_ops: CUfileOpCounter_t,
    pub readv_bytes: u64,
    pub writev_bytes: u64,
    pub readv_bw_bytes_per_sec: u64,
    pub writev_bw_bytes_per_sec: u64,
    pub readv_lat_avg_us: u64,
    pub writev_lat_avg_us: u64,
    pub readv_ops_per_sec: u64,
    pub writev_ops_per_sec: u64,
    pub readv_lat_sum_us: u64,
    pub writev_lat_sum_us: u64,
}

/// Statistics of a GPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CUfilePerGpuStats_t {
    pub uuid: [u8; 16],
    pub read_bytes: u64,
    pub read_bw_bytes_per_sec: u64,
    pub read_utilization: u64,
    pub read_duration_us: u64,
    pub n_total_reads: u64,
    pub n_p2p_reads: u64,
    pub n_nvfs_reads: u64,
    pub n_posix_reads: u64,
    pub n_unaligned_reads: u64,
    pub n_dr_reads: u64,
    pub n_sparse_regions: u64,
    pub n_inline_regions: u64,
    pub n_reads_err: u64,
    pub writes_bytes: u64,
    pub write_bw_bytes_per_sec: u64,
    pub write_utilization: u64,
    pub write_duration_us: u64,
    pub n_total_writes: u64,
    pub n_p2p_writes: u64,
    pub n_nvfs_writes: u64,
    pub n_posix_writes: u64,
    pub n_unaligned_writes: u64,
    pub n_dr_writes: u64,
    pub n_writes_err: u64,
    pub n_mmap: u64,
    pub n_mmap_ok: u64,
    pub n_mmap_err: u64,
    pub n_mmap_free: u64,
    pub reg_bytes: u64,
}

impl CUfileStatsLevel1_t {
    /// As they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: it has numbers of 64 bits only, and so no padding.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}

impl CUfilePerGpuStats_t {
    /// As they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: it has sixteen bytes and numbers of 64 bits, and so no padding.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}

// The library is for Linux with 64-bit addresses, and so are these.
const _: () = {
    assert!(size_of::<CUfileError_t>() == 8 && offset_of!(CUfileError_t, cu_err) == 4);
    assert!(size_of::<CUfileDescr_t>() == 24 && offset_of!(CUfileDescr_t, handle) == 8);
    assert!(offset_of!(CUfileDescr_t, fs_ops) == 16);
    assert!(size_of::<CUfileDrvProps_t>() == 56 && offset_of!(CUfileDrvProps_t, fflags) == 32);
    assert!(offset_of!(NvfsProps, poll_thresh_size) == 8 && offset_of!(NvfsProps, dstatusflags) == 24);
    assert!(offset_of!(CUfileDrvProps_t, max_batch_io_timeout_msecs) == 52);
    assert!(size_of::<CUfileIOParams_t>() == 64 && offset_of!(CUfileIOParams_t, devPtr_base) == 8);
    assert!(offset_of!(CUfileIOParams_t, size) == 32 && offset_of!(CUfileIOParams_t, fh) == 40);
    assert!(offset_of!(CUfileIOParams_t, opcode) == 48 && offset_of!(CUfileIOParams_t, cookie) == 56);
    assert!(size_of::<CUfileIOEvents_t>() == 24 && offset_of!(CUfileIOEvents_t, status) == 8);
    assert!(offset_of!(CUfileIOEvents_t, ret) == 16 && size_of::<CUfileIOVec_t>() == 16);
    assert!(size_of::<CUfileStatsLevel1_t>() == 624 && offset_of!(CUfileStatsLevel1_t, readv_ops) == 512);
    assert!(
        offset_of!(CUfileStatsLevel1_t, read_bytes) == 96 && offset_of!(CUfileStatsLevel1_t, batch_read_bytes) == 416
    );
    assert!(size_of::<CUfilePerGpuStats_t>() == 248 && offset_of!(CUfilePerGpuStats_t, n_mmap) == 208);
};
