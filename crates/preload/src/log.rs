//! What cannot be said by errno: `BIFOLIO_PRELOAD_LOG=stderr`, or a file's name, has every failure as a
//! sentence, and at the end how much went which way.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Once};

const VARIABLE: &str = "BIFOLIO_PRELOAD_LOG";

enum Target {
    Nowhere,
    Stderr,
    To(File),
}

static TARGET: LazyLock<Target> = LazyLock::new(|| match std::env::var_os(VARIABLE) {
    None => Target::Nowhere,
    Some(name) if name.is_empty() => Target::Nowhere,
    Some(name) if name == "stderr" => Target::Stderr,
    Some(name) => File::options().append(true).create(true).open(name).map_or(Target::Stderr, Target::To),
});

/// Calls and bytes of one kind.
pub(crate) struct Count {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    const fn new() -> Self {
        Self { calls: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// One call more.
    pub(crate) fn add(&self, bytes: u64) {
        static AT_END: Once = Once::new();
        // SAFETY: registers a function that takes nothing.
        AT_END.call_once(|| _ = unsafe { libc::atexit(summarise) });
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn text(&self, what: &str) -> String {
        let (calls, bytes) = (self.calls.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        format!("{calls} {what}, {bytes} bytes")
    }
}

/// Reads into device memory by the router.
pub(crate) static READ: Count = Count::new();
/// Writes from device memory by the router.
pub(crate) static WRITTEN: Count = Count::new();
/// Calls with device memory that went through a buffer in host memory.
pub(crate) static BOUNCED: Count = Count::new();

/// Writes a sentence to the log, if there is one.
pub(crate) fn say(text: impl Display) {
    let line = format!("bifolio: {text}\n");
    // A log that cannot be written must not become the program's failure.
    match &*TARGET {
        Target::Nowhere => {}
        Target::Stderr => _ = std::io::stderr().write_all(line.as_bytes()),
        Target::To(file) => _ = (&*file).write_all(line.as_bytes()),
    }
}

extern "C" fn summarise() {
    let parts = [
        READ.text("reads into device memory"),
        WRITTEN.text("writes from device memory"),
        BOUNCED.text("calls through host memory"),
    ];
    say(parts.join("; "));
}
