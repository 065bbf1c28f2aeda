//! What was measured, as a table.

use super::load::Loaded;
use super::options::{App, Text};
use super::ways::{Way, frame_name};
use crate::harness::compare;
use crate::harness::machine::Machine;
use crate::harness::report::Report;
use crate::harness::table::Table;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) app: App,
    pub(super) frame_bytes: usize,
    /// The same on average.
    pub(super) mean_bytes: usize,
    pub(super) million_packets_per_s: f64,
    /// CPU time of all threads for a packet, the least of all runs.
    pub(super) cpu_ns_per_packet: f64,
    #[serde(flatten)]
    pub(super) compared: compare::Row<Way>,
}

/// What was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    pub(super) machine: Machine,
    pub(super) device: String,
    pub(super) text: Text,
    pub(super) literals: usize,
    pub(super) flows: usize,
    pub(super) routes: usize,
    pub(super) repetitions: u32,
    pub(super) seed: u64,
    pub(super) rows: Vec<Row>,
    pub(super) loads: Vec<Loaded>,
}

impl Results {
    /// Latencies, a row for each load; nothing where none were asked for.
    fn latencies(&self) -> String {
        if self.loads.is_empty() {
            return String::new();
        }
        let head =
            ["application", "frame", "computed by", "load", "Mpackets/s", "p50 us", "p99 us", "most us", "drops"];
        let cells = |loaded: &Loaded| {
            let latency = loaded.latency;
            vec![
                loaded.app.to_string(),
                frame_name(loaded.frame_bytes),
                loaded.way.name(),
                format!("{} %", loaded.load_percent),
                format!("{:.3}", loaded.offered_million_packets_per_s),
                format!("{:.1}", latency.p50_us),
                format!("{:.1}", latency.p99_us),
                format!("{:.1}", latency.max_us),
                loaded.drops.to_string(),
            ]
        };
        Table::new(head, &[0, 2]).with(self.loads.iter().map(cells)).text()
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let head = ["application", "frame", "computed by", "Mpackets/s", "GB/s", "CPU ns each", "ratio", "to"];
        let cells = |row: &Row| {
            vec![
                row.app.to_string(),
                frame_name(row.frame_bytes),
                row.compared.way.name(),
                format!("{:.2}", row.million_packets_per_s),
                format!("{:.2}", row.compared.rates.gb_per_s_median),
                format!("{:.1}", row.cpu_ns_per_packet),
                row.compared.to_rival.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                row.compared.rival.map_or_else(String::new, Way::name),
            ]
        };
        format!(
            "{}\n{}: frames in memory with {} behind their headers, {} literals, {} flow rules, {} routes; medians of {} runs of each \
             way in turns, seed {}; all packets accounted for\n{}{}",
            self.machine,
            self.device,
            self.text,
            self.literals,
            self.flows,
            self.routes,
            self.repetitions,
            self.seed,
            Table::new(head, &[0, 2, 7]).with(self.rows.iter().map(cells)).text(),
            self.latencies()
        )
    }
}
