//! The conformance suite on every device that this machine has.
//!
//! `host` is always there. Of OpenCL, processors (PoCL) are used as well as GPUs, so that CI runs
//! the backend. What is absent is printed with the reason that `bifolio devices` gives.

use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, HostOptions, conformance, discover};
use bifolio_testing::{require, seed, skip};

/// Runs the suite on the devices of one backend; says why where there are none.
fn check_backend(kind: BackendKind) {
    let report = discover().into_iter().find(|report| report.backend == kind.name()).expect("every backend reports");
    if report.devices.is_empty() {
        let libraries = report.libraries.iter().filter_map(|library| library.problem.as_deref());
        let problems: Vec<_> = libraries.chain(report.problems.iter().map(String::as_str)).collect();
        assert!(!problems.is_empty(), "a backend without devices says why");
        let reason = format!("there is no {} device: {}", kind.name(), problems.join("; "));
        match kind {
            // `make test` installs PoCL.
            BackendKind::OpenCl => require(reason),
            _ => skip(reason),
        }
    }
    for info in &report.devices {
        conformance::check_all(&bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap(), seed());
    }
}

/// Runs the checks of two devices on the first two of a backend; says why where there are fewer.
fn check_peers(kind: BackendKind) {
    let ids: Vec<DeviceId> = match kind {
        // Only the first is listed; the others are there as well.
        BackendKind::Host => [0, 1].map(|index| DeviceId::new(kind, index)).to_vec(),
        _ => discover().iter().flat_map(|report| &report.devices).map(|info| info.id).collect(),
    };
    let ids: Vec<_> = ids.into_iter().filter(|id| id.backend == kind).collect();
    let [one, other, ..] = ids[..] else {
        skip(format_args!("copies between devices need two of {}, and there are {}", kind.name(), ids.len()));
        return;
    };
    let [one, other] = [one, other].map(|id| bifolio_device::open(DeviceChoice::Exactly(id)).unwrap());
    conformance::check_peers(&one, &other, seed());
}

#[test]
fn host_conforms() {
    check_backend(BackendKind::Host);
}

#[test]
fn shaped_host_conforms() {
    let options = HostOptions {
        index: 3,
        memory_bytes: Some(256 << 20),
        bandwidth: Some(20e9),
        latency: Some(std::time::Duration::from_micros(20)),
    };
    conformance::check_all(&Device::host(&options), seed());
}

#[test]
fn a_decorated_host_conforms_and_is_a_peer() {
    let plain = Device::host(&HostOptions { memory_bytes: Some(256 << 20), ..HostOptions::default() });
    let decorated = Device::from_backend(FaultBackend::new(plain.backend(), &Faults::default().into()));
    conformance::check_all(&decorated, seed());
    conformance::check_peers(&plain, &decorated, seed());
}

#[test]
fn opencl_conforms() {
    check_backend(BackendKind::OpenCl);
}

#[test]
fn cuda_conforms() {
    check_backend(BackendKind::Cuda);
}

#[test]
fn host_devices_copy_from_each_other() {
    check_peers(BackendKind::Host);
}

#[test]
fn opencl_devices_copy_from_each_other() {
    check_peers(BackendKind::OpenCl);
}

#[test]
fn cuda_devices_copy_from_each_other() {
    check_peers(BackendKind::Cuda);
}
