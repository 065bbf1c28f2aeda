//! The results as text.

use super::results::{FileResults, Group, Results, Row};
use crate::{output, size};
use bifolio_io::EngineChoice;
use std::fmt::Write;

/// The head of every table.
pub(super) const HEAD: [&str; 11] = [
    "state",
    "request",
    "engine",
    "best GB/s",
    "median GB/s",
    "CPU s/GB",
    "planning",
    "request us",
    "cached",
    "auto / best single",
    "of the limit",
];

/// Everything as text.
pub(super) fn describe(results: &Results) -> String {
    let mut text = format!("{}\n", results.machine);
    let (runs, seed, stripe) = (results.repetitions, results.seed, size::exact(results.stripe_bytes));
    let _ = writeln!(
        text,
        "{runs} runs of each engine in turns, seed {seed}, half = stripes of {stripe}, link {:.2} GB/s",
        results.link_gb_per_s
    );
    for file in &results.files {
        let _ = writeln!(text, "\n{}", title(file));
        let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
        rows.extend(file.groups.iter().flat_map(cells));
        text.push_str(&output::columns(&rows, &[0, 2]));
        for reason in &file.left_out {
            let _ = writeln!(text, "left out: {reason}");
        }
        for note in notes(file) {
            let _ = writeln!(text, "note: {note}");
        }
    }
    text
}

/// The file, its size and where it lies.
pub(super) fn title(file: &FileResults) -> String {
    format!("{}: {} on {}", file.path, size::human(file.bytes), file.file_system)
}

/// The lines of one group: its engines, then what is possible.
pub(super) fn cells(group: &Group) -> Vec<Vec<String>> {
    let mut lines: Vec<_> = group.rows.iter().map(|row| engine_cells(group, row)).collect();
    let bound = |name: &str, rate: f64| {
        let mut cells = vec![String::new(); HEAD.len()];
        (cells[0], cells[1], cells[2], cells[3]) =
            (group.state.name().to_owned(), group.request(), name.to_owned(), format!("{rate:.3}"));
        cells
    };
    lines.extend(group.disk_gb_per_s.map(|rate| bound("(disk alone)", rate)));
    lines.extend(group.limit_gb_per_s.map(|rate| bound("(limit)", rate)));
    lines
}

fn engine_cells(group: &Group, row: &Row) -> Vec<String> {
    let is_auto = row.choice == EngineChoice::Auto;
    let ratio = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let of_limit = group.limit_gb_per_s.filter(|limit| *limit > 0.0).map(|limit| row.gb_per_s_best / limit);
    vec![
        group.state.name().to_owned(),
        group.request(),
        if row.failed.is_some() { format!("{} (failed)", row.engine) } else { row.engine.clone() },
        format!("{:.3}", row.gb_per_s_best),
        format!("{:.3}", row.gb_per_s_median),
        format!("{:.3}", row.cpu_s_per_gb),
        format!("{:.2} %", row.plan_share * 100.0),
        format!("{:.1}", row.latency_us_median),
        cached(row),
        if is_auto { ratio(group.auto_to_best_single) } else { String::new() },
        ratio(of_limit),
    ]
}

fn cached(row: &Row) -> String {
    let (low, high) = (format!("{:.0}", row.cached_min * 100.0), format!("{:.0}", row.cached_max * 100.0));
    if low == high { format!("{low} %") } else { format!("{low}-{high} %") }
}

/// What a reader must know before believing the numbers.
pub(super) fn notes(file: &FileResults) -> Vec<String> {
    let mut notes = vec![];
    for group in &file.groups {
        for (row, why) in group.rows.iter().filter_map(|row| Some((row, row.failed.as_ref()?))) {
            notes.push(format!(
                "{} has no rate in the state {} ({}): {why}",
                row.engine,
                group.state.name(),
                group.request()
            ));
        }
        let missed = group.rows.iter().filter(|row| !row.state_was_reached(group.cached_wanted));
        let names: Vec<_> = missed.map(|row| row.engine.as_str()).collect();
        if !names.is_empty() {
            let (state, source) = (group.state.name(), group.rows[0].residency_source);
            notes.push(format!(
                "the state {state} ({}) was not reached, as {source} says, for {}",
                group.request(),
                names.join(", ")
            ));
        }
    }
    if file.groups.iter().flat_map(|group| &group.rows).all(|row| row.verified || row.failed.is_some()) {
        notes.push(
            "device memory was poisoned before the first run of every line, and equal to the file after it".to_owned(),
        );
    }
    notes
}
