//! The command line, as data.

use crate::bench::choices::{LoadKind, Pattern, RequestSize, States, parse_cell, parse_seconds};
use crate::bench::compute::ComputeArgs;
use crate::bench::disparity::DisparityArgs;
use crate::bench::plan::PlanArgs;
use crate::bench::small::SmallArgs;
use crate::bench::spread::SpreadArgs;
use crate::bench::volume::VolumeArgs;
use crate::bench::write::BenchWriteArgs;
use crate::cache::CacheCommand;
use crate::crypt::CryptCommand;
use crate::exit::{self, Code, Failure};
use crate::size;
use crate::stripe::StripeCommand;
use crate::volume::{KeyArgs, VolumeCommand};
use crate::write::WriteArgs;
use bifolio_device::DeviceChoice;
use bifolio_io::{EngineChoice, Spread};
use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Reads files into device memory by the best path for their cache state.
#[derive(Debug, Parser)]
#[command(name = "bifolio", version, after_help = exit::CODES, arg_required_else_help = true)]
pub struct Args {
    /// The device: auto takes the first CUDA device, else the first OpenCL GPU, else host. Several,
    /// separated by commas, where a command has a use for them.
    #[arg(
        long = "device",
        global = true,
        env = "BIFOLIO_DEVICE",
        default_value = "auto",
        value_delimiter = ',',
        value_name = "auto|host[:N]|cuda:N|opencl:N"
    )]
    pub devices: Vec<DeviceChoice>,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// The device of a command that uses one.
    pub fn device(&self) -> Result<DeviceChoice, Failure> {
        match self.devices[..] {
            [only] => Ok(only),
            _ => Err(Failure::new(Code::Usage, "this command uses one device; name one with --device")),
        }
    }
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
    /// Encrypted and redundant volumes: LUKS and md RAID-6 in image files or on block devices.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Encrypted directories in gocryptfs's format.
    #[command(subcommand)]
    Crypt(CryptCommand),
    /// Measure every engine on the file system that holds PATH and store the fitted costs.
    #[command(after_help = exit::CODES)]
    Calibrate(CalibrateArgs),
    /// Measure how quickly engines read, beside what disk and link can do, or how well requests are planned.
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Engines by cache state, with CPU seconds per GB. The states are set up before every run.
    #[command(after_help = exit::CODES)]
    Read(BenchArgs),
    /// Device memory into a file, beside what page cache and disk take from host memory.
    #[command(after_help = exit::CODES)]
    Write(BenchWriteArgs),
    /// A striped set beside plain copies, over request sizes (figures 6 and 8 of the paper).
    #[command(after_help = exit::CODES)]
    Disparity(DisparityArgs),
    /// Short reads: in batches, sequential with and without readahead, in the order of a stream.
    #[command(after_help = exit::CODES)]
    Small(SmallArgs),
    /// One file into the several devices of --device: shared out, replicated, one after the other.
    #[command(after_help = exit::CODES)]
    Spread(SpreadArgs),
    /// Encrypted and redundant volumes into device memory, beside the plain file and the CPU.
    #[command(after_help = exit::CODES)]
    Volume(VolumeArgs),
    /// Planners on random residencies: how near they come to their optimum, and how long they take.
    #[command(after_help = exit::CODES)]
    Plan(PlanArgs),
    /// Storage services: the CPU's library, the device and the executor's choice, over request sizes.
    Compute(ComputeArgs),
}

/// Choices for `devices`.
#[derive(Debug, ClapArgs)]
pub struct DevicesArgs {
    /// Also run a known-answer test of every kernel: on all devices, or on the one of --device.
    #[arg(long)]
    pub test: bool,
}

/// How a router is set up.
#[derive(Debug, ClapArgs)]
pub struct RouterArgs {
    /// Calibrated costs: the stored profile if there is one, none, or this file.
    #[arg(long, default_value = "auto", value_name = "auto|none|FILE")]
    pub profile: ProfileChoice,
    /// Pinned host memory at most.
    #[arg(long, default_value = "64M", value_parser = size::parse, value_name = "SIZE")]
    pub pool: u64,
    /// Bytes of one pinned slot; raised to a power of two from 64K to 1G.
    #[arg(long, default_value = "4M", value_parser = size::parse, value_name = "SIZE")]
    pub slot: u64,
    /// Threads that copy out of the page cache [default: the processors, at most 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Page-cache bytes that may stay pinned for ranges read again and again [default: a quarter
    /// of the memory].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub mapped_budget: Option<u64>,
}

/// Choices for `read`.
#[derive(Debug, ClapArgs)]
pub struct ReadArgs {
    /// The file, or block device. With --key-file, a plain path that leads through an encrypted directory: the file is
    /// verified and decrypted on the device.
    #[arg(required_unless_present = "volume", conflicts_with = "volume")]
    pub file: Option<PathBuf>,
    /// Read the plain content of a volume instead: one image file or block device, or the members of an
    /// array, decrypted or recovered on the device.
    #[arg(long, num_args = 1.., value_name = "IMG")]
    pub volume: Vec<PathBuf>,
    /// The volume's key; of a directory its passphrase, the file's first line.
    #[command(flatten)]
    pub key: KeyArgs,
    /// First byte.
    #[arg(long, default_value = "0", value_parser = size::parse, value_name = "SIZE")]
    pub offset: u64,
    /// Bytes, at most to the end of the file [default: to the end].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub length: Option<u64>,
    /// The engine; auto plans with all that work.
    #[arg(long, default_value = "auto", value_name = "auto|cached|mapped|direct|p2p")]
    pub engine: EngineChoice,
    /// Print the SHA-256 of what is in device memory afterwards.
    #[arg(long)]
    pub sha256: bool,
    /// Compare device memory with the file, byte by byte, after the last run.
    #[arg(long)]
    pub verify: bool,
    /// Print the plan: residency, segments, predicted and actual times.
    #[arg(long)]
    pub explain: bool,
    /// With several devices: give each a part of the file, or all of it.
    #[arg(long, default_value = "shard", value_name = "shard|replicate")]
    pub spread: Spread,
    /// Read N times.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repeat: u32,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

impl ReadArgs {
    /// The file to read, where it is no volume.
    pub fn file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(""))
    }
}

/// Choices for `calibrate`.
#[derive(Debug, ClapArgs)]
pub struct CalibrateArgs {
    /// A folder, or a file in it: a scratch file is written there and removed.
    pub path: PathBuf,
    /// Bytes of the scratch file, at least 64M.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Reads of each size; their median counts.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of the content and of the places read.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Choices for `bench read`.
#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    /// The files.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Cache states: warm, cold, half (every second stripe), again (warm, through a handle that
    /// has been read several times), and percentages of cells that are cached, drawn at random:
    /// 30%, or in steps, 0-100%/10.
    #[arg(long, value_delimiter = ',', default_value = "warm,again,cold,half", value_name = "LIST")]
    pub states: Vec<States>,
    /// Engines [default: cached, direct, mapped and auto, less what does not work here].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub engines: Option<Vec<EngineChoice>>,
    /// Request sizes, such as 4K,1M,file; `file` is the whole file by one request.
    #[arg(long, value_delimiter = ',', default_value = "file", value_name = "LIST")]
    pub sizes: Vec<RequestSize>,
    /// Order of the requests: random (shuffled, at places all over the region), sequential (in file
    /// order from its start, through one handle), or both.
    #[arg(long, value_delimiter = ',', default_value = "random", value_name = "LIST")]
    pub pattern: Vec<Pattern>,
    /// What else the machine does meanwhile: none, cpu (a spinning thread for each processor), disk
    /// (8 threads read a scratch file in the same folder at random, past the page cache).
    #[arg(long, value_delimiter = ',', default_value = "none", value_name = "LIST")]
    pub load: Vec<LoadKind>,
    /// Runs of each engine; engines take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Stripes of the half-cached state.
    #[arg(long, default_value = "32M", value_parser = size::parse, value_name = "SIZE")]
    pub stripe: u64,
    /// Cells of the percentages, a multiple of 4K; at most a hundredth of the region.
    #[arg(long, default_value = "256K", value_parser = parse_cell, value_name = "SIZE")]
    pub cell: u64,
    /// The region of a file whose state is set up and that requests are drawn from: its first so
    /// many bytes. Sequential requests that end before have a region that ends with them.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub limit: u64,
    /// Requests of a run at most.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub requests: u64,
    /// A run ends after this time, once it has made 8 requests.
    #[arg(long, default_value = "2", value_parser = parse_seconds, value_name = "SECONDS")]
    pub run_time: Duration,
    /// Bytes of the scratch file that the disk load reads, at least 1M.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub load_size: u64,
    /// Seed of the requests' places and order, and of the cells.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a report with plots, one self-contained HTML file.
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Where calibrated costs come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileChoice {
    /// The stored profile, if there is one.
    Auto,
    /// Defaults.
    None,
    /// A file.
    File(PathBuf),
}

impl FromStr for ProfileChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "none" => Self::None,
            file => Self::File(file.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn lists_are_read() {
        let line =
            "bifolio bench read a b --states cold,0-20%/10 --engines auto,direct --sizes 4K,file --load cpu,none";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let Command::Bench(BenchCommand::Read(bench)) = args.command else { panic!("another command") };
        assert_eq!(bench.files.len(), 2);
        let states: Vec<_> = bench.states.iter().flat_map(|states| &states.0).map(ToString::to_string).collect();
        assert_eq!(states, ["cold", "0%", "10%", "20%"]);
        assert_eq!(bench.load, [LoadKind::Cpu, LoadKind::None]);
        assert_eq!(bench.sizes, [RequestSize::Bytes(4096), RequestSize::File]);
        assert_eq!(bench.engines.unwrap().len(), 2);
    }
}
