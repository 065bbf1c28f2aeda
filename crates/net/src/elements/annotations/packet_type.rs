//! SetPacketType: sets to whom the link layer is said to have sent packets.
//!
//! `SetPacketType(TYPE)`, one input, one output, push or pull. TYPE is `HOST`, `BROADCAST`, `MULTICAST`, `OTHERHOST`, `OUTGOING`
//! or `LOOPBACK`, in capitals or not.

use crate::args::{Args, Failed, Word};
use crate::element::Element;
use crate::router::Cx;
use crate::{Packet, PacketType};

/// The element.
#[derive(Default)]
pub(super) struct SetPacketType {
    kind: PacketType,
}

fn kind(name: &str) -> Option<PacketType> {
    Some(match name.to_ascii_uppercase().as_str() {
        "HOST" => PacketType::Host,
        "BROADCAST" => PacketType::Broadcast,
        "MULTICAST" => PacketType::Multicast,
        "OTHERHOST" => PacketType::OtherHost,
        "OUTGOING" => PacketType::Outgoing,
        "LOOPBACK" => PacketType::Loopback,
        _ => return None,
    })
}

impl Element for SetPacketType {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut name = Word::default();
        args.must("TYPE", &mut name).finish()?;
        self.kind = kind(&name.0).ok_or_else(|| args.error(format_args!("unrecognized packet type '{}'", name.0)))?;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.set_kind(self.kind);
        Some(packet)
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::PacketType;
    use crate::elements::testing::Harness;

    #[test]
    fn packets_get_the_type() {
        let expected = [
            ("HOST", PacketType::Host),
            ("broadcast", PacketType::Broadcast),
            ("TYPE Multicast", PacketType::Multicast),
            ("OTHERHOST", PacketType::OtherHost),
            ("OUTGOING", PacketType::Outgoing),
            ("LOOPBACK", PacketType::Loopback),
        ];
        for (name, kind) in expected {
            let mut harness = Harness::new(&format!(
                "give :: Give -> SetPacketType(OUTGOING) -> Queue -> SetPacketType({name}) -> take :: Take"
            ));
            harness.give_bytes("give", b"a");
            assert_eq!(harness.take("take")[0].kind(), kind);
        }
    }

    #[test]
    fn other_types_are_not_known() {
        let told = Harness::errors("Give -> SetPacketType(NOBODY) -> Take");
        assert!(told.contains("unrecognized packet type 'NOBODY'"), "{told}");
        assert!(Harness::errors("Give -> SetPacketType -> Take").contains("TYPE: required argument missing"));
    }
}
