//! What has to outlive a worker: descriptors, memory and state, held by a process that does nothing which could fail.
//!
//! ```text
//!   keep     the keeper: holds, hands out, restarts        worker   a worker's side of it
//!   restart  whether and when (pure)                       parcel   messages with descriptors
//!   forks    workers that share the keeper's table of descriptors
//!   shared   memory that a successor of a killed process maps again
//!   locked   what it holds stays in memory
//!   fuse/    a file that is served through FUSE by whoever is the worker
//!   process  what lets a process serve without memory
//!   error    errors as sentences
//! ```
//!
//! Nothing here opens a device: a driver that takes its process down must not take this one.

mod error;
pub mod forks;
pub mod fuse;
mod keep;
mod locked;
mod parcel;
pub mod process;
mod restart;
mod shared;
mod worker;

pub use error::{Error, ErrorKind, Result};
pub use keep::{Ended, Event, Keeper};
pub use restart::Restarts;
pub use shared::SharedMemory;
pub use worker::Worker;
