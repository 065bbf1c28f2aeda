//! The call itself with host memory in the place of the device's: for what has no offsets, and where only the kernel
//! knows how much there is room for.

use crate::call::{Call, Direction, Outcome, Part, behind, code_of};
use crate::files::Descriptor;
use crate::{log, real};
use libc::{c_int, c_void, iovec, off_t};

/// What Linux moves by one call at most (`MAX_RW_COUNT`).
pub(crate) const CALL_BYTES_MAX: u64 = 0x7fff_f000;
/// Bytes that go through host memory at a time.
const BOUNCED_BYTES_MAX: u64 = 64 << 20;

/// The call itself with host memory in the place of the device's: pipes, sockets, terminals, appending.
pub(crate) fn bounce(call: &Call, descriptor: &Descriptor, parts: &[Part]) -> Outcome<u64> {
    let mut moved = 0;
    let mut rest: Vec<_> = parts.to_vec();
    loop {
        let wanted: u64 = rest.iter().map(|part| part.len).sum();
        let offset = call.offset.map(|offset| offset + moved as off_t);
        let piece = bounce_piece(&Call { offset, ..*call }, &rest);
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

fn bounce_piece(call: &Call, parts: &[Part]) -> Outcome<u64> {
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
    if call.direction == Direction::Write {
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
    let moved = pass_on(call, &vectors)?;
    if call.direction == Direction::Read {
        copy_all(&parts, &mut memory, moved, &mut |part, bytes| part.upload(bytes))?;
    }
    log::BOUNCED.add(moved);
    Ok(moved)
}

fn pass_on(call: &Call, vectors: &[iovec]) -> Outcome<u64> {
    let (fd, list, count, flags) = (call.fd, vectors.as_ptr(), vectors.len() as c_int, call.flags);
    // SAFETY: vectors of memory of our own and of the program's, which the kernel checks.
    let moved = unsafe {
        match (call.direction, call.offset, flags) {
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
