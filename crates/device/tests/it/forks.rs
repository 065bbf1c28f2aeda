//! Children of `fork` that have a device of their parent's: they are refused it, and end.

use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{BackendKind, Device, DeviceChoice, ErrorKind, HostOptions, PinnedPool, discover, open};
use bifolio_testing::{require, until};

/// Runs `child` in a child of this process, and fails unless it ends with true.
fn fork(what: &str, child: impl FnOnce() -> bool) {
    // SAFETY: the child has one thread, which uses memory (the C library's allocator is whole after a fork), takes no
    // lock that another thread may have held, and ends without running anything else.
    let id = unsafe { libc::fork() };
    if id == 0 {
        let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = -1;
    // SAFETY: asks after the child just made.
    until(what, || unsafe { libc::waitpid(id, &raw mut status, libc::WNOHANG) } == id);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{what}: status {status:#x}");
}

fn is_refused<T>(result: &bifolio_device::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Forked)
}

/// Symptom: a child that dropped a pool or a stream, or waited for an event, hung. Cause: it waited for the parent's
/// worker, which is no thread of the child's.
fn check(device: &Device) {
    let (stream, memory) = (device.create_stream().unwrap(), device.alloc(4096).unwrap());
    let pool = PinnedPool::new(device, 4096, 1);
    let mut slot = pool.acquire().unwrap();
    let gate = stream.gate().unwrap();
    // SAFETY: the slot is retired with an event that is recorded after the copy.
    unsafe { stream.copy_to_device(memory.slice(), slot.buffer().as_ptr()) }.unwrap();
    slot.retire(stream.record().unwrap());
    let behind = stream.record().unwrap();
    let mut parts = Some((stream, pool, gate, behind, memory));
    let what = format!("a child that has {}", device.id());
    fork(&what, || {
        let (stream, pool, gate, behind, memory) = parts.take().unwrap();
        let refused = [
            is_refused(&behind.wait()),
            is_refused(&behind.query()),
            is_refused(&stream.synchronize()),
            is_refused(&stream.record()),
            is_refused(&stream.download(&mut [0; 4096], memory.slice())),
            is_refused(&pool.acquire()),
        ];
        drop((gate, behind, stream, pool, memory));
        refused == [true; 6]
    });
    // What the child did with its copies is nothing to the parent's.
    let (stream, pool, gate, behind, memory) = parts.take().unwrap();
    assert!(!behind.query().unwrap(), "a child opened its parent's gate");
    gate.open();
    behind.wait().unwrap();
    stream.synchronize().unwrap();
    drop((pool.acquire().unwrap(), memory));
}

#[test]
fn a_child_of_a_process_with_a_host_device_is_refused_and_ends() {
    let device = Device::host(&HostOptions::default());
    check(&device);
    check(&Device::from_backend(FaultBackend::new(device.backend(), &Faults::default().into())));
}

#[test]
fn a_child_of_a_process_with_an_opencl_device_is_refused_and_ends() {
    let ids = discover().into_iter().flat_map(|report| report.devices).map(|info| info.id);
    let Some(id) = ids.into_iter().find(|id| id.backend == BackendKind::OpenCl) else {
        return require("there is no OpenCL device");
    };
    check(&open(DeviceChoice::Exactly(id)).unwrap());
}
