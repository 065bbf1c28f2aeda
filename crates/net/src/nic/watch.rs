//! One descriptor for several: readable when one of them is ready.

use super::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A set of descriptors that are watched.
#[derive(Debug)]
pub(super) struct Watch {
    poll: OwnedFd,
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the call takes a number only.
        let poll = sys::check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self { poll: sys::owned(poll) })
    }

    /// Watches `fd` until it is closed.
    pub(super) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)
    }

    /// Watches `fd` for what it has from now on, and for room where `writable`.
    pub(super) fn change(&self, fd: BorrowedFd<'_>, writable: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN | if writable { libc::EPOLLOUT } else { 0 })
    }

    /// Watches `fd` no more.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0)
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        // SAFETY: both descriptors are open, and the event lives during the call.
        let result = unsafe { libc::epoll_ctl(self.poll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        sys::check(result).map(drop)
    }
}
