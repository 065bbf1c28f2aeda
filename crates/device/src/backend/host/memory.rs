//! Memory of the process as memory of a device: how much there is, and mapping it.

use crate::{DevicePtr, Error, ErrorKind, Result};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names the memory of `host` devices, in bytes with an optional suffix: `64M`.
const MEMORY_VARIABLE: &str = "BIFOLIO_HOST_MEMORY";

/// Bytes in use out of a fixed total: the device runs out as a GPU does.
#[derive(Debug)]
pub(super) struct MemoryAccount {
    total: u64,
    used: AtomicU64,
}

impl MemoryAccount {
    pub(super) fn new(total: u64) -> Self {
        Self { total, used: AtomicU64::new(0) }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn free(&self) -> u64 {
        self.total.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    pub(super) fn take(&self, len: u64) -> Result<()> {
        let fits = |used: u64| used.checked_add(len).filter(|&sum| sum <= self.total);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(|_| ()).map_err(|used| {
            let free = self.total.saturating_sub(used);
            let detail = format!("out of device memory: {len} bytes requested, {free} of {} bytes free", self.total);
            Error::new(ErrorKind::OutOfMemory, detail)
        })
    }

    pub(super) fn give(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }
}

/// What a device has by default: what the variable says, else what the machine has available.
pub(super) fn memory_by_default() -> u64 {
    memory_from_environment().unwrap_or_else(available_memory)
}

fn memory_from_environment() -> Option<u64> {
    let text = std::env::var(MEMORY_VARIABLE).ok()?;
    let digits = text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']);
    let shift = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
    };
    field("MemAvailable:").or_else(|| field("MemTotal:")).map_or(1 << 30, |kib| kib << 10)
}

/// New memory at an address of the kernel's choice.
pub(super) fn map_anonymous(len: usize, protection: i32) -> Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(Error::last_os(format_args!("mapping {len} bytes of host memory")));
    }
    NonNull::new(address.cast()).ok_or_else(|| Error::new(ErrorKind::System, "the kernel mapped address 0"))
}

/// Takes the pages of new memory from the system at once, as allocating does on a GPU: otherwise whoever first writes to
/// it pays for them, 0.7 s/GiB on two virtual cores, and a read would be measured with what is none of it.
pub(super) fn populate(start: NonNull<u8>, len: usize) {
    // SAFETY: the range is a mapping of ours without content. A kernel before 5.14 refuses, and pages come when touched.
    unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
}

/// Removes a mapping.
///
/// # Safety
/// The range is a mapping of ours that nobody uses any more.
pub(super) unsafe fn unmap(address: u64, len: u64) -> Result<()> {
    // SAFETY: the caller's promise.
    if len > 0 && unsafe { libc::munmap(address as *mut libc::c_void, len as usize) } != 0 {
        return Err(Error::last_os("unmapping host memory"));
    }
    Ok(())
}

/// Maps a file, or emptiness, over what is at a place.
///
/// # Safety
/// `ptr` is a place of `len` bytes inside a reserved range whose present content nobody uses.
pub(super) unsafe fn map_fixed(ptr: DevicePtr, len: u64, protection: i32, flags: i32, fd: i32) -> Result<()> {
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    let mapped = unsafe { libc::mmap(ptr.0 as *mut libc::c_void, len as usize, protection, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(Error::last_os("mapping a frame")) } else { Ok(()) }
}
