//! The command `bifolio`: reads files into device memory by the best path, explains the plan,
//! calibrates the cost model and measures the engines.
//!
//! Every command decides and acts first and prints at the end, so that output on stdout means
//! success, or is marked as partial. Failures are one sentence on stderr and an exit code (see [`exit`]).
//!
//! ```text
//!   args                                  assembles the command line
//!     |
//!   read write calibrate devices ...      a command each, with its own choices
//!     |
//!   router secret global                  choices that several commands have
//!     |
//!   progress signals output exit background   how commands speak and end
//! ```

#![allow(unreachable_pub, reason = "nothing of a command is reachable from outside; `pub` means this crate")]

mod args;
#[cfg(any(feature = "volumes", feature = "mount"))]
mod background;
mod bench;
mod cache;
mod calibrate;
#[cfg(feature = "volumes")]
mod crypt;
mod daemon;
mod devices;
mod exit;
mod global;
mod metrics;
#[cfg(feature = "mount")]
mod mount;
mod net;
mod output;
mod progress;
mod read;
mod router;
#[cfg(feature = "volumes")]
mod secret;
mod signals;
mod stripe;
mod swap;
mod top;
mod units;
#[cfg(feature = "volumes")]
mod volume;
mod write;

use args::{Args, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    // It has its own way with signals: configurations may ask for them.
    if let Command::Net(args) = &args.command {
        return net::run(args);
    }
    let done = match &args.command {
        // What swap needs has its own way with signals, too, and switching it off is interrupted by them.
        Command::Swap(command) => swap::run(&args.global, command),
        // It passes signals on to the process that serves.
        Command::Daemon(options) => daemon::run(&args.global, options),
        // It restores the terminal when it is interrupted.
        Command::Top(options) => top::run(&args.global, options),
        _ => run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(Args { global, command }: &Args) -> Result<(), exit::Failure> {
    let cancel = signals::watch()?;
    match command {
        Command::Devices(options) => devices::run(global, options),
        Command::Read(options) => read::run(global, options, &cancel),
        Command::Write(options) => write::run(global, options, &cancel),
        Command::Stripe(command) => stripe::run(global, command),
        Command::Cache(command) => cache::run(global, command),
        Command::Swap(_) | Command::Daemon(_) | Command::Top(_) => Ok(()),
        #[cfg(feature = "volumes")]
        Command::Volume(command) => volume::run(global, command, &cancel),
        #[cfg(feature = "volumes")]
        Command::Crypt(command) => crypt::run(global, command, &cancel),
        #[cfg(feature = "mount")]
        Command::Mount(options) => mount::run(options, &cancel),
        #[cfg(feature = "mount")]
        Command::Unmount(options) => mount::unmount(options),
        Command::Calibrate(options) => calibrate::run(global, options, &cancel),
        Command::Bench(command) => bench::run(global, command, &cancel),
        Command::Net(_) => Ok(()),
    }
}
