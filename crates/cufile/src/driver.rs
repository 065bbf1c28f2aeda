//! The driver as programs see it: opening and closing its session, and what it can do.
//!
//! There is no kernel module behind it, and its properties say so: version 0, and compatibility mode
//! allowed. Whoever insists on a direct path is told by that.

use crate::abi::CUfileOpError::{CU_FILE_INTERNAL_ERROR, CU_FILE_PLATFORM_NOT_SUPPORTED};
use crate::abi::{
    CONTROL_ALLOW_COMPAT_MODE, CONTROL_USE_POLL_MODE, CUfileDrvProps_t, CUfileError_t, FEATURES, NvfsProps,
};
use crate::parameters::{self, SizeT};
use crate::status::{Failure, Outcome, is_forked, status, store};
use crate::{batch, buffer, caller, handle, session, stats, stream};
use std::ffi::{c_char, c_int, c_long, c_uint};

/// Kinds of file system and drive in `CUfileDriverStatusFlags_t`.
const TARGETS: c_int = 15;

/// Closes the session. The last close ends requests' results first, then what they referred to.
fn close() -> Outcome<()> {
    session::close(|| {
        batch::forget_all();
        handle::forget_all();
        buffer::forget_all();
        stream::forget_all();
        stats::forget();
    })
}

/// Opens the driver session; each open wants a close.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverOpen() -> CUfileError_t {
    status("cuFileDriverOpen", || {
        session::open();
        Ok(())
    })
}

/// Closes the session; the last close forgets every file, memory and stream, and what was counted.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverClose_v2() -> CUfileError_t {
    status("cuFileDriverClose", close)
}

/// The same for programs from before version 2.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverClose() -> CUfileError_t {
    status("cuFileDriverClose", close)
}

/// How often the session is open.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileUseCount() -> c_long {
    // A child of `fork` has none; its parent's lock may be held for ever.
    if is_forked() { 0 } else { session::use_count() }
}

fn properties() -> CUfileDrvProps_t {
    let size = |parameter| c_uint::try_from(parameters::size_of(parameter)).unwrap_or(c_uint::MAX);
    let poll = if parameters::uses_poll_mode() { CONTROL_USE_POLL_MODE } else { 0 };
    CUfileDrvProps_t {
        nvfs: NvfsProps {
            major_version: 0,
            minor_version: 0,
            poll_thresh_size: parameters::size_of(SizeT::PollThreshold),
            max_direct_io_size: parameters::size_of(SizeT::MaxDirectIo),
            dstatusflags: 0,
            dcontrolflags: CONTROL_ALLOW_COMPAT_MODE | poll,
        },
        fflags: FEATURES,
        max_device_cache_size: size(SizeT::MaxDeviceCache),
        per_buffer_cache_size: size(SizeT::PerBufferCache),
        max_device_pinned_mem_size: size(SizeT::MaxDevicePinned),
        max_batch_io_size: size(SizeT::BatchSize),
        max_batch_io_timeout_msecs: size(SizeT::BatchTimeout),
    }
}

/// The properties of the session, open or not.
///
/// # Safety
/// `props` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverGetProperties(props: *mut CUfileDrvProps_t) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileDriverGetProperties", || unsafe { store(props, properties()) })
}

/// Keeps a size in KiB if it is one; without effect once the session is open, as in the original.
fn set(parameter: SizeT, kib: usize, is_allowed: bool, rule: &str) -> Outcome<()> {
    if !is_allowed {
        return Err(Failure::argument(format!("{kib} KiB is not allowed: {rule}")));
    }
    if !session::is_open() {
        parameters::set_size(parameter, kib);
    }
    Ok(())
}

/// Whether to poll for requests of up to a size in KiB: kept, and without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverSetPollMode(poll: u8, poll_threshold_size: usize) -> CUfileError_t {
    status("cuFileDriverSetPollMode", || {
        let pages = poll_threshold_size > 0 && poll_threshold_size.is_multiple_of(4);
        set(SizeT::PollThreshold, poll_threshold_size, pages, "use a multiple of 4")?;
        if !session::is_open() {
            parameters::set_poll_mode(poll != 0);
        }
        Ok(())
    })
}

/// The longest request to the kernel module in KiB: kept, and without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverSetMaxDirectIOSize(max_direct_io_size: usize) -> CUfileError_t {
    status("cuFileDriverSetMaxDirectIOSize", || {
        let size = max_direct_io_size;
        let fits = (64..=16384).contains(&size) && size.is_multiple_of(64);
        set(SizeT::MaxDirectIo, size, fits, "use a multiple of 64 up to 16384")
    })
}

/// Device memory for buffers of the library's in KiB: kept, and without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverSetMaxCacheSize(max_cache_size: usize) -> CUfileError_t {
    status("cuFileDriverSetMaxCacheSize", || {
        let fits = max_cache_size.is_multiple_of(64) && c_uint::try_from(max_cache_size).is_ok();
        set(SizeT::MaxDeviceCache, max_cache_size, fits, "use a multiple of 64")
    })
}

/// Memory that may be registered in KiB: kept, and without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverSetMaxPinnedMemSize(max_pinned_size: usize) -> CUfileError_t {
    status("cuFileDriverSetMaxPinnedMemSize", || {
        let fits =
            max_pinned_size > 0 && max_pinned_size.is_multiple_of(4) && c_uint::try_from(max_pinned_size).is_ok();
        set(SizeT::MaxDevicePinned, max_pinned_size, fits, "use a multiple of 4")
    })
}

/// The version of the interface.
///
/// # Safety
/// `version` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileGetVersion", || unsafe { store(version, caller::version()) })
}

fn not_supported(what: &str) -> Failure {
    Failure::new(CU_FILE_PLATFORM_NOT_SUPPORTED, format!("{what} is not supported by Bifolio's cuFile library"))
}

/// The direct paths of a kind of drive: none.
///
/// # Safety
/// `p2p_flags` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverGetP2PFlags(status_flag: c_int, p2p_flags: *mut c_uint) -> CUfileError_t {
    status("cuFileDriverGetP2PFlags", || {
        refuse_unknown_target(status_flag)?;
        // SAFETY: the caller's promise.
        unsafe { store(p2p_flags, 0) }
    })
}

/// Not supported.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverSetP2PFlags(status_flag: c_int, _p2p_flags: c_uint) -> CUfileError_t {
    status("cuFileDriverSetP2PFlags", || {
        refuse_unknown_target(status_flag)?;
        Err(not_supported("choosing direct paths"))
    })
}

fn refuse_unknown_target(status_flag: c_int) -> Outcome<()> {
    if (0..TARGETS).contains(&status_flag) {
        return Ok(());
    }
    Err(Failure::argument(format!("{status_flag} is not a kind of file system or drive")))
}

/// The topology is not available.
///
/// # Safety
/// `filename` is NULL, or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileExportPCIeTopology(filename: *const c_char) -> CUfileError_t {
    status("cuFileExportPCIeTopology", || {
        if filename.is_null() {
            return Err(Failure::argument("the file name is NULL"));
        }
        Err(Failure::new(CU_FILE_INTERNAL_ERROR, "Bifolio's cuFile library does not inspect the PCIe topology"))
    })
}
