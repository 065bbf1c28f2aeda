//! Registered file mappings, and copies from them that survive the truncation of their file.

use super::lock::lock;
use crate::fork::Birth;
use crate::{Capability, Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

/// Registered file mappings, of all devices: copies from them, to any device, must survive a truncation.
static REGISTERED: Mutex<Registrations> = Mutex::new(Registrations(BTreeMap::new()));

/// By address; no two overlap.
struct Registrations(BTreeMap<u64, Registration>);

struct Registration {
    len: u64,
    birth: Birth,
}

impl Registrations {
    /// No byte is registered twice: what ends first would end both. What the process registered that this one was forked
    /// from ends nowhere here, and its place may hold another mapping by now: it gives way.
    fn add(&mut self, address: u64, len: u64) -> Result<()> {
        let end = address.saturating_add(len);
        while let Some((&start, before)) = self.0.range(..end).next_back()
            && start + before.len > address
        {
            if !before.birth.was_elsewhere() {
                let detail = format!(
                    "registering {len} bytes of a file mapping at {address:#x} failed: a part of it is registered already"
                );
                return Err(Error::new(ErrorKind::BadArgument, detail));
            }
            self.0.remove(&start);
        }
        self.0.insert(address, Registration { len, birth: Birth::here() });
        Ok(())
    }

    fn has(&self, address: u64) -> bool {
        self.0.range(..=address).next_back().is_some_and(|(start, found)| address < start + found.len)
    }
}

/// Registers `len` bytes at `address`, of which none is registered.
pub(super) fn register(address: u64, len: u64) -> Result<()> {
    lock(&REGISTERED).add(address, len)
}

/// Ends the registration at `address`.
pub(super) fn unregister(address: u64) {
    lock(&REGISTERED).0.remove(&address);
}

/// Whether an address lies in one of them.
pub(super) fn is_registered(address: u64) -> bool {
    lock(&REGISTERED).has(address)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a child could not register a file mapping at an address that its parent had registered. Cause: what the
    /// child drops of its parent's leaves the parent's entry.
    #[test]
    fn what_a_parent_registered_gives_way_in_a_child() {
        let mut registrations = Registrations(BTreeMap::new());
        registrations.add(0x1000, 0x1000).unwrap();
        registrations.add(0x3000, 0x1000).unwrap();
        assert_eq!(registrations.add(0x3800, 0x1000).unwrap_err().kind(), ErrorKind::BadArgument);
        // SAFETY: the child has one thread, which uses memory, takes no lock, and ends without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = registrations.add(0x1800, 0x2000).is_ok()
                && registrations.add(0x1000, 0x1000).is_err()
                && registrations.add(0x1000, 0x800).is_ok()
                && [0x1000, 0x1800, 0x37ff].into_iter().all(|address| registrations.has(address))
                && !registrations.has(0x3800);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        assert!(registrations.add(0x1000, 0x1000).is_err());
    }
}
