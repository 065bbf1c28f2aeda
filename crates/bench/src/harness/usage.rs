//! What work has used of the machine.

use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Seconds of CPU that the process has used so far, user and system, all threads.
pub fn cpu_seconds() -> f64 {
    // SAFETY: `rusage` is plain old data, for which zeroes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A rate in GB/s (1e9), 0 for nothing moved.
pub fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    if bytes == 0 || seconds <= 0.0 { 0.0 } else { bytes as f64 / seconds / 1e9 }
}

/// CPU seconds for each GB (1e9), 0 for nothing moved.
pub fn cpu_s_per_gb(bytes: u64, cpu_s: f64) -> f64 {
    if bytes == 0 { 0.0 } else { cpu_s / (bytes as f64 / 1e9) }
}

/// The middle one, of an even number the higher of the two; none of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// What one run took.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// Seconds by the clock.
    pub seconds: f64,
    /// CPU seconds of the process.
    pub cpu_s: f64,
}

impl Taken {
    /// What this work takes.
    pub fn by(work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (before, started) = (cpu_seconds(), Instant::now());
        work()?;
        Ok(Self { seconds: started.elapsed().as_secs_f64(), cpu_s: cpu_seconds() - before })
    }
}

/// The rates of one way, over all of its runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Seconds of every run.
    pub seconds: Vec<f64>,
    /// Of the quickest run.
    pub gb_per_s_best: f64,
    /// Of the median run.
    pub gb_per_s_median: f64,
    /// Of the run with the least.
    pub cpu_s_per_gb: f64,
}

impl Rates {
    /// The rates of runs that each moved so many bytes.
    pub fn of(bytes: u64, runs: &[Taken]) -> Self {
        let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
        let best = seconds.iter().copied().reduce(f64::min);
        let least = runs.iter().map(|run| run.cpu_s).reduce(f64::min);
        Self {
            gb_per_s_best: best.map_or(0.0, |seconds| gb_per_s(bytes, seconds)),
            gb_per_s_median: median(&seconds).map_or(0.0, |seconds| gb_per_s(bytes, seconds)),
            cpu_s_per_gb: least.map_or(0.0, |cpu_s| cpu_s_per_gb(bytes, cpu_s)),
            seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_best_and_of_the_median_run() {
        let run = |seconds, cpu_s| Taken { seconds, cpu_s };
        let rates = Rates::of(1_000_000_000, &[run(0.5, 0.3), run(0.25, 0.2), run(2.0, 0.1)]);
        let expected =
            Rates { seconds: vec![0.5, 0.25, 2.0], gb_per_s_best: 4.0, gb_per_s_median: 2.0, cpu_s_per_gb: 0.1 };
        assert_eq!(rates, expected);
        assert_eq!(Rates::of(1, &[]), Rates::default());
        assert_eq!((median(&[]), median(&[1.0, 3.0]), median(&[3.0, 1.0, 2.0])), (None, Some(3.0), Some(2.0)));
    }
}
