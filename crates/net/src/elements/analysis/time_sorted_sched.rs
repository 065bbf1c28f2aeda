//! TimeSortedSched: merges streams of packets by their timestamps.
//!
//! `TimeSortedSched([STOP, BUFFER])`: any number of pull inputs, a pull output. Gives the packet with the earliest timestamp of
//! up to BUFFER (1) that it holds of each input. Packets of the same time leave in the order of their inputs.
//!
//! - STOP (false): stops the driver when there are no packets, and no input tells of any to come.
//!
//! Handlers: `well_ordered`: false once a packet has left behind a later one.

use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The element.
pub(super) struct TimeSortedSched {
    stops: bool,
    buffer: usize,
    /// By time, input, and number.
    packets: BTreeMap<(Timestamp, usize, u64), Packet>,
    /// Packets held of each input.
    held: Vec<usize>,
    number: u64,
    last: Timestamp,
    is_ordered: bool,
}

impl Default for TimeSortedSched {
    fn default() -> Self {
        Self {
            stops: false,
            buffer: 1,
            packets: BTreeMap::new(),
            held: Vec::new(),
            number: 0,
            last: Timestamp::ZERO,
            is_ordered: true,
        }
    }
}

impl TimeSortedSched {
    fn fill(&mut self, cx: &mut Cx<'_>) {
        self.held.resize(cx.inputs(), 0);
        for input in 0..self.held.len() {
            while self.held[input] < self.buffer {
                let Some(packet) = cx.pull(input) else { break };
                self.number += 1;
                self.held[input] += 1;
                self.packets.insert((packet.timestamp(), input, self.number), packet);
            }
        }
    }
}

impl Element for TimeSortedSched {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut buffer = 1i32;
        args.key("STOP", &mut self.stops).key("BUFFER", &mut buffer);
        if buffer <= 0 {
            args.error("BUFFER must be at least 1");
        }
        self.buffer = usize::try_from(buffer).unwrap_or(1);
        args.finish()
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        self.fill(cx);
        let Some(((time, input, _), packet)) = self.packets.pop_first() else {
            if self.stops && !(0..cx.inputs()).any(|input| cx.may_pull(input)) {
                cx.stop_driver();
            }
            return None;
        };
        self.held[input] -= 1;
        if !time.is_zero() {
            self.is_ordered &= Reverse(time) <= Reverse(self.last);
            self.last = time;
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("well_ordered", |sched: &mut Self, _| sched.is_ordered);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;
    use crate::{Packet, Timestamp};

    fn at(tenths: i64) -> Packet {
        let mut packet = Packet::from_slice(&[tenths as u8]);
        packet.set_timestamp(Timestamp::from_nanos(tenths * 100_000_000));
        packet
    }

    /// Merges two streams; gives what comes, and whether that was in order.
    fn merge(arguments: &str, one: &[i64], two: &[i64]) -> (Vec<u8>, String) {
        let mut harness = Harness::new(&format!(
            "a :: Give -> Queue -> t :: TimeSortedSched({arguments}) -> take :: TakePull(MANUAL true); b :: Give -> Queue -> [1]t"
        ));
        harness.give("a", one.iter().map(|tenths| at(*tenths)));
        harness.give("b", two.iter().map(|tenths| at(*tenths)));
        let mut merged = Vec::new();
        while let Some(packet) = harness.pull("take") {
            merged.push(packet.bytes()[0]);
        }
        (merged, harness.read("t.well_ordered"))
    }

    #[test]
    fn streams_are_merged_by_time() {
        let (one, two) = ([10, 2, 1, 12, 55], [3, 8, 9, 14]);
        assert_eq!(merge("BUFFER 3", &one, &two), (vec![1, 2, 3, 8, 9, 10, 12, 14, 55], "true".into()));
        assert_eq!(merge("BUFFER 2", &one, &two), (vec![2, 1, 3, 8, 9, 10, 12, 14, 55], "false".into()));
    }

    #[test]
    fn sorted_streams_stay_sorted() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let mut stream = || {
            let mut times: Vec<i64> = (0..random.usize(..50)).map(|_| random.i64(1..200)).collect();
            times.sort_unstable();
            times
        };
        let (one, two) = (stream(), stream());
        let mut expected: Vec<u8> = one.iter().chain(&two).map(|tenths| *tenths as u8).collect();
        expected.sort_unstable();
        assert_eq!(merge("", &one, &two), (expected, "true".into()));
    }

    #[test]
    fn the_driver_is_stopped_when_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dump");
        std::fs::write(&file, "!data timestamp\n1.0\n2.0\n").unwrap();
        let file = file.display();
        let mut harness = Harness::new(&format!(
            "t :: TimeSortedSched(STOP true) -> take :: TakePull; FromIPSummaryDump({file}) -> t; FromIPSummaryDump({file}) -> [1]t"
        ));
        harness.run();
        let times: Vec<i64> = harness.take("take").iter().map(|packet| packet.timestamp().secs()).collect();
        assert_eq!((times, harness.runcount()), (vec![1, 1, 2, 2], 0));
    }

    #[test]
    fn wrong_arguments_are_told() {
        assert!(
            Harness::errors("GivePull -> TimeSortedSched(BUFFER 0) -> TakePull").contains("BUFFER must be at least 1")
        );
    }
}
