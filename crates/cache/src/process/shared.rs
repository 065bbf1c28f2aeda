//! One cache for all libraries of a process that this crate is linked into, whatever was linked, preloaded or opened, and
//! in which order: the first that needs it makes it, and the others call there (`calls.rs`).
//!
//! The table of the first is found in the memory that all of them find (`siblings`). A library with it stays loaded to
//! the end of the process. One of another version makes a cache of its own, and so does one whose programs use a cache's
//! objects ([`cache`]) while another library has the process's: that is safe, as caches of one process know of each other
//! as of strangers, and costs a comparison now and then. A child of `fork` finds what its parent has, and is refused
//! there.

use super::calls::{Calls, OWN, Operation, VERSION};
use super::own;
use crate::advice::Advice;
use crate::cache::Cache;
use crate::error::Result;
use crate::siblings::offered;
use crate::stats::Snapshot;
use bifolio_device::{DeviceChoice, DevicePtr};
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Whose cache this copy uses; null before anything was mapped through it.
static CHOSEN: AtomicPtr<Calls> = AtomicPtr::new(std::ptr::null_mut());

/// The cache of this copy, which is the process's unless another library came first.
///
/// # Errors
/// `BadUse` for variables with impossible values, `Forked` in a child of the process that made it.
pub fn cache() -> Result<Cache> {
    if !chosen().is_own() {
        own::keep_private();
    }
    own::cache()
}

/// As [`super::address::mmap`].
///
/// # Errors
/// As there.
pub fn mmap(len: u64, protection: i32, flags: i32, fd: RawFd, offset: u64, device: DeviceChoice) -> Result<DevicePtr> {
    chosen().mmap(len, protection, flags, fd, offset, device)
}

/// As [`super::address::acquire`].
///
/// # Errors
/// As there.
pub fn acquire(ptr: DevicePtr, len: u64) -> Result<()> {
    chosen().operate(Operation::Acquire, ptr, len)
}

/// As [`super::address::release`].
///
/// # Errors
/// As there.
pub fn release(ptr: DevicePtr, len: u64) -> Result<()> {
    chosen().operate(Operation::Release, ptr, len)
}

/// As [`super::address::sync`].
///
/// # Errors
/// As there.
pub fn sync(ptr: DevicePtr, len: u64) -> Result<()> {
    chosen().operate(Operation::Sync, ptr, len)
}

/// As [`super::address::advise`].
///
/// # Errors
/// As there.
pub fn advise(ptr: DevicePtr, len: u64, advice: Advice) -> Result<()> {
    chosen().operate(Operation::Advise(advice), ptr, len)
}

/// As [`super::address::unmap`].
///
/// # Errors
/// As there.
pub fn unmap(ptr: DevicePtr, len: u64) -> Result<()> {
    chosen().operate(Operation::Unmap, ptr, len)
}

/// Whether an address lies in a mapping. Takes no lock, and some nanoseconds where nothing is mapped near it. What
/// another library has mapped is known from the first call on that this one had anything to do with.
#[inline]
pub fn holds(address: u64) -> bool {
    let chosen = CHOSEN.load(Ordering::Acquire);
    // SAFETY: a table stays, and its library, too.
    !chosen.is_null() && unsafe { &*chosen }.holds(address)
}

/// What has happened to pages since the cache was made, and what it holds by device, of those that something was mapped
/// on.
///
/// # Errors
/// As [`cache`].
pub fn statistics() -> Result<Snapshot> {
    chosen().statistics()
}

/// Whose cache is used: that of the first who asked.
fn chosen() -> &'static Calls {
    let known = CHOSEN.load(Ordering::Acquire);
    if known.is_null() {
        return choose();
    }
    // SAFETY: as above.
    unsafe { &*known }
}

#[cold]
fn choose() -> &'static Calls {
    let own = (&raw const OWN).cast_mut();
    let first = offered().map_or(own, |place| {
        // Before others can have it.
        if place.load(Ordering::Acquire).is_null() {
            stay_loaded();
        }
        let won = place.compare_exchange(std::ptr::null_mut(), own.cast(), Ordering::AcqRel, Ordering::Acquire);
        won.err().map_or(own, <*mut c_void>::cast)
    });
    // SAFETY: a table begins with its version, whatever that is.
    let is_mine_to_call = unsafe { first.cast::<u64>().read() } == VERSION;
    let chosen = if is_mine_to_call { first } else { own };
    CHOSEN.store(chosen, Ordering::Release);
    // SAFETY: as above, of this version.
    unsafe { &*chosen }
}

/// Keeps the library with this code from being unloaded. A program is not one.
fn stay_loaded() {
    // SAFETY: zeroes are a valid value, and asking for an address of ours fills it.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr((&raw const OWN).cast(), &raw mut found) != 0 && !found.dli_fname.is_null() {
            libc::dlopen(found.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}
