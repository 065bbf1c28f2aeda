//! A descriptor of a mounted file: requests in, answers out.

use super::wire::{
    ANSWER_BYTES, Operation, REQUEST_BYTES_MAX, Request, WRITE_HEAD_BYTES, attributes, greeting, opened, parse, sizes,
};
use crate::{Error, ErrorKind, Result};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// `FUSE_NOTIFY_RESEND`.
const RESEND: i32 = 7;

/// A descriptor of a mounted file. Threads do not share one.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

/// Where requests are read into, so that the bytes of a write lie at a page's beginning, as direct I/O wants them. The same
/// place serves for the bytes of an answer.
#[derive(Debug)]
pub struct RequestBuffer {
    /// A page more than the alignment takes.
    memory: Box<[u8]>,
    /// The first byte of a page, at least a page's length into it.
    data_at: usize,
}

impl RequestBuffer {
    /// A buffer for requests of up to [`REQUEST_BYTES_MAX`].
    pub fn new() -> Self {
        let memory = vec![0; REQUEST_BYTES_MAX + 2 * PAGE_BYTES].into_boxed_slice();
        let data_at = PAGE_BYTES + memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, data_at }
    }

    /// The bytes of a write, or room for an answer: `len` bytes, at most [`REQUEST_BYTES_MAX`], aligned to a page.
    pub fn data(&mut self, len: u32) -> &mut [u8] {
        &mut self.memory[self.data_at..self.data_at + len as usize]
    }

    fn request(&mut self) -> &mut [u8] {
        let start = self.data_at - WRITE_HEAD_BYTES;
        &mut self.memory[start..self.data_at + REQUEST_BYTES_MAX]
    }
}

impl Default for RequestBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Channel {
    /// A channel of a descriptor that a mount made.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Has [`Channel::next`] look again and again for a while before it sleeps, for descriptors of which only one thread at a
    /// time awaits requests. Other holders of the descriptor are not blocked by it any more, either.
    ///
    /// # Errors
    /// The system's.
    pub fn look_before_sleeping(&self) -> Result<()> {
        // SAFETY: takes numbers.
        if unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) } == 0 {
            return Ok(());
        }
        Err(Error::last_os("having a descriptor not block"))
    }

    /// The next request; none when the file is unmounted and nobody has it open. It sleeps when there was none for `look`:
    /// waking up takes longer than most requests, and in a virtual machine longer than ten of them.
    ///
    /// # Errors
    /// `Damaged` for what cannot be read, and the system's.
    pub fn next(&self, buffer: &mut RequestBuffer, look: Duration) -> Result<Option<Request>> {
        let room = buffer.request();
        let mut since: Option<Instant> = None;
        loop {
            // SAFETY: the buffer is ours, and has this length.
            let len = unsafe { libc::read(self.fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
            if let Ok(len) = usize::try_from(len) {
                let request = parse(&room[..len]);
                let detail = "the kernel sent a request that cannot be read";
                return request.map(Some).ok_or_else(|| Error::new(ErrorKind::Damaged, detail));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) if since.get_or_insert_with(Instant::now).elapsed() < look => {
                    // Whoever makes the next request may be waiting for this processor.
                    std::thread::yield_now();
                }
                Some(libc::EAGAIN) => self.sleep(),
                // A signal, or a request that was taken back meanwhile.
                Some(libc::EINTR | libc::ENOENT) => {}
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(Error::system("reading a request of the kernel's", error)),
            }
        }
    }

    /// Waits until there is a request, or an end.
    fn sleep(&self) {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which is ours. What went wrong will be told by the read that follows.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
    }

    /// Has the kernel send every request again that was read and not answered, by whomever.
    ///
    /// # Errors
    /// The system's; kernels before 6.9 do not know this.
    pub fn resend(&self) -> Result<()> {
        self.send(0, RESEND, &[])
    }

    /// Answers with bytes.
    ///
    /// # Errors
    /// The system's. That a request was taken back meanwhile is none.
    pub fn answer(&self, unique: u64, bytes: &[u8]) -> Result<()> {
        self.send(unique, 0, bytes)
    }

    /// Answers that so many bytes were written.
    ///
    /// # Errors
    /// As for [`Channel::answer`].
    pub fn written(&self, unique: u64, len: u32) -> Result<()> {
        self.send(unique, 0, &u64::from(len).to_le_bytes())
    }

    /// Answers with a failure, a number of the system's such as `EIO`.
    ///
    /// # Errors
    /// As for [`Channel::answer`].
    pub fn fail(&self, unique: u64, code: i32) -> Result<()> {
        self.send(unique, -code, &[])
    }

    /// Answers what is the same for every file of a size: attributes, opening and closing; a failure to the rest. Nothing
    /// for reads, writes, flushes and holes, which are the caller's: true for those.
    ///
    /// # Errors
    /// As for [`Channel::answer`].
    pub fn leaves(&self, request: &Request, size: u64) -> Result<bool> {
        let unique = request.unique;
        match request.operation {
            Operation::Read { .. } | Operation::Write { .. } | Operation::Sync | Operation::Allocate { .. } => {
                return Ok(true);
            }
            Operation::GetAttributes => self.answer(unique, &attributes(size)),
            Operation::GetSizes => self.answer(unique, &sizes(size)),
            Operation::Open => self.answer(unique, &opened()),
            Operation::Close => self.answer(unique, &[]),
            Operation::Unanswered => Ok(()),
            Operation::Init { .. } | Operation::Other(_) => self.fail(unique, libc::ENOSYS),
        }?;
        Ok(false)
    }

    pub(super) fn answer_greeting(&self, unique: u64, minor: u32, readahead: u32, flags: u64) -> Result<()> {
        self.answer(unique, &greeting(minor, readahead, flags))
    }

    fn send(&self, unique: u64, error: i32, bytes: &[u8]) -> Result<()> {
        let mut head = [0; ANSWER_BYTES];
        head[..4].copy_from_slice(&((ANSWER_BYTES + bytes.len()) as u32).to_ne_bytes());
        head[4..8].copy_from_slice(&error.to_ne_bytes());
        head[8..].copy_from_slice(&unique.to_ne_bytes());
        let parts = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
        ];
        let count = if bytes.is_empty() { 1 } else { 2 };
        // SAFETY: both parts are readable memory of these lengths until the call returns.
        if unsafe { libc::writev(self.fd.as_raw_fd(), parts.as_ptr(), count) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Nobody waits for it any more.
            Some(libc::ENOENT | libc::ENODEV) => Ok(()),
            _ => Err(Error::system("answering the kernel", error)),
        }
    }
}
