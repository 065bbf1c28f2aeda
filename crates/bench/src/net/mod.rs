//! The packet engine on packets in memory: a whole router, a filter of many rules, a table of many routes; with batches, with
//! packets one by one, and with a router for each of several processors.

pub mod classbench;
mod configs;
pub mod devices;
mod latency;
mod memory;
pub mod paths;

use crate::error::{Error, Result};
use crate::harness::compare::{self, Comparison, compare};
use crate::harness::machine::{self, Machine};
use crate::harness::report::{Measured, Report};
use crate::harness::session::Session;
use crate::harness::table::Table;
use bifolio_device::Device;
use bifolio_net::router::{self, Running};
use bifolio_net::{Log, Registry, lang};
use classbench::Rule;
use configs::Case;
use memory::Traffic;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Instant;

pub use configs::CaseKind;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which configurations.
    pub cases: Vec<CaseKind>,
    /// Packets of a run, for each processor.
    pub packets: u64,
    /// Bytes of a frame, at least 60; without the checksum that a network appends.
    pub frame_bytes: usize,
    /// Rules of the filter, in `ClassBench`'s form; without them they are drawn.
    pub rules_file: Option<PathBuf>,
    /// How many rules are drawn.
    pub rules: usize,
    /// Routes of the table, a prefix a line; without one they are drawn.
    pub routes_file: Option<PathBuf>,
    /// How many routes are drawn.
    pub routes: usize,
    /// Numbers of processors, each with a router of its own.
    pub cores: Vec<usize>,
    /// How often a task is run in a row.
    pub burst: usize,
    /// Runs of each way.
    pub repetitions: u32,
    /// Seed of packets, rules and routes.
    pub seed: u64,
}

/// How packets go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// One by one, tasks alternating after each packet.
    Single,
    /// In batches, by so many routers in as many threads.
    Batches(usize),
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Single => "one by one".to_owned(),
            Self::Batches(1) => "in batches".to_owned(),
            Self::Batches(cores) => format!("in batches, {cores} cores"),
        }
    }

    fn cores(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Batches(cores) => cores,
        }
    }

    fn rival(self) -> Self {
        if self.cores() > 1 { Self::Batches(1) } else { Self::Single }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    case: CaseKind,
    million_packets_per_s: f64,
    ns_per_packet: f64,
    /// Reading the configuration, and setting the router up.
    load_s: f64,
    #[serde(flatten)]
    compared: compare::Row<Way>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    machine: Machine,
    packets: u64,
    frame_bytes: usize,
    rules: usize,
    routes: usize,
    burst: usize,
    repetitions: u32,
    seed: u64,
    rows: Vec<Row>,
}

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let mut rows = vec![];
    let routes = configs::routes(options)?;
    let rules = configs::rules(options)?;
    let ended = measure(options, &routes, &rules, session, &mut rows);
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(device),
        packets: options.packets,
        frame_bytes: options.frame_bytes,
        rules: if rules.is_empty() { options.rules } else { rules.len() },
        routes: routes.len(),
        burst: options.burst,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
    })
}

fn measure(options: &Options, routes: &[String], rules: &[Rule], session: &Session, rows: &mut Vec<Row>) -> Result<()> {
    let mut ways = vec![Way::Single];
    ways.extend(options.cores.iter().map(|cores| Way::Batches(*cores)));
    let steps = options.cases.len() * ways.len() * options.repetitions as usize;
    session.begin("starting", steps as u64);
    for kind in &options.cases {
        let bench =
            Bench { options, case: Case::new(*kind, options, routes, rules)?, loads: std::cell::RefCell::default() };
        let mut measured = vec![];
        let ended = compare(session, options.repetitions, &bench, &ways, &mut measured);
        rows.extend(measured.into_iter().map(|row| bench.row(*kind, row)));
        ended?;
    }
    Ok(())
}

struct Bench<'a> {
    options: &'a Options,
    case: Case,
    /// Seconds that setting up took.
    loads: std::cell::RefCell<Vec<f64>>,
}

/// Routers that are ready to run, one for each thread.
struct Ready(Vec<Running>);

impl Comparison for Bench<'_> {
    type Way = Way;
    type Ready = Ready;

    fn name(&self, way: Way) -> String {
        format!("{} {}", self.case.kind, way.name())
    }

    fn rival(&self, way: Way) -> Option<Way> {
        Some(way.rival())
    }

    fn bytes(&self, way: Way) -> u64 {
        self.options.packets * self.options.frame_bytes as u64 * way.cores() as u64
    }

    fn set_up(&self, way: Way, _: bool) -> Result<Ready> {
        let started = Instant::now();
        let first = self.start(way)?;
        self.loads.borrow_mut().push(started.elapsed().as_secs_f64());
        let others = (1..way.cores()).map(|_| self.start(way));
        Ok(Ready(std::iter::once(Ok(first)).chain(others).collect::<Result<_>>()?))
    }

    fn run(&self, _: Way, Ready(routers): &mut Ready) -> Result<()> {
        if let [router] = &mut routers[..] {
            router.run();
            return Ok(());
        }
        let barrier = Barrier::new(routers.len());
        std::thread::scope(|scope| {
            for router in routers.iter_mut() {
                scope.spawn(|| {
                    barrier.wait();
                    router.run();
                });
            }
        });
        Ok(())
    }

    /// Every packet has come out, or was counted as dropped, and as many go each way as should.
    fn verify(&self, _: Way, Ready(routers): &Ready) -> Result<bool> {
        for router in routers {
            let arrived = memory::arrived(router.router());
            let expected = self.options.packets;
            if arrived != expected {
                let detail = format!("{arrived} of {expected} packets have come out of the configuration");
                return Err(Error::failed(self.case.kind, detail));
            }
        }
        Ok(true)
    }
}

impl Bench<'_> {
    fn start(&self, way: Way) -> Result<Running> {
        let mut registry = Registry::standard();
        registry.add(memory::CLASSES);
        let traffic: Arc<Traffic> = Arc::clone(&self.case.traffic);
        let mut log = Log::new();
        let (quantum, is_batched) = if way == Way::Single { (1, false) } else { (self.options.burst, true) };
        let options = router::Options { quantum, is_batched, seed: self.options.seed, ..router::Options::default() };
        let started = memory::with_traffic(traffic, self.options.packets, || {
            let graph = lang::parse(&self.case.config, "bench", &lang::Globals::new(), &registry, &mut log)?;
            router::build(&graph, &registry, options, &mut log)
        });
        let mut running = started.ok_or_else(|| Error::failed(self.case.kind, log.to_string()))?;
        for (handler, value) in &self.case.writes {
            running.write(handler, value).map_err(|error| Error::failed(handler, error))?;
        }
        Ok(running)
    }

    fn row(&self, case: CaseKind, row: compare::Row<Way>) -> Row {
        let packets_per_s = row.rates.gb_per_s_median * 1e9 / self.options.frame_bytes as f64;
        let ns_per_packet = if packets_per_s > 0.0 { 1e9 / packets_per_s } else { 0.0 };
        let loads = self.loads.borrow();
        let load_s = loads.iter().copied().fold(f64::INFINITY, f64::min);
        Row { case, million_packets_per_s: packets_per_s / 1e6, ns_per_packet, load_s, compared: row }
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let head = ["configuration", "packets", "Mpackets/s", "ns each", "ratio", "to", "load s"];
        let cells = |row: &Row| {
            vec![
                row.case.to_string(),
                row.compared.way.name(),
                format!("{:.2}", row.million_packets_per_s),
                format!("{:.1}", row.ns_per_packet),
                row.compared.to_rival.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                row.compared.rival.map_or_else(String::new, Way::name),
                format!("{:.2}", row.load_s),
            ]
        };
        format!(
            "{}\n{} frames of {} bytes in memory a run and core, {} rules, {} routes, bursts of {}; medians of {} runs of each \
             way in turns, seed {}; all packets accounted for\n{}",
            self.machine,
            self.packets,
            self.frame_bytes,
            self.rules,
            self.routes,
            self.burst,
            self.repetitions,
            self.seed,
            Table::new(head, &[0, 1, 5]).with(self.rows.iter().map(cells)).text()
        )
    }
}
