//! What nbdkit's plugin interface, version 2, looks like to a compiler (`nbdkit-plugin.h`).
//!
//! nbdkit takes a structure that is shorter than its own, so the fields of later versions than 1.32 are not here. A test
//! compares places and sizes with those that a C compiler gives them.

use std::ffi::{c_char, c_int, c_void};

/// `NBDKIT_THREAD_MODEL_PARALLEL`: requests at the same time, also of one connection.
pub(crate) const PARALLEL: c_int = 3;
/// `NBDKIT_FUA_NATIVE`: the plugin looks at [`FLAG_FUA`] itself.
pub(crate) const FUA_NATIVE: c_int = 2;
/// `NBDKIT_FLAG_FUA`: the request returns when what it wrote is safe from a loss of power.
pub(crate) const FLAG_FUA: u32 = 1 << 1;

/// An open connection.
pub(crate) type Handle = *mut c_void;
type OfHandle = Option<extern "C" fn(Handle) -> c_int>;
/// A field that this plugin leaves empty.
type Unused = Option<extern "C" fn()>;

/// `struct nbdkit_plugin`.
#[repr(C)]
#[derive(Debug)]
#[allow(clippy::struct_field_names, reason = "they are nbdkit's, which documents them in nbdkit-plugin(3)")]
pub(crate) struct Plugin {
    pub(crate) _struct_size: u64,
    pub(crate) _api_version: c_int,
    pub(crate) _thread_model: c_int,
    pub(crate) name: *const c_char,
    pub(crate) longname: *const c_char,
    pub(crate) version: *const c_char,
    pub(crate) description: *const c_char,
    pub(crate) load: Unused,
    pub(crate) unload: Unused,
    pub(crate) config: Option<extern "C" fn(*const c_char, *const c_char) -> c_int>,
    pub(crate) config_complete: Option<extern "C" fn() -> c_int>,
    pub(crate) config_help: *const c_char,
    pub(crate) open: Option<extern "C" fn(c_int) -> Handle>,
    pub(crate) close: Option<extern "C" fn(Handle)>,
    pub(crate) get_size: Option<extern "C" fn(Handle) -> i64>,
    pub(crate) can_write: OfHandle,
    pub(crate) can_flush: OfHandle,
    pub(crate) is_rotational: OfHandle,
    pub(crate) can_trim: OfHandle,
    pub(crate) _pread_v1: Unused,
    pub(crate) _pwrite_v1: Unused,
    pub(crate) _flush_v1: Unused,
    pub(crate) _trim_v1: Unused,
    pub(crate) _zero_v1: Unused,
    pub(crate) errno_is_preserved: c_int,
    pub(crate) dump_plugin: Unused,
    pub(crate) can_zero: OfHandle,
    pub(crate) can_fua: OfHandle,
    pub(crate) pread: Option<extern "C" fn(Handle, *mut c_void, u32, u64, u32) -> c_int>,
    pub(crate) pwrite: Option<extern "C" fn(Handle, *const c_void, u32, u64, u32) -> c_int>,
    pub(crate) flush: Option<extern "C" fn(Handle, u32) -> c_int>,
    pub(crate) trim: Option<extern "C" fn(Handle, u32, u64, u32) -> c_int>,
    pub(crate) zero: Unused,
    pub(crate) magic_config_key: *const c_char,
    pub(crate) can_multi_conn: OfHandle,
    pub(crate) can_extents: OfHandle,
    pub(crate) extents: Unused,
    pub(crate) can_cache: OfHandle,
    pub(crate) cache: Unused,
    pub(crate) thread_model: Unused,
    pub(crate) can_fast_zero: OfHandle,
    pub(crate) preconnect: Unused,
    pub(crate) get_ready: Option<extern "C" fn() -> c_int>,
    pub(crate) after_fork: Unused,
    pub(crate) list_exports: Unused,
    pub(crate) default_export: Unused,
    pub(crate) export_description: Unused,
    pub(crate) cleanup: Option<extern "C" fn()>,
    pub(crate) block_size: Option<extern "C" fn(Handle, *mut u32, *mut u32, *mut u32) -> c_int>,
}

// SAFETY: its pointers are to constants, and nbdkit reads it only.
unsafe impl Sync for Plugin {}
