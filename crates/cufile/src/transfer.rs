//! Moves the bytes of one range, and waits until that is done.
//!
//! Memory of a device goes through its router. Memory of the CPU goes through `pread` and `pwrite`, called here
//! and not by `bifolio-io`: that takes slices, and an address of a program's may be wild, which these calls refuse
//! instead of crashing. Both have the results of these calls: fewer bytes only at the
//! end of the file, or where there is no room for more. Where the router finds no room for a write, it is done
//! through memory of the CPU, so that the kernel finds how much there is.

use crate::handle::{Opened, Registered};
use crate::range::{Direction, MemoryRange, in_offsets};
use crate::stats::{Watch, Way};
use crate::status::{Failure, Outcome};
use bifolio_device::DeviceSlice;
use bifolio_device::pointer::Located;
use bifolio_io::{Cancel, EngineKind, Error, ErrorKind, ReadOptions, Router, SegmentReport, WriteOptions, process};
use std::ffi::c_void;
use std::io;
use std::os::fd::AsRawFd;

/// A system call moves less than 2 GiB.
const CALL_BYTES_MAX: usize = 1 << 30;

/// Bytes that go through memory of the CPU at a time.
const PIECE_BYTES: u64 = 4 << 20;

/// Moves the bytes of one range; how many there were.
pub(crate) fn run(
    file: &Registered,
    direction: Direction,
    offset: u64,
    memory: MemoryRange,
    cancel: &Cancel,
) -> Outcome<u64> {
    let watch = Watch::by_gpu();
    let moved = carry(file, direction, offset, memory, cancel);
    watch.end_on_gpu(direction, offset, &memory, moved.as_ref().ok().copied());
    moved.map(|(bytes, _)| bytes)
}

/// What was moved, and how.
type Moved = (u64, Way);

fn carry(file: &Registered, direction: Direction, offset: u64, range: MemoryRange, cancel: &Cancel) -> Outcome<Moved> {
    let by_cpu = |moved: Outcome<u64>| moved.map(|bytes| (bytes, Way::Posix));
    match (range, direction) {
        (MemoryRange::Device(_, memory), _) if memory.is_empty() => Ok((0, Way::Posix)),
        (MemoryRange::Device(located, memory), Direction::Read) => {
            read_to_device(file, offset, located, memory, cancel)
        }
        (MemoryRange::Device(located, memory), Direction::Write) => {
            write_from_device(file, offset, located, memory, cancel)
        }
        (MemoryRange::Host(memory, len), Direction::Read) => {
            by_cpu(by_calls(&file.opened(), direction, offset, memory, len))
        }
        (MemoryRange::Host(memory, len), Direction::Write) => {
            by_cpu(write_from_host(&file.opened(), offset, memory, len))
        }
    }
}

fn read_to_device(
    file: &Registered,
    offset: u64,
    located: Located,
    memory: DeviceSlice<'_>,
    cancel: &Cancel,
) -> Outcome<Moved> {
    let (router, opened) = (process::router_of(&located)?, file.opened());
    let length = in_offsets(Direction::Read, offset, memory.len())?;
    let options = ReadOptions { cancel: cancel.clone(), ..ReadOptions::default() };
    let read = || router.read(&opened.file, offset, Some(length), memory, &options);
    let outcome = match read() {
        // The file became shorter meanwhile: what `pread` returns is what is left of it.
        Err(error) if error.kind() == ErrorKind::Truncated => read(),
        outcome => outcome,
    };
    match outcome {
        Ok(report) => Ok((report.bytes, way_of(&report.plan))),
        // Asking first would cost a system call for each read.
        Err(error) if error.kind() == ErrorKind::BadRange && opened.file.size()? <= offset => Ok((0, Way::Posix)),
        Err(error) => Err(error.into()),
    }
}

fn write_from_device(
    file: &Registered,
    offset: u64,
    located: Located,
    memory: DeviceSlice<'_>,
    cancel: &Cancel,
) -> Outcome<Moved> {
    let router = process::router_of(&located)?;
    let mut opened = file.opened();
    // Room that is found missing beforehand would be missing for what fits, too.
    let options = WriteOptions {
        durable: opened.is_durable,
        preallocate: false,
        cancel: cancel.clone(),
        ..WriteOptions::default()
    };
    let write = |opened: &Opened| router.write(&opened.file, offset, memory, &options);
    let mut written = write(&opened);
    // A write of another thread has failed, and the file was not opened anew, or could not be.
    if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::Latched)
        && let Ok(anew) = file.renewed(&opened)
    {
        opened = anew;
        written = write(&opened);
    }
    let error = match written {
        Ok(report) => return Ok((report.bytes, way_of(&report.plan))),
        Err(error) => error,
    };
    if latches(&error) {
        // Where it cannot be opened anew now, the next write tries.
        opened = file.renewed(&opened).unwrap_or(opened);
    }
    if error.kind() == ErrorKind::Latched || has_no_room(&error) {
        return write_through_host(&router, &opened, offset, memory).map(|bytes| (bytes, Way::Posix));
    }
    Err(error.into())
}

/// How the router moved the bytes of a request.
pub(crate) fn way_of(plan: &[SegmentReport]) -> Way {
    let is_direct = plan.iter().any(|segment| segment.engine == EngineKind::P2p);
    if is_direct { Way::NvidiaFs } else { Way::Posix }
}

/// Whether a file refuses writes after one that has failed so.
fn latches(error: &Error) -> bool {
    use ErrorKind::{BadRange, Cancelled, Forked, NoEngine, ReadOnly};
    !matches!(error.kind(), BadRange | Cancelled | Forked | NoEngine | ReadOnly)
}

/// A full disk, a quota, a limit on sizes: some of it may fit.
fn has_no_room(error: &Error) -> bool {
    matches!(error.os_code(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

fn write_through_host(router: &Router, opened: &Opened, offset: u64, memory: DeviceSlice<'_>) -> Outcome<u64> {
    let stream = router.device().create_stream()?;
    let mut piece = vec![0_u8; memory.len().min(PIECE_BYTES) as usize];
    let mut done = 0;
    while done < memory.len() {
        let bytes = &mut piece[..(memory.len() - done).min(PIECE_BYTES) as usize];
        stream.download(bytes, memory.part(done, bytes.len() as u64)?)?;
        match write_from_host(opened, offset + done, bytes.as_mut_ptr(), bytes.len()) {
            Ok(moved) => done += moved,
            Err(failure) if done == 0 => return Err(failure),
            Err(_) => break,
        }
        if !done.is_multiple_of(PIECE_BYTES) {
            break;
        }
    }
    Ok(done)
}

/// Writes from memory of the CPU.
fn write_from_host(opened: &Opened, offset: u64, memory: *mut u8, len: usize) -> Outcome<u64> {
    let _writing = opened.file.writing();
    by_calls(opened, Direction::Write, offset, memory, len)
}

/// Moves bytes of memory of the CPU. Whoever writes holds [`bifolio_io::OpenFile::writing`].
pub(crate) fn by_calls(file: &Opened, direction: Direction, offset: u64, memory: *mut u8, len: usize) -> Outcome<u64> {
    let descriptor = file.file.buffered().as_raw_fd();
    let mut done = 0;
    while done < len {
        let at = offset.saturating_add(done as u64).min(i64::MAX as u64) as i64;
        let count = (len - done).min(CALL_BYTES_MAX);
        let address = memory.wrapping_add(done).cast::<c_void>();
        // SAFETY: the kernel checks the address, and the caller of the library vouches for who uses it.
        let moved = unsafe {
            match direction {
                Direction::Read => libc::pread64(descriptor, address, count, at),
                Direction::Write => libc::pwrite64(descriptor, address, count, at),
            }
        };
        match moved {
            1.. => done += moved as usize,
            0 => break,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                if done > 0 {
                    break;
                }
                return Err(system(file, direction, at, &error));
            }
        }
    }
    if direction == Direction::Write && file.is_durable && done > 0 {
        file.file.buffered().sync_data().map_err(|error| system(file, direction, offset as i64, &error))?;
    }
    Ok(done as u64)
}

fn system(file: &Opened, direction: Direction, at: i64, error: &io::Error) -> Failure {
    let doing = if direction == Direction::Read { "reading into" } else { "writing from" };
    let text = format!("{}, offset {at}: {doing} host memory failed: {error}", file.file.path().display());
    Failure::system(error.raw_os_error().unwrap_or(libc::EIO), text)
}
