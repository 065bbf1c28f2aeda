//! `bifolio cache`: what the caches of running processes hold, and what is in the daemon's.

pub mod shared;
mod stat;

use crate::exit::{self, Failure};
use crate::global::Global;
use clap::Subcommand;

/// What to do with caches.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show what running processes of this user have cached on each device, and what has happened to pages.
    ///
    /// Pages are counted by state: held (a device has a copy), behind (somebody else has changed it since) and
    /// pending (the file lacks changes that the device has released). Of what has happened: hits were up to date
    /// when they were acquired, fetched came from the file or from another device (peers), merged had changes of the
    /// device's own, in races both sides had changed a byte, evicted lost their memory to others, flushed were
    /// written to the file, and compared were compared with it, as something unknown might have changed it.
    ///
    /// Processes keep the numbers in `$XDG_RUNTIME_DIR/bifolio`, `/run/user/UID/bifolio` or `/tmp/bifolio-UID`. Those of
    /// processes that have ended are removed.
    #[command(after_help = exit::CODES)]
    Stat(stat::StatArgs),
    /// List the files that the daemon has cached: how much of each on which device, who has it open, and what is pinned.
    #[command(after_help = exit::CODES)]
    Ls(shared::LsArgs),
    /// Bring files to a device of the daemon's, so that programs find them there.
    #[command(after_help = exit::CODES)]
    Warm(shared::FilesArgs),
    /// Give back the device memory of files that nobody uses at the moment. What is pinned stays.
    #[command(after_help = exit::CODES)]
    Drop(shared::FilesArgs),
    /// Bring files to a device of the daemon's, and keep them there until they are unpinned or the daemon ends.
    #[command(after_help = exit::CODES)]
    Pin(shared::FilesArgs),
    /// Keep files there no longer.
    #[command(after_help = exit::CODES)]
    Unpin(shared::FilesArgs),
}

/// Carries the command out.
pub fn run(global: &Global, command: &CacheCommand) -> Result<(), Failure> {
    match command {
        CacheCommand::Stat(options) => stat::run(global, options),
        CacheCommand::Ls(options) => shared::list(global, options),
        CacheCommand::Warm(options) => shared::warm(global, options),
        CacheCommand::Drop(options) => shared::drop_all(global, options),
        CacheCommand::Pin(options) => shared::keep(global, options, true),
        CacheCommand::Unpin(options) => shared::keep(global, options, false),
    }
}
