//! Requests of a mounted file, answered by a block device.
//!
//! Holes are discards: the kernel's loop device asks for them when swap gives clusters back. The device reads discarded
//! pages as zeroes, which is what a hole has to be.

use crate::cache::PagingCache;
use bifolio_block::BlockDevice;
use bifolio_keeper::fuse::{Channel, Operation, REQUEST_BYTES_MAX, Request, RequestBuffer};
use bifolio_keeper::{Error, Result};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long to look for a request before sleeping: longer than a program takes from one fault to the next.
const LOOK: Duration = Duration::from_micros(100);

/// Serves until the file is unmounted and closed, as one of several threads that share `turn`.
///
/// Whose turn it is awaits requests, and the others sleep until they have it: only one thread looks for requests, and what
/// takes no time is answered without waking anybody. Whatever may wait, for the backing or for a device, is answered
/// after the turn was passed on, so that nobody waits behind it.
///
/// # Errors
/// Those of the channel. Failures of the device are answers.
pub(crate) fn serve(channel: &Channel, cache: &PagingCache, turn: &Mutex<()>) -> Result<()> {
    let size = cache.geometry().size;
    let mut buffer = RequestBuffer::new();
    channel.look_before_sleeping()?;
    loop {
        let own = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(request) = channel.next(&mut buffer, LOOK)? else { return Ok(()) };
        let held = is_quick(cache, &request).then_some(own);
        if channel.leaves(&request, size)? {
            answer(channel, cache, &request, &mut buffer)?;
        }
        drop(held);
    }
}

/// Whether a request is answered out of memory.
fn is_quick(cache: &PagingCache, request: &Request) -> bool {
    match request.operation {
        Operation::Read { offset, len } => cache.is_quick(offset, len.into()),
        Operation::Write { .. } | Operation::Sync | Operation::Allocate { .. } => false,
        _ => true,
    }
}

fn answer(channel: &Channel, device: &dyn BlockDevice, request: &Request, buffer: &mut RequestBuffer) -> Result<()> {
    let unique = request.unique;
    let size = device.geometry().size;
    let fit = |offset: u64, len: u32| u64::from(len).min(size.saturating_sub(offset)) as u32;
    match request.operation {
        Operation::Read { offset, len } => {
            let own = buffer.data(fit(offset, len.min(REQUEST_BYTES_MAX as u32)));
            match device.read(offset.min(size), own) {
                Ok(()) => channel.answer(unique, own),
                Err(error) => channel.fail(unique, error.errno()),
            }
        }
        Operation::Write { offset, len } if fit(offset, len) < len => channel.fail(unique, libc::ENOSPC),
        Operation::Write { offset, len } => match device.write(offset, buffer.data(len)) {
            Ok(()) => channel.written(unique, len),
            Err(error) => channel.fail(unique, error.errno()),
        },
        Operation::Sync => done(channel, unique, device.flush()),
        Operation::Allocate { offset, len, mode } => match allocation(mode, offset, len, size) {
            Allocation::Discard => done(channel, unique, device.discard(offset, len)),
            Allocation::Nothing => channel.answer(unique, &[]),
            Allocation::Refuse => channel.fail(unique, libc::EOPNOTSUPP),
        },
        _ => Err(Error::new(bifolio_keeper::ErrorKind::BadUse, "a request was left that is not the device's")),
    }
}

fn done(channel: &Channel, unique: u64, result: bifolio_block::Result<()>) -> Result<()> {
    match result {
        Ok(()) => channel.answer(unique, &[]),
        Err(error) => channel.fail(unique, error.errno()),
    }
}

/// What to do about a call of `fallocate`.
#[derive(Debug, PartialEq, Eq)]
enum Allocation {
    Discard,
    Nothing,
    Refuse,
}

fn allocation(mode: u32, offset: u64, len: u64, size: u64) -> Allocation {
    let is_inside = offset.checked_add(len).is_some_and(|end| end <= size);
    let hole = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    let is_aligned = (offset | len).is_multiple_of(crate::pages::PAGE_BYTES);
    match mode {
        // Half a page would not be read as zeroes.
        mode if mode == hole && is_inside && is_aligned => Allocation::Discard,
        // All of it is there.
        0 if is_inside => Allocation::Nothing,
        _ => Allocation::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_discards_where_they_read_as_zeroes() {
        assert_eq!(allocation(3, 4096, 8192, 1 << 20), Allocation::Discard);
        assert_eq!(allocation(3, 512, 8192, 1 << 20), Allocation::Refuse);
        assert_eq!(allocation(3, 4096, 1 << 20, 1 << 20), Allocation::Refuse);
        assert_eq!(allocation(0, 0, 1 << 20, 1 << 20), Allocation::Nothing);
        assert_eq!(allocation(16, 0, 4096, 1 << 20), Allocation::Refuse);
    }
}
