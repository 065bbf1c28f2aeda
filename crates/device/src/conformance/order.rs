//! The order of work, in a stream, between streams and between threads.

use super::content::{download, noise, poison};
use crate::Device;
use fastrand::Rng;

pub(super) fn streams_run_in_order(device: &Device, random: &mut Rng) {
    let stream = device.create_stream().unwrap();
    let memory = device.alloc(1 << 20).unwrap();
    let mut pinned = device.alloc_pinned(1 << 20).unwrap();
    let data = noise(random, 1 << 20);
    pinned.bytes_mut().copy_from_slice(&data);
    // SAFETY: `pinned` and `memory` live until the synchronisation, and nobody writes `pinned`.
    unsafe {
        for value in 0..50 {
            stream.fill(memory.slice(), value).unwrap();
        }
        stream.copy_to_device(memory.slice(), pinned.as_ptr()).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(download(&stream, memory.slice()) == data, "an earlier fill landed after a later copy");
}

pub(super) fn waits_order_streams(device: &Device, random: &mut Rng) {
    let (one, two) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let (memory, copy) = (device.alloc(8 << 20).unwrap(), device.alloc(8 << 20).unwrap());
    for _ in 0..10 {
        let data = noise(random, 8 << 20);
        let mut pinned = device.alloc_pinned(8 << 20).unwrap();
        pinned.bytes_mut().copy_from_slice(&data);
        poison(&one, memory.slice());
        // SAFETY: everything lives until the download has synchronised `two`, which waited for `one`.
        unsafe {
            one.copy_to_device(memory.slice(), pinned.as_ptr()).unwrap();
            let copied = one.record().unwrap();
            two.wait(&copied).unwrap();
            two.copy_on_device(copy.slice(), memory.slice()).unwrap();
        }
        assert!(download(&two, copy.slice()) == data, "the second stream did not wait for the first");
    }
}

pub(super) fn events_complete(device: &Device, random: &mut Rng) {
    let stream = device.create_stream().unwrap();
    assert!(stream.record().unwrap().wait().is_ok(), "an event on an empty stream is done at once");
    let memory = device.alloc(32 << 20).unwrap();
    let mut pinned = device.alloc_pinned(32 << 20).unwrap();
    pinned.bytes_mut()[..4096].copy_from_slice(&noise(random, 4096));
    // SAFETY: `pinned` and `memory` live until the event below is done.
    unsafe { stream.copy_to_device(memory.slice(), pinned.as_ptr()).unwrap() };
    let event = stream.record().unwrap();
    event.wait().unwrap();
    assert!(event.query().unwrap(), "an event that was waited for is done");
    assert!(download(&stream, memory.slice().part(0, 4096).unwrap()) == pinned.bytes()[..4096]);
}

pub(super) fn threads_share_the_device(device: &Device, random: &mut Rng) {
    let seeds: Vec<u64> = (0..6).map(|_| random.u64(..)).collect();
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed);
                let stream = device.create_stream().unwrap();
                for _ in 0..8 {
                    let memory = device.alloc(1 + random.u64(..300_000)).unwrap();
                    let data = noise(&mut random, memory.len());
                    stream.upload(memory.slice(), &data).unwrap();
                    assert!(download(&stream, memory.slice()) == data, "seed {seed}");
                }
            });
        }
    });
}
