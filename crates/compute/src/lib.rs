//! Storage services, on the CPU and on a device.
//!
//! ```text
//!   executor/  requests of many callers: merged, split, overlapped, by the CPU or the device
//!   service/   what can be asked for: copies, AES-XTS, AES-CTR, AES-GCM, RAID-6, CRC32C, SHA-256
//!   cpu/       AES in XTS, CTR and GCM, and P and Q of RAID-6, on the CPU
//!   keyed/     the same in device memory, with the keys there
//! ```

pub mod cpu;
mod error;
pub mod executor;
pub mod keyed;
mod memory;
mod pending;
pub mod service;

pub use bifolio_io::Buffer;
pub use error::{Error, ErrorKind, Result};
pub use executor::{
    Caller, Executor, Handle, Kernels, Options, Path, Refused, Request, Route, ServiceStatistics, WhenFull,
};
pub use memory::{Foreign, HostMemory, Memory};
pub use pending::{Answers, Outcome, Pending};
