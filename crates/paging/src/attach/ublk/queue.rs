//! A device's only queue: requests in, answers out.
//!
//! ```text
//!   kernel ──request──> the queue's thread ──what may wait──> helpers
//!      ^                      |      ^                           |
//!      └───────answer─────────┘      └──────────done─────────────┘
//! ```
//!
//! The kernel takes answers only from the thread that has fetched, so that thread does nothing that waits: what is in
//! memory it answers itself, without waking anybody, and the rest goes to helpers. Lists have room for every request from
//! the start, and nothing allocates.

use super::abi::{COMMIT_AND_FETCH, DISCARD, Descriptor, FETCH, FLUSH, IoCommand, READ, WRITE, WRITE_ZEROES, packed};
use super::buffers::{Bytes, Descriptors};
use crate::cache::PagingCache;
use bifolio_block::BlockDevice;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long to look for a request before sleeping: longer than a program takes from one fault to the next.
const LOOK: Duration = Duration::from_micros(100);
/// What says that helpers are done; tags are smaller.
const NEWS: u64 = u64::MAX;

/// What the queue's thread and its helpers tell each other.
#[derive(Debug)]
pub(super) struct Desk {
    state: Mutex<State>,
    has_job: Condvar,
    /// Wakes the queue's thread up.
    news: OwnedFd,
}

#[derive(Debug)]
struct State {
    jobs: VecDeque<u16>,
    done: VecDeque<(u16, i32)>,
    is_over: bool,
}

impl Desk {
    pub(super) fn new(depth: u16) -> io::Result<Self> {
        // SAFETY: takes numbers.
        let news = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if news < 0 {
            return Err(io::Error::last_os_error());
        }
        let room = usize::from(depth);
        let state = State { jobs: VecDeque::with_capacity(room), done: VecDeque::with_capacity(room), is_over: false };
        // SAFETY: the descriptor is new and nobody else's.
        let news = unsafe { OwnedFd::from_raw_fd(news) };
        Ok(Self { state: Mutex::new(state), has_job: Condvar::new(), news })
    }

    /// Has everybody end. What was taken and not answered stays with the kernel.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.has_job.notify_all();
        self.wake();
    }

    fn give(&self, tag: u16) {
        self.lock().jobs.push_back(tag);
        self.has_job.notify_one();
    }

    fn next_job(&self) -> Option<u16> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(tag) = state.jobs.pop_front() {
                return Some(tag);
            }
            state = self.has_job.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, tag: u16, result: i32) {
        self.lock().done.push_back((tag, result));
        self.wake();
    }

    fn wake(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes of ours. A counter that is full wakes just as well.
        unsafe { libc::write(self.news.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes of ours. Nothing to read is fine.
        unsafe { libc::read(self.news.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that nobody answers any more would wait for ever, so a panic ends the worker: its successor gets the request.
struct EndsOnPanic<'a>(&'a Desk);

impl Drop for EndsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// A queue, in the thread that fetches.
pub(super) struct Queue {
    // Goes first: the kernel writes to the bytes while it is there.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: File,
    descriptors: Option<Descriptors>,
    bytes: Arc<Bytes>,
    depth: u16,
}

impl Queue {
    pub(super) fn new(device: File, depth: u16, request_bytes_max: u32) -> io::Result<Self> {
        // A command for every tag and the wait for news at the same time.
        let ring = IoUring::builder().build(u32::from(depth) * 2)?;
        Ok(Self { ring, device, descriptors: None, bytes: Arc::new(Bytes::new(depth, request_bytes_max)?), depth })
    }

    /// Offers room for every request, in one call: a process that is killed has fetched all of them or none.
    pub(super) fn fetch_all(&mut self) -> io::Result<()> {
        for tag in 0..self.depth {
            self.push(FETCH, tag, 0)?;
        }
        let sent = self.ring.submit()?;
        if sent == usize::from(self.depth) && self.ring.completion().is_empty() {
            return Ok(());
        }
        let refused = self.ring.completion().next().map_or(libc::EIO, |done| -done.result());
        Err(io::Error::from_raw_os_error(refused))
    }

    /// Maps what requests want. After fetching, see the module above.
    pub(super) fn map_descriptors(&mut self) -> io::Result<()> {
        self.descriptors = Some(Descriptors::map(&self.device, self.depth)?);
        Ok(())
    }

    /// Answers until the device is taken apart, or the desk is over; with one helper at least.
    pub(super) fn serve(&mut self, cache: &PagingCache, desk: &Desk, threads: usize) -> io::Result<()> {
        let descriptors = self.descriptors.take().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let bytes = Arc::clone(&self.bytes);
        std::thread::scope(|scope| {
            for _ in 1..threads.max(2) {
                scope.spawn(|| {
                    let _ends = EndsOnPanic(desk);
                    while let Some(tag) = desk.next_job() {
                        desk.done(tag, perform(cache, &descriptors.get(tag), &bytes, tag));
                    }
                });
            }
            let _ends = EndsOnPanic(desk);
            let served = self.take_turns(cache, desk, &descriptors);
            desk.end();
            served
        })
    }

    fn take_turns(&mut self, cache: &PagingCache, desk: &Desk, descriptors: &Descriptors) -> io::Result<()> {
        self.await_news(desk)?;
        // Commands that the kernel has ended for good.
        let mut ended = 0;
        while ended < self.depth {
            self.sleep_until_more()?;
            while let Some((whose, result)) = self.next_ended() {
                match (whose, result) {
                    (NEWS, _) => {
                        desk.clear();
                        if !self.answer_done(desk)? {
                            return Ok(());
                        }
                        self.await_news(desk)?;
                    }
                    (tag, 0) => self.take(cache, desk, descriptors.get(tag as u16), tag as u16)?,
                    (_, code) if code == -libc::ENODEV => ended += 1,
                    (_, code) => return Err(io::Error::from_raw_os_error(-code)),
                }
            }
        }
        Ok(())
    }

    /// A command that has ended: whose it was, and how.
    fn next_ended(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|done| (done.user_data(), done.result()))
    }

    fn take(&mut self, cache: &PagingCache, desk: &Desk, request: Descriptor, tag: u16) -> io::Result<()> {
        if request.operation() == READ && cache.is_quick(request.offset(), request.len()) {
            let result = perform(cache, &request, &self.bytes, tag);
            return self.push(COMMIT_AND_FETCH, tag, result);
        }
        desk.give(tag);
        Ok(())
    }

    /// Answers what helpers have done; false when the desk is over.
    fn answer_done(&mut self, desk: &Desk) -> io::Result<bool> {
        loop {
            let mut state = desk.lock();
            if state.is_over {
                return Ok(false);
            }
            let Some((tag, result)) = state.done.pop_front() else { return Ok(true) };
            drop(state);
            self.push(COMMIT_AND_FETCH, tag, result)?;
        }
    }

    /// Hands commands over and sleeps until something ends, after looking for a while: waking up takes longer than most
    /// requests.
    fn sleep_until_more(&mut self) -> io::Result<()> {
        self.submit(0)?;
        let since = Instant::now();
        while self.ring.completion().is_empty() {
            if since.elapsed() >= LOOK {
                self.submit(1)?;
            } else {
                // Whoever makes the next request may be waiting for this processor.
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn submit(&mut self, wanted: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wanted) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(error),
            _ => Ok(()),
        }
    }

    fn await_news(&mut self, desk: &Desk) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(desk.news.as_raw_fd()), libc::POLLIN as u32).build().user_data(NEWS);
        self.push_entry(&entry.into())
    }

    fn push(&mut self, code: u32, tag: u16, result: i32) -> io::Result<()> {
        let command = IoCommand { queue: 0, tag, result, addr: self.bytes.address(tag) };
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), code).cmd(packed(&command)).build();
        self.push_entry(&entry.user_data(tag.into()))
    }

    fn push_entry(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the device and the bytes stay as long as the ring, and the bytes are the kernel's until it gives them out.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::ENOBUFS))
    }
}

/// Does what a request wants; returns the answer: how many bytes, or a failure's number below zero.
fn perform(cache: &PagingCache, request: &Descriptor, bytes: &Bytes, tag: u16) -> i32 {
    let (offset, len) = (request.offset(), request.len());
    let done = match request.operation() {
        READ | WRITE if len > bytes.each() as u64 => return -libc::EINVAL,
        // SAFETY: the request was taken, and its answer is still to come from this thread.
        READ => cache.read(offset, unsafe { bytes.of(tag, len as usize) }),
        // SAFETY: as above.
        WRITE => cache.write(offset, unsafe { bytes.of(tag, len as usize) }),
        FLUSH => cache.flush(),
        // The cache reads discarded pages as zeroes, and the disk's sectors are whole pages.
        DISCARD | WRITE_ZEROES => cache.discard(offset, len),
        _ => return -libc::EOPNOTSUPP,
    };
    match done {
        Ok(()) if matches!(request.operation(), READ | WRITE) => len as i32,
        Ok(()) => 0,
        Err(error) => -error.errno(),
    }
}
