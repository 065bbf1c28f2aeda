//! Reads and writes that return when they are done.
//!
//! Memory of a device goes through its router. Memory of the CPU goes through `pread` and `pwrite`, which
//! refuse a wild address instead of crashing. Both have the results of these calls: fewer bytes only at the
//! end of the file, or where there is no room for more. Where the router finds no room for a write, it is done
//! through memory of the CPU, so that the kernel finds how much there is.

use crate::abi::{CUfileHandle_t, CUfileIOVec_t};
use crate::buffer::{Memory, Place};
use crate::driver::Active;
use crate::handle::{self, Opened, Registered};
use crate::stats::{self, Flow, Watch, Way};
use crate::status::{Failure, Outcome, bytes};
use bifolio_device::DeviceSlice;
use bifolio_device::pointer::Located;
use bifolio_io::{Cancel, EngineKind, Error, ErrorKind, ReadOptions, Router, SegmentReport, WriteOptions, process};
use std::ffi::{c_uint, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// A system call moves less than 2 GiB.
const CALL_BYTES_MAX: usize = 1 << 30;

/// Bytes that go through memory of the CPU at a time.
const PIECE_BYTES: u64 = 4 << 20;

/// Places of a vectored request at most, as for `preadv`.
const PLACES_MAX: usize = 1024;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The file of a request.
pub(crate) fn file_for(handle: CUfileHandle_t, direction: Direction) -> Outcome<Arc<Registered>> {
    let file = handle::find(handle)?;
    let (is_allowed, access) = match direction {
        Direction::Read => (file.is_readable, "reading"),
        Direction::Write => (file.is_writable, "writing"),
    };
    if is_allowed {
        return Ok(file);
    }
    let text = format!("{}: the descriptor was not opened for {access}", file.path().display());
    Err(Failure::system(libc::EBADF, text))
}

/// An offset in a file.
pub(crate) fn offset_of(offset: i64) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Failure::argument(format!("the offset in the file is negative ({offset})")))
}

/// Moves the bytes of one range; how many there were.
pub(crate) fn run(file: &Registered, direction: Direction, offset: u64, place: Place, cancel: &Cancel) -> Outcome<u64> {
    let watch = Watch::by_gpu();
    let moved = carry(file, direction, offset, place, cancel);
    watch.end_on_gpu(direction, offset, &place, moved.as_ref().ok().copied());
    moved.map(|(bytes, _)| bytes)
}

/// What was moved, and how.
type Moved = (u64, Way);

fn carry(file: &Registered, direction: Direction, offset: u64, place: Place, cancel: &Cancel) -> Outcome<Moved> {
    let by_cpu = |moved: Outcome<u64>| moved.map(|bytes| (bytes, Way::Posix));
    match (place, direction) {
        (Place::Device(_, memory), _) if memory.is_empty() => Ok((0, Way::Posix)),
        (Place::Device(located, memory), Direction::Read) => read_to_device(file, offset, located, memory, cancel),
        (Place::Device(located, memory), Direction::Write) => write_from_device(file, offset, located, memory, cancel),
        (Place::Host(memory, len), Direction::Read) => by_cpu(by_calls(&file.opened(), direction, offset, memory, len)),
        (Place::Host(memory, len), Direction::Write) => by_cpu(write_from_host(&file.opened(), offset, memory, len)),
    }
}

/// How many bytes of a range have offsets: a file that is read ends before, and cannot be written beyond.
pub(crate) fn in_offsets(direction: Direction, offset: u64, bytes: u64) -> Outcome<u64> {
    let room = (i64::MAX as u64).saturating_sub(offset);
    if direction == Direction::Write && bytes > room {
        return Err(Failure::argument(format!("{bytes} bytes at {offset} end beyond all offsets")));
    }
    Ok(bytes.min(room))
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
fn way_of(plan: &[SegmentReport]) -> Way {
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
        let place = memory.wrapping_add(done).cast::<c_void>();
        // SAFETY: the kernel checks the address, and the caller of the library vouches for who uses it.
        let moved = unsafe {
            match direction {
                Direction::Read => libc::pread64(descriptor, place, count, at),
                Direction::Write => libc::pwrite64(descriptor, place, count, at),
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
    let text = format!("{}, offset {at}: {doing} memory of the CPU failed: {error}", file.file.path().display());
    Failure::system(error.raw_os_error().unwrap_or(libc::EIO), text)
}

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
        let file = file_for(fh, direction)?;
        let offset = offset_of(file_offset)?;
        let place = Memory::at(base)?.range(buffer_offset, size)?;
        run(&file, direction, offset, place, &Cancel::default())
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

/// The places of a vectored request.
unsafe fn places_of(iov: *const CUfileIOVec_t, count: usize, flags: c_uint) -> Outcome<Vec<Place>> {
    if flags != 0 {
        return Err(Failure::argument(format!("there are no flags {flags:#x} for vectored requests")));
    }
    if count > PLACES_MAX || iov.is_null() && count > 0 {
        return Err(Failure::argument(format!("{count} places at {iov:?} are NULL or more than {PLACES_MAX}")));
    }
    if count == 0 {
        return Ok(vec![]);
    }
    // SAFETY: the caller's promise.
    let places = unsafe { std::slice::from_raw_parts(iov, count) };
    let used = places.iter().filter(|place| place.len > 0);
    let places: Vec<Place> = used.map(|place| Memory::at(place.base)?.range(0, place.len)).collect::<Outcome<_>>()?;
    let total = places.iter().try_fold(0_isize, |sum, place| sum.checked_add_unsigned(place.len()));
    total.map(|_| places).ok_or_else(|| Failure::argument("the places have more bytes than there are addresses"))
}

impl Place {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Device(_, memory) => memory.len() as usize,
            Self::Host(_, len) => *len,
        }
    }
}

/// All places as those of one router, where they are.
fn of_one_router(places: &[Place]) -> Option<(Located, Vec<DeviceSlice<'static>>)> {
    let Some(Place::Device(first, _)) = places.first() else { return None };
    let same = |place: &Place| match place {
        Place::Device(located, memory) => {
            let router = |located: &Located| (located.device, located.context, located.incarnation);
            (router(located) == router(first)).then_some(*memory)
        }
        Place::Host(..) => None,
    };
    Some((*first, places.iter().map(same).collect::<Option<_>>()?))
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
    stats::counted_request(flow, 0, || unsafe { into_places(direction, fh, iov, count, file_offset, flags) })
}

unsafe fn into_places(
    direction: Direction,
    fh: CUfileHandle_t,
    iov: *const CUfileIOVec_t,
    count: usize,
    file_offset: i64,
    flags: c_uint,
) -> Outcome<u64> {
    let file = file_for(fh, direction)?;
    let mut offset = offset_of(file_offset)?;
    // SAFETY: the caller's promise.
    let places = unsafe { places_of(iov, count, flags) }?;
    if direction == Direction::Read
        && let Some((located, memory)) = of_one_router(&places)
        && memory.len() > 1
        && let opened = file.opened()
        && offset < opened.file.size()?
    {
        let watch = Watch::by_gpu();
        let read = process::router_of(&located)?.read_vectored(&opened.file, offset, &memory, &ReadOptions::default());
        let moved = read.map(|report| (report.bytes, way_of(&report.plan)));
        watch.end_on_gpu(direction, offset, &places[0], moved.as_ref().ok().copied());
        return Ok(moved?.0);
    }
    let mut done = 0;
    for place in places {
        let moved = match run(&file, direction, offset, place, &Cancel::default()) {
            // What was moved before counts, as for `preadv`.
            Err(failure) if done == 0 => return Err(failure),
            Err(_) => break,
            Ok(moved) => moved,
        };
        (done, offset) = (done + moved, offset + moved);
        if moved < place.len() as u64 {
            break;
        }
    }
    Ok(done)
}

/// Reads bytes at `file_offset` into several places, one after the other: how many there were.
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

/// Writes bytes of several places, one after the other, at `file_offset`: how many there were.
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
