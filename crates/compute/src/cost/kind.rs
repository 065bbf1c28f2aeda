//! What is known of one kind of work: its curves, its counts, and whether the device still does it.

use super::choice::TRIAL_PAUSE;
use super::curve::{Curve, knee};
use super::path::{Path, Route};
use super::tally::Tallies;
use serde::Serialize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// One kind of work: services of one name, or chains of the same names.
#[derive(Debug)]
pub(crate) struct Kind {
    name: &'static str,
    curves: [[Curve; 4]; 2],
    /// Why the device never does it, or never will again.
    off: OnceLock<String>,
    /// Why it could not take a request, though it was well.
    unsuited: OnceLock<String>,
    failing: Failing,
    /// Requests that their callers' threads computed.
    inline: Tallies,
    counts: Counts,
    /// Inline requests of this size need no new choice for a while.
    settled_bytes: AtomicU64,
    /// Requests that were chosen for, each or many at a time.
    ticks: AtomicU64,
    /// What callers who wait see besides the work, on each path, as bits of f32: waking up somebody, and being woken.
    wake_ns: [AtomicU32; 2],
    born: Instant,
    /// Nanoseconds after its birth before which no path is tried.
    next_trial_ns: AtomicU64,
    /// Bytes of whole small requests that wait for a pipeline, by route: who comes can share their batch.
    waiting_bytes: [AtomicU64; 4],
}

/// One inline request of a thread in so many is chosen for and timed: a choice and a clock cost twice as much as the
/// smallest request.
pub(crate) const TIME_EVERY: u64 = 256;

/// A device that fails rests, and is tried again: what it lacks may be there later.
#[derive(Debug, Default)]
struct Failing {
    /// Nanoseconds after the kind's birth until which it rests; 0 while all is well.
    until_ns: AtomicU64,
    /// Why, and how often in a row.
    last: Mutex<Option<(String, u32)>>,
}

/// How long a device rests after its first failure; twice as long after each further one in a row.
const REST: Duration = Duration::from_secs(1);
/// The longest rest is that after so many failures.
const RESTS_MAX: u32 = 7;

/// The share of the best rate at which a batch is large enough.
const KNEE: f32 = 0.8;

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    split: AtomicU64,
    parts: AtomicU64,
    batches: AtomicU64,
    batched: AtomicU64,
    merged: AtomicU64,
    cpu_bytes: AtomicU64,
    device_bytes: AtomicU64,
    waiting_ns: AtomicU64,
    running_ns: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    taken_over: AtomicU64,
    /// Counted inline, and not computed there.
    taken_back: AtomicU64,
    taken_back_bytes: AtomicU64,
}

/// What happened to the work of a kind since the executor began.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ServiceStatistics {
    /// The kind: a service's name, or those of a chain.
    pub service: String,
    /// Requests that are over, those below included.
    pub requests: u64,
    /// Requests that the CPU computed on their callers' own threads.
    pub inline: u64,
    /// Requests that were cut into several parts.
    pub split: u64,
    /// Parts that were computed.
    pub parts: u64,
    /// Parts that shared a batch with another one.
    pub merged: u64,
    /// Batches on the device.
    pub batches: u64,
    /// Parts in a batch, on average.
    pub batch_parts_mean: f64,
    /// Bytes that the CPU read.
    pub cpu_bytes: u64,
    /// Bytes that the device read.
    pub device_bytes: u64,
    /// Time that parts waited for a thread, in seconds, without inline requests.
    pub waiting_s: f64,
    /// Time that parts were computed, in seconds, without inline requests.
    pub running_s: f64,
    /// Requests that failed, without cancelled ones.
    pub failed: u64,
    /// Requests that were cancelled in time.
    pub cancelled: u64,
    /// Parts that the CPU computed because the device failed or could not take them.
    pub taken_over: u64,
    /// Why the device does not do this work, or failed at it when it was tried last.
    pub device_off: Option<String>,
}

impl Kind {
    pub(crate) fn new(name: &'static str) -> Self {
        let (inline, counts) = (Tallies::default(), Counts::default());
        let (curves, waiting_bytes, wake_ns) = Default::default();
        let [settled_bytes, ticks, next_trial_ns] = [u64::MAX, 0, 0].map(AtomicU64::new);
        let (off, unsuited, failing, born) = (OnceLock::new(), OnceLock::new(), Failing::default(), Instant::now());
        Self {
            name,
            curves,
            off,
            unsuited,
            failing,
            inline,
            counts,
            settled_bytes,
            ticks,
            wake_ns,
            born,
            next_trial_ns,
            waiting_bytes,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn curve(&self, path: Path, route: Route) -> &Curve {
        &self.curves[path as usize][route as usize]
    }

    /// From how many bytes on, up to `most`, a larger batch gains the device little; `most` if nothing is known.
    pub(crate) fn knee(&self, route: Route, most: u64) -> u64 {
        knee(&self.curve(Path::Device, route).snapshot(), KNEE, most)
    }

    /// What a request takes on a path, in nanoseconds. One that may wait a moment joins what waits for the device.
    pub(crate) fn expect(&self, path: Path, route: Route, bytes: u64, may_join: bool) -> Option<f32> {
        let waiting = match path {
            Path::Device if may_join => self.waiting_bytes[route as usize].load(Ordering::Relaxed),
            _ => 0,
        };
        self.curve(path, route).joining(waiting, bytes)
    }

    /// Whether the path that is thought to be slower may be tried: not soon after the last time.
    pub(crate) fn may_try(&self) -> bool {
        self.born.elapsed().as_nanos() as u64 >= self.next_trial_ns.load(Ordering::Relaxed)
    }

    /// Notes that a trial is over and took so long.
    pub(crate) fn tried(&self, ns: f32) {
        let pause = (ns * TRIAL_PAUSE) as u64;
        self.next_trial_ns.store(self.born.elapsed().as_nanos() as u64 + pause, Ordering::Relaxed);
    }

    /// The number of a request that is chosen for, if it is one of so many.
    pub(crate) fn tick(&self, turns: u64) -> u64 {
        self.ticks.fetch_add(turns, Ordering::Relaxed)
    }

    /// Learns from a request whose caller waited, and had it to itself: from what the caller saw, and what the work took.
    pub(crate) fn learn_waited(&self, path: Path, route: Route, bytes: u64, (seen_ns, ran_ns): (f32, f32)) {
        let wake = &self.wake_ns[path as usize];
        let before = f32::from_bits(wake.load(Ordering::Relaxed));
        let more = (seen_ns - ran_ns).max(0.0);
        // Rather the least: whatever else a machine does makes it longer.
        let weight = if before == 0.0 {
            1.0
        } else if more < before {
            0.25
        } else {
            0.05
        };
        wake.store((before + weight * (more - before)).to_bits(), Ordering::Relaxed);
        self.curve(path, route).observe(bytes, seen_ns);
    }

    /// Learns from work for which nobody waited: curves are about what one who waits sees.
    pub(crate) fn learn_ran(&self, path: Path, route: Route, bytes: u64, ran_ns: f32) {
        let wake_ns = f32::from_bits(self.wake_ns[path as usize].load(Ordering::Relaxed));
        self.curve(path, route).observe(bytes, ran_ns + wake_ns);
    }

    pub(crate) fn add_waiting(&self, route: Route, bytes: u64) {
        self.waiting_bytes[route as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take_waiting(&self, route: Route, bytes: u64) {
        self.waiting_bytes[route as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes the device path away for good; the first reason stays.
    pub(crate) fn turn_off(&self, reason: String) {
        let _ = self.off.set(reason);
    }

    /// Why the device never does it.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.off.get().map(String::as_str)
    }

    /// The device failed: it rests, longer each time.
    pub(crate) fn fail(&self, reason: String) {
        let mut last = self.lock_last();
        let times = last.as_ref().map_or(0, |(_, times)| *times) + 1;
        *last = Some((reason, times));
        let rest = REST * (1 << (times.min(RESTS_MAX) - 1));
        self.failing.until_ns.store((self.born.elapsed() + rest).as_nanos() as u64, Ordering::Relaxed);
    }

    /// The device could not take a request, though it is well; the first reason stays.
    pub(crate) fn note_unsuited(&self, reason: String) {
        let _ = self.unsuited.set(reason);
    }

    /// Why the device could not take a request, though it was well.
    pub(crate) fn unsuited(&self) -> Option<&str> {
        self.unsuited.get().map(String::as_str)
    }

    /// The device has done its work.
    pub(crate) fn succeed(&self) {
        if self.failing.until_ns.load(Ordering::Relaxed) != 0 {
            *self.lock_last() = None;
            self.failing.until_ns.store(0, Ordering::Relaxed);
        }
    }

    fn lock_last(&self) -> MutexGuard<'_, Option<(String, u32)>> {
        self.failing.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device does nothing of it now.
    pub(crate) fn is_off(&self) -> bool {
        let until_ns = self.failing.until_ns.load(Ordering::Relaxed);
        self.off.get().is_some() || until_ns != 0 && (self.born.elapsed().as_nanos() as u64) < until_ns
    }

    /// Why the device does nothing of it, or did nothing when it was tried last.
    pub(crate) fn why_off(&self) -> Option<String> {
        let has_failed = || self.failing.until_ns.load(Ordering::Relaxed) != 0;
        let failed = || has_failed().then(|| self.lock_last().as_ref().map(|(reason, _)| reason.clone())).flatten();
        self.off.get().cloned().or_else(failed)
    }

    /// Counts a request on its caller's thread; whether it shall be chosen for and timed.
    pub(crate) fn count_inline(&self, bytes: u64) -> bool {
        self.inline.count(bytes) % TIME_EVERY == TIME_EVERY - 1
    }

    /// A request that was counted inline was none after all.
    pub(crate) fn take_back_inline(&self, bytes: u64) {
        self.counts.taken_back.fetch_add(1, Ordering::Relaxed);
        self.counts.taken_back_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether requests of so many bytes are for their callers' threads, as it was chosen a moment ago.
    pub(crate) fn is_settled(&self, bytes: u64) -> bool {
        self.settled_bytes.load(Ordering::Relaxed) == bytes
    }

    /// Notes that they are, or with none that it has to be chosen anew.
    pub(crate) fn settle(&self, bytes: Option<u64>) {
        self.settled_bytes.store(bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count_parts(&self, path: Path, bytes: u64, waited_ns: u64, ran_ns: u64) {
        let of_path = if path == Path::Cpu { &self.counts.cpu_bytes } else { &self.counts.device_bytes };
        of_path.fetch_add(bytes, Ordering::Relaxed);
        self.counts.parts.fetch_add(1, Ordering::Relaxed);
        self.counts.waiting_ns.fetch_add(waited_ns, Ordering::Relaxed);
        self.counts.running_ns.fetch_add(ran_ns, Ordering::Relaxed);
    }

    pub(crate) fn count_batch(&self, parts: u64) {
        self.counts.batches.fetch_add(1, Ordering::Relaxed);
        self.counts.batched.fetch_add(parts, Ordering::Relaxed);
        if parts > 1 {
            self.counts.merged.fetch_add(parts, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_takeover(&self, parts: u64) {
        self.counts.taken_over.fetch_add(parts, Ordering::Relaxed);
    }

    /// Counts a request that is over and had so many parts.
    pub(crate) fn count_request(&self, parts: usize, error: Option<crate::ErrorKind>) {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        if parts > 1 {
            self.counts.split.fetch_add(1, Ordering::Relaxed);
        }
        match error {
            None => 0,
            Some(crate::ErrorKind::Cancelled) => self.counts.cancelled.fetch_add(1, Ordering::Relaxed),
            Some(_) => self.counts.failed.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn statistics(&self) -> ServiceStatistics {
        let (inline, inline_bytes) = self.inline.sum();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        let inline = inline.saturating_sub(read(&counts.taken_back));
        let inline_bytes = inline_bytes.saturating_sub(read(&counts.taken_back_bytes));
        let batches = read(&counts.batches);
        ServiceStatistics {
            service: self.name.to_owned(),
            requests: read(&counts.requests) + inline,
            inline,
            split: read(&counts.split),
            parts: read(&counts.parts),
            merged: read(&counts.merged),
            batches,
            batch_parts_mean: read(&counts.batched) as f64 / batches.max(1) as f64,
            cpu_bytes: read(&counts.cpu_bytes) + inline_bytes,
            device_bytes: read(&counts.device_bytes),
            waiting_s: read(&counts.waiting_ns) as f64 / 1e9,
            running_s: read(&counts.running_ns) as f64 / 1e9,
            failed: read(&counts.failed),
            cancelled: read(&counts.cancelled),
            taken_over: read(&counts.taken_over),
            device_off: self.why_off(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_requests_are_counted_to_the_last_byte() {
        let (kind, other) = (Kind::new("test"), Kind::new("other"));
        let count = || {
            let timed = (0..50_000_u64).filter(|i| kind.count_inline(i % 7)).count();
            assert!(timed >= 49_000 / TIME_EVERY as usize);
            other.count_inline(1);
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(count);
            }
        });
        count();
        let found = kind.statistics();
        assert_eq!((found.requests, found.inline), (200_000, 200_000));
        assert_eq!(found.cpu_bytes, 4 * (0..50_000_u64).map(|i| i % 7).sum::<u64>());
        assert_eq!(other.statistics().inline, 4);
        // The threads are gone, and their counts are not.
        assert_eq!(kind.statistics(), found);
        kind.take_back_inline(3);
        assert_eq!(kind.statistics().inline, found.inline - 1);
        assert_eq!(kind.statistics().cpu_bytes, found.cpu_bytes - 3);
    }

    #[test]
    fn a_device_that_failed_rests_longer_each_time_and_is_forgiven() {
        let kind = Kind::new("test");
        let rest =
            || kind.failing.until_ns.load(Ordering::Relaxed).saturating_sub(kind.born.elapsed().as_nanos() as u64);
        let mut longest = 0;
        for times in 1..=RESTS_MAX + 2 {
            kind.fail(format!("failure {times}"));
            assert!(kind.is_off() && kind.why_off() == Some(format!("failure {times}")));
            assert!(rest() > longest || times > RESTS_MAX, "{times}: {} after {longest}", rest());
            longest = rest();
        }
        assert!(longest <= 64_000_000_000);
        kind.failing.until_ns.store(1, Ordering::Relaxed);
        assert!(!kind.is_off() && kind.why_off().is_some(), "it is tried again, and not forgiven yet");
        kind.succeed();
        assert!(!kind.is_off() && kind.why_off().is_none());
        kind.turn_off("never".to_owned());
        kind.succeed();
        assert!(kind.is_off() && kind.why_off().as_deref() == Some("never"));
    }

    #[test]
    fn threads_of_one_request_each_take_their_turns_all_the_same() {
        let kind = Kind::new("test");
        let alone = || std::thread::scope(|scope| scope.spawn(|| kind.count_inline(1)).join().unwrap());
        assert_eq!((0..2 * TIME_EVERY).filter(|_| alone()).count(), 2);
    }
}
