//! RatedSplitter and BandwidthRatedSplitter: send packets up to a rate one way, and what is too much another.
//!
//! `RatedSplitter(RATE [, BURST_DURATION, BURST_SIZE])`, `BandwidthRatedSplitter(RATE [, BURST_DURATION, BURST_BYTES])`: push
//! input and outputs. Packets leave by output 0 as long as their rate is not above RATE, and by output 1 otherwise, or are
//! dropped where it is not connected. The arguments are those of RatedUnqueue and BandwidthRatedUnqueue.
//!
//! Handlers: `rate` (r/w: a new configuration).
//!
//! Unlike Click's, tokens are exact. The packets of one burst come at one time.

use super::rate::{Limit, unparse_rate};
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct RatedSplitter<const BYTES: bool>(Limit<BYTES>);

impl<const BYTES: bool> Element for RatedSplitter<BYTES> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.0.configure(args)
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.0.0.refill(cx.now());
        if self.0.0.contains(Limit::<BYTES>::NEEDS) {
            self.0.take(&packet);
            cx.emit(0, packet);
        } else {
            cx.emit_checked(1, packet);
        }
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.keyword_write("rate", 0, "RATE");
        handlers.read("rate", |splitter: &mut Self, _| unparse_rate::<BYTES>(splitter.0.0.rate()));
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn what_is_too_much_goes_the_other_way() {
        for (unqueue, splitter, packets) in [
            ("RatedUnqueue(10)", "RatedSplitter(RATE 2)", 20),
            ("RatedUnqueue(10)", "RatedSplitter(RATE 2, BURST_SIZE 50)", 69),
            ("RatedUnqueue(10)", "RatedSplitter(RATE 2, BURST_DURATION 25)", 69),
            ("RatedUnqueue(200)", "RatedSplitter(RATE 100, BURST_SIZE 2)", 1001),
            ("BandwidthRatedUnqueue(2000Bps)", "BandwidthRatedSplitter(200Bps)", 21),
            ("BandwidthRatedUnqueue(2000Bps)", "BandwidthRatedSplitter(200Bps, BURST_BYTES 5000)", 70),
            ("BandwidthRatedUnqueue(20000Bps)", "BandwidthRatedSplitter(10000Bps, BURST_BYTES 100)", 1001),
        ] {
            let mut harness = Harness::new(&format!(
                "InfiniteSource(LENGTH 100) -> Queue(10) -> u :: {unqueue} -> s :: {splitter} -> take :: Take;
                 s[1] -> other :: Take"
            ));
            harness.pass(9.999_999_999);
            let (passed, other) = (harness.take("take").len(), harness.take("other").len());
            assert_eq!(passed, packets, "{splitter}");
            assert!(harness.read("u.calls").contains(&format!("\n{} pushes\n", passed + other)));
        }
    }

    #[test]
    fn the_rate_changes_and_the_other_way_may_lead_nowhere() {
        let mut harness = Harness::new("give :: Give -> s :: RatedSplitter(1) -> take :: Take");
        harness.give("give", vec![crate::Packet::from_slice(b"x"); 10]);
        assert_eq!((harness.take("take").len(), harness.read("s.rate")), (1, "1".to_owned()));
        harness.write("s.rate", "0").unwrap();
        harness.give("give", vec![crate::Packet::from_slice(b"x"); 10]);
        assert_eq!(harness.take("take").len(), 10);
        let told = Harness::errors("Give -> RatedSplitter(x) -> Take");
        assert!(told.contains("RATE: invalid number"), "{told}");
    }
}
