//! A library that programs built for NVIDIA's cuFile (`libcufile.so.0`) run on, by Bifolio's router.
//!
//! ```text
//!   driver      open, close, properties: the last close forgets what the modules below keep
//!   batch       many reads and writes, while the caller goes on
//!   stream      reads and writes in the order of a CUDA stream
//!   blocking    reads and writes that wait
//!   transfer    moves the bytes of one range
//!   handle      registered files             buffer      registered memory
//!   stats       what was done, as numbers    parameters  settings, kept and without effect
//!   gpus        which there are, and their BARs          foreign  symbols that are there and do nothing
//!   session     how often the driver is open, and requests under way
//!   range       a request's direction and memory         numbered   what programs hold handles of
//!   status      error codes, the sentence behind the latest, the boundary that every call crosses
//!   caller      which version a program was built for    abi        types and numbers of the interface
//! ```
//!
//! The interface is that of version 1.20 of the original, without symbol versions, as that has none; structs that
//! were smaller before are filled as the caller has them. No panic crosses the boundary. In a child of `fork` every
//! call is refused, as the driver's own calls are.
//!
//! Bytes move by `bifolio-io` (routers, [`Workers`](bifolio_io::Workers)) and `bifolio-device` (streams, gates). What is
//! kept apart from what these have says why where it is: slots in `stream/ring`, requests on streams in `stream/queue`,
//! system calls in `transfer`.
//!
//! Memory of a device is found by asking the driver whose an address is; everything else is memory that the
//! CPU uses, and system calls answer for it.

#![allow(non_snake_case, non_camel_case_types, reason = "the names of the interface")]

pub mod abi;
mod batch;
mod blocking;
mod buffer;
mod caller;
mod driver;
mod foreign;
mod gpus;
mod handle;
mod numbered;
mod parameters;
mod range;
mod session;
mod stats;
mod status;
mod stream;
mod transfer;

pub use batch::{
    cuFileBatchIOCancel, cuFileBatchIODestroy, cuFileBatchIOGetStatus, cuFileBatchIOSetUp, cuFileBatchIOSubmit,
};
pub use blocking::{cuFileRead, cuFileReadv, cuFileWrite, cuFileWritev};
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
