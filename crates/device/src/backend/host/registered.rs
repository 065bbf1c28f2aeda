//! Registered file mappings, and copies from them that survive the truncation of their file.

use super::lock::lock;
use crate::Capability;
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

/// Registered file mappings, of all devices: copies from them, to any device, must survive a truncation.
static REGISTERED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Registers `len` bytes at `address`.
pub(super) fn register(address: u64, len: u64) {
    lock(&REGISTERED).insert(address, len);
}

/// Ends the registration at `address`.
pub(super) fn unregister(address: u64) {
    lock(&REGISTERED).remove(&address);
}

/// Whether an address lies in one of them.
pub(super) fn is_registered(address: u64) -> bool {
    let registered = lock(&REGISTERED);
    registered.range(..=address).next_back().is_some_and(|(start, len)| address < start + len)
}

/// Copies within this process through the kernel, which turns a page that is gone into an error.
///
/// # Safety
/// `dst` is valid for `len` bytes.
pub(super) unsafe fn copy_checked(dst: u64, src: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let local = libc::iovec { iov_base: (dst + done) as *mut libc::c_void, iov_len: (len - done) as usize };
        let remote = libc::iovec { iov_base: (src + done) as *mut libc::c_void, iov_len: (len - done) as usize };
        // SAFETY: `local` is valid by the caller's promise; a bad `remote` is reported, not touched.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        if copied <= 0 {
            return Err(io::Error::last_os_error());
        }
        done += copied as u64;
    }
    Ok(())
}

/// Some containers forbid `process_vm_readv`; without it a truncated file would kill the process,
/// so file mappings are then not offered at all.
pub(super) fn copies_work() -> Capability {
    let (source, mut target) = (0x5a_u8, 0_u8);
    // SAFETY: `target` is one writable byte, `source` one readable byte.
    let copied = unsafe { copy_checked(&raw mut target as u64, &raw const source as u64, 1) };
    match copied {
        Ok(()) if target == source => Capability::YES,
        Ok(()) => Capability::no("process_vm_readv does not copy within this process"),
        Err(error) => Capability::no(format!("process_vm_readv is refused here: {error}")),
    }
}
