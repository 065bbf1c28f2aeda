//! `bifolio bench compute`.

use super::measure::measure_and_draw;
use crate::exit::CODES;
use crate::exit::Failure;
use crate::global::Global;
use bifolio_bench::compute::{self, Kind};
use bifolio_bench::read::parse_seconds;
use bifolio_io::{Cancel, size};
use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::time::Duration;

/// Choices for `bench compute`.
#[derive(Debug, ClapArgs)]
#[command(after_help = CODES)]
pub struct ComputeArgs {
    /// Services.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "xts,ctr,gcm,raid6-generate,raid6-recover,raid6-scrub,sha256,crc32c"
    )]
    pub services: Vec<Kind>,
    /// Sizes of a request, from 512 bytes on.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = size::parse,
        default_value = "512,4K,16K,64K,256K,1M,4M,16M,64M")]
    pub sizes: Vec<u64>,
    /// Seconds for each way at each size.
    #[arg(long, default_value = "0.08", value_name = "S", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Seconds for everything; what is not measured by then is left out.
    #[arg(long, default_value = "110", value_name = "S", value_parser = parse_seconds)]
    pub seconds_max: Duration,
    /// Seed of the data.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a report with plots, one self-contained HTML file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Measures and prints.
pub fn run(global: &Global, args: &ComputeArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let options = compute::Options {
        services: args.services.clone(),
        sizes: args.sizes.clone(),
        point: args.seconds,
        whole: args.seconds_max,
        seed: args.seed,
    };
    measure_and_draw(global, cancel, args.html.as_deref(), |session| compute::run(&device, &options, session))
}
