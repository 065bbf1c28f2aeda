//! `bifolio bench`: what can be asked of the benchmarks, which are in a crate of their own.

#[cfg(feature = "volumes")]
mod compute;
mod disparity;
mod measure;
mod net;
mod paging;
mod plan;
mod read;
mod small;
mod spread;
#[cfg(feature = "volumes")]
mod volume;
mod write;

use crate::exit::{self, Failure};
use crate::global::Global;
use bifolio_io::Cancel;
use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Engines by cache state, with CPU seconds per GB. The states are set up before every run.
    #[command(after_help = exit::CODES)]
    Read(read::ReadArgs),
    /// Device memory into a file, beside what page cache and disk take from host memory.
    #[command(after_help = exit::CODES)]
    Write(write::WriteArgs),
    /// A striped set beside plain copies, over request sizes (figures 6 and 8 of the paper).
    #[command(after_help = exit::CODES)]
    Disparity(disparity::DisparityArgs),
    /// Short reads: in batches, sequential with and without readahead, in the order of a stream.
    #[command(after_help = exit::CODES)]
    Small(small::SmallArgs),
    /// One file into the several devices of --device: shared out, replicated, one after the other.
    #[command(after_help = exit::CODES)]
    Spread(spread::SpreadArgs),
    /// The packet engine on packets in memory: a router, a filter, a table of routes.
    #[command(after_help = exit::CODES)]
    Net(net::NetArgs),
    /// Encrypted and redundant volumes into device memory, beside the plain file and the CPU.
    #[cfg(feature = "volumes")]
    #[command(after_help = exit::CODES)]
    Volume(volume::VolumeArgs),
    /// Swap space: the paging cache, a swap file and zram under a program that has less memory than it needs, and the
    /// throughput metric of the slides.
    #[command(after_help = exit::CODES)]
    Paging(paging::PagingArgs),
    /// A program that verifies every word of its memory, in a cgroup that has less of it.
    #[command(hide = true)]
    PagingLoad(paging::LoadArgs),
    /// Planners on random residencies: how near they come to their optimum, and how long they take.
    #[command(after_help = exit::CODES)]
    Plan(plan::PlanArgs),
    /// Storage services: the CPU's library, the device and the executor's choice, over request sizes.
    #[cfg(feature = "volumes")]
    Compute(compute::ComputeArgs),
}

/// Carries the command out.
pub fn run(global: &Global, command: &BenchCommand, cancel: &Cancel) -> Result<(), Failure> {
    match command {
        BenchCommand::Read(args) => read::run(global, args, cancel),
        BenchCommand::Write(args) => write::run(global, args, cancel),
        BenchCommand::Disparity(args) => disparity::run(global, args, cancel),
        BenchCommand::Small(args) => small::run(global, args, cancel),
        BenchCommand::Spread(args) => spread::run(global, args, cancel),
        #[cfg(feature = "volumes")]
        BenchCommand::Volume(args) => volume::run(global, args, cancel),
        BenchCommand::Net(args) => net::run(global, args, cancel),
        BenchCommand::Paging(args) => paging::run(global, args, cancel),
        BenchCommand::PagingLoad(args) => paging::load(args),
        BenchCommand::Plan(args) => plan::run(global, args, cancel),
        #[cfg(feature = "volumes")]
        BenchCommand::Compute(args) => compute::run(global, args, cancel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_bench::read::{Contention, RequestSize};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: BenchCommand,
    }

    #[test]
    fn lists_are_read() {
        let line = "bench read a b --states cold,0-20%/10 --engines auto,direct --sizes 4K,file --contention cpu,none";
        let BenchCommand::Read(args) = Line::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(args.files.len(), 2);
        let states: Vec<_> = args.states.iter().flat_map(|states| &states.0).map(ToString::to_string).collect();
        assert_eq!(states, ["cold", "0%", "10%", "20%"]);
        assert_eq!(args.contention, [Contention::Cpu, Contention::None]);
        assert_eq!(args.sizes, [RequestSize::Bytes(4096), RequestSize::File]);
        assert_eq!(args.engines.unwrap().len(), 2);
    }
}
