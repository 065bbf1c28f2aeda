//! Sockets that keep messages apart, each with a descriptor or without.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest message.
pub const MESSAGE_BYTES_MAX: usize = 160 << 10;

/// One end.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// Who is at the other end, as the kernel says: as of its connecting, or of its beginning to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The process.
    pub pid: i32,
    /// The user.
    pub uid: u32,
    /// Its groups.
    pub groups: Vec<u32>,
}

/// What was received.
#[derive(Debug)]
pub enum Received {
    /// Bytes, and the first descriptor of those that came with them.
    Message(usize, Option<OwnedFd>),
    /// It is longer than any message.
    TooLong,
    /// The other end has gone.
    End,
}

/// A buffer for descriptors, aligned as the kernel wants it: others than the first are closed at once.
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Socket {
    /// Of a descriptor of a socket of this kind.
    pub fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Both ends of one.
    ///
    /// # Errors
    /// The system's.
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for both.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
        // SAFETY: both are new and nobody else's.
        let [one, other] = ends.map(|end| Self(unsafe { OwnedFd::from_raw_fd(end) }));
        Ok((one, other))
    }

    /// Listens at a path, where nothing is.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(path: &Path, mode: u32) -> io::Result<Self> {
        let (socket, (address, len)) = (Self::new()?, address(path)?);
        // SAFETY: the address is one, and has this length.
        check(unsafe { libc::bind(socket.raw(), (&raw const address).cast(), len) })?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        // SAFETY: takes a number.
        check(unsafe { libc::listen(socket.raw(), 64) })?;
        Ok(socket)
    }

    /// Connects to who listens at a path.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let (socket, (address, len)) = (Self::new()?, address(path)?);
        // SAFETY: as above.
        check(unsafe { libc::connect(socket.raw(), (&raw const address).cast(), len) })?;
        Ok(socket)
    }

    fn new() -> io::Result<Self> {
        // SAFETY: takes numbers.
        let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: it is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next one who connects.
    ///
    /// # Errors
    /// The system's.
    pub fn accept(&self) -> io::Result<Self> {
        let null = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let fd = check(unsafe { libc::accept4(self.raw(), null, null.cast(), libc::SOCK_CLOEXEC) })?;
        // SAFETY: it is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// The system's.
    pub fn peer(&self) -> io::Result<Peer> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as u32;
        // SAFETY: there is room for as much as is said.
        check(unsafe {
            let place = (&raw mut credentials).cast();
            libc::getsockopt(self.raw(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len)
        })?;
        let mut groups = vec![0_u32; 256];
        let mut len = (groups.len() * size_of::<u32>()) as u32;
        // SAFETY: as above.
        let known = unsafe {
            let place = groups.as_mut_ptr().cast();
            libc::getsockopt(self.raw(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &raw mut len)
        };
        // Where there are more, or the kernel does not tell, it is in its first one.
        groups.truncate(if known == 0 { len as usize / size_of::<u32>() } else { 0 });
        groups.push(credentials.gid);
        Ok(Peer { pid: credentials.pid, uid: credentials.uid, groups })
    }

    /// How long a message waits at most for a peer that does not read.
    pub fn limit_sends(&self, seconds: i64) {
        let time = libc::timeval { tv_sec: seconds, tv_usec: 0 };
        // SAFETY: the structure is read, and has this length. Without the limit everything works, too.
        unsafe {
            let (place, len) = ((&raw const time).cast(), size_of::<libc::timeval>() as u32);
            libc::setsockopt(self.raw(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, place, len)
        };
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The system's: of kind `BrokenPipe` or `ConnectionReset` where the other end has gone.
    pub fn send(&self, bytes: &[u8], with: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_by(bytes, with, libc::MSG_NOSIGNAL)
    }

    /// The same, unless that would wait.
    ///
    /// # Errors
    /// `WouldBlock`, and as above.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_by(bytes, None, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    }

    fn send_by(&self, bytes: &[u8], with: Option<BorrowedFd<'_>>, flags: i32) -> io::Result<()> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
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
        loop {
            // SAFETY: the head describes memory that lives until the call returns; the bytes are only read.
            let sent = unsafe { libc::sendmsg(self.raw(), &raw const head, flags) };
            match sent {
                sent if sent == bytes.len() as isize => return Ok(()),
                0.. => return Err(io::Error::other("a message was cut")),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// The system's.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut control = Control([0; 64]);
        // SAFETY: plain old data, for which zeroes are a valid value.
        let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
        head.msg_iov = &raw mut part;
        head.msg_iovlen = 1;
        let mut was_reset = false;
        loop {
            head.msg_control = control.0.as_mut_ptr().cast();
            head.msg_controllen = size_of::<Control>();
            // SAFETY: the head describes memory that lives until the call returns.
            let got = unsafe { libc::recvmsg(self.raw(), &raw mut head, libc::MSG_CMSG_CLOEXEC) };
            if got < 0 {
                match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    // Told once, before what the other end has said last.
                    error if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => {
                        was_reset = true;
                        continue;
                    }
                    error if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Received::End),
                    error => return Err(error),
                }
            }
            let mut descriptors = descriptors(&head);
            if head.msg_flags & libc::MSG_TRUNC != 0 {
                return Ok(Received::TooLong);
            }
            // A message has a word at least.
            let first = (!descriptors.is_empty()).then(|| descriptors.swap_remove(0));
            return Ok(if got == 0 { Received::End } else { Received::Message(got as usize, first) });
        }
    }

    /// The next message, which stays the next one, without its descriptor: how many bytes, 0 at the end.
    ///
    /// # Errors
    /// The system's.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // SAFETY: the buffer is given with its length.
            let got = unsafe { libc::recv(self.raw(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_PEEK) };
            match usize::try_from(got) {
                Ok(len) => return Ok(len),
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// Waits for a message, or the end, for so many milliseconds at most, or for ever with -1; whether there is one.
    pub fn wait(&self, milliseconds: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which is ours.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) > 0 }
    }

    /// Whether the other end has gone.
    pub fn has_hung_up(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.raw(), events: 0, revents: 0 };
        // SAFETY: one structure, which is ours.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
    }

    /// Ends both directions, for everybody who has a descriptor of it.
    pub fn shut_down(&self) {
        // SAFETY: takes numbers.
        unsafe { libc::shutdown(self.raw(), libc::SHUT_RDWR) };
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// The system's.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Frames have a descriptor each.
pub(crate) fn raise_limit_of_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is filled, and read.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

fn check(code: i32) -> io::Result<i32> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, u32)> {
    // SAFETY: plain old data, for which zeroes are a valid value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        let why = format!("a socket's path has 1 to {} bytes", address.sun_path.len() - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as u32))
}

/// All descriptors of a message.
fn descriptors(head: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel has filled the head and the control buffer that it points to, and both live; descriptors are ours.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(head);
        while !next.is_null() {
            if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
                for at in 0..count {
                    let mut number = [0; 4];
                    libc::CMSG_DATA(next).add(at * 4).copy_to(number.as_mut_ptr(), 4);
                    found.push(OwnedFd::from_raw_fd(i32::from_ne_bytes(number)));
                }
            }
            next = libc::CMSG_NXTHDR(head, next);
        }
    }
    found
}
