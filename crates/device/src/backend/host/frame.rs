//! Frames: sealed memfds, which other processes can map.

use super::memory::MemoryAccount;
use crate::backend::RawFrame;
use crate::{Error, ErrorKind, FRAME_BYTES, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

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

    /// One that another process exported. It is not trusted: memory that it could shrink would kill us with SIGBUS.
    pub(super) fn import(fd: OwnedFd) -> Result<Self> {
        // SAFETY: F_GET_SEALS takes no argument and changes nothing.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        // SAFETY: `stat` is plain old data, for which zeroes are a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and `stat` is writable.
        let known = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } == 0;
        let is_frame = known && stat.st_size as u64 == FRAME_BYTES && seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        if !is_frame {
            let detail = "the descriptor is not an exported frame: expected a sealed memfd of 2 MiB";
            return Err(Error::new(ErrorKind::BadArgument, detail));
        }
        Ok(Self { fd, len: FRAME_BYTES, account: None })
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
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain calls on an open descriptor.
    let sized = unsafe { libc::ftruncate(raw, len as i64) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, seals) == 0 };
    if sized { Ok(fd) } else { Err(Error::last_os("sizing and sealing a frame (memfd)")) }
}
