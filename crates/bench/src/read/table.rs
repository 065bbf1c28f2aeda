//! The results as text.

use super::choices::{Contention, Pattern};
use super::results::{FileResults, Group, KEPT_UP, Results, Row, Summary};
use crate::harness::report::Report;
use crate::harness::table::{Table, ratio};
use bifolio_io::{EngineChoice, size};
use std::fmt::Write;

/// The head of every table.
const HEAD: [&str; 14] = [
    "state",
    "request",
    "pattern",
    "contention",
    "engine",
    "best GB/s",
    "median GB/s",
    "CPU s/GB",
    "planning",
    "request us",
    "cached",
    "auto / best single",
    "by medians",
    "of the limit",
];

/// Columns of names, and that of the engine.
const NAMES: [usize; 4] = [0, 2, 3, ENGINE];
pub(super) const ENGINE: usize = 4;

impl Report for Results {
    fn text(&self) -> String {
        describe(self)
    }
}

/// Everything as text.
fn describe(results: &Results) -> String {
    let mut text = format!("{}\n", results.machine);
    let (runs, seed, stripe) = (results.repetitions, results.seed, size::exact(results.stripe_bytes));
    let _ = writeln!(
        text,
        "{runs} runs of each engine in turns, each of {} s at most, seed {seed}, half = stripes of {stripe}, \
         percentages = cells of {}, link {:.2} GB/s",
        results.run_time_s_max,
        size::exact(results.cell_bytes),
        results.link_gb_per_s
    );
    for file in &results.files {
        let _ = writeln!(text, "\n{}", title(file));
        text.push_str(&numbers(file).text());
        for reason in &file.left_out {
            let _ = writeln!(text, "left out: {reason}");
        }
        for note in notes(file) {
            let _ = writeln!(text, "note: {note}");
        }
    }
    let _ = writeln!(text);
    for line in summary(&results.summary) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// All numbers of a file.
pub(super) fn numbers(file: &FileResults) -> Table {
    Table::new(HEAD, &NAMES).with(file.groups.iter().flat_map(cells))
}

/// How `auto` did, and where it did not.
pub(super) fn summary(summary: &Summary) -> Vec<String> {
    let Summary { groups, kept_up_best, kept_up_median, misses } = summary;
    if *groups == 0 {
        return vec!["auto was not measured beside another engine".to_owned()];
    }
    let mut lines = vec![format!(
        "auto is at least {KEPT_UP} of the best single engine in {kept_up_best} of {groups} groups by best runs, \
         in {kept_up_median} by median runs"
    )];
    lines.extend(misses.iter().map(|miss| {
        let median = miss.ratio_median.map_or_else(String::new, |ratio| format!(" ({ratio:.3} by medians)"));
        format!("  {:.3}{median} of {}: {}", miss.ratio_best, miss.best_single, miss.group)
    }));
    lines
}

/// The file, its size and where it lies.
pub(super) fn title(file: &FileResults) -> String {
    let disk = file.disk_gb_per_s.map_or_else(String::new, |rate| format!(", disk alone {rate:.3} GB/s"));
    format!("{}: {} on {}{disk}", file.path, size::human(file.bytes), file.file_system)
}

/// The lines of one group: its engines, then what is possible.
fn cells(group: &Group) -> Vec<Vec<String>> {
    let mut lines: Vec<_> = group.rows.iter().map(|row| engine_cells(group, row)).collect();
    let bound = |name: &str, rate: f64| {
        let mut cells = group_cells(group).to_vec();
        cells.extend([name.to_owned(), format!("{rate:.3}")]);
        cells.resize(HEAD.len(), String::new());
        cells
    };
    // Percentages are many, and their limits are one disk and one link.
    if group.state.percent().is_none() {
        lines.extend(group.disk_gb_per_s.map(|rate| bound("(disk alone)", rate)));
        lines.extend(group.limit_gb_per_s.map(|rate| bound("(limit)", rate)));
    }
    lines
}

/// How many they are.
pub(super) fn lines(group: &Group) -> usize {
    cells(group).len()
}

/// Which group a line belongs to.
fn group_cells(group: &Group) -> [String; 4] {
    let pattern = group.pattern.map_or("-", Pattern::name).to_owned();
    [group.state.to_string(), group.request(), pattern, group.contention.name().to_owned()]
}

fn engine_cells(group: &Group, row: &Row) -> Vec<String> {
    let is_auto = row.choice == EngineChoice::Auto;
    let of_limit = group.limit_gb_per_s.filter(|limit| *limit > 0.0).map(|limit| row.gb_per_s_best / limit);
    let of_auto = |value: Option<f64>| if is_auto { ratio(value) } else { String::new() };
    let mut cells = group_cells(group).to_vec();
    cells.extend([
        if row.failed.is_some() { format!("{} (failed)", row.engine) } else { row.engine.clone() },
        rate(row.gb_per_s_best),
        rate(row.gb_per_s_median),
        format!("{:.3}", row.cpu_s_per_gb),
        format!("{:.2} %", row.plan_share * 100.0),
        format!("{:.1}", row.latency_us_median),
        cached(row),
        of_auto(group.auto_to_best_single),
        of_auto(group.auto_to_best_single_median),
        ratio(of_limit),
    ]);
    cells
}

/// Short requests move little: three digits whatever the size.
fn rate(gb_per_s: f64) -> String {
    if gb_per_s < 0.1 { format!("{gb_per_s:.5}") } else { format!("{gb_per_s:.3}") }
}

fn cached(row: &Row) -> String {
    let (low, high) = (format!("{:.0}", row.cached_min * 100.0), format!("{:.0}", row.cached_max * 100.0));
    let region = if low == high { format!("{low} %") } else { format!("{low}-{high} %") };
    // A sample of the region is not quite like it; beyond that, a reader has to know.
    let is_like_it = (row.cached_min - 0.03..=row.cached_max + 0.03).contains(&row.cached_of_read);
    if is_like_it || row.failed.is_some() {
        region
    } else {
        format!("{region} (read: {:.0} %)", row.cached_of_read * 100.0)
    }
}

/// What a reader must know before believing the numbers.
pub(super) fn notes(file: &FileResults) -> Vec<String> {
    let mut notes = vec![];
    for group in &file.groups {
        for (row, why) in group.rows.iter().filter_map(|row| Some((row, row.failed.as_ref()?))) {
            notes.push(format!("{} has no rate in {}: {why}", row.engine, group.name()));
        }
        let missed = group.rows.iter().filter(|row| !row.state_was_reached(group.cached_wanted));
        let names: Vec<_> = missed.map(|row| row.engine.as_str()).collect();
        if !names.is_empty() {
            let source = group.rows[0].residency_source;
            notes.push(format!(
                "the state of {} was not reached, as {source} says, for {}",
                group.name(),
                names.join(", ")
            ));
        }
    }
    for beside in &file.contentions {
        let unit = if beside.contention == Contention::Disk { "GB/s" } else { "e9 steps/s" };
        notes.push(format!(
            "contention {}: {}; beside the requests it did {:.2} to {:.2} {unit}. Its CPU seconds are not in those of the engines",
            beside.contention.name(),
            beside.what,
            beside.rate_min,
            beside.rate_max
        ));
    }
    if file.groups.iter().flat_map(|group| &group.rows).all(|row| row.verified || row.failed.is_some()) {
        notes.push(
            "device memory was poisoned before the first run of every line, and equal to the file after it".to_owned(),
        );
    }
    notes
}
