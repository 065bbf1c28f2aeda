//! One window: a part of a file that was, or is being, read ahead of its reader.

use crate::file::Stamp;
use bifolio_device::Slot;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A part of a file, read ahead. Dropping it returns what it holds.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) range: Range<u64>,
    /// The file as it was when reading began.
    pub(crate) stamp: Stamp,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// A thread is reading.
    Filling,
    /// The bytes are in a slot of ours.
    Private(Content),
    /// They are, or will be, in the page cache.
    Shared(Partition),
    /// Nothing came of it, or the slot was needed elsewhere.
    Gone,
}

/// Bytes in a slot.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) slot: Slot,
    /// Whether they came out of the page cache.
    pub(crate) was_cached: bool,
}

/// Pages that are in the page cache because of us, and leave it with us.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) file: Arc<File>,
    pub(crate) pages: Vec<Range<u64>>,
}

impl Drop for Partition {
    /// Pages that a program has mapped or changed meanwhile stay: the kernel leaves them.
    fn drop(&mut self) {
        for pages in &self.pages {
            let (offset, len) = (pages.start as i64, (pages.end - pages.start) as i64);
            // SAFETY: advice on an open descriptor.
            unsafe { libc::posix_fadvise(self.file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

/// What reading a window has come to.
#[derive(Debug)]
pub(crate) enum Outcome {
    Private(Content),
    Shared(Partition),
}

impl Window {
    /// A window that somebody is about to fill.
    pub(crate) fn new(range: Range<u64>, stamp: Stamp) -> Arc<Self> {
        Arc::new(Self { range, stamp, state: Mutex::new(State::Filling), changed: Condvar::new() })
    }

    /// Ends the filling.
    pub(crate) fn settle(&self, outcome: Outcome) {
        *self.lock() = match outcome {
            Outcome::Private(content) => State::Private(content),
            Outcome::Shared(partition) => State::Shared(partition),
        };
        self.changed.notify_all();
    }

    /// Uses the window's bytes once they are there; none if they are not in a slot.
    pub(crate) fn with_content<R>(&self, with: impl FnOnce(&mut Content) -> R) -> Option<R> {
        let mut state = self.lock();
        while matches!(*state, State::Filling) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &mut *state {
            State::Private(content) => Some(with(content)),
            _ => None,
        }
    }

    /// Takes the bytes away; none if there are none, or not yet.
    pub(crate) fn take_content(&self) -> Option<Content> {
        let mut state = self.lock();
        if !matches!(*state, State::Private(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Gone) {
            State::Private(content) => Some(content),
            _ => None,
        }
    }

    /// Gives the filling up, unless it has ended.
    pub(crate) fn fail_if_filling(&self) {
        let mut state = self.lock();
        if matches!(*state, State::Filling) {
            *state = State::Gone;
            self.changed.notify_all();
        }
    }

    /// Whether it held nothing but what was in the page cache anyway, as far as is known now.
    pub(crate) fn was_cached(&self) -> bool {
        match &*self.lock() {
            State::Private(content) => content.was_cached,
            State::Shared(partition) => partition.pages.is_empty(),
            State::Filling | State::Gone => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
