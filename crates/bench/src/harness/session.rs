//! What the parts of a benchmark have in common while it runs: whether it is to stop, and how far it is.

use crate::error::{Error, Result};
use bifolio_io::Cancel;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One run of a benchmark. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Session {
    cancel: Cancel,
    progress: Arc<Progress>,
}

impl Session {
    /// A session that ends early once `cancel` is cancelled.
    pub fn new(cancel: Cancel) -> Self {
        Self { cancel, progress: Arc::default() }
    }

    /// For requests, which look at it as well.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// How far it is, for whoever shows that.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// An error once somebody has interrupted, for work between requests.
    pub fn check(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::interrupted()) } else { Ok(()) }
    }

    /// Begins a part of so many steps.
    pub fn begin(&self, doing: &str, steps: u64) {
        self.set(doing, 0, steps);
    }

    /// Says how far a part of so many steps is.
    pub fn set(&self, doing: &str, done: u64, steps: u64) {
        self.progress.done.store(done, Ordering::Relaxed);
        self.progress.total.store(steps, Ordering::Relaxed);
        self.say(doing);
    }

    /// Says what is being done.
    pub fn say(&self, doing: &str) {
        doing.clone_into(&mut self.progress.doing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts steps that are done.
    pub fn advance(&self, steps: u64) {
        self.progress.done.fetch_add(steps, Ordering::Relaxed);
    }
}

/// How far a session is. Whoever shows it looks at it now and then; the work knows nothing about that.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    doing: Mutex<String>,
}

impl Progress {
    /// Steps of the current part that are done, and all of them.
    pub fn steps(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// What is being done.
    pub fn doing(&self) -> String {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
