//! The devices of this machine.

use bifolio_device::{BackendKind, Device, DeviceChoice, discover, open};
use bifolio_testing::{require, skip};

/// Those of some backends. An OpenCL device is a tool that set-up installs (PoCL); a GPU is not.
pub(crate) fn devices<const N: usize>(backends: [BackendKind; N]) -> Vec<Device> {
    let reports = discover();
    let mut opened = vec![];
    for backend in backends {
        let report = reports.iter().find(|report| report.backend == backend.name()).expect("every backend reports");
        for info in &report.devices {
            opened.push(open(DeviceChoice::Exactly(info.id)).unwrap_or_else(|error| panic!("{}: {error}", info.id)));
        }
        if report.devices.is_empty() {
            let libraries = report.libraries.iter().filter_map(|library| library.problem.as_ref());
            let why: Vec<_> = libraries.chain(&report.problems).map(String::as_str).collect();
            let reason = format!("there is no {} device: {}", backend.name(), why.join("; "));
            if backend == BackendKind::OpenCl { require(reason) } else { skip(reason) }
        }
    }
    opened
}
