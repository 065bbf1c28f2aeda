//! Who computes a request, and where its memory is.

use serde::Serialize;

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Threads of the host.
    Cpu,
    /// The device's kernels.
    Device,
}

/// Which ends of a request are device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Host memory to host memory.
    HostToHost,
    /// Host memory to device memory.
    HostToDevice,
    /// Device memory to host memory.
    DeviceToHost,
    /// Device memory to device memory.
    DeviceToDevice,
}

impl Route {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::HostToHost, Self::HostToDevice, Self::DeviceToHost, Self::DeviceToDevice];

    pub(crate) fn of(source_on_device: bool, destination_on_device: bool) -> Self {
        match (source_on_device, destination_on_device) {
            (false, false) => Self::HostToHost,
            (false, true) => Self::HostToDevice,
            (true, false) => Self::DeviceToHost,
            (true, true) => Self::DeviceToDevice,
        }
    }
}
