//! StripEtherVLANHeader: takes Ethernet headers off, VLAN tags included.
//!
//! `StripEtherVLANHeader([NATIVE_VLAN])`: one input; one output, and one for packets without a tag, which is pushed. A header with
//! a tag (type 0x8100) is taken off, 18 bytes, and the packet is annotated with the tag. One without is taken off, 14 bytes, and
//! the annotation is NATIVE_VLAN (0); where NATIVE_VLAN is -1, such packets go to output 1, or are dropped.
//!
//! No handlers.
//!
//! Differs from Click: a tag that is cut off is none, and a packet that is shorter than its header is left empty.

use super::vlan::Native;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::headers::Ether;
use crate::headers::ether::{LEN, VLAN_LEN};
use crate::router::Cx;

/// The element.
pub(super) struct StripEtherVlanHeader {
    native: Native,
}

impl Default for StripEtherVlanHeader {
    fn default() -> Self {
        Self { native: super::vlan::Bounded(0) }
    }
}

impl Element for StripEtherVlanHeader {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("NATIVE_VLAN", &mut self.native).finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if let Some(tag) = Ether::new(packet.bytes()).and_then(Ether::vlan) {
            super::frame::set_vlan_tci(&mut packet, tag.0);
            packet.pull(VLAN_LEN);
        } else if let Ok(native) = u16::try_from(self.native.0) {
            super::frame::set_vlan_tci(&mut packet, native);
            packet.pull(LEN);
        } else {
            cx.emit_checked(1, packet);
            return None;
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::ether::frame::vlan_tci;
    use crate::elements::testing::{Harness, fuzz};

    const TAGGED: [u8; 19] = [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0x81, 0, 0x20, 2, 8, 0, 0xaa];
    const PLAIN: [u8; 15] = [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 8, 0, 0xaa];

    #[test]
    fn headers_are_taken_off_with_and_without_a_tag() {
        let mut harness = Harness::new("give :: Give -> StripEtherVLANHeader(5) -> take :: Take");
        for (given, tci) in [(&TAGGED[..], 0x2002), (&PLAIN, 5)] {
            harness.give_bytes("give", given);
            let taken = harness.take("take");
            assert_eq!((taken[0].bytes(), vlan_tci(&taken[0])), (&[0xaa][..], tci));
        }
    }

    #[test]
    fn packets_without_a_tag_go_elsewhere_if_there_is_no_native_vlan() {
        let mut harness =
            Harness::new("give :: Give -> s :: StripEtherVLANHeader(-1) -> take :: Take; s[1] -> other :: Take");
        harness.give_bytes("give", &PLAIN);
        harness.give_bytes("give", &TAGGED);
        harness.give_bytes("give", &TAGGED[..17]);
        assert_eq!(harness.take_bytes("other"), [&PLAIN[..], &TAGGED[..17]]);
        assert_eq!(harness.take_bytes("take"), [[0xaa]]);
        let mut harness = Harness::new("give :: Give -> StripEtherVLANHeader(-1) -> take :: Take");
        harness.give_bytes("give", &PLAIN);
        assert!(harness.take("take").is_empty());
    }

    #[test]
    fn the_native_vlan_has_twelve_bits() {
        let told = Harness::errors("Give -> StripEtherVLANHeader(4096) -> Take");
        assert!(told.contains("NATIVE_VLAN: out of range, bound 4095"), "{told}");
        fuzz("give :: Give -> s :: StripEtherVLANHeader(-1) -> a :: Take; s[1] -> b :: Take", &["a", "b"]);
    }
}
