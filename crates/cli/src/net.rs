//! `bifolio net`: Click's programs, as `bifolio-net` has them.

use clap::Args as ClapArgs;
use std::process::ExitCode;

/// What follows `net`, which has a language of its own.
#[derive(Debug, ClapArgs)]
pub struct NetArgs {
    /// Options of `click`, such as `-e CONFIG`, `-f FILE`, `-h ELEMENT.HANDLER`, `--simtime`, `NAME=VALUE`; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub args: Vec<String>,
}

/// Runs one of the programs, and ends as it ends.
pub fn run(args: &NetArgs) -> ExitCode {
    let own = std::iter::once("net".to_owned());
    let args: Vec<String> = own.chain(args.args.iter().cloned()).collect();
    ExitCode::from(bifolio_net::command::main(&args).clamp(0, 255) as u8)
}
