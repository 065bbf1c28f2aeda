//! One page cache over files, host memory and the memories of devices.
//!
//! ```text
//!   process                          the cache of a process, and its mappings by address
//!   demand                           work that asks for pages while it runs
//!   mapping                          a range of a file at addresses of a device
//!   service                          what it asks of the state of the file, by numbers; and where content is seen
//!   cache  cached_file  pool         what programs hold, and what its files share
//!   ahead  write_back                bringing pages before they are acquired, and writing them some time later
//!   kept                             files that are closed and could not be written
//!   open                             a file's directory under its lock      monitor  that lock, and those of ranges
//!   directory                        one file: what happens to its pages in which order
//!     versions    copies             decisions, without a byte | bytes, without a decision
//!        page     memory  frames     one page's protocol       | frames, scratch memory, streams
//!        state                       what must outlive a process: plain numbers in one region of each file
//!                 siblings           what other caches of the process have open
//!                 lending            a few things of a kind that operations use for a time
//!   error  options  stats  advice  ranges  table  budget  fault
//! ```
//!
//! Each line uses those below it. A process has one cache for all that is in it ([`process`]): its mappings are also
//! known by address, for C and for programs that know nothing of it, and its statistics can be read from outside
//! ([`published`]).
//!
//! What a program may rely on is in `docs/coherence.md`. A mapping is a plain range of device addresses, so
//! that unmodified kernels and closed libraries work on it; between [`Mapping::acquire`] and
//! [`Mapping::release`] its pages stay where they are. Work that finds out while it runs what it needs asks for
//! pages by [`Demand`] (`docs/demand.md`).
//!
//! Where somebody keeps the descriptors of regions and frames ([`Keeper`]), the process that works with a file may end at
//! any point, and another one goes on ([`Cache::kept`]).
//!
//! Lock order: ranges of a file, a turn to write to it, scratch memory of a device, and the mutex of the file's directory,
//! which is given up whenever one of the others, or a disk, is waited for (`directory/wait.rs`). Devices' work is waited
//! for before a call returns.

mod advice;
mod ahead;
mod budget;
mod cache;
mod cached_file;
mod copies;
mod demand;
mod directory;
mod error;
#[cfg(feature = "fault-injection")]
pub mod fault;
#[cfg(not(feature = "fault-injection"))]
#[allow(dead_code, unreachable_pub, reason = "points are listed for the tests that inject faults")]
mod fault;
mod frames;
#[cfg(feature = "fault-injection")]
pub mod inspect;
mod kept;
mod lending;
mod mapping;
mod memory;
mod monitor;
mod open;
mod options;
pub mod page;
mod page_set;
mod pool;
pub mod process;
pub mod published;
mod ranges;
pub mod service;
mod siblings;
mod state;
mod stats;
mod sync;
mod table;
mod write_back;

pub use advice::Advice;
pub use cache::Cache;
pub use cached_file::CachedFile;
pub use demand::{Demand, DemandReport, Launch};
pub use error::{Error, ErrorKind, Result};
pub use mapping::{Mapping, Pin, Window};
pub use options::{CacheOptions, Mode};
pub use state::keeper::{FileId, Keeper, Reader};
pub use state::lease::{Client, LeaseNumber};
pub use stats::{Counts, Report, Snapshot, Stats};
