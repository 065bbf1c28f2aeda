//! DecIPTTL: takes one off the time to live.
//!
//! `DecIPTTL([ACTIVE, MULTICAST])`: agnostic; output 1, where there is one, pushes packets whose time to live is 0 or 1 (as they
//! are); they are dropped otherwise. The others' checksum is adjusted.
//!
//! - ACTIVE: false leaves all packets as they are. True by default.
//! - MULTICAST: false leaves packets to groups as they are. True by default.
//!
//! A packet whose IP header is not known is dropped and counted (Click ends the program).
//!
//! Handlers: `drops`, `active` (r/w).

use super::reasons::divert;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::{Ip, IpMut};
use crate::router::Cx;

/// The element.
pub(super) struct DecIpTtl {
    is_active: bool,
    has_multicast: bool,
    drops: u64,
}

impl Default for DecIpTtl {
    fn default() -> Self {
        Self { is_active: true, has_multicast: true, drops: 0 }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    Expires,
    HasNoHeader,
}

impl DecIpTtl {
    #[inline]
    fn decrement(&mut self, packet: &mut Packet) -> Fate {
        let Some(ip) = packet.network_header().and_then(Ip::new) else {
            self.drops += 1;
            return Fate::HasNoHeader;
        };
        if !self.is_active || !self.has_multicast && ip.destination().is_multicast() {
            return Fate::Lives;
        }
        if ip.ttl() <= 1 {
            self.drops += 1;
            return Fate::Expires;
        }
        if let Some(mut ip) = packet.network_header_mut().and_then(IpMut::new) {
            ip.decrement_ttl();
        }
        Fate::Lives
    }
}

impl Element for DecIpTtl {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.key("ACTIVE", &mut self.is_active).key("MULTICAST", &mut self.has_multicast).finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        match self.decrement(&mut packet) {
            Fate::Lives => return Some(packet),
            Fate::Expires => _ = cx.emit_checked(1, packet),
            Fate::HasNoHeader => {}
        }
        None
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        cx.filter_batch(batch, |cx, packet| {
            let fate = self.decrement(packet);
            if fate == Fate::Expires {
                divert(cx, 1, packet);
            }
            fate == Fate::Lives
        });
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |dec: &mut Self, _| dec.drops);
        handlers.data("active", |dec: &mut Self| &mut dec.is_active);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz, ip};
    use crate::headers::Ip;
    use crate::headers::ip::set_checksum;

    fn with_ttl(ttl: u8, destination: [u8; 4]) -> Vec<u8> {
        let mut packet = ip(9, [1; 4], destination, &[]);
        packet[8] = ttl;
        set_checksum(&mut packet).unwrap();
        packet
    }

    fn ttls(harness: &mut Harness, sink: &str) -> Vec<u8> {
        let out = harness.take_bytes(sink);
        assert!(out.iter().all(|packet| Ip::new(packet).unwrap().is_checksum_valid()));
        out.iter().map(|packet| packet[8]).collect()
    }

    #[test]
    fn packets_live_on_or_expire() {
        let config = "give :: Give -> CheckIPHeader -> d :: DecIPTTL -> take :: Take; d[1] -> dead :: Take";
        let mut harness = Harness::new(config);
        (0..=255).for_each(|ttl| harness.give_bytes("give", &with_ttl(ttl, [2; 4])));
        assert_eq!(ttls(&mut harness, "take"), (1..=254).collect::<Vec<_>>());
        assert_eq!(ttls(&mut harness, "dead"), [0, 1]);
        assert_eq!(harness.read("d.drops"), "2");
        harness.write("d.active", "false").unwrap();
        harness.give_bytes("give", &with_ttl(0, [2; 4]));
        assert_eq!((ttls(&mut harness, "take"), harness.read("d.active")), (vec![0], "false".into()));
    }

    #[test]
    fn groups_may_be_left_alone() {
        let config = "give :: Give -> CheckIPHeader -> DecIPTTL(MULTICAST false) -> take :: Take";
        let mut harness = Harness::new(config);
        for ttl in [1, 9] {
            harness.give_bytes("give", &with_ttl(ttl, [224, 0, 0, 5]));
            harness.give_bytes("give", &with_ttl(ttl, [223, 0, 0, 5]));
        }
        assert_eq!(ttls(&mut harness, "take"), [1, 9, 8]);
    }

    #[test]
    fn bytes_that_others_have_are_left_alone() {
        let mut harness = Harness::new("give :: Give -> CheckIPHeader -> DecIPTTL -> take :: Take");
        let packet = crate::Packet::from_slice(&with_ttl(64, [2; 4]));
        harness.give("give", [packet.clone(), packet.clone()]);
        assert_eq!(ttls(&mut harness, "take"), [63, 63]);
        assert_eq!(packet.bytes()[8], 64);
    }

    #[test]
    fn a_packet_without_a_header_is_dropped_and_counted() {
        let mut harness = Harness::new("give :: Give -> d :: DecIPTTL -> take :: Take; d[1] -> dead :: Take");
        harness.give_bytes("give", &with_ttl(9, [2; 4]));
        assert_eq!((harness.take("take").len(), harness.take("dead").len()), (0, 0));
        assert_eq!(harness.read("d.drops"), "1");
    }

    #[test]
    fn any_packet_is_survived() {
        assert!(Harness::errors("Give -> DecIPTTL(true) -> Take").contains("too many arguments"));
        fuzz("give :: Give -> d :: DecIPTTL -> take :: Take; d[1] -> dead :: Take", &["take", "dead"]);
        fuzz("give :: Give -> CheckIPHeader -> d :: DecIPTTL -> take :: Take; d[1] -> dead :: Take", &["take", "dead"]);
    }
}
