//! The command `bifolio`: reads files into device memory by the best path, explains the plan,
//! calibrates the cost model and measures the engines.
//!
//! Every command decides and acts first and prints at the end, so that output on stdout means
//! success. Failures are one sentence on stderr and an exit code (see [`exit`]).

#![allow(unreachable_pub, reason = "nothing of a command is reachable from outside; `pub` means this crate")]

mod args;
mod bench;
mod cache;
mod calibrate;
mod crypt;
mod devices;
mod exit;
mod output;
mod progress;
mod read;
mod resources;
mod secret;
mod signals;
mod stripe;
mod volume;
mod write;

use args::{Args, BenchCommand, Command};
use bifolio_io::size;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(args: &Args) -> Result<(), exit::Failure> {
    let cancel = signals::watch()?;
    match &args.command {
        Command::Devices(options) => devices::run(args, options),
        Command::Read(options) => read::run(args, options, &cancel),
        Command::Calibrate(options) => calibrate::run(args, options, &cancel),
        Command::Bench(BenchCommand::Read(options)) => bench::run(args, options, &cancel),
        Command::Write(options) => write::run(args, options, &cancel),
        Command::Stripe(command) => stripe::run(args, command),
        Command::Cache(command) => cache::run(args, command),
        Command::Volume(command) => volume::run(args, command, &cancel),
        Command::Crypt(command) => crypt::run(args, command, &cancel),
        Command::Bench(BenchCommand::Write(options)) => bench::write::run(args, options, &cancel),
        Command::Bench(BenchCommand::Disparity(options)) => bench::disparity::run(args, options, &cancel),
        Command::Bench(BenchCommand::Small(options)) => bench::small::run(args, options, &cancel),
        Command::Bench(BenchCommand::Volume(options)) => bench::volume::run(args, options, &cancel),
        Command::Bench(BenchCommand::Spread(options)) => bench::spread::run(args, options, &cancel),
        Command::Bench(BenchCommand::Plan(options)) => bench::plan::run(args, options, &cancel),
        Command::Bench(BenchCommand::Compute(options)) => bench::compute::run(args, options, &cancel),
    }
}
