//! The conformance suite on every device that this machine has.
//!
//! `host` is always there. Of OpenCL, processors (PoCL) are used as well as GPUs, so that CI runs
//! the backend. What is absent is printed with the reason that `bifolio devices` gives.

use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{BackendKind, Device, DeviceChoice, HostOptions, conformance, discover};

/// Runs the suite on the devices of one backend; says why where there are none.
fn check_backend(kind: BackendKind) {
    let report = discover().into_iter().find(|report| report.backend == kind.name()).expect("every backend reports");
    if report.devices.is_empty() {
        let libraries = report.libraries.iter().filter_map(|library| library.problem.as_deref());
        let problems: Vec<_> = libraries.chain(report.problems.iter().map(String::as_str)).collect();
        assert!(!problems.is_empty(), "a backend without devices says why");
        assert!(!required(kind), "{} devices are required here: {}", kind.name(), problems.join("; "));
        println!("skipped: no {} device: {}", kind.name(), problems.join("; "));
    }
    for info in &report.devices {
        conformance::check_all(&bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap());
    }
}

/// `make test` installs PoCL, so there its absence is a failure and not a skip.
fn required(kind: BackendKind) -> bool {
    kind == BackendKind::OpenCl && std::env::var_os("BIFOLIO_TEST_REQUIRE_ALL").is_some()
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
    conformance::check_all(&Device::host(&options));
}

#[test]
fn a_decorated_host_conforms() {
    let plain = Device::host(&HostOptions { memory_bytes: Some(256 << 20), ..HostOptions::default() });
    let decorated = Device::from_backend(FaultBackend::new(plain.backend(), &Faults::default().into()));
    conformance::check_all(&decorated);
}

#[test]
fn opencl_conforms() {
    check_backend(BackendKind::OpenCl);
}

#[test]
fn cuda_conforms() {
    check_backend(BackendKind::Cuda);
}
