//! EtherVLANEncap: puts packets into Ethernet frames with a VLAN tag.
//!
//! `EtherVLANEncap(ETHERTYPE, SRC, DST, [VLAN_TCI, VLAN_PCP, VLAN_ID, NATIVE_VLAN])`: one input, one output, both push or both
//! pull. ETHERTYPE is the type behind the tag. VLAN_TCI is the whole tag (0 to 65535), or `ANNO`: that of the packet's annotation;
//! or VLAN_ID is the VLAN (0 to 4095). VLAN_PCP is the priority (0 to 7). Packets of VLAN NATIVE_VLAN (0; -1: none) have a header
//! without a tag.
//!
//! Handlers: `src`, `dst`, `ethertype`, `vlan_tci`, `vlan_id`, `vlan_pcp`, `native_vlan` (all r/w), `config`.
//!
//! Differs from Click: writing `vlan_id` takes VLAN_TCI back; `config` has ETHERTYPE first, so that it can be given again.

use super::frame::header;
use super::vlan::{Native, Tag, TagArgs, Tagged, tag_handlers};
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::EtherAddress;
use crate::headers::ether::{LEN, TYPE_VLAN, VLAN_LEN};
use crate::router::Cx;

/// The element.
pub(super) struct EtherVlanEncap {
    kind: u16,
    source: EtherAddress,
    destination: EtherAddress,
    args: TagArgs,
    tag: Tag,
    native: Native,
}

impl Default for EtherVlanEncap {
    fn default() -> Self {
        let (args, tag, native) = (TagArgs::default(), Tag::Fixed(0), super::vlan::Bounded(0));
        Self { kind: 0, source: EtherAddress::default(), destination: EtherAddress::default(), args, tag, native }
    }
}

impl Tagged for EtherVlanEncap {
    fn tag_args(&mut self) -> &mut TagArgs {
        &mut self.args
    }

    fn retag(&mut self) {
        self.tag = self.args.tag();
    }
}

impl Element for EtherVlanEncap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Self::default();
        args.must("ETHERTYPE", &mut new.kind).must("SRC", &mut new.source).must("DST", &mut new.destination);
        new.args.read(args, true);
        args.key("NATIVE_VLAN", &mut new.native).finish()?;
        new.retag();
        *self = new;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let tci = self.tag.of(&packet);
        if i32::from(tci & 0xfff) == self.native.0 {
            packet.push(LEN)[..LEN].copy_from_slice(&header(self.destination, self.source, self.kind));
        } else {
            let frame = packet.push(VLAN_LEN);
            frame[..LEN].copy_from_slice(&header(self.destination, self.source, TYPE_VLAN));
            frame[14..16].copy_from_slice(&tci.to_be_bytes());
            frame[16..18].copy_from_slice(&self.kind.to_be_bytes());
        }
        packet.set_mac_header(0);
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        tag_handlers::<Self>(handlers, true);
        handlers.data("ethertype", |encap: &mut Self| &mut encap.kind);
        handlers.data("src", |encap: &mut Self| &mut encap.source);
        handlers.data("dst", |encap: &mut Self| &mut encap.destination);
        handlers.data("native_vlan", |encap: &mut Self| &mut encap.native);
        handlers.read("config", |encap: &mut Self, _| {
            let (kind, source, destination) = (encap.kind, encap.source, encap.destination);
            let native = if encap.native.0 == 0 { String::new() } else { format!(", NATIVE_VLAN {}", encap.native) };
            format!("{kind}, {source}, {destination}, {}{native}", encap.args.text())
        });
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};

    /// A frame in hexadecimal digits.
    fn frame(harness: &mut Harness) -> String {
        harness.give_bytes("give", &[0xaa]);
        harness.take_bytes("take")[0].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
    }

    const ADDRESSES: &str = "020202020202010101010101";

    #[test]
    fn frames_have_the_tag_unless_it_is_the_native_one() {
        for (config, rest) in [
            ("1", "810000010800aa"),
            ("0", "0800aa"),
            ("0, NATIVE_VLAN -1", "810000000800aa"),
            ("2, 1, NATIVE_VLAN 1", "810020020800aa"),
            ("0xe001, NATIVE_VLAN 1", "0800aa"),
            ("VLAN_ID 5, VLAN_PCP 7", "8100e0050800aa"),
            ("ANNO", "810020020800aa"),
            ("ANNO, NATIVE_VLAN 2", "0800aa"),
        ] {
            let mut harness = Harness::new(&format!(
                "give :: Give -> SetVLANAnno(2, 1) -> e :: EtherVLANEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2, {config})\n\
                 -> take :: Take"
            ));
            assert_eq!(frame(&mut harness), format!("{ADDRESSES}{rest}"), "{config}");
        }
    }

    #[test]
    fn handlers_read_and_write_all_arguments() {
        let mut harness =
            Harness::new("give :: Give -> e :: EtherVLANEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2, ANNO) -> take :: Take");
        assert_eq!(harness.read("e.vlan_tci"), "ANNO");
        assert_eq!(harness.read("e.config"), "2048, 01-01-01-01-01-01, 02-02-02-02-02-02, ANNO");
        for (handler, value) in [("vlan_id", "6"), ("vlan_pcp", "1"), ("native_vlan", "7"), ("ethertype", "9")] {
            harness.write(&format!("e.{handler}"), value).unwrap();
            assert_eq!(harness.read(&format!("e.{handler}")), value);
        }
        assert_eq!(frame(&mut harness), format!("{ADDRESSES}810020060009aa"));
        let config = harness.read("e.config");
        harness.write("e.config", &config).unwrap();
        assert_eq!((harness.read("e.config"), frame(&mut harness)), (config, format!("{ADDRESSES}810020060009aa")));
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        let told = Harness::errors("Give -> EtherVLANEncap(1, 2, 3, 65536, NATIVE_VLAN 4096) -> Take");
        for expected in
            ["SRC: type mismatch", "VLAN_TCI: out of range, bound 65535", "NATIVE_VLAN: out of range, bound 4095"]
        {
            assert!(told.contains(expected), "{told}");
        }
        fuzz("give :: Give -> EtherVLANEncap(1, 1:1:1:1:1:1, 2:2:2:2:2:2, ANNO) -> take :: Take", &["take"]);
    }
}
