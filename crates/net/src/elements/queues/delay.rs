//! DelayUnqueue and DelayShaper: let packets wait for a while.
//!
//! `DelayUnqueue(DELAY)`: pull input, push output. `DelayShaper(DELAY)`: pull input, pull output.
//!
//! - DELAY: how long, as a time (`0.5`, `10ms`), counted from a packet's timestamp, or where it has none from when it is
//!   pulled.
//!
//! They hold one packet at a time, so none passes another one. A packet leaves DelayUnqueue with a timestamp that is DELAY
//! later, and DelayShaper with the time at which it leaves.
//!
//! Handlers: `delay` (r/w; counts for packets that come from now on).
//!
//! Unlike Click's, packets leave when it is time, to the nanosecond.

use crate::args::{Args, Failed, Interval};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, Timestamp};

/// A packet that waits, and for how long.
#[derive(Default)]
struct Waiting {
    delay: Interval,
    packet: Option<Packet>,
}

impl Waiting {
    /// The packet, if there is one and it is time; or else when that will be.
    fn next(&mut self, cx: &mut Cx<'_>) -> Result<Packet, Option<Timestamp>> {
        let packet = self.packet.take().or_else(|| {
            let mut packet = cx.pull(0)?;
            let came = if packet.timestamp().secs() == 0 { cx.now() } else { packet.timestamp() };
            packet.set_timestamp(came + self.delay.0);
            Some(packet)
        });
        let packet = packet.ok_or(None)?;
        let at = packet.timestamp();
        if at <= cx.now() {
            return Ok(packet);
        }
        self.packet = Some(packet);
        cx.timer_at(0, at);
        Err(Some(at))
    }
}

/// The element.
#[derive(Default)]
pub(super) struct DelayUnqueue(Waiting);

impl Element for DelayUnqueue {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("DELAY", &mut self.0.delay).finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        match self.0.next(cx) {
            Ok(packet) => {
                cx.emit(0, packet);
                Run::Worked
            }
            Err(Some(_)) => Run::Stop,
            Err(None) => Run::Idle,
        }
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        cx.schedule();
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("delay", |element: &mut Self| &mut element.0.delay);
    }
}

/// The element.
#[derive(Default)]
pub(super) struct DelayShaper(Waiting);

impl Element for DelayShaper {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("DELAY", &mut self.0.delay).finish()
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        match self.0.next(cx) {
            Ok(mut packet) => {
                packet.set_timestamp(cx.now());
                return Some(packet);
            }
            Err(Some(_)) => cx.note(false),
            Err(None) if !cx.may_pull(0) => cx.note(false),
            Err(None) => {}
        }
        None
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        cx.note(true);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("delay", |element: &mut Self| &mut element.0.delay);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;
    use crate::{Packet, Timestamp};
    use proptest::prelude::*;

    const CONFIGS: [&str; 2] = ["d :: DelayUnqueue(50ms)", "d :: DelayShaper(0.05) -> Unqueue"];

    #[test]
    fn packets_leave_later() {
        for config in CONFIGS {
            let mut harness = Harness::new(&format!("give :: Give -> q :: Queue -> {config} -> take :: Take"));
            let begin = harness.now();
            assert_eq!(harness.read("d.delay"), "0.050000");
            harness.give("give", (0..3).map(|n| Packet::from_slice(&[n])));
            harness.pass(0.049_999_999);
            assert!(harness.take("take").is_empty());
            assert_eq!(harness.read("q.length"), "2");
            harness.pass(0.000_000_001);
            // The others were pulled now: they had no timestamp, and come one after the other.
            assert_eq!(harness.take("take")[0].timestamp(), begin + Timestamp::from_nanos(50_000_000));
            harness.pass(0.1);
            assert_eq!(harness.take_bytes("take"), [[1], [2]]);
            harness.write("d.delay", "2s").unwrap();
            harness.give_bytes("give", b"x");
            harness.pass(1.9);
            assert!(harness.take("take").is_empty());
            harness.pass(0.2);
            assert_eq!(harness.take_bytes("take"), [b"x"]);
            assert!(harness.write("d.delay", "long").is_err());
            let told =
                Harness::errors(&format!("Idle -> {} -> Take", config.replace("50ms", "x").replace("0.05", "x")));
            assert!(told.contains("DELAY: type mismatch"), "{told}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn packets_wait_from_their_timestamp_on(offsets in prop::collection::vec(-80_000_000..80_000_000i64, 1..20)) {
            for config in CONFIGS {
                let mut harness = Harness::new(&format!(
                    "give :: Give -> Queue -> {config} -> take :: Take(STAMP true)"
                ));
                let begin = harness.now();
                harness.give("give", offsets.iter().map(|offset| {
                    let mut packet = Packet::from_slice(b"x");
                    packet.set_timestamp(begin + Timestamp::from_nanos(*offset));
                    packet
                }));
                harness.pass(1.0);
                let times: Vec<_> = harness.take("take").iter().map(|packet| (packet.timestamp() - begin).nanos()).collect();
                // Each when its time has come, and all before it have left.
                let mut last = 0;
                let expected: Vec<_> = offsets.iter().map(|offset| { last = last.max(offset + 50_000_000); last }).collect();
                prop_assert_eq!(times, expected);
            }
        }
    }
}
