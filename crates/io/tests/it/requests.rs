//! Requests that run while the caller goes on: awaited, polled, cancelled, abandoned, and ordered
//! on a stream.

use crate::support::{
    Fault, FaultStorage, Faulty, content_of, devices_besides_host, file_of, folder, host, only, poisoned, random,
    small_options,
};
use bifolio_device::{Device, HostOptions};
use bifolio_io::cache_state::evict;
use bifolio_io::{Buffer, EngineKind, ErrorKind, OpenFile, ReadExtent, ReadOptions, Router, RouterOptions};
use bifolio_testing::until;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const SIZE: u64 = 6_000_001;

fn evict_if_possible(file: &OpenFile) {
    if !file.is_in_memory() {
        evict(file, 0..file.size().unwrap()).unwrap();
    }
}

/// Wakes a parked thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn many_requests_in_flight_bring_what_pread_would() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Arc::new(Router::new(&host(), small_options()));
    let file = router.open(&path).unwrap();
    evict_if_possible(&file);
    let requests: Vec<_> = (0..300)
        .map(|number| {
            let (offset, length) =
                (random.below(SIZE), 1 + random.below(if number % 10 == 0 { 2_000_000 } else { 9000 }));
            let memory = Arc::new(poisoned(router.device(), length));
            let buffer = Buffer::new(&memory);
            (router.submit_read(&file, offset, Some(length), &buffer, &ReadOptions::default()), memory, offset, length)
        })
        .collect();
    for (number, (mut pending, memory, offset, length)) in requests.into_iter().enumerate() {
        let report = match number % 3 {
            0 => pending.wait(),
            1 => block_on(pending),
            _ => {
                let mut outcome = None;
                until("the request is over", || {
                    outcome = pending.try_take();
                    outcome.is_some()
                });
                outcome.unwrap()
            }
        };
        let got = length.min(SIZE - offset);
        assert_eq!(report.unwrap().bytes, got);
        assert!(content_of(&memory)[..got as usize] == content[offset as usize..(offset + got) as usize]);
    }
    let memory = Arc::new(poisoned(router.device(), 2000));
    let extents =
        vec![ReadExtent { offset: 5, length: 1000, place: 1000 }, ReadExtent { offset: 77, length: 1000, place: 0 }];
    let batch = router.submit_batch(&file, extents, &Buffer::new(&memory), &ReadOptions::default());
    assert_eq!(batch.wait().unwrap().bytes, 2000);
    assert!(content_of(&memory) == [&content[77..1077], &content[5..1005]].concat());
}

#[test]
fn an_abandoned_request_keeps_its_memory_until_it_is_over() {
    let (folder, mut random) = (folder(), random());
    let path = file_of(folder.path(), "data", &random.bytes(SIZE));
    let slow = HostOptions { latency: Some(Duration::from_millis(5)), ..HostOptions::default() };
    let router = Arc::new(Router::new(&Device::host(&slow), small_options()));
    let file = router.open(&path).unwrap();
    for round in 0..20 {
        let memory = Arc::new(poisoned(router.device(), SIZE));
        let buffer = Buffer::new(&memory);
        let options = only(EngineKind::Cached);
        let pending = router.submit_read(&file, 0, None, &buffer, &options);
        let moved = random.below(SIZE / 4);
        until("some of it has moved", || options.progress.load(Ordering::Relaxed) >= moved);
        if round % 2 == 0 {
            pending.cancel();
            assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Cancelled);
        } else {
            drop(pending);
            options.cancel.cancel();
            // The request's share is the last one for a while.
            drop(memory);
        }
    }
    // The requests hold the router, which waits for its own threads.
    drop(router);
}

fn check_on_stream(device: &Device, options: RouterOptions) {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Router::new(device, options);
    let file = router.open(&path).unwrap();
    let stream = device.create_stream().unwrap();
    for _ in 0..20 {
        evict_if_possible(&file);
        let (offset, length) = (random.below(SIZE), 1 + random.below(400_000));
        let got = length.min(SIZE - offset);
        let memory = Arc::new(poisoned(device, length));
        let (after, buffer) = (poisoned(device, length), Buffer::new(&memory));
        // SAFETY: both allocations live until the stream is synchronised.
        unsafe { stream.fill(memory.slice(), 0x11) }.unwrap();
        let pending =
            router.submit_read_on(&stream, &file, offset, Some(length), &buffer, &ReadOptions::default()).unwrap();
        // Enqueued before the bytes have been read, and sees them.
        // SAFETY: as above.
        unsafe {
            stream.copy_on_device(after.slice(), memory.slice()).unwrap();
            stream.fill(memory.slice(), 0x22).unwrap();
        }
        assert_eq!(pending.wait().unwrap(), got);
        stream.synchronize().unwrap();
        let mut expected = content[offset as usize..(offset + got) as usize].to_vec();
        expected.resize(length as usize, 0x11);
        assert!(content_of(&after) == expected, "{length} bytes at {offset}");
        assert!(content_of(&memory).iter().all(|byte| *byte == 0x22));
    }
}

#[test]
fn a_read_submitted_on_a_stream_lands_between_what_came_before_and_what_comes_after() {
    check_on_stream(&host(), RouterOptions::default());
    // The whole pool is smaller than one request.
    check_on_stream(&host(), small_options());
}

#[test]
fn every_opencl_and_cuda_device_orders_reads_on_its_streams() {
    for device in devices_besides_host() {
        check_on_stream(&device, RouterOptions::default());
        check_on_stream(&device, small_options());
    }
}

#[test]
fn many_threads_submit_on_streams_and_otherwise_without_waiting_for_each_other_for_good() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let router = Arc::new(Router::new(&host(), small_options()));
    let file = router.open(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (router, file, content, path) = (&router, &file, &content, &path);
            scope.spawn(move || {
                let stream = router.device().create_stream().unwrap();
                assert!(path.exists());
                for round in 0..15_u64 {
                    let offset = (thread * 15 + round) * 10_000;
                    let memory = Arc::new(poisoned(router.device(), 600_000));
                    let buffer = Buffer::new(&memory);
                    let options = ReadOptions::default();
                    if thread % 2 == 0 {
                        let pending = router.submit_read_on(&stream, file, offset, Some(600_000), &buffer, &options);
                        assert_eq!(pending.unwrap().wait().unwrap(), 600_000);
                    } else {
                        let pending = router.submit_read(file, offset, Some(600_000), &buffer, &options);
                        assert_eq!(pending.wait().unwrap().bytes, 600_000);
                    }
                    assert!(content_of(&memory) == content[offset as usize..offset as usize + 600_000]);
                }
            });
        }
    });
}

/// Symptom: a crash (SIGSEGV on the embedded device). Cause: the destination was freed when it had been filled on the
/// host's side, with the copy from there still in flight.
#[test]
fn a_destination_that_is_given_up_outlives_the_copies_on_its_stream() {
    let (folder, mut random) = (folder(), random());
    let path = file_of(folder.path(), "data", &random.bytes(SIZE));
    let slow = HostOptions { latency: Some(Duration::from_millis(5)), ..HostOptions::default() };
    let router = Router::new(&Device::host(&slow), RouterOptions::default());
    let file = router.open(&path).unwrap();
    let stream = router.device().create_stream().unwrap();
    let shares: Vec<_> = (0..12)
        .map(|number| {
            let memory = Arc::new(router.device().alloc(400_000).unwrap());
            let options = ReadOptions::default();
            let pending = router.submit_read_on(&stream, &file, 0, Some(400_000), &Buffer::new(&memory), &options);
            let share = Arc::downgrade(&memory);
            drop(memory);
            match number % 3 {
                0 => drop(pending.unwrap()),
                1 => drop(pending.unwrap().into_host()),
                _ => assert_eq!(pending.unwrap().wait().unwrap(), 400_000),
            }
            share
        })
        .collect();
    stream.synchronize().unwrap();
    // And it is given up when the copies have landed.
    until("no destination is kept", || shares.iter().all(|share| share.strong_count() == 0));
}

#[test]
fn a_failure_behind_a_gate_opens_it_and_is_reported() {
    let (folder, mut random) = (folder(), random());
    let path = file_of(folder.path(), "data", &random.bytes(SIZE));
    let storage = Arc::new(Faulty(FaultStorage::new(3, Fault::Error(libc::EIO))));
    let router = Router::new(&host(), RouterOptions { storage, ..small_options() });
    let file = router.open(&path).unwrap();
    evict_if_possible(&file);
    let stream = router.device().create_stream().unwrap();
    let memory = Arc::new(poisoned(router.device(), SIZE));
    let options = ReadOptions::default();
    let pending = router.submit_read_on(&stream, &file, 0, None, &Buffer::new(&memory), &options).unwrap();
    assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Read);
    stream.synchronize().unwrap();
    let refused = router.submit_read_on(&stream, &file, SIZE + 1, None, &Buffer::new(&memory), &options);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadRange);
}
