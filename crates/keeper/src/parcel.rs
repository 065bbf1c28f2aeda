//! Short messages between a keeper and its worker, each with a descriptor or without.
//!
//! Messages are whole or not there, in order, and who has gone is noticed: a sequenced-packet socket.

use crate::{Error, ErrorKind, Result};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// To a worker: a descriptor of this number.
    Held(u32),
    /// To a worker: the memory of this number. To a keeper: hold it.
    Memory(u32),
    /// To a worker: that was all.
    Begin,
    /// To a worker: the memory is held.
    Kept(u32),
    /// To a keeper: hold this memory no longer.
    Release(u32),
    /// To a keeper: this worker serves.
    Ready,
}

impl Message {
    fn pack(self) -> [u8; 8] {
        let (kind, number): (u32, u32) = match self {
            Self::Held(number) => (1, number),
            Self::Memory(number) => (2, number),
            Self::Begin => (3, 0),
            Self::Kept(number) => (4, number),
            Self::Release(number) => (5, number),
            Self::Ready => (6, 0),
        };
        (u64::from(kind) << 32 | u64::from(number)).to_ne_bytes()
    }

    fn unpack(bytes: [u8; 8]) -> Option<Self> {
        let word = u64::from_ne_bytes(bytes);
        let number = word as u32;
        Some(match word >> 32 {
            1 => Self::Held(number),
            2 => Self::Memory(number),
            3 => Self::Begin,
            4 => Self::Kept(number),
            5 => Self::Release(number),
            6 => Self::Ready,
            _ => return None,
        })
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// A buffer for the one descriptor of a message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Socket {
    /// Both ends.
    pub(crate) fn pair() -> Result<(Self, Self)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for both.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(Error::last_os("making a pair of sockets"));
        }
        // SAFETY: both are new and nobody else's.
        let [first, second] = ends.map(|end| Self(unsafe { OwnedFd::from_raw_fd(end) }));
        Ok((first, second))
    }

    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// How long a message waits at most for a peer that does not read.
    pub(crate) fn limit_sends(&self, seconds: i64) {
        let time = libc::timeval { tv_sec: seconds, tv_usec: 0 };
        let len = size_of::<libc::timeval>() as u32;
        // SAFETY: the structure is read, and has this length. Without the limit everything works, too.
        unsafe {
            libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw const time).cast(), len)
        };
    }

    pub(crate) fn send(&self, message: Message, with: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut bytes = message.pack();
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control([0; 64]);
        // SAFETY: plain old data, for which zeroes are a valid value.
        let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
        head.msg_iov = &raw mut part;
        head.msg_iovlen = 1;
        if let Some(fd) = with {
            head.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: computes sizes.
            head.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
            // SAFETY: the buffer has room for a header and a descriptor, as computed above, and is aligned.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&raw const head);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
                let number = fd.as_raw_fd().to_ne_bytes();
                number.as_ptr().copy_to(libc::CMSG_DATA(first), 4);
            }
        }
        // SAFETY: the head describes memory that lives until the call returns.
        match unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const head, libc::MSG_NOSIGNAL) } {
            8 => Ok(()),
            _ => Err(Error::last_os("sending a message to the other process")),
        }
    }

    /// The next message; none when the other side has gone.
    pub(crate) fn receive(&self) -> Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = [0; 8];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control([0; 64]);
        // SAFETY: plain old data, for which zeroes are a valid value.
        let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
        head.msg_iov = &raw mut part;
        head.msg_iovlen = 1;
        head.msg_control = control.0.as_mut_ptr().cast();
        head.msg_controllen = control.0.len();
        let len = loop {
            // SAFETY: the head describes memory of ours that lives until the call returns.
            let len = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut head, libc::MSG_CMSG_CLOEXEC) };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                _ if len >= 0 => break len,
                Some(libc::EINTR) => {}
                Some(libc::ECONNRESET) => return Ok(None),
                _ => return Err(Error::system("receiving a message of the other process", error)),
            }
        };
        let fd = received(&head);
        if len == 0 {
            return Ok(None);
        }
        match Message::unpack(bytes) {
            Some(message) if len == 8 => Ok(Some((message, fd))),
            _ => Err(Error::new(ErrorKind::Damaged, "the other process sent a message that is none")),
        }
    }

    /// Whether there is a message, or the other side has gone; waits for so many milliseconds at most.
    pub(crate) fn has_news(&self, wait_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which is ours.
        unsafe { libc::poll(&raw mut poll, 1, wait_ms) > 0 }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The descriptor of a message. There is room for several, so that none is lost without being closed.
fn received(head: &libc::msghdr) -> Option<OwnedFd> {
    let mut found = None;
    // SAFETY: the kernel has filled the head and the control buffer that it points to, and both live.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(std::ptr::from_ref(head));
        if !first.is_null() && (*first).cmsg_level == libc::SOL_SOCKET && (*first).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*first).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
            for at in 0..count {
                let mut number = [0; 4];
                libc::CMSG_DATA(first).add(at * 4).copy_to(number.as_mut_ptr(), 4);
                found = Some(OwnedFd::from_raw_fd(i32::from_ne_bytes(number)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn messages_arrive_whole_in_order_and_with_their_descriptors() {
        let (here, there) = Socket::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        let all = [Message::Held(3), Message::Memory(u32::MAX), Message::Begin, Message::Kept(1), Message::Release(0)];
        for message in all {
            here.send(message, (message == Message::Held(3)).then(|| file.as_fd())).unwrap();
        }
        drop(here);
        for message in all {
            let (seen, fd) = there.receive().unwrap().unwrap();
            assert_eq!(seen, message);
            assert_eq!(fd.is_some(), message == Message::Held(3));
            if let Some(fd) = fd {
                let (mut other, mut text) = (File::from(fd), String::new());
                other.rewind().unwrap();
                other.read_to_string(&mut text).unwrap();
                assert_eq!(text, "content");
            }
        }
        // A process that another test starts holds the other side, too, until it has become another program.
        assert!(there.has_news(10_000) && there.receive().unwrap().is_none(), "the other side has gone");
        assert_eq!(there.send(Message::Ready, None).unwrap_err().kind(), ErrorKind::Gone);
    }
}
