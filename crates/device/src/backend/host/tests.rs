//! What is particular to the embedded device; the rest is in the conformance suite.

use super::*;
use crate::{Device, DeviceChoice, HostLaunch};
use bifolio_testing::skip;
use std::io::Read;
use std::os::fd::FromRawFd;
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

/// Symptom: the end of the process by SIGBUS. Cause: memory that somebody makes shorter while it is mapped, or that
/// there is none of when it is touched.
#[test]
fn what_is_no_frame_is_refused_and_the_sentence_says_why() {
    let device = Device::host(&HostOptions::default());
    let refused = |fd: OwnedFd, why: &str| {
        let error = device.import_frame_of(fd, 2 * FRAME_BYTES).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
        let text = error.to_string();
        assert!(text.contains("not an exported frame of 4194304 bytes") && text.contains(why), "{text}");
    };
    let file = tempfile::tempfile().unwrap();
    file.set_len(2 * FRAME_BYTES).unwrap();
    refused(file.into(), "not a memory file");
    let (reader, _writer) = std::io::pipe().unwrap();
    refused(reader.into(), "not a memory file");
    // Some of the seals are not enough, as the others let somebody change the length.
    let all = [libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_SEAL];
    for missing in all {
        let seals = all.iter().filter(|seal| **seal != missing).sum();
        refused(memfd(2 * FRAME_BYTES, 0, seals).unwrap(), "not sealed");
    }
    let sealed = all.iter().sum();
    for len in [0, FRAME_BYTES, 2 * FRAME_BYTES - 1, 3 * FRAME_BYTES] {
        refused(memfd(len, 0, sealed).unwrap(), &format!("it has {len} bytes"));
    }
    let good = memfd(2 * FRAME_BYTES, 0, sealed).unwrap();
    let reading = std::fs::File::open(format!("/proc/self/fd/{}", good.as_raw_fd())).unwrap();
    refused(reading.into(), "not open for reading and writing");
    match memfd(2 * FRAME_BYTES, libc::MFD_HUGETLB, sealed) {
        Ok(huge) => refused(huge, "ordinary pages"),
        Err(error) => skip(format_args!("this kernel makes no memory file of huge pages: {error}")),
    }
    device.import_frame_of(good, 2 * FRAME_BYTES).unwrap();
}

/// A memory file of a stranger's.
fn memfd(len: u64, flags: libc::c_uint, seals: libc::c_int) -> std::io::Result<OwnedFd> {
    // SAFETY: the name is a C string, and the call touches no memory of ours.
    let raw = unsafe { libc::memfd_create(c"stranger".as_ptr(), flags | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: plain calls on an open descriptor.
    let made = unsafe { libc::ftruncate(raw, len as i64) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, seals) == 0 };
    if made { Ok(fd) } else { Err(std::io::Error::last_os_error()) }
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
