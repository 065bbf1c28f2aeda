//! What is counted of a router's elements at one moment.

use crate::router::{Current, Cx, Router, Running};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How many handlers a thread of the router reads before packets go on.
const MOST_AT_ONCE: usize = 64;
/// How long a thread of the router may take to come to it.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is known of an element. Handlers may set all of it but `inputs` back to 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// Packets that came to each input.
    pub inputs: Vec<u64>,
    /// Packets that it dropped, where it has a handler `drops`.
    pub drops: Option<u64>,
    /// Bytes that it counted, where it has a handler `byte_count`.
    pub bytes: Option<u64>,
    /// Packets that it stores, where it has handlers `length` and `capacity`.
    pub length: Option<u64>,
    /// How many it can store.
    pub capacity: Option<u64>,
}

/// All elements of a router at one moment.
#[derive(Clone)]
pub struct Sample {
    /// Whose they are.
    pub router: Arc<Router>,
    /// When it was taken.
    pub at: Instant,
    /// By the elements' numbers.
    pub elements: Vec<Reading>,
}

/// A handler whose value is a number.
#[derive(Debug, Clone, Copy)]
enum Meter {
    Drops,
    Bytes,
    Length,
    Capacity,
}

impl Meter {
    fn handler(self) -> &'static str {
        match self {
            Self::Drops => "drops",
            Self::Bytes => "byte_count",
            Self::Length => "length",
            Self::Capacity => "capacity",
        }
    }

    fn of(self, reading: &mut Reading) -> &mut Option<u64> {
        match self {
            Self::Drops => &mut reading.drops,
            Self::Bytes => &mut reading.bytes,
            Self::Length => &mut reading.length,
            Self::Capacity => &mut reading.capacity,
        }
    }
}

/// Takes samples of whichever router runs.
pub struct Watch {
    current: Current,
    known: Known,
    begin: SystemTime,
    /// Whether the router's thread has yet to come to what it was asked last.
    is_waiting: Arc<AtomicBool>,
}

/// A router, and which meters its elements have.
struct Known {
    router: Arc<Router>,
    meters: Arc<[(usize, Meter)]>,
}

impl Known {
    fn new(router: Arc<Router>) -> Self {
        let has = |element: usize, meter: Meter| {
            router.access(Some(element), meter.handler()).is_some_and(|(can_read, _)| can_read)
        };
        let meters = (0..router.len()).flat_map(|element| {
            // A `length` alone is that of packets, or something else.
            let is_storage = has(element, Meter::Length) && has(element, Meter::Capacity);
            let meters = [Meter::Drops, Meter::Bytes].into_iter().filter(move |meter| has(element, *meter));
            let storage = [Meter::Length, Meter::Capacity].into_iter().filter(move |_| is_storage);
            meters.chain(storage).map(move |meter| (element, meter))
        });
        let meters = meters.collect();
        Self { router, meters }
    }
}

impl Watch {
    /// Watches whichever router runs, from now on.
    pub fn new(current: Current) -> Self {
        let known = Known::new(current.router());
        Self { current, known, begin: SystemTime::now(), is_waiting: Arc::default() }
    }

    /// When it began.
    pub fn begin(&self) -> SystemTime {
        self.begin
    }

    /// A sample of the router as it is before it has run: everything is 0.
    pub fn nothing(&mut self) -> Sample {
        self.look();
        let router = &self.known.router;
        let inputs = |element| vec![0; router.ports_of(element).0];
        let elements = (0..router.len()).map(|element| Reading { inputs: inputs(element), ..Reading::default() });
        let mut elements: Vec<_> = elements.collect();
        self.known.meters.iter().for_each(|(element, meter)| *meter.of(&mut elements[*element]) = Some(0));
        Sample { router: Arc::clone(router), at: Instant::now(), elements }
    }

    /// A sample of packets alone, for which nobody is asked.
    pub fn counts(&mut self) -> Sample {
        self.look();
        let router = &self.known.router;
        let inputs = |element| (0..router.ports_of(element).0).map(|port| router.packets_in(element, port)).collect();
        let elements = (0..router.len()).map(|element| Reading { inputs: inputs(element), ..Reading::default() });
        Sample { router: Arc::clone(router), at: Instant::now(), elements: elements.collect() }
    }

    /// A whole sample. What handlers know is missing where the router does not run, or is too busy to say it.
    pub fn sample(&mut self) -> Sample {
        let mut sample = self.counts();
        let count = self.known.meters.len();
        for start in (0..count).step_by(MOST_AT_ONCE) {
            let range = start..count.min(start + MOST_AT_ONCE);
            let Some(values) = self.ask(range.clone()) else { break };
            sample.set(&self.known.meters[range], values);
        }
        sample
    }

    /// A whole sample of a router that has stopped.
    pub fn sample_of(&mut self, running: &mut Running) -> Sample {
        let mut sample = self.counts();
        if !sample.elements.is_empty() {
            let meters = &self.known.meters;
            sample.set(meters, running.enter(0, |cx| read(cx, meters)));
        }
        sample
    }

    /// Looks which router runs.
    fn look(&mut self) {
        let router = self.current.router();
        if !Arc::ptr_eq(&router, &self.known.router) {
            self.known = Known::new(router);
        }
    }

    /// Has the router read some of its meters. A router that has not come to it is not asked again before it has.
    fn ask(&self, range: Range<usize>) -> Option<Vec<Option<u64>>> {
        if self.is_waiting.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (meters, is_waiting) = (Arc::clone(&self.known.meters), Done(Arc::clone(&self.is_waiting)));
        self.known.router.ask(PATIENCE, move |cx| {
            let _done = is_waiting;
            read(cx, &meters[range])
        })
    }
}

/// Says that a question was answered, or forgotten.
struct Done(Arc<AtomicBool>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn read(cx: &mut Cx<'_>, meters: &[(usize, Meter)]) -> Vec<Option<u64>> {
    let mut value = |element, meter: Meter| cx.read_of(Some(element), meter.handler(), "").ok()?.trim().parse().ok();
    meters.iter().map(|(element, meter)| value(*element, *meter)).collect()
}

impl Sample {
    fn set(&mut self, meters: &[(usize, Meter)], values: Vec<Option<u64>>) {
        for ((element, meter), value) in meters.iter().zip(values) {
            *meter.of(&mut self.elements[*element]) = value;
        }
    }
}
