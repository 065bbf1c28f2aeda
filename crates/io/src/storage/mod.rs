//! How bytes leave files and get into them: the system calls behind the engines, as traits, so that a test can put
//! a fault injector in their place.

mod os;
mod threads;
mod uring;

pub use os::OsStorage;
pub(crate) use os::read_cached_by;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;

/// Reading and writing of open files.
pub trait Storage: Send + Sync + Debug {
    /// `pread(2)`: may be short; 0 at the end of the file.
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// `preadv2(2)` with `RWF_NOWAIT`: only what is in the page cache. `WouldBlock` where the
    /// first byte is not; `Unsupported` where the file system cannot say.
    fn read_cached_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// `pwrite(2)`: may be short.
    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize>;

    /// `fdatasync(2)`: everything written so far survives a loss of power.
    fn sync_data(&self, file: &File) -> io::Result<()>;

    /// `fallocate(2)` that extends the file: blocks for the range, or an error before anything is
    /// written. `Unsupported` where the file system has no such call.
    fn allocate(&self, file: &File, offset: u64, len: u64) -> io::Result<()>;

    /// A queue for unbuffered reads and writes of up to `depth` at a time.
    fn open_queue(&self, depth: u32) -> io::Result<Box<dyn IoQueue>>;
}

/// Asynchronous reads and writes, completed in any order.
pub trait IoQueue: Send + Debug {
    /// Tells the queue that slot `index` is this memory, so that it may be pinned once for all
    /// transfers. Best effort: a queue that cannot do it works without.
    ///
    /// # Safety
    /// The memory stays valid and in place for the life of the queue.
    unsafe fn register_slot(&mut self, index: usize, start: *mut u8, len: usize);

    /// Adds a transfer, which starts at the next [`IoQueue::flush`] or [`IoQueue::wait`], or before.
    /// There is room for `depth` of them.
    ///
    /// # Safety
    /// The descriptor and the memory stay valid, and the memory untouched, until the transfer has
    /// been reported by [`IoQueue::wait`].
    unsafe fn submit(&mut self, transfer: QueuedIo) -> io::Result<()>;

    /// Starts what was submitted, for callers that have other work to do before they wait.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Waits for at least one transfer and appends what completed: token, and bytes or error.
    fn wait(&mut self, done: &mut Vec<(u64, io::Result<usize>)>) -> io::Result<()>;
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}

/// One asynchronous transfer.
#[derive(Debug, Clone, Copy)]
pub struct QueuedIo {
    /// Which way.
    pub direction: Direction,
    /// An open descriptor, with `O_DIRECT` for unbuffered transfers.
    pub fd: RawFd,
    /// Where the bytes go or come from; aligned as the file system asks.
    pub memory: *mut u8,
    /// Bytes to move.
    pub len: usize,
    /// Offset in the file.
    pub offset: u64,
    /// The slot that `memory` lies in.
    pub slot: usize,
    /// Returned with the completion.
    pub token: u64,
}

// SAFETY: the pointer is an address handed to the kernel or to a thread of the queue; who may touch it
// when is the contract of `submit`.
unsafe impl Send for QueuedIo {}
