//! ICMPIPEncap, ICMPPingEncap: put packets into ICMP messages.
//!
//! `ICMPIPEncap(SRC, DST, TYPE [, CODE, IDENTIFIER])`, `ICMPPingEncap(SRC, DST [, IDENTIFIER])`: push or pull. An IP header
//! and an ICMP header are put before each packet, which becomes the message's data. TYPE and CODE (0) are numbers or names,
//! for a ping `echo` and 0. Messages of types that have them get IDENTIFIER (0), and the IP header's id as sequence number;
//! it counts from 1, without 0. The destination annotation becomes DST.
//!
//! Handlers: `src`, `dst` (r/w).

use std::net::Ipv4Addr;

use crate::Packet;
use crate::args::{Args, Failed, Word};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::{IcmpMut, IpMut, icmp, ip};
use crate::router::Cx;

use super::names::{self, IcmpType};

/// Hops of a message.
const TTL: u8 = 255;

/// What is put before packets.
struct Header {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    kind: u8,
    code: u8,
    identifier: u16,
    id: u16,
}

impl Default for Header {
    fn default() -> Self {
        let nowhere = Ipv4Addr::UNSPECIFIED;
        Self { source: nowhere, destination: nowhere, kind: icmp::ECHO, code: 0, identifier: 0, id: 1 }
    }
}

/// Bytes of the header of a type.
fn header_len(kind: u8) -> usize {
    match kind {
        icmp::TIMESTAMP | icmp::TIMESTAMP_REPLY => 20,
        _ => icmp::LEN,
    }
}

/// Whether messages of a type have an identifier and a sequence number.
fn has_sequence(kind: u8) -> bool {
    use icmp::{ECHO, ECHO_REPLY, INFO, INFO_REPLY, TIMESTAMP, TIMESTAMP_REPLY};
    matches!(kind, TIMESTAMP | TIMESTAMP_REPLY | ECHO | ECHO_REPLY | INFO | INFO_REPLY)
}

impl Header {
    fn put(&mut self, mut packet: Packet) -> Option<Packet> {
        let own = ip::LEN + header_len(self.kind);
        let len = u16::try_from(packet.len() + own).ok()?;
        let (head, message) = packet.push(own).split_first_chunk_mut::<{ ip::LEN }>()?;
        message[..own - ip::LEN].fill(0);
        let mut header = IcmpMut::new(message)?;
        header.set_kind(self.kind, self.code);
        if has_sequence(self.kind) {
            header.set_id(self.identifier);
            header.set_sequence(self.id);
        }
        icmp::set_checksum(message);
        let mut header = IpMut::new(head)?;
        header.clear(ip::LEN);
        header.set_total_len(len);
        header.set_id(self.id);
        header.set_ttl(TTL);
        header.set_protocol(ip::PROTOCOL_ICMP);
        header.set_source(self.source);
        header.set_destination(self.destination);
        ip::set_checksum(head);
        self.id = self.id.wrapping_add(1).max(1);
        packet.set_dst_ip(self.destination);
        packet.set_network_header(0, ip::LEN);
        Some(packet)
    }
}

/// The element ICMPIPEncap.
#[derive(Default)]
pub(super) struct IcmpIpEncap(Header);

impl Element for IcmpIpEncap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let Self(header) = self;
        let (mut kind, mut code) = (IcmpType::default(), Word("0".into()));
        args.must("SRC", &mut header.source).must("DST", &mut header.destination).must("TYPE", &mut kind);
        args.may("CODE", &mut code).key("IDENTIFIER", &mut header.identifier).finish()?;
        header.kind = u8::try_from(kind.0).map_err(|_| args.error("invalid TYPE"))?;
        header.code = match names::code(header.kind, &code.0, args.cx()) {
            Some(code) => code,
            None => return Err(args.error("invalid CODE")),
        };
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        self.0.put(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("src", |element: &mut Self| &mut element.0.source);
        handlers.data("dst", |element: &mut Self| &mut element.0.destination);
    }
}

/// The element ICMPPingEncap.
#[derive(Default)]
pub(super) struct IcmpPingEncap(Header);

impl Element for IcmpPingEncap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let Self(header) = self;
        args.must("SRC", &mut header.source).must("DST", &mut header.destination);
        args.key("IDENTIFIER", &mut header.identifier).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        self.0.put(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("src", |element: &mut Self| &mut element.0.source);
        handlers.data("dst", |element: &mut Self| &mut element.0.destination);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz};
    use crate::headers::{Icmp, Ip, checksum};

    fn encapsulated(config: &str, data: &[&[u8]]) -> Vec<Packet> {
        let mut harness = Harness::new(&format!("give :: Give -> e :: {config} -> take :: Take"));
        harness.give("give", data.iter().map(|bytes| Packet::from_slice(bytes)));
        harness.take("take")
    }

    #[test]
    fn pings_have_identifier_and_sequence_number() {
        let out = encapsulated("ICMPPingEncap(1.0.0.1, 2.0.0.2, IDENTIFIER 3)", &[b"abc", b""]);
        for (packet, (id, data)) in out.iter().zip([(1, &b"abc"[..]), (2, b"")]) {
            let ip = Ip::checked(packet.bytes()).unwrap();
            assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()));
            assert_eq!((ip.source().octets(), ip.destination().octets(), ip.ttl()), ([1, 0, 0, 1], [2, 0, 0, 2], 255));
            let icmp = Icmp::new(ip.payload()).unwrap();
            assert_eq!((icmp.kind(), icmp.code(), icmp.id(), icmp.sequence(), ip.id()), (8, 0, 3, id, id));
            assert_eq!((icmp.payload(), packet.dst_ip().octets()), (data, [2, 0, 0, 2]));
            assert_eq!(packet.transport_offset(), Some(20));
        }
    }

    #[test]
    fn other_messages_have_their_type_and_code() {
        for (config, kind, code, id, len) in [
            ("TYPE 8, CODE 0", 8, 0, 5, 28),
            ("3, 1", 3, 1, 0, 28),
            ("redirect, toshost", 5, 3, 0, 28),
            ("timestamp", 13, 0, 5, 40),
            ("77, CODE 200", 77, 200, 0, 28),
        ] {
            let out = encapsulated(&format!("ICMPIPEncap(1.0.0.1, 1.0.0.2, {config}, IDENTIFIER 5)"), &[b""]);
            let ip = Ip::checked(out[0].bytes()).unwrap();
            let icmp = Icmp::new(ip.payload()).unwrap();
            assert_eq!((icmp.kind(), icmp.code(), icmp.id(), out[0].len()), (kind, code, id, len), "{config}");
            assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()));
        }
    }

    #[test]
    fn ids_are_never_zero_and_what_is_too_long_is_dropped() {
        let mut header = Header { id: 0xfffe, ..Header::default() };
        let mut id = || Ip::new(header.put(Packet::from_slice(&[])).unwrap().bytes()).unwrap().id();
        assert_eq!([id(), id(), id()], [0xfffe, 0xffff, 1]);
        assert_eq!(encapsulated("ICMPPingEncap(1.0.0.1, 2.0.0.2)", &[&vec![0; 65508], &vec![0; 65507]]).len(), 1);
    }

    #[test]
    fn arguments_are_checked_and_addresses_change() {
        let errors = |config: &str| Harness::errors(&format!("Give -> {config} -> Take"));
        assert!(errors("ICMPIPEncap(1.0.0.1, 1.0.0.2)").contains("TYPE: required argument missing"));
        assert!(errors("ICMPIPEncap(1.0.0.1, 1.0.0.2, 300)").contains("  invalid TYPE"));
        assert!(errors("ICMPIPEncap(1.0.0.1, 1.0.0.2, 3, xxx)").contains("  invalid CODE"));
        assert!(errors("ICMPPingEncap(1.0.0.1)").contains("DST: required argument missing"));
        assert!(errors("ICMPPingEncap(1.0.0.1, 2.0.0.2, IDENTIFIER 65536)").contains("IDENTIFIER: out of range"));
        for config in ["ICMPPingEncap(1.0.0.1, 2.0.0.2)", "ICMPIPEncap(1.0.0.1, 2.0.0.2, 3)"] {
            let mut harness = Harness::new(&format!("give :: Give -> e :: {config} -> take :: Take"));
            harness.write("e.src", "3.0.0.3").unwrap();
            harness.write("e.dst", "4.0.0.4").unwrap();
            assert!(harness.write("e.dst", "4.0.0.4.5").is_err());
            assert_eq!((harness.read("e.src"), harness.read("e.dst")), ("3.0.0.3".into(), "4.0.0.4".into()));
            harness.give_bytes("give", b"");
            assert_eq!(harness.take("take")[0].bytes()[12..20], [3, 0, 0, 3, 4, 0, 0, 4]);
        }
    }

    #[test]
    fn any_packets_are_survived() {
        fuzz("give :: Give -> ICMPIPEncap(1.0.0.1, 1.0.0.2, 13) -> take :: Take", &["take"]);
    }
}
