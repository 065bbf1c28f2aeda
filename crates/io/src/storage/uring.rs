//! Asynchronous reads and writes through `io_uring`.
//!
//! Invariant: every submitted transfer is counted in `in_flight` until its completion was reaped, and
//! dropping the queue waits for all of them, so the kernel never writes into memory that its
//! owner has given up.

use super::{Direction, IoQueue, QueuedIo};
use io_uring::{IoUring, opcode, types};
use std::io;

/// Slots that can be registered; more are read without registration.
const REGISTERED_SLOTS_MAX: usize = 256;

pub(super) struct UringQueue {
    ring: IoUring,
    in_flight: usize,
    /// Submission entries not yet handed to the kernel.
    pending: usize,
    registered: Registered,
}

/// Whether buffers can be registered with this ring (kernel 5.19; within `RLIMIT_MEMLOCK`).
enum Registered {
    Untried,
    Slots(Vec<bool>),
    Refused,
}

impl UringQueue {
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        let ring = IoUring::builder().setup_clamp().build(depth)?;
        Ok(Self { ring, in_flight: 0, pending: 0, registered: Registered::Untried })
    }

    fn is_registered(&self, slot: usize) -> bool {
        matches!(&self.registered, Registered::Slots(slots) if slots.get(slot) == Some(&true))
    }
}

/// EBUSY: completions must be reaped first. EAGAIN: the kernel is short of memory for the moment.
/// EINTR: a signal came.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

impl std::fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringQueue").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl IoQueue for UringQueue {
    unsafe fn register_slot(&mut self, index: usize, start: *mut u8, len: usize) {
        if matches!(self.registered, Registered::Untried) {
            let sparse = self.ring.submitter().register_buffers_sparse(REGISTERED_SLOTS_MAX as u32);
            self.registered = match sparse {
                Ok(()) => Registered::Slots(vec![false; REGISTERED_SLOTS_MAX]),
                Err(_) => Registered::Refused,
            };
        }
        let Registered::Slots(slots) = &mut self.registered else { return };
        if index >= slots.len() || slots[index] {
            return;
        }
        let vector = libc::iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: the caller keeps the memory in place for the life of the ring.
        slots[index] = unsafe { self.ring.submitter().register_buffers_update(index as u32, &[vector], None) }.is_ok();
    }

    unsafe fn submit(&mut self, transfer: QueuedIo) -> io::Result<()> {
        let QueuedIo { direction, memory, offset, slot, token, .. } = transfer;
        let (fd, len) = (types::Fd(transfer.fd), transfer.len as u32);
        let entry = match (direction, self.is_registered(slot)) {
            (Direction::Read, true) => opcode::ReadFixed::new(fd, memory, len, slot as u16).offset(offset).build(),
            (Direction::Read, false) => opcode::Read::new(fd, memory, len).offset(offset).build(),
            (Direction::Write, true) => opcode::WriteFixed::new(fd, memory, len, slot as u16).offset(offset).build(),
            (Direction::Write, false) => opcode::Write::new(fd, memory, len).offset(offset).build(),
        };
        let entry = entry.user_data(token);
        // SAFETY: the caller keeps descriptor and memory valid until the completion.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
            self.pending = 0;
        }
        self.pending += 1;
        self.in_flight += 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.pending == 0 {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(_) => self.pending = 0,
            // Left to the next wait.
            Err(error) if is_for_now(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<(u64, io::Result<usize>)>) -> io::Result<()> {
        if self.in_flight == 0 {
            return Ok(());
        }
        loop {
            let want = usize::from(self.ring.completion().is_empty());
            if want > 0 || self.pending > 0 {
                match self.ring.submit_and_wait(want) {
                    Ok(_) => self.pending = 0,
                    Err(error) if is_for_now(&error) => std::thread::yield_now(),
                    Err(error) => return Err(error),
                }
            }
            let before = done.len();
            for completion in self.ring.completion() {
                let result = completion.result();
                let outcome = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
                done.push((completion.user_data(), outcome));
                self.in_flight -= 1;
            }
            if done.len() > before {
                return Ok(());
            }
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // Entries that the kernel never took write nothing; the others are waited for, whatever
        // the calls say: closing a ring does not end its reads.
        // Waiting may hand some over, so what is left is looked at each time.
        let mut done = Vec::new();
        while self.in_flight > self.ring.submission().len() {
            if self.wait(&mut done).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::threads::ThreadQueue;
    use std::os::fd::AsRawFd;

    /// Both queues read the same bytes, report short reads at the end of the file, and name errors.
    fn reads_like_pread(queue: &mut dyn IoQueue) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..100_000_u32).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(file.path(), &content).unwrap();
        let mut memory = vec![0xee_u8; 65_536 * 4];
        // SAFETY: `memory` outlives the queue's reads, which are all waited for below.
        unsafe { queue.register_slot(0, memory.as_mut_ptr(), memory.len()) };
        for piece in 0..4_usize {
            let memory = memory[piece * 65_536..].as_mut_ptr();
            let read = QueuedIo {
                direction: Direction::Read,
                fd: file.as_file().as_raw_fd(),
                memory,
                len: 65_536,
                offset: piece as u64 * 65_536,
                slot: 0,
                token: piece as u64,
            };
            // SAFETY: as above.
            unsafe { queue.submit(read) }.unwrap();
        }
        let bad = QueuedIo {
            direction: Direction::Read,
            fd: -1,
            memory: memory.as_mut_ptr(),
            len: 1,
            offset: 0,
            slot: 0,
            token: 9,
        };
        // SAFETY: a closed descriptor reads nothing.
        unsafe { queue.submit(bad) }.unwrap();
        let mut done = Vec::new();
        while done.len() < 5 {
            queue.wait(&mut done).unwrap();
        }
        done.sort_by_key(|(token, _)| *token);
        let lens: Vec<_> = done[..4].iter().map(|(_, result)| *result.as_ref().unwrap()).collect();
        assert_eq!(lens, [65_536, 34_464, 0, 0]);
        assert_eq!(done[4].1.as_ref().unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert!(memory[..100_000] == content[..]);
    }

    #[test]
    fn io_uring_reads_like_pread() {
        match UringQueue::new(8) {
            Ok(mut queue) => reads_like_pread(&mut queue),
            Err(error) => bifolio_testing::skip(format_args!("io_uring is refused here: {error}")),
        }
    }

    #[test]
    fn threads_read_like_pread() {
        reads_like_pread(&mut ThreadQueue::new(8).unwrap());
    }
}
