//! While one operation waits for a disk that does not answer, the others go on: all but those that need what it is at
//! work on, which wait for its end. Whoever waits too long is ended by a watchdog.

mod changes;
mod disks;

use crate::support::{FRAME, PAGE, Program, World, options, sets, until_aged, until_sure};
use bifolio_cache::fault::{self, Gate, Point};
use bifolio_cache::{CacheOptions, Mode};
use bifolio_device::Device;
use bifolio_testing::{noise, skip};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How long a test may take that would hang otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test, and fails if it hangs.
pub(crate) fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let running = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(()) => {}
        Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(running.join().unwrap_err()),
        Err(RecvTimeoutError::Timeout) => panic!("somebody still waits after {} s", PATIENCE.as_secs()),
    }
}

/// The same on devices of each kind.
fn watched(devices: u32, test: fn(&[Device])) {
    for devices in sets(devices) {
        in_time(move || test(&devices));
    }
}

/// Opens a gate whatever happens, so that a failure is told and does not hang.
struct Opening<'a>(&'a Gate);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Has this thread pass a gate when it comes to a point for the n-th time, and from then on.
fn pass_at((point, time): (Point, u32), gate: &Arc<Gate>) {
    let (gate, mut times) = (Arc::clone(gate), 0);
    fault::inject(move |at| {
        times += u32::from(at == point);
        if at == point && times >= time {
            gate.pass();
        }
        Ok(())
    });
}

/// Has `slow` wait at a point where it waits for a disk, and does something meanwhile.
pub(crate) fn while_waiting<T: Send>(point: Point, slow: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    while_waiting_at((point, 1), slow, meanwhile)
}

/// The same at the n-th time.
fn while_waiting_at<T: Send>(point: (Point, u32), slow: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    let gate = Arc::new(Gate::default());
    thread::scope(|scope| {
        let opening = Opening(&gate);
        let shut = Arc::clone(&gate);
        let waiting = scope.spawn(move || {
            pass_at(point, &shut);
            let outcome = slow();
            fault::cease();
            outcome
        });
        gate.until_reached(1);
        meanwhile();
        drop(opening);
        waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A file of some frames, and its content.
fn world(devices: &[Device], budget_frames: u64, frames: u64) -> (World, Vec<u8>) {
    let content = noise((frames * FRAME) as usize, 7);
    // Nothing is written unless somebody asks for it.
    let options = CacheOptions { write_back_after: Duration::MAX, ..options(PAGE, budget_frames, Mode::Lazy) };
    (World::new(devices, options, &content), content)
}

/// Acquires a range, checks it, and releases it.
fn check(program: &mut Program, content: &[u8], range: std::ops::Range<u64>) -> u64 {
    let report = program.mapping.acquire(range.clone()).unwrap();
    let seen = program.load(range.start, range.end - range.start);
    assert!(seen == content[range.start as usize..range.end as usize], "{range:?}");
    program.mapping.release(range).unwrap();
    report.fetched
}
/// Whether nothing but a change makes the cache compare here.
fn is_sure(world: &World, program: &mut Program) -> bool {
    until_aged(&world.path);
    until_sure(&mut program.mapping, 0..100);
    let report = program.mapping.acquire(0..100).unwrap();
    program.mapping.release(0..100).unwrap();
    if report.always_compared {
        skip("this file system does not tell of every change, so that every acquire compares");
    }
    !report.always_compared
}
