//! Plain block devices: what lies between a program and the files that hold its bytes, without ciphers and without
//! device memory.
//!
//! ```text
//!   device      BlockDevice: bytes at offsets, with flush and discard
//!   file        a file or a block device of the system's, and its claim against other writers
//!   sealed      content that is stored in authenticated blocks, as its format describes it
//!   ranges      range locks, for those whose unit is more than a byte
//!   signatures  what a device holds already, for whoever is about to write onto it
//!   nbd         a device for NBD clients: nbdkit with a plugin, from its start to its end
//!   fuse/       (feature `fuse`)
//!     mount     the one way in which this project mounts through FUSE
//!     file      a device as the only file of a mounted folder
//!   faults      a device in memory that fails, loses power or tears writes on demand, for tests
//!   error, text errors, and text out of files on its way to people
//! ```
//!
//! Devices are stacked: each one reads and writes those below it. Whoever can bring content into device memory extends
//! [`BlockDevice`] (`bifolio-volume` does); nothing here knows of it, so that the paging cache stands on this crate without
//! linking a cipher or a driver.

mod device;
mod error;
pub mod faults;
mod file;
#[cfg(feature = "fuse")]
pub mod fuse;
pub mod nbd;
pub mod ranges;
mod sealed;
pub mod signatures;
mod text;

pub use device::{BlockDevice, Geometry};
pub use error::{Cause, Error, ErrorKind, Result};
pub use file::FileDevice;
pub use sealed::{OVERHEAD_BYTES as SEALED_OVERHEAD_BYTES, SealedBlocks, SealedDevice};
pub use signatures::Overwrite;
pub use text::{is_unprintable, printable};
