//! Device memory for trying the shim where there is no GPU: addresses that the CPU cannot touch, of `host:0`.
//! Not for programs; tests look these up by `dlsym`.

use bifolio_device::{DeviceChoice, DeviceId, DeviceSlice, FencedMemory, Gate, Stream, open};
use libc::{c_int, c_void, size_t};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Closed while the default stream is held up.
static HELD: Mutex<Option<Gate>> = Mutex::new(None);

static FENCED: Mutex<BTreeMap<u64, FencedMemory>> = Mutex::new(BTreeMap::new());

/// Allocates `length` bytes of zeroes behind a fence; NULL where that fails.
#[unsafe(no_mangle)]
pub extern "C" fn bifolio_fenced_alloc(length: size_t) -> *mut c_void {
    let Ok(memory) = FencedMemory::alloc(length.max(1) as u64) else { return std::ptr::null_mut() };
    let address = memory.address();
    FENCED.lock().unwrap_or_else(PoisonError::into_inner).insert(address, memory);
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Frees it.
#[unsafe(no_mangle)]
pub extern "C" fn bifolio_fenced_free(memory: *mut c_void) {
    drop(FENCED.lock().unwrap_or_else(PoisonError::into_inner).remove(&(memory.addr() as u64)));
}

/// Copies to host memory: 0, or -1 where that is no fenced memory of this length.
///
/// # Safety
/// `host` may be written for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bifolio_fenced_read(host: *mut c_void, fenced: *const c_void, length: size_t) -> c_int {
    copy(fenced, length, |inside| {
        // SAFETY: both are valid for `length` bytes, and one is only known behind its fence.
        unsafe { std::ptr::copy_nonoverlapping(inside, host.cast::<u8>(), length) };
    })
}

/// Copies from host memory: 0, or -1 where that is no fenced memory of this length.
///
/// # Safety
/// `host` may be read for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bifolio_fenced_write(fenced: *mut c_void, host: *const c_void, length: size_t) -> c_int {
    copy(fenced, length, |inside| {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(host.cast::<u8>(), inside, length) };
    })
}

/// Enqueues filling fenced memory with one byte on the default stream of `host:0`, as `cudaMemset` does on a GPU's:
/// 0, or -1 where that is no fenced memory of this length.
#[unsafe(no_mangle)]
pub extern "C" fn bifolio_fenced_fill(fenced: *mut c_void, value: c_int, length: size_t) -> c_int {
    enqueue(fenced, length, |stream, place| {
        // SAFETY: the memory is there until it is freed, before which the program waits for its work.
        unsafe { stream.fill(place, value as u8) }
    })
}

/// Holds the default stream of `host:0` up, as a long kernel does a GPU's, until [`bifolio_fenced_go_on`]: 0, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn bifolio_fenced_hold() -> c_int {
    let held = open(DeviceChoice::Exactly(DeviceId::HOST)).and_then(|device| device.default_stream()?.gate());
    let Ok(gate) = held else { return -1 };
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(gate);
    0
}

/// Lets it go on.
#[unsafe(no_mangle)]
pub extern "C" fn bifolio_fenced_go_on() {
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn enqueue(
    fenced: *mut c_void,
    length: size_t,
    work: impl FnOnce(&Stream, DeviceSlice<'_>) -> bifolio_device::Result<()>,
) -> c_int {
    let address = fenced.addr() as u64;
    let Some(found) = bifolio_device::pointer::locate(address) else { return -1 };
    if found.bytes_left(address) < length as u64 {
        return -1;
    }
    // SAFETY: the range lies inside fenced memory.
    let place = unsafe { DeviceSlice::from_raw(found.address, length as u64) };
    let done = open(DeviceChoice::Exactly(found.device)).and_then(|device| work(&device.default_stream()?, place));
    if done.is_ok() { 0 } else { -1 }
}

fn copy(fenced: *const c_void, length: size_t, work: impl FnOnce(*mut u8)) -> c_int {
    let address = fenced.addr() as u64;
    match bifolio_device::pointer::locate(address) {
        Some(found) if found.bytes_left(address) >= length as u64 => {
            work(std::ptr::with_exposed_provenance_mut(found.address.0 as usize));
            0
        }
        _ => -1,
    }
}
