//! Volumes: what lies between a file system or a program and the files that hold its bytes.
//!
//! ```text
//!   block     BlockDevice: bytes at offsets, with flush and discard
//!   file      a file or a block device of the system's
//!   md/       md RAID-6
//!   stripe    RAID-0
//!   faults    a device that fails, loses power or tears writes on demand, for tests
//! ```
//!
//! Devices are stacked: each one reads and writes those below it.

mod block;
mod error;
pub mod faults;
mod file;
pub mod md;
mod stripe;

pub use block::{BlockDevice, Geometry};
pub use error::{Error, ErrorKind, Result};
pub use file::FileDevice;
pub use stripe::Stripe;
