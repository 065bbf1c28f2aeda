//! `bifolio volume`: encrypted and redundant volumes.

use crate::args::Args;
use crate::exit::Failure;
use bifolio_io::Cancel;
use clap::Subcommand;

/// What to do with a volume.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {}

/// Carries the command out.
pub fn run(_: &Args, command: &VolumeCommand, _: &Cancel) -> Result<(), Failure> {
    match *command {}
}
