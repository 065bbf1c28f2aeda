//! Which device: `host`, `host:N`, `cuda:N`, `opencl:N`, and the choice `auto`.

use serde::Serialize;
use std::fmt;

/// Which driver stands behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BackendKind {
    /// NVIDIA's driver API.
    Cuda,
    /// Any OpenCL 1.2 device.
    OpenCl,
    /// The embedded device in host memory.
    Host,
}

impl BackendKind {
    /// All backends, in the order in which `auto` prefers them.
    pub const ALL: [Self; 3] = [Self::Cuda, Self::OpenCl, Self::Host];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::OpenCl => "opencl",
            Self::Host => "host",
        }
    }
}

/// One device: a backend and an index in that backend's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The backend.
    pub backend: BackendKind,
    /// The index that the backend's driver gives the device.
    pub index: u32,
}

impl DeviceId {
    /// The embedded device.
    pub const HOST: Self = Self { backend: BackendKind::Host, index: 0 };

    /// A device of `backend`.
    pub const fn new(backend: BackendKind, index: u32) -> Self {
        Self { backend, index }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend.name(), self.index)
    }
}

impl Serialize for DeviceId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a user asked for: the best device found, or one by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first CUDA device, else the first OpenCL GPU, else `host:0`.
    #[default]
    Auto,
    /// Exactly this device; an error where it is missing.
    Exactly(DeviceId),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Exactly(id) => id.fmt(f),
        }
    }
}
