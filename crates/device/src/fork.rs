//! Telling a process from the one that it was forked from.
//!
//! A child of `fork(2)` has the memory of its parent but none of its threads, and no driver serves it: what
//! waits for either would wait for ever, so it is refused instead. A program that wants both forks first, or
//! starts its children by `exec`.

use crate::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process that asked and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// In which process something was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth(u32);

impl Birth {
    /// In this one.
    pub fn here() -> Self {
        static WATCH: Once = Once::new();
        // SAFETY: the handler only adds to a number, which is allowed in a child with one thread.
        WATCH.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(count)) });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process was forked from that one.
    pub fn was_elsewhere(self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.0
    }
}

/// What a driver or a worker serves: of use in the process that made it. A child of that process is refused it, and
/// leaves it alone when it drops it: to end it there could wait for a thread that did not come along, or end what the
/// parent uses.
#[derive(Debug)]
pub(crate) struct Native<T> {
    value: ManuallyDrop<T>,
    birth: Birth,
}

impl<T> Native<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), birth: Birth::here() }
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> Result<&T> {
        if self.birth.was_elsewhere() { Err(forked()) } else { Ok(&self.value) }
    }
}

impl<T> Drop for Native<T> {
    fn drop(&mut self) {
        if !self.birth.was_elsewhere() {
            // SAFETY: dropped once, here; nothing uses the value afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// The refusal of what a parent made.
pub(crate) fn forked() -> Error {
    let detail = "this process was forked from the one that opened the device, and neither its threads nor its driver \
                  came along; fork before the first use, or start the child by exec";
    Error::new(ErrorKind::Forked, detail)
}

unsafe extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let birth = Birth::here();
        // SAFETY: the child only reads a number and ends without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!birth.was_elsewhere())) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        assert!(!birth.was_elsewhere());
    }
}
