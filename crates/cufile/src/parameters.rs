//! Settings: kept as they are set, given back, and without effect, because the router measures what the
//! original must be told. Settings of the program's configuration file are not read.

use crate::abi::CUfileError_t;
use crate::abi::CUfileOpError::CU_FILE_DRIVER_ALREADY_OPEN;
use crate::session;
use crate::status::{Failure, Outcome, status, store};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The numbers of the settings that are sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeT {
    MaxDirectIo = 5,
    MaxDeviceCache = 6,
    PerBufferCache = 7,
    MaxDevicePinned = 8,
    BatchSize = 9,
    PollThreshold = 10,
    BatchTimeout = 11,
}

const SIZES: usize = 12;
const BOOLS: usize = 14;
const STRINGS: usize = 4;

/// What each size may be; none where the original does not say.
const RANGES: [Option<(usize, usize)>; SIZES] = [
    None,
    Some((1, 256)),
    Some((0, 128)),
    Some((4, u32::MAX as usize)),
    Some((0, 8)),
    Some((64, 16384)),
    Some((0, u32::MAX as usize)),
    Some((64, 16384)),
    Some((64, u32::MAX as usize)),
    Some((1, 256)),
    Some((4, usize::MAX >> 10 & !3)),
    Some((1, 1000)),
];

/// `CUFILE_PARAM_PROPERTIES_USE_POLL_MODE`.
const USE_POLL_MODE: usize = 0;

/// Pairs of sizes and counts; none before they are set.
type Slabs = Option<Vec<(usize, usize)>>;

struct Settings {
    sizes: [usize; SIZES],
    bools: [bool; BOOLS],
    strings: [Option<CString>; STRINGS],
    /// Of host memory, and of device memory.
    slabs: [Slabs; 2],
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings {
    // Those of the original, as far as it tells before it is open.
    sizes: [0, 128, 8, 1024, 4, 16384, 131_072, 1024, u32::MAX as usize & !3, 128, 4, 5],
    bools: [false, true, false, false, true, false, true, false, false, false, false, false, false, false],
    strings: [None, None, None, None],
    slabs: [None, None],
});

fn settings() -> MutexGuard<'static, Settings> {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn size_of(parameter: SizeT) -> usize {
    settings().sizes[parameter as usize]
}

pub(crate) fn set_size(parameter: SizeT, value: usize) {
    settings().sizes[parameter as usize] = value;
}

pub(crate) fn uses_poll_mode() -> bool {
    settings().bools[USE_POLL_MODE]
}

pub(crate) fn set_poll_mode(value: bool) {
    settings().bools[USE_POLL_MODE] = value;
}

/// The index of a setting among those of its type.
fn index_of(parameter: c_int, count: usize) -> Outcome<usize> {
    let index = usize::try_from(parameter).ok().filter(|index| *index < count);
    index.ok_or_else(|| Failure::argument(format!("{parameter} is not a setting of this type")))
}

fn refuse_if_open() -> Outcome<()> {
    if session::is_open() {
        let text = "settings cannot be changed while the driver session is open: set them before cuFileDriverOpen and the first \
             registration";
        return Err(Failure::new(CU_FILE_DRIVER_ALREADY_OPEN, text));
    }
    Ok(())
}

/// A setting that is a size.
///
/// # Safety
/// `value` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterSizeT(param: c_int, value: *mut usize) -> CUfileError_t {
    status("cuFileGetParameterSizeT", || {
        let current = settings().sizes[index_of(param, SIZES)?];
        // SAFETY: the caller's promise.
        unsafe { store(value, current) }
    })
}

/// A setting that is true or false.
///
/// # Safety
/// `value` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterBool(param: c_int, value: *mut bool) -> CUfileError_t {
    status("cuFileGetParameterBool", || {
        let current = settings().bools[index_of(param, BOOLS)?];
        // SAFETY: the caller's promise.
        unsafe { store(value, current) }
    })
}

/// A setting that is text.
///
/// # Safety
/// `desc_str` is NULL or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterString(param: c_int, desc_str: *mut c_char, len: c_int) -> CUfileError_t {
    status("cuFileGetParameterString", || {
        let text = settings().strings[index_of(param, STRINGS)?].clone().unwrap_or_default();
        let bytes = text.as_bytes_with_nul();
        if desc_str.is_null() || usize::try_from(len).map_or(true, |len| len < bytes.len()) {
            return Err(Failure::argument(format!(
                "the text needs a buffer of {} bytes, and this one has {len}",
                bytes.len()
            )));
        }
        // SAFETY: the caller's promise, and the text fits.
        unsafe { desc_str.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
        Ok(())
    })
}

/// What a size may be set to.
///
/// # Safety
/// The places are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterMinMaxValue(
    param: c_int,
    min_value: *mut usize,
    max_value: *mut usize,
) -> CUfileError_t {
    status("cuFileGetParameterMinMaxValue", || {
        let range = RANGES[index_of(param, SIZES)?];
        let (min, max) = range.ok_or_else(|| Failure::argument("this setting has no limits"))?;
        if max_value.is_null() {
            return Err(Failure::argument("the pointer for the result is NULL"));
        }
        // SAFETY: the caller's promise.
        unsafe { store(min_value, min).and_then(|()| store(max_value, max)) }
    })
}

/// Keeps a size. As in the original, it is not compared with its limits.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileSetParameterSizeT(param: c_int, value: usize) -> CUfileError_t {
    status("cuFileSetParameterSizeT", || {
        let index = index_of(param, SIZES)?;
        refuse_if_open()?;
        settings().sizes[index] = value;
        Ok(())
    })
}

/// Keeps a choice.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileSetParameterBool(param: c_int, value: u8) -> CUfileError_t {
    status("cuFileSetParameterBool", || {
        let index = index_of(param, BOOLS)?;
        refuse_if_open()?;
        settings().bools[index] = value != 0;
        Ok(())
    })
}

/// Keeps a text.
///
/// # Safety
/// `desc_str` is NULL, or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterString(param: c_int, desc_str: *const c_char) -> CUfileError_t {
    status("cuFileSetParameterString", || {
        let index = index_of(param, STRINGS)?;
        if desc_str.is_null() {
            return Err(Failure::argument("the text is NULL"));
        }
        refuse_if_open()?;
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(desc_str) }.to_owned();
        settings().strings[index] = Some(text);
        Ok(())
    })
}

const OF_HOST: usize = 0;
const OF_DEVICE: usize = 1;

unsafe fn set_slabs(kind: usize, sizes: *const usize, counts: *const usize, len: c_int) -> Outcome<()> {
    let len = usize::try_from(len).unwrap_or(0);
    if sizes.is_null() || counts.is_null() || len == 0 {
        return Err(Failure::argument("the array of sizes or of counts is NULL, or their length is 0"));
    }
    refuse_if_open()?;
    // SAFETY: the caller's promise.
    let (sizes, counts) = unsafe { (std::slice::from_raw_parts(sizes, len), std::slice::from_raw_parts(counts, len)) };
    settings().slabs[kind] = Some(sizes.iter().copied().zip(counts.iter().copied()).collect());
    Ok(())
}

unsafe fn get_slabs(kind: usize, sizes: *mut usize, counts: *mut usize, len: c_int) -> Outcome<()> {
    let slabs = settings().slabs[kind].clone().unwrap_or_default();
    if sizes.is_null() || counts.is_null() || slabs.is_empty() || usize::try_from(len) != Ok(slabs.len()) {
        let text =
            format!("there are {} sizes and counts, and the arrays are NULL or have room for {len}", slabs.len());
        return Err(Failure::argument(text));
    }
    for (index, (size, count)) in slabs.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { (sizes.add(index).write(size), counts.add(index).write(count)) };
    }
    Ok(())
}

/// Keeps sizes and counts of buffers in host memory.
///
/// # Safety
/// The arrays are NULL or have `len` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterPosixPoolSlabArray(
    size_values: *const usize,
    count_values: *const usize,
    len: c_int,
) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileSetParameterPosixPoolSlabArray", || unsafe { set_slabs(OF_HOST, size_values, count_values, len) })
}

/// What was kept.
///
/// # Safety
/// The arrays are NULL or have `len` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterPosixPoolSlabArray(
    size_values: *mut usize,
    count_values: *mut usize,
    len: c_int,
) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileGetParameterPosixPoolSlabArray", || unsafe { get_slabs(OF_HOST, size_values, count_values, len) })
}

/// Keeps sizes and counts of buffers in device memory.
///
/// # Safety
/// The arrays are NULL or have `len` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterGpuBounceBufferSlabArray(
    size_values: *const usize,
    count_values: *const usize,
    len: c_int,
) -> CUfileError_t {
    let name = "cuFileSetParameterGpuBounceBufferSlabArray";
    // SAFETY: the caller's promise.
    status(name, || unsafe { set_slabs(OF_DEVICE, size_values, count_values, len) })
}

/// What was kept.
///
/// # Safety
/// The arrays are NULL or have `len` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterGpuBounceBufferSlabArray(
    size_values: *mut usize,
    count_values: *mut usize,
    len: c_int,
) -> CUfileError_t {
    let name = "cuFileGetParameterGpuBounceBufferSlabArray";
    // SAFETY: the caller's promise.
    status(name, || unsafe { get_slabs(OF_DEVICE, size_values, count_values, len) })
}
