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
                    Err(Failure::new(CU_FILE_PLATFORM_NOT_SUPPORTED, concat!("Bifolio's library has none of this: ", $what)))
                })
            }
        )*
    };
}

refusals! {
    cuFileObjectInitialize: "object storage";
    cuFileObjectDriverOpen: "object storage";
    cuFileObjectDriverOpenForDiagnostics: "object storage";
    cuFileCopyGpu: "kernels of the original";
    cuFileCopyGpuPosixIORetry: "kernels of the original";
    cuFileCopyGpuWrap: "kernels of the original";
    cuFileCopyGpuWrapPosixIORetry: "kernels of the original";
    cuFileGpuWaitValue32: "kernels of the original";
    cuFileInlineGpu: "kernels of the original";
    cuFileSparseGpu: "kernels of the original";
    cuFileStreamHandleInline: "kernels of the original";
    cuFileStreamHandleSparse: "kernels of the original";
    cuFileStreamWaitValue32: "kernels of the original";
}
