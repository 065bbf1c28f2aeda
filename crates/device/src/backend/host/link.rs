//! The simulated link between the host and a device.

use super::lock::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A simulated link: one transfer at a time, at a rate, each after a latency.
#[derive(Debug)]
pub(super) struct Link {
    seconds_per_byte: f64,
    latency: Duration,
    free_at: Mutex<Instant>,
}

impl Link {
    pub(super) fn new(bandwidth: Option<f64>, latency: Option<Duration>) -> Option<Self> {
        (bandwidth.is_some() || latency.is_some()).then(|| Self {
            seconds_per_byte: bandwidth.map_or(0.0, f64::recip),
            latency: latency.unwrap_or_default(),
            free_at: Mutex::new(Instant::now()),
        })
    }

    /// Waits for as long as `len` bytes take.
    pub(super) fn occupy(&self, len: u64) {
        let until = {
            let mut free_at = lock(&self.free_at);
            let start = (*free_at).max(Instant::now());
            *free_at = start + Duration::from_secs_f64(len as f64 * self.seconds_per_byte);
            *free_at + self.latency
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}
