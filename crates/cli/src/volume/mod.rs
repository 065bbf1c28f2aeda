//! `bifolio volume`: encrypted and redundant volumes.

mod raid;

use crate::args::Args;
use crate::exit::{self, Failure};
use bifolio_io::Cancel;
use clap::Subcommand;

/// What to do with a volume.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a new volume.
    #[command(subcommand)]
    Create(CreateCommand),
    /// Check that P and Q of a RAID-6 fit its data, and name the members that are wrong.
    #[command(after_help = exit::CODES)]
    Scrub(raid::ScrubArgs),
    /// Rebuild a missing member of a RAID-6 onto a new one.
    #[command(after_help = exit::CODES)]
    Rebuild(raid::RebuildArgs),
}

/// What to make.
#[derive(Debug, Subcommand)]
pub enum CreateCommand {
    /// A RAID-6 over files or block devices, as Linux's md has them.
    #[command(after_help = exit::CODES)]
    Raid6(raid::Raid6Args),
}

/// Carries the command out.
pub fn run(args: &Args, command: &VolumeCommand, cancel: &Cancel) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create(CreateCommand::Raid6(options)) => raid::create(args, options, cancel),
        VolumeCommand::Scrub(options) => raid::scrub(args, options, cancel),
        VolumeCommand::Rebuild(options) => raid::rebuild(args, options, cancel),
    }
}
