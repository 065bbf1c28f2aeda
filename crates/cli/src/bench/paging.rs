//! `bifolio bench paging`.

use super::measure::measure_and_draw;
use crate::exit::Failure;
use crate::global::Global;
use crate::output;
use crate::swap::keeper;
use bifolio_bench::paging::load::{LoadOptions, load as run_load};
use bifolio_bench::paging::{self, Program};
use bifolio_bench::read::parse_seconds;
use bifolio_io::{Cancel, size};
use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Choices for `bench paging`.
#[derive(Debug, ClapArgs)]
pub struct PagingArgs {
    /// A folder on the disk that is compared with; the backing is made there, too, and removed.
    pub folder: PathBuf,
    /// Device memory in front of the backing; as much as the program needs, if not named.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub device_memory: Option<u64>,
    /// Memory that the program may have.
    #[arg(long, value_name = "N", value_parser = size::parse, default_value = "256M")]
    pub limit: u64,
    /// Memory that the program needs.
    #[arg(long, value_name = "N", value_parser = size::parse, default_value = "1G")]
    pub working_set: u64,
    /// How long the program runs on each space, after it has written everything once.
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "20")]
    pub seconds: Duration,
    /// Let writes wait in device memory.
    #[arg(long)]
    pub write_back: bool,
    /// Serving threads.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// Sizes of single requests, multiples of 4K.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = size::parse,
        default_value = "4K,8K,12K,16K,32K,64K,100K,128K,256K,512K,1M")]
    pub sizes: Vec<u64>,
    /// Time for each size, direction and space.
    #[arg(long, default_value = "0.3", value_name = "S", value_parser = parse_seconds)]
    pub point: Duration,
    /// Seed of places and data.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a report with plots, one self-contained HTML file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What the program is told.
#[derive(Debug, ClapArgs)]
pub struct LoadArgs {
    /// Memory that it needs.
    #[arg(long, value_parser = size::parse)]
    pub bytes: u64,
    /// How long it runs.
    #[arg(long, value_parser = parse_seconds)]
    pub seconds: Duration,
    /// The cgroup that it enters: the file into which it writes its number.
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Its seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Measures and prints.
pub fn run(global: &Global, args: &PagingArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let sizes: Vec<u64> = args.sizes.iter().map(|size| size.next_multiple_of(4096)).collect();
    let options = paging::Options {
        folder: args.folder.clone(),
        device: device.id().to_string(),
        device_memory: args.device_memory.unwrap_or(args.working_set * 3 / 2),
        writes_back: args.write_back,
        threads: args.threads.into(),
        limit: args.limit,
        working_set: args.working_set,
        time: args.seconds,
        sizes,
        point: args.point,
        seed: args.seed,
        keeper: &keeper,
        program: &program,
    };
    measure_and_draw(global, cancel, args.html.as_deref(), |session| paging::run(&device, &options, session))
}

fn program(told: &Program) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "paging-load", "--bytes", &told.bytes.to_string()]);
    command.args(["--seconds", &told.time.as_secs_f64().to_string(), "--seed", &told.seed.to_string()]);
    command.arg("--cgroup").arg(&told.entrance);
    command
}

/// Runs the program, and prints its report as JSON. A changed word is in the report.
pub fn load(args: &LoadArgs) -> Result<(), Failure> {
    let options = LoadOptions { bytes: args.bytes, entrance: args.cgroup.clone(), time: args.seconds, seed: args.seed };
    output::json(&run_load(&options)?)
}
