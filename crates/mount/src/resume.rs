//! A session that goes on where a killed server's ended.
//!
//! The kernel greets once, when a folder is mounted, and the library begins a session with that greeting. So a successor
//! reads from one end of a pair of sockets what the kernel had said to the first server, its answer goes nowhere, and then
//! the mount's descriptor takes the socket's place.
//!
//! Descriptors of the mount that predecessors had are open still, and have requests that they read and did not answer.
//! Those are asked for again before anybody reads: what is read from then on is this server's. A descriptor that is closed
//! before that has its requests fail.

use crate::serve::Serve;
use crate::state::{State, Word};
use bifolio_keeper::fuse::Channel;
use fuser::{Config, Session, SessionACL};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The number of `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

const REQUEST_BYTES: usize = 40 + 64;
const INIT: u32 = 26;
/// There are more than 32 flags (`FUSE_INIT_EXT`).
const EXTENDED: u64 = 1 << 30;

/// The descriptors of `/dev/fuse` that this process has. Such a node in the source is kept as a place alone (`O_PATH`), and is none.
pub(crate) fn devices() -> io::Result<Vec<RawFd>> {
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        // SAFETY: it is open, or was a moment ago, which the call says.
        let state = crate::sys::stat(unsafe { BorrowedFd::borrow_raw(number) });
        let is_fuse = |state: libc::stat| {
            state.st_mode & libc::S_IFMT == libc::S_IFCHR
                && (libc::major(state.st_rdev), libc::minor(state.st_rdev)) == FUSE_DEVICE
        };
        // SAFETY: takes and returns numbers; a descriptor that is closed by now is an error.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
        if state.is_ok_and(is_fuse) && flags >= 0 && flags & libc::O_PATH == 0 {
            found.push(number);
        }
    }
    Ok(found)
}

/// Asks for all requests again that predecessors have read and not answered. One of their descriptors may have been opened
/// by then and not be of the mount yet, which the kernel refuses.
pub(crate) fn resend(devices: &[OwnedFd]) -> io::Result<&OwnedFd> {
    let works = |device: &&OwnedFd| device.try_clone().is_ok_and(|device| Channel::new(device).resend().is_ok());
    devices.iter().find(works).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// A session on a mount that was greeted before.
pub(crate) fn session(
    serve: Serve,
    state: &State,
    device: BorrowedFd<'_>,
    (threads, allows_other): (usize, bool),
) -> io::Result<Session<Serve>> {
    let (ours, theirs) = pair()?;
    let greeting = greeting(state.get(Word::Version), state.get(Word::ReadAhead), state.get(Word::Capabilities));
    // SAFETY: the greeting is readable memory of this length.
    if unsafe { libc::send(ours.as_raw_fd(), greeting.as_ptr().cast(), greeting.len(), 0) } != REQUEST_BYTES as isize {
        return Err(io::Error::last_os_error());
    }
    let acl = if allows_other { SessionACL::All } else { SessionACL::Owner };
    let mut config = Config::default();
    config.acl = acl;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let session = Session::from_fd(serve, theirs, acl, config)?;
    let place = session.as_fd().as_raw_fd();
    // SAFETY: both are open, and who has the socket's number, the session, reads and writes by the number alone.
    if unsafe { libc::dup3(device.as_raw_fd(), place, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(session)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for both.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: they are new, and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) })
}

/// The kernel's greeting (`struct fuse_in_header`, `struct fuse_init_in`).
fn greeting(version: u64, read_ahead: u64, capabilities: u64) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let flags = capabilities | EXTENDED;
    let words: [(usize, u32); 8] = [
        (0, REQUEST_BYTES as u32),
        (4, INIT),
        (8, 1),
        (40, (version >> 32) as u32),
        (44, version as u32),
        (48, read_ahead as u32),
        (52, flags as u32),
        (56, (flags >> 32) as u32),
    ];
    for (at, word) in words {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
