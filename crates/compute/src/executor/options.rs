//! What an executor may use.

use crate::threads::processors;
use std::time::Duration;

/// What an executor may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Batches on the device at a time, each with a stream and a thread; at least 1.
    pub pipelines: usize,
    /// Threads of the process's pool that compute at a time, besides callers that wait; at least 1.
    pub cpu_threads: usize,
    /// Bytes of a task that travels to or from the device. Each pipeline has twice as much pinned memory and twice
    /// as much device memory, and half as much again for tables.
    pub slot_bytes: u64,
    /// Bytes of a task for the CPU.
    pub cpu_part_bytes: u64,
    /// Requests of one caller under way at a time.
    pub depth: usize,
    /// What happens to the next one.
    pub when_full: WhenFull,
    /// How long a small request waits for others to share its batch.
    pub merge_wait: Duration,
    /// Whether services are measured when they are registered, for 100 ms or so each kind. Without, the device is
    /// taken for those only that ask for it, until their completions have shown what it takes.
    pub calibrates: bool,
    /// Whether pipelines get their memory when the executor is made, which takes a device 50 ms or so, and not when they have their
    /// first batch. What cannot be had then is asked for again with the first batch.
    pub prepares: bool,
}

/// What a caller with too many requests under way gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits.
    Wait,
    /// The request comes back with the error `Busy`.
    Refuse,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pipelines: 4,
            // One is left to callers, and on the smallest machines two threads would only be in each other's way.
            cpu_threads: (processors() - 1).clamp(1, 8),
            slot_bytes: 4 << 20,
            cpu_part_bytes: 1 << 20,
            depth: 256,
            when_full: WhenFull::Wait,
            merge_wait: Duration::from_micros(50),
            calibrates: true,
            prepares: false,
        }
    }
}

impl Options {
    /// The same with the least of everything that an executor needs.
    pub(crate) fn checked(self) -> Self {
        Self {
            pipelines: self.pipelines.max(1),
            cpu_threads: self.cpu_threads.max(1),
            slot_bytes: self.slot_bytes.max(4096).next_multiple_of(4096),
            cpu_part_bytes: self.cpu_part_bytes.max(4096),
            depth: self.depth.max(1),
            ..self
        }
    }
}
