//! Null, PushNull and PullNull: pass packets on.
//!
//! `Null`, `PushNull`, `PullNull`: an input and an output, which are pushed or pulled as their neighbours want, or pushed, or
//! pulled. No arguments, no handlers.

use crate::element::{Batch, Element};
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct Null;

impl Element for Null {
    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        cx.emit_batch(0, batch);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz, noise};

    #[test]
    fn packets_pass() {
        for way in ["-> Null -> PushNull", "-> Queue -> Null -> PullNull"] {
            let mut harness = Harness::new(&format!("give :: Give {way} -> take :: Take"));
            let packets = noise(50);
            harness.give("give", packets.clone());
            let bytes: Vec<_> = packets.iter().map(|packet| packet.bytes().to_vec()).collect();
            assert_eq!(harness.take_bytes("take"), bytes);
            assert_eq!(fuzz(&format!("give :: Give {way} -> take :: Take"), &["take"])[0].len(), 2000);
        }
    }

    #[test]
    fn they_push_or_pull() {
        let told = Harness::errors("Give -> PullNull -> Take");
        assert!(told.contains("push output 0 connected to"), "{told}");
        let told = Harness::errors("Give -> Queue -> PushNull -> Take");
        assert!(told.contains("pull output 0 connected to"), "{told}");
        let told = Harness::errors("Give -> Null(1) -> Take");
        assert!(told.contains("too many arguments"), "{told}");
    }
}
