//! `bifolio bench spread`.

use super::measure::measure;
use crate::exit::Failure;
use crate::global::Global;
use crate::router::RouterArgs;
use bifolio_bench::spread;
use bifolio_io::Cancel;
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// Choices for `bench spread`.
#[derive(Debug, ClapArgs)]
pub struct SpreadArgs {
    /// The file; it is read into the page cache first.
    pub file: PathBuf,
    /// Runs of each way; they take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// The routers, one for each device.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Measures and prints.
pub fn run(global: &Global, args: &SpreadArgs, cancel: &Cancel) -> Result<(), Failure> {
    let devices = global.devices()?;
    let options =
        spread::Options { file: args.file.clone(), repetitions: args.repetitions, router: args.router.settings() };
    measure(global, cancel, |session| spread::run(&devices, &options, session))
}
