//! VLANEncap: puts a VLAN tag into Ethernet frames.
//!
//! `VLANEncap([VLAN_TCI, VLAN_PCP, VLAN_ID, NATIVE_VLAN, ETHERTYPE])`: one input, one output, both push or both pull. VLAN_TCI is
//! the whole tag (0 to 65535), or `ANNO`: that of the packet's annotation; or VLAN_ID is the VLAN (0 to 4095). VLAN_PCP is the
//! priority (0 to 7). Frames of VLAN NATIVE_VLAN (0; -1: none) get no tag. ETHERTYPE is the tag's type (0x8100).
//!
//! Handlers: `vlan_tci`, `vlan_id`, `vlan_pcp`, `native_vlan`, `ethertype` (all r/w), `config`.
//!
//! Differs from Click: frames that end within their addresses pass as they are; writing `vlan_id` takes VLAN_TCI back.

use super::vlan::{Native, Tag, TagArgs, Tagged, tag_handlers};
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::ether::TYPE_VLAN;
use crate::router::Cx;

/// The element.
pub(super) struct VlanEncap {
    args: TagArgs,
    tag: Tag,
    native: Native,
    kind: u16,
}

impl Default for VlanEncap {
    fn default() -> Self {
        Self { args: TagArgs::default(), tag: Tag::Fixed(0), native: super::vlan::Bounded(0), kind: TYPE_VLAN }
    }
}

impl Tagged for VlanEncap {
    fn tag_args(&mut self) -> &mut TagArgs {
        &mut self.args
    }

    fn retag(&mut self) {
        self.tag = self.args.tag();
    }
}

impl Element for VlanEncap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Self::default();
        new.args.read(args, true);
        args.key("NATIVE_VLAN", &mut new.native).key("ETHERTYPE", &mut new.kind).finish()?;
        new.retag();
        *self = new;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let tci = self.tag.of(&packet);
        if i32::from(tci & 0xfff) != self.native.0 && packet.len() >= 12 {
            let frame = packet.push(4);
            frame.copy_within(4..16, 0);
            frame[12..14].copy_from_slice(&self.kind.to_be_bytes());
            frame[14..16].copy_from_slice(&tci.to_be_bytes());
        }
        packet.set_mac_header(0);
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        tag_handlers::<Self>(handlers, true);
        handlers.data("native_vlan", |encap: &mut Self| &mut encap.native);
        handlers.data("ethertype", |encap: &mut Self| &mut encap.kind);
        handlers.read("config", |encap: &mut Self, _| {
            let native = if encap.native.0 == 0 { String::new() } else { format!(", NATIVE_VLAN {}", encap.native) };
            let kind = if encap.kind == TYPE_VLAN { String::new() } else { format!(", ETHERTYPE {}", encap.kind) };
            format!("{}{native}{kind}", encap.args.text())
        });
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};

    const FRAME: [u8; 16] = [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 8, 0, 0xaa, 0xbb];

    /// The frame with these bytes between the addresses and the type.
    fn tagged(tag: &[u8]) -> Vec<u8> {
        [&FRAME[..12], tag, &FRAME[12..]].concat()
    }

    #[test]
    fn frames_get_a_tag_unless_it_is_the_native_one() {
        for (config, tag) in [
            ("1", &[0x81, 0, 0, 1][..]),
            ("0x1234, ETHERTYPE 0x88a8", &[0x88, 0xa8, 0x12, 0x34]),
            ("", &[]),
            ("NATIVE_VLAN -1", &[0x81, 0, 0, 0]),
            ("VLAN_ID 4095, VLAN_PCP 7", &[0x81, 0, 0xef, 0xff]),
            ("ANNO", &[0x81, 0, 0x20, 2]),
            ("ANNO, NATIVE_VLAN 2", &[]),
        ] {
            let mut harness =
                Harness::new(&format!("give :: Give -> SetVLANAnno(2, 1) -> VLANEncap({config}) -> take :: Take"));
            harness.give_bytes("give", &FRAME);
            let taken = harness.take("take");
            assert_eq!((taken[0].bytes(), taken[0].mac_offset()), (&tagged(tag)[..], Some(0)), "{config}");
        }
    }

    #[test]
    fn what_is_put_in_is_taken_out() {
        for (decap, expected) in [("", tagged(&[0x88, 0xa8, 0x12, 0x34])), ("ETHERTYPE 0x88a8", FRAME.to_vec())] {
            let mut harness = Harness::new(&format!(
                "give :: Give -> VLANEncap(0x1234, ETHERTYPE 0x88a8) -> VLANDecap({decap}) -> take :: Take"
            ));
            harness.give_bytes("give", &FRAME);
            assert_eq!(harness.take_bytes("take"), [expected]);
        }
        let mut harness = Harness::new(
            "give :: Give -> VLANEncap(5) -> VLANDecap -> VLANEncap(ANNO) -> VLANDecap(false) -> take :: Take",
        );
        harness.give_bytes("give", &FRAME);
        assert_eq!(harness.take_bytes("take"), [FRAME]);
    }

    #[test]
    fn handlers_read_and_write_all_arguments() {
        let mut harness = Harness::new("give :: Give -> v :: VLANEncap(1) -> take :: Take");
        for (handler, value) in [("vlan_id", "6"), ("vlan_pcp", "1"), ("native_vlan", "7"), ("ethertype", "9")] {
            harness.write(&format!("v.{handler}"), value).unwrap();
            assert_eq!(harness.read(&format!("v.{handler}")), value);
        }
        assert_eq!(harness.read("v.config"), "VLAN_ID 6, VLAN_PCP 1, NATIVE_VLAN 7, ETHERTYPE 9");
        harness.give_bytes("give", &FRAME);
        assert_eq!(harness.take_bytes("take"), [tagged(&[0, 9, 0x20, 6])]);
        harness.write("v.vlan_tci", "ANNO").unwrap();
        assert_eq!(harness.read("v.vlan_tci"), "ANNO");
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        let told = Harness::errors("Give -> VLANEncap(x, ETHERTYPE 65536) -> Take");
        assert!(told.contains("VLAN_TCI: invalid number") && told.contains("ETHERTYPE: out of range"), "{told}");
        fuzz("give :: Give -> VLANEncap(5) -> take :: Take", &["take"]);
    }
}
