//! A region of memory that may be larger than what of it is in memory: what has not been used for longest is on a device.
//!
//! ```text
//!   mod         the region: addresses, budget, statistics
//!   pager       the thread that answers its page faults
//!   residency   which blocks are where, and who leaves next (pure)
//!   spares      pages between the region and the device
//!   uffd        page faults of a range of addresses (userfaultfd)
//! ```
//!
//! For programs that need more memory than there is, and are not to use the system's swap. Blocks of 64 KiB come when they
//! are touched and leave in the order in which they came, but for those that were written to, which have one more turn. What
//! has only zeroes needs no device memory. Before Linux 6.8, which can move pages, a block that was only read since it came
//! leaves without a copy.
//!
//! Direct I/O and drivers pin pages, and write to them whatever the page table says. A block with a page that is pinned stays
//! until it is not. Before Linux 6.8 nothing tells: what they write to a block that leaves meanwhile is lost.
//!
//! The device has the only copy of what is not in memory. Where it does not take a block, the block stays, and the region is
//! larger than its budget; where it does not give one back, who touches it gets a signal (SIGBUS), and
//! [`Region::take_trouble`] says why. Nobody is ever shown other bytes than those that were written.

mod pager;
mod residency;
mod spares;
#[cfg(test)]
mod tests;
mod uffd;

pub use pager::RegionStatistics;

use crate::cache::chunk_bytes;
use crate::pages::BLOCK_BYTES;
use crate::store::Store;
use bifolio_device::fork::Birth;
use bifolio_device::{Device, Error, ErrorKind, Result, without_signals};
use pager::{Pager, Shared};
use rustix::event::{EventfdFlags, eventfd};
use spares::Spares;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use uffd::Uffd;

/// The smallest budget: a fault of an instruction at the border of two blocks, and some to go on with.
pub const BUDGET_MIN: u64 = 8 * BLOCK_BYTES;

/// The largest region: 16 TiB, more than devices have.
pub const BYTES_MAX: u64 = 16 << 40;

/// How large a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionOptions {
    /// Its bytes; more than none, and at most [`BYTES_MAX`]. They are rounded up to blocks of 64 KiB.
    pub bytes: u64,
    /// How many of them may be in memory, at least [`BUDGET_MIN`].
    pub budget: u64,
    /// How many of them may be on the device.
    pub device_bytes: u64,
}

/// Memory of this process, a part of which is on a device. It is not there for a child of `fork`: who touches it there gets
/// a signal (SIGSEGV), and dropping it there does nothing.
#[derive(Debug)]
pub struct Region {
    memory: Mapping,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    len: usize,
}

/// Anonymous memory.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    len: usize,
    birth: Birth,
}

// SAFETY: it is memory like any other, and whoever has the value decides who uses it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> Result<Self> {
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // A block more, so that blocks begin at their multiples.
        let all = len + BLOCK_BYTES as usize;
        // SAFETY: new memory, where the kernel likes.
        let found = unsafe { libc::mmap(std::ptr::null_mut(), all, rights, flags, -1, 0) };
        let last = std::io::Error::last_os_error;
        if found == libc::MAP_FAILED {
            return Err(Error::system(format_args!("reserving {len} bytes of addresses"), last()));
        }
        let start = (found as usize).next_multiple_of(BLOCK_BYTES as usize);
        let before = start - found as usize;
        // SAFETY: both parts are of the mapping, and outside of what is kept.
        unsafe {
            if before > 0 {
                libc::munmap(found, before);
            }
            libc::munmap((start + len) as *mut libc::c_void, all - before - len);
        }
        let memory = Self { start: start as *mut u8, len, birth: Birth::here() };
        for (advice, doing) in [
            (libc::MADV_NOHUGEPAGE, "keeping huge pages out of a region"),
            (libc::MADV_DONTFORK, "keeping a region from children"),
        ] {
            // SAFETY: the range is the mapping's. A kernel without huge pages does not know the first advice.
            let done = unsafe { libc::madvise(memory.start.cast(), len, advice) };
            if done < 0 && advice == libc::MADV_DONTFORK {
                return Err(Error::system(doing, last()));
            }
        }
        Ok(memory)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A child may have other memory at these addresses.
        if !self.birth.was_elsewhere() {
            // SAFETY: it is ours, and whoever had its bytes had borrowed it.
            unsafe { libc::munmap(self.start.cast(), self.len) };
        }
    }
}

impl Region {
    /// A region of zeroes.
    ///
    /// # Errors
    /// `BadArgument` for sizes that cannot be; the device's; the system's, where it does not hand page faults over.
    pub fn new(device: &Device, options: RegionOptions) -> Result<Self> {
        Self::of_kernel(device, options, true)
    }

    /// As on kernels that cannot move pages, if they may not be moved.
    fn of_kernel(device: &Device, options: RegionOptions, may_move: bool) -> Result<Self> {
        let RegionOptions { bytes, budget, device_bytes } = options;
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        if bytes == 0 || bytes > BYTES_MAX || budget < BUDGET_MIN {
            let detail = format!(
                "a region of {bytes} bytes with a budget of {budget} cannot be: 1 to {BYTES_MAX} bytes, and at least {BUDGET_MIN} in memory"
            );
            return Err(Error::new(ErrorKind::BadArgument, detail));
        }
        let device_bytes = device_bytes.min(blocks * BLOCK_BYTES).max(1);
        let chunk = chunk_bytes(device_bytes);
        let chunks = device_bytes.div_ceil(chunk) as u32;
        let store = Store::new(device, chunk, chunks)?;
        let memory = Mapping::new((blocks * BLOCK_BYTES) as usize)?;
        let start = memory.start as u64;
        let uffd = Uffd::new(start, blocks * BLOCK_BYTES, may_move)?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::system("making an event", error.into()))?;
        let spares = Spares::new(&uffd)?;
        let shared = Arc::new(Shared::new(uffd, store, start, (budget / BLOCK_BYTES) as usize, bell));
        let pager = Pager::new(blocks as u32, chunks, (chunk / BLOCK_BYTES) as u32, spares);
        let of_thread = Arc::clone(&shared);
        let name = || std::thread::Builder::new().name("bifolio-paging".to_owned());
        let thread = without_signals(|| name().spawn(move || pager.run(&of_thread)))
            .map_err(|error| Error::system("starting the thread of a region", error))?;
        Ok(Self { memory, shared, thread: Some(thread), len: bytes as usize })
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none, which cannot be.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins: at a multiple of 64 KiB.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.start
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: they are there as long as it is, and who writes to them has borrowed it for that.
        unsafe { std::slice::from_raw_parts(self.memory.start, self.len) }
    }

    /// Its bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start, self.len) }
    }

    /// Whether system calls may be given its bytes; else such a call fails with EFAULT where it meets a page that is not in
    /// memory (`vm.unprivileged_userfaultfd`, or a right to `/dev/userfaultfd`, lets them).
    pub fn serves_system_calls(&self) -> bool {
        self.shared.uffd.in_system_calls
    }

    /// From now on so many bytes may be in memory, at least [`BUDGET_MIN`]; others leave soon.
    pub fn set_budget(&self, bytes: u64) {
        self.shared.set_budget((bytes.max(BUDGET_MIN) / BLOCK_BYTES) as usize);
    }

    /// What has happened to it. Counts are of a moment ago.
    pub fn statistics(&self) -> RegionStatistics {
        self.shared.statistics()
    }

    /// What went wrong first since this was asked last; a sentence without its full stop.
    pub fn take_trouble(&self) -> Option<String> {
        self.shared.take_trouble()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A child has not got the thread, and shares its bell with the parent's.
        if self.memory.birth.was_elsewhere() {
            return;
        }
        self.shared.ends.store(true, Ordering::Release);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
