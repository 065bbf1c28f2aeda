//! Requests that run while the caller goes on.

use crate::bf_ptr;
use crate::file::{bf_extent, bf_file, extents_of, inside, read_options, slice, write_options};
use crate::status::{BF_ERROR_TAKEN, Failure, Outcome, bf_status, bytes, handle, status, store};
use bifolio_device::DeviceSlice;
use bifolio_io::{BatchReport, Buffer, Pending, PendingOnStream, ReadOptions, ReadReport, Result, WriteReport};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// A request under way. Its device memory must stay valid until it is over ([`bf_request_wait`], or
/// [`bf_request_is_done`] says so), also when it was cancelled. One thread waits; any may ask or cancel.
#[allow(non_camel_case_types, reason = "C names")]
#[derive(Debug)]
pub struct bf_request(Mutex<Option<Running>>);

#[derive(Debug)]
enum Running {
    Read(Pending<ReadReport>),
    Batch(Pending<BatchReport>),
    Write(Pending<WriteReport>),
    OnStream(PendingOnStream),
    /// There was nothing to do.
    Nothing,
}

impl Running {
    fn is_done(&self) -> bool {
        match self {
            Self::Read(pending) => pending.is_done(),
            Self::Batch(pending) => pending.is_done(),
            Self::Write(pending) => pending.is_done(),
            Self::OnStream(pending) => pending.is_done(),
            Self::Nothing => true,
        }
    }

    fn cancel(&self) {
        match self {
            Self::Read(pending) => pending.cancel(),
            Self::Batch(pending) => pending.cancel(),
            Self::Write(pending) => pending.cancel(),
            Self::OnStream(pending) => pending.cancel(),
            Self::Nothing => {}
        }
    }

    fn wait(self) -> Result<u64> {
        match self {
            Self::Read(pending) => pending.wait().map(|report| report.bytes),
            Self::Batch(pending) => pending.wait().map(|report| report.bytes),
            Self::Write(pending) => pending.wait().map(|report| report.bytes),
            Self::OnStream(pending) => pending.wait(),
            Self::Nothing => Ok(0),
        }
    }
}

/// A share of the caller's memory.
///
/// # Safety
/// It stays valid until the request is over.
unsafe fn buffer(slice: DeviceSlice<'_>) -> Buffer {
    // SAFETY: the caller's promise.
    unsafe { Buffer::foreign(slice) }
}

/// # Safety
/// `request` is NULL or may be written.
unsafe fn hand_out(request: *mut *mut bf_request, running: Running) -> Outcome<()> {
    if request.is_null() {
        // It must not use the memory of a caller who cannot wait for it.
        running.cancel();
        let _ = running.wait();
        return Err(Failure::argument("the pointer for the request is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { store(request, Box::into_raw(Box::new(bf_request(Mutex::new(Some(running)))))) }
}

/// [`bf_read`](crate::bf_read), carried out while the caller goes on.
///
/// # Safety
/// `file` is open; `destination` is valid until the request is over; `request` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_submit_read(
    file: *mut bf_file,
    destination: bf_ptr,
    length: u64,
    offset: u64,
    request: *mut *mut bf_request,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let bf_file { router, file } = unsafe { handle(file, "file") }?;
        let length = inside(file, offset, length)?;
        // SAFETY: as above.
        let destination = unsafe { buffer(slice(destination, length)?) };
        let running = if length == 0 {
            Running::Nothing
        } else {
            let options = read_options(router)?;
            Running::Read(router.submit_read(file, offset, Some(length), &destination, &options))
        };
        // SAFETY: as above.
        unsafe { hand_out(request, running) }
    })
}

/// [`bf_read_batch`](crate::bf_read_batch), carried out while the caller goes on. `extents` may be freed at
/// once.
///
/// # Safety
/// As for `bf_read_batch`; `destination` is valid until the request is over; `request` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_submit_batch(
    file: *mut bf_file,
    extents: *const bf_extent,
    count: usize,
    destination: bf_ptr,
    length: u64,
    request: *mut *mut bf_request,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let (bf_file { router, file }, extents, destination) =
            unsafe { (handle(file, "file")?, extents_of(extents, count)?, buffer(slice(destination, length)?)) };
        let running = Running::Batch(router.submit_batch(file, extents, &destination, &read_options(router)?));
        // SAFETY: as above.
        unsafe { hand_out(request, running) }
    })
}

/// [`bf_write`](crate::bf_write), carried out while the caller goes on. Requests submitted later for the
/// same bytes of this file come after it.
///
/// # Safety
/// `file` is open; `source` is valid until the request is over; `request` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_submit_write(
    file: *mut bf_file,
    source: bf_ptr,
    length: u64,
    offset: u64,
    flags: u32,
    request: *mut *mut bf_request,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let (bf_file { router, file }, source) = unsafe { (handle(file, "file")?, buffer(slice(source, length)?)) };
        let running = Running::Write(router.submit_write(file, offset, &source, &write_options(router, flags)?));
        // SAFETY: as above.
        unsafe { hand_out(request, running) }
    })
}

/// Reads in the order of a stream of the caller's (a CUstream): the bytes land after what is enqueued on
/// it already and before what is enqueued later, although they have not been read yet when this returns.
///
/// # Safety
/// As for [`bf_submit_read`]; `stream` is a live stream of the context's device until the request is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_read_on_stream(
    file: *mut bf_file,
    stream: *mut c_void,
    destination: bf_ptr,
    length: u64,
    offset: u64,
    request: *mut *mut bf_request,
) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let bf_file { router, file } = unsafe { handle(file, "file") }?;
        let length = inside(file, offset, length)?;
        // SAFETY: as above.
        let (stream, destination) = unsafe {
            (router.device().adopt_stream(stream.expose_provenance() as u64)?, buffer(slice(destination, length)?))
        };
        let running = if length == 0 {
            Running::Nothing
        } else {
            let options = ReadOptions::default();
            Running::OnStream(router.submit_read_on(&stream, file, offset, Some(length), &destination, &options)?)
        };
        // SAFETY: as above.
        unsafe { hand_out(request, running) }
    })
}

/// Whether a request is over: 1, 0, or a negative `bf_status`.
///
/// # Safety
/// `request` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_request_is_done(request: *const bf_request) -> i32 {
    let done = bytes(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { handle(request, "request") }?.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(u64::from(state.as_ref().is_none_or(Running::is_done)))
    });
    done as i32
}

/// Blocks until a request is over. Returns its bytes, or a negative `bf_status`; once, then `BF_ERROR_TAKEN`.
///
/// # Safety
/// `request` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_request_wait(request: *mut bf_request) -> i64 {
    bytes(|| {
        // SAFETY: the caller's promise.
        let taken = unsafe { handle(request, "request") }?.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let detail =
            || Failure { status: BF_ERROR_TAKEN, text: "the result of the request was already taken".to_owned() };
        Ok(taken.ok_or_else(detail)?.wait()?)
    })
}

/// Asks a request to end early; wait for it all the same.
///
/// # Safety
/// `request` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_request_cancel(request: *mut bf_request) -> bf_status {
    status(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { handle(request, "request") }?.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref().inspect(|running| running.cancel());
        Ok(())
    })
}

/// Frees a request. One that is still under way is cancelled and waited for, so that its memory is free
/// afterwards. NULL is allowed.
///
/// # Safety
/// It was returned by this library and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_request_free(request: *mut bf_request) {
    if request.is_null() {
        return;
    }
    status(|| {
        // SAFETY: the caller's promise.
        let bf_request(state) = *unsafe { Box::from_raw(request) };
        if let Some(running) = state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            running.cancel();
            let _ = running.wait();
        }
        Ok(())
    });
}
