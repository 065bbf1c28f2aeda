//! `bifolio bench write`.

use super::measure::measure;
use crate::exit::Failure;
use crate::global::Global;
use crate::router::RouterArgs;
use bifolio_bench::write;
use bifolio_io::{Cancel, size};
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// Choices for `bench write`.
#[derive(Debug, ClapArgs)]
pub struct WriteArgs {
    /// A folder on the file system to measure; a file is made there and removed.
    pub folder: PathBuf,
    /// Bytes of one write.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Runs of each way; they take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of the content.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Measures and prints.
pub fn run(global: &Global, args: &WriteArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let options = write::Options {
        folder: args.folder.clone(),
        bytes: args.size,
        repetitions: args.repetitions,
        seed: args.seed,
        router: args.router.settings(),
    };
    measure(global, cancel, |session| write::run(&device, &options, session))
}
