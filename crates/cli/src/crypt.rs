//! `bifolio crypt`: encrypted directories.

use crate::args::Args;
use crate::exit::Failure;
use bifolio_io::Cancel;
use clap::Subcommand;

/// What to do with an encrypted directory.
#[derive(Debug, Subcommand)]
pub enum CryptCommand {}

/// Carries the command out.
pub fn run(_: &Args, command: &CryptCommand, _: &Cancel) -> Result<(), Failure> {
    match *command {}
}
