//! Symbols that are there because programs may be linked with them, and refuse.

use crate::abi::CUfileError_t;
use crate::abi::CUfileOpError::CU_FILE_PLATFORM_NOT_SUPPORTED;
use crate::status::{Failure, status};

macro_rules! refusals {
    ($($name:ident: $what:literal;)*) => {
        $(
            #[doc = concat!("Refuses: ", $what, ".")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> CUfileError_t {
                status(stringify!($name), || {
                    Err(Failure::new(CU_FILE_PLATFORM_NOT_SUPPORTED, concat!($what, " are not supported by Bifolio's cuFile library")))
                })
            }
        )*
    };
}

refusals! {
    cuFileObjectInitialize: "object storage calls";
    cuFileObjectDriverOpen: "object storage calls";
    cuFileObjectDriverOpenForDiagnostics: "object storage calls";
    cuFileCopyGpu: "device-side kernels of the original";
    cuFileCopyGpuPosixIORetry: "device-side kernels of the original";
    cuFileCopyGpuWrap: "device-side kernels of the original";
    cuFileCopyGpuWrapPosixIORetry: "device-side kernels of the original";
    cuFileGpuWaitValue32: "device-side kernels of the original";
    cuFileInlineGpu: "device-side kernels of the original";
    cuFileSparseGpu: "device-side kernels of the original";
    cuFileStreamHandleInline: "device-side kernels of the original";
    cuFileStreamHandleSparse: "device-side kernels of the original";
    cuFileStreamWaitValue32: "device-side kernels of the original";
}
