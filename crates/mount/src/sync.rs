//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock, also of somebody who panicked: nothing here is left half changed by that.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
