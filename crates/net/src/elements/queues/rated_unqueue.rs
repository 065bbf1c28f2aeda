//! RatedUnqueue and BandwidthRatedUnqueue: pull packets at a rate, and push them on.
//!
//! `RatedUnqueue(RATE [, BURST_DURATION, BURST_SIZE])`, `BandwidthRatedUnqueue(RATE [, BURST_DURATION, BURST_BYTES])`: pull
//! input, push output.
//!
//! - RATE: packets a second, or a bandwidth (`10 Mbps`, bytes a second without a unit); 0: without a bound.
//! - BURST_DURATION (keyword): the time whose packets it makes up for when none came for a while; 20 ms.
//! - BURST_SIZE, BURST_BYTES (keyword): the same as a number of packets, at least 1, or of bytes; not both.
//!
//! It is a token bucket that begins full. A packet needs a token; where tokens are bytes, it leaves as long as nothing is
//! owed, and owes what it takes too much.
//!
//! Handlers: `rate` (r/w: a new configuration), `active` (r/w), `calls`.
//!
//! Unlike Click's, times are exact to the nanosecond, so that Click's 909 packets in 1,000 turns of a bucket for one packet
//! are 1,000 here. `active` wakes it when it is set.

use super::rate::{Limit, unparse_rate};
use crate::args::{Args, Failed};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct RatedUnqueue<const BYTES: bool> {
    limit: Limit<BYTES>,
    is_inactive: bool,
    runs: u64,
    empty_runs: u64,
    pushes: u64,
    failed_pulls: u64,
}

impl<const BYTES: bool> Element for RatedUnqueue<BYTES> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.limit.configure(args)
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        self.runs += 1;
        if self.is_inactive {
            return Run::Stop;
        }
        let bucket = &mut self.limit.0;
        bucket.refill(cx.now());
        if !bucket.contains(Limit::<BYTES>::NEEDS) {
            self.empty_runs += 1;
            cx.timer_at(0, bucket.ready_at(Limit::<BYTES>::NEEDS));
            return Run::Stop;
        }
        let Some(packet) = cx.pull(0) else {
            self.failed_pulls += 1;
            self.empty_runs += 1;
            return Run::Idle;
        };
        self.limit.take(&packet);
        self.pushes += 1;
        cx.emit(0, packet);
        Run::Worked
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        cx.schedule();
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        cx.schedule();
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.keyword_write("rate", 0, "RATE");
        handlers.read("rate", |unqueue: &mut Self, _| unparse_rate::<BYTES>(unqueue.limit.0.rate()));
        handlers.read("active", |unqueue: &mut Self, _| !unqueue.is_inactive);
        handlers.write("active", |unqueue: &mut Self, cx, text| {
            unqueue.is_inactive = !cx.parse::<bool>(text)?;
            cx.schedule();
            Ok(())
        });
        handlers.read("calls", |unqueue: &mut Self, _| {
            format!(
                "{} calls to run_task()\n{} empty runs\n{} pushes\n{} failed pulls\n",
                unqueue.runs, unqueue.empty_runs, unqueue.pushes, unqueue.failed_pulls
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;
    use crate::{Packet, Timestamp};
    use proptest::prelude::*;

    /// How many packets of 100 bytes leave in a time, in seconds.
    fn count(unqueue: &str, seconds: f64) -> usize {
        let mut harness =
            Harness::new(&format!("InfiniteSource(LENGTH 100) -> Queue(10) -> {unqueue} -> take :: Take"));
        harness.pass(seconds);
        harness.take("take").len()
    }

    #[test]
    fn packets_leave_at_the_rate() {
        // Up to, and not in, the tenth second.
        for (config, packets) in [
            ("RATE 2", 20),
            ("RATE 2, BURST_SIZE 50", 69),
            ("RATE 2, BURST_DURATION 25", 69),
            ("100, BURST_SIZE 1", 1000),
            ("2, BURST_SIZE 0", 20),
        ] {
            assert_eq!(count(&format!("RatedUnqueue({config})"), 9.999_999_999), packets, "{config}");
        }
        for (config, packets) in [
            ("200Bps", 21),
            ("RATE 200Bps, BURST_BYTES 5000", 70),
            ("1.6kbps, BURST_DURATION 25", 70),
            ("10000, BURST_BYTES 100", 1001),
        ] {
            assert_eq!(count(&format!("BandwidthRatedUnqueue({config})"), 9.999_999_999), packets, "{config}");
        }
    }

    #[test]
    fn it_is_changed_while_it_runs() {
        let mut harness = Harness::new("give :: Give -> Queue -> u :: RatedUnqueue(1) -> take :: Take");
        harness.give("give", (0..100).map(|n| Packet::from_slice(&[n])));
        assert_eq!((harness.take("take").len(), harness.read("u.rate")), (1, "1".to_owned()));
        harness.write("u.rate", "4").unwrap();
        assert_eq!(harness.read("u.config"), "4");
        harness.pass(1.0);
        assert_eq!(harness.take("take").len(), 4);
        harness.write("u.active", "false").unwrap();
        harness.pass(10.0);
        assert!(harness.take("take").is_empty());
        harness.write("u.active", "true").unwrap();
        assert_eq!(harness.take("take").len(), 1);
        harness.write("u.rate", "0").unwrap();
        assert_eq!((harness.take("take").len(), harness.read("u.active")), (94, "true".to_owned()));
        assert!(harness.read("u.calls").contains("\n100 pushes\n"), "{}", harness.read("u.calls"));
        assert!(harness.write("u.rate", "x").unwrap_err().contains("RATE: invalid number"));
        let told = Harness::errors("Idle -> BandwidthRatedUnqueue(100GBps) -> Take");
        assert!(told.contains("RATE: out of range, bound 4294967295"), "{told}");
        let told = Harness::errors("Idle -> RatedUnqueue -> Take");
        assert!(told.contains("RATE: required argument missing"), "{told}");
        let told = Harness::errors("Idle -> RatedUnqueue(5, BURST_SIZE 5, BURST_DURATION 1s) -> Take");
        assert!(told.contains("cannot specify both BURST_DURATION and BURST_SIZE"), "{told}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Times of packets against a bucket that is counted in thousandths of a second and parts of tokens.
        #[test]
        fn times_are_exact(
            bytes in any::<bool>(), rate in 1..2000u64, burst in 0..3000u64, lens in prop::collection::vec(1..300usize, 1..60),
        ) {
            let (class, size) = if bytes { ("BandwidthRatedUnqueue", "BURST_BYTES") } else { ("RatedUnqueue", "BURST_SIZE") };
            let mut harness = Harness::new(&format!(
                "give :: Give -> Queue -> u :: {class}({rate}, {size} {burst}) -> take :: Take(STAMP true)"
            ));
            let begin = harness.now();
            harness.give("give", lens.iter().map(|len| Packet::from_slice(&vec![0; *len])));
            harness.pass(20_000.0);
            let times: Vec<_> = harness.take("take").iter().map(|packet| (packet.timestamp() - begin).nanos()).collect();
            // In billionths of tokens: a bucket that is full loses what comes while its packet waits for the nanosecond's end.
            let (rate, full) = (i128::from(rate), i128::from(if bytes { burst } else { burst.max(1) }) * 1_000_000_000);
            let (mut level, mut now, mut expected) = (full, 0, Vec::new());
            for len in &lens {
                let needs = if bytes { 0 } else { 1_000_000_000 };
                while level < needs {
                    let wait = ((needs - level) / rate).max(1);
                    now += wait;
                    level = (level + wait * rate).min(full);
                }
                expected.push(now as i64);
                level -= if bytes { *len as i128 * 1_000_000_000 } else { 1_000_000_000 };
            }
            prop_assert_eq!(times, expected);
            prop_assert!(harness.now() > begin + Timestamp::new(1, 0));
        }
    }
}
