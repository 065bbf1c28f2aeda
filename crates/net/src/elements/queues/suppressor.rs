//! Suppressor: lets packets through, each input to its output, or not.
//!
//! `Suppressor`: as many inputs as outputs, pushed or pulled. Packets that are pushed to an inactive input are dropped; an
//! inactive output gives none.
//!
//! Handlers: `active0`, `active1` ... (r/w; true), `reset` (makes all active).

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element: whether each port is active.
#[derive(Default)]
pub(super) struct Suppressor(Vec<bool>);

impl Element for Suppressor {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.0 = vec![true; args.ports().1];
        args.finish()
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        if self.0[port] {
            cx.emit(port, packet);
        }
    }

    fn pull(&mut self, cx: &mut Cx<'_>, port: usize) -> Option<Packet> {
        if self.0[port] { cx.pull(port) } else { None }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        for port in 0..self.0.len() {
            handlers.data(&format!("active{port}"), move |suppressor: &mut Self| &mut suppressor.0[port]);
        }
        handlers.button("reset", |suppressor: &mut Self, _| suppressor.0.fill(true));
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn packets_of_active_ports_pass() {
        let mut harness = Harness::new(
            "g0 :: Give -> s :: Suppressor -> t0 :: Take; g1 :: Give -> [1]s[1] -> t1 :: Take;
             g2 :: Give -> Queue -> [2]s[2] -> t2 :: TakePull(MANUAL true)",
        );
        let count = |harness: &mut Harness| {
            for source in ["g0", "g1", "g2"] {
                harness.give_bytes(source, b"x");
            }
            let pulled = usize::from(harness.pull("t2").is_some());
            [harness.take("t0").len(), harness.take("t1").len(), pulled]
        };
        assert_eq!(count(&mut harness), [1, 1, 1]);
        harness.write("s.active0", "false").unwrap();
        assert_eq!(count(&mut harness), [0, 1, 1]);
        harness.write("s.active2", "0").unwrap();
        assert_eq!((count(&mut harness), harness.read("s.active2")), ([0, 1, 0], "false".to_owned()));
        harness.write("s.reset", "").unwrap();
        assert_eq!(count(&mut harness), [1, 1, 1]);
        assert!(harness.write("s.active0", "x").is_err() && harness.try_read("s.active3").is_err());
        let told = Harness::errors("Give -> Suppressor(1) -> Take");
        assert!(told.contains("too many arguments"), "{told}");
    }
}
