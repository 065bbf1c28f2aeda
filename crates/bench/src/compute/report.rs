//! The results as text.

use super::results::{Ends, Figure, KEPT_UP, Results, Row};
use crate::harness::report::Report;
use crate::harness::rounds::Rate;
use crate::harness::table::Table;
use bifolio_io::size;
use std::fmt::Write;

const HEAD: [&str; 10] = [
    "service",
    "data",
    "request",
    "library, 1 core",
    "CPU path",
    "device",
    "hybrid",
    "hybrid / better",
    "by best rounds",
    "hybrid us",
];

pub(super) fn head(results: &Results) -> String {
    let Results { machine, seed, seconds, rounds, pipelines, cpu_threads, slot_bytes, .. } = results;
    let mut text = format!("{machine}\n");
    let _ = writeln!(
        text,
        "random data, seed {seed}; medians in GB/s of {rounds} rounds of all ways in turns, {seconds} s for each way at each \
         size; {pipelines} pipelines with slots of {}, {cpu_threads} CPU threads; all results compared",
        size::exact(*slot_bytes)
    );
    for kernel in &results.kernels {
        let _ = writeln!(text, "kernels: {kernel}");
    }
    text
}

impl Report for Results {
    fn text(&self) -> String {
        let mut text = head(self);
        for figure in &self.figures {
            let _ = write!(text, "\n{}\n{}", figure.title, figure_table(figure).text());
        }
        let _ = write!(text, "\n{}", rows_table(self).text());
        for line in summary(self) {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// All rows.
pub(super) fn rows_table(results: &Results) -> Table {
    Table::new(HEAD, &[0, 1]).with(results.rows.iter().map(cells))
}

/// A row for each size, a column for each way.
pub(super) fn figure_table(figure: &Figure) -> Table {
    let mut ways: Vec<&str> = vec![];
    let mut sizes: Vec<u64> = vec![];
    for point in &figure.points {
        if !ways.contains(&point.way) {
            ways.push(point.way);
        }
        if !sizes.contains(&point.bytes) {
            sizes.push(point.bytes);
        }
    }
    let mut table = Table::new(std::iter::once("request").chain(ways.iter().copied()), &[]);
    for bytes in sizes {
        let mut row = vec![size::exact(bytes)];
        for way in &ways {
            let point = figure.points.iter().find(|point| point.way == *way && point.bytes == bytes);
            row.push(cell(point.and_then(|point| point.rate)));
        }
        table.push(row);
    }
    table
}

fn cell(rate: Option<Rate>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.3}", rate.gb_per_s))
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.service.name().to_owned(),
        row.ends.name().to_owned(),
        size::exact(row.bytes),
        cell(row.library),
        cell(row.cpu),
        cell(row.device),
        cell(row.hybrid),
        ratio(row.hybrid_to_better),
        ratio(row.hybrid_to_better_best),
        row.hybrid.map_or_else(|| "-".to_owned(), |rate| format!("{:.2}", rate.us)),
    ]
}

/// How the choice did, and where it did not.
pub(super) fn summary(results: &Results) -> Vec<String> {
    let compared = || results.rows.iter().filter_map(|row| row.hybrid_to_better.map(|ratio| (row, ratio)));
    let kept_up = compared().filter(|(_, ratio)| *ratio >= KEPT_UP).count();
    let best =
        results.rows.iter().filter_map(|row| row.hybrid_to_better_best).filter(|ratio| *ratio >= KEPT_UP).count();
    let mut lines = vec![format!(
        "hybrid is at least {KEPT_UP} of the better of CPU and device in {kept_up} of {} rows by medians, in {best} by \
         best rounds",
        compared().count()
    )];
    for (row, ratio) in compared().filter(|(_, ratio)| *ratio < KEPT_UP) {
        let Row { service, ends, bytes, .. } = row;
        let by_best = self::ratio(row.hybrid_to_better_best);
        let what = format!("{}, {}, {}", service.name(), ends.name(), size::exact(*bytes));
        lines.push(format!("  {ratio:.3} ({by_best} by best rounds): {what}"));
    }
    // Where the device is slower than the library, the choice is the CPU's path.
    let by_cpu = results.rows.iter().filter(|row| row.ends == Ends::HostToHost);
    let ratios = by_cpu.filter_map(|row| {
        let library = row.library?.gb_per_s;
        let is_cpu = row.device.is_none_or(|device| device.gb_per_s < library);
        is_cpu.then(|| row.hybrid.map(|hybrid| hybrid.gb_per_s / library))?
    });
    let (count, worst) = ratios.fold((0, f64::INFINITY), |(count, worst), ratio| (count + 1, worst.min(ratio)));
    if count > 0 {
        lines.push(format!(
            "the executor's CPU path is at least {worst:.3} of the library's loop on one core ({count} rows)"
        ));
    }
    lines.extend(results.left_out.iter().map(|what| format!("left out: {what}")));
    lines.push("-: not measured, or slower than 0.25 s a request".to_owned());
    lines
}
