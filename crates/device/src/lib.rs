//! Device memory, pinned memory, address ranges, streams, events and modules behind one trait.
//!
//! ```text
//!   Device, Stream, Event, Allocation, AddressRange, Frame, PinnedPool   (safe, owned)
//!                               |
//!                       backend::Backend                                  (object-safe trait)
//!                  /            |            \
//!               cuda         opencl         host                          (one file each)
//! ```
//!
//! What a device can do is data ([`Capabilities`]); no code outside [`backend`] asks which
//! backend it is. A machine without a GPU is a normal case: [`discover`] says what is missing and
//! why, and the embedded `host` device does everything in host memory.
//!
//! Rules for callers: nothing on a hot path allocates device or pinned memory (allocation may
//! synchronise the device), so slots come from a [`PinnedPool`]; completion is by [`Event`].

pub mod backend;
mod device;
mod error;
pub mod fork;
mod id;
mod info;
mod kernel_cache;
mod library;
mod module;
pub mod pointer;
mod pool;
mod quiet;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use backend::{FencedMemory, HostOptions, KernelArg};
pub use device::{
    Access, AddressRange, Allocation, Device, DevicePtr, DeviceSlice, DirectFile, DirectStorage, EnergyMeter, Event,
    FRAME_BYTES, Frame, Gate, HostRegistration, Module, PinnedBuffer, Rows, Stream,
};
pub use error::{Error, ErrorKind, Result};
pub use id::{BackendKind, DeviceChoice, DeviceId};
pub use info::{BackendReport, Capabilities, Capability, DeviceInfo, LibraryReport, MemoryInfo};
pub use kernel_cache::cache_folder;
pub use module::{HostKernel, HostLaunch, ModuleSource};
pub use pool::{PinnedPool, PoolStats, Slot};
pub use quiet::without_signals;

use std::sync::Arc;

/// Looks for every backend and lists its devices, without creating a context on any of them.
pub fn discover() -> Vec<BackendReport> {
    BackendKind::ALL.into_iter().map(backend::report).collect()
}

/// Opens a device.
///
/// `auto` takes the first CUDA device, else the first OpenCL GPU, else `host:0`; a GPU that is
/// present but fails to open is an error, not a silent fall back to host memory.
pub fn open(choice: DeviceChoice) -> Result<Device> {
    let id = match choice {
        DeviceChoice::Exactly(id) => id,
        DeviceChoice::Auto => choose(&discover()),
    };
    Ok(Device::from_backend(open_backend(id)?))
}

/// The device that `auto` stands for, given what was found.
pub fn choose(reports: &[BackendReport]) -> DeviceId {
    let devices = reports.iter().flat_map(|report| &report.devices);
    devices.into_iter().find(|device| device.is_accelerator).map_or(DeviceId::HOST, |device| device.id)
}

fn open_backend(id: DeviceId) -> Result<Arc<dyn backend::Backend>> {
    backend::open(id).map_err(|error| error.on(id))
}
