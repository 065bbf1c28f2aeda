//! The locks of what tests also run under a scheduler (`tests/it/schedules.rs`).

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
