//! Volumes: what lies between a file system or a program and the files that hold its bytes.
//!
//! ```text
//!   block       BlockDevice: bytes at offsets, with flush and discard
//!   file        a file or a block device of the system's
//!   load        volumes into device memory
//!   luks/       LUKS volumes over any device
//!   open        from paths to a volume, through all layers
//!   fuse        a volume as a mounted file
//!   md/         md RAID-6
//!   stripe      RAID-0
//!   signatures  what a device holds already, for whoever is about to write onto it
//!   text        text out of files, for people
//!   faults      a device that fails, loses power or tears writes on demand, for tests
//! ```
//!
//! Devices are stacked: each one reads and writes those below it.

mod block;
mod error;
pub mod faults;
mod file;
#[cfg(feature = "fuse")]
pub mod fuse;
pub mod load;
mod luks;
pub mod md;
mod open;
pub mod signatures;
mod stripe;
mod text;

pub use block::{BlockDevice, Geometry};
pub use error::{Error, ErrorKind, Result};
pub use file::FileDevice;
pub use load::Loader;
pub use luks::{FormatOptions, Keyslot, Luks, LuksInfo, Pbkdf, Unlock};
pub use open::{ArrayInfo, AskKey, Layer, OpenOptions, Opened, claim, describe, open, unencrypted};
pub use signatures::Overwrite;
pub use stripe::Stripe;
pub use text::{is_unprintable, printable};
