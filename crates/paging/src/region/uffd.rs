//! Page faults of a range of addresses, handled by this process: a fence around Linux' userfaultfd (`ioctl_userfaultfd(2)`).
//!
//! It needs missing and write-protect faults of anonymous memory (Linux 5.7). Where the kernel allows it, faults that system
//! calls meet are handled, too; else such a call fails with EFAULT where it meets a page that is not there.

use crate::pages::PAGE_BYTES;
use bifolio_device::{Error, ErrorKind, Result};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

const API: u64 = 0xaa;
const FEATURE_WRITE_PROTECT: u64 = 1;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_MOVE: u64 = 1 << 16;
const FLAG_USER_MODE_ONLY: i32 = 1;
const MODE_MISSING: u64 = 1;
const MODE_WRITE_PROTECT: u64 = 2;
const COPY_MODE_WRITE_PROTECT: u64 = 2;
const MOVE_MODE_DONT_WAKE: u64 = 1;
const PROTECT_MODE: u64 = 1;
const EVENT_PAGE_FAULT: u8 = 0x12;
const FAULT_WRITE_PROTECT: u64 = 2;
const FAULT_WRITE: u64 = 1;
/// Bytes of a message.
const MESSAGE: usize = 32;

/// The number of an ioctl that reads or writes a structure, or both.
const fn request(directions: u64, number: u64, bytes: usize) -> u64 {
    directions << 30 | (bytes as u64) << 16 | API << 8 | number
}
const WRITTEN: u64 = 2;
const BOTH: u64 = 3;
const IOCTL_NEW: u64 = request(0, 0, 0);
const IOCTL_API: u64 = request(BOTH, 0x3f, 24);
const IOCTL_REGISTER: u64 = request(BOTH, 0, 32);
const IOCTL_WAKE: u64 = request(WRITTEN, 2, 16);
const IOCTL_COPY: u64 = request(BOTH, 3, 40);
const IOCTL_MOVE: u64 = request(BOTH, 5, 40);
const IOCTL_WRITE_PROTECT: u64 = request(BOTH, 6, 24);
const IOCTL_POISON: u64 = request(BOTH, 8, 32);

/// A page fault that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) address: u64,
    /// Whether a page that is there is written to while that is forbidden; else it is not there.
    pub(super) is_protected: bool,
    /// Whether it is written to.
    pub(super) is_write: bool,
}

/// Who is asked when pages of a range are missing or protected.
#[derive(Debug)]
pub(super) struct Uffd {
    fd: OwnedFd,
    /// Whether faults that system calls meet are handled.
    pub(super) in_system_calls: bool,
    can_poison: bool,
    /// So many fills and moves fail from now on, as without memory.
    #[cfg(test)]
    pub(super) failing: std::sync::atomic::AtomicU32,
    /// Whether pages can be moved from one place to another (Linux 6.8).
    pub(super) can_move: bool,
}

/// A descriptor, and whether it may handle what system calls meet.
fn descriptor() -> Result<(OwnedFd, bool)> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let call = |flags: i32| {
        // SAFETY: a system call that takes a number.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        // SAFETY: it is new, and nobody else's.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    };
    if let Some(fd) = call(flags) {
        return Ok((fd, true));
    }
    // The device's permissions say who may do what the call is refused.
    if let Ok(file) = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/userfaultfd") {
        // SAFETY: the request takes a number.
        let fd = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_NEW, flags) };
        if fd >= 0 {
            // SAFETY: it is new, and nobody else's.
            return Ok((unsafe { OwnedFd::from_raw_fd(fd) }, true));
        }
    }
    match call(flags | FLAG_USER_MODE_ONLY) {
        Some(fd) => Ok((fd, false)),
        None => Err(refusal(io::Error::last_os_error())),
    }
}

/// Why the kernel hands no page faults over, and what to do.
fn refusal(cause: io::Error) -> Error {
    let doing = "asking the kernel to hand page faults over (userfaultfd)";
    match cause.raw_os_error() {
        Some(libc::EPERM) => {
            let detail = format!(
                "{doing} is not permitted: allow the system call userfaultfd in the seccomp profile of the container, or give \
                 the program access to /dev/userfaultfd"
            );
            Error::new(ErrorKind::System, detail).with_cause(cause)
        }
        _ => Error::system(doing, cause),
    }
}

impl Uffd {
    /// For a range of anonymous memory, which begins and ends at pages. Pages are moved where the kernel can and they may be.
    ///
    /// # Errors
    /// The system's; `Unsupported` where the kernel lacks a part.
    pub(super) fn new(start: u64, len: u64, may_move: bool) -> Result<Self> {
        // A descriptor answers this question once; features are asked for with the next one.
        let known = Self::handshake(&descriptor()?.0, 0)?;
        if known & FEATURE_WRITE_PROTECT == 0 {
            let detail = "the kernel does not tell of writes to protected anonymous pages; Linux 5.7 does";
            return Err(Error::new(ErrorKind::Unsupported, detail));
        }
        let (fd, in_system_calls) = descriptor()?;
        Self::handshake(&fd, FEATURE_WRITE_PROTECT | known & (FEATURE_POISON | FEATURE_MOVE))?;
        let has = |feature| known & feature != 0;
        let uffd = Self {
            fd,
            in_system_calls,
            can_poison: has(FEATURE_POISON),
            #[cfg(test)]
            failing: 0.into(),
            can_move: may_move && has(FEATURE_MOVE),
        };
        uffd.register(start, len)?;
        Ok(uffd)
    }

    /// Hands over the faults of one more range.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn register(&self, start: u64, len: u64) -> Result<()> {
        self.ioctl(IOCTL_REGISTER, &mut [start, len, MODE_MISSING | MODE_WRITE_PROTECT, 0])
            .map_err(|error| Error::system("registering memory for page faults", error))
    }

    /// Agrees on features; those that the kernel has.
    fn handshake(fd: &OwnedFd, features: u64) -> Result<u64> {
        let mut api = [API, features, 0];
        // SAFETY: the request reads and writes a structure of this size.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_API, api.as_mut_ptr()) };
        if done < 0 {
            return Err(Error::system("agreeing on features of userfaultfd", io::Error::last_os_error()));
        }
        Ok(api[1])
    }

    fn ioctl<const N: usize>(&self, request: u64, argument: &mut [u64; N]) -> io::Result<()> {
        #[cfg(test)]
        if matches!(request, IOCTL_COPY | IOCTL_MOVE) && tests::spend(&self.failing) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        // SAFETY: the request has a structure of this size; memory that it names is checked by the kernel, and given by
        // callers who vouch for it.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument.as_mut_ptr()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Readable while faults wait.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Adds faults that wait, some at a time; whether there were any.
    pub(super) fn read(&self, faults: &mut Vec<Fault>) -> io::Result<bool> {
        let mut messages = [[0_u8; MESSAGE]; 16];
        // SAFETY: the buffer is this long.
        let len = unsafe { libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(&messages)) };
        if len < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) };
        }
        let word =
            |message: &[u8], at: usize| message[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let of_faults = messages[..len as usize / MESSAGE].iter().filter(|message| message[0] == EVENT_PAGE_FAULT);
        faults.extend(of_faults.map(|message| {
            let flags = word(message, 8);
            let is_protected = flags & FAULT_WRITE_PROTECT != 0;
            Fault { address: word(message, 16), is_protected, is_write: flags & FAULT_WRITE != 0 }
        }));
        Ok(true)
    }

    /// Gives missing pages their content, protected from writes if asked, and wakes who waits for them. Pages that are there
    /// stay as they are.
    pub(super) fn fill(&self, start: u64, content: &[u8], protect: bool) -> io::Result<()> {
        let mode = if protect { COPY_MODE_WRITE_PROTECT } else { 0 };
        let (mut done, len) = (0, content.len() as u64);
        while done < len {
            let from = content.as_ptr() as u64 + done;
            let mut copy = [start + done, from, len - done, mode, 0];
            match self.ioctl(IOCTL_COPY, &mut copy) {
                Ok(()) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    // The mapping changed elsewhere, or a part is done.
                    Some(libc::EAGAIN) => done += (copy[4] as i64).max(0) as u64,
                    Some(libc::EEXIST) => done += PAGE_BYTES,
                    _ => return Err(error),
                },
            }
        }
        self.wake(start, len)
    }

    /// Moves pages to a place of the registered ranges where there are none; how many bytes have moved. It fails with EBUSY at
    /// a page that somebody has pinned, as direct I/O does while it lasts, and with ENOENT at one that is not there.
    pub(super) fn shift(&self, from: u64, to: u64, len: u64, wake: bool) -> (u64, io::Result<()>) {
        let mode = if wake { 0 } else { MOVE_MODE_DONT_WAKE };
        let mut done = 0;
        while done < len {
            let mut shift = [to + done, from + done, len - done, mode, 0];
            let result = self.ioctl(IOCTL_MOVE, &mut shift);
            done += (shift[4] as i64).max(0) as u64;
            match result {
                Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => return (done, Err(error)),
                _ => {}
            }
        }
        (done, Ok(()))
    }

    /// Forbids writes to pages that are there, or allows them and wakes who waits.
    pub(super) fn protect(&self, start: u64, len: u64, protect: bool) -> io::Result<()> {
        let mode = if protect { PROTECT_MODE } else { 0 };
        loop {
            match self.ioctl(IOCTL_WRITE_PROTECT, &mut [start, len, mode]) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                done => return done,
            }
        }
    }

    /// Wakes who waits for these pages.
    pub(super) fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(IOCTL_WAKE, &mut [start, len])
    }

    /// Whoever touches these pages from now on gets a signal: there is nothing that they could be given. Pages that are there
    /// stay, where the kernel can do that page by page.
    pub(super) fn poison(&self, start: u64, len: u64) -> io::Result<()> {
        if self.can_poison {
            for page in (start..start + len).step_by(PAGE_BYTES as usize) {
                match self.ioctl(IOCTL_POISON, &mut [page, PAGE_BYTES, 0, 0]) {
                    Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
                    _ => {}
                }
            }
            return self.wake(start, len);
        }
        // SAFETY: the range is the region's, and nobody may rely on what is lost.
        if unsafe { libc::mprotect(start as *mut libc::c_void, len as usize, libc::PROT_NONE) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.wake(start, len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    pub(super) fn spend(left: &AtomicU32) -> bool {
        left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
    }
}
