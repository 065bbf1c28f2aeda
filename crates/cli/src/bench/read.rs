//! `bifolio bench read`.

use super::measure::measure_and_draw;
use crate::exit::Failure;
use crate::global::Global;
use crate::router::RouterArgs;
use bifolio_bench::read::{self, Contention, Pattern, RequestSize, States, parse_cell, parse_seconds};
use bifolio_io::{Cancel, EngineChoice, size};
use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::time::Duration;

/// Choices for `bench read`.
#[derive(Debug, ClapArgs)]
pub struct ReadArgs {
    /// The files.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Cache states: warm, cold, half (every second stripe), again (warm, through a handle that
    /// has been read several times), and percentages of cells that are cached, drawn at random:
    /// 30%, or in steps, 0-100%/10.
    #[arg(long, value_delimiter = ',', default_value = "warm,again,cold,half", value_name = "LIST")]
    pub states: Vec<States>,
    /// Engines [default: cached, direct, mapped and auto, less what does not work here].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub engines: Option<Vec<EngineChoice>>,
    /// Request sizes, such as 4K,1M,file; `file` is the whole file by one request.
    #[arg(long, value_delimiter = ',', default_value = "file", value_name = "LIST")]
    pub sizes: Vec<RequestSize>,
    /// Order of the requests: random (shuffled, at places all over the region), sequential (in file
    /// order from its start, through one handle), or both.
    #[arg(long, value_delimiter = ',', default_value = "random", value_name = "LIST")]
    pub pattern: Vec<Pattern>,
    /// What else the machine does meanwhile: none, cpu (a spinning thread for each processor), disk
    /// (8 threads read a scratch file in the same folder at random, past the page cache).
    #[arg(long, alias = "load", value_delimiter = ',', default_value = "none", value_name = "LIST")]
    pub contention: Vec<Contention>,
    /// Runs of each engine; engines take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Stripes of the half-cached state.
    #[arg(long, default_value = "32M", value_parser = size::parse, value_name = "SIZE")]
    pub stripe: u64,
    /// Cells of the percentages, a multiple of 4K; at most a hundredth of the region.
    #[arg(long, default_value = "256K", value_parser = parse_cell, value_name = "SIZE")]
    pub cell: u64,
    /// The region of a file whose state is set up and that requests are drawn from: its first so
    /// many bytes. Sequential requests that end before have a region that ends with them.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub limit: u64,
    /// Requests of a run at most.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub requests: u64,
    /// A run ends after this time, once it has made 8 requests.
    #[arg(long, default_value = "2", value_parser = parse_seconds, value_name = "SECONDS")]
    pub run_time: Duration,
    /// Bytes of the scratch file that the disk contention reads, at least 1M.
    #[arg(long, alias = "load-size", default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub contention_size: u64,
    /// Seed of the requests' places and order, and of the cells.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a report with plots, one self-contained HTML file.
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Measures and prints.
pub fn run(global: &Global, args: &ReadArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let options = read::Options {
        files: args.files.clone(),
        states: args.states.iter().flat_map(|states| states.0.clone()).collect(),
        engines: args.engines.clone(),
        sizes: args.sizes.clone(),
        patterns: args.pattern.clone(),
        contention: args.contention.clone(),
        repetitions: args.repetitions,
        stripe_bytes: args.stripe,
        cell_bytes: args.cell,
        region_bytes: args.limit,
        requests: args.requests,
        run_time: args.run_time,
        contention_bytes: args.contention_size,
        seed: args.seed,
        router: args.router.settings(),
    };
    measure_and_draw(global, cancel, args.html.as_deref(), |session| read::run(&device, &options, session))
}
