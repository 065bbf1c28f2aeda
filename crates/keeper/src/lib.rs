//! What has to outlive a worker: descriptors, memory and state, held by a process that does nothing which could fail.
//!
//! ```text
//!   shared   memory that a successor of a killed process maps again
//!   error    errors as sentences
//! ```
//!
//! Nothing here opens a device: a driver that takes its process down must not take this one.

mod error;
mod shared;

pub use error::{Error, ErrorKind, Result};
pub use shared::SharedMemory;
