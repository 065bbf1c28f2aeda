//! Files as devices, and devices as files.

mod file;
#[cfg(feature = "fuse")]
mod fuse;
