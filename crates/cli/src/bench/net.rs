//! `bifolio bench net`.

use super::measure::{measure, measure_and_plot, write_drawing};
use crate::exit::Failure;
use crate::global::Global;
use bifolio_bench::Measured;
use bifolio_bench::net::{self, CaseKind, devices, paths};
use bifolio_io::Cancel;
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};

/// Choices for `bench net`.
#[derive(Debug, ClapArgs)]
pub struct NetArgs {
    /// Configurations: the router of the Click paper, a filter of many rules, a table of many routes, NAT of many flows.
    #[arg(long, value_delimiter = ',', default_value = "router,filter,lookup,nat", value_name = "LIST")]
    pub cases: Vec<CaseKind>,
    /// Packets of a run, for each core.
    #[arg(long, default_value_t = 2_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: u64,
    /// Bytes of a frame.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(60..=9000))]
    pub frame: u16,
    /// Packets over a veth pair instead, by packet sockets and XDP sockets (root).
    #[arg(long, id = "over_devices", conflicts_with_all = ["cases", "rules_file", "rules", "routes_file", "routes", "cores", "burst", "seed"])]
    pub devices: bool,
    /// Paths of GPU elements instead, beside the CPU's (see --device): applications of route, forward, sdn, dpi, ids, full, united, diverging.
    #[arg(long, group = "drawable", value_delimiter = ',', value_name = "LIST", conflicts_with_all = ["cases", "over_devices", "packets", "frame", "routes_file"])]
    pub paths: Vec<paths::App>,
    /// Bytes of frames for --paths; 0 stands for IMIX.
    #[arg(long, value_delimiter = ',', default_value = "64", value_name = "LIST", requires = "paths", value_parser = clap::value_parser!(u16).range(0..=9000))]
    pub frames: Vec<u16>,
    /// What is behind the headers for --paths: http or random.
    #[arg(long, default_value = "http", value_name = "TEXT", requires = "paths")]
    pub text: paths::Text,
    /// Bytes of frames of a run and core for --paths.
    #[arg(long, default_value = "256M", value_name = "SIZE", requires = "paths", value_parser = bifolio_io::size::parse)]
    pub bytes: u64,
    /// Rules of Snort or Suricata for --paths; without them literals are drawn.
    #[arg(long, value_name = "FILE", requires = "paths")]
    pub ids_rules: Option<PathBuf>,
    /// How many literals are drawn.
    #[arg(long, default_value_t = 4500, value_name = "N", requires = "paths", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub literals: u32,
    /// The most packets of a batch; several sizes are compared.
    #[arg(long, value_delimiter = ',', default_value = "16384", value_name = "LIST", requires = "paths", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub batch: Vec<u32>,
    /// Who computes for --paths, as far as the device is one: elements (the CPU's), twins (paths that the CPU computes), device,
    /// whole (the device, with whole packets), and fetch (the device, which fetches payloads by itself).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "elements,twins,device",
        value_name = "LIST",
        requires = "paths"
    )]
    pub by: Vec<paths::Who>,
    /// The most batches of a path at a time.
    #[arg(long, default_value_t = 8, value_name = "N", requires = "paths", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub in_flight: u16,
    /// Latencies, too, at these percentages of the highest rate.
    #[arg(long, value_delimiter = ',', value_name = "LIST", requires = "paths", value_parser = parse_percent)]
    pub loads: Vec<f64>,
    /// Write a figure as SVG: throughput by frames and batches, latencies by load.
    #[arg(long, value_name = "OUT", requires = "drawable")]
    pub plot: Option<PathBuf>,
    /// For --plot: measure nothing, and draw what --paths has printed with --json.
    #[arg(long, group = "drawable", value_name = "RESULTS", requires = "plot", conflicts_with_all = ["cases", "over_devices"])]
    pub from: Option<PathBuf>,
    /// Rules of the filter, in the form of the classification benchmarks' generator; without them they are drawn.
    #[arg(long, value_name = "FILE")]
    pub rules_file: Option<PathBuf>,
    /// How many rules are drawn.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rules: u32,
    /// Routes of the table, a prefix a line; without it they are drawn.
    #[arg(long, value_name = "FILE")]
    pub routes_file: Option<PathBuf>,
    /// How many routes are drawn.
    #[arg(long, default_value_t = 900_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub routes: u32,
    /// Numbers of cores, each with a router of its own.
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "LIST", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cores: Vec<u16>,
    /// How often a task is run in a row.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub burst: u16,
    /// Runs of each way.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of packets, rules and routes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl NetArgs {
    fn of_paths(&self) -> paths::Options {
        paths::Options {
            apps: self.paths.clone(),
            frames: self.frames.iter().map(|bytes| usize::from(*bytes)).collect(),
            text: self.text,
            bytes: self.bytes,
            ids_rules: self.ids_rules.clone(),
            literals: self.literals as usize,
            flow_rules: self.rules_file.clone(),
            flows: self.rules as usize,
            routes: self.routes as usize,
            cores: self.cores.iter().map(|cores| usize::from(*cores)).collect(),
            by: self.by.clone(),
            batches: usize::from(self.in_flight),
            sizes: self.batch.iter().map(|size| *size as usize).collect(),
            loads: self.loads.clone(),
            repetitions: self.repetitions,
            seed: self.seed,
        }
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
    percent.ok_or_else(|| format!("'{text}' is no percentage above 0 and up to 100"))
}

/// What `--paths` has printed with `--json`.
fn read_results(file: &Path) -> Result<Measured<paths::Results>, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::failed(format!("{}: reading the results failed: {error}", file.display())))?;
    serde_json::from_str(&text).map_err(|error| {
        let whole = error.to_string();
        let what = whole.split(" at line ").next().unwrap_or_default();
        let (file, line) = (file.display(), error.line());
        Failure::failed(format!("{file}: line {line}: this is not what bench net --paths --json prints: {what}"))
    })
}

/// Measures and prints.
pub fn run(global: &Global, args: &NetArgs, cancel: &Cancel) -> Result<(), Failure> {
    let draw = |measured: &Measured<paths::Results>| measured.figure();
    if let (Some(from), Some(out)) = (&args.from, &args.plot) {
        let measured = read_results(from)?;
        write_drawing(out, draw(&measured)?)?;
        return global.answer(&measured, || measured.text());
    }
    let device = global.device()?;
    if args.devices {
        let options = devices::Options {
            packets: args.packets,
            frame_bytes: usize::from(args.frame),
            repetitions: args.repetitions,
        };
        return measure(global, cancel, |session| devices::run(&device, &options, session));
    }
    if !args.paths.is_empty() {
        let plot = args.plot.as_deref().map(|out| (out, draw));
        return measure_and_plot(global, cancel, plot, |session| paths::run(&device, &args.of_paths(), session));
    }
    let options = net::Options {
        cases: args.cases.clone(),
        packets: args.packets,
        frame_bytes: usize::from(args.frame),
        rules_file: args.rules_file.clone(),
        rules: args.rules as usize,
        routes_file: args.routes_file.clone(),
        routes: args.routes as usize,
        cores: args.cores.iter().map(|cores| usize::from(*cores)).collect(),
        burst: usize::from(args.burst),
        repetitions: args.repetitions,
        seed: args.seed,
    };
    measure(global, cancel, |session| net::run(&device, &options, session))
}
