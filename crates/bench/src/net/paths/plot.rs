//! What was measured, as a figure: throughput by the length of packets, by the size of batches, latency by load; beside it what
//! Snap's text says of the same.

use super::load::Loaded;
use super::options::App;
use super::results::{Results, Row};
use super::ways::{Way, Who, frame_name};
use crate::error::Error;
use crate::harness::panels::{Curve, Panel, figure};
use crate::harness::report::Measured;

/// Bytes that a frame takes on a wire beyond those that it has here: its checksum, preamble, and the gap behind it.
const WIRE_BYTES: usize = 24;

/// Who Snap's numbers are of: those that its text has.
const SNAP: &str = "Snap with a Tesla C2070 (its ports: 40 Gbit/s)";

/// What section 5.5 of Sun's thesis says in numbers of Snap with a GPU: application, bytes of packets, Gbit/s on the wire.
const QUOTED: [(App, usize, f64); 11] = [
    (App::Sdn, 64, 29.9),
    (App::Dpi, 64, 29.2),
    (App::Ids, 64, 28.0),
    (App::Ids, 128, 39.6),
    (App::Ids, 256, 40.0),
    (App::Ids, 512, 40.0),
    (App::Full, 512, 38.8),
    (App::Diverging, 64, 26.8),
    (App::Diverging, 128, 39.4),
    (App::Diverging, 256, 39.9),
    (App::Diverging, 512, 40.0),
];

/// Who computes, as the legend says it, and what its values are of rows.
const WHO: [(Who, &str); 5] = [
    (Who::Elements, "CPU elements"),
    (Who::Twins, "paths, computed by the CPU"),
    (Who::Device, "paths, computed by the device"),
    (Who::Whole, "the same with whole packets"),
    (Who::Fetch, "the same, and it fetches payloads"),
];

/// Distinct values in the order in which they come.
fn distinct<T: PartialEq + Copy>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

/// A curve of the highest value for each step; nothing where there is none.
fn best<S: PartialEq + Copy>(name: &str, steps: &[S], values: impl Iterator<Item = (S, f64)>) -> Option<Curve> {
    let values: Vec<_> = values.collect();
    let at = |step: S| values.iter().filter(|(of, _)| *of == step).map(|(_, value)| *value).fold(0.0, f64::max);
    let points: Vec<_> = steps.iter().enumerate().map(|(number, step)| (number, at(*step))).collect();
    let is_there = points.iter().any(|(_, value)| *value > 0.0);
    is_there.then(|| Curve { name: name.to_owned(), points, is_quoted: false })
}

impl Results {
    fn apps(&self) -> Vec<App> {
        distinct(self.rows.iter().map(|row| row.app))
    }

    /// Throughput by the length of packets, a panel for each application; each point is that of the best number of cores and
    /// size of batches.
    fn by_frame(&self) -> Vec<Panel> {
        let frames = distinct(self.rows.iter().map(|row| row.frame_bytes));
        let panel = |app: App| {
            let rate = |row: &Row| row.million_packets_per_s * (row.mean_bytes + WIRE_BYTES) as f64 * 8.0 / 1e3;
            let curve = |(who, name): &(Who, &str)| {
                let rows = self.rows.iter().filter(|row| row.app == app && row.compared.way.who == *who);
                best(name, &frames, rows.map(|row| (row.frame_bytes, rate(row))))
            };
            let mut curves: Vec<_> = WHO.iter().filter_map(curve).collect();
            let quoted = QUOTED.iter().filter(|(of, ..)| *of == app);
            let at = |bytes: usize| frames.iter().position(|frame| *frame == bytes);
            let points: Vec<_> = quoted.filter_map(|(_, bytes, rate)| Some((at(*bytes)?, *rate))).collect();
            if !points.is_empty() {
                curves.push(Curve { name: SNAP.to_owned(), points, is_quoted: true });
            }
            Panel {
                title: app.to_string(),
                x_name: "bytes of a frame".to_owned(),
                y_name: "Gbit/s on the wire".to_owned(),
                steps: frames.iter().map(|bytes| frame_name(*bytes)).collect(),
                curves,
                is_logarithmic: false,
            }
        };
        self.apps().into_iter().map(panel).collect()
    }

    /// Packets a second by the size of batches, where several were measured.
    fn by_size(&self) -> Vec<Panel> {
        let sizes = distinct(self.rows.iter().map(|row| row.compared.way.size).filter(|size| *size > 0));
        if sizes.len() < 2 {
            return Vec::new();
        }
        let frame = self.rows.first().map_or(0, |row| row.frame_bytes);
        let panel = |app: App| {
            let curve = |(who, name): &(Who, &str)| {
                let rows = self.rows.iter().filter(|row| row.app == app && row.frame_bytes == frame);
                let rows = rows.filter(|row| row.compared.way.who == *who);
                best(name, &sizes, rows.map(|row| (row.compared.way.size, row.million_packets_per_s)))
            };
            Panel {
                title: format!("{app}, frames of {} bytes", frame_name(frame)),
                x_name: "packets of a batch".to_owned(),
                y_name: "million packets/s".to_owned(),
                steps: sizes.iter().map(ToString::to_string).collect(),
                curves: WHO.iter().filter(|(who, _)| *who != Who::Elements).filter_map(curve).collect(),
                is_logarithmic: false,
            }
        };
        self.apps().into_iter().map(panel).collect()
    }

    /// Latencies by load, of ways with the most cores.
    fn by_load(&self) -> Vec<Panel> {
        let cores = self.loads.iter().map(|loaded| loaded.way.cores).max().unwrap_or(0);
        let all = || self.loads.iter().filter(move |loaded| loaded.way.cores == cores);
        let mut loads = distinct(all().map(|loaded| loaded.load_percent));
        loads.sort_by(f64::total_cmp);
        let panel = |app: App, frame: usize, what: &str, value: fn(&Loaded) -> f64| {
            let here = || all().filter(move |loaded| loaded.app == app && loaded.frame_bytes == frame);
            let curve = |way: Way| {
                let rows = here().filter(move |loaded| loaded.way == way);
                best(&way.name(), &loads, rows.map(|loaded| (loaded.load_percent, value(loaded))))
            };
            Panel {
                title: format!("{app}, frames of {} bytes, {what}", frame_name(frame)),
                x_name: "load, % of the most".to_owned(),
                y_name: "latency, us".to_owned(),
                steps: loads.iter().map(ToString::to_string).collect(),
                curves: distinct(here().map(|loaded| loaded.way)).into_iter().filter_map(curve).collect(),
                is_logarithmic: true,
            }
        };
        let measured = distinct(all().map(|loaded| (loaded.app, loaded.frame_bytes)));
        let both = |(app, frame)| {
            [
                panel(app, frame, "p50", |loaded| loaded.latency.p50_us),
                panel(app, frame, "p99", |loaded| loaded.latency.p99_us),
            ]
        };
        measured.into_iter().flat_map(both).collect()
    }

    /// All of it as one SVG.
    fn figure(&self) -> Result<String, Box<dyn std::error::Error>> {
        let panels = [self.by_frame(), self.by_size(), self.by_load()].concat();
        let title = format!("Packets through {}, from memory to memory", self.machine.device_name);
        figure(&title, &panels)
    }
}

impl Measured<Results> {
    /// A figure of it, as SVG.
    ///
    /// # Errors
    /// The drawing's.
    pub fn figure(&self) -> crate::error::Result<String> {
        self.results.figure().map_err(|error| Error::failed("", format!("drawing the figure failed: {error}")))
    }
}
