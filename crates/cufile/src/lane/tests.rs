use super::*;
use crate::abi::{CU_FILE_HANDLE_TYPE_OPAQUE_FD, CUfileDescr_t, CUfileHandle_t, FileOrHandle};
use crate::{
    cuFileHandleDeregister, cuFileHandleRegister, cuFileReadAsync, cuFileStreamDeregister, cuFileStreamRegister,
    cuFileWriteAsync,
};
use bifolio_device::FencedMemory;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::time::{Duration, Instant};

/// More than two chunks, and no multiple of anything.
const LEN: usize = 2 * CHUNK_BYTES + 12_345;

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
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

/// The stream behind a handle that a request has used.
fn lane_of_stream(stream: usize) -> Arc<Mutex<Lane>> {
    Arc::clone(lock(&LANES).iter().find(|(key, _)| key.2 == stream as u64).unwrap().1)
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
    let lane = lane_of_stream(stream);
    lock(&lane).stream.synchronize().unwrap();
    // SAFETY: the stream is past the request.
    unsafe { (*of).done }
}

#[test]
fn parameters_are_read_when_the_stream_is_there() {
    let content = bytes(LEN);
    let (_folder, _file, handle) = registered(&content);
    let memory = FencedMemory::alloc(LEN as u64 + 1000).unwrap();
    let stream = 0x51;
    let first = Parameters::new(0, 0, 0);
    assert_eq!(read(handle, &memory, first, stream), 0);
    assert_eq!(result(first, stream), 0);
    let gate = lock(&lane_of_stream(stream)).stream.gate().unwrap();
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
    assert_eq!(cuFileStreamRegister(without_provenance_mut(stream), 7).err, 0);
    let first = Parameters::new(1, 0, 0);
    assert_eq!(read(handle, &memory, first, stream), 0);
    assert_eq!(result(first, stream), 1);
    let gate = lock(&lane_of_stream(stream)).stream.gate().unwrap();
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
    let beyond = Parameters::new(50_001, 0, 0);
    assert_eq!(read(handle, &memory, beyond, stream), 5014);
    let first = Parameters::new(0, 0, 0);
    assert_eq!(read(handle, &memory, first, stream), 0);
    assert_eq!(result(first, stream), 0);
    let gate = lock(&lane_of_stream(stream)).stream.gate().unwrap();
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
    let memory: Vec<_> = (0..3 * LANES_MAX).map(|_| FencedMemory::alloc(300_000).unwrap()).collect();
    for (number, memory) in memory.iter().enumerate() {
        let (_folder, _file, handle) = registered(&content);
        let of = Parameters::new(300_000, 0, 0);
        assert_eq!(read(handle, memory, of, 0x1000 + number), 0);
        cuFileHandleDeregister(handle);
        let limit = Instant::now() + Duration::from_secs(60);
        // SAFETY: the place is written once, by another thread.
        while unsafe { (&raw const (*of).done).read_volatile() } == UNTOUCHED {
            assert!(Instant::now() < limit, "the request does not come to its end");
            std::thread::yield_now();
        }
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
