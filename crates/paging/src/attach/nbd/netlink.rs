//! Commands for the kernel's NBD driver by generic netlink (`include/uapi/linux/nbd-netlink.h`): connecting a socket to a
//! disk, giving a disk another socket, disconnecting. The older ioctls cannot replace a socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NBD_CMD_*`.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
/// `NBD_ATTR_*`.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;
/// `NBD_SOCK_ITEM`, `NBD_SOCK_FD`.
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// `NLM_F_REQUEST | NLM_F_ACK`; `NLMSG_ERROR`; `NLA_F_NESTED`.
const WITH_ANSWER: u16 = 1 | 4;
const ERROR: u16 = 2;
const NESTED: u16 = 1 << 15;
/// `struct nlmsghdr` and `struct genlmsghdr`.
const HEAD_BYTES: usize = 16;
const HEADS_BYTES: usize = HEAD_BYTES + 4;

/// A disk, as the kernel is told of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewDisk<'a> {
    pub number: u32,
    pub bytes: u64,
    pub block_bytes: u64,
    pub flags: u64,
    /// Seconds until an unanswered request is sent again.
    pub timeout_s: u64,
    /// Seconds that requests wait for another socket.
    pub dead_timeout_s: u64,
    /// Tells it from other owners' disks.
    pub owner: &'a str,
}

/// The way to give commands.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    family: u16,
}

impl Netlink {
    /// # Errors
    /// `NotFound` where the kernel has no NBD.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: takes numbers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_GENERIC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let mut netlink = Self { socket: unsafe { OwnedFd::from_raw_fd(fd) }, family: CONTROL };
        let mut message = Message::new(CONTROL, GET_FAMILY);
        message.attribute(FAMILY_NAME, b"nbd\0");
        let answer = netlink.send(message)?;
        let id = attribute(answer.get(HEADS_BYTES..).unwrap_or_default(), FAMILY_ID);
        let id = id.and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        netlink.family = id.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(netlink)
    }

    /// Connects a socket to a disk that nobody has.
    pub(super) fn connect(&self, disk: &NewDisk<'_>, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut message = Message::new(self.family, CONNECT);
        message.attribute(INDEX, &disk.number.to_ne_bytes());
        message.attribute(SIZE_BYTES, &disk.bytes.to_ne_bytes());
        message.attribute(BLOCK_BYTES, &disk.block_bytes.to_ne_bytes());
        message.attribute(SERVER_FLAGS, &disk.flags.to_ne_bytes());
        self.send(message.with_connection(disk, socket)).map(drop)
    }

    /// Gives a disk another socket in place of one that is dead. That there is no dead one is no error: the kernel then lets
    /// go of the new one.
    pub(super) fn reconnect(&self, disk: &NewDisk<'_>, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut message = Message::new(self.family, RECONFIGURE);
        message.attribute(INDEX, &disk.number.to_ne_bytes());
        self.send(message.with_connection(disk, socket)).map(drop)
    }

    /// Has every request of a disk fail, now and later.
    pub(super) fn disconnect(&self, number: u32) -> io::Result<()> {
        let mut message = Message::new(self.family, DISCONNECT);
        message.attribute(INDEX, &number.to_ne_bytes());
        self.send(message).map(drop)
    }

    /// Sends a message; returns what came before its acknowledgement, if anything.
    fn send(&self, message: Message) -> io::Result<Vec<u8>> {
        let bytes = message.finish();
        // SAFETY: the bytes are readable.
        if unsafe { libc::send(self.socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = vec![];
        loop {
            let mut part = vec![0; 8192];
            // SAFETY: the buffer is ours and has this length.
            let len = unsafe { libc::recv(self.socket.as_raw_fd(), part.as_mut_ptr().cast(), part.len(), 0) };
            let Ok(len) = usize::try_from(len) else {
                match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EINTR) => continue,
                    error => return Err(error),
                }
            };
            part.truncate(len);
            match acknowledged(&part) {
                Some(0) => return Ok(answer),
                Some(code) => return Err(io::Error::from_raw_os_error(-code)),
                None => answer = part,
            }
        }
    }
}

/// The code of an acknowledgement, at or below 0; none for another message.
fn acknowledged(bytes: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let code = bytes.get(HEAD_BYTES..HEAD_BYTES + 4)?.try_into().ok()?;
    (kind == ERROR).then(|| i32::from_ne_bytes(code))
}

/// The attribute of this kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !NESTED;
        let value = bytes.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

/// A message while it is made.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; HEADS_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&WITH_ANSWER.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[HEAD_BYTES] = command;
        // The version of both families.
        bytes[HEAD_BYTES + 1] = 1;
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn with_connection(mut self, disk: &NewDisk<'_>, socket: BorrowedFd<'_>) -> Self {
        self.attribute(TIMEOUT, &disk.timeout_s.to_ne_bytes());
        self.attribute(DEAD_TIMEOUT, &disk.dead_timeout_s.to_ne_bytes());
        self.attribute(BACKEND, &[disk.owner.as_bytes(), b"\0"].concat());
        let (mut number, mut item) = (Self(vec![]), Self(vec![]));
        number.attribute(SOCKET_FD, &(socket.as_raw_fd() as u32).to_ne_bytes());
        item.attribute(SOCKET_ITEM | NESTED, &number.0);
        self.attribute(SOCKETS | NESTED, &item.0);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_are_laid_out_as_the_kernel_reads_them() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let disk = NewDisk {
            number: 3,
            bytes: 1 << 20,
            block_bytes: 4096,
            flags: 37,
            timeout_s: 2,
            dead_timeout_s: 60,
            owner: "abc",
        };
        let mut message = Message::new(0x1b, CONNECT);
        message.attribute(INDEX, &disk.number.to_ne_bytes());
        let bytes = message.with_connection(&disk, file.as_fd()).finish();
        assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes());
        assert_eq!((bytes.len() % 4, &bytes[4..6], bytes[16], bytes[17]), (0, &0x1b_u16.to_ne_bytes()[..], CONNECT, 1));
        let body = &bytes[HEADS_BYTES..];
        assert_eq!(attribute(body, INDEX).unwrap(), 3_u32.to_ne_bytes());
        assert_eq!(attribute(body, TIMEOUT).unwrap(), 2_u64.to_ne_bytes());
        assert_eq!(attribute(body, DEAD_TIMEOUT).unwrap(), 60_u64.to_ne_bytes());
        assert_eq!(attribute(body, BACKEND).unwrap(), b"abc\0");
        let item = attribute(attribute(body, SOCKETS).unwrap(), SOCKET_ITEM).unwrap();
        assert_eq!(attribute(item, SOCKET_FD).unwrap(), (file.as_raw_fd() as u32).to_ne_bytes());
        assert_eq!(attribute(body, 9), None);
    }

    #[test]
    fn an_answer_that_is_cut_short_is_no_answer() {
        let mut whole = Message::new(ERROR, 0).finish();
        whole[HEAD_BYTES..].copy_from_slice(&(-libc::EBUSY).to_ne_bytes());
        assert_eq!(acknowledged(&whole), Some(-libc::EBUSY));
        for len in 0..whole.len() {
            assert_eq!(acknowledged(&whole[..len]), None);
        }
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..10_000 {
            let mut bytes = vec![0; draw.usize(..40)];
            draw.fill(&mut bytes);
            if let Some(value) = attribute(&bytes, draw.u16(..12)) {
                assert!(value.len() < bytes.len());
            }
        }
        assert_eq!(attribute(&[0, 0, 0, 0, 1, 1], 1), None, "an attribute without its own head ends the search");
    }
}
