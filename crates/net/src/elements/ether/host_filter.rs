//! HostEtherFilter: drops Ethernet frames that are for other hosts.
//!
//! `HostEtherFilter(ETHER, [DROP_OWN, DROP_OTHER, OFFSET])`: one input; one output, and one for what is dropped, which is pushed.
//! Sets each packet's type: for this host (destination ETHER), broadcast, multicast or for another host. Frames for another host
//! are dropped if DROP_OTHER (true), those of this host (source ETHER) if DROP_OWN (false). The frame begins OFFSET (0) bytes
//! into the packet.
//!
//! Handlers: `ether` (r/w).
//!
//! Differs from Click: a frame that ends within its addresses is dropped.

use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::EtherAddress;
use crate::router::Cx;
use crate::{Packet, PacketType};

/// The element.
pub(super) struct HostEtherFilter {
    address: EtherAddress,
    drops_own: bool,
    drops_other: bool,
    offset: u32,
}

impl Default for HostEtherFilter {
    fn default() -> Self {
        Self { address: EtherAddress::default(), drops_own: false, drops_other: true, offset: 0 }
    }
}

impl HostEtherFilter {
    /// For whom a packet is; nothing: it is one of those that are dropped whatever that is.
    fn kind(&self, packet: &Packet) -> Option<PacketType> {
        let frame = packet.bytes().get(self.offset as usize..)?;
        let (destination, rest) = frame.split_first_chunk().map(|(bytes, rest)| (EtherAddress(*bytes), rest))?;
        let source = EtherAddress(*rest.first_chunk()?);
        Some(match destination {
            _ if self.drops_own && source == self.address => return None,
            to if to == self.address => PacketType::Host,
            to if to.is_broadcast() => PacketType::Broadcast,
            to if to.is_group() => PacketType::Multicast,
            _ => PacketType::OtherHost,
        })
    }
}

impl Element for HostEtherFilter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Self::default();
        args.must("ETHER", &mut new.address)
            .may("DROP_OWN", &mut new.drops_own)
            .may("DROP_OTHER", &mut new.drops_other)
            .key("OFFSET", &mut new.offset)
            .finish()?;
        *self = new;
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let kind = self.kind(&packet);
        if let Some(kind) = kind {
            packet.set_kind(kind);
        }
        if kind.is_none() || kind == Some(PacketType::OtherHost) && self.drops_other {
            cx.emit_checked(1, packet);
            return None;
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("ether", |filter: &mut Self| &mut filter.address);
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};
    use crate::{Packet, PacketType};

    fn frame(destination: u8, source: u8) -> Vec<u8> {
        [[destination; 6], [source; 6]].concat()
    }

    fn kinds(harness: &mut Harness, sink: &str) -> Vec<(u8, PacketType)> {
        harness.take(sink).iter().map(|packet| (packet.bytes()[0], packet.kind())).collect()
    }

    #[test]
    fn frames_are_sorted_by_whom_they_are_for() {
        use PacketType::{Broadcast, Host, Multicast, OtherHost};
        for (arguments, passed, dropped) in [
            ("", vec![(2, Host), (0xff, Broadcast), (3, Multicast), (2, Host)], vec![(4, OtherHost)]),
            ("true", vec![(2, Host), (0xff, Broadcast), (3, Multicast)], vec![(4, OtherHost), (2, Host)]),
            ("DROP_OTHER false", vec![(2, Host), (0xff, Broadcast), (3, Multicast), (4, OtherHost), (2, Host)], vec![]),
        ] {
            let mut harness = Harness::new(&format!(
                "give :: Give -> h :: HostEtherFilter(2:2:2:2:2:2, {arguments}) -> a :: Take; h[1] -> b :: Take"
            ));
            let frames = [frame(2, 1), frame(0xff, 1), frame(3, 1), frame(4, 1), frame(2, 2)];
            harness.give("give", frames.map(|bytes| Packet::from_slice(&bytes)));
            assert_eq!((kinds(&mut harness, "a"), kinds(&mut harness, "b")), (passed, dropped), "{arguments}");
        }
    }

    #[test]
    fn the_address_is_changed_and_the_frame_begins_at_the_offset() {
        let mut harness = Harness::new("give :: Give -> h :: HostEtherFilter(2:2:2:2:2:2, OFFSET 2) -> take :: Take");
        let bytes = [vec![0, 0], frame(4, 1)].concat();
        harness.give_bytes("give", &bytes);
        harness.write("h.ether", "4:4:4:4:4:4").unwrap();
        assert_eq!(harness.read("h.ether"), "04-04-04-04-04-04");
        harness.give_bytes("give", &bytes);
        harness.give_bytes("give", &bytes[..13]);
        harness.give_bytes("give", &[]);
        assert_eq!(harness.take("take").len(), 1);
    }

    #[test]
    fn an_address_is_needed() {
        let told = Harness::errors("Give -> HostEtherFilter(x, maybe, OFFSET -1) -> Take");
        for expected in ["ETHER: type mismatch", "DROP_OWN: type mismatch", "OFFSET: must be >= 0"] {
            assert!(told.contains(expected), "{told}");
        }
        fuzz("give :: Give -> h :: HostEtherFilter(2:2:2:2:2:2) -> a :: Take; h[1] -> b :: Take", &["a", "b"]);
    }
}
