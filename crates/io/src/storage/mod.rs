//! How bytes leave files: the system calls behind the engines, as traits, so that a test can put
//! a fault injector in their place.

mod os;
mod threads;
mod uring;

pub use os::OsStorage;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;

/// Reading of open files.
pub trait Storage: Send + Sync + Debug {
    /// `pread(2)`: may be short; 0 at the end of the file.
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// `preadv2(2)` with `RWF_NOWAIT`: only what is in the page cache. `WouldBlock` where the
    /// first byte is not; `Unsupported` where the file system cannot say.
    fn read_cached_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// A queue for unbuffered reads of up to `depth` at a time.
    fn open_queue(&self, depth: u32) -> io::Result<Box<dyn ReadQueue>>;
}

/// Asynchronous reads, completed in any order.
pub trait ReadQueue: Send + Debug {
    /// Tells the queue that slot `index` is this memory, so that it may be pinned once for all
    /// reads. Best effort: a queue that cannot do it reads without.
    ///
    /// # Safety
    /// The memory stays valid and in place for the life of the queue.
    unsafe fn register_slot(&mut self, index: usize, start: *mut u8, len: usize);

    /// Starts a read. There is room for `depth` of them.
    ///
    /// # Safety
    /// The descriptor and the memory stay valid, and the memory untouched, until the read has
    /// been reported by [`ReadQueue::wait`].
    unsafe fn submit(&mut self, read: QueuedRead) -> io::Result<()>;

    /// Waits for at least one read and appends what completed: token, and bytes or error.
    fn wait(&mut self, done: &mut Vec<(u64, io::Result<usize>)>) -> io::Result<()>;
}

/// One asynchronous read.
#[derive(Debug, Clone, Copy)]
pub struct QueuedRead {
    /// An open descriptor, with `O_DIRECT` for unbuffered reads.
    pub fd: RawFd,
    /// Where the bytes go; aligned as the file system asks.
    pub memory: *mut u8,
    /// Bytes wanted.
    pub len: usize,
    /// Offset in the file.
    pub offset: u64,
    /// The slot that `memory` lies in.
    pub slot: usize,
    /// Returned with the completion.
    pub token: u64,
}

// SAFETY: the pointer is an address handed to the kernel or to a reading thread; who may touch it
// when is the contract of `submit`.
unsafe impl Send for QueuedRead {}
