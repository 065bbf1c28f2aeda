//! `bifolio bench volume`.

use super::measure::measure;
use crate::exit::Failure;
use crate::global::Global;
use crate::router::RouterArgs;
use bifolio_bench::{CacheState, volume};
use bifolio_io::{Cancel, size};
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// Choices for `bench volume`.
#[derive(Debug, ClapArgs)]
pub struct VolumeArgs {
    /// Where the files are made, with room for four and a half times the size.
    pub folder: PathBuf,
    /// Bytes of content.
    #[arg(long, default_value = "4G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Cache states of the files.
    #[arg(long, value_delimiter = ',', default_value = "warm,cold", value_name = "LIST")]
    pub states: Vec<CacheState>,
    /// Members of the array that hold data; two more hold parity.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=64))]
    pub data_members: u64,
    /// Bytes of a chunk of the array.
    #[arg(long, default_value = "512K", value_parser = size::parse, value_name = "SIZE")]
    pub chunk: u64,
    /// Bytes of a sector of the encrypted volume.
    #[arg(long, default_value_t = 4096, value_name = "BYTES")]
    pub sector_size: u32,
    /// Threads of the ways that decrypt by the CPU.
    #[arg(long, value_delimiter = ',', default_value = "4,16", value_name = "LIST", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cpu_threads: Vec<u16>,
    /// Runs of each way; they take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of the content.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Measures and prints.
pub fn run(global: &Global, args: &VolumeArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let options = volume::Options {
        folder: args.folder.clone(),
        bytes: args.size,
        states: args.states.clone(),
        data_members: args.data_members,
        chunk_bytes: args.chunk,
        sector_bytes: args.sector_size,
        cpu_threads: args.cpu_threads.clone(),
        repetitions: args.repetitions,
        seed: args.seed,
        router: args.router.settings(),
    };
    measure(global, cancel, |session| volume::run(&device, &options, session))
}
