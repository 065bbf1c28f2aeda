//! ICMPError: answers packets with ICMP errors.
//!
//! `ICMPError(SRC, TYPE [, CODE, BADADDRS, MTU, PMTU, SET_FIX_ANNO])`: push or pull. For each IP packet leaves an ICMP error
//! from SRC to its source, with as much of it as fits in MTU (576) bytes. TYPE and CODE (0) are numbers or names; TYPE is
//! one of an error. Nothing leaves for ICMP errors, for fragments but the first, for packets that were for more than one
//! host (by their link-level type, their destination, or as it is one of BADADDRS, addresses with spaces between them),
//! and for sources that no answer may go to.
//!
//! A redirect names the destination annotation as gateway; `parameterproblem`, `erroratptr` takes its pointer from the
//! annotation of IPGWOptions; `unreachable`, `needfrag` tells PMTU (0). A source route is reversed into the answer, unless
//! the problem is in it. The destination annotation is set, and unless SET_FIX_ANNO (or USE_FIX_ANNO) is false, the one by which FixIPSrc sets
//! the source.
//!
//! Handlers: `src`, `mtu`, `pmtu` (r/w).
//!
//! Unlike Click: each element counts its ids from 1, and no answer leaves for a packet whose IP header isn't all there.

use std::net::Ipv4Addr;

use crate::args::{Arg, ArgCx, Args, Failed, Word};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::options::Opt;
use crate::headers::{IcmpMut, Ip, IpMut, icmp, ip};
use crate::packet::{DEFAULT_HEADROOM, PacketType, anno};
use crate::router::Cx;
use crate::{Packet, lang};

use super::names::{self, IcmpType};

/// The first id.
const FIRST_ID: u16 = 1;
/// Hops of an answer.
const TTL: u8 = 200;
/// A packet cannot be longer.
const LEN_MAX: u32 = 0xffff;

/// Addresses with spaces between them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Addresses(Vec<Ipv4Addr>);

impl Arg for Addresses {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        lang::config::split_words(text).iter().map(|word| Ipv4Addr::parse(word, cx)).collect::<Result<_, _>>().map(Self)
    }
}

/// The element.
pub(super) struct IcmpError {
    source: Ipv4Addr,
    kind: u8,
    code: u8,
    bad: Addresses,
    mtu: u32,
    path_mtu: u32,
    set_fix_anno: bool,
    id: u16,
}

impl Default for IcmpError {
    fn default() -> Self {
        Self {
            source: Ipv4Addr::UNSPECIFIED,
            kind: 0,
            code: 0,
            bad: Addresses::default(),
            mtu: 576,
            path_mtu: 0,
            set_fix_anno: true,
            id: FIRST_ID,
        }
    }
}

/// The source route of a packet, as far as it was gone.
fn source_route(ip: Ip<'_>) -> Option<Opt<'_>> {
    ip.options().map_while(Result::ok).find(|option| {
        let pointer = option.bytes.get(2).map_or(0, |&pointer| usize::from(pointer));
        let is_route = matches!(option.kind(), ip::OPT_LSRR | ip::OPT_SSRR);
        is_route && pointer >= 4 && pointer % 4 == 0 && pointer <= option.bytes.len() + 1
    })
}

/// The route back, as an option, and zeros up to a multiple of 4 bytes.
fn reversed(route: Opt<'_>) -> Vec<u8> {
    let gone = usize::from(route.bytes[2]) - 1;
    let mut option = vec![route.kind(), gone as u8, 4];
    let hops = route.bytes.get(3..gone).unwrap_or_default();
    option.extend(hops.rchunks_exact(4).flatten());
    option.resize(gone.next_multiple_of(4), 0);
    option
}

impl IcmpError {
    fn is_unicast(&self, address: Ipv4Addr) -> bool {
        !address.is_broadcast() && !address.is_multicast() && !self.bad.0.contains(&address)
    }

    fn is_valid_source(&self, address: Ipv4Addr) -> bool {
        let net = address.octets()[0];
        self.is_unicast(address) && !matches!(net, 0 | 127 | 240..)
    }

    /// Whether a packet may be answered (RFC 1812, 4.3.2.7).
    fn is_answered(&self, packet: &Packet, ip: Ip<'_>) -> bool {
        let is_error = ip.protocol() == ip::PROTOCOL_ICMP
            && ip.is_first_fragment()
            && ip.payload().first().is_none_or(|&kind| icmp::is_error(kind));
        !is_error
            && self.is_unicast(ip.destination())
            && !matches!(packet.kind(), PacketType::Broadcast | PacketType::Multicast)
            && self.is_valid_source(ip.source())
            && ip.is_first_fragment()
    }

    /// The pointer of a parameter problem, where it is one with a pointer.
    fn pointer(&self, packet: &Packet) -> Option<u8> {
        let has_pointer = self.kind == icmp::PARAMETER_PROBLEM && self.code == 0;
        has_pointer.then(|| packet.anno_u8(anno::ICMP_PARAMPROB))
    }

    fn route_back(&self, packet: &Packet, ip: Ip<'_>) -> Vec<u8> {
        let Some(route) = source_route(ip) else { return Vec::new() };
        let begin = ip::LEN + route.offset;
        let is_the_problem = |pointer: u8| (begin..begin + route.bytes.len()).contains(&usize::from(pointer));
        if self.pointer(packet).is_some_and(is_the_problem) { Vec::new() } else { reversed(route) }
    }

    fn parameter(&self, packet: &Packet) -> u32 {
        match (self.kind, self.code) {
            (icmp::REDIRECT, _) => packet.dst_ip().to_bits(),
            (icmp::UNREACHABLE, icmp::UNREACHABLE_NEEDFRAG) => self.path_mtu & 0xffff,
            _ => self.pointer(packet).map_or(0, |pointer| u32::from(pointer) << 24),
        }
    }

    fn answer(&mut self, cx: &Cx<'_>, packet: &Packet) -> Option<Packet> {
        let bytes = packet.network_header()?;
        let ip = Ip::new(bytes).filter(|ip| ip.header_len() >= ip::LEN && ip.header_len() <= bytes.len())?;
        if !self.is_answered(packet, ip) || self.kind == icmp::REDIRECT && source_route(ip).is_some() {
            return None;
        }
        let options = self.route_back(packet, ip);
        let header_len = ip::LEN + options.len();
        let room = (self.mtu.min(LEN_MAX) as usize).saturating_sub(header_len + icmp::LEN);
        let kept = &bytes[..bytes.len().min(room)];
        let mut answer = Packet::with_room(DEFAULT_HEADROOM, header_len + icmp::LEN + kept.len(), 0);
        let out = answer.bytes_mut();
        let len = out.len() as u16;
        let mut header = IpMut::new(out)?;
        header.clear(header_len);
        header.set_total_len(len);
        header.set_id(self.id);
        header.set_ttl(TTL);
        header.set_protocol(ip::PROTOCOL_ICMP);
        header.set_source(self.source);
        header.set_destination(ip.source());
        out[ip::LEN..header_len].copy_from_slice(&options);
        ip::set_checksum(out);
        let message = &mut out[header_len..];
        message[icmp::LEN..].copy_from_slice(kept);
        let mut header = IcmpMut::new(message)?;
        header.set_kind(self.kind, self.code);
        header.set_parameter(self.parameter(packet));
        icmp::set_checksum(message);
        self.id = self.id.wrapping_add(1);
        answer.set_network_header(0, header_len);
        answer.set_dst_ip(ip.source());
        if self.set_fix_anno {
            answer.set_anno_u8(anno::FIX_IP_SRC, 1);
        }
        answer.set_timestamp(cx.now());
        Some(answer)
    }
}

impl Element for IcmpError {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut kind, mut code) = (IcmpType::default(), Word("0".into()));
        args.must("SRC", &mut self.source).must("TYPE", &mut kind).may("CODE", &mut code);
        args.may("BADADDRS", &mut self.bad).key("MTU", &mut self.mtu).key("PMTU", &mut self.path_mtu);
        args.key("SET_FIX_ANNO", &mut self.set_fix_anno).key("USE_FIX_ANNO", &mut self.set_fix_anno).finish()?;
        let IcmpType(number) = kind;
        let Ok(kind) = u8::try_from(number) else {
            return Err(args.error("ICMP type must be between 0 and 255"));
        };
        if !icmp::is_error(kind) {
            return Err(args.error(format_args!("ICMP type {kind} is not an error type")));
        }
        let Some(code) = names::code(kind, &code.0, args.cx()) else {
            return Err(args.error("argument 2 takes ICMP code (integer between 0 and 255)"));
        };
        (self.kind, self.code) = (kind, code);
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        self.answer(cx, &packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("src", |element: &mut Self| &mut element.source);
        handlers.data("mtu", |element: &mut Self| &mut element.mtu);
        handlers.data("pmtu", |element: &mut Self| &mut element.path_mtu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{self, Harness, fuzz};
    use crate::headers::{Icmp, checksum};

    fn marked(bytes: &[u8]) -> Packet {
        let mut packet = Packet::from_slice(bytes);
        let header_len = Ip::new(bytes).unwrap().header_len();
        packet.set_network_header(0, header_len);
        packet.set_dst_ip([7, 7, 7, 7].into());
        packet
    }

    /// What is answered to packets.
    fn answers(config: &str, packets: Vec<Packet>) -> Vec<Packet> {
        let mut harness = Harness::new(&format!("give :: Give -> e :: ICMPError({config}) -> take :: Take"));
        harness.give("give", packets);
        harness.take("take")
    }

    fn udp(source: [u8; 4], destination: [u8; 4], len: usize) -> Vec<u8> {
        testing::udp((source, 1), (destination, 2), &vec![7; len])
    }

    #[test]
    fn an_answer_has_the_packet_and_goes_to_its_source() {
        let bytes = udp([18, 26, 4, 44], [10, 0, 0, 8], 20);
        let out = answers("19.19.19.19, timeexceeded, reassembly", vec![marked(&bytes), marked(&bytes)]);
        let ip = Ip::checked(out[0].bytes()).unwrap();
        assert_eq!((ip.source().octets(), ip.destination().octets()), ([19; 4], [18, 26, 4, 44]));
        assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()));
        assert_eq!((ip.ttl(), ip.id(), Ip::new(out[1].bytes()).unwrap().id()), (200, 1, 2));
        let icmp = Icmp::new(ip.payload()).unwrap();
        assert_eq!((icmp.kind(), icmp.code(), icmp.parameter(), icmp.payload()), (11, 1, 0, &bytes[..]));
        assert_eq!((out[0].dst_ip().octets(), out[0].anno_u8(anno::FIX_IP_SRC)), ([18, 26, 4, 44], 1));
        assert_eq!((out[0].network_offset(), out[0].transport_offset()), (Some(0), Some(20)));
    }

    #[test]
    fn the_parameter_is_that_of_the_type() {
        let mut packet = marked(&udp([1, 2, 3, 4], [10, 0, 0, 8], 1000));
        packet.set_anno_u8(anno::ICMP_PARAMPROB, 21);
        let parameter = |config: &str| {
            let out = answers(config, vec![packet.clone()]);
            (out[0].len(), Icmp::new(&out[0].bytes()[20..]).unwrap().parameter())
        };
        assert_eq!(parameter("9.9.9.9, redirect, host"), (576, 0x0707_0707));
        assert_eq!(parameter("9.9.9.9, 12, erroratptr, MTU 100"), (100, 21 << 24));
        assert_eq!(parameter("9.9.9.9, parameterproblem, missingopt, MTU 3"), (28, 0));
        assert_eq!(parameter("9.9.9.9, 3, needfrag, PMTU 1400"), (576, 1400));
        for keyword in ["SET_FIX_ANNO", "USE_FIX_ANNO"] {
            let out = answers(&format!("9.9.9.9, 3, {keyword} false"), vec![packet.clone()]);
            assert_eq!(out[0].anno_u8(anno::FIX_IP_SRC), 0);
        }
    }

    #[test]
    fn packets_that_must_not_be_answered_are_not() {
        let good = udp([1, 2, 3, 4], [10, 0, 0, 8], 8);
        let mut fragment = good.clone();
        fragment[7] = 1;
        let mut broadcast = marked(&good);
        broadcast.set_kind(PacketType::Broadcast);
        let error = testing::ip(1, [1, 2, 3, 4], [5, 6, 7, 8], &[3, 0, 0, 0, 0, 0, 0, 0]);
        let echo = testing::ip(1, [1, 2, 3, 4], [5, 6, 7, 8], &[8, 0, 0, 0, 0, 0, 0, 0]);
        let mut packets = vec![marked(&fragment), broadcast, marked(&error), Packet::from_slice(&good)];
        for source in [[0, 1, 1, 1], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4], [9, 9, 9, 255]] {
            packets.push(marked(&udp(source, [10, 0, 0, 8], 8)));
        }
        for destination in [[224, 0, 0, 1], [255; 4], [9, 9, 8, 255]] {
            packets.push(marked(&udp([1, 2, 3, 4], destination, 8)));
        }
        packets.push(marked(&echo));
        assert_eq!(answers("9.9.9.9, 3, 1, BADADDRS 9.9.9.255 9.9.8.255", packets).len(), 1);
    }

    fn routed(pointer: u8) -> Packet {
        let mut bytes = udp([18, 26, 4, 44], [10, 0, 0, 8], 8);
        let hops = [[128, 4, 45, 60], [128, 4, 49, 61], [1, 2, 3, 4], [5, 6, 7, 8]].concat();
        let option = [&[ip::OPT_SSRR, 19, pointer][..], &hops, &[0]].concat();
        bytes.splice(20..20, option);
        let len = bytes.len() as u16;
        let mut ip = IpMut::new(&mut bytes).unwrap();
        ip.set_header_len(40);
        ip.set_total_len(len);
        ip::set_checksum(&mut bytes);
        marked(&bytes)
    }

    #[test]
    fn a_source_route_is_gone_back() {
        let out = answers("19.19.19.19, timeexceeded", vec![routed(12)]);
        let ip = Ip::checked(out[0].bytes()).unwrap();
        assert_eq!(ip.options().as_bytes(), [ip::OPT_SSRR, 11, 4, 128, 4, 49, 61, 128, 4, 45, 60, 0]);
        assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()));
        assert!(answers("19.19.19.19, redirect", vec![routed(12)]).is_empty());
        for (pointer, len) in [(19, 32), (20, 20), (38, 20), (39, 32)] {
            let mut packet = routed(12);
            packet.set_anno_u8(anno::ICMP_PARAMPROB, pointer);
            let out = answers("19.19.19.19, 12, 0", vec![packet]);
            assert_eq!(Ip::new(out[0].bytes()).unwrap().header_len(), len, "{pointer}");
        }
        for pointer in [0, 3, 5, 24, 255] {
            let out = answers("19.19.19.19, 11", vec![routed(pointer)]);
            assert_eq!(Ip::new(out[0].bytes()).unwrap().header_len(), 20, "{pointer}");
        }
        let out = answers("19.19.19.19, 11", vec![routed(20), routed(4)]);
        assert_eq!(
            out.iter().map(|packet| Ip::new(packet.bytes()).unwrap().header_len()).collect::<Vec<_>>(),
            [40, 24]
        );
    }

    #[test]
    fn its_arguments_are_checked() {
        let errors = |config: &str| Harness::errors(&format!("Give -> ICMPError({config}) -> Take"));
        assert!(errors("1.0.0.1").contains("TYPE: required argument missing"));
        assert!(errors("1.0.0.1, 256").contains("  ICMP type must be between 0 and 255"));
        assert!(errors("1.0.0.1, echo").contains("  ICMP type 8 is not an error type"));
        assert!(errors("1.0.0.1, redirect, port").contains("  argument 2 takes ICMP code (integer between 0 and 255)"));
        assert!(errors("x, 3").contains("SRC: type mismatch"));
        assert!(errors("1.0.0.1, 3, 0, 5").contains("BADADDRS: type mismatch"));
        let mut harness = Harness::new("Give -> e :: ICMPError(1.0.0.1, 3, PMTU 9) -> Take");
        harness.write("e.src", "2.0.0.2").unwrap();
        assert_eq!(["src", "mtu", "pmtu"].map(|name| harness.read(&format!("e.{name}"))), ["2.0.0.2", "576", "9"]);
    }

    #[test]
    fn any_packets_are_survived() {
        for packet in fuzz("give :: Give -> ICMPError(1.0.0.1, 12, 0) -> take :: Take", &["take"]).concat() {
            let ip = Ip::checked(packet.bytes()).unwrap();
            assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()) && packet.len() <= 576);
        }
    }
}
