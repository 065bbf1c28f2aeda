//! What has happened to pages, and what a cache holds.

use bifolio_device::DeviceId;
use bifolio_io::EngineKind;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

/// What has happened to pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Pages that were up to date when they were acquired.
    pub hits: u64,
    /// Pages that were fetched, from the file or another device.
    pub fetched: u64,
    /// Of those, pages that came from another device, and not from the file.
    pub from_peers: u64,
    /// Of those, pages that had changes of the device's own.
    pub merged: u64,
    /// Of those, pages with bytes that both sides had changed.
    pub races: u64,
    /// Pages that were released.
    pub released: u64,
    /// Pages that were written to the file.
    pub flushed: u64,
    /// Pages that were compared with the file, as something unknown may have changed it.
    pub compared: u64,
    /// Pages whose memory was needed.
    pub evicted: u64,
    /// Pages that were copied on the device before something of their frame changed, as readers keep the version that they
    /// have acquired.
    pub copied: u64,
    /// Pages that CPUs have read from a device, as they were not in the page cache.
    pub served: u64,
    /// Pages with changes that were not released when their mapping ended: these are gone.
    pub discarded: u64,
    /// Pages of which something that was released is gone, as the device is lost that alone had it.
    pub lost: u64,
}

impl Counts {
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.with(other, |one, two| one + two)
    }

    pub(crate) fn minus(&self, before: &Self) -> Self {
        self.with(before, |now, before| now - before)
    }

    fn with(&self, other: &Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            hits: both(self.hits, other.hits),
            fetched: both(self.fetched, other.fetched),
            from_peers: both(self.from_peers, other.from_peers),
            merged: both(self.merged, other.merged),
            races: both(self.races, other.races),
            released: both(self.released, other.released),
            flushed: both(self.flushed, other.flushed),
            compared: both(self.compared, other.compared),
            evicted: both(self.evicted, other.evicted),
            copied: both(self.copied, other.copied),
            served: both(self.served, other.served),
            discarded: both(self.discarded, other.discarded),
            lost: both(self.lost, other.lost),
        }
    }
}

/// Bytes of files that were read into a device's memory, by the engine that read them. Requests of many short extents count
/// as `cached` for what the page cache had, and as `direct` for what it had not.
#[derive(Debug, Default)]
pub(crate) struct Traffic([AtomicU64; EngineKind::ALL.len()]);

impl Traffic {
    pub(crate) fn add(&self, engine: EngineKind, bytes: u64) {
        self.0[engine as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> [u64; EngineKind::ALL.len()] {
        self.0.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

/// What an acquire or a release has done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// To pages.
    pub counts: Counts,
    /// How long it took.
    pub seconds: f64,
    /// Of an acquire: whether each one of this file compares, as the times and leases of its file system do not tell of
    /// every change (all but those of ext4, ext3, ext2, XFS and Btrfs).
    pub always_compared: bool,
}

impl Report {
    pub(crate) fn between(before: &Counts, after: &Counts, started: Instant) -> Self {
        let seconds = started.elapsed().as_secs_f64();
        Self { counts: after.minus(before), seconds, always_compared: false }
    }

    /// Of two operations, one after the other.
    #[must_use]
    pub fn and(&self, next: &Self) -> Self {
        let seconds = self.seconds + next.seconds;
        Self { counts: self.counts.plus(&next.counts), seconds, always_compared: next.always_compared }
    }

    /// Of an acquire of what was brought before, so that it found pages up to date that were not so for who asked.
    #[must_use]
    pub fn after_bringing(&self, brought: &Self) -> Self {
        let both = brought.and(self);
        // Whatever was there before was found twice.
        let hits = self.counts.hits.saturating_sub(brought.counts.fetched);
        Self { counts: Counts { hits, ..both.counts }, ..both }
    }
}

impl std::ops::Deref for Report {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

/// What a cache holds on one device, and what has happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// The device.
    pub device: DeviceId,
    /// Bytes of frames in use, twins included, and the most there may be.
    pub used_bytes: u64,
    /// See there.
    pub budget_bytes: u64,
    /// Pages with a replica on the device.
    pub pages: u64,
    /// Of those, pages that others have changed.
    pub behind: u64,
    /// Of those, pages with released changes that home lacks.
    pub pending: u64,
    /// What has been done for the device since the cache was made; what was done for CPUs is no device's.
    pub counts: Counts,
}

/// What a cache holds at a moment, and what has happened to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Since the cache was made, for devices and CPUs.
    pub counts: Counts,
    /// By device, of those that something was mapped on.
    pub devices: Vec<Stats>,
}

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
