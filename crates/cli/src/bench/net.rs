//! `bifolio bench net`.

use super::measure::measure;
use crate::exit::Failure;
use crate::global::Global;
use bifolio_bench::net::{self, CaseKind, devices};
use bifolio_io::Cancel;
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// Choices for `bench net`.
#[derive(Debug, ClapArgs)]
pub struct NetArgs {
    /// Configurations: the router of the Click paper, a filter of many rules, a table of many routes.
    #[arg(long, value_delimiter = ',', default_value = "router,filter,lookup", value_name = "LIST")]
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

/// Measures and prints.
pub fn run(global: &Global, args: &NetArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    if args.devices {
        let options = devices::Options {
            packets: args.packets,
            frame_bytes: usize::from(args.frame),
            repetitions: args.repetitions,
        };
        return measure(global, cancel, |session| devices::run(&device, &options, session));
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
