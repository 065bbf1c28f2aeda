//! One run, and what is said of several.

use crate::output::printable;
use bifolio_bench::harness::usage::{cpu_s_per_gb, gb_per_s};
use bifolio_device::DeviceId;
use bifolio_io::size;
use serde::Serialize;
use std::fmt::Write;

/// One run, as JSON.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Run {
    pub(super) seconds: f64,
    pub(super) gb_per_s: f64,
    pub(super) cpu_s_per_gb: f64,
}

impl Run {
    /// A run that moved so many bytes.
    pub(super) fn new(bytes: u64, seconds: f64, cpu_s: f64) -> Self {
        Self { seconds, gb_per_s: gb_per_s(bytes, seconds), cpu_s_per_gb: cpu_s_per_gb(bytes, cpu_s) }
    }
}

/// What was read into what, by the best run, below all runs where there were several.
pub(super) fn describe_runs(name: &str, (bytes, device): (u64, DeviceId), best: Run, runs: &[Run]) -> String {
    let mut text = String::new();
    for (number, run) in runs.iter().enumerate() {
        let (number, ms) = (number + 1, run.seconds * 1e3);
        let _ =
            writeln!(text, "run {number:<3} {ms:10.3} ms  {:7.3} GB/s  {:.3} CPU s/GB", run.gb_per_s, run.cpu_s_per_gb);
    }
    let which = if runs.is_empty() { "" } else { ", best run" };
    let name = printable(name);
    let _ = writeln!(
        text,
        "{name}: {} into {device} in {:.3} ms{which}: {:.3} GB/s, {:.3} CPU s/GB",
        size::human(bytes),
        best.seconds * 1e3,
        best.gb_per_s,
        best.cpu_s_per_gb
    );
    text
}
