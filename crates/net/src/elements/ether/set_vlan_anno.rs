//! SetVLANAnno: annotates packets with a VLAN tag.
//!
//! `SetVLANAnno([VLAN_TCI, VLAN_PCP, VLAN_ID])`: one input, one output, both push or both pull. VLAN_TCI is the whole tag (0 to
//! 65535); or VLAN_ID is the VLAN (0 to 4095). VLAN_PCP is the priority (0 to 7), ORed to it. Defaults: 0.
//!
//! Handlers: `vlan_tci`, `vlan_id`, `vlan_pcp` (all r/w), `config`.
//!
//! Differs from Click: writing `vlan_id` takes VLAN_TCI back, which has no effect there.

use super::vlan::{Tag, TagArgs, Tagged, tag_handlers};
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct SetVlanAnno {
    args: TagArgs,
    tci: u16,
}

impl Tagged for SetVlanAnno {
    fn tag_args(&mut self) -> &mut TagArgs {
        &mut self.args
    }

    fn retag(&mut self) {
        if let Tag::Fixed(tci) = self.args.tag() {
            self.tci = tci;
        }
    }
}

impl Element for SetVlanAnno {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = TagArgs::default();
        new.read(args, false);
        args.finish()?;
        self.args = new;
        self.retag();
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        super::frame::set_vlan_tci(&mut packet, self.tci);
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        tag_handlers::<Self>(handlers, false);
        handlers.read("config", |set: &mut Self, _| set.args.text());
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::ether::frame::vlan_tci;
    use crate::elements::testing::{Harness, fuzz};

    fn annotated(harness: &mut Harness) -> u16 {
        harness.give_bytes("give", b"x");
        vlan_tci(&harness.take("take")[0])
    }

    #[test]
    fn packets_are_annotated_with_the_tag() {
        for (config, tci) in [
            ("", 0),
            ("0xe123", 0xe123),
            ("2, 1", 0x2002),
            ("VLAN_ID 5, VLAN_PCP 7", 0xe005),
            ("VLAN_TCI 5, VLAN_ID 6", 5),
        ] {
            let mut harness = Harness::new(&format!("give :: Give -> s :: SetVLANAnno({config}) -> take :: Take"));
            assert_eq!((annotated(&mut harness), harness.read("s.vlan_tci")), (tci, tci.to_string()), "{config}");
        }
    }

    #[test]
    fn handlers_change_parts_of_the_tag() {
        let mut harness = Harness::new("give :: Give -> s :: SetVLANAnno(2, 1) -> take :: Take");
        assert_eq!(harness.read("s.config"), "VLAN_ID 2, VLAN_PCP 1");
        harness.write("s.vlan_id", "9").unwrap();
        harness.write("s.vlan_pcp", "2").unwrap();
        assert_eq!((annotated(&mut harness), harness.read("s.vlan_id")), (0x4009, "9".to_owned()));
        harness.write("s.vlan_tci", "3").unwrap();
        assert_eq!(annotated(&mut harness), 0x4003);
        assert_eq!(harness.write("s.vlan_pcp", "8").unwrap_err(), "out of range, bound 7");
        assert!(harness.write("s.vlan_tci", "ANNO").is_err());
    }

    #[test]
    fn tags_out_of_range_are_refused() {
        let told = Harness::errors("Give -> SetVLANAnno(65536, 8, VLAN_ID -1) -> Take");
        for expected in
            ["VLAN_TCI: out of range, bound 65535", "VLAN_PCP: out of range, bound 7", "VLAN_ID: out of range, bound 0"]
        {
            assert!(told.contains(expected), "{told}");
        }
        assert!(Harness::errors("Give -> SetVLANAnno(ANNO) -> Take").contains("VLAN_TCI: invalid number"));
        fuzz("give :: Give -> SetVLANAnno(5) -> take :: Take", &["take"]);
    }
}
