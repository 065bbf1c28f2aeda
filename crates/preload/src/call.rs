//! A call as it came, and its buffers, each the CPU's or a device's.

use crate::{hosts, log};
use bifolio_device::pointer::{Located, locate};
use bifolio_device::{DeviceSlice, Stream};
use bifolio_io::{Error, ErrorKind, process};
use libc::{c_int, iovec, off_t};

/// What a call did, or its errno.
pub(crate) type Outcome<T> = Result<T, c_int>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A call, whichever of the names it came by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) fd: c_int,
    pub(crate) direction: Direction,
    /// The file's position where there is none.
    pub(crate) offset: Option<off_t>,
    /// `RWF_*`.
    pub(crate) flags: c_int,
}

/// One buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) device: Option<Located>,
}

impl Part {
    pub(crate) fn of(vector: &iovec) -> Self {
        let (address, len) = (vector.iov_base.addr() as u64, vector.iov_len as u64);
        let device = (len > 0).then(|| locate(address)).flatten();
        // Host memory is known to its own side.
        if len > 0 && (device.is_some() || !hosts::hold(address)) {
            hosts::note(address, device.is_some());
        }
        Self { address, len, device }
    }

    pub(crate) fn cut(self, len: u64) -> Self {
        // What lies behind the end of the allocation is not the program's.
        let room = self.device.map_or(u64::MAX, |device| device.bytes_left(self.address));
        Self { len: self.len.min(len).min(room), ..self }
    }

    pub(crate) fn download(&self, bytes: &mut [u8]) -> bifolio_io::Result<()> {
        self.copy(bytes.len() as u64, |stream, slice| stream.download(bytes, slice))
    }

    pub(crate) fn upload(&self, bytes: &[u8]) -> bifolio_io::Result<()> {
        self.copy(bytes.len() as u64, |stream, slice| stream.upload(slice, bytes))
    }

    fn copy(
        &self,
        len: u64,
        copy: impl FnOnce(&Stream, DeviceSlice<'_>) -> bifolio_device::Result<()>,
    ) -> bifolio_io::Result<()> {
        let Some(located) = &self.device else { return Ok(()) };
        let router = process::router_of(located)?;
        let device = router.device();
        let copied = device.settle(slice_of(located, len)).and_then(|memory| copy(&device.create_stream()?, memory));
        copied.map_err(|error| Error::device("device memory".as_ref(), error))
    }
}

/// What is left of some buffers behind their first bytes.
pub(crate) fn behind(parts: &[Part], bytes: u64) -> Vec<Part> {
    let mut skip = bytes;
    let mut left = Vec::with_capacity(parts.len());
    for part in parts {
        let skipped = part.len.min(skip);
        skip -= skipped;
        let device = part.device.map(|device| Located { address: device.address.offset_by(skipped), ..device });
        left.push(Part { address: part.address + skipped, len: part.len - skipped, device });
    }
    left
}

/// Device memory of the program's.
pub(crate) fn slice_of(device: &Located, len: u64) -> DeviceSlice<'static> {
    // SAFETY: the program vouches for its memory until its call returns; `len` ends within the allocation.
    unsafe { DeviceSlice::from_raw(device.address, len) }
}

/// The errno for a failure, whose sentence goes to the log.
pub(crate) fn code_of(error: &Error) -> c_int {
    log::say(error);
    error.os_code().unwrap_or(match error.kind() {
        ErrorKind::Permission => libc::EACCES,
        ErrorKind::BadRange => libc::EINVAL,
        ErrorKind::ReadOnly => libc::EBADF,
        ErrorKind::Forked => libc::EFAULT,
        _ => libc::EIO,
    })
}
