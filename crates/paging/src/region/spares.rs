//! Blocks of memory between a region and the device. One that leaves is moved here, where nobody writes to it while it is
//! copied; its pages are moved on with what comes next. So pages are neither freed nor made anew: the kernel takes 23 us to
//! make 16 and copy 64 KiB to them (`UFFDIO_COPY`), but 11 us for a copy to pages that are there and their move.

use super::Mapping;
use super::uffd::Uffd;
use crate::pages::BLOCK_BYTES;
use bifolio_device::Result;
use std::io;
use std::time::Duration;

/// How many there are.
pub(super) const SPARES: usize = 8;

#[derive(Debug)]
pub(super) struct Spares {
    /// Addresses of those with pages.
    ready: Vec<u64>,
    empty: Vec<u64>,
    memory: Mapping,
}

impl Spares {
    /// None with pages.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(uffd: &Uffd) -> Result<Self> {
        let len = SPARES as u64 * BLOCK_BYTES;
        let memory = Mapping::new(len as usize)?;
        let start = memory.start as u64;
        uffd.register(start, len)?;
        let empty = (0..SPARES as u64).map(|spare| start + spare * BLOCK_BYTES).collect();
        Ok(Self { ready: Vec::with_capacity(SPARES), empty, memory })
    }

    /// How many have pages.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Whether an address is in one of them.
    pub(super) fn has(&self, address: u64) -> bool {
        address.wrapping_sub(self.memory.start as u64) < self.memory.len as u64
    }

    /// Keeps the pages of so many at most.
    pub(super) fn trim(&mut self, most: usize) {
        while self.ready.len() > most
            && let Some(spare) = self.ready.pop()
        {
            forget(spare);
            self.empty.push(spare);
        }
    }

    /// Gives a block that is not there its content, and wakes who waits for it; whether there were pages for it.
    pub(super) fn give(&mut self, uffd: &Uffd, start: u64, content: &[u8]) -> io::Result<bool> {
        let Some(spare) = self.ready.pop() else { return Ok(false) };
        assert_eq!(content.len() as u64, BLOCK_BYTES, "a block is given whole");
        // SAFETY: its pages are there, and nobody else has the address.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), spare as *mut u8, content.len()) };
        let given = uffd.shift(spare, start, BLOCK_BYTES, true).1;
        if given.is_err() {
            // Who was given a part has what they are to have.
            forget(spare);
        }
        self.empty.push(spare);
        given.map(|()| true)
    }

    /// Moves a block away from everybody. It stays where it was if this fails, or if somebody has pinned a page of it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn take(&mut self, uffd: &Uffd, start: u64) -> io::Result<Taken> {
        if self.empty.is_empty() {
            self.trim(SPARES - 1);
        }
        let Some(spare) = self.empty.pop() else { return Ok(Taken::Pinned) };
        let (moved, result) = uffd.shift(start, spare, BLOCK_BYTES, false);
        let Err(error) = result else { return Ok(Taken::At(spare)) };
        if let Err(error) = self.put_back(uffd, spare, start, moved) {
            return Ok(Taken::Broken(error));
        }
        if error.raw_os_error() == Some(libc::EBUSY) { Ok(Taken::Pinned) } else { Err(error) }
    }

    /// The same where the kernel cannot move pages and leave their place registered, but can move a mapping's (since 5.7): what is
    /// missing here reads as zeroes, and nobody is told of faults.
    ///
    /// # Errors
    /// The system's; the block stays.
    pub(super) fn take_as_a_whole(&mut self, start: u64) -> io::Result<Taken> {
        let Some(spare) = self.empty.pop() else { return Ok(Taken::Pinned) };
        let (len, flags) = (BLOCK_BYTES as usize, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP);
        // SAFETY: the block is the region's, which stays mapped there, without pages; what was mapped at the spare is ours and empty.
        let moved = unsafe { libc::mremap(start as *mut libc::c_void, len, len, flags, spare as *mut libc::c_void) };
        if moved == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            self.empty.push(spare);
            return Err(error);
        }
        Ok(Taken::At(spare))
    }

    /// A block that was taken is not needed any more, but its pages, where they can be moved to another one.
    pub(super) fn keep(&mut self, uffd: &Uffd, spare: u64) {
        if uffd.can_move {
            return self.ready.push(spare);
        }
        forget(spare);
        self.empty.push(spare);
    }

    /// A block that was taken goes back, and who waits for it is woken up.
    ///
    /// # Errors
    /// The system's. A part of the block is lost then.
    pub(super) fn return_to(&mut self, uffd: &Uffd, spare: u64, start: u64) -> io::Result<()> {
        self.put_back(uffd, spare, start, BLOCK_BYTES)
    }

    /// The first `len` bytes of a spare go to their block: moved, and copied where they cannot be moved.
    fn put_back(&mut self, uffd: &Uffd, spare: u64, start: u64, len: u64) -> io::Result<()> {
        let mut done = 0;
        let back = patiently(|| {
            let (moved, result) = uffd.shift(spare + done, start + done, len - done, true);
            done += moved;
            result.or_else(|_| {
                // SAFETY: what has not moved is there, and nobody else has the address.
                let rest = unsafe { std::slice::from_raw_parts((spare + done) as *const u8, (len - done) as usize) };
                uffd.fill(start + done, rest, false)
            })
        });
        forget(spare);
        self.empty.push(spare);
        back
    }
}

/// What became of a block that was to be moved away.
pub(super) enum Taken {
    /// It is here.
    At(u64),
    /// Somebody has a page of it pinned.
    Pinned,
    /// A part of it was away, and could not be brought back.
    Broken(io::Error),
}

/// Tries what needs memory for a moment, as there may be some again, and then fails as it did last.
pub(super) fn patiently(mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for pause_ms in [0, 1, 2, 4, 8, 16, 32] {
        if attempt().is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    attempt()
}

/// Lets go of a block's pages.
pub(super) fn forget(start: u64) {
    // SAFETY: the range is a block of the region or a spare one, and its content is not needed or kept elsewhere.
    unsafe { libc::madvise(start as *mut libc::c_void, BLOCK_BYTES as usize, libc::MADV_DONTNEED) };
}
