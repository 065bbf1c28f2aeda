//! The results as one self-contained page.

use super::report::{HEAD, cells, figure_rows, head, summary};
use super::{Ends, Figure, Results, Row};
use crate::bench::html::{STYLE, escape};
use crate::bench::plots::{Series, colour_of, lines};
use std::fmt::Write;

type Failed = Box<dyn std::error::Error>;

/// Ways in the order of a figure, drawn in the colours of engines, which stay apart for the colour-blind.
const COLOURS: [&str; 5] = ["cached", "direct", "mapped", "p2p", "auto"];

pub(super) fn page(results: &Results) -> Result<String, Failed> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>bifolio bench compute</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Storage services</h1>\n"
    );
    for line in head(results).lines() {
        let _ = writeln!(page, "<p class=\"quiet\">{}</p>", escape(line));
    }
    page.push_str("<div class=\"pair\">\n");
    for figure in &results.figures {
        page.push_str(&card(figure.title, &series_of(figure))?);
    }
    for &service in &unique(results.rows.iter().map(|row| row.service)) {
        for ends in [Ends::HostToHost, Ends::HostToDevice] {
            let rows: Vec<&Row> =
                results.rows.iter().filter(|row| row.service == service && row.ends == ends).collect();
            if !rows.is_empty() {
                let title = format!("{}, {}, GB/s", service.name(), ends.name());
                page.push_str(&card(&title, &series_of_rows(&rows))?);
            }
        }
    }
    page.push_str("</div>\n");
    for figure in &results.figures {
        let rows = figure_rows(figure);
        page.push_str(&table(&rows));
    }
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(results.rows.iter().map(cells));
    page.push_str(&table(&rows));
    for line in summary(results) {
        let _ = writeln!(page, "<p class=\"quiet\">{}</p>", escape(&line));
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

type RateOf = fn(&Row) -> Option<super::Rate>;

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

fn card(title: &str, drawn: &[Line]) -> Result<String, Failed> {
    // The last one stands out.
    let colours = &COLOURS[COLOURS.len() - drawn.len().min(COLOURS.len())..];
    let mut text = format!("<div class=\"card\"><h3>{}</h3>\n<p class=\"legend\">", escape(title));
    let mut series = vec![];
    for ((name, points), engine) in drawn.iter().zip(colours) {
        let colour = colour_of(engine);
        let _ = write!(text, "<span><i style=\"background:{colour}\"></i>{}</span>", escape(name));
        if !points.is_empty() {
            series.push(Series { engine: (*engine).to_owned(), points: points.clone() });
        }
    }
    let drawing = if series.is_empty() { String::new() } else { lines("GB/s", &series, None)? };
    let _ = write!(text, "</p>\n{drawing}</div>\n");
    Ok(text)
}

fn table(rows: &[Vec<String>]) -> String {
    let mut text = String::from("<div class=\"card scroll\"><table>\n");
    for (number, row) in rows.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        text.push_str("<tr>");
        for cell in row {
            let _ = write!(text, "<{tag}>{}</{tag}>", escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table></div>\n");
    text
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
