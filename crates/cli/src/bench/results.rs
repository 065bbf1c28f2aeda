//! What was measured, and the arithmetic on it. Pure.

use super::machine::Machine;
use super::run::{Requests, Taken};
use crate::args::{CacheState, RequestSize};
use crate::resources::{cpu_s_per_gb, gb_per_s};
use bifolio_io::EngineChoice;
use serde::Serialize;

/// Everything; what `--json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) machine: Machine,
    pub(super) seed: u64,
    pub(super) repetitions: u32,
    pub(super) stripe_bytes: u64,
    /// Pinned copies to the device.
    pub(super) link_gb_per_s: f64,
    pub(super) files: Vec<FileResults>,
}

/// One file.
#[derive(Debug, Serialize)]
pub(super) struct FileResults {
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) file_system: String,
    /// What was not measured, and why.
    pub(super) left_out: Vec<String>,
    pub(super) groups: Vec<Group>,
}

/// One state and request size.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    pub(super) state: CacheState,
    /// Bytes of one request.
    pub(super) request_bytes: u64,
    /// Whether that is the whole file.
    pub(super) whole_file: bool,
    /// Requests of a run; slow engines make fewer (see `run`).
    pub(super) requests: usize,
    /// The part that should be cached, 0 to 1.
    pub(super) cached_wanted: f64,
    pub(super) rows: Vec<Row>,
    /// Unbuffered reads into host memory.
    pub(super) disk_gb_per_s: Option<f64>,
    /// What disk and link allow for this state, at large sizes.
    pub(super) limit_gb_per_s: Option<f64>,
    /// `auto` beside the best single engine.
    pub(super) auto_to_best_single: Option<f64>,
    /// `auto` beside the limit.
    pub(super) auto_to_limit: Option<f64>,
}

/// One engine.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) engine: String,
    #[serde(skip)]
    pub(super) choice: EngineChoice,
    pub(super) gb_per_s_best: f64,
    pub(super) gb_per_s_median: f64,
    /// Of the best run.
    pub(super) cpu_s_per_gb: f64,
    /// The part of the best run spent on looking and planning, 0 to 1.
    pub(super) plan_share: f64,
    /// The median request of the best run.
    pub(super) latency_us_median: f64,
    /// The lowest and highest part that was cached when a run began, 0 to 1.
    pub(super) cached_min: f64,
    pub(super) cached_max: f64,
    /// Who said so.
    pub(super) residency_source: &'static str,
    /// Device memory was compared with the file after the first run.
    pub(super) verified: bool,
    /// Why the engine could not finish its runs; then it has no rate.
    pub(super) failed: Option<String>,
    /// Seconds of every run.
    pub(super) seconds: Vec<f64>,
    #[serde(skip)]
    taken: Vec<Taken>,
}

impl Row {
    fn new(choice: EngineChoice) -> Self {
        Self {
            engine: choice.to_string(),
            choice,
            gb_per_s_best: 0.0,
            gb_per_s_median: 0.0,
            cpu_s_per_gb: 0.0,
            plan_share: 0.0,
            latency_us_median: 0.0,
            cached_min: 1.0,
            cached_max: 0.0,
            residency_source: "",
            verified: false,
            failed: None,
            seconds: vec![],
            taken: vec![],
        }
    }

    /// Remembers what was cached when a run began.
    pub(super) fn note_state(&mut self, cached: f64, source: &'static str) {
        self.cached_min = self.cached_min.min(cached);
        self.cached_max = self.cached_max.max(cached);
        self.residency_source = source;
    }

    /// Adds a run.
    pub(super) fn add(&mut self, taken: Taken) {
        self.seconds.push(taken.seconds);
        self.taken.push(taken);
    }

    fn finish(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let rate = |taken: &Taken| gb_per_s(taken.bytes, taken.seconds);
        self.taken.sort_by(|one, two| rate(two).total_cmp(&rate(one)));
        let (Some(best), Some(median)) = (self.taken.first(), self.taken.get(self.taken.len() / 2)) else { return };
        self.gb_per_s_best = rate(best);
        self.gb_per_s_median = rate(median);
        self.cpu_s_per_gb = cpu_s_per_gb(best.bytes, best.cpu_s);
        self.plan_share = if best.seconds > 0.0 { best.plan_s / best.seconds } else { 0.0 };
        self.latency_us_median = best.latency_s * 1e6;
    }

    /// Whether the state was what it is called, within a twentieth.
    pub(super) fn state_was_reached(&self, wanted: f64) -> bool {
        if self.seconds.is_empty() {
            return true;
        }
        // Whoever cannot look assumes that nothing is cached.
        self.residency_source != "assumed"
            && (self.cached_min - wanted).abs() < 0.05
            && (self.cached_max - wanted).abs() < 0.05
    }
}

impl Group {
    pub(super) fn new(
        state: CacheState,
        size: RequestSize,
        requests: &Requests,
        engines: &[EngineChoice],
        cached_wanted: f64,
    ) -> Self {
        Self {
            state,
            request_bytes: requests.list.first().map_or(0, |(_, length)| *length),
            whole_file: size == RequestSize::File,
            requests: requests.list.len(),
            cached_wanted,
            rows: engines.iter().copied().map(Row::new).collect(),
            disk_gb_per_s: None,
            limit_gb_per_s: None,
            auto_to_best_single: None,
            auto_to_limit: None,
        }
    }

    /// Works out rates, limits and ratios once all runs are in.
    pub(super) fn finish(&mut self, link: f64) {
        self.rows.iter_mut().for_each(Row::finish);
        let cached = self.rows.first().map_or(0.5, |row| f64::midpoint(row.cached_min, row.cached_max));
        self.limit_gb_per_s = limit(self.state, cached, self.disk_gb_per_s, link);
        let rate = |row: &Row| row.gb_per_s_best;
        let auto = self.rows.iter().find(|row| row.choice == EngineChoice::Auto).map(rate);
        let single = self.rows.iter().filter(|row| row.choice != EngineChoice::Auto).map(rate).reduce(f64::max);
        let ratio = |of: Option<f64>| auto.zip(of).filter(|(_, of)| *of > 0.0).map(|(auto, of)| auto / of);
        self.auto_to_best_single = ratio(single);
        self.auto_to_limit = ratio(self.limit_gb_per_s);
    }

    /// The request size, for people.
    pub(super) fn request(&self) -> String {
        if self.whole_file { "file".to_owned() } else { crate::size::exact(self.request_bytes) }
    }
}

/// GB/s that nothing can exceed: the link for cached bytes, the disk for the others, both at once.
fn limit(state: CacheState, cached: f64, disk: Option<f64>, link: f64) -> Option<f64> {
    match state {
        CacheState::Warm | CacheState::Again => Some(link),
        CacheState::Cold => disk.map(|disk| disk.min(link)),
        CacheState::Half => disk.map(|disk| ((1.0 - cached) / disk).max(1.0 / link).recip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: Option<f64>, two: f64) -> bool {
        one.is_some_and(|one| (one - two).abs() < 1e-9)
    }

    #[test]
    fn limits_are_those_of_the_slower_of_disk_and_link() {
        assert!(near(limit(CacheState::Warm, 1.0, None, 55.0), 55.0));
        assert!(near(limit(CacheState::Cold, 0.0, Some(3.0), 55.0), 3.0));
        assert!(near(limit(CacheState::Half, 0.5, Some(3.0), 55.0), 6.0));
        assert!(near(limit(CacheState::Half, 0.5, Some(50.0), 55.0), 55.0));
        assert_eq!(limit(CacheState::Cold, 0.0, None, 55.0), None);
    }

    #[test]
    fn rates_are_of_the_best_run_and_ratios_of_the_best_engine() {
        let requests = Requests { region: 0..1_000_000_000, list: vec![(0, 1_000_000_000)], bytes: 1_000_000_000 };
        let engines = ["cached", "direct", "auto"].map(|name| name.parse().unwrap());
        let mut group = Group::new(CacheState::Warm, RequestSize::File, &requests, &engines, 1.0);
        for (row, seconds) in group.rows.iter_mut().zip([[0.5, 0.4, 0.6], [2.0, 2.0, 2.0], [0.4, 0.3, 0.2]]) {
            for seconds in seconds {
                let (bytes, latency_s) = (1_000_000_000, seconds);
                row.add(Taken { requests: 1, bytes, seconds, cpu_s: 0.1, plan_s: seconds / 50.0, latency_s });
            }
        }
        group.finish(10.0);
        assert!(near(Some(group.rows[0].gb_per_s_best), 2.5) && near(Some(group.rows[0].gb_per_s_median), 2.0));
        assert!(near(group.auto_to_best_single, 2.0) && near(group.auto_to_limit, 0.5));
        assert!(near(Some(group.rows[2].plan_share), 0.02));
    }
}
