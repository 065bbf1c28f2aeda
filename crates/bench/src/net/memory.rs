//! Where packets come from and go to: elements of the benchmark's own, over memory.
//!
//! Where a load is set, a source sends each packet when its time has come, whether there is room for it or not, and writes that
//! time into it; a sink looks at the clock once for all packets that come together. So a packet's latency begins when it was
//! to be sent, and a source that is late hides nothing.

use super::latency::Latencies;
use bifolio_net::args::{Args, Failed};
use bifolio_net::element::{Batch, Class, Element, Run};
use bifolio_net::packet::{self, Packet};
use bifolio_net::router::{Cx, Router};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// The annotation of 8 bytes with the time at which a packet was to be sent.
const SENT_ANNO: usize = packet::anno::FIRST_TIMESTAMP;

/// How often a source that has sent everything looks whether all has arrived.
const LOOK_NS: i64 = 20_000;
/// It is all when nothing has changed for so many looks.
const LOOKS: u32 = 50;

/// Frames, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) frames: Vec<u8>,
    /// Where each ends.
    pub(super) ends: Vec<usize>,
}

impl Traffic {
    /// Bytes of a frame, on average.
    pub(super) fn mean_bytes(&self) -> usize {
        self.frames.len() / self.ends.len().max(1)
    }
}

thread_local! {
    /// What sources that are made now send.
    static TRAFFIC: RefCell<Option<Sending>> = const { RefCell::new(None) };
}

/// What the sources of a router send.
#[derive(Clone)]
struct Sending {
    traffic: Arc<Traffic>,
    packets: u64,
    /// How many of them still do.
    sources: Arc<AtomicUsize>,
    /// Packets of all of them.
    all: Arc<AtomicU64>,
    /// A packet every so many nanoseconds, by each source; nothing: as many as there is room for.
    every_ns: Option<f64>,
    latencies: Latencies,
}

/// Sources that `work` makes send so many packets of this traffic, again and again from its beginning.
pub(super) fn with_traffic<R>(traffic: Arc<Traffic>, packets: u64, work: impl FnOnce() -> R) -> R {
    with_load(traffic, packets, None, Latencies::default(), work)
}

/// The same with a packet every so many nanoseconds by each source; sinks write down how long packets took.
pub(super) fn with_load<R>(
    traffic: Arc<Traffic>,
    packets: u64,
    every_ns: Option<f64>,
    latencies: Latencies,
    work: impl FnOnce() -> R,
) -> R {
    TRAFFIC.set(Some(Sending { traffic, packets, sources: Arc::default(), all: Arc::default(), every_ns, latencies }));
    let result = work();
    TRAFFIC.set(None);
    result
}

/// `BenchSource`: copies frames into packets.
#[derive(Default)]
struct Source {
    traffic: Option<Arc<Traffic>>,
    left: u64,
    /// How many sources still send.
    sending: Arc<AtomicUsize>,
    /// Packets of all sources.
    all: Arc<AtomicU64>,
    /// How often in a row nothing more had arrived, and how much had.
    looks: u32,
    arrived: u64,
    /// The next frame, and where it begins.
    next: usize,
    at: usize,
    load: Option<Load>,
}

/// When packets are to be sent.
struct Load {
    every_ns: f64,
    sent: u64,
    /// How many of them come before anything is measured.
    warm: u64,
    /// Of the first one.
    begin: Option<Instant>,
    clock: Latencies,
}

impl Load {
    /// The time of the next packet, if it has come; 0 where it is not to be measured.
    fn due(&mut self) -> Option<u64> {
        let now = Instant::now();
        let begin = *self.begin.get_or_insert(now);
        let due_ns = (self.sent as f64 * self.every_ns) as u64;
        if (now - begin).as_nanos() < u128::from(due_ns) {
            return None;
        }
        self.sent += 1;
        Some(if self.sent > self.warm { self.clock.at(begin) + due_ns } else { 0 })
    }
}

impl Source {
    /// The next frame as a packet.
    fn next_packet(&mut self) -> Option<Packet> {
        let traffic = self.traffic.as_ref()?;
        let end = traffic.ends[self.next];
        let packet = Packet::from_slice(&traffic.frames[self.at..end]);
        (self.next, self.at) = (self.next + 1, end);
        if self.next == traffic.ends.len() {
            (self.next, self.at) = (0, 0);
        }
        Some(packet)
    }
}

impl Element for Source {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        if let Some(Sending { traffic, packets, sources, all, every_ns, latencies }) = TRAFFIC.with_borrow(Clone::clone)
        {
            self.load =
                every_ns.map(|every_ns| Load { every_ns, sent: 0, warm: packets / 5, begin: None, clock: latencies });
            sources.fetch_add(usize::from(packets > 0), Ordering::AcqRel);
            all.fetch_add(packets, Ordering::AcqRel);
            (self.traffic, self.left, self.sending, self.all) = (Some(traffic), packets, sources, all);
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if self.traffic.is_none() || self.left == 0 {
            // Those that wait in queues get their time.
            cx.timer_after(0, bifolio_net::Timestamp::from_nanos(1));
            return Run::Stop;
        }
        let due = match &mut self.load {
            // It looks again and again, as somebody who polls a device does.
            Some(load) => match load.due() {
                Some(due) => Some(due),
                None => return Run::Worked,
            },
            None if !cx.may_push(0) => return Run::Idle,
            None => None,
        };
        self.left -= 1;
        if self.left == 0 {
            self.sending.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(mut packet) = self.next_packet() {
            if let Some(due) = due {
                packet.set_anno_u64(SENT_ANNO, due);
            }
            cx.emit(0, packet);
        }
        Run::Worked
    }

    /// Where no load is set, as many frames as there is room for, as a device's driver hands over what has come by then.
    fn run_tasks(&mut self, cx: &mut Cx<'_>, times: usize) -> Run {
        if self.load.is_some() || self.left <= times as u64 {
            let mut did = Run::Worked;
            for _ in 0..times {
                did = self.run_task(cx);
                if did != Run::Worked || cx.room() == 0 {
                    break;
                }
            }
            return did;
        }
        if !cx.may_push(0) {
            return Run::Idle;
        }
        let many = times.min(cx.room());
        self.left -= many as u64;
        for _ in 0..many {
            let Some(packet) = self.next_packet() else { break };
            cx.emit(0, packet);
        }
        Run::Worked
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        let waits = (0..cx.router().len()).any(|element| {
            let handler = match cx.router().class_of(element).name {
                "Queue" | "Batcher" | "GPUCompletionQueue" | "Debatcher" => "length",
                _ => return false,
            };
            cx.read_of(Some(element), handler, "").is_ok_and(|length| length != "0")
        });
        let waits = waits || self.sending.load(Ordering::Acquire) > 0;
        // What is on its way from one element to the next is nowhere, but comes.
        let arrived = arrived(cx.router());
        self.looks = if waits || arrived != self.arrived { 0 } else { self.looks + 1 };
        self.arrived = arrived;
        if self.looks < LOOKS && arrived != self.all.load(Ordering::Acquire) {
            cx.timer_after(0, bifolio_net::Timestamp::from_nanos(LOOK_NS));
        } else {
            cx.stop_driver();
        }
    }
}

/// `BenchSink`: takes packets, pushed or pulled.
#[derive(Default)]
struct Sink {
    pulled: Batch,
    latencies: Option<Latencies>,
}

impl Sink {
    /// Writes down how long packets took that came together.
    fn note(&self, packets: &[Packet]) {
        if let Some(latencies) = &self.latencies {
            let now = latencies.at(Instant::now());
            let sent = packets.iter().map(|packet| packet.anno_u64(SENT_ANNO)).filter(|sent| *sent > 0);
            latencies.note(sent.map(|sent| now.saturating_sub(sent)));
        }
    }
}

impl Element for Sink {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let sending = TRAFFIC.with_borrow(Clone::clone);
        self.latencies = sending.filter(|sending| sending.every_ns.is_some()).map(|sending| sending.latencies);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if cx.input_is_pull(0) {
            cx.schedule();
        }
        Ok(())
    }

    fn push(&mut self, _: &mut Cx<'_>, _: usize, packet: Packet) {
        self.note(&[packet]);
    }

    fn push_batch(&mut self, _: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        self.note(batch);
        packet::release(batch);
    }

    fn run_tasks(&mut self, cx: &mut Cx<'_>, times: usize) -> Run {
        let came = cx.pull_batch(0, times, &mut self.pulled);
        self.note(&self.pulled);
        packet::release(&mut self.pulled);
        if came > 0 { Run::Worked } else { Run::Idle }
    }
}

/// The elements.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<Source>("BenchSource", "0/1", "h", "copies frames into packets"),
    Class::new::<Sink>("BenchSink", "1/0", "a", "takes packets"),
];

/// How many packets have come to all sinks.
pub(super) fn arrived(router: &Router) -> u64 {
    let sinks = (0..router.len()).filter(|element| router.class_of(*element).name == "BenchSink");
    sinks.map(|element| router.packets_in(element, 0)).sum()
}
