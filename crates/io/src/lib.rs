//! Moves bytes between files and device memory by the best path for their cache state.
//!
//! ```text
//!   Router::read(file, offset, length) -> device memory
//!       |
//!   residency::query      what of it is in the page cache, and how we know
//!       |
//!   plan::plan            pure: which engine moves which bytes (costs from cost::Costs)
//!       |
//!   engines, at the same time:
//!       cached   page cache -> pinned slots -> device, several threads
//!       mapped   DMA out of registered page-cache pages
//!       direct   io_uring O_DIRECT -> pinned slots -> device
//!       p2p      storage -> device
//!       |
//!   ReadReport            the engine of every byte, predicted and actual time
//! ```
//!
//! Layers, each of which knows only those below it:
//!
//! ```text
//!   calibrate  spread  process     measuring a router, several at once, one for each device of the process
//!   router     planner             requests as values, their way to the engines, what is learnt from them
//!   readahead                      windows of sequential readers
//!   engine                         one file an engine; what they share of one request
//!   plan       cost   profile      pure decisions, and what they are made from
//!   residency                      what of a file is cached
//!   file       storage             open files and striped sets; the system calls behind them
//!   kind  options  report  error   vocabulary
//! ```
//!
//! A file knows nothing of engines: what an engine keeps with it, such as registrations, it keeps as an attachment of a
//! type of its own.
//!
//! A read returns what `read(2)` would have returned at some moment during the call: dirty pages
//! are visible on every path (the kernel writes them back before an `O_DIRECT` read). Host memory
//! is bounded by the pinned pool, whatever the file's size.

pub mod cache_state;
pub mod calibrate;
pub mod cost;
mod engine;
mod error;
mod file;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod kind;
mod options;
mod pending;
pub mod plan;
mod planner;
pub mod process;
pub mod profile;
mod readahead;
mod report;
pub mod residency;
mod router;
pub mod size;
mod spread;
pub mod storage;
mod workers;

pub use bifolio_device::{Buffer, Cancel};
pub use cost::Costs;
pub use engine::p2p::P2pDriver;
pub use error::{Error, ErrorKind, Result};
pub use file::{Observation, OpenFile, PlainFile, stripe};
pub use kind::{EngineChoice, EngineKind};
pub use options::{Advice, After, OnArrival, ReadExtent, ReadOptions, WriteOptions};
pub use pending::Pending;
pub use plan::{Plan, Segment};
pub use profile::Profile;
pub use report::{BatchReport, ReadReport, ResidencyReport, SegmentReport, WriteReport};
pub use residency::Residency;
pub use router::{OrderedReader, PendingOnStream, READ_CACHED_BYTES_MAX, Router, RouterOptions};
pub use spread::{Exchange, Spread, SpreadReport, part_of, read_spread};
pub use workers::Workers;
