//! Entry points of reads and writes that return when they are done, of one range of memory and of several.

use crate::abi::{CUfileHandle_t, CUfileIOVec_t};
use crate::buffer::Memory;
use crate::handle;
use crate::range::{Direction, MemoryRange, offset_of, router_key};
use crate::session::Active;
use crate::stats::{self, Flow, Watch};
use crate::status::{Failure, Outcome, bytes};
use crate::transfer::{run, way_of};
use bifolio_device::DeviceSlice;
use bifolio_device::pointer::Located;
use bifolio_io::{Cancel, ReadOptions, process};
use std::ffi::{c_uint, c_void};

/// Ranges of memory of a vectored request at most, as for `preadv`.
const VECTORS_MAX: usize = 1024;

fn one(
    direction: Direction,
    fh: CUfileHandle_t,
    base: *const c_void,
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
) -> Outcome<u64> {
    let _active = Active::begin();
    stats::counted_request(Flow::of(direction), size, || {
        let file = handle::find_for(fh, direction)?;
        let offset = offset_of(file_offset)?;
        let memory = Memory::at(base)?.range(buffer_offset, size)?;
        run(&file, direction, offset, memory, &Cancel::default())
    })
}

/// Reads `size` bytes at `file_offset` to `buf_ptr_offset` bytes behind `buf_ptr_base`: how many there were.
///
/// # Safety
/// The memory may be written, and is used by nobody else meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileRead(
    fh: CUfileHandle_t,
    buf_ptr_base: *mut c_void,
    size: usize,
    file_offset: i64,
    buf_ptr_offset: i64,
) -> isize {
    bytes("cuFileRead", || one(Direction::Read, fh, buf_ptr_base, size, file_offset, buf_ptr_offset))
}

/// Writes `size` bytes from `buf_ptr_offset` bytes behind `buf_ptr_base` at `file_offset`: how many there were.
///
/// # Safety
/// The memory may be read, and is written by nobody meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileWrite(
    fh: CUfileHandle_t,
    buf_ptr_base: *const c_void,
    size: usize,
    file_offset: i64,
    buf_ptr_offset: i64,
) -> isize {
    bytes("cuFileWrite", || one(Direction::Write, fh, buf_ptr_base, size, file_offset, buf_ptr_offset))
}

/// The ranges of memory of a vectored request.
unsafe fn ranges_of(iov: *const CUfileIOVec_t, count: usize, flags: c_uint) -> Outcome<Vec<MemoryRange>> {
    if flags != 0 {
        return Err(Failure::argument(format!("the flags {flags:#x} for vectored requests are not defined")));
    }
    if count > VECTORS_MAX {
        return Err(Failure::argument(format!("{count} ranges of memory are more than {VECTORS_MAX}")));
    }
    if iov.is_null() && count > 0 {
        return Err(Failure::argument(format!("the array of {count} ranges of memory is NULL")));
    }
    if count == 0 {
        return Ok(vec![]);
    }
    // SAFETY: the caller's promise.
    let vectors = unsafe { std::slice::from_raw_parts(iov, count) };
    let used = vectors.iter().filter(|vector| vector.len > 0);
    let range = |vector: &CUfileIOVec_t| Memory::at(vector.base)?.range(0, vector.len);
    let ranges: Vec<MemoryRange> = used.map(range).collect::<Outcome<_>>()?;
    let total = ranges.iter().try_fold(0_isize, |sum, range| sum.checked_add_unsigned(range.len()));
    total
        .map(|_| ranges)
        .ok_or_else(|| Failure::argument("the ranges of memory have more bytes than a call can return"))
}

/// All ranges as those of one router, where they are.
fn of_one_router(ranges: &[MemoryRange]) -> Option<(Located, Vec<DeviceSlice<'static>>)> {
    let Some(MemoryRange::Device(first, _)) = ranges.first() else { return None };
    let same = |range: &MemoryRange| match range {
        MemoryRange::Device(located, memory) => (router_key(located) == router_key(first)).then_some(*memory),
        MemoryRange::Host(..) => None,
    };
    Some((*first, ranges.iter().map(same).collect::<Option<_>>()?))
}

unsafe fn vectored(
    direction: Direction,
    fh: CUfileHandle_t,
    iov: *const CUfileIOVec_t,
    count: usize,
    file_offset: i64,
    flags: c_uint,
) -> Outcome<u64> {
    let _active = Active::begin();
    let flow = if direction == Direction::Read { Flow::Readv } else { Flow::Writev };
    // SAFETY: the caller's promise.
    stats::counted_request(flow, 0, || unsafe { move_all(direction, fh, iov, count, file_offset, flags) })
}

unsafe fn move_all(
    direction: Direction,
    fh: CUfileHandle_t,
    iov: *const CUfileIOVec_t,
    count: usize,
    file_offset: i64,
    flags: c_uint,
) -> Outcome<u64> {
    let file = handle::find_for(fh, direction)?;
    let mut offset = offset_of(file_offset)?;
    // SAFETY: the caller's promise.
    let ranges = unsafe { ranges_of(iov, count, flags) }?;
    if direction == Direction::Read
        && let Some((located, memory)) = of_one_router(&ranges)
        && memory.len() > 1
        && let opened = file.opened()
        && offset < opened.file.size()?
    {
        let watch = Watch::by_gpu();
        let read = process::router_of(&located)?.read_vectored(&opened.file, offset, &memory, &ReadOptions::default());
        let moved = read.map(|report| (report.bytes, way_of(&report.plan)));
        watch.end_on_gpu(direction, offset, &ranges[0], moved.as_ref().ok().copied());
        return Ok(moved?.0);
    }
    let mut done = 0;
    for range in ranges {
        let moved = match run(&file, direction, offset, range, &Cancel::default()) {
            // What was moved before counts, as for `preadv`.
            Err(failure) if done == 0 => return Err(failure),
            Err(_) => break,
            Ok(moved) => moved,
        };
        (done, offset) = (done + moved, offset + moved);
        if moved < range.len() as u64 {
            break;
        }
    }
    Ok(done)
}

/// Reads bytes at `file_offset` into several ranges of memory, one after the other: how many there were.
///
/// # Safety
/// `iov` has `iovcnt` elements, whose memory may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileReadv(
    fh: CUfileHandle_t,
    iov: *const CUfileIOVec_t,
    iovcnt: usize,
    file_offset: i64,
    flags: c_uint,
) -> isize {
    // SAFETY: the caller's promise.
    bytes("cuFileReadv", || unsafe { vectored(Direction::Read, fh, iov, iovcnt, file_offset, flags) })
}

/// Writes bytes of several ranges of memory, one after the other, at `file_offset`: how many there were.
///
/// # Safety
/// `iov` has `iovcnt` elements, whose memory may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileWritev(
    fh: CUfileHandle_t,
    iov: *const CUfileIOVec_t,
    iovcnt: usize,
    file_offset: i64,
    flags: c_uint,
) -> isize {
    // SAFETY: the caller's promise.
    bytes("cuFileWritev", || unsafe { vectored(Direction::Write, fh, iov, iovcnt, file_offset, flags) })
}
