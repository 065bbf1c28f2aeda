//! `bifolio bench disparity`.

use super::measure::measure_and_draw;
use crate::exit::Failure;
use crate::global::Global;
use crate::router::RouterArgs;
use bifolio_bench::CacheState;
use bifolio_bench::disparity::{self, Pattern};
use bifolio_bench::read::parse_seconds;
use bifolio_io::{Cancel, size};
use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::time::Duration;

/// Choices for `bench disparity`.
#[derive(Debug, ClapArgs)]
pub struct DisparityArgs {
    /// A folder in which a set is made and removed, or a striped set or file; downloads OVERWRITE it.
    pub target: PathBuf,
    /// Let downloads overwrite a set or file that exists.
    #[arg(long)]
    pub overwrite: bool,
    /// Members of the set that is made.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub members: u16,
    /// Its size.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Its chunks.
    #[arg(long, default_value = "512K", value_parser = size::parse, value_name = "SIZE")]
    pub chunk: u64,
    /// Requests at a time.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub in_flight: u16,
    /// Cache states.
    #[arg(long, value_delimiter = ',', default_value = "warm,cold", value_name = "LIST")]
    pub states: Vec<CacheState>,
    /// Patterns of the paper: random and sequential upload, random and sequential download.
    #[arg(long, value_delimiter = ',', default_value = "rdrd,sqrd,rdwr,sqwr", value_name = "LIST")]
    pub patterns: Vec<Pattern>,
    /// Runs of each; the best counts.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Seconds of a run at most.
    #[arg(long, default_value = "0.5", value_parser = parse_seconds, value_name = "SECONDS")]
    pub run_time: Duration,
    /// Seed of content and places.
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
pub fn run(global: &Global, args: &DisparityArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let options = disparity::Options {
        target: args.target.clone(),
        overwrite: args.overwrite,
        members: args.members,
        bytes: args.size,
        chunk_bytes: args.chunk,
        in_flight: args.in_flight,
        states: args.states.clone(),
        patterns: args.patterns.clone(),
        repetitions: args.repetitions,
        run_time: args.run_time,
        seed: args.seed,
        router: args.router.settings(),
    };
    measure_and_draw(global, cancel, args.html.as_deref(), |session| disparity::run(&device, &options, session))
}
