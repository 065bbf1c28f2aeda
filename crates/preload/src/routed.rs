//! Reads and writes by the router, with the results that the system call would have had.

use crate::call::{Outcome, code_of, slice_of};
use crate::files::{self, Descriptor, Kept};
use crate::log;
use bifolio_device::pointer::Located;
use bifolio_io::{ErrorKind, READ_CACHED_BYTES_MAX, ReadOptions, WriteOptions, process};
use libc::c_int;
use std::sync::Arc;

/// Why a write by the router failed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Failed {
    /// A full disk, a quota, a limit on sizes: some of it may fit.
    NoRoom,
    /// An earlier write through the same file has failed.
    Latched,
    Otherwise(c_int),
}

impl Failed {
    pub(crate) fn code(self) -> c_int {
        match self {
            Self::NoRoom => libc::ENOSPC,
            Self::Latched => libc::EIO,
            Self::Otherwise(code) => code,
        }
    }
}

/// Into device memory: fewer bytes only at the end of the file.
pub(crate) fn read(file: &Arc<Kept>, descriptor: &Descriptor, device: &Located, len: u64, offset: u64) -> Outcome<u64> {
    let router = process::router_of(device).map_err(|error| code_of(&error))?;
    let read = |file: &Kept, size: u64| -> bifolio_io::Result<u64> {
        let len = len.min(size.saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        let slice = slice_of(device, len);
        let report = router.read(&file.file, offset, Some(len), slice, &ReadOptions::default())?;
        if len <= READ_CACHED_BYTES_MAX {
            let is_cached = report.residency.is_some_and(|seen| seen.cached_bytes == seen.total_bytes);
            files::note_cached(descriptor.fd, is_cached && descriptor.reads_the_cache());
        }
        Ok(report.bytes)
    };
    let Some(size) = file.file.size_if_intact() else {
        let anew = descriptor.anew(file)?;
        let size = anew.file.size().map_err(|error| code_of(&error))?;
        return read(&anew, size).map_err(|error| code_of(&error));
    };
    let outcome = match read(file, size) {
        // A file that is being cut has fewer bytes now, which is an answer.
        Err(error) if error.kind() == ErrorKind::Truncated => file.file.size().and_then(|size| read(file, size)),
        outcome => outcome,
    };
    outcome.inspect(|bytes| log::READ.add(*bytes)).map_err(|error| code_of(&error))
}

/// From device memory: all bytes, or none that count.
pub(crate) fn write(file: &Arc<Kept>, device: &Located, len: u64, offset: u64, durable: bool) -> Result<u64, Failed> {
    let router = process::router_of(device).map_err(|error| Failed::Otherwise(code_of(&error)))?;
    // Room that is found missing beforehand would be missing for what fits, too.
    let options = WriteOptions { durable, preallocate: false, ..WriteOptions::default() };
    let written = router.write(&file.file, offset, slice_of(device, len), &options);
    written.map(|report| report.bytes).inspect(|bytes| log::WRITTEN.add(*bytes)).map_err(|error| {
        // Later writes are not refused for this one.
        files::close(file);
        match code_of(&error) {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Failed::NoRoom,
            _ if error.kind() == ErrorKind::Latched => Failed::Latched,
            code => Failed::Otherwise(code),
        }
    })
}
