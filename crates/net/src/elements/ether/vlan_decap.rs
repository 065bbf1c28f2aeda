//! VLANDecap: takes a VLAN tag out of Ethernet frames.
//!
//! `VLANDecap([ANNO, ETHERTYPE])`: one input, one output, both push or both pull. Frames whose type is ETHERTYPE (0x8100) lose
//! that type and the tag; others pass as they are. If ANNO (true), frames are annotated with the tag, with 0 if they had none.
//!
//! No handlers.
//!
//! Differs from Click: a frame that ends within its tag passes as it is.

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::headers::ether::TYPE_VLAN;
use crate::router::Cx;

/// The element.
pub(super) struct VlanDecap {
    annotates: bool,
    kind: u16,
}

impl Default for VlanDecap {
    fn default() -> Self {
        Self { annotates: true, kind: TYPE_VLAN }
    }
}

impl Element for VlanDecap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("ANNO", &mut self.annotates).key("ETHERTYPE", &mut self.kind).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let mut tci = 0;
        if let Some(&[high, low, first, second]) = packet.bytes().get(12..).and_then(|rest| rest.first_chunk())
            && u16::from_be_bytes([high, low]) == self.kind
        {
            tci = u16::from_be_bytes([first, second]);
            packet.bytes_mut().copy_within(..12, 4);
            packet.pull(4);
        }
        packet.set_mac_header(0);
        if self.annotates {
            super::frame::set_vlan_tci(&mut packet, tci);
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::ether::frame::vlan_tci;
    use crate::elements::testing::{Harness, fuzz};

    const TAGGED: [u8; 19] = [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0x81, 0, 0x20, 2, 8, 0, 0xaa];

    #[test]
    fn the_tag_goes_to_the_annotation() {
        let mut harness = Harness::new("give :: Give -> SetVLANAnno(7) -> VLANDecap -> take :: Take");
        let plain = [&TAGGED[..12], &TAGGED[16..]].concat();
        for (given, expected, tci) in [
            (&TAGGED[..], &plain[..], 0x2002),
            (&plain, &plain, 0),
            (&TAGGED[..16], &TAGGED[..12], 0x2002),
            (&TAGGED[..15], &TAGGED[..15], 0),
            (&[], &[], 0),
        ] {
            harness.give_bytes("give", given);
            let taken = harness.take("take");
            assert_eq!((taken[0].bytes(), vlan_tci(&taken[0]), taken[0].mac_offset()), (expected, tci, Some(0)));
        }
    }

    #[test]
    fn annotations_are_left_alone_if_told_so() {
        let mut harness = Harness::new("give :: Give -> SetVLANAnno(7) -> VLANDecap(false) -> take :: Take");
        harness.give_bytes("give", &TAGGED);
        let taken = harness.take("take");
        assert_eq!((taken[0].len(), vlan_tci(&taken[0])), (15, 7));
    }

    #[test]
    fn arguments_are_checked() {
        let told = Harness::errors("Give -> VLANDecap(maybe, ETHERTYPE x, 1) -> Take");
        for expected in ["ANNO: type mismatch", "ETHERTYPE: invalid number", "too many arguments"] {
            assert!(told.contains(expected), "{told}");
        }
        fuzz("give :: Give -> VLANDecap -> take :: Take", &["take"]);
    }
}
