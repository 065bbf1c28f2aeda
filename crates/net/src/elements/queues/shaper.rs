//! Shaper and BandwidthShaper: let packets be pulled at no more than a rate.
//!
//! `Shaper(RATE)`, `BandwidthShaper(RATE)`: pull input, pull outputs.
//!
//! - RATE: packets a second, or a bandwidth (`10 Mbps`, bytes a second without a unit); 0: none pass.
//!
//! Each second of the clock has RATE turns, evenly spaced. Who pulls output 0 in time gets a packet at each of them; turns
//! that were missed may be used later in the same second, at once. Output 1, if it is connected, gives packets while it is
//! nobody's turn.
//!
//! Handlers: `rate` (r/w: a new configuration), `reset`.
//!
//! Unlike Click's, turns are exact to the nanosecond at every rate, none pass at rate 0, output 1 of BandwidthShaper works,
//! and who pulls is told when it is time: a shaper with one output wakes them.

use super::bucket::Gap;
use super::rate::{rate_arg, unparse_rate};
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct Shaper<const BYTES: bool>(Gap);

impl<const BYTES: bool> Shaper<BYTES> {
    /// Nobody gets a packet until it is somebody's turn.
    fn rest(&self, cx: &mut Cx<'_>) {
        if cx.outputs() > 1 {
            return;
        }
        cx.note(false);
        if let Some(at) = self.0.ready_at() {
            cx.timer_at(0, at);
        }
    }
}

impl<const BYTES: bool> Element for Shaper<BYTES> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let rate = rate_arg::<BYTES>(args);
        args.finish()?;
        self.0 = Gap::new(rate);
        Ok(())
    }

    fn pull(&mut self, cx: &mut Cx<'_>, port: usize) -> Option<Packet> {
        let is_due = self.0.is_due(cx.now());
        if is_due != (port == 0) {
            self.rest(cx);
            return None;
        }
        let packet = cx.pull(0);
        match &packet {
            Some(packet) if port == 0 => self.0.take(if BYTES { packet.len() as i64 } else { 1 }),
            None if !cx.may_pull(0) => cx.note(false),
            _ => {}
        }
        packet
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        cx.note(true);
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        cx.note(true);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.keyword_write("rate", 0, "RATE");
        handlers.read("rate", |shaper: &mut Self, _| unparse_rate::<BYTES>(shaper.0.rate()));
        handlers.button("reset", |shaper: &mut Self, cx| {
            shaper.0.reset();
            cx.note(true);
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn packets_pass_at_their_turns() {
        let mut harness =
            Harness::new("InfiniteSource -> Queue(10) -> s :: Shaper(4) -> u :: Unqueue -> take :: Take(STAMP true)");
        let begin = harness.now();
        harness.pass(2.0);
        let times: Vec<_> = harness.take("take").iter().map(|packet| (packet.timestamp() - begin).nanos()).collect();
        assert_eq!(times, (0..9).map(|n| n * 250_000_000).collect::<Vec<_>>());
        harness.write("s.rate", "0").unwrap();
        harness.pass(2.0);
        assert!(harness.take("take").is_empty());
        assert_eq!((harness.read("s.rate"), harness.read("u.scheduled")), ("0".to_owned(), "false".to_owned()));
        harness.write("s.rate", "1000").unwrap();
        harness.pass(0.999);
        assert_eq!(harness.take("take").len(), 1000);
    }

    #[test]
    fn who_sleeps_wakes_when_packets_come() {
        let mut harness = Harness::new("give :: Give -> Queue -> Shaper(1) -> Unqueue -> take :: Take");
        harness.give("give", vec![crate::Packet::from_slice(b"x"); 3]);
        harness.pass(1.5);
        assert_eq!(harness.take("take").len(), 2);
        harness.pass(5.5);
        assert_eq!(harness.take("take").len(), 1);
        harness.give_bytes("give", b"x");
        assert_eq!(harness.take("take").len(), 1);
    }

    #[test]
    fn the_other_output_gives_what_is_too_much() {
        let mut harness = Harness::new(
            "is :: InfiniteSource(LIMIT 100) -> s :: Shaper(1000) -> shaped :: TakePull(MANUAL true);
             s[1] -> other :: TakePull(MANUAL true)",
        );
        for (rate, at_least, at_most) in [("1000", 98, 100), ("500", 48, 52), ("250", 23, 27), ("0", 0, 2)] {
            harness.write("s.rate", rate).unwrap();
            harness.write("s.reset", "").unwrap();
            harness.write("is.reset", "").unwrap();
            let (mut shaped, mut all) = (0, 0);
            for _ in 0..150 {
                harness.pass(0.001);
                if harness.pull("shaped").is_some() {
                    shaped += 1;
                    all += 1;
                } else {
                    all += usize::from(harness.pull("other").is_some());
                }
            }
            assert!((at_least..=at_most).contains(&shaped), "{rate}: {shaped}");
            assert_eq!(all, 100);
        }
    }

    #[test]
    fn bytes_have_turns_too() {
        let mut harness = Harness::new(
            "InfiniteSource(LENGTH 100) -> s :: BandwidthShaper(1kBps) -> Unqueue -> take :: Take(STAMP true)",
        );
        let begin = harness.now();
        harness.pass(1.05);
        let times: Vec<_> = harness.take("take").iter().map(|packet| (packet.timestamp() - begin).nanos()).collect();
        assert_eq!(times, (0..11).map(|n| n * 100_000_000).collect::<Vec<_>>());
        assert_eq!(harness.read("s.rate"), "8kbps");
        let told = Harness::errors("Idle -> Shaper -> Discard; Idle -> BandwidthShaper(x) -> Discard");
        assert!(told.contains("RATE: required argument missing") && told.contains("RATE: type mismatch"), "{told}");
    }
}
