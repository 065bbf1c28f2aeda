//! What can be asked for.

use super::work::Kind;
use std::time::Duration;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Services.
    pub services: Vec<Kind>,
    /// Sizes of a request, multiples of 512 bytes.
    pub sizes: Vec<u64>,
    /// For each way at each size.
    pub point: Duration,
    /// For everything; what is not measured by then is left out.
    pub whole: Duration,
    /// Seed of the data.
    pub seed: u64,
}
