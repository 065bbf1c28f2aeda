//! The file of this process, as it writes it.

use super::folder::Folder;
use super::format::{self, OPERATIONS, WORDS};
use super::identity::{Identity, file_name};
use crate::stats::{Counts, Snapshot};
use bifolio_device::fork::Birth;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// The file of this process.
#[derive(Debug)]
pub(crate) struct Published {
    identity: Identity,
    region: NonNull<AtomicU64>,
    birth: Birth,
    pace: Mutex<Pace>,
}

// SAFETY: the region is mapped for good, and only touched as atomic numbers.
unsafe impl Send for Published {}
// SAFETY: as above.
unsafe impl Sync for Published {}

/// Where the file of this process is, for its removal.
static OWN: OnceLock<(Folder, CString, Birth)> = OnceLock::new();

impl Published {
    /// A file for this process; none where there is no folder for it.
    pub(crate) fn new() -> Option<Self> {
        let identity = Identity::own()?;
        let folder = Folder::for_writing()?;
        let (name, fresh) = (file_name(identity.pid), CString::new(format!(".new-{}", identity.pid)).ok()?);
        let file = folder.create(&fresh).ok()?;
        let bytes = WORDS * size_of::<u64>();
        // Allocated now: storing to what has no room would be a signal.
        // SAFETY: allocates blocks of a file of ours.
        if unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as i64) } != 0 {
            folder.remove(&fresh);
            return None;
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            folder.remove(&fresh);
            return None;
        }
        let region = NonNull::new(mapped.cast::<AtomicU64>())?;
        let published = Self { identity, region, birth: Birth::here(), pace: Mutex::new(Pace::new(Instant::now())) };
        published.write(&Snapshot { counts: Counts::default(), devices: vec![] }, 0);
        // Complete before anybody can see it, and in the place of one that was left by a process of this number.
        if folder.rename(&fresh, &name).is_err() {
            folder.remove(&fresh);
            return None;
        }
        if OWN.set((folder, name, published.birth)).is_ok() {
            // SAFETY: registers a function that takes nothing.
            unsafe { libc::atexit(remove_own) };
        }
        Some(published)
    }

    /// Counts an operation, and writes what there is if it may take that time now.
    pub(crate) fn operated(&self, gather: impl FnOnce() -> Option<Snapshot>) {
        if self.birth.was_elsewhere() {
            return;
        }
        let operations = self.word(OPERATIONS).fetch_add(1, Ordering::Relaxed) + 1;
        let Ok(mut pace) = self.pace.try_lock() else { return };
        let started = Instant::now();
        if pace.may_run(started)
            && let Some(snapshot) = gather()
        {
            self.write(&snapshot, operations);
            pace.ran_for(started.elapsed());
        }
    }

    fn write(&self, snapshot: &Snapshot, operations: u64) {
        for (at, word) in format::encode(self.identity, SystemTime::now(), operations, snapshot).iter().enumerate() {
            self.word(format::BODY + at).store(*word, Ordering::Relaxed);
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < WORDS, "the statistics are longer than their file");
        // SAFETY: inside the mapping, which stays.
        unsafe { self.region.add(at).as_ref() }
    }
}

extern "C" fn remove_own() {
    // A child ends, too, and the file is its parent's.
    if let Some((folder, name, birth)) = OWN.get()
        && !birth.was_elsewhere()
    {
        folder.remove(name);
    }
}

/// How often it is worth the time.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time that may be taken; negative after one that took longer.
    credit_s: f64,
    last: Instant,
}

impl Pace {
    /// Of the time that passes.
    const SHARE: f64 = 0.02;
    const CREDIT_S_MAX: f64 = 0.01;

    pub(super) fn new(now: Instant) -> Self {
        Self { credit_s: Self::CREDIT_S_MAX, last: now }
    }

    pub(super) fn may_run(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        self.credit_s = (self.credit_s + passed * Self::SHARE).min(Self::CREDIT_S_MAX);
        self.credit_s >= 0.0
    }

    pub(super) fn ran_for(&mut self, time: Duration) {
        self.credit_s -= time.as_secs_f64();
    }
}
