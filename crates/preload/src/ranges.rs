//! Ranges of device memory that calls were seen with, so that later calls need not ask the kernel first.
//!
//! A hint: what is found here is looked up properly before it is used, and what is not found here is tried by
//! the kernel. So readers take no lock, and may see an entry half written.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Programs have few allocations that they read into; those of a caching allocator are long.
const RANGES_MAX: usize = 64;

struct Entry {
    start: AtomicU64,
    end: AtomicU64,
}

static ENTRIES: [Entry; RANGES_MAX] =
    [const { Entry { start: AtomicU64::new(0), end: AtomicU64::new(0) } }; RANGES_MAX];
/// Entries in use, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);
/// What all of them lie in: drivers keep their addresses together, away from most of the program's.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);
/// The next to be overwritten.
static NEXT: Mutex<usize> = Mutex::new(0);

/// Whether an address may be device memory.
#[inline]
pub(crate) fn holds(address: u64) -> bool {
    if address < LOWEST.load(Ordering::Relaxed) || address >= HIGHEST.load(Ordering::Relaxed) {
        return false;
    }
    let within =
        |entry: &Entry| entry.start.load(Ordering::Relaxed) <= address && address < entry.end.load(Ordering::Relaxed);
    ENTRIES[..USED.load(Ordering::Relaxed)].iter().any(within)
}

/// Whether no device memory was seen yet.
#[inline]
pub(crate) fn are_none() -> bool {
    USED.load(Ordering::Relaxed) == 0
}

/// Remembers a range.
pub(crate) fn add(start: u64, len: u64) {
    let Ok(mut next) = NEXT.try_lock() else { return };
    let entry = &ENTRIES[*next];
    entry.end.store(0, Ordering::Relaxed);
    entry.start.store(start, Ordering::Relaxed);
    entry.end.store(start + len, Ordering::Relaxed);
    USED.fetch_max(*next + 1, Ordering::Relaxed);
    LOWEST.fetch_min(start, Ordering::Relaxed);
    HIGHEST.fetch_max(start + len, Ordering::Relaxed);
    *next = (*next + 1) % RANGES_MAX;
}

/// Forgets the ranges that hold an address that is no device memory any more.
pub(crate) fn forget(address: u64) {
    for entry in &ENTRIES {
        if entry.start.load(Ordering::Relaxed) <= address && address < entry.end.load(Ordering::Relaxed) {
            entry.end.store(0, Ordering::Relaxed);
        }
    }
}
