//! Memory that stays in memory while no worker has it mapped.
//!
//! A worker locks what it maps. When it dies, the pages of shared memory are nobody's for a moment, and the system may write
//! them out: to the very swap that its successor is to serve, which would wait for itself as soon as it touched one. So
//! the keeper maps what it holds, too, and locks it. Device memory of a GPU is none that the system writes out, and cannot
//! be mapped like this.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

/// A read-only mapping whose pages stay in memory.
#[derive(Debug)]
pub(crate) struct LockedPages {
    base: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: the mapping is never accessed.
unsafe impl Send for LockedPages {}

impl LockedPages {
    /// Locks the pages of shared memory; none for another descriptor, or where so much must not be locked.
    pub(crate) fn of(fd: &impl AsFd) -> Option<Self> {
        let raw = fd.as_fd().as_raw_fd();
        // Only shared memory has seals, if only none.
        // SAFETY: takes no argument and changes nothing.
        if unsafe { libc::fcntl(raw, libc::F_GET_SEALS) } < 0 {
            return None;
        }
        // SAFETY: plain old data, for which zeroes are a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the structure is filled.
        let len = if unsafe { libc::fstat(raw, &raw mut stat) } == 0 { stat.st_size as usize } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours; without a length it is refused.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, raw, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let locked = Self { base: NonNull::new(base)?, len };
        // SAFETY: the mapping is ours.
        (unsafe { libc::mlock(base, len) } == 0).then_some(locked)
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody uses it.
        unsafe { libc::munmap(self.base.as_ptr(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedMemory;

    fn locked_kib() -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn shared_memory_is_locked_as_long_as_it_is_held_and_files_are_left_alone() {
        assert!(LockedPages::of(&std::fs::File::open("/dev/null").unwrap()).is_none());
        let memory = SharedMemory::create("locked", 8 * 512).unwrap();
        let before = locked_kib();
        let Some(locked) = LockedPages::of(&memory) else {
            return bifolio_testing::skip("no memory may be locked here");
        };
        assert_eq!(locked_kib(), before + 32);
        drop(locked);
        assert_eq!(locked_kib(), before);
    }
}
