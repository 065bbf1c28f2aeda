//! IPEncap: puts an IP header before packets.
//!
//! `IPEncap(PROTO, SRC, DST [, TTL, DSCP, ECT, CE, TOS, DF])`: agnostic.
//!
//! - PROTO: the protocol, by name or 0 to 255. SRC, DST: addresses; a DST of `DST_ANNO` stands for the packet's destination
//!   address annotation, which is set to DST otherwise.
//! - TTL: time to live, 250. DSCP: code point, 0 to 63, 0. TOS: all of that byte, 0 to 255; excludes the next two and DSCP.
//! - ECT: true or 1, or 2: the sender understands ECN. CE: congestion experienced, false. DF: do not fragment, false.
//!
//! Headers are numbered from 0. A packet that gets longer than 65,535 bytes has its length's lower 16 bits, as in Click.
//!
//! Handlers: `src` (r/w), `dst` (r/w). Takes a new configuration while it runs. DSCP 63 is allowed (Click refuses it).

use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed, Protocol, Raw};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::IpMut;
use crate::headers::ip::{DF, ECN_CE, ECN_ECT1, ECN_ECT2, LEN};
use crate::router::Cx;
use std::fmt;
use std::net::Ipv4Addr;

/// Where packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Destination {
    /// Where their annotation says.
    #[default]
    Annotation,
    /// To this address.
    Fixed(Ipv4Addr),
}

impl Arg for Destination {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        if text == "DST_ANNO" {
            return Ok(Self::Annotation);
        }
        let address = Ipv4Addr::parse(text, cx).map_err(|_| "argument should be IP address or 'DST_ANNO'")?;
        Ok(Self::Fixed(address))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation => f.write_str("DST_ANNO"),
            Self::Fixed(address) => address.fmt(f),
        }
    }
}

impl Destination {
    /// The address for a packet, whose annotation has it afterwards.
    #[inline]
    pub(super) fn of(self, packet: &mut Packet) -> Ipv4Addr {
        match self {
            Self::Annotation => packet.dst_ip(),
            Self::Fixed(address) => {
                packet.set_dst_ip(address);
                address
            }
        }
    }
}

/// Makes `LEN` bytes at the packet's beginning its IP header, with a right checksum.
#[inline]
pub(super) fn write_header(packet: &mut Packet, fill: impl FnOnce(&mut IpMut<'_>)) {
    let len = packet.len() as u16;
    let bytes = packet.bytes_mut();
    if let Some(mut ip) = IpMut::new(bytes) {
        ip.clear(LEN);
        ip.set_total_len(len);
        fill(&mut ip);
    }
    let _ = crate::headers::ip::set_checksum(bytes);
    packet.set_network_header(0, LEN);
}

/// What its headers have in common.
#[derive(Clone, Copy)]
struct Header {
    protocol: u8,
    source: Ipv4Addr,
    destination: Destination,
    ttl: u8,
    tos: u8,
    flags: u16,
}

/// The element.
pub(super) struct IpEncap {
    header: Header,
    id: u16,
}

impl Default for IpEncap {
    fn default() -> Self {
        let (source, destination) = (Ipv4Addr::UNSPECIFIED, Destination::default());
        Self { header: Header { protocol: 0, source, destination, ttl: 250, tos: 0, flags: 0 }, id: 0 }
    }
}

/// ECT's bits.
fn ecn_of(text: &str, cx: &ArgCx<'_>) -> Option<u8> {
    match (text, bool::parse(text, cx)) {
        ("", _) | (_, Ok(false)) => Some(0),
        (_, Ok(true)) => Some(ECN_ECT1),
        ("2", _) => Some(ECN_ECT2),
        _ => None,
    }
}

/// The type of service that arguments add up to.
fn tos_of(args: &mut Args<'_>, tos: i32, dscp: i32, ecn: u8, has_ce: bool) -> Result<u8, Failed> {
    if tos >= 0 && dscp >= 0 {
        return Err(args.error("cannot set both TOS and DSCP"));
    }
    if tos >= 0 && (ecn != 0 || has_ce) {
        return Err(args.error("cannot set both TOS and ECN bits"));
    }
    if !(-1..256).contains(&tos) {
        return Err(args.error("TOS too large; max 255"));
    }
    if !(-1..64).contains(&dscp) {
        return Err(args.error("DSCP too large; max 63"));
    }
    if ecn != 0 && has_ce {
        return Err(args.error("can set at most one ECN option"));
    }
    Ok(tos.max(dscp * 4).max(0) as u8 | ecn | if has_ce { ECN_CE } else { 0 })
}

impl Element for IpEncap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut protocol, mut ect) = (Protocol::default(), Raw::default());
        let (mut tos, mut dscp, mut has_ce, mut has_df) = (-1, -1, false, false);
        let mut header = Self::default().header;
        args.must("PROTO", &mut protocol).must("SRC", &mut header.source).must("DST", &mut header.destination);
        args.key("TOS", &mut tos).key("TTL", &mut header.ttl).key("DSCP", &mut dscp);
        args.key("ECT", &mut ect).key("CE", &mut has_ce).key("DF", &mut has_df).finish()?;
        let Some(ecn) = ecn_of(&ect.0, args.cx()) else {
            return Err(args.error(format_args!("bad ECT value '{}'", ect.0)));
        };
        header.tos = tos_of(args, tos, dscp, ecn, has_ce)?;
        header.protocol = protocol.0;
        header.flags = if has_df { DF } else { 0 };
        self.header = header;
        Ok(())
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let header = self.header;
        packet.push(LEN);
        let destination = header.destination.of(&mut packet);
        write_header(&mut packet, |ip| {
            ip.set_tos(header.tos);
            ip.set_id(self.id);
            ip.set_flags_offset(header.flags);
            ip.set_ttl(header.ttl);
            ip.set_protocol(header.protocol);
            ip.set_source(header.source);
            ip.set_destination(destination);
        });
        self.id = self.id.wrapping_add(1);
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("src", |encap: &mut Self| &mut encap.header.source);
        handlers.data("dst", |encap: &mut Self| &mut encap.header.destination);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz};
    use crate::headers::Ip;

    #[test]
    fn a_header_is_put_before_each_packet() {
        let mut harness = Harness::new("give :: Give -> e :: IPEncap(4, 18.26.4.24, 140.247.60.147) -> take :: Take");
        harness.give("give", [Packet::from_slice(b"one"), Packet::new(0, b"two", 0)]);
        let out = harness.take("take");
        for (id, (packet, data)) in out.iter().zip([b"one", b"two"]).enumerate() {
            let ip = Ip::checked(packet.bytes()).unwrap();
            assert!(ip.is_checksum_valid());
            assert_eq!((ip.payload(), ip.id(), ip.ttl(), ip.protocol(), ip.tos()), (&data[..], id as u16, 250, 4, 0));
            assert_eq!((ip.source().octets(), ip.destination().octets()), ([18, 26, 4, 24], [140, 247, 60, 147]));
            assert_eq!((packet.network_offset(), packet.transport_offset()), (Some(0), Some(20)));
            assert_eq!(packet.dst_ip().octets(), [140, 247, 60, 147]);
        }
    }

    #[test]
    fn the_destination_may_be_the_annotation() {
        let mut harness = Harness::new("give :: Give -> e :: IPEncap(ipip, 1.2.3.4, DST_ANNO) -> take :: Take");
        assert_eq!(harness.read("e.dst"), "DST_ANNO");
        let mut packet = Packet::from_slice(&[0; 9]);
        packet.set_dst_ip([9, 8, 7, 6].into());
        harness.give("give", [packet.clone()]);
        assert_eq!(harness.take_bytes("take")[0][16..20], [9, 8, 7, 6]);
        harness.write("e.dst", "5.5.5.5").unwrap();
        harness.write("e.src", "6.6.6.6").unwrap();
        harness.give("give", [packet]);
        let out = &harness.take("take")[0];
        assert_eq!((&out.bytes()[12..20], out.dst_ip().octets()), (&[6, 6, 6, 6, 5, 5, 5, 5][..], [5; 4]));
        assert!(harness.write("e.dst", "x").is_err());
        assert_eq!((harness.read("e.src"), harness.read("e.dst")), ("6.6.6.6".into(), "5.5.5.5".into()));
    }

    #[test]
    fn keywords_fill_the_header() {
        for (config, tos, flags, ttl) in [
            ("TTL 3, DF true, DSCP 63", 0xfc, 0x40, 3),
            ("ECT true", 1, 0, 250),
            ("ECT 1, DSCP 2", 9, 0, 250),
            ("ECT 2", 2, 0, 250),
            ("ECT no, CE true", 3, 0, 250),
            ("TOS 0xff", 255, 0, 250),
        ] {
            let mut harness =
                Harness::new(&format!("give :: Give -> IPEncap(17, 1.1.1.1, 2.2.2.2, {config}) -> take :: Take"));
            harness.give_bytes("give", b"");
            let out = &harness.take_bytes("take")[0];
            assert_eq!((out[1], out[6], out[8]), (tos, flags, ttl), "{config}");
            assert!(Ip::checked(out).unwrap().is_checksum_valid());
        }
    }

    #[test]
    fn configurations_that_are_wrong() {
        for (config, told) in [
            ("", "PROTO: required argument missing"),
            ("nothing, 1.1.1.1, 2.2.2.2", "PROTO: "),
            ("256, 1.1.1.1, 2.2.2.2", "bad IP protocol"),
            ("4, 1.1.1, 2.2.2.2", "SRC: type mismatch"),
            ("4, 1.1.1.1, x", "DST: argument should be IP address or 'DST_ANNO'"),
            ("4, 1.1.1.1, 2.2.2.2, TOS 1, DSCP 1", "cannot set both TOS and DSCP"),
            ("4, 1.1.1.1, 2.2.2.2, TOS 1, CE true", "cannot set both TOS and ECN bits"),
            ("4, 1.1.1.1, 2.2.2.2, TOS 256", "TOS too large; max 255"),
            ("4, 1.1.1.1, 2.2.2.2, DSCP 64", "DSCP too large; max 63"),
            ("4, 1.1.1.1, 2.2.2.2, ECT 1, CE true", "can set at most one ECN option"),
            ("4, 1.1.1.1, 2.2.2.2, ECT 3", "bad ECT value '3'"),
            ("4, 1.1.1.1, 2.2.2.2, TTL 300", "TTL: "),
        ] {
            let log = Harness::errors(&format!("Give -> IPEncap({config}) -> Take"));
            assert!(log.contains(told), "{config}: {log}");
        }
    }

    #[test]
    fn any_packet_is_survived() {
        let out = fuzz("give :: Give -> IPEncap(4, 1.1.1.1, DST_ANNO) -> CheckIPHeader -> take :: Take", &["take"]);
        assert_eq!(out[0].len(), 2000);
    }
}
