//! Encrypted directories against gocryptfs, against damage, and mounted.

mod device;
mod file;
mod interop;
mod key;
mod mount;
mod sparse;
mod support;
