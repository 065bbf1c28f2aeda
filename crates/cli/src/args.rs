//! The command line as a whole: choices for all commands, and the commands.

use crate::bench::BenchCommand;
use crate::cache::CacheCommand;
use crate::calibrate::CalibrateArgs;
#[cfg(feature = "volumes")]
use crate::crypt::CryptCommand;
use crate::daemon::DaemonArgs;
use crate::devices::DevicesArgs;
use crate::exit;
use crate::global::Global;
#[cfg(feature = "mount")]
use crate::mount::{MountArgs, UnmountArgs};
use crate::net::NetArgs;
use crate::read::ReadArgs;
use crate::stripe::StripeCommand;
use crate::swap::SwapCommand;
use crate::top::TopArgs;
#[cfg(feature = "volumes")]
use crate::volume::VolumeCommand;
use crate::write::WriteArgs;
use clap::{Parser, Subcommand};

/// Reads files into device memory by the best path for their cache state.
#[derive(Debug, Parser)]
#[command(name = "bifolio", version, after_help = exit::CODES, arg_required_else_help = true)]
pub struct Args {
    /// Choices for all commands.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List devices with their capabilities, and what is missing and why.
    #[command(after_help = exit::CODES)]
    Devices(DevicesArgs),
    /// Read a file, or a part of it, into device memory.
    #[command(after_help = exit::CODES)]
    Read(ReadArgs),
    /// Write device memory to a file, past the page cache or through it.
    #[command(after_help = exit::CODES)]
    Write(WriteArgs),
    /// Striped sets: several files as one, such as one on each drive.
    #[command(subcommand)]
    Stripe(StripeCommand),
    /// The caches of running processes: files that they have mapped on devices.
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Serve one cache to all processes of this user, in the foreground: files that they have mapped on devices are there
    /// once, and stay when a process ends. It serves all GPUs, or what --device says. It ends with SIGTERM, and writes what
    /// files lack before.
    Daemon(DaemonArgs),
    /// Show what the daemon's cache holds and does, like top: devices, files, clients, hits, and rates of links and disks.
    Top(TopArgs),
    /// Swap space with device memory in front of a file: pages come back from there instead of from a disk.
    #[command(subcommand)]
    Swap(SwapCommand),
    /// Encrypted and redundant volumes: LUKS and md RAID-6 in image files or on block devices.
    #[cfg(feature = "volumes")]
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Encrypted directories in gocryptfs's format.
    #[cfg(feature = "volumes")]
    #[command(subcommand)]
    Crypt(CryptCommand),
    /// Mount a folder for CPU programs, whose files devices may share.
    #[cfg(feature = "mount")]
    #[command(after_help = exit::CODES)]
    Mount(MountArgs),
    /// Unmount what `mount` has mounted.
    #[cfg(feature = "mount")]
    #[command(after_help = exit::CODES)]
    Unmount(UnmountArgs),
    /// Run packet configurations in Click's language, with the options of `click`; or `net click-flatten`, `net
    /// click-pretty` and the other tools.
    #[command(disable_help_flag = true)]
    Net(NetArgs),
    /// Measure every engine on the file system that holds PATH and store the fitted costs.
    #[command(after_help = exit::CODES)]
    Calibrate(CalibrateArgs),
    /// Measure how quickly engines read, beside what disk and link can do, or how well requests are planned.
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
