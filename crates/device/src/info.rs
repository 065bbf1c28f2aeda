//! What a device is and can do, as data: code asks for a capability, never for a backend.

use crate::DeviceId;
use serde::Serialize;

/// A capability: there, or not there for a stated reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Capability {
    /// The device can do it.
    Yes(bool),
    /// It cannot, and why, as a sentence.
    No {
        /// The reason, as a sentence without its full stop.
        missing: String,
    },
}

impl Capability {
    /// The device can do it.
    pub const YES: Self = Self::Yes(true);

    /// The device cannot do it, for this reason.
    pub fn no(reason: impl Into<String>) -> Self {
        Self::No { missing: reason.into() }
    }

    /// `YES` if `condition`, else the reason.
    pub fn when(condition: bool, reason: &str) -> Self {
        if condition { Self::YES } else { Self::no(reason) }
    }

    /// Whether the device can do it.
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes(true))
    }

    /// Why the device cannot do it.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Yes(_) => None,
            Self::No { missing } => Some(missing),
        }
    }
}

/// What a device can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Address ranges into which 2 MiB frames are mapped and unmapped.
    pub virtual_memory: Capability,
    /// Frames travel between processes as file descriptors.
    pub export_fd: Capability,
    /// Read-only registration of a shared file mapping, so that copies come straight out of the
    /// page cache.
    pub host_register_read_only: Capability,
    /// Kernels read registered host memory at the addresses at which programs have it.
    pub host_pointers: Capability,
    /// Copies from at least one other device of the same backend that do not pass through host
    /// memory ([`crate::Stream::copy_from_peer`]).
    pub peer_access: Capability,
    /// Storage transfers straight into device memory, by a driver that reports a real direct path.
    pub direct_storage: Capability,
    /// GPU kernels are compiled and run on the device.
    pub kernels: Capability,
    /// Streams run beside each other and beside the CPU.
    pub concurrent_streams: Capability,
    /// The CPU uses the device's memory at the addresses that the device has it at.
    pub host_addressable: Capability,
    /// Streams of a program's own can be worked on ([`crate::Device::adopt_stream`]).
    pub native_streams: Capability,
    /// The energy that the device used, or at least its present power, can be read.
    pub energy: Capability,
}

impl Capabilities {
    /// Each capability with the name used in reports, in reading order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Capability)> {
        [
            ("virtual_memory", &self.virtual_memory),
            ("export_fd", &self.export_fd),
            ("host_register_read_only", &self.host_register_read_only),
            ("host_pointers", &self.host_pointers),
            ("peer_access", &self.peer_access),
            ("direct_storage", &self.direct_storage),
            ("kernels", &self.kernels),
            ("concurrent_streams", &self.concurrent_streams),
            ("host_addressable", &self.host_addressable),
            ("native_streams", &self.native_streams),
            ("energy", &self.energy),
        ]
        .into_iter()
    }
}

/// A device as found: identity, limits and capabilities. Nothing in it changes while it is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The name under which it is opened.
    pub id: DeviceId,
    /// The vendor's name for the model.
    pub name: String,
    /// Identifies the physical device across runs: UUID, PCI address, or a stable description.
    pub identity: String,
    /// Driver and version, as the vendor writes it.
    pub driver: String,
    /// Instruction set that kernels are compiled for, such as `sm_90`; empty where there is none.
    pub architecture: String,
    /// Memory of the device, in bytes.
    pub memory_bytes: u64,
    /// Addresses that are passed to kernels must be multiples of this many bytes.
    pub kernel_buffer_alignment: u64,
    /// Whether `auto` may choose the device: a processor behind OpenCL is used only by name.
    pub is_accelerator: bool,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// Memory of a device at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryInfo {
    /// Not allocated by anybody.
    pub free: u64,
    /// Present.
    pub total: u64,
}

/// How a backend was looked for and what came of it; `bifolio devices` prints it.
#[derive(Debug, Clone, Serialize)]
pub struct BackendReport {
    /// The backend's name.
    pub backend: &'static str,
    /// Each library that it needs.
    pub libraries: Vec<LibraryReport>,
    /// Devices that can be opened.
    pub devices: Vec<DeviceInfo>,
    /// Why there are none, or why one of them cannot be used, each a sentence.
    pub problems: Vec<String>,
}

/// Where a library was looked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LibraryReport {
    /// What it is, such as `CUDA driver`.
    pub name: &'static str,
    /// The file that was loaded.
    pub path: Option<String>,
    /// Its version, where it tells one.
    pub version: Option<String>,
    /// Why it was not loaded, with the places searched, as a sentence.
    pub problem: Option<String>,
}
