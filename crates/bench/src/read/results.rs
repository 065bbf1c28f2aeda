//! What was measured, and the arithmetic on it. Pure.

use super::choices::{Contention, Pattern, RegionState, RequestSize};
use super::requests::Requests;
use crate::harness::machine::Machine;
use crate::harness::usage::{cpu_s_per_gb, gb_per_s};
use bifolio_io::{EngineChoice, size};
use serde::Serialize;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    pub(super) machine: Machine,
    pub(super) seed: u64,
    pub(super) repetitions: u32,
    /// A run of many requests ended after this time.
    pub(super) run_time_s_max: f64,
    pub(super) stripe_bytes: u64,
    pub(super) cell_bytes: u64,
    /// Pinned copies to the device.
    pub(super) link_gb_per_s: f64,
    pub(super) summary: Summary,
    pub(super) files: Vec<FileResults>,
}

/// `auto` counts as keeping up with the best single engine from this ratio.
pub(super) const KEPT_UP: f64 = 0.98;

/// How `auto` did beside the best single engine, over all groups that have both.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) groups: usize,
    /// Groups with a ratio of at least [`KEPT_UP`], by best runs and by median runs.
    pub(super) kept_up_best: usize,
    pub(super) kept_up_median: usize,
    /// Groups with a lower ratio by best runs, the lowest first.
    pub(super) misses: Vec<Miss>,
}

/// A group in which `auto` was slower than some engine by itself.
#[derive(Debug, Serialize)]
pub(super) struct Miss {
    pub(super) group: String,
    pub(super) best_single: String,
    pub(super) ratio_best: f64,
    pub(super) ratio_median: Option<f64>,
}

impl Summary {
    pub(super) fn of(files: &[FileResults]) -> Self {
        let groups = || files.iter().flat_map(|file| file.groups.iter().map(move |group| (file, group)));
        let count = |ratio: &dyn Fn(&Group) -> Option<f64>, least: f64| {
            groups().filter_map(|(_, group)| ratio(group)).filter(|ratio| *ratio >= least).count()
        };
        let miss = |(file, group): (&FileResults, &Group)| {
            let ratio_best = group.auto_to_best_single.filter(|ratio| *ratio < KEPT_UP)?;
            let name = if files.len() > 1 { format!("{}: {}", file.path, group.name()) } else { group.name() };
            let best_single = group.best_single().map_or_else(String::new, |row| row.engine.clone());
            Some(Miss { group: name, best_single, ratio_best, ratio_median: group.auto_to_best_single_median })
        };
        let mut misses: Vec<_> = groups().filter_map(miss).collect();
        misses.sort_by(|one, two| one.ratio_best.total_cmp(&two.ratio_best));
        Self {
            groups: count(&|group| group.auto_to_best_single, 0.0),
            kept_up_best: count(&|group| group.auto_to_best_single, KEPT_UP),
            kept_up_median: count(&|group| group.auto_to_best_single_median, KEPT_UP),
            misses,
        }
    }
}

/// What it did beside the requests.
#[derive(Debug, Serialize)]
pub(super) struct ContentionResults {
    pub(super) contention: Contention,
    pub(super) what: String,
    /// In the slowest and the quickest group: GB/s of the disk contention, 1e9 steps/s of the CPU contention.
    pub(super) rate_min: f64,
    pub(super) rate_max: f64,
}

impl ContentionResults {
    pub(super) fn new(contention: Contention, what: String, groups: &[Group]) -> Self {
        let rates =
            || groups.iter().filter(|group| group.contention == contention).filter_map(|group| group.contention_rate);
        let (rate_min, rate_max) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
        Self { contention, what, rate_min: rate_min.min(rate_max), rate_max }
    }
}

/// One file.
#[derive(Debug, Serialize)]
pub(super) struct FileResults {
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) file_system: String,
    /// Unbuffered reads into host memory, where percentages were measured.
    pub(super) disk_gb_per_s: Option<f64>,
    /// What was not measured, and why.
    pub(super) left_out: Vec<String>,
    pub(super) groups: Vec<Group>,
    /// The contentions that were asked for.
    pub(super) contentions: Vec<ContentionResults>,
}

/// One state, request size, pattern and contention.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    pub(super) state: RegionState,
    /// None for the whole file by one request.
    pub(super) pattern: Option<Pattern>,
    pub(super) contention: Contention,
    /// What the contention did beside the requests, the mean of all runs: GB/s of the disk contention, 1e9
    /// steps/s of the CPU contention.
    pub(super) contention_rate: Option<f64>,
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
    /// `auto` beside the best single engine, by the best run of each.
    pub(super) auto_to_best_single: Option<f64>,
    /// The same by the median run of each.
    pub(super) auto_to_best_single_median: Option<f64>,
    /// `auto` beside the limit.
    pub(super) auto_to_limit: Option<f64>,
}

/// What one run cost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) requests: usize,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    pub(super) plan_s: f64,
    pub(super) latency_s: f64,
    /// Bytes of those moved that were cached when the run began.
    pub(super) cached_bytes: u64,
    /// What the contention did meanwhile, in 1e9 of its units each second.
    pub(super) contention_rate: f64,
}

/// One engine.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) engine: String,
    #[serde(skip)]
    pub(super) choice: EngineChoice,
    pub(super) gb_per_s_best: f64,
    pub(super) gb_per_s_median: f64,
    /// Of the best run, without the threads of a contention.
    pub(super) cpu_s_per_gb: f64,
    /// The part of the best run spent on looking and planning, 0 to 1.
    pub(super) plan_share: f64,
    /// The median request of the best run.
    pub(super) latency_us_median: f64,
    /// The lowest and highest part that was cached when a run began, 0 to 1.
    pub(super) cached_min: f64,
    pub(super) cached_max: f64,
    /// The same of the bytes that the best run read: few requests are a sample, and a run that ended
    /// by its time read a part.
    pub(super) cached_of_read: f64,
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

/// One of a row's rates.
type RateOf = fn(&Row) -> f64;

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
            cached_of_read: 0.0,
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
        self.cached_of_read = best.cached_bytes as f64 / best.bytes.max(1) as f64;
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
        state: RegionState,
        requests: &Requests,
        contention: Contention,
        engines: &[EngineChoice],
        cached_wanted: f64,
    ) -> Self {
        Self {
            state,
            pattern: requests.pattern,
            contention,
            contention_rate: None,
            request_bytes: requests.list.first().map_or(0, |(_, length)| *length),
            whole_file: requests.size == RequestSize::File,
            requests: requests.list.len(),
            cached_wanted,
            rows: engines.iter().copied().map(Row::new).collect(),
            disk_gb_per_s: None,
            limit_gb_per_s: None,
            auto_to_best_single: None,
            auto_to_best_single_median: None,
            auto_to_limit: None,
        }
    }

    /// Works out rates, limits and ratios once all runs are in. `disk` is that of the percentages.
    pub(super) fn finish(&mut self, link: f64, disk: Option<f64>) {
        // Interrupted before their first run.
        self.rows.retain(|row| row.failed.is_some() || !row.taken.is_empty());
        self.rows.iter_mut().for_each(Row::finish);
        let cached = self.rows.first().map_or(0.5, |row| f64::midpoint(row.cached_min, row.cached_max));
        if self.contention == Contention::None {
            let disk = if self.state.percent().is_some() { disk } else { self.disk_gb_per_s };
            self.limit_gb_per_s = limit(self.state, cached, disk, link);
        } else {
            let rates: Vec<_> =
                self.rows.iter().flat_map(|row| &row.taken).map(|taken| taken.contention_rate).collect();
            self.contention_rate = (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
        }
        let auto = |rate: RateOf| self.rows.iter().find(|row| row.choice == EngineChoice::Auto).map(rate);
        let single = |rate: RateOf| self.singles().map(rate).reduce(f64::max);
        let ratio = |rate: RateOf, of: Option<f64>| Some(auto(rate)? / of.filter(|of| *of > 0.0)?);
        let (best, median): (RateOf, RateOf) = (|row| row.gb_per_s_best, |row| row.gb_per_s_median);
        let ratios = (ratio(best, single(best)), ratio(median, single(median)), ratio(best, self.limit_gb_per_s));
        (self.auto_to_best_single, self.auto_to_best_single_median, self.auto_to_limit) = ratios;
    }

    fn singles(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.choice != EngineChoice::Auto)
    }

    /// The engine that was best by itself.
    pub(super) fn best_single(&self) -> Option<&Row> {
        self.singles().max_by(|one, two| one.gb_per_s_best.total_cmp(&two.gb_per_s_best))
    }

    /// An engine's rate beside that of `auto`, by the best run of each; none where one has no rate.
    pub(super) fn relative_to_auto(&self, engine: &str) -> Option<f64> {
        let rate = |name: &str| self.rows.iter().find(|row| row.engine == name).map(|row| row.gb_per_s_best);
        rate(engine).zip(rate("auto")).filter(|(rate, auto)| *rate > 0.0 && *auto > 0.0).map(|(rate, auto)| rate / auto)
    }

    /// The group, for people.
    pub(super) fn name(&self) -> String {
        let pattern = self.pattern.map_or_else(String::new, |pattern| format!(", {}", pattern.name()));
        let contention = if self.contention == Contention::None {
            String::new()
        } else {
            format!(", {} contention", self.contention.name())
        };
        format!("{}, {}{pattern}{contention}", self.state, self.request())
    }

    /// Size and pattern, for a title.
    pub(super) fn requests_for_people(&self) -> String {
        let size = if self.whole_file { "file".to_owned() } else { size::human(self.request_bytes) };
        self.pattern.map_or_else(|| size.clone(), |pattern| format!("{size}, {}", pattern.name()))
    }

    /// The request size, as on the command line.
    pub(super) fn request(&self) -> String {
        if self.whole_file { "file".to_owned() } else { size::exact(self.request_bytes) }
    }
}

/// GB/s that nothing can exceed: the link for cached bytes, the disk for the others, both at once.
fn limit(state: RegionState, cached: f64, disk: Option<f64>, link: f64) -> Option<f64> {
    match state {
        RegionState::Warm | RegionState::Again | RegionState::Percent(100) => Some(link),
        RegionState::Cold => disk.map(|disk| disk.min(link)),
        RegionState::Half | RegionState::Percent(_) => disk.map(|disk| ((1.0 - cached) / disk).max(1.0 / link).recip()),
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
        assert!(near(limit(RegionState::Warm, 1.0, None, 55.0), 55.0));
        assert!(near(limit(RegionState::Cold, 0.0, Some(3.0), 55.0), 3.0));
        assert!(near(limit(RegionState::Half, 0.5, Some(3.0), 55.0), 6.0));
        assert!(near(limit(RegionState::Half, 0.5, Some(50.0), 55.0), 55.0));
        assert!(near(limit(RegionState::Percent(0), 0.0, Some(3.0), 55.0), 3.0));
        assert!(near(limit(RegionState::Percent(75), 0.75, Some(3.0), 55.0), 12.0));
        assert!(near(limit(RegionState::Percent(100), 1.0, None, 55.0), 55.0));
        assert_eq!(limit(RegionState::Cold, 0.0, None, 55.0), None);
    }

    /// A group of `cached`, `direct` and `auto` whose runs took so many seconds for one GB.
    fn group(state: RegionState, contention: Contention, seconds: [[f64; 3]; 3]) -> Group {
        let bytes = 1_000_000_000;
        let requests =
            Requests { size: RequestSize::File, pattern: None, region: 0..bytes, list: vec![(0, bytes)], bytes };
        let engines = ["cached", "direct", "auto"].map(|name| name.parse().unwrap());
        let mut group = Group::new(state, &requests, contention, &engines, 1.0);
        for (row, seconds) in group.rows.iter_mut().zip(seconds) {
            for seconds in seconds {
                let (plan_s, latency_s, contention_rate) = (seconds / 50.0, seconds, 3.0 * seconds);
                let cached_bytes = bytes / 4;
                let taken =
                    Taken { requests: 1, bytes, seconds, cpu_s: 0.1, plan_s, latency_s, cached_bytes, contention_rate };
                row.note_state(0.3, "cachestat");
                row.add(taken);
            }
        }
        group.finish(10.0, Some(2.0));
        group
    }

    #[test]
    fn rates_are_of_the_best_run_and_ratios_of_the_best_engine() {
        let group = group(RegionState::Warm, Contention::None, [[0.5, 0.4, 0.6], [2.0, 2.0, 2.0], [0.4, 0.3, 0.2]]);
        assert!(near(Some(group.rows[0].gb_per_s_best), 2.5) && near(Some(group.rows[0].gb_per_s_median), 2.0));
        assert!(near(group.auto_to_best_single, 2.0) && near(group.auto_to_limit, 0.5));
        assert!(near(group.auto_to_best_single_median, 0.5 / 0.3));
        assert!(near(group.relative_to_auto("direct"), 0.1) && near(group.relative_to_auto("auto"), 1.0));
        assert!(near(Some(group.rows[2].plan_share), 0.02) && near(Some(group.rows[2].cached_of_read), 0.25));
        assert_eq!((group.contention_rate, group.relative_to_auto("p2p")), (None, None));
    }

    #[test]
    fn under_contention_there_is_no_limit_but_the_contention_s_own_rate() {
        let group = group(RegionState::Percent(50), Contention::Cpu, [[1.0; 3], [1.0; 3], [1.0; 3]]);
        assert!(group.limit_gb_per_s.is_none() && near(group.contention_rate, 3.0));
        let results = ContentionResults::new(Contention::Cpu, String::new(), std::slice::from_ref(&group));
        assert!(near(Some(results.rate_min), 3.0) && near(Some(results.rate_max), 3.0));
        let unused = ContentionResults::new(Contention::Disk, String::new(), &[group]);
        assert!(unused.rate_min.abs() + unused.rate_max.abs() < 1e-12);
    }

    #[test]
    fn the_summary_counts_groups_and_names_the_worst_miss_first() {
        let slower = |auto: f64| group(RegionState::Percent(10), Contention::Disk, [[1.0; 3], [2.0; 3], [auto; 3]]);
        let file = FileResults {
            path: "data".to_owned(),
            bytes: 1,
            file_system: String::new(),
            disk_gb_per_s: None,
            left_out: vec![],
            groups: vec![slower(1.1), slower(0.9), slower(1.25), slower(1.01)],
            contentions: vec![],
        };
        let summary = Summary::of(&[file]);
        assert_eq!((summary.groups, summary.kept_up_best, summary.kept_up_median), (4, 2, 2));
        let ratios: Vec<_> = summary.misses.iter().map(|miss| (miss.ratio_best * 100.0).round()).collect();
        assert_eq!(ratios, [80.0, 91.0]);
        assert_eq!(
            (&*summary.misses[0].group, &*summary.misses[0].best_single),
            ("10%, file, disk contention", "cached")
        );
    }
}
