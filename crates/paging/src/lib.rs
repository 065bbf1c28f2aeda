//! The paging cache: a block device whose content is in a file, with device memory in front of it, for pages that the
//! system has no room for.
//!
//! ```text
//!   swap/        swap space of the system: on, off, status    attach/  a disk of what is served
//!     |
//!   service      a cache as a mounted file: keeper and worker     serve   requests of that file
//!     |
//!   cache/       PagingCache: reads, writes, write-back, and the device's memory over time
//!     |
//!   table        which block lies in which slot         policy     which one leaves (pure)
//!   directory    the same in memory that outlives us    stats      counters in it
//!   store        device memory in chunks                health     when a device is left alone (pure)
//!                                                       giving     how much of it others want (pure)
//!   backing      the file                               header     what its beginning says
//!   region/      Region: memory that is partly on a device, for one process
//!   pages        blocks, pages and sets of them         buffers    aligned memory, made once
//! ```

pub mod attach;
pub mod backing;
mod buffers;
pub mod cache;
pub mod directory;
mod giving;
pub mod header;
mod health;
pub mod pages;
mod policy;
pub mod region;
mod serve;
pub mod service;
pub mod stats;
mod store;
pub mod swap;
mod table;

pub use backing::Backing;
pub use cache::{
    ChunkKeeper, Housekeeper, Legacy, Mode, OpenDevice, Options, PagingCache, SleepClock, chunk_bytes, format_backing,
    new_directory, new_directory_at,
};
