//! `bifolio bench small`.

use super::measure::measure;
use crate::exit::Failure;
use crate::global::Global;
use crate::router::RouterArgs;
use bifolio_bench::{CacheState, small};
use bifolio_io::{Cancel, size};
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// Choices for `bench small`.
#[derive(Debug, ClapArgs)]
pub struct SmallArgs {
    /// The file.
    pub file: PathBuf,
    /// Sizes of a read.
    #[arg(long, value_delimiter = ',', default_value = "512,4K,16K,64K", value_parser = size::parse, value_name = "LIST")]
    pub sizes: Vec<u64>,
    /// Reads of a run, and so extents of a batch.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub reads: u32,
    /// Cache states.
    #[arg(long, value_delimiter = ',', default_value = "warm,cold", value_name = "LIST")]
    pub states: Vec<CacheState>,
    /// Runs of each way.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of the random places.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Measures and prints.
pub fn run(global: &Global, args: &SmallArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let options = small::Options {
        file: args.file.clone(),
        sizes: args.sizes.clone(),
        reads: args.reads,
        states: args.states.clone(),
        repetitions: args.repetitions,
        seed: args.seed,
        router: args.router.settings(),
    };
    measure(global, cancel, |session| small::run(&device, &options, session))
}
