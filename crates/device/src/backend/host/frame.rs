//! Frames: sealed memfds, which other processes can map.

use super::memory::MemoryAccount;
use crate::backend::RawFrame;
use crate::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// What keeps a frame's length as it is, for good.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A memfd of one frame; imported ones are somebody else's memory and are not accounted here.
#[derive(Debug)]
pub(super) struct HostFrame {
    fd: OwnedFd,
    len: u64,
    account: Option<Arc<MemoryAccount>>,
}

impl HostFrame {
    /// A new one, out of a device's memory.
    pub(super) fn create(len: u64, account: &Arc<MemoryAccount>) -> Result<Self> {
        account.take(len)?;
        let fd = create_sealed_memfd(len).inspect_err(|_| account.give(len))?;
        Ok(Self { fd, len, account: Some(Arc::clone(account)) })
    }

    /// One of `len` bytes that another process exported. It is not trusted: memory that it could shrink, or that the
    /// kernel cannot fill when it is touched, would kill us with SIGBUS.
    pub(super) fn import(fd: OwnedFd, len: u64) -> Result<Self> {
        match why_no_frame(fd.as_raw_fd(), len) {
            None => Ok(Self { fd, len, account: None }),
            Some(why) => {
                let detail = format!("the descriptor is not an exported frame of {len} bytes: {why}");
                Err(Error::new(ErrorKind::BadArgument, detail))
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RawFrame for HostFrame {
    fn export(&self) -> Result<OwnedFd> {
        self.fd.try_clone().map_err(|error| Error::system("duplicating a frame's descriptor", error))
    }
}

impl Drop for HostFrame {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.give(self.len);
        }
    }
}

fn create_sealed_memfd(len: u64) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string, and the call touches no memory of ours.
    let raw = unsafe { libc::memfd_create(c"bifolio-frame".as_ptr(), flags) };
    if raw < 0 {
        return Err(Error::last_os("creating a frame (memfd)"));
    }
    // SAFETY: the descriptor is new and ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: plain calls on an open descriptor.
    let sized = unsafe { libc::ftruncate(raw, len as i64) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) == 0 };
    if sized { Ok(fd) } else { Err(Error::last_os("sizing and sealing a frame (memfd)")) }
}

/// Why a descriptor is not that of a frame of `len` bytes, if it is not. Seals are asked for first: what is sealed
/// keeps the length that is seen after it.
fn why_no_frame(fd: RawFd, len: u64) -> Option<String> {
    // SAFETY: takes no argument and changes nothing.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 {
        return Some("it is not a memory file (memfd)".to_owned());
    }
    if seals & SEALS != SEALS {
        return Some("it is not sealed, and whoever has it could change its length".to_owned());
    }
    // SAFETY: as above.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags & libc::O_ACCMODE != libc::O_RDWR {
        return Some("it is not open for reading and writing".to_owned());
    }
    // SAFETY: both are plain old data, for which zeroes are a valid value.
    let (mut file_system, mut stat): (libc::statfs, libc::stat) = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and both are writable.
    let known = unsafe { libc::fstatfs(fd, &raw mut file_system) == 0 && libc::fstat(fd, &raw mut stat) == 0 };
    if !known || file_system.f_type != libc::TMPFS_MAGIC {
        // Of huge pages there may be none left at the first touch, and that is a SIGBUS.
        return Some("its memory is not of ordinary pages".to_owned());
    }
    (stat.st_size as u64 != len).then(|| format!("it has {} bytes", stat.st_size))
}
