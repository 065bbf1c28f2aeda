//! The OpenCL loader: where it is, and its functions.
//!
//! The loader is searched once a process and never unloaded: it brings each vendor's driver with
//! its threads into the process, and some of them (PoCL) crash when they are unloaded at exit.

use super::abi::{
    ContextHandle, DeviceHandle, EventHandle, KernelHandle, MemoryHandle, PlatformId, ProgramHandle, QueueHandle,
    Region, Status,
};
use crate::LibraryReport;
use crate::folders::Architecture;
use crate::library::{self, Search, api_table};
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

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
    Search {
        name: "OpenCL loader",
        variable: "BIFOLIO_OPENCL_LIBRARY",
        sonames: &["libOpenCL.so.1", "libOpenCL.so"],
        candidates: Architecture::here().opencl_folders().iter().map(|folder| folder.join("libOpenCL.so.1")).collect(),
    }
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
        assert!(problem.contains("libOpenCL.so.1 could not be loaded"), "{problem}");
    }
}
