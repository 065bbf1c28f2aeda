//! `LD_PRELOAD=libbifolio_preload.so PROGRAM`: reads and writes whose buffer is device memory just work, in
//! programs that know nothing of Bifolio.
//!
//! ```text
//!   read, pread, readv, ...        hooks    the C library's names
//!      |
//!   in a known device range?       ranges   some nanoseconds; almost always "no"
//!      | no                 \ yes
//!   the C library's function \     real
//!      | EFAULT              |
//!   whose memory is it?      |     bifolio_device::pointer
//!      | a device's          |
//!   the router, or for pipes, sockets and appending the call itself with a buffer in host memory
//!                                  transfer, files
//! ```
//!
//! The kernel itself tells device memory from host memory: it cannot touch the former and answers `EFAULT`
//! before anything has happened. So a call whose buffer is host memory is the C library's own call, with its
//! position, errno, short counts and cancellation, and costs a comparison more; no driver is loaded or asked.
//! Only the first call on each device allocation goes the long way round; later ones find its range at once.
//!
//! What is read into device memory is what `pread` would have read. Device memory of a program that was
//! forked after its first such call is refused with `EFAULT`, as drivers refuse it.

pub mod fenced;
mod files;
pub mod hooks;
mod log;
mod ranges;
mod real;
mod transfer;
