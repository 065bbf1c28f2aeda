//! Routers of a process, files behind descriptors, and children that were forked too late.

use crate::support::{content_of, file_of, folder, host, poisoned, ran_in_its_own_process, random, small_options};
use bifolio_device::pointer::locate;
use bifolio_device::{DeviceChoice, DeviceId, DeviceSlice, FencedMemory};
use bifolio_io::{Buffer, ErrorKind, OpenFile, ReadOptions, Router, WriteOptions, process};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

#[test]
fn memory_behind_a_fence_is_read_into_by_the_router_of_its_device() {
    let folder = folder();
    let content = random().bytes(3_000_001);
    let path = file_of(folder.path(), "data", &content);
    let memory = FencedMemory::alloc(content.len() as u64).unwrap();
    let found = locate(memory.address()).unwrap();
    let router = process::router_of(&found).unwrap();
    assert!(Arc::ptr_eq(&router, &process::router(DeviceChoice::Exactly(DeviceId::HOST)).unwrap()));
    let file = router.open(&path).unwrap();
    // SAFETY: the fenced memory outlives the read.
    let slice = unsafe { DeviceSlice::from_raw(found.address, found.len) };
    router.read(&file, 0, None, slice, &ReadOptions::default()).unwrap();
    assert!(memory.to_vec() == content);
}

#[test]
fn a_file_behind_a_descriptor_is_the_same_whatever_its_name_is_by_now() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(100_000);
    let path = file_of(folder.path(), "data", &content);
    let theirs = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"another").unwrap();
    let router = Router::new(&host(), small_options());
    let file = OpenFile::of_descriptor(theirs.as_fd()).unwrap();
    let memory = poisoned(router.device(), 100_000);
    router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap();
    assert!(content_of(&memory) == content);
    router.write(&file, 100_000, memory.slice(), &WriteOptions::default()).unwrap();
    assert_eq!(theirs.metadata().unwrap().len(), 200_000);
    // Reading goes on from where their descriptor was, and one for reading does not write.
    let reading = File::open(&path).unwrap();
    let file = OpenFile::of_descriptor(reading.as_fd()).unwrap();
    let error = router.write(&file, 0, memory.slice(), &WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert!(error.to_string().contains("data"), "{error}");
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(OpenFile::of_descriptor(reader.as_fd()).unwrap_err().kind(), ErrorKind::NotAFile);
}

/// Symptom: a child of `fork` hung. Cause: it waited for threads that only its parent has.
#[test]
fn a_child_is_refused_with_a_sentence_and_comes_to_its_end() {
    if ran_in_its_own_process("process::a_child_is_refused_with_a_sentence_and_comes_to_its_end") {
        return;
    }
    let folder = folder();
    let path = file_of(folder.path(), "data", &random().bytes(3_000_000));
    let router = Arc::new(Router::new(&host(), small_options()));
    let file = router.open(&path).unwrap();
    let memory = Arc::new(poisoned(router.device(), 3_000_000));
    process::router(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap();
    let buffer = Buffer::new(&memory);
    let (pending, late) = (
        router.submit_read(&file, 0, None, &buffer, &ReadOptions::default()),
        router.submit_read(&file, 0, None, &buffer, &ReadOptions::default()),
    );
    let refused = |outcome: Result<(), bifolio_io::Error>| {
        outcome.is_err_and(|error| error.kind() == ErrorKind::Forked && error.to_string().contains("forked"))
    };
    let in_child = || {
        let options = ReadOptions::default();
        refused(router.read(&file, 0, None, memory.slice(), &options).map(|_| ()))
            && refused(router.write(&file, 0, memory.slice(), &WriteOptions::default()).map(|_| ()))
            && refused(router.submit_read(&file, 0, None, &buffer, &options).wait().map(|_| ()))
            && refused(process::router(DeviceChoice::Exactly(DeviceId::HOST)).map(|_| ()))
            && late.is_done()
            && refused(late.wait().map(|_| ()))
    };
    // SAFETY: the child touches what only it has a copy of, and ends without running the test further.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a child that hangs is ended by the alarm, which is a failure.
        unsafe { libc::alarm(20) };
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(in_child)).unwrap_or(false);
        drop(router);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child hung or crashed");
    assert_eq!(libc::WEXITSTATUS(status), 0, "a request in the child was not refused");
    assert_eq!(pending.wait().unwrap().bytes, 3_000_000);
}
