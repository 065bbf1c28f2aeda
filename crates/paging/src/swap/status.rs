//! What a swap space does.

use super::record::Instance;
use super::system::{Swap, swap_on};
use crate::directory::Head;
use crate::pages::BLOCK_BYTES;
use crate::stats::{Counter, READS, Side, WRITES, percentile};
use bifolio_block::Result;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What it does, and has done since it was switched on.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The backing.
    pub backing: std::path::PathBuf,
    /// The disk, if it is attached.
    pub disk: Option<std::path::PathBuf>,
    /// How it is attached.
    pub attachment: String,
    /// Why it is attached like that, as the end of a sentence.
    pub attachment_reason: String,
    /// The system uses it as swap: bytes of it, and those in use.
    pub swap: Option<(u64, u64)>,
    /// When writes have ended.
    pub mode: String,
    /// The device's name.
    pub device: String,
    /// The device serves; otherwise the backing does, alone.
    pub device_serves: bool,
    /// No device memory is held, for a sleep of the system.
    pub is_suspended: bool,
    /// The worker's process.
    pub worker: u64,
    /// Workers that took over from one that died.
    pub restarts: u64,
    /// Device memory.
    pub memory: Memory,
    /// Pages that only the device has, so far.
    pub dirty_pages: u64,
    /// Pages that were read from device memory.
    pub hit_pages: u64,
    /// Pages that were read from the backing.
    pub miss_pages: u64,
    /// Pages that were read after they were discarded, as zeroes.
    pub zero_pages: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes that the system had no more use for.
    pub discarded_bytes: u64,
    /// Failures of the device.
    pub device_errors: u64,
    /// Pages whose only copy went with the device.
    pub lost_pages: u64,
    /// Reads that the backing had no part in.
    pub hits: Option<Latency>,
    /// Reads that waited for the backing.
    pub misses: Option<Latency>,
    /// All reads.
    pub reads: Option<Latency>,
    /// All writes.
    pub writes: Option<Latency>,
    /// The longest request, in microseconds.
    pub longest_us: f64,
}

/// Bytes of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What the cache has.
    pub present: u64,
    /// What of it holds something.
    pub used: u64,
    /// What it should have.
    pub wanted: u64,
    /// What of that it does without, as others want it.
    pub withheld: u64,
    /// What it can have at most.
    pub most: u64,
    /// What is left to others.
    pub left_to_others: u64,
}

/// Requests and the time that they took, in microseconds to within a quarter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// How many there were.
    pub requests: u64,
    /// The median.
    pub p50_us: f64,
    /// What 99 of 100 took at most.
    pub p99_us: f64,
    /// What 999 of 1000 took at most.
    pub p999_us: f64,
}

impl Latency {
    fn of(times: &[u64]) -> Option<Self> {
        let at = |share| percentile(times, share).map(us);
        Some(Self { requests: times.iter().sum(), p50_us: at(0.5)?, p99_us: at(0.99)?, p999_us: at(0.999)? })
    }
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

impl Status {
    /// The share of the pages that were read and had been written before which came from device memory; none before the
    /// first.
    pub fn hit_rate(&self) -> Option<f64> {
        let read = self.hit_pages + self.miss_pages;
        (read > 0).then(|| self.hit_pages as f64 / read as f64)
    }

    /// How many times as long a read takes that waits for the backing, at the median.
    pub fn times_as_quick(&self) -> Option<f64> {
        Some(self.misses?.p50_us / self.hits?.p50_us)
    }
}

/// What a swap space does now.
///
/// # Errors
/// `BadState` if nobody keeps it any more.
pub fn status(instance: &Instance) -> Result<Status> {
    let directory = instance.directory()?;
    let (stats, record) = (directory.stats(), &instance.record);
    let head = |word| directory.head(word).load(Ordering::Acquire);
    let (chunk, shape) = (directory.chunk_bytes(), directory.shape());
    let swap = record.disk.as_deref().and_then(swap_on);
    let latency = |sides: &[Side]| Latency::of(&stats.times(sides));
    Ok(Status {
        backing: record.backing.clone(),
        disk: record.disk.clone(),
        attachment: record.attachment.clone(),
        attachment_reason: record.attachment_reason.clone(),
        swap: swap.map(|Swap { size, used, .. }| (size, used)),
        mode: record.mode().to_string(),
        device: record.device.clone(),
        device_serves: head(Head::Device) == 1,
        is_suspended: head(Head::Suspended) != 0,
        worker: head(Head::Worker),
        restarts: head(Head::Generation).saturating_sub(1),
        memory: Memory {
            present: head(Head::PresentSlots) * BLOCK_BYTES,
            used: head(Head::UsedSlots) * BLOCK_BYTES,
            wanted: head(Head::TargetChunks) * chunk,
            withheld: head(Head::WithheldChunks) * chunk,
            most: u64::from(shape.chunks) * chunk,
            left_to_others: head(Head::FreeBytes),
        },
        dirty_pages: head(Head::DirtyPages),
        hit_pages: stats.get(Counter::HitPages),
        miss_pages: stats.get(Counter::MissPages),
        zero_pages: stats.get(Counter::ZeroPages),
        read_bytes: stats.get(Counter::ReadBytes),
        written_bytes: stats.get(Counter::WrittenBytes),
        discarded_bytes: stats.get(Counter::DiscardedBytes),
        device_errors: stats.get(Counter::DeviceErrors),
        lost_pages: stats.get(Counter::LostPages),
        hits: latency(&[Side::Hit]),
        misses: latency(&[Side::Miss]),
        reads: latency(READS),
        writes: latency(WRITES),
        longest_us: stats.get(Counter::LongestNs) as f64 / 1000.0,
    })
}
