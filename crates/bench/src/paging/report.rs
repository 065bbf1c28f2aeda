//! Tables and page.

use super::metric::Rate;
use super::spaces::Space;
use super::{Rates, Run, Sizes};
use crate::harness::machine::Machine;
use crate::harness::page::{card, legend, quiet};
use crate::harness::plots::{Series, colour_of, lines};
use crate::harness::report::{Page, Report};
use crate::harness::table::Table;
use bifolio_io::size;
use serde::Serialize;

/// Spaces in the colours of engines, which stay apart for the colour-blind.
const COLOURS: [(Space, &str); 4] =
    [(Space::Disk, "cached"), (Space::Zram, "direct"), (Space::Memory, "mapped"), (Space::Paging, "auto")];
/// The metric on the slides' four systems, in MB/s: system, disk, cache in user mode, in kernel mode, memory.
const SLIDES: [(&str, [f64; 4]); 4] = [
    ("E5520, GTX 295", [1.87, 51.29, 92.05, 777.76]),
    ("E8500, GTX 275", [9.61, 62.98, 233.30, 726.51]),
    ("2620M, GT 540M", [28.79, 24.18, 126.94, 1108.99]),
    ("2600K, GTX 460", [34.70, 118.23, 130.05, 1241.82]),
];

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    pub(super) machine: Machine,
    pub(super) folder: String,
    pub(super) device: String,
    pub(super) device_memory: u64,
    pub(super) mode: &'static str,
    pub(super) limit: u64,
    pub(super) working_set: u64,
    pub(super) seconds: f64,
    pub(super) seed: u64,
    pub(super) sizes: Sizes,
    pub(super) runs: Vec<Run>,
    pub(super) rates: Vec<Rates>,
    pub(super) missing: Vec<String>,
}

impl Results {
    fn head(&self) -> String {
        format!(
            "{}\npaging cache: {} of {} in front of a file in {}, {}\na program that needs {} and has {}, {:.0} s on each; seed {}; \
             every word verified",
            self.machine,
            size::human(self.device_memory),
            self.device,
            self.folder,
            self.mode,
            size::human(self.working_set),
            size::human(self.limit),
            self.seconds,
            self.seed
        )
    }

    fn of(&self, space: Space) -> Option<&Run> {
        self.runs.iter().find(|run| run.space == space)
    }

    fn runs_table(&self) -> Table {
        let disk = self.of(Space::Disk).map(|run| run.report.p50_us);
        let head = [
            "swap on",
            "p50 us",
            "of disk's",
            "p99 us",
            "longest us",
            "slow faults",
            "pages verified",
            "longest request us",
            "hits",
        ];
        let cells = |run: &Run| {
            let report = &run.report;
            vec![
                run.space.name().to_owned(),
                format!("{:.1}", report.p50_us),
                disk.map_or_else(String::new, |disk| format!("{:.2}", report.p50_us / disk)),
                format!("{:.0}", report.p99_us),
                format!("{:.0}", report.longest_us),
                report.slow_faults.to_string(),
                report.pages_verified.to_string(),
                run.longest_request_us.map_or_else(String::new, |us| format!("{us:.0}")),
                run.hit_rate.map_or_else(String::new, |rate| format!("{:.1} %", rate * 100.0)),
                run.killed.to_string(),
            ]
        };
        Table::new(head, &[0]).with(self.runs.iter().map(cells))
    }

    fn rates_table(&self, of: fn(&Rates) -> &[Rate], shares: &[super::Share]) -> Table {
        let sizes: Vec<u64> =
            self.rates.first().map_or(vec![], |rates| of(rates).iter().map(|rate| rate.bytes).collect());
        let head = std::iter::once("MB/s".to_owned()).chain(sizes.iter().map(|bytes| size::exact(*bytes)));
        let likelihood =
            |bytes: &u64| shares.iter().find(|share| share.bytes == *bytes).map_or(0.0, |share| share.share);
        let first = std::iter::once("likelihood".to_owned())
            .chain(sizes.iter().map(|bytes| format!("{:.2} %", likelihood(bytes) * 100.0)))
            .collect();
        let row = |rates: &Rates| {
            let values = of(rates).iter().map(|rate| format!("{:.0}", rate.mb_per_s));
            std::iter::once(rates.space.name().to_owned()).chain(values).collect()
        };
        Table::new(head, &[0]).with(std::iter::once(first).chain(self.rates.iter().map(row)))
    }

    fn metric_table(&self) -> Table {
        let metric =
            |space| self.rates.iter().find(|rates| rates.space == space).and_then(|rates| rates.metric_mb_per_s);
        let disk = metric(Space::Disk);
        let text = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let times = |value: Option<f64>| text(value.zip(disk).map(|(value, disk)| value / disk));
        let head = ["metric, MB/s", "disk", "paging cache", "times", "in the kernel", "zram", "times", "memory"];
        let (paging, zram) = (metric(Space::Paging), metric(Space::Zram));
        let own = vec![
            "here".to_owned(),
            text(disk),
            text(paging),
            times(paging),
            "-".to_owned(),
            text(zram),
            times(zram),
            text(metric(Space::Memory)),
        ];
        let slide = |(system, [disk, user, kernel, memory]): &(&str, [f64; 4])| {
            let first = vec![format!("slides, {system}"), format!("{disk:.2}"), format!("{user:.2}")];
            let rest = vec![format!("{:.2}", user / disk), format!("{kernel:.2}"), "-".to_owned(), "-".to_owned()];
            first.into_iter().chain(rest).chain(std::iter::once(format!("{memory:.2}"))).collect()
        };
        Table::new(head, &[0]).with(std::iter::once(own).chain(SLIDES.iter().map(slide)))
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let missing: String = self.missing.iter().flat_map(|sentence| ["left out: ", sentence, "\n"]).collect();
        format!(
            "{}\n{missing}\nAccesses that waited for swap\n{}\nReads, one after the other\n{}\nWrites\n{}\n1 / (average time of a MB read + of \
             a MB written), by the likelihoods above\n{}",
            self.head(),
            self.runs_table().text(),
            self.rates_table(|rates| &rates.reads, &self.sizes.reads).text(),
            self.rates_table(|rates| &rates.writes, &self.sizes.writes).text(),
            self.metric_table().text()
        )
    }
}

impl Page for Results {
    const TITLE: &'static str = "bifolio bench paging";

    fn body(&self) -> Result<String, Box<dyn std::error::Error>> {
        let head = self.head();
        let mut body = format!("<h1>Paging</h1>\n{}<div class=\"pair\">\n", quiet(head.lines()));
        body.push_str(&self.plot("Reads by size, GB/s", |rates| &rates.reads)?);
        body.push_str(&self.plot("Writes by size, GB/s", |rates| &rates.writes)?);
        body.push_str("</div>\n");
        body.push_str(&card("Accesses that waited for swap", "", &self.runs_table().html()));
        body.push_str(&card("Reads", "", &self.rates_table(|rates| &rates.reads, &self.sizes.reads).html()));
        body.push_str(&card("Writes", "", &self.rates_table(|rates| &rates.writes, &self.sizes.writes).html()));
        body.push_str(&card("The slides' metric", "", &self.metric_table().html()));
        Ok(body + &quiet(self.missing.iter().map(String::as_str)))
    }
}

impl Results {
    fn plot(&self, title: &str, of: fn(&Rates) -> &[Rate]) -> Result<String, Box<dyn std::error::Error>> {
        let drawn: Vec<(Space, &str, &Rates)> = COLOURS
            .iter()
            .filter_map(|(space, engine)| {
                Some((*space, *engine, self.rates.iter().find(|rates| rates.space == *space)?))
            })
            .collect();
        if drawn.is_empty() {
            return Ok(String::new());
        }
        let series: Vec<Series> = drawn
            .iter()
            .map(|(_, engine, rates)| Series {
                engine: (*engine).to_owned(),
                points: of(rates).iter().map(|rate| (rate.bytes, rate.mb_per_s / 1000.0)).collect(),
            })
            .collect();
        let colours = drawn.iter().map(|(space, engine, _)| (space.name(), colour_of(engine)));
        Ok(card(title, &legend(colours, None), &lines("GB/s", &series, None)?))
    }
}
