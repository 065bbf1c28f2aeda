//! Calls with device memory, with the results that the system call would have had.

use crate::bounce::{CALL_BYTES_MAX, bounce};
use crate::call::{Call, Direction, Outcome, Part, behind, code_of, slice_of};
use crate::files::{self, Descriptor, Kept};
use crate::routed::{self, Failed};
use crate::{log, real};
use bifolio_io::{READ_CACHED_BYTES_MAX, process};
use libc::{c_int, c_void, iovec, off_t, ssize_t};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};

/// Vectors of one call at most (`IOV_MAX`).
const VECTORS_MAX: usize = 1024;

/// `RWF_DONTCACHE`, since Linux 6.14; advice.
const RWF_DONTCACHE: c_int = 0x80;

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
            (None, _) => bounce(self, &descriptor, parts),
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
                (Some(device), Direction::Read) => routed::read(file, descriptor, &device, part.len, offset + moved),
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
        match routed::write(anew.as_ref().unwrap_or(file), &device, part.len, offset, durable) {
            Err(Failed::NoRoom) => {
                bounce(&Self { offset: Some(offset as off_t), ..*self }, descriptor, std::slice::from_ref(part))
            }
            // Another thread's write has failed meanwhile.
            Err(Failed::Latched) => {
                let anew = descriptor.file().ok_or(libc::EIO)?;
                routed::write(&anew, &device, part.len, offset, durable).map_err(Failed::code)
            }
            outcome => outcome.map_err(Failed::code),
        }
    }
}
