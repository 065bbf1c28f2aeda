//! Memory that several processes map and that lives as long as any descriptor of it: where a worker keeps what its
//! successor has to know.
//!
//! It is a sequence of 64-bit words, and every access is atomic: a process that is killed between two stores leaves each
//! word as it was before or after, never half of both. Which words mean what, and in which order they are written so that
//! a successor can make sense of them, is up to the user. The length is sealed, so that no holder of the descriptor can
//! take pages away from under another's mapping.

use crate::{Error, ErrorKind, Result};
use std::ffi::CString;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A mapping of shared memory; dropping it unmaps it, and the memory stays for others.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is plain memory that is accessed by atomic operations only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory of `words` zeroes, at least one.
    ///
    /// # Errors
    /// The system's.
    pub fn create(name: &str, words: usize) -> Result<Self> {
        let name = CString::new(name).map_err(|_| Error::new(ErrorKind::BadUse, "a name has no zero byte"))?;
        // SAFETY: the name is a C string, which the call copies.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if raw < 0 {
            return Err(Error::last_os("making shared memory (memfd)"));
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let bytes = (words.max(1) * size_of::<u64>()) as i64;
        // SAFETY: plain calls on an open descriptor.
        let sized = unsafe { libc::ftruncate(raw, bytes) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) == 0 };
        if !sized {
            return Err(Error::last_os(format_args!("sizing {bytes} bytes of shared memory")));
        }
        Self::map(fd)
    }

    /// Maps memory that another process made.
    ///
    /// # Errors
    /// `Damaged` for a descriptor whose length could change, and the system's.
    pub fn map(fd: OwnedFd) -> Result<Self> {
        // SAFETY: takes no argument and changes nothing.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(Error::new(ErrorKind::Damaged, "the descriptor is not of sealed shared memory"));
        }
        let file = File::from(fd);
        let bytes = file.metadata().map_err(|error| Error::system("asking for the size of shared memory", error))?;
        let bytes = bytes.len() as usize;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        match NonNull::new(base.cast::<AtomicU64>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Self { fd: file.into(), base, words: bytes / size_of::<u64>() })
            }
            _ => Err(Error::last_os(format_args!("mapping {bytes} bytes of shared memory"))),
        }
    }

    /// Maps what another process has open, by its name in `/proc`.
    ///
    /// # Errors
    /// Those of [`SharedMemory::map`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        Self::map(file.map_err(|error| Error::system(format_args!("opening {}", path.display()), error))?.into())
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this length, which is sealed, for as long as `self` lives; it is aligned to a page, and
        // all accesses to it, here and in other processes, are atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl SharedMemory {
    /// Gives the memory of some words back: they are zeroes from then on, for all. Of pages of memory that are in the range in
    /// part the words become zeroes alone. Nobody uses them meanwhile.
    pub fn give_back(&self, words: Range<usize>) {
        let bytes = |words: usize| (words.min(self.words) * size_of::<u64>()) as i64;
        let (start, end) = (bytes(words.start), bytes(words.end));
        if start < end {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: takes numbers; the words stay mapped, and are read as zeroes.
            let done = unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, start, end - start) };
            // Such memory has holes wherever it may be made; without them it is kept.
            debug_assert_eq!(done, 0);
        }
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody borrows it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_mapping_stores_another_sees_after_the_first_has_gone() {
        let first = SharedMemory::create("test", 1000).unwrap();
        let second = SharedMemory::map(first.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(second.words().len(), 1000);
        first.words()[999].store(7, Ordering::Release);
        drop(first);
        assert_eq!(second.words()[999].load(Ordering::Acquire), 7);
    }

    #[test]
    fn memory_that_is_given_back_is_taken_no_longer_and_reads_as_zeroes() {
        use std::os::unix::fs::MetadataExt;
        let memory = SharedMemory::create("test", 10 * 512).unwrap();
        let taken = || File::from(memory.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().blocks() * 512;
        memory.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
        assert_eq!(taken(), 10 * 4096);
        memory.give_back(512..3 * 512);
        memory.give_back(9 * 512..usize::MAX);
        memory.give_back(5..5);
        assert_eq!(taken(), 7 * 4096);
        for (at, word) in memory.words().iter().enumerate() {
            let is_back = matches!(at / 512, 1 | 2 | 9);
            assert_eq!(word.load(Ordering::Relaxed), if is_back { 0 } else { 7 });
        }
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(SharedMemory::map(file.into()).unwrap_err().kind(), ErrorKind::Damaged);
    }
}
