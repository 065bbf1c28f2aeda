//! The executor beside its services: threads, turns, order, room, cancellation, merging, and what becomes of
//! requests when a stage of a service, an operation of the device or a message fails.

use crate::support::{Host, content, memory};
use bifolio_compute::service::{
    AesCtr, AesGcm, Batch, Completed, Counter, Data, Digests, Entry, Launch, Message, Messages, Output, Prepared,
    Service, Shape,
};
use bifolio_compute::{
    ErrorKind, Executor, Handle, Memory, Options, Outcome, Path, Pending, Request, Result, WhenFull,
};
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{Device, HostOptions};
use bifolio_kernels::aes::Direction;
use bifolio_kernels::digest::{self, Digest};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::{aes_ctr, aes_gcm};
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

fn host() -> Device {
    Device::host(&HostOptions::default())
}

fn options() -> Options {
    Options {
        pipelines: 3,
        cpu_threads: 2,
        slot_bytes: 16 << 10,
        cpu_part_bytes: 8 << 10,
        calibrates: false,
        ..Options::default()
    }
}

fn executor(device: &Device, options: Options) -> Executor {
    Executor::new(device, options).unwrap()
}

fn answer(key: &[u8], counter: Counter, input: &[u8]) -> Vec<u8> {
    let mut output = input.to_vec();
    aes_ctr::oracle(key, counter, &mut output);
    output
}

fn written(outcome: Outcome) -> Vec<u8> {
    outcome.result.unwrap();
    outcome.destination.or(outcome.source).unwrap().into_vec().unwrap()
}

/// Requests of all sizes from several threads on both paths, waited for, polled, awaited and called back.
#[test]
fn every_thread_gets_its_own_results() {
    let device = host();
    let executor = executor(&device, Options { depth: 7, ..options() });
    let key = Draw::afresh().bytes(32);
    let ctr = executor.register(AesCtr::new(executor.kernels(), &key).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (executor, ctr, key) = (&executor, &ctr, &key);
            scope.spawn(move || {
                let caller = if thread % 2 == 0 { executor.caller() } else { executor.caller_in_order() };
                let mut draw = Draw::from_seed(Draw::afresh().seed() ^ thread);
                let mut pending = vec![];
                let (report, reports) = mpsc::channel();
                for round in 0..60_u8 {
                    let (counter, len) = ([round; 16], draw.below(40_000) as usize);
                    let input = draw.bytes(len);
                    let expected = answer(key, counter, &input);
                    let mut request = Request::new(ctr.step(counter), input.clone());
                    if draw.below(2) == 0 {
                        request = request.into(vec![0xdd; len]);
                    }
                    request = match draw.below(3) {
                        0 => request.on(Path::Cpu),
                        1 => request.on(Path::Device),
                        _ => request,
                    };
                    match draw.below(4) {
                        0 => assert!(written(caller.run(request)) == expected, "seed {}", draw.seed()),
                        1 => {
                            let report = report.clone();
                            let check = move |outcome| report.send(written(outcome) == expected).unwrap();
                            caller.submit_with(request, check).unwrap();
                        }
                        2 => {
                            let mut data = input;
                            ctr.run(&counter, Data::InPlace(&mut data), &mut []).unwrap();
                            assert!(data == expected, "seed {}", draw.seed());
                        }
                        _ => pending.push((caller.submit(request).unwrap(), expected)),
                    }
                }
                for (i, (pending, expected)) in pending.into_iter().enumerate() {
                    let outcome = if i % 2 == 0 { pending.wait() } else { block_on(pending) };
                    assert!(written(outcome) == expected, "seed {}", draw.seed());
                }
                drop(report);
                assert!(reports.iter().all(|is_right| is_right), "seed {}", draw.seed());
            });
        }
    });
    let all = executor.statistics();
    assert_eq!(all.iter().map(|of| of.requests).sum::<u64>(), 360, "{all:?}");
    assert_eq!(all.iter().map(|of| of.failed + of.cancelled + of.taken_over).sum::<u64>(), 0, "{all:?}");
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Prepare,
    Launch,
    Complete,
}

/// AES-CTR that fails in a stage once so many calls have succeeded: with an error, or a panic.
#[derive(Debug)]
struct Faulty {
    inner: Arc<AesCtr>,
    stage: Stage,
    left: AtomicI64,
    panics: bool,
}

impl Faulty {
    fn allow(&self, stage: Stage) -> Result<()> {
        if stage != self.stage || self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        assert!(!self.panics, "a panic on purpose");
        Err(bifolio_compute::Error::new(ErrorKind::Device, "failed on purpose"))
    }
}

impl Service for Faulty {
    type Params = Counter;

    fn name(&self) -> &'static str {
        "faulty"
    }

    fn shape(&self, params: &Counter, input: u64) -> Result<Shape> {
        self.inner.shape(params, input)
    }

    fn cut(&self, params: &Counter, at_most: u64) -> u64 {
        self.inner.cut(params, at_most)
    }

    fn split(&self, params: &Counter, at: u64) -> (Counter, Counter) {
        self.inner.split(params, at)
    }

    fn refusal(&self) -> Option<String> {
        None
    }

    fn sample(&self, about_bytes: u64) -> (Counter, Vec<u8>) {
        self.inner.sample(about_bytes)
    }

    fn on_cpu(&self, params: &Counter, data: Data<'_>, results: &mut [u8]) -> Result<()> {
        self.inner.on_cpu(params, data, results)
    }

    fn prepare(&self, device: &Device, entries: &[Entry<'_, Counter>], batch: Batch<'_>) -> Result<Prepared> {
        self.allow(Stage::Prepare)?;
        self.inner.prepare(device, entries, batch)
    }

    unsafe fn launch(&self, entries: &[Entry<'_, Counter>], launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(entries, launch) }?;
        self.allow(Stage::Launch)
    }

    fn complete(&self, params: &Counter, results: &mut [u8]) -> Completed {
        let failed = self.allow(Stage::Complete).err();
        Completed { error: failed, ..self.inner.complete(params, results) }
    }
}

/// AES-CTR twice gives the plaintext back: what is done twice in place is seen.
#[test]
fn a_stage_that_fails_loses_nothing_and_does_nothing_twice() {
    let device = host();
    let key = Draw::afresh().bytes(16);
    for (stage, panics) in [
        (Stage::Prepare, false),
        (Stage::Prepare, true),
        (Stage::Launch, false),
        (Stage::Launch, true),
        (Stage::Complete, true),
    ] {
        for good in 0..3 {
            let executor = executor(&device, options());
            let inner = AesCtr::new(executor.kernels(), &key).unwrap();
            let left = AtomicI64::new(good);
            let faulty = executor.register(Arc::new(Faulty { inner, stage, left, panics }));
            let caller = executor.caller();
            let mut draw = Draw::afresh();
            let mut pending = vec![];
            for i in 0..12_u8 {
                let input = draw.bytes(5_000 * usize::from(i));
                let expected = answer(&key, [i; 16], &input);
                let host = if i % 2 == 0 { Host::Heap } else { Host::Pinned };
                let request = Request::new(faulty.step([i; 16]), memory(&device, &input, false, host)).on(Path::Device);
                pending.push((caller.submit(request).unwrap(), expected));
            }
            for (pending, expected) in pending {
                let outcome = pending.wait();
                assert!(outcome.result.is_ok(), "{stage:?} {panics}: {:?}", outcome.result);
                let found = content(&device, &outcome.source.unwrap());
                assert!(found == expected, "{stage:?} {panics}, seed {}", draw.seed());
            }
            let of = &executor.statistics()[0];
            let reason = of.device_off.as_ref().expect("the device was given up");
            assert!(reason.contains(if panics { "panicked" } else { "on purpose" }), "{reason}");
            assert!(of.taken_over > 0 && of.requests == 12 && of.failed == 0, "{of:?}");
        }
    }
}

/// A kernel that may have written over the only copy of its source is not followed by the CPU, which would take what
/// is there for the source.
#[test]
fn a_source_on_the_device_that_was_written_over_is_an_error() {
    let device = host();
    let executor = executor(&device, options());
    let key = Draw::afresh().bytes(16);
    let inner = AesCtr::new(executor.kernels(), &key).unwrap();
    let (stage, left) = (Stage::Launch, AtomicI64::new(1));
    let faulty = executor.register(Arc::new(Faulty { inner, stage, left, panics: false }));
    let input = Draw::afresh().bytes(5_000);
    let expected = answer(&key, [3; 16], &input);
    let caller = executor.caller();
    let request = || Request::new(faulty.step([3; 16]), memory(&device, &input, true, Host::Heap)).on(Path::Device);
    for is_good in [true, false] {
        let outcome = caller.run(request());
        assert_eq!(
            outcome.result.as_ref().err().map(bifolio_compute::Error::kind),
            (!is_good).then_some(ErrorKind::Device)
        );
        // What the kernel wrote is there once, and not undone by a second time.
        assert!(content(&device, &outcome.source.unwrap()) == expected);
    }
    assert_eq!(executor.statistics()[0].taken_over, 0);
    // The next one is the CPU's from the beginning.
    let outcome = caller.run(request());
    outcome.result.unwrap();
    assert!(content(&device, &outcome.source.unwrap()) == expected);
}

/// A verdict on one request is its own, and no failure of the device.
#[test]
fn an_error_of_one_request_is_no_other_ones() {
    let device = host();
    let executor = executor(&device, Options { pipelines: 1, merge_wait: Duration::from_millis(300), ..options() });
    let key = Draw::afresh().bytes(32);
    let decrypt = executor.register(AesGcm::new(executor.kernels(), &key, Direction::Decrypt).unwrap());
    let caller = executor.caller();
    let mut draw = Draw::afresh();
    let bad = draw.below(8);
    let mut pending = vec![];
    for i in 0..8 {
        let (plain, nonce) = (draw.bytes(1000), draw.bytes(12));
        let mut sealed = plain.clone();
        let mut tag = aes_gcm::oracle_encrypt(&key, &nonce, &[], &mut sealed);
        tag[3] ^= u8::from(i == bad);
        let messages: Messages = vec![Message { at: 0, len: 1000, nonce, aad: vec![], tag }].into();
        let request = Request::new(decrypt.step(messages), sealed).on(Path::Device);
        pending.push((caller.submit(request).unwrap(), plain));
    }
    for (i, (pending, plain)) in pending.into_iter().enumerate() {
        let outcome = pending.wait();
        let found = outcome.source.unwrap().into_vec().unwrap();
        if i as u64 == bad {
            assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::BadTag);
            assert!(found.iter().all(|byte| *byte == 0));
        } else {
            outcome.result.unwrap();
            assert!(found == plain, "request {i}");
        }
    }
    let of = &executor.statistics()[0];
    assert!(of.merged >= 2 && of.batches < 8, "{of:?}");
    assert_eq!((of.failed, of.taken_over, &of.device_off), (1, 0, &None), "{of:?}");
}

/// A counter of an operation that fails.
type Chosen = fn(&Faults) -> &AtomicI64;

/// Every operation of the device fails once so many have succeeded.
#[test]
fn a_device_that_fails_at_any_moment_leaves_right_bytes_or_an_error() {
    let key = Draw::afresh().bytes(32);
    let mut draw = Draw::afresh();
    let inner = host();
    let (mut errors, mut overs) = (0, 0);
    let operations: [Chosen; 6] = [
        |faults| &faults.copies,
        |faults| &faults.downloads,
        |faults| &faults.launches,
        |faults| &faults.device_copies,
        |faults| &faults.pinned,
        |faults| &faults.allocations,
    ];
    for operation in operations {
        for good in 0..6 {
            let faults = Arc::new(Faults::default());
            let device = Device::from_backend(FaultBackend::new(inner.backend(), &faults));
            let executor = executor(&device, Options { pipelines: 1, ..options() });
            let ctr = executor.register(AesCtr::new(executor.kernels(), &key).unwrap());
            let caller = executor.caller();
            let mut pending = vec![];
            for i in 0..6_u8 {
                // The memory of requests is made before the device begins to fail.
                let input = draw.bytes(20_000);
                let expected = answer(&key, [i; 16], &input);
                let source = memory(&inner, &input, i % 3 == 2, if i % 3 == 1 { Host::Pinned } else { Host::Heap });
                let mut request = Request::new(ctr.step([i; 16]), source).on(Path::Device);
                if i >= 3 {
                    request = request.into(memory(&inner, &vec![0xdd; 20_000], i % 2 == 0, Host::Heap));
                }
                pending.push((request, expected));
            }
            operation(&faults).store(good, Ordering::SeqCst);
            let pending: Vec<_> =
                pending.into_iter().map(|(request, expected)| (caller.submit(request).unwrap(), expected)).collect();
            for (i, (pending, expected)) in pending.into_iter().enumerate() {
                let outcome = pending.wait();
                match outcome.result {
                    Ok(_) => {
                        let written = outcome.destination.or(outcome.source).unwrap();
                        assert!(content(&inner, &written) == expected, "request {i}, seed {}", draw.seed());
                    }
                    Err(error) => {
                        // Only what has an end in device memory can be out of the CPU's reach.
                        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
                        assert!(matches!(i, 2 | 4 | 5), "request {i}: {error}");
                        errors += 1;
                    }
                }
            }
            overs += executor.statistics()[0].taken_over;
        }
    }
    assert!(errors > 0 && overs > 0, "{errors} errors and {overs} parts taken over: nothing was tried");
}

/// Packets that came while the first batch waited for its pipeline's memory were dropped.
#[test]
fn pipelines_that_prepare_have_their_memory_before_the_first_request() {
    let inner = host();
    for prepares in [false, true] {
        let faults = Arc::new(Faults::default());
        let device = Device::from_backend(FaultBackend::new(inner.backend(), &faults));
        let executor = executor(&device, Options { prepares, ..options() });
        let ctr = executor.register(AesCtr::new(executor.kernels(), &[7; 32]).unwrap());
        // From now on there is no memory any more.
        faults.allocations.store(0, Ordering::SeqCst);
        faults.pinned.store(0, Ordering::SeqCst);
        let input = Draw::afresh().bytes(20_000);
        let request = Request::new(ctr.step([3; 16]), input.clone()).on(Path::Device);
        let outcome = executor.caller().submit(request).unwrap().wait();
        let path = outcome.result.as_ref().map(|answers| answers.path).unwrap();
        assert_eq!(path == Path::Device, prepares, "the CPU takes over where there is no memory");
        assert!(written(outcome) == answer(&[7; 32], [3; 16], &input));
    }
}

/// What the CPU's path does: takes notes, and waits while the gate is closed.
#[derive(Debug, Default)]
struct Notes {
    gate: Mutex<bool>,
    opened: Condvar,
    seen: Mutex<Vec<u64>>,
}

impl Notes {
    fn open(&self) {
        *self.gate.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn seen(&self) -> Vec<u64> {
        self.seen.lock().unwrap().clone()
    }
}

impl Service for Notes {
    type Params = u64;

    fn name(&self) -> &'static str {
        "notes"
    }

    fn shape(&self, _number: &u64, _input: u64) -> Result<Shape> {
        Ok(Shape { output: Output::Nothing, results: 0 })
    }

    fn cut(&self, _number: &u64, _at_most: u64) -> u64 {
        0
    }

    fn split(&self, number: &u64, _at: u64) -> (u64, u64) {
        (*number, *number)
    }

    fn refusal(&self) -> Option<String> {
        Some("it has no kernels".to_owned())
    }

    fn sample(&self, about_bytes: u64) -> (u64, Vec<u8>) {
        (0, vec![0; about_bytes as usize])
    }

    fn on_cpu(&self, number: &u64, _data: Data<'_>, _results: &mut [u8]) -> Result<()> {
        let mut is_open = self.gate.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
        self.seen.lock().unwrap().push(*number);
        Ok(())
    }

    fn prepare(&self, _device: &Device, _entries: &[Entry<'_, u64>], _batch: Batch<'_>) -> Result<Prepared> {
        Ok(Prepared::default())
    }

    unsafe fn launch(&self, _entries: &[Entry<'_, u64>], _launch: &Launch<'_>) -> Result<()> {
        Ok(())
    }
}

fn finish(pending: Vec<Pending>) {
    for pending in pending {
        pending.wait().result.unwrap();
    }
}

fn notes(executor: &Executor) -> Handle<Notes> {
    executor.register(Arc::new(Notes::default()))
}

#[test]
fn a_caller_in_order_is_served_in_order_by_many_threads() {
    let executor = executor(&host(), Options { cpu_threads: 4, ..options() });
    let notes = notes(&executor);
    notes.service().open();
    let caller = executor.caller_in_order();
    let pending: Vec<_> = (0..200).map(|i| caller.submit(Request::new(notes.step(i), vec![0; 100])).unwrap()).collect();
    finish(pending);
    assert_eq!(notes.service().seen(), (0..200).collect::<Vec<_>>());
}

/// Symptom: with one thread, no request after the first whose callback panicked was carried out, and the executor's end
/// waited for ever. Cause: the panic ended the thread's work before it was signed off, and before the next request of a
/// caller in order was handed on.
#[test]
fn a_callback_that_panics_holds_nobody_up() {
    let executor = executor(&host(), Options { cpu_threads: 1, ..options() });
    let notes = notes(&executor);
    notes.service().open();
    let caller = executor.caller_in_order();
    for number in 0..3 {
        let request = Request::new(notes.step(2 * number), vec![0; 100]).on(Path::Cpu);
        caller.submit_with(request, |_| panic!("planted")).unwrap();
        let request = Request::new(notes.step(2 * number + 1), vec![0; 100]).on(Path::Cpu);
        caller.submit(request).unwrap().wait().result.unwrap();
    }
    assert_eq!(notes.service().seen(), (0..6).collect::<Vec<_>>());
    drop(executor);
}

/// Symptom: requests of a caller in order that was shared by threads were never carried out. Cause: two that were
/// admitted at the same moment each took the other one for one that runs.
#[test]
fn threads_that_share_a_caller_in_order_all_get_their_turns() {
    let executor = executor(&host(), options());
    let notes = notes(&executor);
    notes.service().open();
    for _ in 0..200 {
        let caller = executor.caller_in_order();
        let start = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (caller, notes, start) = (caller.clone(), &notes, &start);
                scope.spawn(move || {
                    let request = Request::new(notes.step(number), vec![0; 10]);
                    start.wait();
                    caller.submit(request).unwrap().wait().result.unwrap();
                });
            }
        });
    }
    assert_eq!(notes.service().seen().len(), 600);
}

#[test]
fn a_full_caller_is_refused_and_others_are_not() {
    let executor = executor(&host(), Options { depth: 3, when_full: WhenFull::Refuse, ..options() });
    let notes = notes(&executor);
    let (one, other) = (executor.caller(), executor.caller());
    let mut pending: Vec<_> = (0..3).map(|i| one.submit(Request::new(notes.step(i), vec![1; 10])).unwrap()).collect();
    let refused = one.submit(Request::new(notes.step(3), vec![2; 10])).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Busy);
    pending.push(other.submit(Request::new(notes.step(4), vec![3; 10])).unwrap());
    assert!(pending.iter().all(|pending| !pending.is_done()));
    notes.service().open();
    finish(pending);
    // The refused request is whole, and there is room for it now.
    let outcome = one.run(refused.request);
    assert_eq!(outcome.source.unwrap().into_vec().unwrap(), [2; 10]);
}

#[test]
fn a_caller_that_waits_for_room_gets_it() {
    let executor = executor(&host(), Options { depth: 1, ..options() });
    let notes = notes(&executor);
    let caller = executor.caller();
    let first = caller.submit(Request::new(notes.step(1), vec![0; 10])).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| caller.submit(Request::new(notes.step(2), vec![0; 10])).unwrap().wait());
        notes.service().open();
        first.wait().result.unwrap();
        second.join().unwrap().result.unwrap();
    });
    assert_eq!(notes.service().seen(), [1, 2]);
}

#[test]
fn a_cancelled_request_gives_its_memory_back_and_is_not_computed() {
    let executor = executor(&host(), Options { cpu_threads: 1, ..options() });
    let notes = notes(&executor);
    let caller = executor.caller();
    let first = caller.submit(Request::new(notes.step(1), vec![0; 10])).unwrap();
    let second = caller.submit(Request::new(notes.step(2), vec![7; 10])).unwrap();
    second.cancel();
    notes.service().open();
    first.wait().result.unwrap();
    let outcome = second.wait();
    assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(outcome.source.and_then(Memory::into_vec).unwrap(), [7; 10]);
    assert_eq!(notes.service().seen(), [1]);
    assert_eq!(executor.statistics()[0].cancelled, 1);
}

/// One caller has queued a hundred requests before the other comes with ten.
#[test]
fn a_caller_with_much_work_does_not_hold_up_one_with_little() {
    let executor = executor(&host(), Options { cpu_threads: 1, ..options() });
    let notes = notes(&executor);
    let (greedy, modest) = (executor.caller(), executor.caller());
    // As large as the turn that each of them gets.
    let data = || vec![0; 16 << 10];
    let submit = |caller: &bifolio_compute::Caller, i| caller.submit(Request::new(notes.step(i), data())).unwrap();
    let mut pending: Vec<_> = (0..100).map(|i| submit(&greedy, i)).collect();
    pending.extend((1000..1010).map(|i| submit(&modest, i)));
    notes.service().open();
    finish(pending);
    let last = notes.service().seen().iter().position(|i| *i == 1009).unwrap();
    assert!(last <= 24, "the last of ten was number {last}");
}

#[test]
fn an_executor_that_is_dropped_ends_what_was_submitted() {
    let executor = executor(&host(), options());
    let key = Draw::afresh().bytes(16);
    let ctr = executor.register(AesCtr::new(executor.kernels(), &key).unwrap());
    let caller = executor.caller_in_order();
    let step = |i: u8| Request::new(ctr.step([i; 16]), vec![5; 30_000]);
    let path = |i: u8| if i.is_multiple_of(2) { Path::Cpu } else { Path::Device };
    let pending: Vec<_> = (0..20).map(|i| caller.submit(step(i).on(path(i))).unwrap()).collect();
    drop(executor);
    for (i, pending) in pending.into_iter().enumerate() {
        assert!(pending.is_done());
        assert!(written(pending.wait()) == answer(&key, [i as u8; 16], &vec![5; 30_000]));
    }
    let refused = caller.submit(step(0)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Closed);
}

/// Without kernels on the device the CPU is the right choice, and nothing is sent there.
#[test]
fn a_device_without_kernels_is_left_alone() {
    let executor = executor(&host(), Options { calibrates: true, ..options() });
    let crc = executor.register(Digests::new(executor.kernels(), Digest::Crc32c).unwrap());
    let input = Draw::afresh().bytes(100_000);
    let blocks = Digests::blocks(100_000, 4096);
    let expected: Vec<u8> = input.chunks(4096).flat_map(|block| digest::oracle(Digest::Crc32c, block)).collect();
    let before = executor.statistics()[0].device_bytes;
    let mut found = vec![0; expected.len()];
    for _ in 0..200 {
        found.fill(0xdd);
        crc.run(&blocks, Data::Read(&input), &mut found).unwrap();
        assert_eq!(found, expected);
    }
    assert_eq!(executor.statistics()[0].device_bytes, before);
}

#[test]
fn requests_of_wrong_shape_are_refused_with_their_memory() {
    let device = host();
    let executor = executor(&device, options());
    let ctr = executor.register(AesCtr::new(executor.kernels(), &[1; 16]).unwrap());
    let crc = executor.register(Digests::new(executor.kernels(), Digest::Crc32c).unwrap());
    let caller = executor.caller();
    let (stream, digest) = (|| ctr.step([0; 16]), || crc.step(Digests::blocks(64, 64)));
    let mut shared = vec![0_u8; 128];
    let at = shared.as_mut_ptr();
    // SAFETY: the vector outlives the requests, which are refused.
    let foreign = |from: usize| unsafe { bifolio_compute::HostMemory::foreign(at.wrapping_add(from), 64) };
    for (request, why) in [
        (Request::new(stream(), vec![0; 64]).into(vec![0; 63]), "63"),
        (Request::new(digest(), vec![0; 64]).into(vec![0; 64]), "writes nothing"),
        (Request::new(digest(), vec![0; 63]), "block"),
        (Request::new(stream(), Memory::Host(foreign(0))).into(Memory::Host(foreign(63))), "overlap"),
    ] {
        let refused = caller.submit(request).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::BadArgument);
        assert!(refused.error.to_string().contains(why), "{}", refused.error);
    }
    assert!(ctr.run(&[0; 16], Data::Apart(&[0; 64], &mut [0; 63]), &mut []).is_err());
    assert!(crc.run(&Digests::blocks(64, 64), Data::Read(&[0; 64]), &mut [0; 3]).is_err());
}
