//! What was measured, and the arithmetic on it.

use super::work::Kind;
use crate::harness::machine::Machine;
use crate::harness::rounds::Rate;
use bifolio_compute::ServiceStatistics;
use serde::Serialize;

/// Where the data of a request is, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ends {
    HostToHost,
    HostToDevice,
}

impl Ends {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::HostToHost => "host to host",
            Self::HostToDevice => "host to device",
        }
    }
}

/// One service at one size.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) service: Kind,
    pub(super) ends: Ends,
    pub(super) bytes: u64,
    /// The library in a loop of its own on one core; none where the result ends on the device.
    pub(super) library: Option<Rate>,
    /// The executor, told to take the CPU; only where there is no library.
    pub(super) cpu: Option<Rate>,
    /// The executor, told to take the device.
    pub(super) device: Option<Rate>,
    /// The executor's choice.
    pub(super) hybrid: Option<Rate>,
    /// The choice by the better of the others, by medians.
    pub(super) hybrid_to_better: Option<f64>,
    /// The same by the quickest rounds, which other work on the machine disturbs least.
    pub(super) hybrid_to_better_best: Option<f64>,
}

/// One figure of the paper.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    pub(super) title: &'static str,
    pub(super) points: Vec<Point>,
}

#[derive(Debug, Serialize)]
pub(super) struct Point {
    pub(super) way: &'static str,
    pub(super) bytes: u64,
    pub(super) rate: Option<Rate>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    pub(super) machine: Machine,
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) rounds: usize,
    pub(super) pipelines: usize,
    pub(super) cpu_threads: usize,
    pub(super) slot_bytes: u64,
    /// How the kernels fared.
    pub(super) kernels: Vec<String>,
    pub(super) figures: Vec<Figure>,
    pub(super) rows: Vec<Row>,
    pub(super) statistics: Vec<ServiceStatistics>,
    /// What was not measured, and why.
    pub(super) left_out: Vec<String>,
}

/// A choice slower than this part of the better path is reported.
pub(super) const KEPT_UP: f64 = 0.95;

impl Row {
    pub(super) fn new(
        service: Kind,
        ends: Ends,
        bytes: u64,
        [library, cpu, device, hybrid]: [Option<Rate>; 4],
    ) -> Self {
        let ratio = |of: fn(Rate) -> f64| {
            let better = [library, cpu, device].into_iter().flatten().map(of).fold(0.0, f64::max);
            hybrid.map(of).filter(|_| better > 0.0).map(|rate| rate / better)
        };
        let (hybrid_to_better, hybrid_to_better_best) =
            (ratio(|rate| rate.gb_per_s), ratio(|rate| rate.range_gb_per_s[1]));
        Self { service, ends, bytes, library, cpu, device, hybrid, hybrid_to_better, hybrid_to_better_best }
    }
}
