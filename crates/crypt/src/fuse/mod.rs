//! The mounted file system.
//!
//! ```text
//!   mount     options, sessions, unmounting
//!   serve     the kernel's requests, taken apart and answered
//!   tree      what they do, by nodes and names
//!   nodes     the inodes that the kernel knows
//!   folders   directories that are kept open
//! ```
//!
//! Requests come on several threads. Locks are taken in this order, and none is held for a request's whole time: the
//! table of nodes, a node, the cache of directories, a file.

mod attr;
mod folders;
mod mount;
mod nodes;
mod serve;
mod tree;

pub use mount::{MountOptions, Mounted, Unmounted, Warn, mount};

use crate::error::{Error, ErrorKind};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why a request failed: a number for the kernel, and for damage a sentence for people.
#[derive(Debug)]
enum Failure {
    Number(i32),
    Sentence(Error),
}

type Outcome<T> = Result<T, Failure>;

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Number(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Damaged => Self::Sentence(error),
            _ => Self::Number(error.errno()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
