//! EtherMirror: exchanges source and destination of Ethernet frames.
//!
//! `EtherMirror`: one input, one output, both push or both pull. No handlers.
//!
//! Differs from Click: a frame that ends within its addresses passes as it is.

use crate::Packet;
use crate::element::Element;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct EtherMirror;

impl Element for EtherMirror {
    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if packet.len() >= 12 {
            let (destination, rest) = packet.bytes_mut().split_at_mut(6);
            destination.swap_with_slice(&mut rest[..6]);
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};

    #[test]
    fn addresses_are_exchanged() {
        let mut harness = Harness::new("give :: Give -> EtherMirror -> take :: Take");
        harness.give_bytes("give", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
        harness.give_bytes("give", &[1, 2, 3]);
        assert_eq!(harness.take_bytes("take"), [vec![7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 13], vec![1, 2, 3]]);
        fuzz("give :: Give -> EtherMirror -> take :: Take", &["take"]);
    }

    #[test]
    fn there_are_no_arguments() {
        assert!(Harness::errors("Give -> EtherMirror(1) -> Take").contains("too many arguments"));
    }
}
