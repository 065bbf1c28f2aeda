//! A progress bar on stderr, for people: only on a terminal, and only once a second has passed.
//!
//! A thread of its own looks at how far the work is, so that the work knows nothing about it.

use bifolio_bench::Session;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Quicker work than this shows no bar.
const QUIET: Duration = Duration::from_secs(1);

/// How often the counter is looked at.
const POLL: Duration = Duration::from_millis(100);

/// How a bar of bytes looks, and one of steps.
const BYTES: &str = "{msg:24} [{bar:40}] {bytes} of {total_bytes}, {binary_bytes_per_sec}";
const STEPS: &str = "[{bar:40}] {percent:3}%, {elapsed}: {msg}";

/// How far work is: what is done of how much, and what is being done.
trait Watched: Send + 'static {
    fn steps(&self) -> (u64, u64);
    fn doing(&self) -> String;
}

/// Work that only counts.
struct Counted {
    done: Arc<AtomicU64>,
    total: u64,
    doing: String,
}

impl Watched for Counted {
    fn steps(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total)
    }

    fn doing(&self) -> String {
        self.doing.clone()
    }
}

impl Watched for Arc<bifolio_bench::Progress> {
    fn steps(&self) -> (u64, u64) {
        (**self).steps()
    }

    fn doing(&self) -> String {
        (**self).doing()
    }
}

/// A bar until it is dropped.
#[derive(Debug)]
pub struct Progress {
    counter: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// A bar that counts `total` bytes.
    pub fn of_bytes(doing: &str, total: u64) -> Self {
        let counter = Arc::default();
        let counted = Counted { done: Arc::clone(&counter), total, doing: doing.to_owned() };
        Self::start(counter, counted, BYTES)
    }

    /// A bar that counts `total` steps.
    #[cfg(feature = "volumes")]
    pub fn of_steps(doing: &str, total: u64) -> Self {
        let counter = Arc::default();
        let counted = Counted { done: Arc::clone(&counter), total, doing: doing.to_owned() };
        Self::start(counter, counted, STEPS)
    }

    /// A bar that shows what a session says of itself.
    pub fn of_session(session: &Session) -> Self {
        Self::start(Arc::default(), Arc::clone(session.progress()), STEPS)
    }

    fn start(counter: Arc<AtomicU64>, watched: impl Watched, template: &'static str) -> Self {
        let over = Arc::default();
        let thread = std::io::stderr().is_terminal().then(|| show(watched, Arc::clone(&over), template)).flatten();
        Self { counter, over, thread }
    }

    /// The counter of what is done.
    pub fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.counter)
    }

    /// Counts on.
    pub fn advance(&self, by: u64) {
        self.counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// Without a thread there is no bar, and nothing else is lost.
fn show(watched: impl Watched, over: Arc<AtomicBool>, template: &'static str) -> Option<JoinHandle<()>> {
    let show = move || {
        std::thread::park_timeout(QUIET);
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_elapsed(QUIET);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        while !over.load(Ordering::Acquire) {
            let (done, total) = watched.steps();
            bar.set_length(total);
            bar.set_position(done.min(total));
            bar.set_message(watched.doing());
            std::thread::park_timeout(POLL);
        }
        bar.finish_and_clear();
    };
    std::thread::Builder::new().name("bifolio-progress".to_owned()).spawn(show).ok()
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
