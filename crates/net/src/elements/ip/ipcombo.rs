//! IPInputCombo and IPOutputCombo: what an IP router does with its inputs and outputs, each in one element.
//!
//! `IPInputCombo(COLOR [, BADSRC*, INTERFACES, BADSRC, GOODDST])`: agnostic; the same as
//! `Paint(COLOR) -> Strip(14) -> CheckIPHeader(...)`, whose arguments these are. BADSRC* by position is the old form, with 0.0.0.0
//! and 255.255.255.255. Packets that fail are dropped; the first is told. Handler: `drops`.
//!
//! `IPOutputCombo(COLOR, IPADDR, MTU)`: push, with five outputs; the same as `DropBroadcasts -> PaintTee(COLOR) ->
//! IPGWOptions(IPADDR) -> FixIPSrc(IPADDR) -> DecIPTTL -> CheckLength(MTU)`:
//!
//! - output 1: copies of packets painted COLOR;
//! - output 2: packets whose options are wrong;
//! - output 3: packets whose time to live ends;
//! - output 4: packets of more than MTU bytes;
//! - output 0: the others.
//!
//! A packet whose IP header is not known is dropped (Click ends the program).

use super::addresses::{BadSources, positional};
use super::checkipheader::Rules;
use super::ipgwoptions::{Router, fix_source};
use crate::args::{Arg, Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::{Ip, IpMut};
use crate::packet::anno;
use crate::router::Cx;
use crate::{Packet, PacketType};
use std::net::Ipv4Addr;

const ETHER_LEN: usize = 14;

/// Input.
pub(super) struct IpInputCombo {
    color: u8,
    rules: Rules,
    drops: u64,
}

impl Default for IpInputCombo {
    fn default() -> Self {
        Self { color: 0, rules: Rules { has_checksum: true, ..Rules::default() }, drops: 0 }
    }
}

impl IpInputCombo {
    #[inline]
    fn check(&mut self, cx: &Cx<'_>, packet: &mut Packet) -> bool {
        packet.set_anno_u8(anno::PAINT, self.color);
        packet.pull(ETHER_LEN);
        let is_right = self.rules.check(packet, 0).is_ok();
        if !is_right {
            if self.drops == 0 {
                cx.say("IP checksum failed");
            }
            self.drops += 1;
        }
        is_right
    }
}

impl Element for IpInputCombo {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut bad = BadSources::default();
        args.must("COLOR", &mut self.color);
        self.rules.configure(args);
        if !args.has_key("BADSRC*", &mut bad) {
            positional(args, &mut [("BADSRC*", &mut |text, cx| BadSources::store(text, cx, &mut bad))]);
        }
        self.rules.bad_sources.0.extend(bad.0);
        args.finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        self.check(cx, &mut packet).then_some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        cx.filter_batch(batch, |cx, packet| self.check(cx, packet));
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |combo: &mut Self, _| combo.drops);
    }
}

/// Output.
pub(super) struct IpOutputCombo {
    color: u8,
    address: Ipv4Addr,
    mtu: u32,
}

impl Default for IpOutputCombo {
    fn default() -> Self {
        Self { color: 0, address: Ipv4Addr::UNSPECIFIED, mtu: 0 }
    }
}

const COPY: usize = 1;
const OPTIONS: usize = 2;
const EXPIRED: usize = 3;
const LONG: usize = 4;

impl Element for IpOutputCombo {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("COLOR", &mut self.color).must("IPADDR", &mut self.address).must("MTU", &mut self.mtu).finish()
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, mut packet: Packet) {
        if matches!(packet.kind(), PacketType::Broadcast | PacketType::Multicast) {
            return;
        }
        let Some(ttl) = packet.network_header().and_then(Ip::new).map(Ip::ttl) else { return };
        if packet.anno_u8(anno::PAINT) == self.color {
            cx.emit(COPY, packet.clone());
        }
        let router = Router { address: self.address, others: &[], now: cx.now() };
        if let Err(wrong) = router.process(&mut packet) {
            packet.set_anno_u8(anno::ICMP_PARAMPROB, wrong);
            return cx.emit(OPTIONS, packet);
        }
        fix_source(&mut packet, self.address);
        if ttl <= 1 {
            return cx.emit(EXPIRED, packet);
        }
        if let Some(mut ip) = packet.network_header_mut().and_then(IpMut::new) {
            ip.decrement_ttl();
        }
        let output = if packet.len() as u64 > u64::from(self.mtu) { LONG } else { 0 };
        cx.emit(output, packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz, ip, noise, udp};
    use crate::headers::ip::set_checksum;

    fn framed(packet: &[u8]) -> Vec<u8> {
        [&[6; 14][..], packet].concat()
    }

    #[test]
    fn input_is_painted_stripped_and_checked() {
        let mut harness = Harness::new("give :: Give -> c :: IPInputCombo(3, 9.9.9.9 8.8.8.8) -> take :: Take");
        let good = udp(([1; 4], 1), ([2; 4], 2), b"data");
        harness.give_bytes("give", &framed(&[&good[..], &[0; 5]].concat()));
        harness.give_bytes("give", &framed(&ip(17, [9; 4], [2; 4], &[])));
        harness.give_bytes("give", &framed(&ip(17, [255; 4], [2; 4], &[])));
        harness.give_bytes("give", &[0; 9]);
        let out = harness.take("take");
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].bytes(), out[0].anno_u8(anno::PAINT), out[0].dst_ip().octets()), (&good[..], 3, [2; 4]));
        assert_eq!((harness.read("c.drops"), harness.said()), ("3".into(), vec!["IP checksum failed".to_owned()]));
    }

    /// The same packets through the combination and through elements that do the same.
    #[test]
    fn input_is_that_of_single_elements() {
        let arguments = "INTERFACES 10.0.0.1/24, BADSRC 10.0.1.1";
        let mut combo = Harness::new(&format!("give :: Give -> IPInputCombo(5, {arguments}) -> take :: Take"));
        let row = format!("Paint(5) -> Strip(14) -> CheckIPHeader({arguments})");
        let mut single = Harness::new(&format!("give :: Give -> {row} -> take :: Take"));
        let packets = noise(2000);
        combo.give("give", packets.clone());
        single.give("give", packets);
        let seen = |packets: Vec<Packet>| -> Vec<_> {
            packets.iter().map(|packet| (packet.bytes().to_vec(), *packet.anno(), packet.network_offset())).collect()
        };
        let (combo, single) = (seen(combo.take("take")), seen(single.take("take")));
        assert!(!combo.is_empty());
        assert_eq!(combo, single);
    }

    const OUTPUT: &str = "give :: Give -> MarkIPHeader -> c :: IPOutputCombo(2, 10.0.0.1, 40);
        c[0] -> o0 :: Take; c[1] -> o1 :: Take; c[2] -> o2 :: Take; c[3] -> o3 :: Take; c[4] -> o4 :: Take";

    #[test]
    fn output_goes_five_ways() {
        let mut harness = Harness::new(OUTPUT);
        let good = ip(17, [1; 4], [2; 4], &[7; 20]);
        let mut copied = Packet::from_slice(&good);
        copied.set_anno_u8(anno::PAINT, 2);
        copied.set_anno_u8(anno::FIX_IP_SRC, 1);
        let mut expired = good.clone();
        expired[8] = 1;
        set_checksum(&mut expired).unwrap();
        let mut wrong = ip(17, [1; 4], [2; 4], &[7, 3, 9, 0]);
        wrong[0] = 0x46;
        let mut broadcast = Packet::from_slice(&good);
        broadcast.set_kind(PacketType::Broadcast);
        let long = ip(17, [1; 4], [2; 4], &[7; 21]);
        harness.give("give", [copied, broadcast]);
        for packet in [&good, &expired, &wrong, &long] {
            harness.give_bytes("give", packet);
        }
        let out = harness.take("o0");
        assert_eq!(out.len(), 2);
        assert!(
            out.iter().all(|packet| packet.bytes()[8] == 63 && Ip::new(packet.bytes()).unwrap().is_checksum_valid())
        );
        assert_eq!(out[0].bytes()[12..16], [10, 0, 0, 1]);
        assert_eq!(out[1].bytes()[12..16], [1; 4]);
        assert_eq!(harness.take_bytes("o1"), [good]);
        let bad = harness.take("o2");
        assert_eq!((bad[0].bytes(), bad[0].anno_u8(anno::ICMP_PARAMPROB)), (&wrong[..], 22));
        assert_eq!(harness.take_bytes("o3"), [expired]);
        let out = harness.take_bytes("o4");
        assert_eq!((out[0].len(), out[0][8]), (41, 63));
    }

    #[test]
    fn wrong_configurations_and_any_packet() {
        for (config, told) in [
            ("IPInputCombo", "COLOR: required argument missing"),
            ("IPInputCombo(256)", "COLOR: "),
            ("IPInputCombo(1, x)", "BADSRC*: type mismatch"),
            ("IPInputCombo(1, 1.1.1.1, 3)", "too many arguments"),
            ("IPInputCombo(1, FOO 3)", "FOO: unknown argument"),
        ] {
            let log = Harness::errors(&format!("Give -> {config} -> Take"));
            assert!(log.contains(told), "{config}: {log}");
        }
        let log = Harness::errors(&OUTPUT.replace("10.0.0.1, 40", "x"));
        assert!(log.contains("IPADDR: type mismatch") && log.contains("MTU: required argument missing"), "{log}");
        fuzz("give :: Give -> IPInputCombo(1) -> take :: Take", &["take"]);
        fuzz(OUTPUT, &["o0", "o1", "o2", "o3", "o4"]);
        fuzz(&OUTPUT.replace("MarkIPHeader", "CheckIPHeader"), &["o0"]);
    }
}
