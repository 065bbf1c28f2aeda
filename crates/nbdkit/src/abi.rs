//! What nbdkit's plugin interface, version 2, looks like to a compiler (`nbdkit-plugin.h`).
//!
//! nbdkit takes a structure that is shorter than its own, so the fields of later versions than 1.32 are not here. A test
//! compares places and sizes with those that a C compiler gives them.

use std::ffi::{c_char, c_int, c_void};

/// `NBDKIT_THREAD_MODEL_PARALLEL`: requests at the same time, also of one connection.
pub const PARALLEL: c_int = 3;
/// `NBDKIT_FUA_NATIVE`: the plugin looks at [`FLAG_FUA`] itself.
pub const FUA_NATIVE: c_int = 2;
/// `NBDKIT_FLAG_FUA`: the request returns when what it wrote is safe from a loss of power.
pub const FLAG_FUA: u32 = 1 << 1;

/// An open connection.
pub type Handle = *mut c_void;
type OfHandle = Option<extern "C" fn(Handle) -> c_int>;
/// A field that this plugin leaves empty.
type Unused = Option<extern "C" fn()>;

/// `struct nbdkit_plugin`.
#[repr(C)]
#[derive(Debug)]
#[allow(
    missing_docs,
    clippy::pub_underscore_fields,
    clippy::struct_field_names,
    reason = "they are nbdkit's, which documents them in nbdkit-plugin(3)"
)]
pub struct Plugin {
    pub _struct_size: u64,
    pub _api_version: c_int,
    pub _thread_model: c_int,
    pub name: *const c_char,
    pub longname: *const c_char,
    pub version: *const c_char,
    pub description: *const c_char,
    pub load: Unused,
    pub unload: Unused,
    pub config: Option<extern "C" fn(*const c_char, *const c_char) -> c_int>,
    pub config_complete: Option<extern "C" fn() -> c_int>,
    pub config_help: *const c_char,
    pub open: Option<extern "C" fn(c_int) -> Handle>,
    pub close: Option<extern "C" fn(Handle)>,
    pub get_size: Option<extern "C" fn(Handle) -> i64>,
    pub can_write: OfHandle,
    pub can_flush: OfHandle,
    pub is_rotational: OfHandle,
    pub can_trim: OfHandle,
    pub _pread_v1: Unused,
    pub _pwrite_v1: Unused,
    pub _flush_v1: Unused,
    pub _trim_v1: Unused,
    pub _zero_v1: Unused,
    pub errno_is_preserved: c_int,
    pub dump_plugin: Unused,
    pub can_zero: OfHandle,
    pub can_fua: OfHandle,
    pub pread: Option<extern "C" fn(Handle, *mut c_void, u32, u64, u32) -> c_int>,
    pub pwrite: Option<extern "C" fn(Handle, *const c_void, u32, u64, u32) -> c_int>,
    pub flush: Option<extern "C" fn(Handle, u32) -> c_int>,
    pub trim: Option<extern "C" fn(Handle, u32, u64, u32) -> c_int>,
    pub zero: Unused,
    pub magic_config_key: *const c_char,
    pub can_multi_conn: OfHandle,
    pub can_extents: OfHandle,
    pub extents: Unused,
    pub can_cache: OfHandle,
    pub cache: Unused,
    pub thread_model: Unused,
    pub can_fast_zero: OfHandle,
    pub preconnect: Unused,
    pub get_ready: Option<extern "C" fn() -> c_int>,
    pub after_fork: Unused,
    pub list_exports: Unused,
    pub default_export: Unused,
    pub export_description: Unused,
    pub cleanup: Option<extern "C" fn()>,
    pub block_size: Option<extern "C" fn(Handle, *mut u32, *mut u32, *mut u32) -> c_int>,
}

// SAFETY: its pointers are to constants, and nbdkit reads it only.
unsafe impl Sync for Plugin {}
