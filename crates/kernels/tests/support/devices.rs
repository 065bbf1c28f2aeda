//! The devices that tests run on, of this crate and of those above.

use bifolio_device::{BackendKind, Device, DeviceChoice, discover, open};

/// The devices of some backends. An OpenCL device is a tool that set-up installs (PoCL); a GPU is not.
pub(crate) fn devices<const N: usize>(backends: [BackendKind; N]) -> Vec<Device> {
    let mut opened = Vec::new();
    for backend in backends {
        let reports = discover();
        let report = reports.iter().find(|report| report.backend == backend.name()).expect("every backend reports");
        for info in &report.devices {
            opened.push(open(DeviceChoice::Exactly(info.id)).unwrap_or_else(|error| panic!("{}: {error}", info.id)));
        }
        if report.devices.is_empty() {
            let libraries = report.libraries.iter().filter_map(|library| library.problem.as_ref());
            let why: Vec<_> = libraries.chain(&report.problems).map(String::as_str).collect();
            let reason = format!("there is no {} device: {}", backend.name(), why.join("; "));
            match backend {
                BackendKind::OpenCl => bifolio_testing::require(reason),
                _ => bifolio_testing::skip(reason),
            }
        }
    }
    opened
}
