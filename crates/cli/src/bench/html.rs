//! The report: one HTML file with everything in it, plots beside their tables.

use super::choices::LoadKind;
use super::plots::{BarGroup, Series, bars, colour_of, lines, relative_by_share, relative_by_size};
use super::results::{FileResults, Group, Results};
use super::table;
use crate::size;
use std::fmt::Write;

type Page = Result<String, Box<dyn std::error::Error>>;

pub(super) const STYLE: &str = "
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
th { color: #5d6772; font-weight: 600; white-space: normal; vertical-align: bottom; border-bottom: 2px solid #e3e7ec; } .name { text-align: left; }
tr.auto { font-weight: 650; } tr.auto td.name:nth-child(5) { color: #d63c4a; } tr.bound { color: #8a949e; }
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
    page.push_str("<h2>Summary</h2>\n<div class=\"card\">\n");
    for line in table::summary(&results.summary) {
        let _ = writeln!(page, "<p>{}</p>", escape(&line));
    }
    page.push_str("</div>\n");
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn head(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = String::from(
        "<h1>Reading files into device memory</h1>\n<p class=\"quiet\">Every state was set up before every run; \
         engines took turns; device memory was compared with the file.</p>\n<dl>\n",
    );
    let facts = [
        ("Device", format!("{} {}, driver {}", machine.device, machine.device_name, machine.driver)),
        ("Processor", format!("{}, {} processors", machine.cpu, machine.cpus)),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("Link", format!("{:.2} GB/s, pinned copies of 64 MiB", results.link_gb_per_s)),
        (
            "Runs",
            format!(
                "{} of each engine, each of {} s at most, seed {}",
                results.repetitions, results.run_time_s_max, results.seed
            ),
        ),
        (
            "Partly cached",
            format!(
                "half: every second stripe of {}; percentages: cells of {}, drawn at random",
                size::human(results.stripe_bytes),
                size::human(results.cell_bytes)
            ),
        ),
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
    for cards in [by_share(file)?, relative_sizes(file)?, under_load(file)?, by_size(file)?] {
        if !cards.is_empty() {
            let _ = write!(text, "<div class=\"pair\" style=\"margin-top:18px\">\n{cards}</div>\n");
        }
    }
    let _ = write!(text, "<div class=\"card\" style=\"margin-top:18px\">\n<h3>All numbers</h3>\n{}", numbers(file));
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
        label: match group.load {
            LoadKind::None => group.state.to_string(),
            load => format!("{}, {} load", group.state, load.name()),
        },
        bars: group
            .rows
            .iter()
            .map(|row| (row.engine.clone(), if rates { row.gb_per_s_best } else { row.cpu_s_per_gb }))
            .collect(),
        limit: group.limit_gb_per_s.filter(|_| rates),
    };
    groups.iter().map(bars).collect()
}

/// Groups that share a key, in the order in which they were measured.
fn alike<'a, K: PartialEq>(groups: impl Iterator<Item = &'a Group>, key: impl Fn(&Group) -> K) -> Vec<Vec<&'a Group>> {
    let mut sets: Vec<Vec<&Group>> = vec![];
    for group in groups {
        match sets.iter_mut().find(|set| key(set[0]) == key(group)) {
            Some(set) => set.push(group),
            None => sets.push(vec![group]),
        }
    }
    sets
}

/// One series for each engine, of what `value` says about it in each group.
fn series(groups: &[&Group], at: impl Fn(&Group) -> u64, value: impl Fn(&Group, &str) -> Option<f64>) -> Vec<Series> {
    let of = |engine: &str| {
        let mut points: Vec<_> = groups.iter().filter_map(|group| Some((at(group), value(group, engine)?))).collect();
        points.sort_unstable_by_key(|(at, _)| *at);
        Series { engine: engine.to_owned(), points }
    };
    engines_of(groups).into_iter().map(of).collect()
}

/// For each request size and pattern, engines beside `auto` by what is cached.
fn by_share(file: &FileResults) -> Page {
    let mut text = String::new();
    let groups = file.groups.iter().filter(|group| group.state.percent().is_some() && has_auto(group));
    for set in alike(groups, |group| (group.request_bytes, group.pattern, group.load)) {
        if set.len() > 1 {
            let at = |group: &Group| group.state.percent().map_or(0, u64::from);
            let plot = relative_by_share(&series(&set, at, Group::relative_to_auto))?;
            let title = format!("{}: throughput relative to auto", requests_of(set[0]));
            text.push_str(&card(&title, &legend(&set, false), &plot));
        }
    }
    Ok(text)
}

/// For nothing cached, engines beside `auto` by request size.
fn relative_sizes(file: &FileResults) -> Page {
    let mut text = String::new();
    let groups = file.groups.iter().filter(|group| group.cached_wanted <= 0.0 && !group.whole_file && has_auto(group));
    for set in alike(groups, |group| (group.state, group.pattern, group.load)) {
        if set.len() > 1 {
            let plot = relative_by_size(&series(&set, |group| group.request_bytes, Group::relative_to_auto))?;
            let title = format!("{}: throughput relative to auto", state_of(set[0]));
            text.push_str(&card(&title, &legend(&set, false), &plot));
        }
    }
    Ok(text)
}

/// For each request size and pattern that was measured under several loads, engines beside `auto`.
fn under_load(file: &FileResults) -> Page {
    let mut text = String::new();
    for mut set in
        alike(file.groups.iter().filter(|group| has_auto(group)), |group| (group.request_bytes, group.pattern))
    {
        if set.iter().all(|group| group.load == set[0].load) {
            continue;
        }
        // Stable: states stay in their order.
        set.sort_by_key(|group| group.load as u8);
        let bar_group = |group: &&Group| {
            let bar = |engine: &str| Some((engine.to_owned(), group.relative_to_auto(engine)?));
            let load = if group.load == LoadKind::None { String::new() } else { format!(" {}", group.load.name()) };
            BarGroup {
                label: format!("{}{load}", group.state),
                bars: engines_of(&[group]).into_iter().filter_map(bar).collect(),
                limit: None,
            }
        };
        let plot = bars("throughput / that of auto", &set.iter().map(bar_group).collect::<Vec<_>>())?;
        let title = format!("{}, without and under load: throughput relative to auto", set[0].requests_for_people());
        let _ = write!(text, "<div style=\"grid-column:1/-1\">{}</div>", card(&title, &legend(&set, false), &plot));
    }
    Ok(text)
}

/// Rates by size, for each state that was measured at several sizes; of percentages, the ends.
fn by_size(file: &FileResults) -> Page {
    let mut text = String::new();
    let percents = || file.groups.iter().filter_map(|group| group.state.percent());
    let ends = [percents().min(), percents().max()];
    let shown =
        |group: &&Group| !group.whole_file && group.state.percent().is_none_or(|percent| ends.contains(&Some(percent)));
    for set in alike(file.groups.iter().filter(shown), |group| (group.state, group.pattern, group.load)) {
        // One point says nothing that the plots above and the table do not.
        if set.len() == 1 && (set[0].state.percent().is_some() || set[0].load != LoadKind::None) {
            continue;
        }
        let Some(largest) = set.iter().max_by_key(|group| group.request_bytes) else { continue };
        let value = |group: &Group, engine: &str| {
            group.rows.iter().find(|row| row.engine == engine).map(|row| row.gb_per_s_best)
        };
        let plot = lines("GB/s", &series(&set, |group| group.request_bytes, value), largest.limit_gb_per_s)?;
        let title = format!("{} by request size: GB/s, best run", state_of(set[0]));
        text.push_str(&card(&title, &legend(&set, true), &plot));
    }
    Ok(text)
}

fn has_auto(group: &Group) -> bool {
    group.relative_to_auto("auto").is_some()
}

fn requests_of(group: &Group) -> String {
    format!("{}{}", group.requests_for_people(), load_of(group))
}

fn state_of(group: &Group) -> String {
    let pattern = group.pattern.map_or_else(String::new, |pattern| format!(", {}", pattern.name()));
    let cached = if group.state.percent().is_some() { " cached" } else { "" };
    format!("{}{cached}{pattern}{}", group.state, load_of(group))
}

fn load_of(group: &Group) -> String {
    if group.load == LoadKind::None { String::new() } else { format!(", {} load", group.load.name()) }
}

/// The engines of some groups, in the order of the tables.
fn engines_of<'a>(groups: &[&'a Group]) -> Vec<&'a str> {
    let mut engines: Vec<&str> = vec![];
    for row in groups.iter().flat_map(|group| &group.rows) {
        if !engines.contains(&row.engine.as_str()) {
            engines.push(&row.engine);
        }
    }
    engines
}

fn legend(groups: &[&Group], with_limit: bool) -> String {
    let swatch = |engine: &&str| format!("<span><i style=\"background:{}\"></i>{engine}</span>", colour_of(engine));
    let mut text: String = engines_of(groups).iter().map(swatch).collect();
    if with_limit && groups.iter().any(|group| group.limit_gb_per_s.is_some()) {
        text.push_str("<span><i class=\"limit\"></i>what disk and link allow</span>");
    }
    format!("<div class=\"legend\">{text}</div>\n")
}

fn numbers(file: &FileResults) -> String {
    let class = |column: usize| if table::NAMES.contains(&column) { " class=\"name\"" } else { "" };
    let mut text = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for (column, name) in table::HEAD.iter().enumerate() {
        let _ = write!(text, "<th{}>{name}</th>", class(column));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for group in &file.groups {
        for (line, cells) in table::cells(group).iter().enumerate() {
            let kind = match cells[table::ENGINE].as_str() {
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

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
