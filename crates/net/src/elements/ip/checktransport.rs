//! CheckTCPHeader, CheckUDPHeader, CheckICMPHeader: check what follows an IP header.
//!
//! `CheckTCPHeader([VERBOSE, DETAILS])` and so on: agnostic; output 1, where there is one, pushes packets that fail; they are
//! dropped otherwise. The first that fails is told; VERBOSE true tells of each. DETAILS true counts them by reason.
//!
//! A packet fails where its IP header is not known or names another protocol ("not TCP"), where what it says of lengths is
//! more than there is, or less than a header ("bad packet length"), or by its checksum.
//!
//! - UDP: a checksum of 0 is right.
//! - ICMP: errors have at least 28 bytes of what they are about, timestamps exactly 12 bytes, information messages none.
//!
//! Handlers: `drops`, `drop_details` (if DETAILS is true).

use super::reasons::Reasons;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::ip::{LEN, PROTOCOL_ICMP, PROTOCOL_TCP, PROTOCOL_UDP};
use crate::headers::{Icmp, Ip, Tcp, Udp, checksum, icmp, tcp, udp};
use crate::router::Cx;

const PROTOCOL: usize = 0;
const LENGTH: usize = 1;
const CHECKSUM: usize = 2;

/// The IP header of a protocol's packet, and what follows it, as far as it is there.
fn segment(packet: &Packet, protocol: u8) -> Result<(Ip<'_>, &[u8]), usize> {
    let header = packet.network_header().ok_or(PROTOCOL)?;
    let ip = Ip::new(header).filter(|ip| ip.protocol() == protocol).ok_or(PROTOCOL)?;
    let segment = header.get(ip.header_len()..).filter(|_| ip.header_len() >= LEN);
    Ok((ip, segment.ok_or(LENGTH)?))
}

fn check_transport(ip: Ip<'_>, bytes: &[u8]) -> Result<(), usize> {
    let sum = checksum::transport(ip.source(), ip.destination(), ip.protocol(), bytes);
    if sum == 0 { Ok(()) } else { Err(CHECKSUM) }
}

fn check_tcp(packet: &Packet) -> Result<(), usize> {
    let (ip, bytes) = segment(packet, PROTOCOL_TCP)?;
    let len = usize::from(ip.total_len()).checked_sub(ip.header_len()).ok_or(LENGTH)?;
    let bytes = bytes.get(..len).ok_or(LENGTH)?;
    let header_len = Tcp::new(bytes).ok_or(LENGTH)?.header_len();
    if header_len < tcp::LEN || len < header_len {
        return Err(LENGTH);
    }
    check_transport(ip, bytes)
}

fn check_udp(packet: &Packet) -> Result<(), usize> {
    let (ip, bytes) = segment(packet, PROTOCOL_UDP)?;
    let datagram = Udp::new(bytes).ok_or(LENGTH)?;
    let len = usize::from(datagram.total_len());
    let bytes = bytes.get(..len).filter(|_| len >= udp::LEN).ok_or(LENGTH)?;
    if datagram.checksum() == 0 { Ok(()) } else { check_transport(ip, bytes) }
}

fn check_icmp(packet: &Packet) -> Result<(), usize> {
    let (_, bytes) = segment(packet, PROTOCOL_ICMP)?;
    let kind = Icmp::new(bytes).ok_or(LENGTH)?.kind();
    let data = bytes.len() - icmp::LEN;
    let is_right = match kind {
        kind if icmp::is_error(kind) => data >= 28,
        icmp::TIMESTAMP | icmp::TIMESTAMP_REPLY => data == 12,
        icmp::INFO | icmp::INFO_REPLY => data == 0,
        _ => true,
    };
    if !is_right {
        return Err(LENGTH);
    }
    if checksum::is_valid(bytes) { Ok(()) } else { Err(CHECKSUM) }
}

macro_rules! check {
    ($name:ident, $word:literal, $check:path, $prefix:expr) => {
        #[doc = concat!("Checks ", $word, " headers.")]
        pub(super) struct $name(Reasons<3>);

        impl Default for $name {
            fn default() -> Self {
                Self(Reasons::new([concat!("not ", $word), "bad packet length", concat!("bad ", $word, " checksum")]))
            }
        }

        impl Element for $name {
            fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
                self.0.configure(args);
                args.finish()
            }

            fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
                let Err(reason) = $check(&packet) else { return Some(packet) };
                let prefix: fn(&Cx<'_>) -> String = $prefix;
                self.0.count(cx, &prefix(cx), reason);
                cx.emit_checked(1, packet);
                None
            }

            fn handlers(&self, handlers: &mut Handlers) {
                self.0.handlers(handlers, |check: &mut Self| &mut check.0);
            }
        }
    };
}

check!(CheckTcpHeader, "TCP", check_tcp, |cx| format!("{}: TCP", cx.declaration()));
check!(CheckUdpHeader, "UDP", check_udp, |_| "UDP".to_owned());
check!(CheckIcmpHeader, "ICMP", check_icmp, |cx| format!("{}: ICMP", cx.declaration()));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz, ip, udp as udp_packet};

    fn tcp_packet(data: usize) -> Vec<u8> {
        let mut segment = vec![7; 20 + data];
        segment[12] = 0x50;
        segment[16..18].fill(0);
        let sum = checksum::transport([1; 4].into(), [2; 4].into(), 6, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        ip(6, [1; 4], [2; 4], &segment)
    }

    fn icmp_packet(kind: u8, data: usize) -> Vec<u8> {
        let mut message = vec![9; 8 + data];
        message[0] = kind;
        icmp::set_checksum(&mut message).unwrap();
        ip(1, [1; 4], [2; 4], &message)
    }

    fn changed(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
        packet[at] = value;
        packet
    }

    /// Drops by reason, after packets of which the first `good` are right.
    fn details(class: &str, good: usize, packets: &[Vec<u8>]) -> (String, Vec<String>) {
        let config =
            format!("give :: Give -> MarkIPHeader -> c :: {class}(DETAILS true) -> take :: Take; c[1] -> bad :: Take");
        let mut harness = Harness::new(&config);
        for packet in packets {
            harness.give_bytes("give", packet);
        }
        assert_eq!(harness.take_bytes("take"), packets[..good]);
        assert_eq!(harness.take_bytes("bad"), packets[good..]);
        assert_eq!(harness.read("c.drops"), (packets.len() - good).to_string());
        (harness.read("c.drop_details"), harness.said())
    }

    #[test]
    fn tcp_headers() {
        let good = tcp_packet(5);
        let mut padded = good.clone();
        padded.extend([1, 2, 3]);
        let packets = [
            good.clone(),
            padded,
            tcp_packet(0),
            icmp_packet(8, 0),
            good[..19].to_vec(),
            good[..44].to_vec(),
            changed(good.clone(), 32, 0x40),
            changed(good.clone(), 32, 0x70),
            changed(good.clone(), 3, 39),
            changed(good.clone(), 0, 0x44),
            changed(good, 21, 8),
        ];
        let (details, said) = details("CheckTCPHeader", 3, &packets);
        assert_eq!(details, "2\tnot TCP\n5\tbad packet length\n1\tbad TCP checksum\n");
        assert_eq!(said, ["c :: CheckTCPHeader: TCP header check failed: not TCP"]);
    }

    #[test]
    fn udp_headers() {
        let good = udp_packet(([1; 4], 1), ([2; 4], 2), b"odd");
        let mut unsummed = good.clone();
        unsummed[26..28].fill(0);
        let packets = [
            good.clone(),
            unsummed,
            tcp_packet(0),
            good[..27].to_vec(),
            good[..30].to_vec(),
            changed(good.clone(), 25, 7),
            changed(good, 29, 8),
        ];
        let (details, said) = details("CheckUDPHeader", 2, &packets);
        assert_eq!(details, "1\tnot UDP\n3\tbad packet length\n1\tbad UDP checksum\n");
        assert_eq!(said, ["UDP header check failed: not UDP"]);
    }

    #[test]
    fn icmp_headers() {
        let good = [
            icmp_packet(8, 0),
            icmp_packet(0, 31),
            icmp_packet(3, 28),
            icmp_packet(13, 12),
            icmp_packet(16, 0),
            icmp_packet(200, 5),
        ];
        let bad = [
            tcp_packet(0),
            icmp_packet(8, 0)[..27].to_vec(),
            icmp_packet(11, 27),
            icmp_packet(13, 13),
            icmp_packet(14, 11),
            icmp_packet(15, 1),
            changed(icmp_packet(8, 3), 30, 1),
        ];
        let (details, said) = details("CheckICMPHeader", good.len(), &[&good[..], &bad].concat());
        assert_eq!(details, "1\tnot ICMP\n5\tbad packet length\n1\tbad ICMP checksum\n");
        assert_eq!(said, ["c :: CheckICMPHeader: ICMP header check failed: not ICMP"]);
    }

    #[test]
    fn each_failure_is_told_if_wanted() {
        let mut harness = Harness::new("give :: Give -> c :: CheckUDPHeader(VERBOSE true) -> take :: Take");
        harness.give("give", [Packet::from_slice(&[]), Packet::from_slice(&[1])]);
        assert_eq!(harness.said().len(), 2);
        assert!(harness.try_read("c.drop_details").is_err());
    }

    #[test]
    fn wrong_configurations_and_any_packet() {
        for class in ["CheckTCPHeader", "CheckUDPHeader", "CheckICMPHeader"] {
            assert!(Harness::errors(&format!("Give -> {class}(1) -> Take")).contains("too many arguments"));
            assert!(Harness::errors(&format!("Give -> {class}(DETAILS x) -> Take")).contains("DETAILS: type mismatch"));
            let config = format!("give :: Give -> c :: {class} -> take :: Take; c[1] -> bad :: Take");
            let out = fuzz(&config, &["take", "bad"]);
            assert_eq!(out[0].len() + out[1].len(), 2000);
        }
    }
}
