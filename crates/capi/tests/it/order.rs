//! Calls with device memory begin after what the default stream holds. A fill, or a kernel, that was enqueued before a
//! call but ran after it, made reads return with what the fill wrote, and writes store what was there before the
//! kernel, each with success: the library's own streams knew nothing of the program's.
//!
//! The default stream is held up by a gate, of the embedded device and of a GPU where there is one; the tests of the shim
//! hold up a GPU's by a kernel.

use bifolio::*;
use bifolio_device::{BackendKind, DeviceChoice, DeviceId, DevicePtr, DeviceSlice, Gate, Stream, discover, open};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One default stream serves the process, and one test at a time holds it up.
static TURN: Mutex<()> = Mutex::new(());

struct Program {
    _turn: MutexGuard<'static, ()>,
    _folder: tempfile::TempDir,
    content: Vec<u8>,
    path: std::path::PathBuf,
    context: *mut bf_context,
    file: *mut bf_file,
    memory: bf_ptr,
    default: Stream,
}

/// The embedded device, and a GPU.
fn devices() -> Vec<DeviceId> {
    let gpus = discover().into_iter().flat_map(|report| report.devices).map(|info| info.id);
    let gpu = gpus.into_iter().find(|id| id.backend == BackendKind::Cuda);
    if gpu.is_none() {
        bifolio_testing::skip("there is no CUDA device here whose default stream could be held up");
    }
    [Some(DeviceId::HOST), gpu].into_iter().flatten().collect()
}

/// What travels to the thread that calls; the library's handles are for any thread.
#[derive(Clone, Copy)]
struct Handles(*mut bf_context, *mut bf_file, bf_ptr);
// SAFETY: the library counts and locks its handles.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl Program {
    fn on(device: DeviceId, len: usize) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("data");
        let content = bifolio_testing::noise(len, 32);
        std::fs::write(&path, &content).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let device_name = std::ffi::CString::new(device.to_string()).unwrap();
        let (mut context, mut file, mut memory) = (null_mut(), null_mut(), 0);
        // SAFETY: places and texts live through the calls.
        unsafe {
            assert_eq!(bf_context_open(device_name.as_ptr(), std::ptr::null(), &raw mut context), bf_status::BF_OK);
            assert_eq!(bf_open(context, name.as_ptr(), BF_WRITE, &raw mut file), bf_status::BF_OK);
            assert_eq!(bf_alloc(context, len as u64, &raw mut memory), bf_status::BF_OK);
        }
        let default = open(DeviceChoice::Exactly(device)).unwrap().default_stream().unwrap();
        Self { _turn: turn, _folder: folder, content, path, context, file, memory, default }
    }

    fn fill(&self, value: u8) {
        // SAFETY: the program's memory, which is freed after the stream has run dry.
        unsafe { self.default.fill(DeviceSlice::from_raw(DevicePtr(self.memory), self.content.len() as u64), value) }
            .unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        self.default.synchronize().unwrap();
        let mut bytes = vec![0; self.content.len()];
        // SAFETY: as above, and nothing is enqueued any more.
        let copied = unsafe { bf_copy_to_host(self.context, bytes.as_mut_ptr().cast(), self.memory, bytes.len()) };
        assert_eq!(copied, bf_status::BF_OK);
        bytes
    }

    /// Makes a call while the stream is held up, opens the gate, and returns what the call did. A call that does not
    /// wait has a while to show it.
    fn held<T: Send>(&self, gate: Gate, call: impl FnOnce(Handles) -> T + Send) -> T {
        let (handles, done) = (Handles(self.context, self.file, self.memory), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (call, done) = (
                scope.spawn(|| {
                    let result = call(handles);
                    done.store(true, Ordering::Release);
                    result
                }),
                &done,
            );
            let until = Instant::now() + Duration::from_millis(200);
            while !done.load(Ordering::Acquire) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let was_early = done.load(Ordering::Acquire);
            gate.open();
            let result = call.join().unwrap();
            assert!(!was_early, "the call was over while the work before it was held up");
            result
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.default.synchronize();
        // SAFETY: nobody uses them any more.
        unsafe {
            bf_order_after(BF_AFTER_DEFAULT_STREAMS, null_mut());
            bf_free(self.context, self.memory);
            bf_close(self.file);
            bf_context_close(self.context);
        }
    }
}

fn cases() -> Vec<(DeviceId, usize)> {
    let sizes = [4096, 65_537, 1 << 20, 8 << 20];
    devices().into_iter().flat_map(|device| sizes.map(|len| (device, len))).collect()
}

#[test]
fn a_read_lands_after_a_fill_that_was_enqueued_before_it() {
    for (device, len) in cases() {
        let program = Program::on(device, len);
        let gate = program.default.gate().unwrap();
        program.fill(0x5a);
        // SAFETY: handles and memory live through the call.
        let read = program.held(gate, |Handles(_, file, memory)| unsafe { bf_read(file, memory, len as u64, 0) });
        assert_eq!(read, len as i64);
        assert!(program.bytes() == program.content, "{len} bytes: the fill came after the read");
    }
}

#[test]
fn a_write_takes_what_the_work_before_it_made() {
    for (device, len) in cases() {
        let program = Program::on(device, len);
        let gate = program.default.gate().unwrap();
        program.fill(0x5a);
        // SAFETY: as above.
        let written =
            program.held(gate, |Handles(_, file, memory)| unsafe { bf_write(file, memory, len as u64, 0, 0) });
        assert_eq!(written, len as i64);
        assert!(std::fs::read(&program.path).unwrap() == vec![0x5a; len], "{len} bytes: written before they were made");
    }
}

#[test]
fn batches_and_copies_wait_as_well() {
    for device in devices() {
        let len = 1 << 20;
        let program = Program::on(device, len);
        let gate = program.default.gate().unwrap();
        program.fill(0x5a);
        let extents =
            [bf_extent { offset: 0, length: 4096, place: 0 }, bf_extent { offset: 4096, length: 4096, place: 4096 }];
        // SAFETY: as above.
        let read = program.held(gate, |Handles(_, file, memory)| unsafe {
            bf_read_batch(file, extents.as_ptr(), extents.len(), memory, len as u64)
        });
        assert_eq!(read, 8192);
        let bytes = program.bytes();
        assert!(bytes[..8192] == program.content[..8192] && bytes[8192..].iter().all(|&byte| byte == 0x5a));
        let gate = program.default.gate().unwrap();
        program.fill(0x77);
        let mut host = vec![0_u8; len];
        let copied = program.held(gate, |Handles(context, _, memory)| {
            // SAFETY: as above.
            let status = unsafe { bf_copy_to_host(context, host.as_mut_ptr().cast(), memory, len) };
            (status, host)
        });
        assert!(copied == (bf_status::BF_OK, vec![0x77; len]));
        let gate = program.default.gate().unwrap();
        program.fill(0x78);
        let content = program.content.clone();
        program.held(gate, |Handles(context, _, memory)| {
            // SAFETY: as above.
            assert_eq!(unsafe { bf_copy_from_host(context, memory, content.as_ptr().cast(), len) }, bf_status::BF_OK);
        });
        assert!(program.bytes() == program.content);
    }
}

/// Submits a read that waits for no stream, and waits for the read. It is of another handle: requests of one come in the
/// order of their ranges.
fn read_in_no_order(program: &Program) {
    let (mut file, mut request, mut memory) = (null_mut(), null_mut(), 0);
    let name = std::ffi::CString::new(program.path.to_str().unwrap()).unwrap();
    // SAFETY: as above; the request is waited for.
    unsafe {
        assert_eq!(bf_open(program.context, name.as_ptr(), BF_READ, &raw mut file), bf_status::BF_OK);
        assert_eq!(bf_alloc(program.context, 4096, &raw mut memory), bf_status::BF_OK);
        assert_eq!(bf_order_after(BF_AFTER_NOTHING, null_mut()), bf_status::BF_OK);
        assert_eq!(bf_submit_read(file, memory, 4096, 0, &raw mut request), bf_status::BF_OK);
        assert_eq!(bf_order_after(BF_AFTER_DEFAULT_STREAMS, null_mut()), bf_status::BF_OK);
        assert_eq!(bf_request_wait(request), 4096);
        bf_request_free(request);
        bf_close(file);
        assert_eq!(bf_free(program.context, memory), bf_status::BF_OK);
    }
}

#[test]
fn a_submitted_request_returns_at_once_and_waits_by_itself() {
    for device in devices() {
        let len = 1 << 20;
        let program = Program::on(device, len);
        for direction in [BF_READ, BF_WRITE] {
            std::fs::write(&program.path, &program.content).unwrap();
            let gate = program.default.gate().unwrap();
            program.fill(0x5a);
            let mut request = null_mut();
            // SAFETY: as above; the request is waited for.
            unsafe {
                let submitted = if direction == BF_READ {
                    bf_submit_read(program.file, program.memory, len as u64, 0, &raw mut request)
                } else {
                    bf_submit_write(program.file, program.memory, len as u64, 0, 0, &raw mut request)
                };
                assert_eq!(submitted, bf_status::BF_OK);
                // A request that waits for nothing is over, although it came later.
                read_in_no_order(&program);
                assert_eq!(bf_request_is_done(request), 0, "it ran before what comes before it");
                gate.open();
                assert_eq!(bf_request_wait(request), len as i64);
                bf_request_free(request);
            }
            let expected = if direction == BF_READ { program.content.clone() } else { vec![0x5a; len] };
            assert!(program.bytes() == expected && std::fs::read(&program.path).unwrap() == expected);
        }
    }
}

/// Requests were carried out by sixteen threads, all of which then waited for the stream: what did not have to wait never
/// began, and what it was to open the way for never ended.
#[test]
fn requests_that_wait_for_the_stream_hold_up_no_others() {
    for device in devices() {
        let program = Program::on(device, 1 << 20);
        let gate = program.default.gate().unwrap();
        program.fill(0x5a);
        let mut waiting = [null_mut(); 40];
        // SAFETY: as above; the requests are waited for.
        unsafe {
            for request in &mut waiting {
                let submitted = bf_submit_read(program.file, program.memory, 1 << 20, 0, request);
                assert_eq!(submitted, bf_status::BF_OK);
            }
            read_in_no_order(&program);
            gate.open();
            for request in waiting {
                assert_eq!(bf_request_wait(request), 1 << 20);
                bf_request_free(request);
            }
        }
        assert!(program.bytes() == program.content);
    }
}

/// A request that nobody can wait for any longer must end, or its memory could never be freed.
#[test]
fn a_cancelled_request_does_not_wait_for_the_stream() {
    for device in devices() {
        let program = Program::on(device, 1 << 20);
        let gate = program.default.gate().unwrap();
        program.fill(0x5a);
        let mut request = null_mut();
        // SAFETY: as above.
        unsafe {
            let submitted = bf_submit_read(program.file, program.memory, 1 << 20, 0, &raw mut request);
            assert_eq!(submitted, bf_status::BF_OK);
            bf_request_cancel(request);
            assert!(bf_request_wait(request) < 0, "it was cancelled, and its stream is still held up");
            bf_request_free(request);
        }
        gate.open();
    }
}

#[test]
fn who_orders_by_itself_does_not_wait() {
    for (device, len) in cases() {
        let program = Program::on(device, len);
        let gate = program.default.gate().unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(bf_order_after(BF_AFTER_NOTHING, null_mut()), bf_status::BF_OK);
            assert_eq!(bf_read(program.file, program.memory, len as u64, 0), len as i64);
            assert_eq!(bf_order_after(77, null_mut()), bf_status::BF_ERROR_ARGUMENT);
        }
        gate.open();
        assert!(program.bytes() == program.content);
    }
}
