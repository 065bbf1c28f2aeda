//! System calls on descriptors, with their results as [`io::Result`].

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// Types of system calls: numbers and arrays of numbers, for which every pattern of bytes is a value.
///
/// # Safety
/// Every pattern of bytes is a value of the type, zero included.
pub(super) unsafe trait Plain: Copy {}

/// Declares types as [`Plain`]; each is made of integers.
macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        // SAFETY: it is an integer, or a C structure or union of integers and arrays of integers.
        unsafe impl Plain for $type {}
    )*};
}

plain!(u32, i32, u64, libc::sockaddr_ll, libc::sockaddr_storage, libc::sockaddr_xdp, libc::packet_mreq);
plain!(libc::xdp_mmap_offsets, libc::xdp_statistics, libc::xdp_umem_reg, libc::xdp_desc);
plain!(libc::tpacket_req, libc::tpacket_req3, libc::tpacket_stats_v3, libc::tpacket3_hdr, libc::tpacket_auxdata);

/// A result of a system call.
pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A new socket, non-blocking, closed on exec.
pub(super) fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) })?;
    Ok(owned(fd))
}

/// Owns a descriptor that a system call has just returned.
pub(super) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the callers pass what a successful call returned, which nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A descriptor that the program was started with, by its number: a new one of the same file.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) })?;
    Ok(owned(fd))
}

/// Sets an option of a socket.
pub(super) fn set_option<T: Plain>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is `len` bytes that live during the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) }).map(drop)
}

/// Gets an option of a socket; what the kernel does not fill in is zero.
pub(super) fn option<T: Plain>(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has room for `len` bytes.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) })?;
    // SAFETY: every pattern of bytes is a value of a plain type.
    Ok(unsafe { value.assume_init() })
}

/// Binds a socket to an address of a C structure.
pub(super) fn bind<T: Plain>(fd: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `address` is `len` bytes that live during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(address).cast(), len) }).map(drop)
}

/// An address of a socket, of any family.
#[derive(Clone, Copy)]
pub(super) struct Name {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Name").field("ip", &self.ip()).finish_non_exhaustive()
    }
}

impl Name {
    fn blank() -> Self {
        Self { storage: zeroed(), len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    /// The address of a host and a port.
    pub(super) fn of_port(address: SocketAddrV4) -> Self {
        let mut name = Self::blank();
        let inner = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
            sin_zero: [0; 8],
        };
        name.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: every address fits into the storage, which is aligned for all.
        unsafe { (&raw mut name.storage).cast::<libc::sockaddr_in>().write(inner) };
        name
    }

    /// The address of a Unix socket; nothing where the path is empty, holds a zero, or is longer than the system
    /// allows.
    pub(super) fn of_path(path: &Path) -> Option<Self> {
        let bytes = path.as_os_str().as_bytes();
        let mut inner = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
        if bytes.is_empty() || bytes.len() >= inner.sun_path.len() || bytes.contains(&0) {
            return None;
        }
        for (to, from) in inner.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let mut name = Self::blank();
        name.len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: as above.
        unsafe { (&raw mut name.storage).cast::<libc::sockaddr_un>().write(inner) };
        Some(name)
    }

    /// The host and port, where it has them.
    pub(super) fn ip(&self) -> Option<SocketAddrV4> {
        if i32::from(self.storage.ss_family) != libc::AF_INET {
            return None;
        }
        // SAFETY: the storage holds an address of this family, and any bytes are one.
        let inner = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
        Some(SocketAddrV4::new(Ipv4Addr::from(u32::from_be(inner.sin_addr.s_addr)), u16::from_be(inner.sin_port)))
    }

    /// Whether something can be sent there.
    pub(super) fn is_named(&self) -> bool {
        self.len as usize > size_of::<libc::sa_family_t>()
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }
}

/// Binds a socket to an address.
pub(super) fn bind_to(fd: BorrowedFd<'_>, name: &Name) -> io::Result<()> {
    // SAFETY: the address is valid for its length.
    check(unsafe { libc::bind(fd.as_raw_fd(), name.pointer(), name.len) }).map(drop)
}

/// The address that a socket is bound to.
pub(super) fn own_name(fd: BorrowedFd<'_>) -> io::Result<Name> {
    let mut name = Name::blank();
    // SAFETY: the storage has room for any address, and `len` says how much.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name.storage).cast(), &raw mut name.len) })?;
    Ok(name)
}

/// Begins to connect a socket; false where that goes on.
pub(super) fn connect(fd: BorrowedFd<'_>, name: &Name) -> io::Result<bool> {
    // SAFETY: the address is valid for its length.
    match check(unsafe { libc::connect(fd.as_raw_fd(), name.pointer(), name.len) }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets connections come to a socket.
pub(super) fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Takes a connection that has come; `None` where none has.
pub(super) fn accept(fd: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, Name)>> {
    let mut name = Name::blank();
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the storage has room for any address, and `len` says how much.
    let result = unsafe { libc::accept4(fd.as_raw_fd(), (&raw mut name.storage).cast(), &raw mut name.len, flags) };
    Ok(count(result as isize)?.map(|accepted| (owned(accepted as RawFd), name)))
}

/// Sends `bytes` by a socket, to `name` where that is given; `None` where there is no room now.
pub(super) fn send(fd: BorrowedFd<'_>, bytes: &[u8], name: Option<&Name>) -> io::Result<Option<usize>> {
    let (address, len) = name.map_or((std::ptr::null(), 0), |name| (name.pointer(), name.len));
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `bytes` and the address are valid for their lengths.
    count(unsafe { libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags, address, len) })
}

/// Receives a datagram into `bytes`: its length, which may be more than there is room for, and who sent it.
pub(super) fn receive_from(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<(usize, Name)>> {
    let mut name = Name::blank();
    let (room, flags) = (bytes.as_mut_ptr().cast(), libc::MSG_DONTWAIT | libc::MSG_TRUNC);
    // SAFETY: `bytes` is room for its length, the storage for any address.
    let result = unsafe {
        let storage = (&raw mut name.storage).cast();
        libc::recvfrom(fd.as_raw_fd(), room, bytes.len(), flags, storage, &raw mut name.len)
    };
    Ok(count(result)?.map(|len| (len, name)))
}

/// A request to the kernel with a structure that it reads, writes, or both.
///
/// # Safety
/// `argument` is the structure that `request` is about, and all pointers in it are valid for what it does with them.
pub(super) unsafe fn ioctl<T>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) })
}

/// The system's zero of a C structure.
pub(super) fn zeroed<T: Plain>() -> T {
    // SAFETY: every pattern of bytes is a value of a plain type.
    unsafe { mem::zeroed() }
}

/// Waits at most `milliseconds` until a descriptor is ready for `events` or has failed; what it is ready for.
pub(super) fn wait(fd: BorrowedFd<'_>, events: i16, milliseconds: i32) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one structure that lives during the call.
    check(unsafe { libc::poll(&raw mut poll, 1, milliseconds) })?;
    Ok(poll.revents)
}

/// Reads what has come into `bytes`; `None` where nothing has.
pub(super) fn read(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: `bytes` is room for its length.
    let read = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    count(read)
}

/// Writes `bytes`; `None` where there is no room now.
pub(super) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: `bytes` is valid for its length.
    let written = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    count(written)
}

/// A count of bytes or messages, `None` for "try again later".
pub(super) fn count(result: isize) -> io::Result<Option<usize>> {
    match usize::try_from(result) {
        Ok(count) => Ok(Some(count)),
        Err(_) => match io::Error::last_os_error() {
            error if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            error => Err(error),
        },
    }
}

/// Memory that is shared with the kernel.
///
/// The kernel writes to it at any time. Who reads or writes bytes of it owns them at that moment, by the protocol of
/// the ring that they belong to; the words by which they change hands are atomic.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is memory without a thread of its own; access is governed by the callers of its unsafe functions.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a socket's ring at `offset`.
    pub(super) fn of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        Self::map(fd.as_raw_fd(), libc::MAP_SHARED | libc::MAP_POPULATE, offset, len)
    }

    /// `len` fresh bytes, zero, aligned to pages.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, 0, len)
    }

    fn map(fd: RawFd, flags: i32, offset: u64, len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset as libc::off_t) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The address as a number, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The 32-bit word at `offset`, by which memory changes hands.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "a word at {offset} of {} bytes", self.len);
        // SAFETY: it lies within the mapping, aligned, and is only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Reads a value at `offset`.
    ///
    /// # Safety
    /// The bytes belong to the caller now.
    pub(super) unsafe fn get<T: Plain>(&self, offset: usize) -> T {
        self.within(offset, size_of::<T>());
        // SAFETY: within the mapping; the caller owns the bytes, and any are a value.
        unsafe { self.start.as_ptr().add(offset).cast::<T>().read_unaligned() }
    }

    /// Writes a value at `offset`.
    ///
    /// # Safety
    /// The bytes belong to the caller now.
    pub(super) unsafe fn put<T: Plain>(&self, offset: usize, value: T) {
        self.within(offset, size_of::<T>());
        // SAFETY: within the mapping; the caller owns the bytes.
        unsafe { self.start.as_ptr().add(offset).cast::<T>().write_unaligned(value) }
    }

    /// `len` bytes at `offset`.
    ///
    /// # Safety
    /// The bytes belong to the caller for as long as the result lives, and it is the only view of them.
    #[allow(clippy::mut_from_ref)] // The mapping is not the bytes: rings hand them out piece by piece.
    pub(super) unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        self.within(offset, len);
        // SAFETY: within the mapping, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }

    fn within(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at {offset} of {} bytes", self.len);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and views of it do not outlive it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of 4096 bytes")]
    fn views_stay_within_a_mapping() {
        let mapping = Mapping::anonymous(4096).unwrap();
        // SAFETY: nobody else has the mapping.
        let _ = unsafe { mapping.bytes(4095, 2) };
    }
}
