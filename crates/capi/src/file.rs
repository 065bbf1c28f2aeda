//! Files: reading, writing and explaining, on the calling thread.

use crate::bf_ptr;
use crate::context::bf_context;
use crate::order;
use crate::status::{Failure, Outcome, bf_status, bytes, handle, owned_text, path, status, store};
use bifolio_io::{Advice, EngineChoice, OpenFile, ReadExtent, ReadOptions, Router, WriteOptions, stripe};
use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::Arc;

/// Open for reading.
pub const BF_READ: u32 = 0;
/// Open for reading and writing.
pub const BF_WRITE: u32 = 1;
/// With `BF_WRITE`: create the file if there is none.
pub const BF_CREATE: u32 = 2;

/// For writes: return only when the bytes would survive a loss of power (fdatasync).
pub const BF_DURABLE: u32 = 1;

/// An open file or striped set ("stripe:set.toml", "stripe:512K:a,b,c"). Any number of threads may use one.
#[allow(non_camel_case_types, reason = "C names")]
#[derive(Debug)]
pub struct bf_file {
    pub(crate) router: Arc<Router>,
    pub(crate) file: Arc<OpenFile>,
}

/// Advice: nothing special.
pub const BF_NORMAL: u32 = 0;
/// Advice: read ahead from the first request on.
pub const BF_SEQUENTIAL: u32 = 1;
/// Advice: do not read ahead.
pub const BF_RANDOM: u32 = 2;
/// Advice for mappings: it will be acquired soon.
pub const BF_WILLNEED: u32 = 3;
/// Advice for mappings: it will not be acquired for a while.
pub const BF_DONTNEED: u32 = 4;

/// One extent of a batch.
#[allow(non_camel_case_types, reason = "C names")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct bf_extent {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Where they go, from the start of the destination.
    pub place: u64,
}

/// The batch that C describes.
///
/// # Safety
/// `extents` has `count` elements, or is NULL with none.
pub(crate) unsafe fn extents_of(extents: *const bf_extent, count: usize) -> Outcome<Vec<ReadExtent>> {
    if count == 0 {
        return Ok(vec![]);
    }
    if extents.is_null() {
        return Err(Failure::argument("the array of extents is NULL"));
    }
    // SAFETY: the caller's promise.
    let extents = unsafe { std::slice::from_raw_parts(extents, count) };
    let extent = |extent: &bf_extent| ReadExtent { offset: extent.offset, length: extent.length, place: extent.place };
    Ok(extents.iter().map(extent).collect())
}

/// Bytes of a range that lie inside the file, as `pread` would return them.
pub(crate) fn inside(file: &OpenFile, offset: u64, length: u64) -> Outcome<u64> {
    Ok(length.min(file.size()?.saturating_sub(offset)))
}

/// Opens a file. `flags` are `BF_READ`, `BF_WRITE`, or `BF_WRITE` | `BF_CREATE`. Close it with [`bf_close`].
///
/// # Safety
/// `context` is open; `path` ends with a zero byte; `file` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_open(
    context: *mut bf_context,
    path: *const c_char,
    flags: u32,
    file: *mut *mut bf_file,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let (context, path) = unsafe { (handle(context, "context")?, self::path(path)?) };
        let router = Arc::clone(&context.router);
        let opened = match flags {
            BF_READ => router.open(path)?,
            BF_WRITE => router.open_for_writing(path, false)?,
            flags if flags == BF_WRITE | BF_CREATE => router.open_for_writing(path, true)?,
            _ => return Err(Failure::argument(format!("the flags {flags:#x} are not defined"))),
        };
        // SAFETY: as above.
        unsafe { store(file, Box::into_raw(Box::new(bf_file { router, file: opened }))) }
    })
}

/// Closes a file; its requests go on to their end. NULL is allowed.
///
/// # Safety
/// It was opened by [`bf_open`] and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_close(file: *mut bf_file) {
    if !file.is_null() {
        status(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(file) });
            Ok(())
        });
    }
}

/// The size of a file in bytes.
///
/// # Safety
/// `file` is open; `size` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_size(file: *const bf_file, size: *mut u64) -> bf_status {
    // SAFETY: the caller's promise.
    status(|| unsafe { store(size, handle(file, "file")?.file.size()?) })
}

/// Says how a file will be read, as `posix_fadvise` does: `BF_NORMAL`, `BF_SEQUENTIAL` or `BF_RANDOM`.
///
/// # Safety
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_advise(file: *mut bf_file, advice: u32) -> bf_status {
    status(|| {
        let advice = match advice {
            BF_NORMAL => Advice::Normal,
            BF_SEQUENTIAL => Advice::Sequential,
            BF_RANDOM => Advice::Random,
            _ => return Err(Failure::argument(format!("the advice {advice} is not defined"))),
        };
        // SAFETY: the caller's promise.
        unsafe { handle(file, "file") }?.file.advise(advice);
        Ok(())
    })
}

/// Reads into device memory: `length` bytes at `offset`, fewer only at the end of the file, 0 beyond it.
/// Returns the bytes, or a negative `bf_status`.
///
/// # Safety
/// `file` is open; `destination` is valid device memory of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_read(file: *mut bf_file, destination: bf_ptr, length: u64, offset: u64) -> i64 {
    bytes(|| {
        // SAFETY: the caller's promise.
        let bf_file { router, file } = unsafe { handle(file, "file") }?;
        let length = inside(file, offset, length)?;
        // SAFETY: as above.
        let destination = unsafe { slice(destination, length) }?;
        if length == 0 {
            return Ok(0);
        }
        Ok(router.read(file, offset, Some(length), destination, &read_options(router)?)?.bytes)
    })
}

/// Writes device memory to a file: all of it or an error. `flags` are 0 or `BF_DURABLE`. Returns the bytes,
/// or a negative `bf_status`.
///
/// # Safety
/// `file` is open; `source` is valid device memory of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_write(file: *mut bf_file, source: bf_ptr, length: u64, offset: u64, flags: u32) -> i64 {
    bytes(|| {
        // SAFETY: the caller's promise.
        let (bf_file { router, file }, source) = unsafe { (handle(file, "file")?, slice(source, length)?) };
        Ok(router.write(file, offset, source, &write_options(router, flags)?)?.bytes)
    })
}

pub(crate) fn read_options(router: &Router) -> Outcome<ReadOptions> {
    Ok(ReadOptions { after: order::after(router)?, ..ReadOptions::default() })
}

pub(crate) fn write_options(router: &Router, flags: u32) -> Outcome<WriteOptions> {
    if flags & !BF_DURABLE != 0 {
        return Err(Failure::argument(format!("the flags {flags:#x} are not defined")));
    }
    Ok(WriteOptions { durable: flags & BF_DURABLE != 0, after: order::after(router)?, ..WriteOptions::default() })
}

/// Makes everything written to a file so far durable (fdatasync).
///
/// # Safety
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_sync(file: *mut bf_file) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let bf_file { router, file } = unsafe { handle(file, "file") }?;
        Ok(router.sync(file)?)
    })
}

/// Reads many extents by one request; they may overlap in the file but not in the destination. Extents
/// that reach beyond the end are read up to it. Returns the bytes, or a negative `bf_status`.
///
/// # Safety
/// `file` is open; `extents` has `count` elements; `destination` is valid device memory of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_read_batch(
    file: *mut bf_file,
    extents: *const bf_extent,
    count: usize,
    destination: bf_ptr,
    length: u64,
) -> i64 {
    bytes(|| {
        // SAFETY: the caller's promise.
        let (bf_file { router, file }, extents, destination) =
            unsafe { (handle(file, "file")?, extents_of(extents, count)?, slice(destination, length)?) };
        Ok(router.read_batch(file, &extents, destination, &read_options(router)?)?.bytes)
    })
}

/// Plans a read without doing it: which engine would move which bytes, what is cached, and why, as JSON.
/// Free it with [`bf_string_free`].
///
/// # Safety
/// `file` is open; `json` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_explain(file: *mut bf_file, length: u64, offset: u64, json: *mut *mut c_char) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let bf_file { router, file } = unsafe { handle(file, "file") }?;
        let (plan, residency) = router.explain(file, offset, Some(length), EngineChoice::Auto)?;
        let text = serde_json::json!({
            "device": router.device().id().to_string(),
            "file": file.path().display().to_string(),
            "reason": plan.reason,
            "predicted_s": plan.predicted_s,
            "segments": plan.segments,
            "residency": {
                "source": residency.source.name(),
                "cached_bytes": residency.cached_bytes(),
                "total_bytes": residency.range().end - residency.range().start,
            },
        });
        // SAFETY: as above.
        unsafe { store(json, owned_text(&text.to_string())) }
    })
}

/// Creates a striped set: its members, which must not exist, and a descriptor; "stripe:DESCRIPTOR" then
/// opens it. What was created before a failure is removed again.
///
/// # Safety
/// The texts end with a zero byte; `members` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_stripe_create(
    descriptor: *const c_char,
    chunk_bytes: u64,
    size: u64,
    members: *const *const c_char,
    count: usize,
) -> bf_status {
    status(|| {
        if members.is_null() || count == 0 {
            return Err(Failure::argument("a striped set needs at least one member"));
        }
        // SAFETY: the caller's promise.
        let (descriptor, members) = unsafe { (path(descriptor)?, std::slice::from_raw_parts(members, count)) };
        // SAFETY: as above.
        let members: Vec<PathBuf> =
            members.iter().map(|member| Ok(unsafe { path(*member) }?.to_owned())).collect::<Outcome<_>>()?;
        stripe::create(descriptor, chunk_bytes, size, &members)?;
        Ok(())
    })
}

/// Device memory of the caller's.
///
/// # Safety
/// The range is valid memory of the device for as long as the slice is used.
pub(crate) unsafe fn slice<'a>(ptr: bf_ptr, length: u64) -> Outcome<bifolio_device::DeviceSlice<'a>> {
    // SAFETY: the caller's promise.
    unsafe { bf_context::slice(ptr, length) }
}
