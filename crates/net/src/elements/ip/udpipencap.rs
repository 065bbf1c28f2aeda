//! UDPIPEncap: puts UDP and IP headers before packets.
//!
//! `UDPIPEncap(SRC, SPORT, DST, DPORT [, CHECKSUM])`: agnostic. SRC, DST: addresses; a DST of `DST_ANNO` stands for the packet's
//! destination address annotation, which is set to DST otherwise. SPORT, DPORT: ports, by number or name. CHECKSUM: whether
//! there is a UDP checksum, true by default.
//!
//! IP headers are numbered from 0, and have a time to live of 250. A packet that gets longer than 65,535 bytes has its length's
//! lower 16 bits, as in Click. A checksum of 0 is written as 0xffff, as the standard wants it.
//!
//! Handlers: `src`, `sport`, `dst`, `dport` (all r/w). Takes a new configuration while it runs.

use super::ipencap::{Destination, write_header};
use crate::Packet;
use crate::args::{Args, Failed, Port};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::ip::{LEN, PROTOCOL_UDP};
use crate::headers::{UdpMut, checksum, udp};
use crate::router::Cx;
use std::net::Ipv4Addr;

/// What its headers have in common.
#[derive(Clone, Copy)]
struct Header {
    source: Ipv4Addr,
    source_port: Port<PROTOCOL_UDP>,
    destination: Destination,
    destination_port: Port<PROTOCOL_UDP>,
    has_checksum: bool,
}

/// The element.
pub(super) struct UdpIpEncap {
    header: Header,
    id: u16,
}

impl Default for UdpIpEncap {
    fn default() -> Self {
        let header = Header {
            source: Ipv4Addr::UNSPECIFIED,
            source_port: Port::default(),
            destination: Destination::default(),
            destination_port: Port::default(),
            has_checksum: true,
        };
        Self { header, id: 0 }
    }
}

impl Header {
    fn write_udp(&self, packet: &mut Packet, destination: Ipv4Addr) {
        let bytes = &mut packet.bytes_mut()[LEN..];
        let len = bytes.len() as u16;
        if let Some(mut udp) = UdpMut::new(bytes) {
            udp.set_source(self.source_port.0);
            udp.set_destination(self.destination_port.0);
            udp.set_total_len(len);
            udp.set_checksum(0);
        }
        if self.has_checksum {
            // Of as many bytes as the header says.
            let sum = checksum::udp(self.source, destination, &bytes[..usize::from(len)]);
            if let Some(mut udp) = UdpMut::new(bytes) {
                udp.set_checksum(sum);
            }
        }
    }
}

impl Element for UdpIpEncap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut header = Self::default().header;
        args.must("SRC", &mut header.source).must("SPORT", &mut header.source_port);
        args.must("DST", &mut header.destination).must("DPORT", &mut header.destination_port);
        args.may("CHECKSUM", &mut header.has_checksum).finish()?;
        self.header = header;
        Ok(())
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.push(LEN + udp::LEN);
        let destination = self.header.destination.of(&mut packet);
        write_header(&mut packet, |ip| {
            ip.set_id(self.id);
            ip.set_ttl(250);
            ip.set_protocol(PROTOCOL_UDP);
            ip.set_source(self.header.source);
            ip.set_destination(destination);
        });
        self.header.write_udp(&mut packet, destination);
        self.id = self.id.wrapping_add(1);
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("src", |encap: &mut Self| &mut encap.header.source);
        handlers.data("sport", |encap: &mut Self| &mut encap.header.source_port);
        handlers.data("dst", |encap: &mut Self| &mut encap.header.destination);
        handlers.data("dport", |encap: &mut Self| &mut encap.header.destination_port);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, udp};
    use crate::headers::ip::{IpMut, set_checksum};

    #[test]
    fn headers_are_put_before_each_packet() {
        let mut harness = Harness::new("give :: Give -> e :: UDPIPEncap(1.0.0.1, 1234, 2.0.0.2, ssh) -> take :: Take");
        harness.give("give", [Packet::from_slice(b"odd"), Packet::new(3, b"", 0)]);
        let out = harness.take("take");
        for (id, (packet, data)) in out.iter().zip([&b"odd"[..], b""]).enumerate() {
            let mut expected = udp(([1, 0, 0, 1], 1234), ([2, 0, 0, 2], 22), data);
            let mut ip = IpMut::new(&mut expected).unwrap();
            ip.set_id(id as u16);
            ip.set_ttl(250);
            set_checksum(&mut expected).unwrap();
            assert_eq!(packet.bytes(), expected);
            assert_eq!((packet.network_offset(), packet.transport_offset()), (Some(0), Some(20)));
            assert_eq!(packet.dst_ip().octets(), [2, 0, 0, 2]);
        }
    }

    #[test]
    fn all_of_it_is_read_and_written_while_packets_run() {
        let mut harness =
            Harness::new("give :: Give -> e :: UDPIPEncap(1.0.0.1, 5, DST_ANNO, 6, false) -> take :: Take");
        let mut packet = Packet::from_slice(b"data");
        packet.set_dst_ip([9; 4].into());
        harness.give("give", [packet.clone()]);
        let out = &harness.take_bytes("take")[0];
        assert_eq!((&out[16..20], &out[20..24], &out[26..28]), (&[9; 4][..], &[0, 5, 0, 6][..], &[0, 0][..]));
        for (handler, old, new) in [
            ("src", "1.0.0.1", "4.4.4.4"),
            ("sport", "5", "53"),
            ("dst", "DST_ANNO", "3.3.3.3"),
            ("dport", "6", "65535"),
        ] {
            assert_eq!(harness.read(&format!("e.{handler}")), old);
            harness.write(&format!("e.{handler}"), new).unwrap();
            assert_eq!(harness.read(&format!("e.{handler}")), new);
        }
        harness.give("give", [packet]);
        let out = &harness.take_bytes("take")[0];
        assert_eq!(out[12..24], [4, 4, 4, 4, 3, 3, 3, 3, 0, 53, 255, 255]);
    }

    #[test]
    fn ports_have_names_of_their_compounds() {
        let config = "give :: Give -> UDPIPEncap(1.0.0.1, foo, 1.0.0.1, ssh)
            -> { input -> UDPIPEncap(1.0.0.3, foo, 1.0.0.3, ssh) -> output; PortInfo(foo 80/udp ssh) } -> take :: Take;
            PortInfo(foo 79/udp # ssh 25/udp comment, # ssh 26/udp comment, )";
        let mut harness = Harness::new(config);
        harness.give_bytes("give", b"");
        let out = &harness.take_bytes("take")[0];
        assert_eq!((&out[20..24], &out[48..52]), (&[0, 80, 0, 80][..], &[0, 79, 0, 22][..]));
    }

    #[test]
    fn configurations_that_are_wrong() {
        for (config, told) in [
            ("1.1.1.1, 1, 2.2.2.2", "DPORT: required argument missing"),
            ("1.1.1.1, 65536, 2.2.2.2, 1", "SPORT: overflow, range 0-65535"),
            ("1.1.1.1, nothing, 2.2.2.2, 1", "SPORT: type mismatch"),
            ("1.1.1.1, 1, x, 1", "DST: argument should be IP address or 'DST_ANNO'"),
            ("1.1.1.1, 1, 2.2.2.2, 1, maybe", "CHECKSUM: type mismatch"),
            ("1.1.1.1, 1, 2.2.2.2, 1, true, 6", "too many arguments"),
        ] {
            let log = Harness::errors(&format!("Give -> UDPIPEncap({config}) -> Take"));
            assert!(log.contains(told), "{config}: {log}");
        }
    }

    #[test]
    fn any_packet_is_survived() {
        let row = "UDPIPEncap(1.1.1.1, 1, DST_ANNO, 2) -> CheckIPHeader -> CheckUDPHeader";
        let out = fuzz(&format!("give :: Give -> {row} -> take :: Take"), &["take"]);
        assert_eq!(out[0].len(), 2000);
        let mut harness = Harness::new(&format!("give :: Give -> {row} -> take :: Take"));
        harness.give_bytes("give", &vec![7; 70_000]);
    }
}
