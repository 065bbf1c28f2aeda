//! Memory that a queue's requests lie in: descriptors, which the kernel writes, and bytes, which both sides write in turn.
//!
//! A request is one side's at a time: the kernel's until it has been taken, then that of the thread that answers it, and
//! the kernel's again from its answer on. Every function that hands out bytes relies on that.

use super::abi::Descriptor;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Mapped memory.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: memory by itself; who accesses it says why that is sound.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags | libc::MAP_POPULATE, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast())
            .map(|base| Self { base, len })
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes of requests, by their tags.
#[derive(Debug)]
pub(super) struct Bytes {
    memory: Mapping,
    each: usize,
}

impl Bytes {
    /// Memory for so many requests, all of it touched.
    pub(super) fn new(count: u16, each: u32) -> io::Result<Self> {
        let (each, count) = (each as usize, usize::from(count));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Ok(Self { memory: Mapping::new(each * count, libc::PROT_READ | libc::PROT_WRITE, flags, -1)?, each })
    }

    /// How many bytes a request has room for.
    pub(super) fn each(&self) -> usize {
        self.each
    }

    /// Where a request's bytes are.
    pub(super) fn address(&self, tag: u16) -> u64 {
        self.memory.base.as_ptr() as u64 + u64::from(tag) * self.each as u64
    }

    /// A request's first bytes.
    ///
    /// # Safety
    /// The request was taken, is answered by this thread, and nobody else has its bytes.
    #[allow(clippy::mut_from_ref, reason = "who answers a request has its bytes alone")]
    pub(super) unsafe fn of(&self, tag: u16, len: usize) -> &mut [u8] {
        let start = usize::from(tag) * self.each;
        assert!(len <= self.each && start + self.each <= self.memory.len, "a request has room for its bytes");
        // SAFETY: the range is inside the mapping, and this thread's alone, as the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base.as_ptr().add(start), len) }
    }
}

/// What requests want, by their tags.
#[derive(Debug)]
pub(super) struct Descriptors {
    memory: Mapping,
}

impl Descriptors {
    /// Those of a device's first queue.
    pub(super) fn map(device: &File, count: u16) -> io::Result<Self> {
        let len = (usize::from(count) * size_of::<Descriptor>()).next_multiple_of(PAGE);
        Ok(Self { memory: Mapping::new(len, libc::PROT_READ, libc::MAP_SHARED, device.as_raw_fd())? })
    }

    /// The request of this tag, which was taken.
    pub(super) fn get(&self, tag: u16) -> Descriptor {
        let at = usize::from(tag) * size_of::<Descriptor>();
        assert!(at + size_of::<Descriptor>() <= self.memory.len, "a tag is smaller than the depth");
        #[allow(clippy::cast_ptr_alignment, reason = "a mapping begins at a page, and descriptors have whole words")]
        let place = self.memory.base.as_ptr().wrapping_add(at).cast::<Descriptor>();
        // SAFETY: inside the mapping, aligned to 8 bytes, any bytes are a value, and the kernel writes it before it gives the
        // request out only.
        unsafe { place.read_volatile() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_bytes_of_their_own_at_page_boundaries() {
        let bytes = Bytes::new(3, 8192).unwrap();
        for tag in 0..3 {
            assert_eq!(bytes.address(tag) % 4096, 0);
            // SAFETY: no request is there, and one thread.
            unsafe { bytes.of(tag, 8192) }.fill(tag as u8 + 1);
        }
        for tag in 0..3 {
            // SAFETY: as above.
            let own = unsafe { bytes.of(tag, 8192) };
            assert!(own.iter().all(|byte| *byte == tag as u8 + 1));
            assert_eq!(own.as_ptr() as u64, bytes.address(tag));
        }
    }
}
