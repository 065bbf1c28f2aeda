//! Measurements of everything below the faces.
//!
//! ```text
//!   read  write  small  spread  volume  disparity  compute  plan  paging     what is measured, a benchmark each
//!      |     |     |       |       |        |         |       |
//!      +-----+-----+-------+---+---+--------+---------+-------+
//!                              |
//!   harness      turns and comparisons, cache states, verification, rates, tables, plots, pages
//! ```
//!
//! A benchmark is a function from options to a [`Measured`] report, which is text, JSON, and for some an HTML page.
//! Ways to do the same work take turns, so that a drift of the machine meets all alike; every state is set up
//! before every run; what a way has moved is compared with the file once. A benchmark that is
//! interrupted hands back what it has measured so far, and its report says that it is partial.
//!
//! The command's `bench` subcommands are thin definitions over these; programs for developers are in `examples/`.

#[cfg(feature = "volumes")]
pub mod compute;
pub mod disparity;
mod error;
pub mod harness;
pub mod net;
pub mod paging;
pub mod plan;
pub mod read;
pub mod small;
pub mod spread;
#[cfg(feature = "volumes")]
pub mod volume;
pub mod write;

pub use error::{Error, ErrorKind, Result};
pub use harness::cache_state::CacheState;
pub use harness::report::{Measured, Page, Report};
pub use harness::router::{ProfileChoice, RouterSettings};
pub use harness::session::{Progress, Session};
