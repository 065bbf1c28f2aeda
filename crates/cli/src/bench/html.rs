//! The report: one HTML file with everything in it, plots beside their tables.

use super::plots::{BarGroup, Series, bars, colour_of, lines};
use super::results::{FileResults, Group, Results};
use super::table;
use crate::args::CacheState;
use crate::size;
use std::fmt::Write;

type Page = Result<String, Box<dyn std::error::Error>>;

const STYLE: &str = "
:root { color: #2b3138; background: #f4f6f8; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .8rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 0 0 .6rem; } p { margin: .3rem 0; } .quiet { color: #5d6772; font-size: .9rem; }
.card { background: #fff; border: 1px solid #e3e7ec; border-radius: 10px; padding: 18px 20px; margin: 0 0 18px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 18px; }
.pair .card { margin: 0; } .pair + .card, .card + .pair { margin-top: 18px; }
svg { width: 100%; height: auto; display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; font-size: .88rem; color: #5d6772; margin: 0 0 .4rem; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.legend i.limit { height: 0; width: 18px; border-top: 2px dashed #111; border-radius: 0; vertical-align: 4px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid #eef1f4; }
th { color: #5d6772; font-weight: 600; border-bottom: 2px solid #e3e7ec; } .name { text-align: left; }
tr.auto { font-weight: 650; } tr.auto td.name:nth-child(3) { color: #d63c4a; } tr.bound { color: #8a949e; }
tr.first td { border-top: 1px solid #ccd3da; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 1rem 0 0; font-size: .9rem; }
dt { color: #5d6772; } dd { margin: 0; overflow-wrap: anywhere; }
";

/// The whole page.
pub(super) fn page(results: &Results) -> Page {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>bifolio bench read</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    );
    page.push_str(&head(results));
    for file in &results.files {
        page.push_str(&section(file)?);
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn head(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = String::from(
        "<h1>Reading files into device memory</h1>\n<p class=\"quiet\">Every state was set up anew before every run; \
         engines took turns; device memory was compared with the file.</p>\n<dl>\n",
    );
    let facts = [
        ("Device", format!("{} {}, driver {}", machine.device, machine.device_name, machine.driver)),
        ("Processor", format!("{}, {} processors", machine.cpu, machine.cpus)),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("Link", format!("{:.2} GB/s, pinned copies of 64 MiB", results.link_gb_per_s)),
        ("Runs", format!("{} of each engine, seed {}", results.repetitions, results.seed)),
        ("Half", format!("every second stripe of {} is cached", size::human(results.stripe_bytes))),
    ];
    for (name, fact) in facts {
        let _ = writeln!(text, "<dt>{name}</dt><dd>{}</dd>", escape(&fact));
    }
    text + "</dl>\n"
}

fn section(file: &FileResults) -> Page {
    let mut text = format!("<h2>{}</h2>\n", escape(&table::title(file)));
    let whole: Vec<_> = file.groups.iter().filter(|group| group.whole_file).collect();
    if !whole.is_empty() {
        let rates = bars("GB/s", &bar_groups(&whole, true))?;
        let cpu = bars("CPU s/GB", &bar_groups(&whole, false))?;
        let legends = (legend(&whole, true), legend(&whole, false));
        let _ = write!(
            text,
            "<div class=\"pair\">\n{}{}</div>\n",
            card("The whole file by one request: GB/s, best run", &legends.0, &rates),
            card("CPU seconds for each GB, best run (lower is better)", &legends.1, &cpu)
        );
    }
    text.push_str(&by_size(file)?);
    let _ = write!(text, "<div class=\"card\">\n<h3>All numbers</h3>\n{}", numbers(file));
    for reason in &file.left_out {
        let _ = writeln!(text, "<p class=\"quiet\">Left out: {}</p>", escape(reason));
    }
    for note in table::notes(file) {
        let _ = writeln!(text, "<p class=\"quiet\">Note: {}</p>", escape(&note));
    }
    Ok(text + "</div>\n")
}

fn card(title: &str, legend: &str, plot: &str) -> String {
    format!("<div class=\"card\">\n<h3>{}</h3>\n{legend}{plot}\n</div>\n", escape(title))
}

fn bar_groups(groups: &[&Group], rates: bool) -> Vec<BarGroup> {
    let bars = |group: &&Group| BarGroup {
        label: group.state.name().to_owned(),
        bars: group
            .rows
            .iter()
            .map(|row| (row.engine.clone(), if rates { row.gb_per_s_best } else { row.cpu_s_per_gb }))
            .collect(),
        limit: group.limit_gb_per_s.filter(|_| rates),
    };
    groups.iter().map(bars).collect()
}

/// A plot for each state that was measured at several sizes.
fn by_size(file: &FileResults) -> Page {
    let mut text = String::new();
    for state in [CacheState::Warm, CacheState::Again, CacheState::Cold, CacheState::Half] {
        let groups: Vec<_> = file.groups.iter().filter(|group| group.state == state && !group.whole_file).collect();
        let Some(largest) = groups.iter().max_by_key(|group| group.request_bytes) else { continue };
        let of = |engine: &str| {
            let value = |group: &&Group| {
                let row = group.rows.iter().find(|row| row.engine == engine)?;
                Some((group.request_bytes, row.gb_per_s_best))
            };
            let mut points: Vec<_> = groups.iter().filter_map(value).collect();
            points.sort_unstable_by_key(|(bytes, _)| *bytes);
            Series { engine: engine.to_owned(), points }
        };
        let series: Vec<_> = largest.rows.iter().map(|row| of(&row.engine)).collect();
        let plot = lines("GB/s", &series, largest.limit_gb_per_s)?;
        let title = format!("{} by request size: GB/s, requests in a shuffled order", state.name());
        text.push_str(&card(&title, &legend(&groups, true), &plot));
    }
    if text.is_empty() {
        Ok(text)
    } else {
        Ok(format!("<div class=\"pair\" style=\"margin-top:18px\">\n{text}</div>\n"))
    }
}

fn legend(groups: &[&Group], with_limit: bool) -> String {
    let mut engines: Vec<&str> = vec![];
    for row in groups.iter().flat_map(|group| &group.rows) {
        if !engines.contains(&row.engine.as_str()) {
            engines.push(&row.engine);
        }
    }
    let swatch = |engine: &&str| format!("<span><i style=\"background:{}\"></i>{engine}</span>", colour_of(engine));
    let mut text: String = engines.iter().map(swatch).collect();
    if with_limit && groups.iter().any(|group| group.limit_gb_per_s.is_some()) {
        text.push_str("<span><i class=\"limit\"></i>what disk and link allow</span>");
    }
    format!("<div class=\"legend\">{text}</div>\n")
}

fn numbers(file: &FileResults) -> String {
    let class = |column: usize| if [0, 2].contains(&column) { " class=\"name\"" } else { "" };
    let mut text = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for (column, name) in table::HEAD.iter().enumerate() {
        let _ = write!(text, "<th{}>{name}</th>", class(column));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for group in &file.groups {
        for (line, cells) in table::cells(group).iter().enumerate() {
            let kind = match cells[2].as_str() {
                "auto" => "auto",
                name if name.starts_with('(') => "bound",
                _ => "",
            };
            let first = if line == 0 { " first" } else { "" };
            let _ = write!(text, "<tr class=\"{kind}{first}\">");
            for (column, cell) in cells.iter().enumerate() {
                let _ = write!(text, "<td{}>{}</td>", class(column), escape(cell));
            }
            text.push_str("</tr>\n");
        }
    }
    text + "</tbody></table></div>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
