//! The operating system's own calls.

use super::{IoQueue, Storage, threads::ThreadQueue, uring::UringQueue};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `pread`, `preadv2` and `io_uring`, with threads where a container refuses `io_uring`.
#[derive(Debug, Default, Clone, Copy)]
pub struct OsStorage;

impl Storage for OsStorage {
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the buffer is valid for writes of its length, the descriptor is open.
        retry(|| unsafe { libc::pread(file.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), offset as i64) })
    }

    fn read_cached_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: the vector names one buffer that is valid for writes, the descriptor is open.
        retry(|| unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset as i64, libc::RWF_NOWAIT) })
    }

    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the buffer is valid for reads of its length, the descriptor is open.
        retry(|| unsafe { libc::pwrite(file.as_raw_fd(), buffer.as_ptr().cast(), buffer.len(), offset as i64) })
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn allocate(&self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        // SAFETY: a request on an open descriptor.
        let allocate = || unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as i64, len as i64) as isize };
        retry(allocate).map(drop)
    }

    fn open_queue(&self, depth: u32) -> io::Result<Box<dyn IoQueue>> {
        match UringQueue::new(depth) {
            Ok(queue) => Ok(Box::new(queue)),
            // ENOSYS, EPERM: kernels and containers without io_uring are ordinary.
            Err(_) => Ok(Box::new(ThreadQueue::new(depth)?)),
        }
    }
}

/// What the page cache has of a descriptor at an offset, which the kernel refuses where there are none.
pub(crate) fn read_cached_by(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // -1 would mean the descriptor's position.
    let offset = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the vector names one buffer that is valid for writes, the descriptor is open.
    retry(|| unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset, libc::RWF_NOWAIT) })
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let read = call();
        if read >= 0 {
            return Ok(read as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
