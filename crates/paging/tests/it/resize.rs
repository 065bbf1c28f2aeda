//! Device memory is given back and taken while requests run.

use crate::support::{CHUNK, backing, cache, faulty_device, opens};
use bifolio_block::BlockDevice;
use bifolio_device::backend::fault::Faults as DeviceFaults;
use bifolio_device::{Device, HostOptions};
use bifolio_paging::Mode;
use bifolio_paging::directory::Head;
use bifolio_paging::stats::Counter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn clean_memory_is_given_back_at_once_and_taken_again() {
    let device = Device::host(&HostOptions { memory_bytes: Some(64 << 20), ..HostOptions::default() });
    let backing = backing(8 << 20);
    let cache = cache(&backing, opens(device.clone()), Mode::WriteThrough, 4);
    let bytes = bifolio_testing::noise(8 << 20, 3);
    cache.write(0, &bytes).unwrap();
    assert_eq!((cache.memory_bytes(), device.memory().unwrap().free), (4 * CHUNK, (64 << 20) - 4 * CHUNK));
    let written = backing.requests();
    cache.resize(CHUNK).unwrap();
    assert_eq!((cache.memory_bytes(), device.memory().unwrap().free), (CHUNK, (64 << 20) - CHUNK));
    assert_eq!(backing.requests(), written, "nothing had to be written for it");
    let mut seen = vec![0; 8 << 20];
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    cache.set_target(3 * CHUNK);
    cache.tick();
    assert_eq!(cache.memory_bytes(), 3 * CHUNK);
    cache.resize(0).unwrap();
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes && device.memory().unwrap().free == 64 << 20);
}

#[test]
fn what_others_want_is_given_back_and_taken_again_when_they_have_gone() {
    let device = Device::host(&HostOptions { memory_bytes: Some(10 * CHUNK), ..HostOptions::default() });
    let backing = backing(8 << 20);
    let cache = cache(&backing, opens(device.clone()), Mode::WriteThrough, 4);
    cache.directory().head(Head::FreeBytes).store(3 * CHUNK, Ordering::Release);
    let bytes = bifolio_testing::noise(8 << 20, 4);
    cache.write(0, &bytes).unwrap();
    let looks = |wanted: u64| {
        bifolio_testing::until(format_args!("{wanted} chunks"), || {
            cache.tick();
            cache.memory_bytes() == wanted * CHUNK
        });
    };
    looks(4);
    let theirs = device.alloc(5 * CHUNK).unwrap();
    looks(2);
    assert_eq!(device.memory().unwrap().free, 3 * CHUNK);
    let mut seen = vec![0; 8 << 20];
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    drop(theirs);
    looks(4);
    assert!(cache.complaints().is_empty());
}

#[test]
fn memory_that_is_refused_is_told_once_and_what_there_is_serves() {
    let faults = Arc::<DeviceFaults>::default();
    let backing = backing(8 << 20);
    let cache = cache(&backing, opens(faulty_device(&faults, 2 * CHUNK + 4096)), Mode::WriteThrough, 4);
    assert_eq!(cache.memory_bytes(), 2 * CHUNK);
    let told = cache.complaints();
    assert!(told.len() == 1 && told[0].contains("goes on with the memory that it has"), "{told:?}");
    cache.resize(4 * CHUNK).unwrap();
    assert_eq!(cache.complaints(), Vec::<String>::new(), "it was told before");
    cache.write(0, &[5; 4096]).unwrap();
    cache.read(0, &mut [0; 4096]).unwrap();
    assert_eq!(cache.directory().stats().get(Counter::HitPages), 1);
}

#[test]
fn a_device_without_memory_at_the_start_is_used_later() {
    let faults = Arc::<DeviceFaults>::default();
    faults.frames.store(0, Ordering::SeqCst);
    let backing = backing(8 << 20);
    let cache = cache(&backing, opens(faulty_device(&faults, 1 << 30)), Mode::WriteThrough, 2);
    assert_eq!((cache.memory_bytes(), cache.complaints().len()), (0, 1));
    cache.write(0, &[5; 4096]).unwrap();
    faults.frames.store(-1, Ordering::SeqCst);
    cache.resize(2 * CHUNK).unwrap();
    assert_eq!(cache.memory_bytes(), 2 * CHUNK);
    let mut seen = [0; 4096];
    cache.read(0, &mut seen).unwrap();
    assert_eq!(seen, [5; 4096]);
}
