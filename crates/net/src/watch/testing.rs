//! Routers for tests.

use crate::router::{self, Options, Running};
use crate::{Clock, Log, Registry, lang};

/// A router of a configuration, which has to be right, in simulated time.
#[track_caller]
pub(super) fn built(text: &str) -> Running {
    let (registry, mut log) = (Registry::standard(), Log::new());
    let graph = lang::parse(text, "config", &lang::Globals::new(), &registry, &mut log);
    let options = Options { clock: Clock::simulated(), seed: 1, ..Options::default() };
    graph.and_then(|graph| router::build(&graph, &registry, options, &mut log)).unwrap_or_else(|| panic!("{log}"))
}
