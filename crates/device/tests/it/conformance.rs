//! The conformance suite on every device that this machine has.
//!
//! `host` is always there. Of OpenCL, processors (PoCL) are used as well as GPUs, so that CI runs
//! the backend. What is absent is printed with the reason that `bifolio devices` gives.

use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, ErrorKind, HostOptions, conformance, discover};
use bifolio_testing::{require, seed, skip};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
fn a_lost_device_says_so_to_everybody_and_its_peers_work() {
    let faults = Arc::new(Faults::default());
    let plain = Device::host(&HostOptions { memory_bytes: Some(64 << 20), ..HostOptions::default() });
    let decorated = |faults| Device::from_backend(FaultBackend::new(plain.backend(), faults));
    let (peer, lost) = (decorated(&Faults::default().into()), decorated(&faults));
    let (mine, theirs) = (peer.alloc(16).unwrap(), lost.alloc(16).unwrap());
    let [working, failing] = [&peer, &lost].map(|device| device.create_stream().unwrap());
    failing.upload(theirs.slice(), &[7; 16]).unwrap();
    faults.life.store(1, Ordering::SeqCst);
    failing.synchronize().unwrap();
    assert!(lost.loss().is_some_and(|error| error.to_string().contains("lost")) && peer.loss().is_none());
    let is_lost = |outcome: bifolio_device::Result<()>| outcome.unwrap_err().kind() == ErrorKind::Lost;
    assert!(is_lost(failing.upload(theirs.slice(), &[8; 16])) && is_lost(failing.synchronize()));
    assert!(is_lost(lost.alloc(16).map(drop)) && is_lost(lost.create_stream().map(drop)));
    // SAFETY: both stay, and nothing is copied.
    assert!(is_lost(unsafe { working.copy_from_peer(mine.slice(), &lost, theirs.slice()) }));
    working.upload(mine.slice(), &[9; 16]).unwrap();
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
