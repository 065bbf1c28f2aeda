//! Bypass: lets packets go past a part of the configuration.
//!
//! `Bypass([ACTIVE, INLINE])`: one or two inputs and outputs, pushed or pulled. Packets go from input 0 to output 0, or, while
//! it is active and pushes, to output 1; while it is active and is pulled, output 0 gives packets of input 1. Packets of
//! input 1 go to output 0, and output 1 gives packets of input 0.
//!
//! - ACTIVE: whether the way is the other one; false.
//! - INLINE (keyword): taken, and without a meaning here.
//!
//! Handlers: `active` (r/w).
//!
//! Where it is pulled, it is passed without being entered, so that its outputs may lead back to its inputs; its own counts of
//! packets stand still. An active Bypass without a second output drops packets, and without a second input gives none.

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct Bypass {
    is_active: bool,
}

impl Bypass {
    fn output(&self, input: usize) -> usize {
        usize::from(self.is_active && input == 0)
    }
}

impl Element for Bypass {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut is_inline = false;
        args.may("ACTIVE", &mut self.is_active).key("INLINE", &mut is_inline).finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.detour(self.is_active);
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        cx.emit_checked(self.output(port), packet);
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        let output = self.output(port);
        if output < cx.outputs() {
            cx.emit_batch(output, batch);
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("active", |bypass: &mut Self, _| bypass.is_active);
        handlers.write("active", |bypass: &mut Self, cx, text| {
            bypass.is_active = cx.parse(text)?;
            cx.detour(bypass.is_active);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    /// The paints of what has come, in order.
    fn paints(harness: &mut Harness) -> Vec<u8> {
        harness.take("take").iter().map(|packet| packet.anno_u8(crate::packet::anno::PAINT)).collect()
    }

    #[test]
    fn packets_go_by_the_other_way_while_it_is_active() {
        for way in ["", "-> Queue -> PullNull"] {
            let mut harness = Harness::new(&format!(
                "give :: Give {way} -> b :: Bypass -> take :: Take; b[1] -> Paint(7) -> c :: Bypass(true, INLINE true) -> [1]b;
                 c[1] -> Paint(9) -> [1]c"
            ));
            let give = |harness: &mut Harness| {
                harness.give("give", [Packet::from_slice(b"x"), Packet::from_slice(b"y")]);
                paints(harness)
            };
            assert_eq!(give(&mut harness), [0, 0]);
            harness.write("b.active", "true").unwrap();
            assert_eq!(give(&mut harness), [9, 9]);
            harness.write("c.active", "false").unwrap();
            assert_eq!(give(&mut harness), [7, 7]);
            harness.write("b.active", "false").unwrap();
            assert_eq!((give(&mut harness), harness.read("b.active")), (vec![0, 0], "false".to_owned()));
        }
    }

    #[test]
    fn ways_that_are_not_there_lead_nowhere() {
        for way in ["", "-> Queue -> PullNull"] {
            let mut harness = Harness::new(&format!("give :: Give {way} -> b :: Bypass(true) -> take :: Take"));
            harness.give_bytes("give", b"x");
            assert!(harness.take("take").is_empty());
        }
        let mut harness = Harness::new("x :: Bypass -> y :: Bypass -> x; x[1] -> d :: Discard; Idle -> [1]x");
        harness.run();
        assert_eq!(harness.read("d.count"), "0");
        let told = Harness::errors("Give -> Bypass(maybe) -> Take");
        assert!(told.contains("ACTIVE: type mismatch"), "{told}");
    }

    #[test]
    fn packets_that_are_pushed_may_end_elsewhere() {
        let mut harness = Harness::new("give :: Give -> b :: Bypass -> a :: Take; b[1] -> c :: Take");
        for (active, a, c) in [("false", 1, 0), ("true", 0, 1)] {
            harness.write("b.active", active).unwrap();
            harness.give_bytes("give", b"x");
            assert_eq!((harness.take("a").len(), harness.take("c").len()), (a, c));
        }
        // An empty one is pulled from in vain, and whoever comes again is woken.
        let mut harness = Harness::new("give :: Give -> Queue -> b :: Bypass -> d :: Discard");
        harness.give_bytes("give", b"x");
        assert_eq!((harness.read("d.count"), harness.read("d.scheduled")), ("1".to_owned(), "false".to_owned()));
    }
}
