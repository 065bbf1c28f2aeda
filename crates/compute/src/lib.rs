//! Storage services, on the CPU and on a device.
//!
//! ```text
//!   threads    the host's threads, which long work of storage code is shared out to
//!   executor/  requests of many callers: merged, split, overlapped, by the CPU or the device
//!   cost/      what work takes on each path, measured, and the choice between them
//!   service/   what can be asked for: copies, AES-XTS, AES-CTR, AES-GCM, RAID-6, CRC32C, SHA-256
//!   cpu/       AES in XTS, CTR and GCM, and P and Q of RAID-6, on the CPU
//!   keyed/     ciphers for data that is on a device and stays there, with the keys there
//!
//!   Handle::run ───small, CPU──> the caller's own thread
//!   Caller::submit ─> choose ─> split ─> turns by bytes ─┬─> the host's threads
//!                       ^                                └─> gather ─> pipelines: copy in, kernels, copy out
//!                       └── curves <── what requests took ──────────────┘          └─failed─> CPU
//! ```
//!
//! Decrypt into device memory and digest what was decrypted, in one trip:
//!
//! ```
//! use bifolio_compute::service::{AesXts, Digests};
//! use bifolio_compute::{Buffer, Executor, Options, Request};
//! use bifolio_kernels::{aes::Direction, aes_xts::IvUnit, digest::Digest};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = bifolio_device::open(bifolio_device::DeviceChoice::Exactly("host".parse()?))?;
//! let executor = Executor::new(&device, Options::default())?;
//! let key: Vec<u8> = (0..64).collect();
//! let xts = AesXts::new(executor.kernels(), &key, Direction::Decrypt, 4096, IvUnit::Bytes512)?;
//! let xts = executor.register(xts);
//! let crc = executor.register(Digests::new(executor.kernels(), Digest::Crc32c)?);
//!
//! let tensor = Arc::new(device.alloc(8192)?);
//! let request = Request::new(xts.step(0), vec![7; 8192])
//!     .then(crc.step(Digests::blocks(8192, 4096)))
//!     .into(Buffer::new(&tensor));
//! let pending = executor.caller().submit(request)?;
//! let answers = pending.wait().result?;
//! assert_eq!(answers.results[1].len(), 2 * 4);
//! # Ok(())
//! # }
//! ```

mod cost;
pub mod cpu;
mod error;
mod executor;
mod kernels;
pub mod keyed;
mod memory;
mod outcome;
pub mod service;
mod threads;

pub use bifolio_device::Buffer;
pub use cost::{Path, Route, ServiceStatistics};
pub use error::{Error, ErrorKind, Result};
pub use executor::{Caller, Executor, Handle, Options, Refused, Request, WhenFull};
pub use kernels::{Kernels, Loaded};
pub use memory::{Foreign, HostMemory, Memory};
pub use outcome::{Answers, Outcome, Pending};
pub use threads::ThreadPool;
