use super::chunk::CHUNK_BYTES;
use super::queue::StreamQueue;
use super::queues::{QUEUES_MAX, lock, queue_of};
use super::staging::supplies_of;
use super::traffic::GATES_MAX;
use crate::abi::{CU_FILE_HANDLE_TYPE_OPAQUE_FD, CUfileDescr_t, CUfileHandle_t, FileOrHandle};
use crate::{
    cuFileHandleDeregister, cuFileHandleRegister, cuFileReadAsync, cuFileStreamDeregister, cuFileStreamRegister,
    cuFileWriteAsync,
};
use bifolio_device::{DeviceChoice, DeviceId, FencedMemory};
use bifolio_io::process;
use bifolio_testing::{noise, until};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{null, null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// More than two chunks, and no multiple of anything.
const LEN: usize = 2 * CHUNK_BYTES + 12_345;

fn bytes(len: usize) -> Vec<u8> {
    noise(len, 40)
}

/// A file on a disk, registered, with its descriptor.
fn registered(content: &[u8]) -> (tempfile::TempDir, File, CUfileHandle_t) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let handle = FileOrHandle { handle: without_provenance_mut(file.as_raw_fd() as usize) };
    let mut description = CUfileDescr_t { kind: CU_FILE_HANDLE_TYPE_OPAQUE_FD, handle, fs_ops: null() };
    let mut handle = null_mut();
    // SAFETY: both places are valid.
    let status = unsafe { cuFileHandleRegister(&raw mut handle, &raw mut description) };
    assert_eq!(status.err, 0);
    (folder, file, handle)
}

fn base(memory: &FencedMemory) -> *mut c_void {
    with_exposed_provenance_mut(memory.address() as usize)
}

/// The queue of a stream, which is not given up for the room while somebody has a share of it.
fn queue_of_stream(stream: usize) -> Arc<Mutex<StreamQueue>> {
    let router = process::router(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    queue_of((DeviceId::HOST, Arc::as_ptr(&router).addr(), stream as u64, None), router).unwrap()
}

/// Parameters and result of a request, in one place that does not move.
struct Parameters {
    size: usize,
    offset: i64,
    place: i64,
    done: isize,
}

const UNTOUCHED: isize = isize::MIN;

impl Parameters {
    fn new(size: usize, offset: i64, place: i64) -> *mut Self {
        Box::into_raw(Box::new(Self { size, offset, place, done: UNTOUCHED }))
    }
}

fn read(handle: CUfileHandle_t, memory: &FencedMemory, of: *mut Parameters, stream: usize) -> i32 {
    let stream = without_provenance_mut(stream);
    // SAFETY: the parameters are kept until the test ends.
    unsafe {
        let (size, offset, place) = (&raw mut (*of).size, &raw mut (*of).offset, &raw mut (*of).place);
        cuFileReadAsync(handle, base(memory), size, offset, place, &raw mut (*of).done, stream).err
    }
}

fn write(handle: CUfileHandle_t, memory: &FencedMemory, of: *mut Parameters, stream: usize) -> i32 {
    let stream = without_provenance_mut(stream);
    // SAFETY: as above.
    unsafe {
        let (size, offset, place) = (&raw mut (*of).size, &raw mut (*of).offset, &raw mut (*of).place);
        cuFileWriteAsync(handle, base(memory), size, offset, place, &raw mut (*of).done, stream).err
    }
}

/// The result after everything that is on the stream.
fn result(of: *mut Parameters, stream: usize) -> isize {
    let queue = queue_of_stream(stream);
    lock(&queue).stream.synchronize().unwrap();
    // SAFETY: the stream is past the request.
    unsafe { (*of).done }
}

#[test]
fn parameters_are_read_when_the_stream_is_there() {
    let content = bytes(LEN);
    let (_folder, _file, handle) = registered(&content);
    let memory = FencedMemory::alloc(LEN as u64 + 1000).unwrap();
    let stream = 0x51;
    let _kept = queue_of_stream(stream);
    let first = Parameters::new(0, 0, 0);
    assert_eq!(read(handle, &memory, first, stream), 0);
    assert_eq!(result(first, stream), 0);
    let gate = lock(&queue_of_stream(stream)).stream.gate().unwrap();
    let late = Parameters::new(LEN, 0, 0);
    assert_eq!(read(handle, &memory, late, stream), 0);
    // SAFETY: nobody reads them before the gate is open.
    unsafe {
        assert_eq!((*late).done, UNTOUCHED);
        ((*late).size, (*late).offset, (*late).place) = (LEN - 7_000_000, 345, 77);
    }
    gate.open();
    assert_eq!(result(late, stream), (LEN - 7_000_000) as isize);
    let got = memory.to_vec();
    assert!(got[77..77 + LEN - 7_000_000] == content[345..345 + LEN - 7_000_000]);
    assert!(got[..77].iter().chain(&got[77 + LEN - 7_000_000..]).all(|byte| *byte == 0), "bytes around were written");
    assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream)).err, 0);
    cuFileHandleDeregister(handle);
}

#[test]
fn fixed_parameters_are_those_of_the_submission() {
    let content = bytes(100_000);
    let (_folder, _file, handle) = registered(&content);
    let memory = FencedMemory::alloc(100_000).unwrap();
    let stream = 0x52;
    let _kept = queue_of_stream(stream);
    assert_eq!(cuFileStreamRegister(without_provenance_mut(stream), 7).err, 0);
    let first = Parameters::new(1, 0, 0);
    assert_eq!(read(handle, &memory, first, stream), 0);
    assert_eq!(result(first, stream), 1);
    let gate = lock(&queue_of_stream(stream)).stream.gate().unwrap();
    let fixed = Parameters::new(5000, 20_000, 10);
    assert_eq!(read(handle, &memory, fixed, stream), 0);
    // SAFETY: final parameters are not read again.
    unsafe { ((*fixed).size, (*fixed).offset, (*fixed).place) = (1, 2, 3) };
    gate.open();
    assert_eq!(result(fixed, stream), 5000);
    assert!(memory.to_vec()[10..5010] == content[20_000..25_000]);
    assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream)).err, 0);
    cuFileHandleDeregister(handle);
}

#[test]
fn a_read_sees_what_a_write_before_it_on_the_stream_has_written() {
    let (folder, _file, handle) = registered(b"");
    let content = bytes(LEN);
    let (source, copy) = (FencedMemory::alloc(LEN as u64).unwrap(), FencedMemory::alloc(LEN as u64 + 9).unwrap());
    let (_source_folder, _source_file, source_handle) = registered(&content);
    let stream = 0x53;
    let _kept = queue_of_stream(stream);
    let (bring, out, back) =
        (Parameters::new(LEN, 0, 0), Parameters::new(LEN - 3, 5, 3), Parameters::new(LEN + 9, 0, 0));
    assert_eq!(read(source_handle, &source, bring, stream), 0);
    assert_eq!(write(handle, &source, out, stream), 0);
    assert_eq!(read(handle, &copy, back, stream), 0);
    assert_eq!(result(back, stream), LEN as isize + 2, "the end of the file cuts the read short");
    assert_eq!((result(bring, stream), result(out, stream)), (LEN as isize, LEN as isize - 3));
    let expected = [&[0; 5], &content[3..]].concat();
    assert!(copy.to_vec()[..LEN + 2] == expected);
    assert!(std::fs::read(folder.path().join("data")).unwrap() == expected);
    assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream)).err, 0);
    cuFileHandleDeregister(handle);
    cuFileHandleDeregister(source_handle);
}

#[test]
fn wrong_parameters_move_nothing_and_the_stream_goes_on() {
    let (_folder, _file, handle) = registered(&bytes(50_000));
    let memory = FencedMemory::alloc(50_000).unwrap();
    let stream = 0x54;
    let _kept = queue_of_stream(stream);
    let beyond = Parameters::new(50_001, 0, 0);
    assert_eq!(read(handle, &memory, beyond, stream), 5014);
    let first = Parameters::new(0, 0, 0);
    assert_eq!(read(handle, &memory, first, stream), 0);
    assert_eq!(result(first, stream), 0);
    let gate = lock(&queue_of_stream(stream)).stream.gate().unwrap();
    let wrong = [(1001, 0, 0, -5022), (10, -1, 0, -5022), (10, 0, -1, -5022), (1000, 0, 49_001, -5014)];
    let requests = wrong.map(|_| Parameters::new(1000, 0, 0));
    for (of, (size, offset, place, _)) in requests.into_iter().zip(wrong) {
        assert_eq!(read(handle, &memory, of, stream), 0);
        // SAFETY: nobody reads them before the gate is open.
        unsafe { ((*of).size, (*of).offset, (*of).place) = (size, offset, place) };
    }
    let right = Parameters::new(10, 50_000 - 5, 0);
    assert_eq!(read(handle, &memory, right, stream), 0);
    gate.open();
    assert_eq!(result(right, stream), 5);
    for (of, (.., expected)) in requests.into_iter().zip(wrong) {
        assert_eq!(result(of, stream), expected);
    }
    assert!(memory.to_vec()[5..].iter().all(|byte| *byte == 0));
    assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream)).err, 0);
    cuFileHandleDeregister(handle);
}

/// Handles are of another file by the time that the stream is there, and many streams are used at once.
#[test]
fn requests_keep_what_they_need_on_more_streams_than_are_kept() {
    let content = bytes(300_000);
    let memory: Vec<_> = (0..3 * QUEUES_MAX).map(|_| FencedMemory::alloc(300_000).unwrap()).collect();
    for (number, memory) in memory.iter().enumerate() {
        let (_folder, _file, handle) = registered(&content);
        let of = Parameters::new(300_000, 0, 0);
        assert_eq!(read(handle, memory, of, 0x1000 + number), 0);
        cuFileHandleDeregister(handle);
        // SAFETY: the place is written once, by another thread.
        until("the request is over", || unsafe { (&raw const (*of).done).read_volatile() } != UNTOUCHED);
        // SAFETY: as above.
        assert_eq!(unsafe { (*of).done }, 300_000);
    }
    for (number, memory) in memory.iter().enumerate() {
        assert_eq!(cuFileStreamDeregister(without_provenance_mut(0x1000 + number)).err, 0);
        assert!(memory.to_vec() == content);
    }
}

#[test]
fn memory_of_the_cpu_has_its_turn_on_a_stream_too() {
    let content = bytes(100_000);
    let (_folder, _file, handle) = registered(&content);
    let mut memory = vec![0_u8; 100_000];
    let of = Parameters::new(100_000, 0, 0);
    let stream = without_provenance_mut(0x55);
    // SAFETY: memory and parameters are kept until the stream is given up.
    let status = unsafe {
        let (size, offset, place) = (&raw mut (*of).size, &raw mut (*of).offset, &raw mut (*of).place);
        cuFileReadAsync(handle, memory.as_mut_ptr().cast(), size, offset, place, &raw mut (*of).done, stream)
    };
    assert_eq!(status.err, 0);
    assert_eq!(cuFileStreamDeregister(stream).err, 0);
    // SAFETY: the request is over.
    assert_eq!(unsafe { (*of).done }, 100_000);
    assert!(memory == content);
    cuFileHandleDeregister(handle);
}

/// Closes a gate of ours on a stream, as a program does that holds the stream up.
fn held_up(handle: CUfileHandle_t, memory: &FencedMemory, stream: usize) -> bifolio_device::Gate {
    let first = Parameters::new(0, 0, 0);
    assert_eq!(read(handle, memory, first, stream), 0);
    assert_eq!(result(first, stream), 0);
    lock(&queue_of_stream(stream)).stream.gate().unwrap()
}

/// Symptom: a driver blocked the caller, and with it others, at the gates of one stream. Cause: the gates at
/// the ends of requests were not counted.
#[test]
fn a_stream_has_no_more_closed_gates_than_drivers_take_and_others_go_on() {
    const REQUESTS: usize = GATES_MAX + 5;
    let content = bytes(LEN);
    let (_folder, _file, handle) = registered(&content);
    let (held, free) = (0x56, 0x57);
    let _kept = [held, free].map(queue_of_stream);
    let (memory, beside) = (FencedMemory::alloc(100_000).unwrap(), FencedMemory::alloc(LEN as u64).unwrap());
    let gate = held_up(handle, &memory, held);
    let traffic = Arc::clone(&lock(&queue_of_stream(held)).traffic);
    let parameters: Vec<_> =
        (0..REQUESTS).map(|number| Parameters::new(10, number as i64, number as i64 * 10)).collect();
    let addresses: Vec<_> = parameters.iter().map(|of| of.expose_provenance()).collect();
    let submitted = AtomicUsize::new(0);
    let file = handle.expose_provenance();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for of in addresses {
                let (file, of) = (with_exposed_provenance_mut(file), with_exposed_provenance_mut(of));
                assert_eq!(read(file, &memory, of, held), 0);
                submitted.fetch_add(1, Ordering::SeqCst);
            }
        });
        until("as many gates are closed as there is room for", || traffic.gates() == GATES_MAX);
        // Another stream has all that it needs, for a request of several chunks, too.
        let of = Parameters::new(LEN, 0, 0);
        assert_eq!(read(handle, &beside, of, free), 0);
        assert_eq!(result(of, free), LEN as isize);
        assert!(submitted.load(Ordering::SeqCst) <= GATES_MAX && traffic.gates() == GATES_MAX);
        gate.open();
    });
    assert!(beside.to_vec() == content);
    for (number, of) in parameters.into_iter().enumerate() {
        assert_eq!(result(of, held), 10);
        assert!(memory.to_vec()[number * 10..][..10] == content[number..number + 10]);
    }
    // A gate is counted a moment longer than it is closed.
    until("no gate is counted", || traffic.gates() == 0);
    assert_eq!(cuFileStreamDeregister(without_provenance_mut(held)).err, 0);
    assert_eq!(cuFileStreamDeregister(without_provenance_mut(free)).err, 0);
    cuFileHandleDeregister(handle);
}

/// Symptom: a program that submitted some requests of several chunks before it let their streams go on hung.
/// Cause: slots were shared by all streams, and submitting waited for them.
#[test]
fn long_requests_on_streams_that_are_held_up_are_submitted_at_once() {
    const STREAMS: usize = 8;
    let content = bytes(LEN);
    let (folder, _file, handle) = registered(&content);
    let memory: Vec<_> = (0..STREAMS).map(|_| FencedMemory::alloc(LEN as u64).unwrap()).collect();
    let stream = |number: usize| 0x60 + number;
    let _kept: Vec<_> = (0..STREAMS).map(|number| queue_of_stream(stream(number))).collect();
    let gates: Vec<_> =
        memory.iter().enumerate().map(|(number, memory)| held_up(handle, memory, stream(number))).collect();
    let mut parameters = vec![];
    for (number, memory) in memory.iter().enumerate() {
        for _ in 0..3 {
            parameters.push((number, Parameters::new(LEN, 0, 0)));
            assert_eq!(read(handle, memory, parameters[parameters.len() - 1].1, stream(number)), 0);
        }
        parameters.push((number, Parameters::new(LEN, (LEN * number) as i64, 0)));
        assert_eq!(write(handle, memory, parameters[parameters.len() - 1].1, stream(number)), 0);
    }
    gates.into_iter().for_each(bifolio_device::Gate::open);
    for (number, of) in parameters {
        assert_eq!(result(of, stream(number)), LEN as isize);
    }
    let written = std::fs::read(folder.path().join("data")).unwrap();
    assert!(written.chunks(LEN).all(|part| part == content) && written.len() == STREAMS * LEN);
    assert!(memory.iter().all(|memory| memory.to_vec() == content));
    for number in 0..STREAMS {
        assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream(number))).err, 0);
    }
    cuFileHandleDeregister(handle);
}

/// Symptom: a program freed its memory after deregistering a stream, and a fill wrote there. Cause: only the
/// thread of the queue was waited for, not what it had handed to others.
#[test]
fn a_queue_is_not_given_up_before_its_requests_are_over() {
    let router = process::router(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    let queue = StreamQueue::open(DeviceId::HOST, 0x74, router).unwrap();
    let (request, is_over) = (queue.traffic.begin(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As a fill does that is still at it.
            std::thread::sleep(Duration::from_millis(20));
            is_over.store(true, Ordering::SeqCst);
            drop(request);
        });
        drop(queue);
        assert!(is_over.load(Ordering::SeqCst));
    });
}

#[test]
fn deregistering_a_stream_waits_for_its_requests() {
    let content = bytes(LEN);
    let (_folder, _file, handle) = registered(&content);
    let mut host = vec![0_u8; LEN];
    let memory = FencedMemory::alloc(LEN as u64).unwrap();
    for round in 0..10 {
        let (stream, of, beside) = (0x70, Parameters::new(LEN, 0, 0), Parameters::new(LEN, 0, 0));
        host.fill(0);
        assert_eq!(read(handle, &memory, of, stream), 0);
        // SAFETY: memory and parameters are kept until the stream is given up.
        let status = unsafe {
            let (size, offset, place) = (&raw mut (*beside).size, &raw mut (*beside).offset, &raw mut (*beside).place);
            let (to, stream) = (host.as_mut_ptr().cast(), without_provenance_mut(stream));
            cuFileReadAsync(handle, to, size, offset, place, &raw mut (*beside).done, stream)
        };
        assert_eq!(status.err, 0);
        assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream)).err, 0);
        // SAFETY: the requests are over.
        assert_eq!(unsafe { ((*of).done, (*beside).done) }, (LEN as isize, LEN as isize), "round {round}");
        assert!(host == content && memory.to_vec() == content, "round {round}");
    }
    cuFileHandleDeregister(handle);
}

/// Symptom: a stream's write of 8 MiB, of which 4 found room, gave -27, where one that waits gives 4 MiB.
#[test]
fn results_are_those_of_requests_that_wait() {
    let (_folder, file, handle) = registered(&bytes(1000));
    let memory = FencedMemory::alloc(LEN as u64).unwrap();
    let stream = 0x71;
    let _kept = queue_of_stream(stream);
    let largest = i64::MAX;
    let at_once = |is_write: bool, size, offset| {
        // SAFETY: the memory outlives the call.
        let moved = unsafe {
            if is_write {
                crate::cuFileWrite(handle, base(&memory), size, offset, 0)
            } else {
                crate::cuFileRead(handle, base(&memory), size, offset, 0)
            }
        };
        // Beside a result in memory there is no errno.
        if moved == -1 { -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize) } else { moved }
    };
    let in_order = |is_write: bool, size, offset| {
        let of = Parameters::new(size, offset, 0);
        let submit = if is_write { write } else { read };
        assert_eq!(submit(handle, &memory, of, stream), 0);
        result(of, stream)
    };
    let limit = limit_of_sizes();
    let ranges = [
        (false, 100, largest - 10, 0),
        (false, 100, largest, 0),
        (false, LEN, 0, 1000),
        (false, 0, largest, 0),
        (true, 0, largest, 0),
        (true, 100, largest - 10, -5022),
        (true, LEN, limit - 5_000_000, 5_000_000),
        (true, LEN, limit, -(libc::EFBIG as isize)),
    ];
    for (is_write, size, offset, expected) in ranges {
        assert_eq!(in_order(is_write, size, offset), expected, "{size} bytes at {offset}");
        file.set_len(1000).unwrap();
        assert_eq!(at_once(is_write, size, offset), expected, "{size} bytes at {offset}, waiting");
        file.set_len(1000).unwrap();
    }
    // A failure is over with its request.
    assert_eq!((at_once(true, 10, 990), in_order(true, 10, 980)), (10, 10));
    assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream)).err, 0);
    cuFileHandleDeregister(handle);
}

/// Limits the sizes of files that this process writes; the limit, which no other test comes near.
fn limit_of_sizes() -> i64 {
    const LIMIT: u64 = 1 << 30;
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: sets a limit of this process, and ignores the signal that it would end by.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut now), 0);
        now.rlim_cur = LIMIT.min(now.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const now), 0);
        assert_ne!(libc::signal(libc::SIGXFSZ, libc::SIG_IGN), libc::SIG_ERR);
        now.rlim_cur as i64
    }
}

#[test]
fn what_queues_share_is_made_once_and_given_up_by_nobody_who_needs_it() {
    let (_folder, file, handle) = registered(b"");
    file.write_all_at(&bytes(1000), 0).unwrap();
    let memory = FencedMemory::alloc(1000).unwrap();
    let router = process::router(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    let of = [Parameters::new(1000, 0, 0), Parameters::new(1000, 0, 0)];
    let _kept = [0x72, 0x73].map(queue_of_stream);
    assert_eq!((read(handle, &memory, of[0], 0x72), read(handle, &memory, of[1], 0x73)), (0, 0));
    assert_eq!((result(of[0], 0x72), result(of[1], 0x73)), (1000, 1000));
    let supplies = supplies_of(&router);
    for stream in [0x72, 0x73] {
        let queue = queue_of_stream(stream);
        let theirs = lock(&queue).staging.as_ref().map(|staging| Arc::clone(&staging.supplies)).unwrap();
        assert!(Arc::ptr_eq(&theirs, &supplies) && supplies.slots.load(Ordering::Relaxed) >= 2);
    }
    for stream in [0x72, 0x73] {
        assert_eq!(cuFileStreamDeregister(without_provenance_mut(stream)).err, 0);
    }
    cuFileHandleDeregister(handle);
}
