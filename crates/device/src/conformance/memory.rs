//! Device memory, pinned memory and registered file mappings.

use super::content::{download, noise, poison, where_capable};
use super::copies::copies_round_trip;
use crate::{Device, ErrorKind, PinnedPool};
use fastrand::Rng;
use std::io::Write;
use std::os::fd::AsRawFd;

pub(super) fn pinned_memory_carries_data(device: &Device, random: &mut Rng) {
    assert!(device.alloc_pinned(100_000).unwrap().bytes().iter().all(|byte| *byte == 0));
    let stream = device.create_stream().unwrap();
    let pool = PinnedPool::new(device, 65_536, 3);
    let memory = device.alloc(65_536 * 20).unwrap();
    poison(&stream, memory.slice());
    let data = noise(random, memory.len());
    for (piece, chunk) in data.chunks(65_536).enumerate() {
        let mut slot = pool.acquire().unwrap();
        slot.buffer().bytes_mut().copy_from_slice(chunk);
        let place = memory.slice().part(piece as u64 * 65_536, 65_536).unwrap();
        // SAFETY: the slot is retired with an event recorded after the copy.
        unsafe { stream.copy_to_device(place, slot.buffer().as_ptr()) }.unwrap();
        slot.retire(stream.record().unwrap());
    }
    assert!(download(&stream, memory.slice()) == data);
    assert!(pool.stats().allocated_slots <= 3);
}

pub(super) fn memory_is_bounded(device: &Device, random: &mut Rng) {
    let total = device.memory().unwrap().total;
    let error = device.alloc(total.saturating_mul(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().starts_with(&device.id().to_string()), "the message names the device: {error}");
    copies_round_trip(device, random);
}

pub(super) fn ranges_are_checked(device: &Device, _: &mut Rng) {
    let memory = device.alloc(100).unwrap();
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 2)] {
        assert_eq!(memory.slice().part(offset, len).unwrap_err().kind(), ErrorKind::BadArgument);
    }
    assert!(memory.slice().part(100, 0).unwrap().is_empty());
}

/// `peer`, which may be `device` itself, copies from them too if the registration says so.
pub(super) fn registered_mappings_copy(device: &Device, peer: &Device, random: &mut Rng) {
    let len = 8_u64 << 20;
    let data = noise(random, len);
    let mut file = unlinked_file();
    file.write_all(&data).unwrap();
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new read-only mapping of an open file.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    // SAFETY: the mapping is removed only after the registration is gone.
    let register = || unsafe { device.register_host(mapped.cast(), len as usize) };
    where_capable(&device.capabilities().host_register_read_only, register, || {
        let registration = register().unwrap();
        assert!(registration.serves(device.id()));
        for user in [device, peer].into_iter().filter(|user| registration.serves(user.id())) {
            let (stream, memory) = (user.create_stream().unwrap(), user.alloc(len).unwrap());
            poison(&stream, memory.slice());
            // SAFETY: registration and memory live until the download has synchronised the stream.
            unsafe { stream.copy_to_device(memory.slice(), registration.as_ptr()).unwrap() };
            assert!(download(&stream, memory.slice()) == data);
        }
    });
    // SAFETY: the registration was dropped inside the check.
    unsafe { libc::munmap(mapped, len as usize) };
}

/// A file in a temporary folder, already unlinked.
fn unlinked_file() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("bifolio-conformance-{}-{}", std::process::id(), fastrand::u64(..)));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}
