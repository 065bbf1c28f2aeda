//! What can be asked for.

use super::choices::{Contention, Pattern, RegionState, RequestSize};
use crate::harness::router::RouterSettings;
use bifolio_io::EngineChoice;
use std::path::PathBuf;
use std::time::Duration;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// The files.
    pub files: Vec<PathBuf>,
    /// Cache states.
    pub states: Vec<RegionState>,
    /// Engines; none: those that are usual, less what does not work here.
    pub engines: Option<Vec<EngineChoice>>,
    /// Request sizes.
    pub sizes: Vec<RequestSize>,
    /// Order of the requests.
    pub patterns: Vec<Pattern>,
    /// What else the machine does meanwhile.
    pub contention: Vec<Contention>,
    /// Runs of each engine; engines take turns.
    pub repetitions: u32,
    /// Stripes of the half-cached state.
    pub stripe_bytes: u64,
    /// Cells of the percentages, a multiple of 4096; at most a hundredth of the region.
    pub cell_bytes: u64,
    /// The region of a file whose state is set up and that requests are drawn from: its first so many bytes.
    pub region_bytes: u64,
    /// Requests of a run at most.
    pub requests: u64,
    /// A run ends after this time, once it has made 8 requests.
    pub run_time: Duration,
    /// Bytes of the scratch file that the disk contention reads.
    pub contention_bytes: u64,
    /// Seed of the requests' places and order, and of the cells.
    pub seed: u64,
    /// The router.
    pub router: RouterSettings,
}

impl Options {
    /// Whole files, warm, by all engines.
    pub fn new(files: Vec<PathBuf>) -> Self {
        Self {
            files,
            states: vec![RegionState::Warm],
            engines: None,
            sizes: vec![RequestSize::File],
            patterns: vec![Pattern::Random],
            contention: vec![Contention::None],
            repetitions: 5,
            stripe_bytes: 32 << 20,
            cell_bytes: 256 << 10,
            region_bytes: 1 << 30,
            requests: 4096,
            run_time: Duration::from_secs(2),
            contention_bytes: 1 << 30,
            seed: 1,
            router: RouterSettings::default(),
        }
    }
}
