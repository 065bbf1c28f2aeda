//! Idle: neither gives nor keeps packets.
//!
//! `Idle`: any number of inputs and outputs, each pushed or pulled. It drops what is pushed to it, never pulls, and has
//! nothing for those who pull from it, which they know.
//!
//! Handlers: none.

use crate::Packet;
use crate::element::{Batch, Element};
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct Idle;

impl Element for Idle {
    fn push(&mut self, _: &mut Cx<'_>, _: usize, _: Packet) {}

    fn push_batch(&mut self, _: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        batch.clear();
    }

    fn pull(&mut self, _: &mut Cx<'_>, _: usize) -> Option<Packet> {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    #[test]
    fn nothing_comes_out() {
        let mut harness = Harness::new(
            "i, j :: Idle; i -> j; i[1] -> [1]j; give :: Give -> [2]j; j[0] -> take :: Take; q :: Queue -> [3]j;
             i[2] -> q; j[1] -> d :: Discard; j[2] -> Unqueue -> take",
        );
        harness.give("give", [Packet::from_slice(b"x")]);
        assert!(harness.take("take").is_empty());
        assert_eq!((harness.read("d.count"), harness.read("q.length")), ("0".to_owned(), "0".to_owned()));
        let told = Harness::errors("Idle(5) -> Idle");
        assert!(told.contains("  too many arguments"), "{told}");
    }

    #[test]
    fn who_pulls_from_it_sleeps() {
        let mut harness =
            Harness::new("Idle -> p :: PrioSched -> u :: Unqueue -> take :: Take; give :: Give -> Queue -> [1]p");
        harness.run();
        assert_eq!(harness.read("u.scheduled"), "false");
        harness.give("give", [Packet::from_slice(b"x")]);
        assert_eq!((harness.take("take").len(), harness.read("u.scheduled")), (1, "false".to_owned()));
    }
}
