//! The results as one self-contained page.

use super::report::{figure_table, head, rows_table, summary};
use super::results::{Ends, Figure, Results, Row};
use crate::harness::page::{card, legend, quiet};
use crate::harness::plots::{Series, colour_of, lines};
use crate::harness::report::Page;
use crate::harness::rounds::Rate;

type Failed = Box<dyn std::error::Error>;

/// Ways in the order of a figure, drawn in the colours of engines, which stay apart for the colour-blind.
const COLOURS: [&str; 5] = ["cached", "direct", "mapped", "p2p", "auto"];

impl Page for Results {
    const TITLE: &'static str = "bifolio bench compute";

    fn body(&self) -> Result<String, Failed> {
        let mut body = format!("<h1>Storage services</h1>\n{}<div class=\"pair\">\n", quiet(head(self).lines()));
        for figure in &self.figures {
            body.push_str(&plot(figure.title, &series_of(figure))?);
        }
        for &service in &unique(self.rows.iter().map(|row| row.service)) {
            for ends in [Ends::HostToHost, Ends::HostToDevice] {
                let rows: Vec<&Row> =
                    self.rows.iter().filter(|row| row.service == service && row.ends == ends).collect();
                if !rows.is_empty() {
                    let title = format!("{}, {}, GB/s", service.name(), ends.name());
                    body.push_str(&plot(&title, &series_of_rows(&rows))?);
                }
            }
        }
        body.push_str("</div>\n");
        for figure in &self.figures {
            body.push_str(&card(figure.title, "", &figure_table(figure).html()));
        }
        body.push_str(&card("All numbers", "", &rows_table(self).html()));
        Ok(body + &quiet(summary(self).iter().map(String::as_str)))
    }
}

type RateOf = fn(&Row) -> Option<Rate>;

/// A way's name, and its rates by size.
type Line = (String, Vec<(u64, f64)>);

fn series_of(figure: &Figure) -> Vec<Line> {
    let ways = unique(figure.points.iter().map(|point| point.way));
    let line = |way: &&'static str| {
        let points = figure.points.iter().filter(|point| point.way == *way);
        let rates = points.filter_map(|point| point.rate.map(|rate| (point.bytes, rate.gb_per_s)));
        ((*way).to_owned(), rates.collect())
    };
    ways.iter().map(line).collect()
}

fn series_of_rows(rows: &[&Row]) -> Vec<Line> {
    let line = |name: &str, rate: RateOf| {
        (name.to_owned(), rows.iter().filter_map(|row| rate(row).map(|rate| (row.bytes, rate.gb_per_s))).collect())
    };
    let ways: [(&str, RateOf); 3] =
        [("CPU", |row| row.library.or(row.cpu)), ("device", |row| row.device), ("hybrid", |row| row.hybrid)];
    ways.iter().map(|(name, rate)| line(name, *rate)).collect()
}

fn plot(title: &str, drawn: &[Line]) -> Result<String, Failed> {
    // The last one stands out.
    let engines = &COLOURS[COLOURS.len() - drawn.len().min(COLOURS.len())..];
    let colours = drawn.iter().zip(engines).map(|((name, _), engine)| (name.as_str(), colour_of(engine)));
    let has_points = |(line, _): &(&Line, &&str)| !line.1.is_empty();
    let series = drawn.iter().zip(engines).filter(has_points);
    let series = series.map(|((_, points), engine)| Series { engine: (*engine).to_owned(), points: points.clone() });
    let series: Vec<_> = series.collect();
    let drawing = if series.is_empty() { String::new() } else { lines("GB/s", &series, None)? };
    Ok(card(title, &legend(colours, None), &drawing))
}

fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut kept = vec![];
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}
