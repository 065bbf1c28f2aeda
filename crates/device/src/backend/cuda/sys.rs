//! NVIDIA's driver library: where it is, and its functions.
//!
//! The library is searched once a process and never unloaded: unloading a driver while its
//! threads run crashes at exit.

use super::abi::{
    AccessDescription, ContextHandle, EventHandle, FrameProperties, FunctionHandle, ModuleHandle, Ordinal, RowCopy,
    Status, StreamHandle,
};
use crate::LibraryReport;
use crate::folders::Architecture;
use crate::library::{self, Search, api_table};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

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
    Search {
        name: "CUDA driver",
        variable: "BIFOLIO_CUDA_LIBRARY",
        sonames: &["libcuda.so.1"],
        candidates: Architecture::here().driver_folders().iter().map(|folder| folder.join("libcuda.so.1")).collect(),
    }
}

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
        assert!(problem.contains("libcuda.so.1 could not be loaded"), "{problem}");
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
}
