//! What is particular to the embedded device; the rest is in the conformance suite.

use super::*;
use crate::{Device, DeviceChoice, HostLaunch};
use std::io::Read;
use std::sync::mpsc::channel;
use std::time::Instant;

#[test]
fn memory_runs_out_as_on_a_gpu_and_comes_back() {
    let device = Device::host(&HostOptions { memory_bytes: Some(8 << 20), ..HostOptions::default() });
    let first = device.alloc(6 << 20).unwrap();
    let error = device.alloc(4 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("2097152 of 8388608 bytes free"), "{error}");
    drop(first);
    device.alloc(8 << 20).unwrap();
}

#[test]
fn a_frame_reaches_another_process_through_its_descriptor() {
    let device = Device::host(&HostOptions::default());
    let (range, frame) = (device.reserve(FRAME_BYTES).unwrap(), device.create_frame().unwrap());
    range.map(0, &frame, Access::ReadWrite).unwrap();
    let content: Vec<u8> = (0..FRAME_BYTES).map(|i| (i * 7 % 251) as u8).collect();
    // SAFETY: the range is one frame, mapped above.
    let memory = unsafe { range.slice() };
    device.create_stream().unwrap().upload(memory, &content).unwrap();
    let mut child = std::process::Command::new("cat")
        .stdin(frame.export().unwrap())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut seen).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(seen == content, "another process read something else");
}

#[test]
fn memory_that_a_peer_could_shrink_is_not_taken_as_a_frame() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(FRAME_BYTES).unwrap();
    let error = Device::host(&HostOptions::default()).import_frame(file.into()).unwrap_err();
    assert!(error.to_string().contains("not an exported frame"), "{error}");
}

#[test]
fn devices_have_memories_of_their_own() {
    let open = |index| crate::open(DeviceChoice::Exactly(DeviceId::new(BackendKind::Host, index)));
    let (zero, one) = (open(0).unwrap(), open(1).unwrap());
    let held = zero.alloc(4096).unwrap();
    assert_ne!(held.ptr(), one.alloc(4096).unwrap().ptr());
    assert_eq!(open(16).unwrap_err().kind(), ErrorKind::Missing);
}

/// Symptom: waiting for a kernel that panicked never ended. Cause: the panic ended the stream's
/// thread, and the events behind the kernel stayed unset.
#[test]
fn a_kernel_that_panics_is_an_error_for_whoever_waits() {
    fn panics(_: &HostLaunch<'_>) {
        panic!("planted");
    }
    let source = ModuleSource { name: "m", source: "", headers: &[], kernels: &[("panics", panics)] };
    let (report, outcome) = channel();
    std::thread::spawn(move || {
        let device = Device::host(&HostOptions::default());
        let (module, stream) = (device.load_module(&source).unwrap(), device.create_stream().unwrap());
        // SAFETY: the kernel takes no arguments.
        unsafe { stream.launch(&module, "panics", 1, 1, &[]) }.unwrap();
        report.send(stream.synchronize())
    });
    let outcome = outcome.recv_timeout(Duration::from_secs(10)).expect("the waiter hangs");
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Execution);
}

#[test]
fn shaping_spaces_copies_out() {
    let options = HostOptions { bandwidth: Some(1e8), ..HostOptions::default() };
    let device = Device::host(&options);
    let (memory, started) = (device.alloc(4 << 20).unwrap(), Instant::now());
    device.create_stream().unwrap().upload(memory.slice(), &vec![1; 4 << 20]).unwrap();
    // A lower bound only: the link cannot be faster than its rate.
    assert!(started.elapsed() >= Duration::from_millis(41));
}
