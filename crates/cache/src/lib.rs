//! One page cache over files, host memory and the memories of devices.
//!
//! ```text
//!   Cache ── CachedFile ── Mapping ── Demand  what programs hold
//!               |
//!             state        one file: its pages, its replicas, what happens in which order
//!            /     \
//!        page      replica     home
//!   decides,     device memory,   the file: what changed,
//!   moves no     twins, merging   and writing single bytes
//!   byte
//! ```
//!
//! A process has one cache for all that is in it ([`process`]): its mappings are also known by address, for C and for
//! programs that know nothing of it, and its statistics can be read from outside.
//!
//! What a program may rely on is in `docs/coherence.md`. A mapping is a plain range of device addresses, so
//! that unmodified kernels and closed libraries work on it; between [`Mapping::acquire`] and
//! [`Mapping::release`] its pages stay where they are. Work that finds out while it runs what it needs asks for
//! pages by [`Demand`] (`docs/demand.md`).
//!
//! Lock order: a file's state, then the memory of a device. Devices' work is waited for before a call returns.

mod ahead;
mod budget;
mod cache;
mod demand;
mod error;
#[cfg(feature = "fault-injection")]
pub mod fault;
#[cfg(not(feature = "fault-injection"))]
#[allow(dead_code, unreachable_pub, reason = "points are listed for the tests that inject faults")]
mod fault;
mod fragments;
mod home;
#[cfg(feature = "fault-injection")]
pub mod inspect;
mod mapping;
mod memory;
pub mod page;
pub mod process;
mod replica;
mod state;
mod table;

/// The locks of the modules that tests run under a scheduler.
mod sync {
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
}

pub use ahead::Advice;
pub use cache::{Cache, CacheOptions, CachedFile, Mode, Stats};
pub use demand::{Demand, DemandReport, Launch};
pub use error::{Error, ErrorKind, Result};
pub use mapping::{Mapping, Pin, Report};
pub use state::Counts;
