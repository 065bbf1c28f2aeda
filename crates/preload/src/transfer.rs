//! Calls with device memory, with the results that the system call would have had.

use crate::files::{self, Descriptor, Kept};
use crate::{hosts, log, real};
use bifolio_device::pointer::{Located, locate};
use bifolio_device::{DeviceSlice, Stream};
use bifolio_io::{Error, ErrorKind, READ_CACHED_BYTES_MAX, ReadOptions, WriteOptions, process};
use libc::{c_int, c_void, iovec, off_t, ssize_t};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};

/// What Linux moves by one call at most (`MAX_RW_COUNT`).
const CALL_BYTES_MAX: u64 = 0x7fff_f000;
/// Bytes that go through host memory at a time.
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
        let device = (len > 0).then(|| locate(address)).flatten();
        // Host memory is known to its own side.
        if len > 0 && (device.is_some() || !hosts::hold(address)) {
            hosts::note(address, device.is_some());
        }
        Self { address, len, device }
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
    // Before the driver is asked, which a child must not; to the kernel it is nobody's memory.
    if files::was_forked() {
        log::say("device memory, or nobody's, in a child of the process that used device memory first: use exec");
        return None;
    }
    let code = real::errno();
    let parts: Vec<_> = vectors.iter().map(Part::of).collect();
    if parts.iter().all(|part| part.device.is_none()) {
        return None;
    }
    let outcome = std::panic::catch_unwind(|| call.run(&parts)).unwrap_or(Err(libc::EIO));
    // A success leaves errno alone.
    real::set_errno(outcome.err().unwrap_or(code));
    Some(outcome.map_or(-1, |bytes| bytes as ssize_t))
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
        match self.out_of_the_cache(parts)? {
            Some(bytes) if parts.len() == 1 && bytes == parts[0].len => Ok(bytes),
            // What has no offsets gives what it has at the time.
            Some(bytes) if !Descriptor::of(self.fd).is_ok_and(|now| now.has_offsets()) => Ok(bytes),
            Some(bytes) => {
                // At the end of the file there is no more; elsewhere the rest was not cached.
                let offset = self.offset.map(|offset| offset + bytes as off_t);
                let rest = Self { offset, ..*self }.by_the_router(&behind(parts, bytes));
                Ok(bytes + rest.unwrap_or(0))
            }
            None => self.by_the_router(parts),
        }
    }

    /// A short read of a descriptor whose latest one was cached: by the program's own descriptor, so that nothing
    /// needs to be asked about it. None where that is not so any more.
    fn out_of_the_cache(&self, parts: &[Part]) -> Outcome<Option<u64>> {
        let ([part], Direction::Read, 0) = (parts, self.direction, self.flags) else { return Ok(None) };
        let part = part.cut(CALL_BYTES_MAX);
        let Some(device) = part.device.filter(|_| part.len <= READ_CACHED_BYTES_MAX && files::is_cached(self.fd))
        else {
            return Ok(None);
        };
        // By position the kernel would not refuse a socket, whose message must not be cut, and calls by position come one
        // after another.
        let Some(Ok(offset)) = self.offset.map(u64::try_from) else { return Ok(None) };
        let router = process::router_of(&device).map_err(|error| code_of(&error))?;
        // SAFETY: the program keeps its descriptor open during its call; the kernel refuses what is none.
        let file = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let read = router.read_cached(file, offset, slice_of(&device, part.len)).map_err(|error| code_of(&error))?;
        match read {
            Some(bytes) => log::READ.add(bytes),
            None => files::note_cached(self.fd, false),
        }
        Ok(read)
    }

    fn by_the_router(&self, parts: &[Part]) -> Outcome<u64> {
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
            (None, _) => self.bounce(&descriptor, parts),
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
                (Some(device), Direction::Read) => read(file, descriptor, &device, part.len, offset + moved),
                (Some(_), Direction::Write) => self.write(file, descriptor, &part, offset + moved),
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

    /// From device memory to the file. Where there is no room for all of it, the kernel finds how much there is.
    fn write(&self, file: &Arc<Kept>, descriptor: &Descriptor, part: &Part, offset: u64) -> Outcome<u64> {
        let device = part.device.ok_or(libc::EFAULT)?;
        let durable = self.is_durable(descriptor);
        let anew = match file.file.size_if_intact() {
            Some(_) => None,
            None => Some(descriptor.anew(file)?),
        };
        match write(anew.as_ref().unwrap_or(file), &device, part.len, offset, durable) {
            Err(Failed::NoRoom) => {
                Self { offset: Some(offset as off_t), ..*self }.bounce(descriptor, std::slice::from_ref(part))
            }
            // Another thread's write has failed meanwhile.
            Err(Failed::Latched) => {
                let anew = descriptor.file().ok_or(libc::EIO)?;
                write(&anew, &device, part.len, offset, durable).map_err(Failed::code)
            }
            outcome => outcome.map_err(Failed::code),
        }
    }

    /// The call itself with host memory in the place of the device's: pipes, sockets, terminals, appending.
    fn bounce(&self, descriptor: &Descriptor, parts: &[Part]) -> Outcome<u64> {
        let mut moved = 0;
        let mut rest: Vec<_> = parts.to_vec();
        loop {
            let wanted: u64 = rest.iter().map(|part| part.len).sum();
            let offset = self.offset.map(|offset| offset + moved as off_t);
            let piece = Self { offset, ..*self }.bounce_piece(&rest);
            let bytes = match piece {
                Ok(bytes) => bytes,
                Err(code) => return if moved > 0 { Ok(moved) } else { Err(code) },
            };
            moved += bytes;
            // Of a regular file, a short count would be taken for its end.
            let piece_len = wanted.min(BOUNCED_BYTES_MAX);
            if !descriptor.is_regular() || bytes < piece_len || wanted <= piece_len || moved >= CALL_BYTES_MAX {
                return Ok(moved);
            }
            rest = behind(&rest, bytes);
        }
    }

    fn bounce_piece(&self, parts: &[Part]) -> Outcome<u64> {
        let mut left = BOUNCED_BYTES_MAX;
        let mut parts: Vec<_> = parts
            .iter()
            .map(|part| {
                let part = part.cut(left);
                left -= part.len;
                part
            })
            .collect();
        parts.retain(|part| part.len > 0);
        let on_device = parts.iter().filter(|part| part.device.is_some());
        let mut memory = vec![0_u8; on_device.map(|part| part.len as usize).sum()];
        if self.direction == Direction::Write {
            copy_all(&parts, &mut memory, u64::MAX, &mut |part, bytes| part.download(bytes))?;
        }
        // The program's own host memory is the kernel's to check.
        let mut rest = &mut memory[..];
        let vectors: Vec<_> = parts
            .iter()
            .map(|part| {
                let iov_len = part.len as usize;
                let iov_base = if part.device.is_none() {
                    std::ptr::with_exposed_provenance_mut(part.address as usize)
                } else {
                    let (mine, others) = std::mem::take(&mut rest).split_at_mut(iov_len);
                    rest = others;
                    mine.as_mut_ptr().cast::<c_void>()
                };
                iovec { iov_base, iov_len }
            })
            .collect();
        let moved = self.pass_on(&vectors)?;
        if self.direction == Direction::Read {
            copy_all(&parts, &mut memory, moved, &mut |part, bytes| part.upload(bytes))?;
        }
        log::BOUNCED.add(moved);
        Ok(moved)
    }

    fn pass_on(&self, vectors: &[iovec]) -> Outcome<u64> {
        let (fd, list, count, flags) = (self.fd, vectors.as_ptr(), vectors.len() as c_int, self.flags);
        // SAFETY: vectors of memory of our own and of the program's, which the kernel checks.
        let moved = unsafe {
            match (self.direction, self.offset, flags) {
                (Direction::Read, None, 0) => real::readv(fd, list, count),
                (Direction::Read, Some(offset), 0) => real::preadv(fd, list, count, offset),
                (Direction::Read, offset, _) => real::preadv2(fd, list, count, offset.unwrap_or(-1), flags),
                (Direction::Write, None, 0) => real::writev(fd, list, count),
                (Direction::Write, Some(offset), 0) => real::pwritev(fd, list, count, offset),
                (Direction::Write, offset, _) => real::pwritev2(fd, list, count, offset.unwrap_or(-1), flags),
            }
        };
        if moved < 0 { Err(real::errno()) } else { Ok(moved as u64) }
    }
}

/// What is left of some buffers behind their first bytes.
fn behind(parts: &[Part], bytes: u64) -> Vec<Part> {
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

/// `RWF_DONTCACHE`, since Linux 6.14; advice.
const RWF_DONTCACHE: c_int = 0x80;

/// Copies between the device's parts and the memory that stands for them, `total` bytes of all parts at most.
fn copy_all(
    parts: &[Part],
    memory: &mut [u8],
    total: u64,
    copy: &mut dyn FnMut(&Part, &mut [u8]) -> bifolio_io::Result<()>,
) -> Outcome<()> {
    let (mut rest, mut left) = (memory, total);
    for part in parts {
        let bytes = part.len.min(left);
        left -= bytes;
        if part.device.is_none() {
            continue;
        }
        let (mine, others) = rest.split_at_mut(part.len as usize);
        if bytes > 0 {
            copy(part, &mut mine[..bytes as usize]).map_err(|error| code_of(&error))?;
        }
        rest = others;
    }
    Ok(())
}

impl Part {
    fn download(&self, bytes: &mut [u8]) -> bifolio_io::Result<()> {
        self.copy(bytes.len() as u64, |stream, slice| stream.download(bytes, slice))
    }

    fn upload(&self, bytes: &[u8]) -> bifolio_io::Result<()> {
        self.copy(bytes.len() as u64, |stream, slice| stream.upload(slice, bytes))
    }

    fn copy(
        &self,
        len: u64,
        copy: impl FnOnce(&Stream, DeviceSlice<'_>) -> bifolio_device::Result<()>,
    ) -> bifolio_io::Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        let router = process::router_of(device)?;
        let device_of_it = router.device();
        let copied =
            device_of_it.settle(slice_of(device, len)).and_then(|place| copy(&device_of_it.create_stream()?, place));
        copied.map_err(|error| Error::device("device memory".as_ref(), error))
    }
}

/// Why a write by the router failed.
#[derive(Debug, Clone, Copy)]
enum Failed {
    /// A full disk, a quota, a limit on sizes: some of it may fit.
    NoRoom,
    /// An earlier write through the same file has failed.
    Latched,
    Otherwise(c_int),
}

impl Failed {
    fn code(self) -> c_int {
        match self {
            Self::NoRoom => libc::ENOSPC,
            Self::Latched => libc::EIO,
            Self::Otherwise(code) => code,
        }
    }
}

fn slice_of(device: &Located, len: u64) -> DeviceSlice<'static> {
    // SAFETY: the program vouches for its memory until its call returns; `len` ends within the allocation.
    unsafe { DeviceSlice::from_raw(device.address, len) }
}

fn read(file: &Arc<Kept>, descriptor: &Descriptor, device: &Located, len: u64, offset: u64) -> Outcome<u64> {
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

fn write(file: &Arc<Kept>, device: &Located, len: u64, offset: u64, durable: bool) -> Result<u64, Failed> {
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
