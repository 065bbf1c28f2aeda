//! Device memory, pinned memory, address ranges, streams, events and modules behind one trait.
//!
//! ```text
//!   pool                          pinned slots that are used again
//!   memory  streams  module       what is made on a device: safe values that free themselves and check their ranges
//!   direct  energy
//!      device   discover  pointer what there is, and whose memory an address is
//!                  |
//!            backend::Backend     the seam: object-safe traits
//!           /        |       \
//!        cuda     opencl     host
//!                  |
//!   address  kernel  rows  info  id  error      the words that all of it uses
//! ```
//!
//! What a device can do is data ([`Capabilities`]); no code outside [`backend`] asks which
//! backend it is. A machine without a GPU is a normal case: [`discover`] says what is missing and
//! why, and the embedded `host` device does everything in host memory.
//!
//! Beside them stand what every room that works for others needs: a [`Buffer`] is device memory that a request
//! owns a share of, [`Pending`] and [`Promise`] are the two ends of a request under way, and [`Cancel`] ends it early.
//!
//! Rules for callers: nothing on a hot path allocates device or pinned memory (allocation may
//! synchronise the device), so slots come from a [`PinnedPool`]; completion is by [`Event`].

mod address;
pub mod backend;
mod buffer;
mod cancel;
#[cfg(feature = "conformance")]
pub mod conformance;
mod device;
mod direct;
mod discover;
mod energy;
mod error;
mod folders;
pub mod fork;
mod id;
mod info;
mod kernel;
mod kernel_cache;
mod library;
mod located;
mod memory;
mod module;
mod name;
pub mod pending;
pub mod pointer;
mod quiet;
mod rows;
mod streams;

pub use address::{Access, DevicePtr, DeviceSlice, FRAME_BYTES};
pub use backend::host::{FencedMemory, HostOptions};
pub use buffer::Buffer;
pub use cancel::Cancel;
pub use device::Device;
pub use direct::{DirectFile, DirectStorage};
pub use discover::{choose, choose_all, discover, open};
pub use energy::EnergyMeter;
pub use error::{Error, ErrorKind, Result};
pub use id::{BackendKind, DeviceChoice, DeviceId};
pub use info::{BackendReport, Capabilities, Capability, DeviceInfo, LibraryReport, MemoryInfo};
pub use kernel::{HostKernel, HostLaunch, KernelArg, ModuleSource};
pub use kernel_cache::cache_folder;
pub use memory::{AddressRange, Allocation, Frame, HostRegistration, PinnedBuffer, PinnedPool, PoolStats, Slot};
pub use module::Module;
pub use pending::{Pending, Promise};
pub use quiet::{with_short_turns, without_signals};
pub use rows::Rows;
pub use streams::{Event, Gate, Stream};
