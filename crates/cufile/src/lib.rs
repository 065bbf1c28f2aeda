//! A library that programs built for NVIDIA's cuFile (`libcufile.so.0`) run on, by Bifolio's router.
//!
//! ```text
//!   driver      open, close, properties          parameters  settings, kept and without effect
//!   handle      registered files                 buffer      registered memory
//!   transfer    reads and writes that wait       batch       many of them, while the caller goes on
//!   stream      reads and writes in the order of a CUDA stream, on lanes (lane) with threads for host
//!               work (threads)
//!   stats       what was done, as numbers            caller      which version a program was built for
//!   gpus        which there are, and their BARs
//!   status      error codes, the sentence behind the latest, the boundary that every call crosses
//!   abi         types and numbers of the interface   foreign   symbols that are there and do nothing
//! ```
//!
//! The interface is that of version 1.20 of the original, without symbol versions, as that has none; structs that
//! were smaller before are filled as the caller has them. Handles
//! are numbers that are looked up and never followed, so a wild one is refused. No panic crosses the
//! boundary. In a child of `fork` every call is refused, as the driver's own calls are.
//!
//! Memory of a device is found by asking the driver whose an address is; everything else is memory that the
//! CPU uses, and system calls answer for it.

#![allow(non_snake_case, non_camel_case_types, reason = "the names of the interface")]

pub mod abi;
mod batch;
mod buffer;
mod caller;
mod driver;
mod foreign;
mod gpus;
mod handle;
mod lane;
mod parameters;
mod stats;
mod status;
mod stream;
mod threads;
mod transfer;

pub use batch::{
    cuFileBatchIOCancel, cuFileBatchIODestroy, cuFileBatchIOGetStatus, cuFileBatchIOSetUp, cuFileBatchIOSubmit,
};
pub use buffer::{cuFileBufDeregister, cuFileBufRegister};
pub use driver::{
    cuFileDriverClose, cuFileDriverClose_v2, cuFileDriverGetP2PFlags, cuFileDriverGetProperties, cuFileDriverOpen,
    cuFileDriverSetMaxCacheSize, cuFileDriverSetMaxDirectIOSize, cuFileDriverSetMaxPinnedMemSize,
    cuFileDriverSetP2PFlags, cuFileDriverSetPollMode, cuFileExportPCIeTopology, cuFileGetVersion, cuFileUseCount,
};
pub use foreign::{
    cuFileCopyGpu, cuFileCopyGpuPosixIORetry, cuFileCopyGpuWrap, cuFileCopyGpuWrapPosixIORetry, cuFileGpuWaitValue32,
    cuFileInlineGpu, cuFileObjectDriverOpen, cuFileObjectDriverOpenForDiagnostics, cuFileObjectInitialize,
    cuFileSparseGpu, cuFileStreamHandleInline, cuFileStreamHandleSparse, cuFileStreamWaitValue32,
};
pub use gpus::cuFileGetBARSizeInKB;
pub use handle::{cuFileHandleDeregister, cuFileHandleRegister};
pub use parameters::{
    cuFileGetParameterBool, cuFileGetParameterGpuBounceBufferSlabArray, cuFileGetParameterMinMaxValue,
    cuFileGetParameterPosixPoolSlabArray, cuFileGetParameterSizeT, cuFileGetParameterString, cuFileSetParameterBool,
    cuFileSetParameterGpuBounceBufferSlabArray, cuFileSetParameterPosixPoolSlabArray, cuFileSetParameterSizeT,
    cuFileSetParameterString,
};
pub use stats::{
    cuFileGetStatsL1, cuFileGetStatsL2, cuFileGetStatsL3, cuFileGetStatsLevel, cuFileSetStatsLevel, cuFileStatsReset,
    cuFileStatsStart, cuFileStatsStop,
};
pub use status::bifolio_cufile_last_error;
pub use stream::{cuFileReadAsync, cuFileStreamDeregister, cuFileStreamRegister, cuFileWriteAsync};
pub use transfer::{cuFileRead, cuFileReadv, cuFileWrite, cuFileWritev};
