//! The report: one HTML file with everything in it, plots beside their tables.

use super::choices::Contention;
use super::results::{FileResults, Group, Results};
use super::table;
use crate::harness::page::{card, escape, legend, quiet};
use crate::harness::plots::{BarGroup, Series, bars, colour_of, lines, relative_by_share, relative_by_size};
use crate::harness::report::Page;
use bifolio_io::size;
use std::fmt::Write;

type Drawn = Result<String, Box<dyn std::error::Error>>;

impl Page for Results {
    const TITLE: &'static str = "bifolio bench read";

    fn body(&self) -> Drawn {
        let mut body = head(self);
        for file in &self.files {
            body.push_str(&section(file)?);
        }
        body.push_str("<h2>Summary</h2>\n<div class=\"card\">\n");
        for line in table::summary(&self.summary) {
            let _ = writeln!(body, "<p>{}</p>", escape(&line));
        }
        Ok(body + "</div>\n")
    }
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

fn section(file: &FileResults) -> Drawn {
    let mut text = format!("<h2>{}</h2>\n", escape(&table::title(file)));
    let whole: Vec<_> = file.groups.iter().filter(|group| group.whole_file).collect();
    if !whole.is_empty() {
        let rates = bars("GB/s", &bar_groups(&whole, true))?;
        let cpu = bars("CPU s/GB", &bar_groups(&whole, false))?;
        let legends = (legend_of(&whole, true), legend_of(&whole, false));
        let _ = write!(
            text,
            "<div class=\"pair\">\n{}{}</div>\n",
            card("The whole file by one request: GB/s, best run", &legends.0, &rates),
            card("CPU seconds for each GB, best run (lower is better)", &legends.1, &cpu)
        );
    }
    for cards in [by_share(file)?, relative_sizes(file)?, under_contention(file)?, by_size(file)?] {
        if !cards.is_empty() {
            let _ = write!(text, "<div class=\"pair\" style=\"margin-top:18px\">\n{cards}</div>\n");
        }
    }
    let _ = write!(text, "<div class=\"card\" style=\"margin-top:18px\">\n<h3>All numbers</h3>\n{}", numbers(file));
    let left_out = file.left_out.iter().map(|reason| format!("Left out: {reason}"));
    let notes = table::notes(file).into_iter().map(|note| format!("Note: {note}"));
    let lines: Vec<String> = left_out.chain(notes).collect();
    text.push_str(&quiet(lines.iter().map(String::as_str)));
    Ok(text + "</div>\n")
}

fn bar_groups(groups: &[&Group], rates: bool) -> Vec<BarGroup> {
    let bars = |group: &&Group| BarGroup {
        label: match group.contention {
            Contention::None => group.state.to_string(),
            contention => format!("{}, {} contention", group.state, contention.name()),
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
fn by_share(file: &FileResults) -> Drawn {
    let mut text = String::new();
    let groups = file.groups.iter().filter(|group| group.state.percent().is_some() && has_auto(group));
    for set in alike(groups, |group| (group.request_bytes, group.pattern, group.contention)) {
        if set.len() > 1 {
            let at = |group: &Group| group.state.percent().map_or(0, u64::from);
            let plot = relative_by_share(&series(&set, at, Group::relative_to_auto))?;
            let title = format!("{}: throughput relative to auto", requests_of(set[0]));
            text.push_str(&card(&title, &legend_of(&set, false), &plot));
        }
    }
    Ok(text)
}

/// For nothing cached, engines beside `auto` by request size.
fn relative_sizes(file: &FileResults) -> Drawn {
    let mut text = String::new();
    let groups = file.groups.iter().filter(|group| group.cached_wanted <= 0.0 && !group.whole_file && has_auto(group));
    for set in alike(groups, |group| (group.state, group.pattern, group.contention)) {
        if set.len() > 1 {
            let plot = relative_by_size(&series(&set, |group| group.request_bytes, Group::relative_to_auto))?;
            let title = format!("{}: throughput relative to auto", state_of(set[0]));
            text.push_str(&card(&title, &legend_of(&set, false), &plot));
        }
    }
    Ok(text)
}

/// For each request size and pattern that was measured under several contentions, engines beside `auto`.
fn under_contention(file: &FileResults) -> Drawn {
    let mut text = String::new();
    for mut set in
        alike(file.groups.iter().filter(|group| has_auto(group)), |group| (group.request_bytes, group.pattern))
    {
        if set.iter().all(|group| group.contention == set[0].contention) {
            continue;
        }
        // Stable: states stay in their order.
        set.sort_by_key(|group| group.contention as u8);
        let bar_group = |group: &&Group| {
            let bar = |engine: &str| Some((engine.to_owned(), group.relative_to_auto(engine)?));
            let contention = if group.contention == Contention::None {
                String::new()
            } else {
                format!(" {}", group.contention.name())
            };
            BarGroup {
                label: format!("{}{contention}", group.state),
                bars: engines_of(&[group]).into_iter().filter_map(bar).collect(),
                limit: None,
            }
        };
        let plot = bars("throughput / that of auto", &set.iter().map(bar_group).collect::<Vec<_>>())?;
        let title =
            format!("{}, without and under contention: throughput relative to auto", set[0].requests_for_people());
        let _ = write!(text, "<div style=\"grid-column:1/-1\">{}</div>", card(&title, &legend_of(&set, false), &plot));
    }
    Ok(text)
}

/// Rates by size, for each state that was measured at several sizes; of percentages, the ends.
fn by_size(file: &FileResults) -> Drawn {
    let mut text = String::new();
    let percents = || file.groups.iter().filter_map(|group| group.state.percent());
    let ends = [percents().min(), percents().max()];
    let shown =
        |group: &&Group| !group.whole_file && group.state.percent().is_none_or(|percent| ends.contains(&Some(percent)));
    for set in alike(file.groups.iter().filter(shown), |group| (group.state, group.pattern, group.contention)) {
        // One point says nothing that the plots above and the table do not.
        if set.len() == 1 && (set[0].state.percent().is_some() || set[0].contention != Contention::None) {
            continue;
        }
        let Some(largest) = set.iter().max_by_key(|group| group.request_bytes) else { continue };
        let value = |group: &Group, engine: &str| {
            group.rows.iter().find(|row| row.engine == engine).map(|row| row.gb_per_s_best)
        };
        let plot = lines("GB/s", &series(&set, |group| group.request_bytes, value), largest.limit_gb_per_s)?;
        let title = format!("{} by request size: GB/s, best run", state_of(set[0]));
        text.push_str(&card(&title, &legend_of(&set, true), &plot));
    }
    Ok(text)
}

fn has_auto(group: &Group) -> bool {
    group.relative_to_auto("auto").is_some()
}

fn requests_of(group: &Group) -> String {
    format!("{}{}", group.requests_for_people(), contention_of(group))
}

fn state_of(group: &Group) -> String {
    let pattern = group.pattern.map_or_else(String::new, |pattern| format!(", {}", pattern.name()));
    let cached = if group.state.percent().is_some() { " cached" } else { "" };
    format!("{}{cached}{pattern}{}", group.state, contention_of(group))
}

fn contention_of(group: &Group) -> String {
    if group.contention == Contention::None {
        String::new()
    } else {
        format!(", {} contention", group.contention.name())
    }
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

fn legend_of(groups: &[&Group], with_limit: bool) -> String {
    let has_limit = with_limit && groups.iter().any(|group| group.limit_gb_per_s.is_some());
    let colours = engines_of(groups).into_iter().map(|engine| (engine, colour_of(engine)));
    legend(colours, has_limit.then_some("what disk and link allow"))
}

fn numbers(file: &FileResults) -> String {
    let starts: Vec<usize> =
        file.groups.iter().scan(0, |at, group| Some(std::mem::replace(at, *at + table::lines(group)))).collect();
    table::numbers(file).html_with(|line, cells| {
        let kind = match cells[table::ENGINE].as_str() {
            "auto" => "auto",
            name if name.starts_with('(') => "bound",
            _ => "",
        };
        let first = if starts.contains(&line) { " first" } else { "" };
        format!("{kind}{first}").trim_start().to_owned()
    })
}
