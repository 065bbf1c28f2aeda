//! How a router is set up from the command line.

use bifolio_bench::{ProfileChoice, RouterSettings};
use bifolio_io::size;
use clap::Args as ClapArgs;

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

impl RouterArgs {
    /// As a router takes them.
    pub fn settings(&self) -> RouterSettings {
        RouterSettings {
            profile: self.profile.clone(),
            pool_bytes: Some(self.pool),
            slot_bytes: Some(self.slot),
            threads: self.threads.map(usize::from),
            mapped_bytes: self.mapped_budget,
        }
    }
}
