//! Reads and writes in the order of a stream.
//!
//! ```text
//!   mod        entry points, flags            queues     the queues of all streams
//!   queue      enqueues requests on a stream: gates, a thread, and threads for host work
//!   request    a request under way            staging    device memory and kernel; its slots (ring)
//!   late       parameters, known late         chunk      how a request is cut          traffic   closed gates
//! ```
//!
//! What a request's pointers point to is read when the stream comes to the request, as far as the flags of
//! the stream do not say that it is final at once; the file is read and written then, too, so that what
//! comes before on the stream has its effect. The number of bytes is stored before the stream goes on.
//!
//! Submitting returns at once as long as the stream has few requests before it. Each 4 MiB of a request need a
//! point where the stream waits for the host (a write one more at its end), drivers take a bounded number of
//! these, and the caller waits for the stream from the 25th on. So a program that holds a stream up until it has
//! submitted everything must not submit more than that: 96 MiB of reads, or 24 short ones.

mod chunk;
mod late;
mod queue;
mod queues;
mod request;
mod ring;
mod staging;
#[cfg(test)]
mod tests;
mod traffic;

use crate::abi::{
    CU_FILE_STREAM_FIXED_BUF_OFFSET, CU_FILE_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_SIZE,
    CU_FILE_STREAM_PAGE_ALIGNED_INPUTS, CUfileError_t, CUfileHandle_t, CUstream,
};
use crate::buffer::Memory;
use crate::handle;
use crate::range::Direction;
use crate::stats::{Flow, Watch};
use crate::status::{Failure, Outcome, status};
use late::{Late, Pointers};
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

const FLAGS: c_uint = CU_FILE_STREAM_FIXED_BUF_OFFSET
    | CU_FILE_STREAM_FIXED_FILE_OFFSET
    | CU_FILE_STREAM_FIXED_FILE_SIZE
    | CU_FILE_STREAM_PAGE_ALIGNED_INPUTS;

/// Flags of registered streams, by their handles.
static STREAMS: LazyLock<Mutex<HashMap<usize, c_uint>>> = LazyLock::new(Mutex::default);

fn streams() -> MutexGuard<'static, HashMap<usize, c_uint>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says which parameters of requests on a stream are final when they are submitted.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStreamRegister(stream: CUstream, flags: c_uint) -> CUfileError_t {
    status("cuFileStreamRegister", || {
        if flags & !FLAGS != 0 {
            return Err(Failure::argument(format!("the flags {flags:#x} for streams are not defined")));
        }
        streams().insert(stream.addr(), flags);
        Ok(())
    })
}

/// Gives up all streams, on which nothing is under way, and forgets their flags.
pub(crate) fn forget_all() {
    queues::forget_all();
    streams().clear();
}

/// Gives up what requests on a stream needed. It waits for them; a stream that is not known has none.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStreamDeregister(stream: CUstream) -> CUfileError_t {
    status("cuFileStreamDeregister", || {
        streams().remove(&stream.addr());
        queues::forget(stream.addr());
        Ok(())
    })
}

unsafe fn submit(
    direction: Direction,
    fh: CUfileHandle_t,
    base: *mut c_void,
    pointers: Pointers,
    stream: CUstream,
) -> Outcome<()> {
    let watch = Watch::begin();
    // SAFETY: the caller's promise.
    let late = unsafe { late(direction, fh, base, pointers, stream) };
    // Others are counted when they are over.
    let late = late.inspect_err(|failure| watch.end(Flow::of(direction), 0, &Err(failure.clone())))?;
    queues::enqueue(late, stream.expose_provenance())
}

unsafe fn late(
    direction: Direction,
    fh: CUfileHandle_t,
    base: *mut c_void,
    pointers: Pointers,
    stream: CUstream,
) -> Outcome<Late> {
    if !pointers.are_there() {
        return Err(Failure::argument("a pointer to a size, to an offset or for the result is NULL"));
    }
    let file = handle::find_for(fh, direction)?;
    let memory = Memory::at(base)?;
    let flags = streams().get(&stream.addr()).copied().unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { Late::new(file, direction, memory, pointers, flags) }
}

/// [`cuFileRead`](crate::cuFileRead) in the order of a stream. `*size_p` is the most that there can be; what
/// the pointers point to is read when the stream is there. `*bytes_read_p` is then the number of bytes, or
/// an error: negative, an `errno` or a `CUfileOpError`.
///
/// # Safety
/// The pointers are NULL, or point to memory of the CPU that stays until the stream is past the request; so
/// does the memory that is read to. The stream is one of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileReadAsync(
    fh: CUfileHandle_t,
    buf_ptr_base: *mut c_void,
    size_p: *mut usize,
    file_offset_p: *mut i64,
    buf_ptr_offset_p: *mut i64,
    bytes_read_p: *mut isize,
    stream: CUstream,
) -> CUfileError_t {
    status("cuFileReadAsync", || {
        let pointers =
            Pointers { size: size_p, offset: file_offset_p, buffer_offset: buf_ptr_offset_p, done: bytes_read_p };
        // SAFETY: the caller's promise.
        unsafe { submit(Direction::Read, fh, buf_ptr_base, pointers, stream) }
    })
}

/// [`cuFileWrite`](crate::cuFileWrite) in the order of a stream; the rest as [`cuFileReadAsync`].
///
/// # Safety
/// As for `cuFileReadAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileWriteAsync(
    fh: CUfileHandle_t,
    buf_ptr_base: *mut c_void,
    size_p: *mut usize,
    file_offset_p: *mut i64,
    buf_ptr_offset_p: *mut i64,
    bytes_written_p: *mut isize,
    stream: CUstream,
) -> CUfileError_t {
    status("cuFileWriteAsync", || {
        let pointers =
            Pointers { size: size_p, offset: file_offset_p, buffer_offset: buf_ptr_offset_p, done: bytes_written_p };
        // SAFETY: the caller's promise.
        unsafe { submit(Direction::Write, fh, buf_ptr_base, pointers, stream) }
    })
}
