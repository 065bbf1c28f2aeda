//! Symbols that are there because programs may be linked with them, and refuse.
//!
//! Statistics are refused rather than filled in: their structs have grown from version to version without a
//! size in them, so a program with older ones would be written beyond.

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
    cuFileStatsStart: "statistics";
    cuFileStatsStop: "statistics";
    cuFileStatsReset: "statistics";
    cuFileGetStatsL1: "statistics";
    cuFileGetStatsL2: "statistics";
    cuFileGetStatsL3: "statistics";
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
