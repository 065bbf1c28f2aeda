//! Files mapped on devices: `mmap` with the flag `MAP_ONGPU`, and the calls that belong to it.
//!
//! Allocators, the loader and signal handlers map memory, before anything is set up, and between `fork` and
//! `exec`. So a call without the flag is handed on after a look at one bit, and `munmap` and `msync` after a look
//! into a table that needs no lock; nothing is allocated, locked or looked up for them.
//!
//! The device is that of the variable `BIFOLIO_DEVICE` at the time of the call, else the first GPU, else `host:0`.

use crate::{log, real};
use bifolio_cache::process::address::MAP_ONGPU;
use bifolio_cache::process::shared;
use bifolio_cache::{Error, ErrorKind};
use bifolio_device::{DeviceChoice, DevicePtr};
use libc::{c_int, c_void, off_t, size_t};

const DEVICE_VARIABLE: &str = "BIFOLIO_DEVICE";

/// `mmap(2)`: with `MAP_ONGPU`, the file is mapped on a device.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & MAP_ONGPU == 0 {
        // SAFETY: the caller's promise.
        return unsafe { real::mmap(address, length, protection, flags, fd, offset) };
    }
    map(length, protection, flags, fd, offset)
}

/// The same: offsets have 64 bits.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// `munmap(2)`: ends a mapping on a device, all of it. The last one of a file fails, with the disk's errno, if what was
/// released cannot be written; it has ended then as well.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    if !shared::holds(address.addr() as u64) {
        // SAFETY: the caller's promise.
        return unsafe { real::munmap(address, length) };
    }
    answer(|| shared::unmap(ptr(address), length as u64))
}

/// `msync(2)`: of a mapping on a device, everything that was changed there reaches the file, with each flag.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msync(address: *mut c_void, length: size_t, flags: c_int) -> c_int {
    if !shared::holds(address.addr() as u64) {
        // SAFETY: the caller's promise.
        return unsafe { real::msync(address, length, flags) };
    }
    answer(|| shared::sync(ptr(address), length as u64))
}

/// Brings bytes of a mapping on a device up to date for kernels that are launched afterwards: 0, or -1 with errno.
/// GAIA's third argument, the device, is not looked at: an address is one device's.
#[unsafe(no_mangle)]
pub extern "C" fn macquire(address: *mut c_void, length: size_t, _device: *mut c_void) -> c_int {
    answer(|| shared::acquire(ptr(address), length as u64))
}

/// Publishes what kernels have changed in bytes that were acquired: 0, or -1 with errno. The kernels have come to
/// their end.
#[unsafe(no_mangle)]
pub extern "C" fn mrelease(address: *mut c_void, length: size_t, _device: *mut c_void) -> c_int {
    answer(|| shared::release(ptr(address), length as u64))
}

fn ptr(address: *mut c_void) -> DevicePtr {
    DevicePtr(address.expose_provenance() as u64)
}

#[cold]
fn map(length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
    let mut mapped = libc::MAP_FAILED;
    answer(|| {
        let device = device()?;
        let ptr = shared::mmap(length as u64, protection, flags, fd, offset as u64, device)?;
        mapped = std::ptr::with_exposed_provenance_mut(ptr.0 as usize);
        Ok(())
    });
    mapped
}

fn device() -> bifolio_cache::Result<DeviceChoice> {
    let Some(name) = std::env::var_os(DEVICE_VARIABLE).filter(|name| !name.is_empty()) else {
        return Ok(DeviceChoice::Auto);
    };
    let name = name.to_string_lossy();
    name.parse().map_err(|error| Error::bad_use(format!("the environment variable {DEVICE_VARIABLE}: {error}")))
}

/// What a call returns. A success leaves errno alone, and no panic leaves the library.
#[cold]
fn answer(call: impl FnOnce() -> bifolio_cache::Result<()>) -> c_int {
    let code = real::errno();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    let failure = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(code_of(&error)),
        Err(_) => Some(libc::EIO),
    };
    real::set_errno(failure.unwrap_or(code));
    if failure.is_some() { -1 } else { 0 }
}

/// The errno for a failure, whose sentence goes to the log.
fn code_of(error: &Error) -> c_int {
    log::say(error);
    let source = error.cause().and_then(|cause| cause.downcast_ref::<bifolio_io::Error>());
    error.os_code().unwrap_or(match (error.kind(), source.map(bifolio_io::Error::kind)) {
        (ErrorKind::BadRange | ErrorKind::BadUse, _) => libc::EINVAL,
        (ErrorKind::OutOfMemory, _) => libc::ENOMEM,
        (ErrorKind::Permission, _) | (_, Some(bifolio_io::ErrorKind::Permission)) => libc::EACCES,
        (ErrorKind::Device, _) | (_, Some(bifolio_io::ErrorKind::NotAFile)) => libc::ENODEV,
        (ErrorKind::Forked, _) => libc::EFAULT,
        _ => libc::EIO,
    })
}
