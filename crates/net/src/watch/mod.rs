//! Watching a router that runs: rates on a terminal, metrics for Prometheus, drawings of its graph.
//!
//! ```text
//!   sample      what is counted at one moment
//!   rates       what passed between two of them, on each connection too
//!   page        rates as a table
//!   screen      the table on a terminal, or block after block in a file
//!   prometheus  a sample as metrics
//!   http        what a client asks for, and the answer
//!   views       what clients get to see
//!   server      clients: metrics, drawings
//! ```
//!
//! Whoever watches has a thread of its own. Packets are counted anyway, and are read without asking anybody; what handlers
//! know (drops, bytes, lengths of queues) a thread of the router reads between batches, a few at a time, when it is asked:
//! at most some times a second, however many clients there are.

pub mod http;
pub mod page;
pub mod prometheus;
mod rates;
mod sample;
pub mod screen;
pub mod server;
#[cfg(test)]
mod testing;
pub mod views;

pub use rates::{ElementRate, Rates};
pub use sample::{Reading, Sample, Watch};
