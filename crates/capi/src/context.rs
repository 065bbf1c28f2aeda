//! Contexts: a device, its router, and device memory for programs that have no other source of it.

use crate::status::{Failure, Outcome, bf_status, handle, owned_text, path, status, store, text};
use crate::{bf_ptr, order};
use bifolio_device::{Allocation, Device, DeviceChoice, DevicePtr, DeviceSlice, open};
use bifolio_io::{OpenFile, Profile, Router, RouterOptions, calibrate};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// A device and the router that moves bytes between it and files. Any number of threads may use one.
#[allow(non_camel_case_types, reason = "C names")]
#[derive(Debug)]
pub struct bf_context {
    pub(crate) router: Arc<Router>,
    name: CString,
    memory: Mutex<BTreeMap<bf_ptr, Allocation>>,
}

/// Choices for [`bf_context_open`]; zero everywhere means the defaults.
#[allow(non_camel_case_types, reason = "C names")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct bf_options {
    /// `sizeof(bf_options)`, so that later versions may add fields.
    pub size: usize,
    /// Threads that copy out of the page cache for one request.
    pub threads: usize,
    /// Bytes of a pinned slot, a power of two from 65536.
    pub slot_bytes: usize,
    /// Pinned bytes at most.
    pub pool_bytes: usize,
    /// Page-cache bytes that may be pinned for ranges that are read again and again; `UINT64_MAX` for none.
    pub mapped_bytes: u64,
    /// Pinned bytes at most for reading ahead; `SIZE_MAX` for no readahead.
    pub readahead_bytes: usize,
    /// A file or folder: the stored profile of its file system (bifolio calibrate) is used. NULL for the
    /// default costs, which are corrected by what is observed.
    pub profile_of: *const c_char,
}

impl bf_context {
    /// Device memory of the caller's, for the time of a call.
    ///
    /// # Safety
    /// The range is valid memory of the device for as long as the slice is used.
    pub(crate) unsafe fn slice<'a>(ptr: bf_ptr, length: u64) -> Outcome<DeviceSlice<'a>> {
        if ptr == 0 && length > 0 {
            return Err(Failure::argument("the device pointer is 0"));
        }
        if ptr.checked_add(length).is_none() {
            return Err(Failure::argument(format!("{length} bytes at {ptr:#x} end beyond the address space")));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { DeviceSlice::from_raw(DevicePtr(ptr), length) })
    }
}

fn options_of(device: &Device, given: Option<&bf_options>) -> Outcome<RouterOptions> {
    let mut options = RouterOptions::default();
    let Some(given) = given else { return Ok(options) };
    if given.size != size_of::<bf_options>() {
        let detail = format!("bf_options.size is {}, and this library expects {}", given.size, size_of::<bf_options>());
        return Err(Failure::argument(detail));
    }
    let set = |field: &mut usize, value: usize| {
        if value > 0 {
            *field = value;
        }
    };
    set(&mut options.threads, given.threads);
    set(&mut options.slot_bytes, given.slot_bytes);
    set(&mut options.pool_bytes, given.pool_bytes);
    if !options.slot_bytes.is_power_of_two() || options.slot_bytes < 64 << 10 || options.pool_bytes < options.slot_bytes
    {
        let detail = format!(
            "slot_bytes is {} and pool_bytes {}: slot_bytes must be a power of two from 65536, and pool_bytes hold one slot",
            options.slot_bytes, options.pool_bytes
        );
        return Err(Failure::argument(detail));
    }
    match given.mapped_bytes {
        0 => {}
        u64::MAX => options.mapped_bytes = 0,
        bytes => options.mapped_bytes = bytes,
    }
    match given.readahead_bytes {
        0 => {}
        usize::MAX => options.readahead_bytes = 0,
        bytes => options.readahead_bytes = bytes,
    }
    if !given.profile_of.is_null() {
        // SAFETY: the caller of `bf_context_open` passes text that ends with a zero byte.
        let near = OpenFile::open(unsafe { path(given.profile_of) }?)?;
        options.costs = Profile::find(device, &near)?.map(|profile| profile.costs);
    }
    Ok(options)
}

/// Opens a device: "auto" or NULL (the first CUDA device, else the first OpenCL GPU, else "host"), "host",
/// "cuda:N" or "opencl:N". `options` may be NULL. Close it with [`bf_context_close`].
///
/// # Safety
/// The texts end with a zero byte; `context` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_context_open(
    device: *const c_char,
    options: *const bf_options,
    context: *mut *mut bf_context,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(device, "device name") }?.unwrap_or("auto");
        let choice: DeviceChoice = name.parse().map_err(|error| Failure::argument(format!("{error}")))?;
        let device = open(choice)?;
        // SAFETY: as above.
        let options = options_of(&device, unsafe { options.as_ref() })?;
        let name = CString::new(device.id().to_string()).unwrap_or_default();
        let router = Arc::new(Router::new(&device, options));
        let opened = Box::new(bf_context { router, name, memory: Mutex::default() });
        // SAFETY: as above.
        unsafe { store(context, Box::into_raw(opened)) }
    })
}

/// Closes a context and frees its memory ([`bf_alloc`]). Files and requests that are still open keep what
/// they need of it. NULL is allowed.
///
/// # Safety
/// It was opened by [`bf_context_open`], and nobody uses it or its memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_context_close(context: *mut bf_context) {
    if !context.is_null() {
        status(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(context) });
            Ok(())
        });
    }
}

/// The device's name, such as "cuda:0"; empty for NULL. Valid while the context is open; never freed.
///
/// # Safety
/// `context` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_device(context: *const bf_context) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { context.as_ref() }.map_or(c"".as_ptr(), |context| context.name.as_ptr())
}

/// Allocates device memory, for programs that have no other source of it. Free it with [`bf_free`].
///
/// # Safety
/// `context` is open; `memory` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_alloc(context: *mut bf_context, length: u64, memory: *mut bf_ptr) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { handle(context, "context") }?;
        let allocation = context.router.device().alloc(length.max(1))?;
        let ptr = allocation.ptr().0;
        // SAFETY: as above.
        unsafe { store(memory, ptr) }?;
        context.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(ptr, allocation);
        Ok(())
    })
}

/// Frees memory of [`bf_alloc`]; 0 is allowed. Requests that use it must be over.
///
/// # Safety
/// `context` is open, and nobody uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_free(context: *mut bf_context, memory: bf_ptr) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { handle(context, "context") }?;
        let freed = context.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(&memory);
        match freed {
            None if memory != 0 => {
                Err(Failure::argument(format!("{memory:#x} was not allocated by bf_alloc, or is already freed")))
            }
            _ => Ok(()),
        }
    })
}

/// Copies from device memory to host memory, and waits for it.
///
/// # Safety
/// Both ranges are valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_copy_to_host(
    context: *mut bf_context,
    destination: *mut c_void,
    source: bf_ptr,
    length: usize,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { handle(context, "context") }?;
        if length == 0 {
            return Ok(());
        }
        if destination.is_null() {
            return Err(Failure::argument("the pointer to host memory is NULL"));
        }
        // SAFETY: as above.
        let (bytes, source) = unsafe {
            (
                std::slice::from_raw_parts_mut(destination.cast::<u8>(), length),
                bf_context::slice(source, length as u64)?,
            )
        };
        let device = context.router.device();
        let source = order::settled(&context.router, source)?;
        Ok(device.create_stream()?.download(bytes, source)?)
    })
}

/// Copies from host memory to device memory, and waits for it.
///
/// # Safety
/// Both ranges are valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_copy_from_host(
    context: *mut bf_context,
    destination: bf_ptr,
    source: *const c_void,
    length: usize,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { handle(context, "context") }?;
        if length == 0 {
            return Ok(());
        }
        if source.is_null() {
            return Err(Failure::argument("the pointer to host memory is NULL"));
        }
        // SAFETY: as above.
        let (bytes, destination) = unsafe {
            (std::slice::from_raw_parts(source.cast::<u8>(), length), bf_context::slice(destination, length as u64)?)
        };
        let device = context.router.device();
        let destination = order::settled(&context.router, destination)?;
        Ok(device.create_stream()?.upload(destination, bytes)?)
    })
}

/// Measures every path between the file system of a folder and the context's device with a scratch file
/// of 1 GiB, which takes some ten seconds, stores the profile for later contexts, and returns it as
/// JSON. `json` may be NULL; free it with [`bf_string_free`].
///
/// # Safety
/// `context` is open; `folder` ends with a zero byte; `json` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_calibrate(
    context: *mut bf_context,
    folder: *const c_char,
    json: *mut *mut c_char,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let (context, folder) = unsafe { (handle(context, "context")?, path(folder)?) };
        let profile = calibrate::calibrate(&context.router, folder, &calibrate::Options::default(), &mut |_, _| {})?;
        let kept = profile
            .default_path()
            .ok_or_else(|| Failure::argument("no folder to store the profile in: set BIFOLIO_CACHE_DIR or HOME"))?;
        profile.store(&kept)?;
        if json.is_null() {
            return Ok(());
        }
        let text = serde_json::to_string(&profile).map_err(|error| Failure::argument(error.to_string()))?;
        // SAFETY: as above.
        unsafe { store(json, owned_text(&text)) }
    })
}
