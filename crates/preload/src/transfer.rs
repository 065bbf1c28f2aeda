//! Calls with device memory, with the results that the system call would have had.

use crate::files::{self, Descriptor, Kept};
use crate::{log, ranges, real};
use bifolio_device::DeviceSlice;
use bifolio_device::pointer::{Located, locate};
use bifolio_io::{Error, ErrorKind, ReadOptions, Router, WriteOptions, process};
use libc::{c_int, c_void, iovec, off_t, ssize_t};
use std::sync::{Arc, PoisonError};

/// What Linux moves by one call at most (`MAX_RW_COUNT`).
const CALL_BYTES_MAX: u64 = 0x7fff_f000;
/// Bytes that go through host memory by one call at most; more is a short count.
const BOUNCED_BYTES_MAX: u64 = 64 << 20;
/// Vectors of one call at most (`IOV_MAX`).
const VECTORS_MAX: usize = 1024;

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
struct Part {
    address: u64,
    len: u64,
    device: Option<Located>,
}

type Outcome<T> = Result<T, c_int>;

impl Part {
    fn of(vector: &iovec) -> Self {
        let (address, len) = (vector.iov_base.addr() as u64, vector.iov_len as u64);
        Self { address, len, device: (len > 0).then(|| locate(address)).flatten() }
    }

    fn cut(self, len: u64) -> Self {
        // What lies behind the end of the allocation is not the program's.
        let room = self.device.map_or(u64::MAX, |device| device.bytes_left(self.address));
        Self { len: self.len.min(len).min(room), ..self }
    }
}

/// Carries a call out if one of its buffers is device memory; none if all are the CPU's, and the C library's
/// answer holds.
#[cold]
pub(crate) fn carry_out(call: &Call, vectors: &[iovec]) -> Option<ssize_t> {
    let parts: Vec<_> = vectors.iter().map(Part::of).collect();
    for part in &parts {
        match &part.device {
            Some(device) if !ranges::holds(part.address) => ranges::add(device.start, device.len),
            None if ranges::holds(part.address) => ranges::forget(part.address),
            _ => {}
        }
    }
    if parts.iter().all(|part| part.device.is_none()) {
        return None;
    }
    let outcome = std::panic::catch_unwind(|| call.run(&parts)).unwrap_or(Err(libc::EIO));
    Some(outcome.map_or_else(
        |code| {
            real::set_errno(code);
            -1
        },
        |bytes| bytes as ssize_t,
    ))
}

/// The same if the first buffer that is not empty is device memory.
#[cold]
pub(crate) fn carry_out_if_first(call: &Call, vectors: &[iovec]) -> Option<ssize_t> {
    let first = vectors.iter().find(|vector| vector.iov_len > 0)?;
    locate(first.iov_base.addr() as u64)?;
    carry_out(call, vectors)
}

/// A list of buffers that the kernel could not read or not use; none if it is the former.
#[cold]
pub(crate) fn copy_of(vectors: *const iovec, count: usize) -> Option<Vec<iovec>> {
    let mut copy = vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; count];
    let bytes = size_of_val(&copy[..]);
    let local = iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: bytes };
    let remote = iovec { iov_base: vectors.cast_mut().cast(), iov_len: bytes };
    // SAFETY: `local` is the copy; a bad `remote` is reported, not touched.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    (copied == bytes as ssize_t).then_some(copy)
}

impl Call {
    fn run(&self, parts: &[Part]) -> Outcome<u64> {
        if files::was_forked() {
            log::say("device memory in a process that was forked after its first use: start the child by exec");
            return Err(libc::EFAULT);
        }
        let descriptor = Descriptor::of(self.fd)?;
        let allowed = match self.direction {
            Direction::Read => descriptor.may_read(),
            Direction::Write => descriptor.may_write(),
        };
        if !allowed {
            return Err(libc::EBADF);
        }
        if self.offset.is_some_and(|offset| offset < 0) || parts.len() > VECTORS_MAX {
            return Err(libc::EINVAL);
        }
        let ignored = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | RWF_DONTCACHE;
        if self.flags & !(ignored | libc::RWF_APPEND) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let appends = self.direction == Direction::Write
            && (descriptor.flags & libc::O_APPEND != 0 || self.flags & libc::RWF_APPEND != 0);
        // Only the kernel knows where an appended byte goes.
        let file = if appends { None } else { descriptor.file() };
        match (file, self.offset) {
            (None, _) => self.bounce(parts),
            (Some(file), Some(offset)) => self.at(&file, &descriptor, offset as u64, parts),
            (Some(file), None) => self.at_position(&file, &descriptor, parts),
        }
    }

    /// At the descriptor's position, which then moves. Calls with device memory come one after another; one
    /// with host memory in another thread may come between, as two reads of one position may.
    fn at_position(&self, file: &Arc<Kept>, descriptor: &Descriptor, parts: &[Part]) -> Outcome<u64> {
        let _turn = file.position.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: moves the position of the program's descriptor, as its call would.
        let position = unsafe { libc::lseek(self.fd, 0, libc::SEEK_CUR) };
        if position < 0 {
            return Err(real::errno());
        }
        let moved = self.at(file, descriptor, position as u64, parts)?;
        // SAFETY: as above.
        unsafe { libc::lseek(self.fd, position + moved as off_t, libc::SEEK_SET) };
        Ok(moved)
    }

    fn at(&self, file: &Arc<Kept>, descriptor: &Descriptor, offset: u64, parts: &[Part]) -> Outcome<u64> {
        let mut moved = 0;
        for part in parts {
            let part = part.cut(CALL_BYTES_MAX - moved);
            if part.len == 0 {
                continue;
            }
            let outcome = match (part.device, self.direction) {
                (None, _) => self.in_host_memory(&part, offset + moved),
                (Some(device), Direction::Read) => read(file, &device, part.len, offset + moved),
                (Some(device), Direction::Write) => {
                    let durable = self.is_durable(descriptor);
                    write(file, &device, part.len, offset + moved, durable)
                }
            };
            match outcome {
                Ok(bytes) => moved += bytes,
                // What has been moved is reported; the next call meets the failure.
                Err(code) => return if moved > 0 { Ok(moved) } else { Err(code) },
            }
            if outcome != Ok(part.len) {
                break;
            }
        }
        Ok(moved)
    }

    fn is_durable(&self, descriptor: &Descriptor) -> bool {
        descriptor.flags & libc::O_DSYNC != 0 || self.flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0
    }

    /// A buffer of the CPU's among those of a device.
    fn in_host_memory(&self, part: &Part, offset: u64) -> Outcome<u64> {
        let (buffer, len) = (std::ptr::with_exposed_provenance_mut::<c_void>(part.address as usize), part.len as usize);
        // SAFETY: the program's buffer, which the kernel checks.
        let moved = unsafe {
            match self.direction {
                Direction::Read => real::pread(self.fd, buffer, len, offset as off_t),
                Direction::Write => real::pwrite(self.fd, buffer, len, offset as off_t),
            }
        };
        if moved < 0 { Err(real::errno()) } else { Ok(moved as u64) }
    }

    /// The call itself with host memory in the place of the device's: pipes, sockets, terminals, appending.
    fn bounce(&self, parts: &[Part]) -> Outcome<u64> {
        let mut left = BOUNCED_BYTES_MAX;
        let parts: Vec<_> = parts
            .iter()
            .map(|part| {
                let part = part.cut(left);
                left -= part.len;
                part
            })
            .collect();
        let mut memory = vec![0_u8; parts.iter().map(|part| part.len as usize).sum()];
        if self.direction == Direction::Write {
            copy_all(&parts, &mut memory, &mut |part, bytes| part.download(bytes))?;
        }
        let vector = iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        let (fd, vectors, flags) = (self.fd, &raw const vector, self.flags);
        // SAFETY: one vector of memory of our own.
        let moved = unsafe {
            match (self.direction, self.offset, flags) {
                (Direction::Read, None, 0) => real::readv(fd, vectors, 1),
                (Direction::Read, Some(offset), 0) => real::preadv(fd, vectors, 1, offset),
                (Direction::Read, offset, _) => real::preadv2(fd, vectors, 1, offset.unwrap_or(-1), flags),
                (Direction::Write, None, 0) => real::writev(fd, vectors, 1),
                (Direction::Write, Some(offset), 0) => real::pwritev(fd, vectors, 1, offset),
                (Direction::Write, offset, _) => real::pwritev2(fd, vectors, 1, offset.unwrap_or(-1), flags),
            }
        };
        if moved < 0 {
            return Err(real::errno());
        }
        memory.truncate(moved as usize);
        if self.direction == Direction::Read {
            copy_all(&parts, &mut memory, &mut |part, bytes| part.upload(bytes))?;
        }
        log::BOUNCED.add(moved as u64);
        Ok(moved as u64)
    }
}

/// `RWF_DONTCACHE`, since Linux 6.14; advice.
const RWF_DONTCACHE: c_int = 0x80;

/// Copies between the parts and the memory that stands for them, as far as that goes.
fn copy_all(
    parts: &[Part],
    memory: &mut [u8],
    copy: &mut dyn FnMut(&Part, &mut [u8]) -> bifolio_io::Result<()>,
) -> Outcome<()> {
    let mut rest = memory;
    for part in parts {
        let (mine, others) = rest.split_at_mut((part.len as usize).min(rest.len()));
        if !mine.is_empty() {
            copy(part, mine).map_err(|error| code_of(&error))?;
        }
        rest = others;
    }
    Ok(())
}

impl Part {
    fn download(&self, bytes: &mut [u8]) -> bifolio_io::Result<()> {
        if let Some(device) = &self.device {
            let (router, slice) = (process::router_of(device)?, slice_of(device, bytes.len() as u64));
            let copied = router.device().create_stream().and_then(|stream| stream.download(bytes, slice));
            return copied.map_err(|error| Error::device("device memory".as_ref(), error));
        }
        let from = std::ptr::with_exposed_provenance::<u8>(self.address as usize);
        // SAFETY: the program vouches for its buffer of host memory.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn upload(&self, bytes: &[u8]) -> bifolio_io::Result<()> {
        if let Some(device) = &self.device {
            let (router, slice) = (process::router_of(device)?, slice_of(device, bytes.len() as u64));
            let copied = router.device().create_stream().and_then(|stream| stream.upload(slice, bytes));
            return copied.map_err(|error| Error::device("device memory".as_ref(), error));
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}

fn slice_of(device: &Located, len: u64) -> DeviceSlice<'static> {
    // SAFETY: the program vouches for its memory until its call returns; `len` ends within the allocation.
    unsafe { DeviceSlice::from_raw(device.address, len) }
}

fn read(file: &Kept, device: &Located, len: u64, offset: u64) -> Outcome<u64> {
    let read = |router: &Router| -> bifolio_io::Result<u64> {
        let len = len.min(file.file.size()?.saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        let slice = slice_of(device, len);
        Ok(router.read(&file.file, offset, Some(len), slice, &ReadOptions::default())?.bytes)
    };
    let router = process::router_of(device).map_err(|error| code_of(&error))?;
    let outcome = match read(&router) {
        // A file that is being cut has fewer bytes now, which is an answer.
        Err(error) if error.kind() == ErrorKind::Truncated => read(&router),
        outcome => outcome,
    };
    outcome.inspect(|bytes| log::READ.add(*bytes)).map_err(|error| code_of(&error))
}

fn write(file: &Arc<Kept>, device: &Located, len: u64, offset: u64, durable: bool) -> Outcome<u64> {
    let router = process::router_of(device).map_err(|error| code_of(&error))?;
    let options = WriteOptions { durable, ..WriteOptions::default() };
    let written = router.write(&file.file, offset, slice_of(device, len), &options);
    written.map(|report| report.bytes).inspect(|bytes| log::WRITTEN.add(*bytes)).map_err(|error| {
        files::close(file);
        code_of(&error)
    })
}

/// The errno for a failure, whose sentence goes to the log.
fn code_of(error: &Error) -> c_int {
    log::say(error);
    error.os_code().unwrap_or(match error.kind() {
        ErrorKind::Permission => libc::EACCES,
        ErrorKind::BadRange => libc::EINVAL,
        ErrorKind::ReadOnly => libc::EBADF,
        ErrorKind::Forked => libc::EFAULT,
        _ => libc::EIO,
    })
}
