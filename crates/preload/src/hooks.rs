//! The names that this library puts in front of the C library's.
//!
//! Each hands the call on as it came, unless a buffer lies in a range that is known to be a device's, or the
//! kernel could not touch a buffer.

use crate::call::{Call, Direction};
use crate::transfer::{carry_out, copy_of};
use crate::{files, hosts, real};
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};

/// The kernel takes no more vectors (`IOV_MAX`).
const VECTORS_MAX: c_int = 1024;

/// A call with one buffer.
#[inline]
fn one(described: Call, buffer: *const c_void, length: size_t, pass_on: impl FnOnce() -> ssize_t) -> ssize_t {
    let vector = [iovec { iov_base: buffer.cast_mut(), iov_len: length }];
    let code = real::errno();
    if !hosts::hold(buffer.addr() as u64)
        && let Some(moved) = carry_out(&described, &vector)
    {
        return moved;
    }
    let moved = pass_on();
    if moved >= 0 || real::errno() != libc::EFAULT {
        return moved;
    }
    real::set_errno(code);
    carry_out(&described, &vector).unwrap_or_else(refuse)
}

/// A call with several buffers.
///
/// # Safety
/// `vectors` has `count` elements, or the kernel refuses it.
#[inline]
unsafe fn many(described: Call, vectors: *const iovec, count: c_int, pass_on: impl FnOnce() -> ssize_t) -> ssize_t {
    let code = real::errno();
    // A list that the CPU cannot read is the kernel's to refuse.
    let is_list = (1..=VECTORS_MAX).contains(&count) && hosts::hold(vectors.addr() as u64);
    if is_list {
        // SAFETY: the caller's promise.
        let vectors = unsafe { std::slice::from_raw_parts(vectors, count as usize) };
        if vectors.iter().any(|vector| vector.iov_len > 0 && !hosts::hold(vector.iov_base.addr() as u64))
            && let Some(moved) = carry_out(&described, vectors)
        {
            return moved;
        }
    }
    let moved = pass_on();
    if moved >= 0 || real::errno() != libc::EFAULT || !is_list {
        return moved;
    }
    real::set_errno(code);
    copy_of(vectors, count as usize).and_then(|vectors| carry_out(&described, &vectors)).unwrap_or_else(refuse)
}

fn refuse() -> ssize_t {
    real::set_errno(libc::EFAULT);
    -1
}

/// `hook!` makes the exported functions of one name and its aliases.
macro_rules! hook {
    (@ one $described:ident, $buffer:ident, $length:ident, $pass_on:ident) => {
        one($described, $buffer, $length, $pass_on)
    };
    (@ many $described:ident, $vectors:ident, $count:ident, $pass_on:ident) => {
        // SAFETY: as above.
        unsafe { many($described, $vectors, $count, $pass_on) }
    };
    ($(
        $name:ident ( $($arg:ident : $ty:ty),* ) => $real:ident,
        $direction:ident, $offset:expr, $flags:expr, $buffers:ident ( $fd:ident, $($buffer:ident),* );
    )*) => { $(
        /// See the C library's.
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> ssize_t {
            let described = Call { fd: $fd, direction: Direction::$direction, offset: $offset, flags: $flags };
            // SAFETY: the caller's promise, which is that of the C library's function.
            let pass_on = || unsafe { real::$real($($arg),*) };
            hook!(@ $buffers described, $($buffer),*, pass_on)
        }
    )* };
}

// Aliases have the same types on 64-bit systems; the last three are what `_FORTIFY_SOURCE` makes of calls.
hook! {
    read(fd: c_int, buffer: *mut c_void, length: size_t) =>
        read, Read, None, 0, one(fd, buffer, length);
    pread(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t) =>
        pread, Read, Some(offset), 0, one(fd, buffer, length);
    pread64(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t) =>
        pread, Read, Some(offset), 0, one(fd, buffer, length);
    readv(fd: c_int, vectors: *const iovec, count: c_int) =>
        readv, Read, None, 0, many(fd, vectors, count);
    preadv(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) =>
        preadv, Read, Some(offset), 0, many(fd, vectors, count);
    preadv64(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) =>
        preadv, Read, Some(offset), 0, many(fd, vectors, count);
    preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) =>
        preadv2, Read, (offset != -1).then_some(offset), flags, many(fd, vectors, count);
    preadv64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) =>
        preadv2, Read, (offset != -1).then_some(offset), flags, many(fd, vectors, count);
    write(fd: c_int, buffer: *const c_void, length: size_t) =>
        write, Write, None, 0, one(fd, buffer, length);
    pwrite(fd: c_int, buffer: *const c_void, length: size_t, offset: off_t) =>
        pwrite, Write, Some(offset), 0, one(fd, buffer, length);
    pwrite64(fd: c_int, buffer: *const c_void, length: size_t, offset: off_t) =>
        pwrite, Write, Some(offset), 0, one(fd, buffer, length);
    writev(fd: c_int, vectors: *const iovec, count: c_int) =>
        writev, Write, None, 0, many(fd, vectors, count);
    pwritev(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) =>
        pwritev, Write, Some(offset), 0, many(fd, vectors, count);
    pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) =>
        pwritev, Write, Some(offset), 0, many(fd, vectors, count);
    pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) =>
        pwritev2, Write, (offset != -1).then_some(offset), flags, many(fd, vectors, count);
    pwritev64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) =>
        pwritev2, Write, (offset != -1).then_some(offset), flags, many(fd, vectors, count);
    __read_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t) =>
        read_chk, Read, None, 0, one(fd, buffer, length);
    __pread_chk(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t, room: size_t) =>
        pread_chk, Read, Some(offset), 0, one(fd, buffer, length);
    __pread64_chk(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t, room: size_t) =>
        pread_chk, Read, Some(offset), 0, one(fd, buffer, length);
}

/// `close(2)`: what was kept open for a descriptor is closed with it.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let outcome = unsafe { real::close(fd) };
    let code = real::errno();
    files::closed(fd);
    real::set_errno(code);
    outcome
}

/// `close_range(2)`: nothing of ours may be in the range when others get its numbers.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    files::close_all();
    // SAFETY: the caller's promise.
    unsafe { real::close_range(first, last, flags) }
}

/// `closefrom(3)`: as `close_range`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    files::close_all();
    // SAFETY: the caller's promise.
    unsafe { real::closefrom(first) };
}
