//! ICMPPingResponder: answers ICMP echo requests.
//!
//! `ICMPPingResponder`: push or pull, no arguments. An echo request becomes its answer: type 0, addresses swapped, TTL 255,
//! no flags of fragments, checksums adjusted, so that wrong ones stay wrong. The destination annotation becomes the new
//! destination, the timestamp the time, and the paint 0. Anything else goes to output 1, or is dropped where there is none.
//!
//! Unlike Click: fragments but the first are not taken for requests.

use crate::Packet;
use crate::element::Element;
use crate::headers::checksum::{adjust16, adjust32};
use crate::headers::{Icmp, IcmpMut, Ip, IpMut, icmp, ip};
use crate::packet::anno;
use crate::router::Cx;

/// Hops of an answer.
const TTL: u8 = 255;

/// The element.
#[derive(Default)]
pub(super) struct IcmpPingResponder;

fn is_request(packet: &Packet) -> bool {
    let Some(ip) = packet.network_header().and_then(Ip::new) else { return false };
    let is_first = ip.protocol() == ip::PROTOCOL_ICMP && ip.is_first_fragment() && ip.header_len() >= ip::LEN;
    is_first && Icmp::new(ip.payload()).is_some_and(|icmp| icmp.kind() == icmp::ECHO)
}

/// Makes a request its answer.
fn answer(bytes: &mut [u8]) -> Option<()> {
    let (header_len, len) = Ip::new(bytes).map(|ip| (ip.header_len(), usize::from(ip.total_len())))?;
    let mut header = IpMut::new(bytes)?;
    let (source, destination) = (header.get().source(), header.get().destination());
    header.set_source(destination);
    header.set_destination(source);
    let old = u32::from(header.get().flags_offset()) << 16 | u32::from(header.get().ttl()) << 8;
    let sum = adjust32(header.get().checksum(), old, u32::from(TTL) << 8);
    header.set_flags_offset(0);
    header.set_ttl(TTL);
    header.set_checksum(sum);
    let end = len.min(bytes.len());
    let message = &mut bytes[header_len..end];
    let mut header = IcmpMut::new(message)?;
    let old = u16::from(icmp::ECHO) << 8 | u16::from(header.get().code());
    let sum = adjust16(header.get().checksum(), old, 0);
    header.set_kind(icmp::ECHO_REPLY, 0);
    header.set_checksum(sum);
    icmp::settle_zero(message);
    Some(())
}

impl Element for IcmpPingResponder {
    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if !is_request(&packet) {
            cx.emit_checked(1, packet);
            return None;
        }
        answer(packet.network_header_mut()?)?;
        let destination = packet.network_header().and_then(Ip::new)?.destination();
        packet.set_dst_ip(destination);
        packet.set_timestamp(cx.now());
        packet.set_anno_u8(anno::PAINT, 0);
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use bifolio_testing::{noise, seed};

    use super::*;
    use crate::elements::testing::{self, Harness, fuzz};
    use crate::headers::checksum;

    const CONFIG: &str = "give :: Give -> ICMPPingResponder -> take :: Take";

    fn ping(kind: u8, id: u16, data: &[u8], flags_offset: u16) -> Packet {
        let mut message = [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 0], data].concat();
        icmp::set_checksum(&mut message);
        let mut bytes = testing::ip(1, [1, 0, 0, 1], [2, 0, 0, 2], &message);
        IpMut::new(&mut bytes).unwrap().set_flags_offset(flags_offset);
        ip::set_checksum(&mut bytes);
        let mut packet = Packet::from_slice(&bytes);
        packet.set_network_header(0, 20);
        packet.set_anno_u8(anno::PAINT, 5);
        packet
    }

    #[test]
    fn requests_become_answers_with_right_checksums() {
        let mut rng = fastrand::Rng::with_seed(seed());
        let mut harness = Harness::new(CONFIG);
        for round in 0..300 {
            let data = if round < 3 { vec![0; round] } else { noise(rng.usize(..40), rng.u64(..)) };
            let id = if round < 3 { 0 } else { rng.u16(..) };
            let request = ping(icmp::ECHO, id, &data, [0, ip::DF, ip::MF][rng.usize(..3)]);
            harness.give("give", [request.clone()]);
            let out = harness.take("take").remove(0);
            let ip = Ip::checked(out.bytes()).unwrap();
            assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()), "{request:?}");
            assert_eq!((ip.source().octets(), ip.destination().octets()), ([2, 0, 0, 2], [1, 0, 0, 1]));
            assert_eq!((ip.ttl(), ip.flags_offset(), ip.payload()[0]), (255, 0, 0));
            assert_eq!(ip.payload()[4..], request.bytes()[24..]);
            assert_eq!(
                (out.anno_u8(anno::PAINT), out.dst_ip().octets(), out.timestamp()),
                (0, [1, 0, 0, 1], harness.now())
            );
        }
    }

    #[test]
    fn all_else_goes_to_the_second_output() {
        let mut wrong = ping(icmp::ECHO, 1, b"", 0);
        wrong.bytes_mut()[22] ^= 1;
        let others = [ping(icmp::ECHO_REPLY, 1, b"", 0), ping(icmp::ECHO, 1, b"", 1), Packet::from_slice(&[8; 40])];
        let config = "give :: Give -> r :: ICMPPingResponder -> take :: Take; r[1] -> other :: Take";
        for (config, sinks) in [(CONFIG, 0), (config, 3)] {
            let mut harness = Harness::new(config);
            harness.give("give", others.iter().cloned().chain([wrong.clone()]));
            let out = harness.take("take").remove(0);
            assert!(!checksum::is_valid(&out.bytes()[20..]), "a wrong checksum stays wrong");
            if sinks > 0 {
                assert_eq!(harness.take_bytes("other"), others.each_ref().map(|packet| packet.bytes().to_vec()));
            }
        }
        assert!(Harness::errors("Give -> ICMPPingResponder(5) -> Take").contains("too many arguments"));
    }

    #[test]
    fn any_packets_are_survived() {
        fuzz(CONFIG, &["take"]);
    }
}
