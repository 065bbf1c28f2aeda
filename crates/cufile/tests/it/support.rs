//! What the tests share.

use std::path::PathBuf;

/// Every function of the original (versions 1.14 and 1.20) with a name of C; it has no symbol versions.
pub(crate) const SYMBOLS: [&str; 63] = [
    "cuFileBatchIOCancel",
    "cuFileBatchIODestroy",
    "cuFileBatchIOGetStatus",
    "cuFileBatchIOSetUp",
    "cuFileBatchIOSubmit",
    "cuFileBufDeregister",
    "cuFileBufRegister",
    "cuFileCopyGpu",
    "cuFileCopyGpuPosixIORetry",
    "cuFileCopyGpuWrap",
    "cuFileCopyGpuWrapPosixIORetry",
    "cuFileDriverClose",
    "cuFileDriverClose_v2",
    "cuFileDriverGetP2PFlags",
    "cuFileDriverGetProperties",
    "cuFileDriverOpen",
    "cuFileDriverSetMaxCacheSize",
    "cuFileDriverSetMaxDirectIOSize",
    "cuFileDriverSetMaxPinnedMemSize",
    "cuFileDriverSetP2PFlags",
    "cuFileDriverSetPollMode",
    "cuFileExportPCIeTopology",
    "cuFileGetBARSizeInKB",
    "cuFileGetParameterBool",
    "cuFileGetParameterGpuBounceBufferSlabArray",
    "cuFileGetParameterMinMaxValue",
    "cuFileGetParameterPosixPoolSlabArray",
    "cuFileGetParameterSizeT",
    "cuFileGetParameterString",
    "cuFileGetStatsL1",
    "cuFileGetStatsL2",
    "cuFileGetStatsL3",
    "cuFileGetStatsLevel",
    "cuFileGetVersion",
    "cuFileGpuWaitValue32",
    "cuFileHandleDeregister",
    "cuFileHandleRegister",
    "cuFileInlineGpu",
    "cuFileObjectDriverOpen",
    "cuFileObjectDriverOpenForDiagnostics",
    "cuFileObjectInitialize",
    "cuFileRead",
    "cuFileReadAsync",
    "cuFileReadv",
    "cuFileSetParameterBool",
    "cuFileSetParameterGpuBounceBufferSlabArray",
    "cuFileSetParameterPosixPoolSlabArray",
    "cuFileSetParameterSizeT",
    "cuFileSetParameterString",
    "cuFileSetStatsLevel",
    "cuFileSparseGpu",
    "cuFileStatsReset",
    "cuFileStatsStart",
    "cuFileStatsStop",
    "cuFileStreamDeregister",
    "cuFileStreamHandleInline",
    "cuFileStreamHandleSparse",
    "cuFileStreamRegister",
    "cuFileStreamWaitValue32",
    "cuFileUseCount",
    "cuFileWrite",
    "cuFileWriteAsync",
    "cuFileWritev",
];

/// The library: cargo builds it beside the tests, or in the folder above.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let files = program.ancestors().skip(1).take(2).map(|folder| folder.join("libcufile.so"));
    files.into_iter().find(|file| file.exists()).expect("cargo builds libcufile.so before the tests of its package")
}

/// A folder on a disk, which goes with the test.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Bytes without a pattern, the same in every test.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    bifolio_testing::noise(len, 32)
}
