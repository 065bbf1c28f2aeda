//! `bifolio bench plan`.

use super::measure::measure;
use crate::exit::CODES;
use crate::exit::Failure;
use crate::global::Global;
use bifolio_bench::{ProfileChoice, plan};
use bifolio_io::Cancel;
use clap::Args as ClapArgs;

/// Choices for `bench plan`.
#[derive(Debug, ClapArgs)]
#[command(after_help = CODES)]
pub struct PlanArgs {
    /// Random residencies of one 8 MiB request.
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub vectors: u64,
    /// Seed of the residencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Costs beside the paper's: of the device's newest stored profile if there is one, the
    /// defaults, or of this file.
    #[arg(long, default_value = "auto", value_name = "auto|none|FILE")]
    pub profile: ProfileChoice,
}

/// Measures and prints.
pub fn run(global: &Global, args: &PlanArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device_choice()?;
    let options = plan::Options { vectors: args.vectors, seed: args.seed, profile: args.profile.clone() };
    measure(global, cancel, |session| plan::run(device, &options, session))
}
