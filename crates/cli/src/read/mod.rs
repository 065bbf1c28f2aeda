//! `bifolio read`: a file, or a part of it, into device memory.
//!
//! The memory is filled with a pattern before every run, so that bytes that a run did not write
//! are seen by `--sha256` and `--verify`, which read device memory back in chunks: the file is
//! never in host memory as a whole.

mod args;
mod check;
mod explain;
mod file;
mod run;
mod spread;
#[cfg(feature = "volumes")]
mod volume;

pub use args::ReadArgs;

use crate::exit::Failure;
use crate::global::Global;
use bifolio_io::Cancel;

/// Reads, checks, and prints.
pub fn run(global: &Global, options: &ReadArgs, cancel: &Cancel) -> Result<(), Failure> {
    #[cfg(feature = "volumes")]
    if !options.volume.is_empty() || options.key.key_file.is_some() {
        return volume::run(global, options, cancel);
    }
    if global.devices.len() > 1 {
        return spread::run(global, options, cancel);
    }
    file::run(global, options, cancel)
}
