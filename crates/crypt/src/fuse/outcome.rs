//! How requests end.

use crate::error::{Error, ErrorKind};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why a request failed: a number for the kernel, and for damage a sentence for people.
#[derive(Debug)]
pub(super) enum Failure {
    Number(i32),
    Sentence(Error),
}

pub(super) type Outcome<T> = Result<T, Failure>;

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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
