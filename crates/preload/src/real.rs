//! The C library's own functions, behind those that this library puts in front of them.

use libc::{c_int, c_long, c_uint, c_void, iovec, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that was looked up, or NULL before.
struct Slot {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Slot {
    const fn of(name: &'static CStr) -> Self {
        Self { name, function: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let known = self.function.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: looks a name up in the libraries behind this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.function.store(found, Ordering::Relaxed);
        found
    }
}

/// `early!` makes a function that is the C library's once that was looked up, and the system call itself before:
/// looking up may allocate, and allocators call these.
macro_rules! early {
    ($($name:ident as $symbol:literal ( $($arg:ident : $ty:ty),* ) -> $ret:ty = $call:expr;)*) => { $(
        /// The C library's.
        ///
        /// # Safety
        /// As there.
        #[inline]
        pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
            static SLOT: Slot = Slot::of($symbol);
            #[used]
            #[unsafe(link_section = ".init_array")]
            static AT_START: extern "C" fn() = {
                extern "C" fn look_up() { SLOT.look_up(); }
                look_up
            };
            let function = SLOT.function.load(Ordering::Relaxed);
            if function.is_null() {
                // SAFETY: the caller's promise; failures are told by errno, as the C library does it.
                return unsafe { $call };
            }
            // SAFETY: the C library's function of this name has this signature.
            let function: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { std::mem::transmute(function) };
            // SAFETY: the caller's promise.
            unsafe { function($($arg),*) }
        }
    )* };
}

// Registers are whole: the upper half of a shorter number would be anything.
early! {
    mmap as c"mmap"
        (address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void = {
            let [protection, flags, fd] = [protection, flags, fd].map(c_long::from);
            let mapped = libc::syscall(libc::SYS_mmap, address, length, protection, flags, fd, offset);
            std::ptr::with_exposed_provenance_mut(mapped as usize)
        };
    munmap as c"munmap" (address: *mut c_void, length: size_t) -> c_int =
        libc::syscall(libc::SYS_munmap, address, length) as c_int;
    msync as c"msync" (address: *mut c_void, length: size_t, flags: c_int) -> c_int =
        libc::syscall(libc::SYS_msync, address, length, c_long::from(flags)) as c_int;
}

/// `real!(name(arg: type, ...) -> type)` makes a function that calls the C library's; one that it lacks fails
/// with `ENOSYS`.
macro_rules! real {
    ($($name:ident as $symbol:literal ( $($arg:ident : $ty:ty),* ) -> $ret:ty;)*) => { $(
        /// The C library's.
        ///
        /// # Safety
        /// As there.
        pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
            static SLOT: Slot = Slot::of($symbol);
            #[used]
            #[unsafe(link_section = ".init_array")]
            static AT_START: extern "C" fn() = {
                // Signal handlers may call these, and looking up is not for them.
                extern "C" fn look_up() { SLOT.look_up(); }
                look_up
            };
            let function = SLOT.get();
            if function.is_null() {
                set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: the C library's function of this name has this signature.
            let function: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { std::mem::transmute(function) };
            // SAFETY: the caller's promise.
            unsafe { function($($arg),*) }
        }
    )* };
}

real! {
    read as c"read" (fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    pread as c"pread" (fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t) -> ssize_t;
    readv as c"readv" (fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    preadv as c"preadv" (fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv2 as c"preadv2" (fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    write as c"write" (fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    pwrite as c"pwrite" (fd: c_int, buffer: *const c_void, length: size_t, offset: off_t) -> ssize_t;
    writev as c"writev" (fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    pwritev as c"pwritev" (fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev2 as c"pwritev2" (fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    close as c"close" (fd: c_int) -> c_int;
    close_range as c"close_range" (first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom as c"closefrom" (first: c_int) -> c_int;
    read_chk as c"__read_chk" (fd: c_int, buffer: *mut c_void, length: size_t, room: size_t) -> ssize_t;
    pread_chk as c"__pread_chk"
        (fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t, room: size_t) -> ssize_t;
}

/// This thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's place for it, which every thread has.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's errno.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = code };
}
