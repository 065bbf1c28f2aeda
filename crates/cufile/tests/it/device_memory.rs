//! Memory that the CPU cannot touch, as that of a GPU: the embedded device's behind a fence. Every byte that
//! arrives there came by the router.

use crate::support::{bytes, folder};
use bifolio_device::FencedMemory;
use cufile::abi::{
    CU_FILE_HANDLE_TYPE_OPAQUE_FD, CUFILE_BATCH, CUFILE_COMPLETE, CUFILE_READ, CUFILE_WRITE, CUfileDescr_t,
    CUfileHandle_t, CUfileIOEvents_t, CUfileIOParams_t, CUfileIOVec_t, FileOrHandle,
};
use cufile::{
    cuFileBatchIODestroy, cuFileBatchIOGetStatus, cuFileBatchIOSetUp, cuFileBatchIOSubmit, cuFileBufDeregister,
    cuFileBufRegister, cuFileHandleDeregister, cuFileHandleRegister, cuFileRead, cuFileReadv, cuFileWrite,
    cuFileWritev,
};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{null, null_mut, with_exposed_provenance_mut, without_provenance_mut};

/// A registered file, and its descriptor.
struct Registered(CUfileHandle_t, File);

impl Registered {
    fn new(path: &Path) -> Self {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        let handle = FileOrHandle { handle: without_provenance_mut(file.as_raw_fd() as usize) };
        let mut description = CUfileDescr_t { kind: CU_FILE_HANDLE_TYPE_OPAQUE_FD, handle, fs_ops: null() };
        let mut handle = null_mut();
        // SAFETY: both places are valid.
        let status = unsafe { cuFileHandleRegister(&raw mut handle, &raw mut description) };
        assert_eq!(status.err, 0);
        Self(handle, file)
    }

    fn read(&self, memory: &FencedMemory, size: usize, offset: i64, place: i64) -> isize {
        // SAFETY: the memory outlives the call; the library checks the range.
        unsafe { cuFileRead(self.0, base(memory), size, offset, place) }
    }

    fn write(&self, memory: &FencedMemory, size: usize, offset: i64, place: i64) -> isize {
        // SAFETY: as above.
        unsafe { cuFileWrite(self.0, base(memory), size, offset, place) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        cuFileHandleDeregister(self.0);
    }
}

fn base(memory: &FencedMemory) -> *mut c_void {
    with_exposed_provenance_mut(memory.address() as usize)
}

#[test]
fn reads_and_writes_of_all_sizes_are_those_of_pread_and_pwrite() {
    let folder = folder();
    let content = bytes(9_000_001);
    std::fs::write(folder.path().join("data"), &content).unwrap();
    let (file, copy) = (Registered::new(&folder.path().join("data")), Registered::new(&folder.path().join("copy")));
    let memory = FencedMemory::alloc(9_100_000).unwrap();
    for registered in [false, true] {
        if registered {
            assert_eq!(cuFileBufRegister(base(&memory), 9_100_000, 0).err, 0);
        }
        for (size, offset, place) in
            [(1, 0, 0), (4096, 4096, 10), (9_000_001, 0, 99), (100_000, 8_999_000, 1), (10, 9_000_001, 0)]
        {
            let expected = &content[offset..content.len().min(offset + size)];
            assert_eq!(file.read(&memory, size, offset as i64, place as i64), expected.len() as isize);
            assert!(memory.to_vec()[place..place + expected.len()] == *expected);
        }
        assert_eq!(file.read(&memory, 9_000_001, 0, 0), 9_000_001);
        assert_eq!(copy.write(&memory, 9_000_000, 3, 1), 9_000_000);
        assert!(std::fs::read(folder.path().join("copy")).unwrap()[3..] == content[1..]);
        let beyond = if registered { -5017 } else { -5014 };
        assert_eq!(file.read(&memory, 9_100_001, 0, 0), beyond);
        assert_eq!(copy.write(&memory, 2, 0, 9_099_999), beyond);
    }
    assert_eq!(cuFileBufDeregister(base(&memory)).err, 0);
    assert_eq!(cuFileBufRegister(base(&memory), 9_100_001, 0).err, 5014);
}

/// What is written while the file is registered is read; what is cut off is not.
#[test]
fn a_file_that_grows_and_shrinks_is_read_as_it_is() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, bytes(2_000_000)).unwrap();
    let file = Registered::new(&path);
    let memory = FencedMemory::alloc(3_000_000).unwrap();
    assert_eq!(file.read(&memory, 3_000_000, 0, 0), 2_000_000);
    file.1.set_len(1_000_001).unwrap();
    assert_eq!(file.read(&memory, 3_000_000, 0, 0), 1_000_001);
    std::os::unix::fs::FileExt::write_all_at(&file.1, b"after", 2_500_000).unwrap();
    assert_eq!(file.read(&memory, 3_000_000, 0, 0), 2_500_005);
    let got = memory.to_vec();
    assert!(got[1_000_001..2_500_000].iter().all(|byte| *byte == 0) && got[2_500_000..2_500_005] == *b"after");
}

#[test]
fn several_places_are_filled_one_after_the_other_wherever_they_are() {
    let folder = folder();
    let content = bytes(500_000);
    std::fs::write(folder.path().join("data"), &content).unwrap();
    let (file, copy) = (Registered::new(&folder.path().join("data")), Registered::new(&folder.path().join("copy")));
    let (first, second) = (FencedMemory::alloc(200_000).unwrap(), FencedMemory::alloc(100_000).unwrap());
    let mut host = vec![0_u8; 50_000];
    let place = |base: *mut c_void, len| CUfileIOVec_t { base, len };
    let on_device = [place(base(&first), 200_000), place(base(&second), 100_000)];
    // SAFETY: the places outlive the calls.
    unsafe {
        assert_eq!(cuFileReadv(file.0, on_device.as_ptr(), 2, 7, 0), 300_000);
        assert!(first.to_vec() == content[7..200_007] && second.to_vec() == content[200_007..300_007]);
        let mixed =
            [place(base(&second), 100_000), place(host.as_mut_ptr().cast(), 50_000), place(base(&first), 200_000)];
        assert_eq!(cuFileReadv(file.0, mixed.as_ptr(), 3, 200_000, 0), 300_000);
        assert_eq!(cuFileReadv(file.0, on_device.as_ptr(), 2, 499_990, 0), 10);
        assert_eq!(cuFileReadv(file.0, on_device.as_ptr(), 2, 500_000, 0), 0);
        assert_eq!(cuFileReadv(file.0, mixed.as_ptr(), 3, 200_000, 0), 300_000);
        assert!(host == content[300_000..350_000]);
        assert_eq!(cuFileWritev(copy.0, mixed.as_ptr(), 3, 11, 0), 350_000);
    }
    let written = std::fs::read(folder.path().join("copy")).unwrap();
    assert!(written[11..300_011] == content[200_000..500_000]);
}

#[test]
fn a_batch_of_reads_and_writes_has_a_result_for_each() {
    const COUNT: usize = 64;
    let folder = folder();
    let content = bytes(4_000_000);
    std::fs::write(folder.path().join("data"), &content).unwrap();
    let (file, copy) = (Registered::new(&folder.path().join("data")), Registered::new(&folder.path().join("copy")));
    let memory = FencedMemory::alloc(4_000_000).unwrap();
    // One is cut short by the end of the file. In the second round the last two share their place, so
    // that they cannot be one request.
    for shared in [false, true] {
        let parameters = |number: usize| CUfileIOParams_t {
            mode: CUFILE_BATCH,
            devPtr_base: base(&memory),
            file_offset: if number == 5 { 3_999_999 } else { (number * 50_001) as i64 },
            devPtr_offset: (if shared && number == COUNT - 1 { COUNT - 2 } else { number } * 60_000) as i64,
            size: if number.is_multiple_of(7) { 60_000 } else { 1000 + number },
            fh: file.0,
            opcode: CUFILE_READ,
            cookie: without_provenance_mut(number + 1),
        };
        let mut requests: Vec<_> = (0..COUNT).map(parameters).collect();
        let events = run(&mut requests, COUNT);
        let got = memory.to_vec();
        for (request, event) in requests.iter().zip(&events) {
            let (offset, place) = (request.file_offset as usize, request.devPtr_offset as usize);
            let size = request.size.min(content.len() - offset);
            assert_eq!((event.status, event.ret), (CUFILE_COMPLETE, size));
            if !(shared && request.cookie.addr() >= COUNT - 1) {
                assert!(got[place..place + size] == content[offset..offset + size]);
            }
        }
    }
    let mut writes: Vec<_> = (0..4)
        .map(|number| CUfileIOParams_t {
            mode: CUFILE_BATCH,
            devPtr_base: base(&memory),
            file_offset: number * 60_000,
            devPtr_offset: number * 60_000,
            size: 60_000,
            fh: copy.0,
            opcode: CUFILE_WRITE,
            cookie: without_provenance_mut(number as usize + 1),
        })
        .collect();
    assert!(run(&mut writes, 4).iter().all(|event| (event.status, event.ret) == (CUFILE_COMPLETE, 60_000)));
    assert!(std::fs::read(folder.path().join("copy")).unwrap() == memory.to_vec()[..240_000]);
}

/// Carries a batch out: its events in the order of the cookies, which count from 1.
fn run(requests: &mut [CUfileIOParams_t], count: usize) -> Vec<CUfileIOEvents_t> {
    let mut batch = null_mut();
    let mut events = vec![CUfileIOEvents_t { cookie: null_mut(), status: 0, ret: 0 }; count];
    // SAFETY: all places are valid, and the memory outlives the batch.
    unsafe {
        assert_eq!(cuFileBatchIOSetUp(&raw mut batch, count as u32).err, 0);
        assert_eq!(cuFileBatchIOSubmit(batch, count as u32, requests.as_mut_ptr(), 0).err, 0);
        let mut fetched = count as u32;
        let status = cuFileBatchIOGetStatus(batch, fetched, &raw mut fetched, events.as_mut_ptr(), null_mut());
        assert_eq!((status.err, fetched as usize), (0, count));
    }
    cuFileBatchIODestroy(batch);
    events.sort_by_key(|event| event.cookie.addr());
    assert!(events.iter().enumerate().all(|(number, event)| event.cookie.addr() == number + 1));
    events
}
