//! Gates hold the work behind them until the host opens them.
//!
//! Only page-locked memory is copied behind a closed gate, and all memory is allocated before:
//! otherwise a driver may wait for the very gate that the check has yet to open. For the same
//! reason a first fill goes before the gates: a driver may load its kernel for that, and loading
//! waits for the device.

use super::content::{POISON, download, noise, poison};
use crate::{Device, Event, Gate, Stream};
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Long enough for work that is not held back to be seen.
const A_WHILE: Duration = Duration::from_millis(20);

/// A bound for what must come: only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Shows that work is held back. Work that is not is done long before this has looked its last time.
#[track_caller]
pub(super) fn stays_undone(event: &Event) {
    let start = Instant::now();
    while start.elapsed() < A_WHILE {
        assert!(!event.query().unwrap(), "work behind a closed gate was done");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A wait that ends, so that a gate that does not open fails the check instead of hanging it.
#[track_caller]
fn becomes_done(event: &Event) {
    let start = Instant::now();
    while !event.query().unwrap() {
        assert!(start.elapsed() < PATIENCE, "work that no closed gate holds back is not done");
        std::thread::sleep(Duration::from_micros(50));
    }
    event.wait().unwrap();
}

pub(super) fn hold_work_back(device: &Device, random: &mut Rng) {
    let stream = device.create_stream().unwrap();
    let len = 1 + random.u64(..3 << 20);
    let memory = device.alloc(len).unwrap();
    let (mut source, mut target) =
        (device.alloc_pinned(len as usize).unwrap(), device.alloc_pinned(len as usize).unwrap());
    poison(&stream, memory.slice());
    target.bytes_mut().fill(POISON);
    let gate = stream.gate().unwrap();
    // SAFETY: all memory lives until the event is done; `source` is written while the gate is
    // closed, when the copy has not begun, and `target` is read after the event.
    unsafe {
        stream.copy_to_device(memory.slice(), source.as_ptr()).unwrap();
        stream.copy_to_host(target.as_mut_ptr(), memory.slice()).unwrap();
    }
    let copied = stream.record().unwrap();
    stays_undone(&copied);
    assert!(target.bytes().iter().all(|byte| *byte == POISON), "a copy ran behind a closed gate");
    let data = noise(random, len);
    source.bytes_mut().copy_from_slice(&data);
    gate.open();
    becomes_done(&copied);
    assert!(target.bytes() == data, "work behind a gate did not see what was written before it was opened");
    assert!(download(&stream, memory.slice()) == data);
}

pub(super) fn open_from_another_thread(device: &Device, _: &mut Rng) {
    let stream = device.create_stream().unwrap();
    let gate = stream.gate().unwrap();
    let behind = stream.record().unwrap();
    let (is_waited_for, is_opened) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_waited_for.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            stays_undone(&behind);
            is_opened.store(true, Ordering::SeqCst);
            gate.open();
        });
        is_waited_for.store(true, Ordering::SeqCst);
        behind.wait().unwrap();
        assert!(is_opened.load(Ordering::SeqCst), "the wait ended before the gate was opened");
    });
    stream.synchronize().unwrap();
}

pub(super) fn open_when_dropped(device: &Device, _: &mut Rng) {
    let stream = device.create_stream().unwrap();
    let dropped = stream.gate().unwrap();
    let behind = stream.record().unwrap();
    assert!(!behind.query().unwrap());
    drop(dropped);
    becomes_done(&behind);
    let held = stream.gate().unwrap();
    let behind = stream.record().unwrap();
    let unwound = std::thread::spawn(move || {
        let _held = held;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(unwound.join().is_err());
    becomes_done(&behind);
}

/// As many closed gates as any driver takes on one stream ([`Stream::gate`]).
const MANY: usize = 24;

/// One piece of work behind each of many gates of one stream.
fn close_many(stream: &Stream, memory: &crate::Allocation) -> (Vec<Gate>, Vec<Event>) {
    let piece = |index: usize| memory.slice().part(index as u64 * 64, 64).unwrap();
    // SAFETY: the memory lives until the synchronisation.
    unsafe { stream.fill(piece(0), POISON) }.unwrap();
    stream.synchronize().unwrap();
    let close = |index: usize| {
        let gate = stream.gate().unwrap();
        // SAFETY: the caller keeps the memory until all events are done.
        unsafe { stream.fill(piece(index), index as u8) }.unwrap();
        (gate, stream.record().unwrap())
    };
    (0..MANY).map(close).unzip()
}

fn expected() -> Vec<u8> {
    (0..MANY as u8).flat_map(|value| [value; 64]).collect()
}

pub(super) fn open_in_order(device: &Device, _: &mut Rng) {
    let (stream, memory) = (device.create_stream().unwrap(), device.alloc(MANY as u64 * 64).unwrap());
    poison(&stream, memory.slice());
    let (gates, events) = close_many(&stream, &memory);
    for (index, gate) in gates.into_iter().enumerate() {
        assert!(!events[index].query().unwrap(), "work {index} ran before its gate was opened");
        gate.open();
        becomes_done(&events[index]);
    }
    assert!(download(&stream, memory.slice()) == expected());
}

pub(super) fn open_in_reverse_order(device: &Device, _: &mut Rng) {
    let (stream, memory) = (device.create_stream().unwrap(), device.alloc(MANY as u64 * 64).unwrap());
    poison(&stream, memory.slice());
    let (mut gates, events) = close_many(&stream, &memory);
    while gates.len() > 1 {
        gates.pop().unwrap().open();
        assert!(!events[0].query().unwrap() && !events[MANY - 1].query().unwrap(), "work passed a closed gate");
    }
    stays_undone(&events[0]);
    drop(gates);
    becomes_done(&events[MANY - 1]);
    assert!(download(&stream, memory.slice()) == expected());
}

/// Several streams whose gates open in a random order: nothing passes a gate of its stream that
/// is closed, and in the end everything is done. Each round uses what earlier ones left behind.
pub(super) fn keep_streams_apart(device: &Device, random: &mut Rng) {
    let streams: Vec<_> = (0..4).map(|_| device.create_stream().unwrap()).collect();
    for _ in 0..10 {
        // The number of the stream, the gate while it is closed, and the event behind it.
        let mut gated: Vec<(usize, Option<Gate>, Event)> = vec![];
        for _ in 0..=random.u64(..30) {
            let stream = random.u64(..4) as usize;
            gated.push((stream, Some(streams[stream].gate().unwrap()), streams[stream].record().unwrap()));
        }
        for left in (1..=gated.len()).rev() {
            let (_, gate, _) =
                gated.iter_mut().filter(|gated| gated.1.is_some()).nth(random.u64(..left as u64) as usize).unwrap();
            gate.take().unwrap().open();
            let mut is_free = [true; 4];
            for (stream, gate, behind) in &gated {
                is_free[*stream] &= gate.is_none();
                assert!(is_free[*stream] || !behind.query().unwrap(), "an event passed a closed gate of its stream");
            }
        }
        for (_, _, behind) in &gated {
            becomes_done(behind);
        }
    }
}

pub(super) fn leave_other_streams_alone(device: &Device, random: &mut Rng) {
    if let Some(reason) = device.capabilities().concurrent_streams.reason() {
        println!("  not on this device: {reason}");
        return;
    }
    let (gated, other) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let (memory, beside) = (device.alloc(1 << 20).unwrap(), device.alloc(1 << 20).unwrap());
    let mut pinned = device.alloc_pinned(1 << 20).unwrap();
    pinned.bytes_mut().copy_from_slice(&noise(random, 1 << 20));
    poison(&gated, memory.slice());
    poison(&other, beside.slice());
    let gate = gated.gate().unwrap();
    // SAFETY: all memory lives until both streams are done, and nobody writes `pinned`.
    unsafe {
        gated.copy_to_device(memory.slice(), pinned.as_ptr()).unwrap();
        other.copy_to_device(beside.slice(), pinned.as_ptr()).unwrap();
    }
    let (behind, free) = (gated.record().unwrap(), other.record().unwrap());
    becomes_done(&free);
    assert!(!behind.query().unwrap());
    // A stream that waits for work behind a gate waits for the gate.
    other.wait(&behind).unwrap();
    let waiting = other.record().unwrap();
    stays_undone(&waiting);
    gate.open();
    becomes_done(&waiting);
    assert!(behind.query().unwrap());
    assert!(download(&other, beside.slice()) == pinned.bytes() && download(&gated, memory.slice()) == pinned.bytes());
}

pub(super) fn outlive_their_stream(device: &Device, _: &mut Rng) {
    let (stream, memory) = (device.create_stream().unwrap(), device.alloc(4096).unwrap());
    poison(&stream, memory.slice());
    // SAFETY: the memory lives until the event is done.
    unsafe { stream.fill(memory.slice(), 6) }.unwrap();
    stream.synchronize().unwrap();
    let gate = stream.gate().unwrap();
    // SAFETY: as above.
    unsafe { stream.fill(memory.slice(), 7) }.unwrap();
    let filled = stream.record().unwrap();
    std::thread::scope(|scope| {
        let closed = &filled;
        scope.spawn(move || {
            // The stream is dropped meanwhile, which may wait for this.
            stays_undone(closed);
            gate.open();
        });
        drop(stream);
        becomes_done(&filled);
    });
    assert!(download(&device.create_stream().unwrap(), memory.slice()) == [7; 4096]);
}
