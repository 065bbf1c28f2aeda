//! `bifolio volume`: encrypted and redundant volumes.

mod cat;
mod create;
mod export;
mod export_args;
mod force;
mod info;
mod nbd;
mod open;
mod raid;

pub use info::describe;
pub use open::{KeyArgs, complain, open};

use crate::exit::{self, Failure};
use crate::global::Global;
use bifolio_io::Cancel;
use clap::Subcommand;

/// What to do with a volume.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Print what a volume is made of: layers, sizes, ciphers, keyslots. No key is needed.
    #[command(after_help = exit::CODES)]
    Info(info::InfoArgs),
    /// Write a volume's plain content to standard output.
    #[command(after_help = exit::CODES)]
    Cat(cat::CatArgs),
    /// Make a new volume.
    #[command(subcommand)]
    Create(CreateCommand),
    /// Offer a volume's plain content to other programs until interrupted.
    #[command(after_help = exit::CODES)]
    Export(export_args::ExportArgs),
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
    /// A LUKS2 volume in a file or on a block device, as cryptsetup makes them.
    #[command(after_help = exit::CODES)]
    Luks2(Box<create::Luks2Args>),
    /// A RAID-6 over files or block devices, as Linux's md has them.
    #[command(after_help = exit::CODES)]
    Raid6(raid::Raid6Args),
}

/// Carries the command out.
pub fn run(global: &Global, command: &VolumeCommand, cancel: &Cancel) -> Result<(), Failure> {
    match command {
        VolumeCommand::Info(options) => info::run(global, options),
        VolumeCommand::Cat(options) => cat::run(options, cancel),
        VolumeCommand::Create(CreateCommand::Luks2(options)) => create::run(global, options, cancel),
        VolumeCommand::Create(CreateCommand::Raid6(options)) => raid::create(global, options, cancel),
        VolumeCommand::Export(options) => export::run(options, cancel),
        VolumeCommand::Scrub(options) => raid::scrub(global, options, cancel),
        VolumeCommand::Rebuild(options) => raid::rebuild(global, options, cancel),
    }
}
