//! `LD_PRELOAD=libbifolio_preload.so PROGRAM`: reads and writes whose buffer is device memory just work, in
//! programs that know nothing of Bifolio.
//!
//! ```text
//!   read, pread, readv, ...            hooks    the C library's names
//!      |
//!   can the CPU use the buffer?        hosts    some nanoseconds; almost always "yes"
//!      | yes                   \ no
//!   the C library's function    \      real
//!      | EFAULT                  |
//!   whose memory is it?          |     bifolio_device::pointer
//!      | a device's              |
//!   the router, or for pipes, sockets and appending the call itself with host memory in its place
//!                                      transfer: routed, bounce; files, call
//! ```
//!
//! The kernel itself tells device memory from host memory: it cannot touch the former. So no driver is loaded,
//! or asked about host memory; a call whose buffer is host memory is the C library's own call, with its
//! position, errno, short counts and cancellation.
//!
//! Besides, `mmap` takes a flag by which a file is mapped on a device ([`mapped`]), through the cache of the process.
//!
//! What is read into device memory is what `pread` would have read. Device memory in a child of a process that
//! has used some is refused with `EFAULT`, as drivers refuse it.

mod bounce;
mod call;
pub mod fenced;
mod files;
pub mod hooks;
mod hosts;
mod log;
pub mod mapped;
mod real;
mod routed;
mod transfer;
