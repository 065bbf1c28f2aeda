//! LinkUnqueue: pulls packets and pushes them on as a serial line would.
//!
//! `LinkUnqueue(LATENCY, BANDWIDTH)`: pull input, push output.
//!
//! - LATENCY: how long each bit is on its way, as a time (`5ms`).
//! - BANDWIDTH: bits or bytes a second (`100kbps`), at least 100 bytes a second.
//!
//! A packet takes its length, by the BANDWIDTH, and then the LATENCY; bytes that were not captured (EXTRA_LENGTH annotation)
//! count. It is pulled when the line begins to be free for it, and has the time at which it left as its timestamp.
//!
//! Handlers: `latency` (r/w), `bandwidth` (r/w), `size` (packets on the line), `reset`. What is written drops the packets
//! on the line.
//!
//! Unlike Click's, times are exact to the nanosecond, and BANDWIDTH is not rounded to hundreds of bytes.

use crate::args::{Args, Bandwidth, Failed, Interval};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::collections::VecDeque;

/// The element.
#[derive(Default)]
pub(super) struct LinkUnqueue {
    latency: Interval,
    bandwidth: Bandwidth,
    /// Packets by the times at which they arrive, which are their timestamps.
    line: VecDeque<Packet>,
    /// Whether the line was busy up to now.
    is_back_to_back: bool,
}

fn check(bandwidth: Bandwidth) -> Result<Bandwidth, String> {
    if bandwidth.0 < 100 {
        return Err("bandwidth too small, minimum 100Bps".to_owned());
    }
    Ok(bandwidth)
}

impl LinkUnqueue {
    /// How long a packet takes until its last bit is on the line.
    fn duration(&self, packet: &Packet) -> Timestamp {
        let bytes = packet.len() as u128 + u128::from(packet.anno_u32(anno::EXTRA_LENGTH));
        Timestamp::from_nanos((bytes * 1_000_000_000 / u128::from(self.bandwidth.0.max(1))) as i64)
    }

    /// Pulls what has room on the line; says whether there was something.
    fn pull_all(&mut self, cx: &mut Cx<'_>) -> bool {
        let soonest = cx.now() + self.latency.0;
        let mut pulled = false;
        while self.line.back().is_none_or(|last| last.timestamp() <= soonest) {
            let Some(mut packet) = cx.pull(0) else {
                self.is_back_to_back = false;
                break;
            };
            let before = self.line.back().filter(|_| self.is_back_to_back).map_or(soonest, Packet::timestamp);
            packet.set_timestamp(before + self.duration(&packet));
            self.line.push_back(packet);
            (pulled, self.is_back_to_back) = (true, true);
        }
        pulled
    }

    fn push_all(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut pushed = false;
        while self.line.front().is_some_and(|first| first.timestamp() <= cx.now()) {
            let Some(packet) = self.line.pop_front() else { break };
            cx.emit(0, packet);
            pushed = true;
        }
        pushed
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.line.clear();
        cx.timer_cancel(0);
        cx.schedule();
    }
}

impl Element for LinkUnqueue {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("LATENCY", &mut self.latency).must("BANDWIDTH", &mut self.bandwidth).finish()?;
        check(self.bandwidth).map(drop).map_err(|error| args.error(error))
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let pulled = self.pull_all(cx);
        let pushed = self.push_all(cx);
        let (Some(first), Some(last)) = (self.line.front(), self.line.back()) else {
            return if pulled || pushed { Run::Worked } else { Run::Idle };
        };
        let (first, has_room) = (first.timestamp(), last.timestamp() - self.latency.0);
        let waits_for_room = cx.may_pull(0) && has_room > cx.now();
        if !cx.may_pull(0) {
            // What comes next comes after a pause.
            self.is_back_to_back = false;
        }
        cx.timer_at(0, if waits_for_room { has_room.min(first) } else { first });
        match pulled || pushed {
            true => Run::Worked,
            false if waits_for_room => Run::Stop,
            // The line is free: a packet that comes wakes it as well.
            false => Run::Idle,
        }
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        cx.schedule();
    }

    fn stored(&self) -> Option<usize> {
        Some(self.line.len())
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("latency", |link: &mut Self, _| link.latency);
        handlers.write("latency", |link: &mut Self, cx, text| {
            link.latency = cx.parse(text).map_err(|_| "latency must be a timestamp".to_owned())?;
            link.reset(cx);
            Ok(())
        });
        handlers.read("bandwidth", |link: &mut Self, _| link.bandwidth);
        handlers.write("bandwidth", |link: &mut Self, cx, text| {
            link.bandwidth = check(cx.parse(text).map_err(|_| "invalid bandwidth".to_owned())?)?;
            link.reset(cx);
            Ok(())
        });
        handlers.read("size", |link: &mut Self, _| link.line.len());
        handlers.button("reset", Self::reset);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;
    use crate::packet::anno;
    use proptest::prelude::*;

    fn packet(len: usize) -> Packet {
        Packet::from_slice(&vec![0; len])
    }

    fn times(harness: &mut Harness) -> Vec<i64> {
        let at = 1_000_000_000_000_000_000;
        harness.take("take").iter().map(|packet| packet.timestamp().nanos() - at).collect()
    }

    #[test]
    fn packets_take_their_length_and_the_latency() {
        let mut harness = Harness::new("give :: Give -> Queue -> l :: LinkUnqueue(0.005, 100kb/s) -> take :: Take");
        let mut long = packet(20);
        long.set_anno_u32(anno::EXTRA_LENGTH, 1580);
        let all = [packet(20), packet(20), packet(1600), packet(20), long, packet(20)];
        harness.give("give", all);
        harness.pass(0.006);
        assert!(times(&mut harness).is_empty());
        assert_eq!(harness.read("l.size"), "3");
        harness.pass(1.0);
        let micros: Vec<_> = times(&mut harness).iter().map(|nanos| nanos / 1000).collect();
        assert_eq!(micros, [6600, 8200, 136_200, 137_800, 265_800, 267_400]);
    }

    #[test]
    fn settings_change_and_drop_what_is_on_the_line() {
        let mut harness = Harness::new("give :: Give -> q :: Queue -> l :: LinkUnqueue(1s, 1kBps) -> take :: Take");
        harness.give("give", (0..3).map(|_| packet(1000)));
        assert_eq!((harness.read("l.size"), harness.read("q.length")), ("1".to_owned(), "2".to_owned()));
        harness.write("l.reset", "").unwrap();
        assert_eq!((harness.read("l.size"), harness.read("q.length")), ("1".to_owned(), "1".to_owned()));
        harness.write("l.bandwidth", "8Mbps").unwrap();
        harness.write("l.latency", "10ms").unwrap();
        harness.pass(10.0);
        assert!(harness.take("take").is_empty());
        assert_eq!((harness.read("l.latency"), harness.read("l.bandwidth")), ("0.010000".into(), "1000000".to_owned()));
        harness.give("give", [packet(1000)]);
        harness.pass(0.1);
        assert_eq!(times(&mut harness), [10_011_000_000]);
        assert_eq!(harness.write("l.bandwidth", "99").unwrap_err(), "bandwidth too small, minimum 100Bps");
        let told = Harness::errors("Idle -> LinkUnqueue(x, 50Bps) -> Take; Idle -> LinkUnqueue(1, 50Bps) -> Take");
        assert!(told.contains("LATENCY: type mismatch") && told.contains("bandwidth too small"), "{told}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        /// Against the sum of what lies before each packet.
        #[test]
        fn lines_are_busy_or_free(
            bandwidth in 100..3_000_000u64,
            latency in 0..50_000u64,
            bursts in prop::collection::vec((0..100u64, prop::collection::vec(1..1500usize, 0..6)), 1..8),
        ) {
            let mut harness = Harness::new(&format!(
                "give :: Give -> Queue -> LinkUnqueue({latency}us, {bandwidth}Bps) -> take :: Take"
            ));
            let (mut free, mut now, mut expected) = (0, 0, Vec::new());
            for (pause, lens) in bursts {
                harness.pass(pause as f64 / 1000.0);
                now += pause as i64 * 1_000_000;
                for len in &lens {
                    free = free.max(now) + (*len as i64 * 1_000_000_000) / bandwidth as i64;
                    expected.push(free + latency as i64 * 1000);
                }
                harness.give("give", lens.into_iter().map(packet));
            }
            harness.pass(1000.0);
            prop_assert_eq!(times(&mut harness), expected);
        }
    }
}
