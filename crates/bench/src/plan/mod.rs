//! The paper's evaluation of its planner, repeated for all of ours. No file and no device is touched.
//!
//! ```text
//!   simulate          random residencies, every plan beside the optimum
//!   greedy  exact     the paper's heuristic, and the optimum of its objective
//!   optimum           the optimum of our objective
//!   strategy          what ways to plan have in common, and the router's
//! ```

#[cfg(test)]
mod against_brute_force;
mod exact;
mod greedy;
mod optimum;
mod simulate;
mod strategy;

use crate::error::Result;
use crate::harness::machine;
use crate::harness::report::{Measured, Report};
use crate::harness::router::ProfileChoice;
use crate::harness::session::Session;
use crate::harness::table::Table;
use bifolio_device::{DeviceChoice, open};
use bifolio_io::{Costs, Profile};
use serde::Serialize;
use simulate::{Outcome, PAGES, Quality, Row, Setting};
use std::fmt::Write;

/// What is asked of ours: this part of its own optimum, and so many microseconds for a plan.
const MEAN_MIN: f64 = 0.99;
const PLANNING_US_MAX: f64 = 20.0;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Random residencies of one 8 MiB request.
    pub vectors: u64,
    /// Seed of the residencies.
    pub seed: u64,
    /// Costs beside the paper's: of the device's newest stored profile if there is one, the defaults, or of a file.
    pub profile: ProfileChoice,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    cpu: String,
    threads: usize,
    vectors: u64,
    seed: u64,
    pages: u64,
    /// What the paper reports for its heuristic under its objective.
    paper_greedy_mean: f64,
    outcomes: Vec<Outcome>,
    /// What a reader must know, as sentences.
    notes: Vec<String>,
    /// What missed, as sentences.
    missed: Vec<String>,
}

/// Measures. The device is opened only to find its profile.
pub fn run(device: DeviceChoice, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let settings = settings(device, &options.profile)?;
    let threads = machine::processors();
    let what = simulate::Options { vectors: options.vectors, seed: options.seed, threads };
    session.begin("planning random requests", options.vectors);
    let (vectors, outcomes) = simulate::simulate(&settings, &what, session);
    let ended = if vectors < options.vectors { session.check() } else { Ok(()) };
    Measured::new(ended, vectors > 0, || Results {
        cpu: machine::cpu(),
        threads,
        vectors,
        seed: options.seed,
        pages: PAGES,
        paper_greedy_mean: simulate::PAPER_GREEDY,
        notes: outcomes.iter().filter_map(note).collect(),
        missed: outcomes.iter().flat_map(missed).collect(),
        outcomes,
    })
}

/// The paper's costs with both of its page caches, then this project's.
fn settings(device: DeviceChoice, choice: &ProfileChoice) -> Result<Vec<Setting>> {
    let paper = |name: &str, bytes_per_s| Setting {
        name: format!("the paper's costs, page cache {:.2} GB/s ({name})", bytes_per_s / 1e9),
        costs: simulate::paper_costs(bytes_per_s),
    };
    let (name, costs) = match choice {
        ProfileChoice::None => ("default costs".to_owned(), Costs::default()),
        ProfileChoice::File(path) => (format!("costs of {}", path.display()), Profile::load_any(path)?.costs),
        ProfileChoice::Auto => match Profile::newest_of(&open(device)?) {
            Some(profile) => (format!("calibrated costs of {}", profile.device), profile.costs),
            None => ("default costs (no profile is stored for the device)".to_owned(), Costs::default()),
        },
    };
    Ok(vec![
        paper("section 4.3.1", simulate::PAPER_CACHE_BYTES_PER_S),
        paper("table 3", simulate::PAPER_TABLE_3_BYTES_PER_S),
        Setting { name, costs },
    ])
}

const HEAD: [&str; 7] = [
    "planner",
    "optimum / sum",
    "worst 1 %",
    "optimum / makespan",
    "worst 1 %",
    "planning us, median",
    "99th percentile",
];

impl Report for Results {
    fn text(&self) -> String {
        let Self { cpu, threads, vectors, seed, pages, .. } = self;
        let mut text = format!("{cpu}, {threads} threads\n");
        let _ = writeln!(text, "{vectors} random residencies of {pages} pages (8 MiB), seed {seed}");
        for Outcome { setting, rows } in &self.outcomes {
            let mut table = Table::new(HEAD, &[0]);
            table.push(paper_cells(self.paper_greedy_mean));
            let _ = write!(text, "\n{setting}\n{}", table.with(rows.iter().map(cells)).text());
        }
        text.push_str(
            "\nsum: the paper's objective, transfers one after another; makespan: ours, engines at the same time.\n\
             greedy and exact plan for the sum, overlapped plans for the makespan. Each mean is over all vectors, worst \
             1 % is the first percentile; every plan is timed by itself.\n",
        );
        for sentence in &self.notes {
            let _ = writeln!(text, "note: {sentence}");
        }
        if self.missed.is_empty() {
            let _ = writeln!(text, "missed: nothing");
        }
        for sentence in &self.missed {
            let _ = writeln!(text, "missed: {sentence}");
        }
        text
    }
}

fn cells(row: &Row) -> Vec<String> {
    let both = |quality: &Quality| [percent(quality.mean), percent(quality.worst_1_percent)];
    let time = |us: f64| format!("{us:.2}");
    let [sum, worst_sum] = both(&row.sum);
    let [makespan, worst_makespan] = both(&row.makespan);
    let (median, p99) = (time(row.planning_us_median), time(row.planning_us_p99));
    vec![row.planner.to_owned(), sum, worst_sum, makespan, worst_makespan, median, p99]
}

fn paper_cells(mean: f64) -> Vec<String> {
    vec!["(greedy, as the paper reports)".to_owned(), percent(mean)]
}

fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

/// Where the numbers of a setting leave nothing to decide.
fn note(outcome: &Outcome) -> Option<String> {
    let is_optimal = |row: &Row| row.planner == "greedy" && row.sum.worst_1_percent > 1.0 - 1e-6;
    let trivial = outcome.rows.iter().any(is_optimal);
    trivial.then(|| {
        format!("greedy is always optimal for the sum, so this setting tells nothing about it ({})", outcome.setting)
    })
}

/// What ours or the repetition of the paper's result falls short of, under one setting.
fn missed(outcome: &Outcome) -> Vec<String> {
    let mut missed = vec![];
    let setting = &outcome.setting;
    for row in &outcome.rows {
        if row.planner == "greedy" && row.sum.mean < simulate::PAPER_GREEDY {
            missed.push(format!(
                "greedy reaches {}, the paper reports {} ({setting})",
                percent(row.sum.mean),
                percent(simulate::PAPER_GREEDY)
            ));
        }
        if row.planner == "overlapped" && row.makespan.mean < MEAN_MIN {
            missed.push(format!(
                "overlapped reaches {} of its own optimum, {} is wanted ({setting})",
                percent(row.makespan.mean),
                percent(MEAN_MIN)
            ));
        }
        if row.planner == "overlapped" && row.planning_us_p99 > PLANNING_US_MAX {
            missed.push(format!(
                "overlapped takes {:.1} us at the 99th percentile, {PLANNING_US_MAX} is wanted ({setting})",
                row.planning_us_p99
            ));
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(greedy: f64, ours: f64, us: f64) -> Outcome {
        let row = |planner, sum, makespan| Row {
            planner,
            sum: Quality { mean: sum, worst_1_percent: sum },
            makespan: Quality { mean: makespan, worst_1_percent: makespan },
            planning_us_median: us,
            planning_us_p99: us,
        };
        let rows = vec![row("greedy", greedy, 0.5), row("overlapped", 0.5, ours)];
        Outcome { setting: "here".to_owned(), rows }
    }

    #[test]
    fn what_missed_is_a_sentence_and_what_did_not_is_silent() {
        assert!(missed(&outcome(0.995, 0.991, 19.0)).is_empty());
        let sentences = missed(&outcome(0.9, 0.98, 21.0));
        assert_eq!(sentences.len(), 3, "{sentences:?}");
        assert!(sentences[0].contains("90.00 %") && sentences[0].contains("98.90 %"), "{sentences:?}");
        assert!(sentences[1].contains("98.00 %") && sentences[2].contains("21.0 us"), "{sentences:?}");
    }
}
