//! What devices there are, and opening one of them. The one place that names all backends; beside it,
//! [`crate::pointer`] names those that know their addresses, and the crate's root and `Device` the embedded `host`.

use crate::backend::{Backend, cuda, host, opencl};
use crate::{BackendKind, BackendReport, Device, DeviceChoice, DeviceId, Result};
use std::sync::Arc;

/// Looks for every backend and lists its devices, without creating a context on any of them.
pub fn discover() -> Vec<BackendReport> {
    BackendKind::ALL.into_iter().map(report).collect()
}

/// The device that `auto` stands for, given what was found.
pub fn choose(reports: &[BackendReport]) -> DeviceId {
    let devices = reports.iter().flat_map(|report| &report.devices);
    devices.into_iter().find(|device| device.is_accelerator).map_or(DeviceId::HOST, |device| device.id)
}

/// The devices that whoever serves all of a machine takes, given what was found: every GPU of the kind that `auto` stands for.
pub fn choose_all(reports: &[BackendReport]) -> Vec<DeviceId> {
    let first = choose(reports);
    let devices = reports.iter().flat_map(|report| &report.devices);
    let alike = devices.filter(|device| device.is_accelerator && device.id.backend == first.backend);
    let all: Vec<_> = alike.map(|device| device.id).collect();
    if all.is_empty() { vec![first] } else { all }
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
    Ok(Device::from_backend(open_backend(id).map_err(|error| error.on(id))?))
}

fn report(kind: BackendKind) -> BackendReport {
    match kind {
        BackendKind::Cuda => cuda::report(),
        BackendKind::OpenCl => opencl::report(),
        BackendKind::Host => host::report(),
    }
}

pub(crate) fn open_backend(id: DeviceId) -> Result<Arc<dyn Backend>> {
    match id.backend {
        BackendKind::Cuda => cuda::open(id.index),
        BackendKind::OpenCl => opencl::open(id.index),
        BackendKind::Host => host::open(id.index),
    }
}
