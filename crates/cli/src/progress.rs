//! A progress bar on stderr, for people: only on a terminal, and only once a second has passed.
//!
//! A thread of its own polls a counter, so that the work knows nothing about it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Quicker work than this shows no bar.
const QUIET: Duration = Duration::from_secs(1);

/// How often the counter is looked at.
const POLL: Duration = Duration::from_millis(100);

/// A bar until it is dropped.
#[derive(Debug)]
pub struct Progress {
    counter: Arc<AtomicU64>,
    doing: Arc<Mutex<String>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// A bar that counts `total` bytes.
    pub fn of_bytes(doing: &str, total: u64) -> Self {
        Self::start(doing, total, "{msg:24} [{bar:40}] {bytes} of {total_bytes}, {binary_bytes_per_sec}")
    }

    /// A bar that counts `total` steps.
    pub fn of_steps(doing: &str, total: u64) -> Self {
        Self::start(doing, total, "[{bar:40}] {percent:3}%, {elapsed}: {msg}")
    }

    fn start(doing: &str, total: u64, template: &'static str) -> Self {
        let mut progress = Self {
            counter: Arc::default(),
            doing: Arc::new(Mutex::new(doing.to_owned())),
            over: Arc::default(),
            thread: None,
        };
        if std::io::stderr().is_terminal() {
            progress.thread = progress.show(total, template);
        }
        progress
    }

    fn show(&self, total: u64, template: &'static str) -> Option<JoinHandle<()>> {
        let (counter, doing, over) = (Arc::clone(&self.counter), Arc::clone(&self.doing), Arc::clone(&self.over));
        let show = move || {
            std::thread::park_timeout(QUIET);
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_elapsed(QUIET);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            while !over.load(Ordering::Acquire) {
                bar.set_position(counter.load(Ordering::Relaxed).min(total));
                bar.set_message(doing.lock().unwrap_or_else(PoisonError::into_inner).clone());
                std::thread::park_timeout(POLL);
            }
            bar.finish_and_clear();
        };
        // Without a thread there is no bar, and nothing else is lost.
        std::thread::Builder::new().name("bifolio-progress".to_owned()).spawn(show).ok()
    }

    /// The counter that is polled.
    pub fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.counter)
    }

    /// Counts on.
    pub fn advance(&self, by: u64) {
        self.counter.fetch_add(by, Ordering::Relaxed);
    }

    /// Says what is being done and how far it is.
    pub fn set(&self, doing: &str, position: u64) {
        self.say(doing);
        self.counter.store(position, Ordering::Relaxed);
    }

    /// Says what is being done.
    pub fn say(&self, doing: &str) {
        doing.clone_into(&mut self.doing.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
