//! Where packets come from and go to: elements of the benchmark's own, over memory.

use bifolio_net::args::{Args, Failed};
use bifolio_net::element::{Batch, Class, Element, Run};
use bifolio_net::packet::{self, Packet};
use bifolio_net::router::{Cx, Router};
use std::cell::RefCell;
use std::sync::Arc;

/// Frames of one length, one behind the other.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) frame_bytes: usize,
    pub(super) frames: Vec<u8>,
}

thread_local! {
    /// What sources that are made now send.
    static TRAFFIC: RefCell<Option<(Arc<Traffic>, u64)>> = const { RefCell::new(None) };
}

/// Sources that `work` makes send so many packets of this traffic, again and again from its beginning.
pub(super) fn with_traffic<R>(traffic: Arc<Traffic>, packets: u64, work: impl FnOnce() -> R) -> R {
    TRAFFIC.set(Some((traffic, packets)));
    let result = work();
    TRAFFIC.set(None);
    result
}

/// `BenchSource`: copies frames into packets.
#[derive(Default)]
struct Source {
    traffic: Option<Arc<Traffic>>,
    left: u64,
    at: usize,
}

impl Element for Source {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        if let Some((traffic, packets)) = TRAFFIC.with_borrow(Clone::clone) {
            (self.traffic, self.left) = (Some(traffic), packets);
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Some(traffic) = self.traffic.as_ref().filter(|_| self.left > 0) else {
            // Those that wait in queues get their time.
            cx.timer_after(0, bifolio_net::Timestamp::from_nanos(1));
            return Run::Stop;
        };
        self.left -= 1;
        let end = self.at + traffic.frame_bytes;
        cx.emit(0, Packet::from_slice(&traffic.frames[self.at..end]));
        self.at = if end == traffic.frames.len() { 0 } else { end };
        Run::Worked
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        let waits = (0..cx.router().len()).any(|element| {
            let class = cx.router().class_of(element).name;
            class == "Queue" && cx.read_of(Some(element), "length", "").is_ok_and(|length| length != "0")
        });
        if waits { cx.timer_after(0, bifolio_net::Timestamp::from_nanos(1)) } else { cx.stop_driver() }
    }
}

/// `BenchSink`: takes packets, pushed or pulled.
#[derive(Default)]
struct Sink {
    pulled: Batch,
}

impl Element for Sink {
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if cx.input_is_pull(0) {
            cx.schedule();
        }
        Ok(())
    }

    fn push(&mut self, _: &mut Cx<'_>, _: usize, _: Packet) {}

    fn push_batch(&mut self, _: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        packet::release(batch);
    }

    fn run_tasks(&mut self, cx: &mut Cx<'_>, times: usize) -> Run {
        let came = cx.pull_batch(0, times, &mut self.pulled);
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
