//! Statistics of running processes, for `bifolio cache stat`.
//!
//! Each process that has a cache keeps a small file in a folder of its user's (`folder.rs`), mapped, so that whoever
//! works with the cache writes what it holds by plain stores: there is no thread for it, and no descriptor that a
//! program could close. Gathering the numbers looks at every page, so it may take two per cent of the time; a reader
//! learns how many operations there were since. The file is removed when the process ends by itself, and by the
//! next reader where it did not.
//!
//! A reader may come at any moment: what it reads has a checksum (`format.rs`) and is read again until that is right.

mod folder;
mod format;

use crate::state::Counts;
use crate::{Error, ErrorKind, Result, Stats};
use bifolio_device::fork::Birth;
use folder::Folder;
use format::{OPERATIONS, WORDS};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// Times that a file is read before its writer is taken to be in the middle of it for ever.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_micros(500);

/// What one process's cache holds, as its file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStats {
    /// The process.
    pub pid: u32,
    /// Its name, as the kernel has it.
    pub name: String,
    /// When it was so.
    pub taken: SystemTime,
    /// Operations with the cache since then: 0 if this is how it is now.
    pub operations_since: u64,
    /// What has happened to pages since the cache was made, for devices and CPUs.
    pub counts: Counts,
    /// The devices that something was mapped on.
    pub devices: Vec<Stats>,
}

/// What a cache holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) counts: Counts,
    pub(crate) devices: Vec<Stats>,
}

/// A process, told from others that have had its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: u32,
    /// When it was started, in the kernel's ticks since the machine was.
    started: u64,
    /// The namespace of its number.
    namespace: u64,
}

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

impl Identity {
    fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// The process that has a number now.
    fn of(pid: u32) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        Some(Self { pid, started: started(&stat)?, namespace })
    }
}

/// The 22nd field of `/proc/PID/stat`; the second may have blanks and brackets. None for one that has ended and was
/// not waited for.
fn started(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18)?.parse().ok()
}

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
struct Pace {
    /// Time that may be taken; negative after one that took longer.
    credit_s: f64,
    last: Instant,
}

impl Pace {
    /// Of the time that passes.
    const SHARE: f64 = 0.02;
    const CREDIT_S_MAX: f64 = 0.01;

    fn new(now: Instant) -> Self {
        Self { credit_s: Self::CREDIT_S_MAX, last: now }
    }

    fn may_run(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        self.credit_s = (self.credit_s + passed * Self::SHARE).min(Self::CREDIT_S_MAX);
        self.credit_s >= 0.0
    }

    fn ran_for(&mut self, time: Duration) {
        self.credit_s -= time.as_secs_f64();
    }
}

fn file_name(pid: u32) -> CString {
    CString::new(format!("cache-{pid}")).unwrap_or_default()
}

/// Statistics of this user's running processes that have a cache, by their numbers. Files of processes that have
/// ended are removed.
///
/// # Errors
/// `Read` if a folder for them is there, and cannot be listed.
pub fn list() -> Result<Vec<ProcessStats>> {
    let mut found = Vec::new();
    for folder in Folder::all() {
        let names = folder.names().map_err(|error| {
            Error::new(ErrorKind::Read, folder.path(), format!("listing the statistics failed: {error}"))
        })?;
        for name in names.iter().filter(|name| name.to_bytes().starts_with(b"cache-")) {
            found.extend(read(&folder, name));
        }
    }
    found.sort_by_key(|process: &ProcessStats| process.pid);
    Ok(found)
}

/// What a file says, if its process runs.
fn read(folder: &Folder, name: &CString) -> Option<ProcessStats> {
    let file = folder.open(name).ok()?;
    let Some((identity, stats)) = read_file(&file) else {
        // Of another version, or of a process that was stopped or ended while it wrote.
        if !is_running(name) {
            folder.remove(name);
        }
        return None;
    };
    // One of another container's processes is not ours to judge.
    let here = Identity::own()?;
    if identity.namespace != here.namespace {
        return None;
    }
    if Identity::of(identity.pid) != Some(identity) || file_name(identity.pid) != *name {
        folder.remove(name);
        return None;
    }
    let command = std::fs::read_to_string(format!("/proc/{}/comm", identity.pid)).unwrap_or_default();
    Some(ProcessStats { name: command.trim_end().to_owned(), ..stats })
}

/// Whether the process that a file is named after may be there.
fn is_running(name: &CString) -> bool {
    let pid = name.to_str().ok().and_then(|name| name.strip_prefix("cache-")?.parse::<u32>().ok());
    pid.is_some_and(|pid| Identity::of(pid).is_some())
}

fn read_file(file: &File) -> Option<(Identity, ProcessStats)> {
    for _ in 0..TRIES {
        let mut bytes = [0; WORDS * size_of::<u64>()];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<_>>();
        if !format::is_ours(&words) {
            return None;
        }
        if let Some(decoded) = format::decode(&words) {
            return Some(decoded);
        }
        std::thread::sleep(PAUSE);
    }
    None
}

#[cfg(test)]
mod tests;
