//! SetIPChecksum, SetTCPChecksum, SetUDPChecksum: set checksums, whatever they were.
//!
//! All are agnostic.
//!
//! `SetIPChecksum()`: of the known IP header, or of one at the packet's beginning. A packet without a whole header is dropped and
//! counted; the first is told. Handler: `drops`.
//!
//! `SetTCPChecksum([FIXOFF])`: of a TCP segment in IP. FIXOFF true mends a data offset of less than 20 bytes, or of more than there
//! are (false by default). A packet whose segment is not all there is told and dropped.
//!
//! `SetUDPChecksum()`: of a UDP datagram in IP. A fragment, or a packet whose datagram is not all there, goes to output 1 if there
//! is one; otherwise it is dropped, and the first is told. A checksum of 0 is written as 0xffff, as the standard wants it.

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::ip::{LEN, set_checksum};
use crate::headers::{Ip, TcpMut, UdpMut, checksum, tcp, udp};
use crate::router::Cx;
use std::net::Ipv4Addr;

/// Sets those of IP.
#[derive(Default)]
pub(super) struct SetIpChecksum {
    drops: u64,
}

fn set_ip(packet: &mut Packet) -> Option<()> {
    if packet.network_offset().is_some() {
        set_checksum(packet.network_header_mut()?)
    } else {
        set_checksum(packet.bytes_mut())
    }
}

impl Element for SetIpChecksum {
    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if set_ip(&mut packet).is_none() {
            self.drops += 1;
            if self.drops == 1 {
                cx.say("SetIPChecksum: bad input packet");
            }
            return None;
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |set: &mut Self, _| set.drops);
    }
}

/// What is known of the segment in an IP packet.
struct Segment {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    is_fragment: bool,
    /// Where it begins, in the IP packet.
    begin: usize,
    /// How many bytes it has, as the IP header says.
    len: usize,
}

impl Segment {
    fn of(packet: &Packet) -> Option<Self> {
        let ip = Ip::new(packet.network_header()?)?;
        let begin = ip.header_len();
        let len = usize::from(ip.total_len()).checked_sub(begin)?;
        let (source, destination, protocol) = (ip.source(), ip.destination(), ip.protocol());
        (begin >= LEN).then_some(Self { source, destination, protocol, is_fragment: ip.is_fragment(), begin, len })
    }
}

/// Sets those of TCP.
#[derive(Default)]
pub(super) struct SetTcpChecksum {
    fixes_offset: bool,
}

impl SetTcpChecksum {
    fn set(&self, packet: &mut Packet) -> Option<()> {
        let segment = Segment::of(packet).filter(|segment| segment.len >= tcp::LEN)?;
        packet.network_header()?.get(segment.begin..segment.begin + segment.len)?;
        let bytes = &mut packet.network_header_mut()?[segment.begin..segment.begin + segment.len];
        let mut tcp = TcpMut::new(bytes)?;
        let offset = tcp.get().header_len();
        if self.fixes_offset && offset < tcp::LEN {
            tcp.set_header_len(tcp::LEN);
        } else if self.fixes_offset && offset > segment.len && !segment.is_fragment {
            tcp.set_header_len(segment.len / 4 * 4);
        }
        tcp.set_checksum(0);
        let sum = checksum::transport(segment.source, segment.destination, segment.protocol, bytes);
        TcpMut::new(bytes)?.set_checksum(sum);
        Some(())
    }
}

impl Element for SetTcpChecksum {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("FIXOFF", &mut self.fixes_offset).finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if self.set(&mut packet).is_none() {
            cx.say("SetTCPChecksum: bad lengths");
            return None;
        }
        Some(packet)
    }
}

/// Sets those of UDP.
#[derive(Default)]
pub(super) struct SetUdpChecksum {
    has_told: bool,
}

fn set_udp(packet: &mut Packet) -> Option<()> {
    let segment = Segment::of(packet).filter(|segment| !segment.is_fragment)?;
    let datagram = packet.network_header()?.get(segment.begin..)?;
    let len = usize::from(crate::headers::Udp::new(datagram)?.total_len());
    datagram.get(..len).filter(|_| len >= udp::LEN)?;
    let bytes = &mut packet.network_header_mut()?[segment.begin..segment.begin + len];
    UdpMut::new(bytes)?.set_checksum(0);
    let sum = match checksum::transport(segment.source, segment.destination, segment.protocol, bytes) {
        0 => 0xffff,
        sum => sum,
    };
    UdpMut::new(bytes)?.set_checksum(sum);
    Some(())
}

impl Element for SetUdpChecksum {
    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if set_udp(&mut packet).is_some() {
            return Some(packet);
        }
        if !cx.emit_checked(1, packet) && !std::mem::replace(&mut self.has_told, true) {
            cx.say(format_args!("{}: fragment or short packet", cx.declaration()));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz, ip, udp as udp_packet};
    use crate::headers::ip::MF;

    fn run(row: &str, bytes: &[u8]) -> (Option<Vec<u8>>, Vec<String>) {
        let mut harness = Harness::new(&format!("give :: Give -> MarkIPHeader(2) -> {row} -> take :: Take"));
        harness.give_bytes("give", &[&[0, 0], bytes].concat());
        (harness.take_bytes("take").first().map(|out| out[2..].to_vec()), harness.said())
    }

    #[test]
    fn the_checksum_of_the_header_is_set() {
        let good = ip(17, [1; 4], [2; 4], &[1, 2, 3]);
        let mut bad = good.clone();
        bad[10..12].fill(7);
        assert_eq!(run("SetIPChecksum", &bad).0, Some(good.clone()));
        bad[0] = 0x4f;
        assert_eq!(run("SetIPChecksum", &bad), (None, vec!["SetIPChecksum: bad input packet".to_owned()]));
        let mut harness = Harness::new("give :: Give -> s :: SetIPChecksum -> take :: Take");
        bad[0] = 0x45;
        harness.give_bytes("give", &bad);
        harness.give_bytes("give", &bad[..19]);
        assert_eq!((harness.take_bytes("take"), harness.read("s.drops")), (vec![good], "1".into()));
    }

    #[test]
    fn the_checksum_of_udp_is_set() {
        let good = udp_packet(([1; 4], 1), ([2; 4], 2), b"odd");
        let mut bad = good.clone();
        bad[26] ^= 5;
        assert_eq!(run("SetUDPChecksum", &bad).0, Some(good.clone()));
        bad.extend([1, 2, 3]);
        assert_eq!(run("SetUDPChecksum", &bad).0, Some([&good[..], &[1, 2, 3]].concat()), "padding is not summed up");
        let told = |out: (Option<Vec<u8>>, Vec<String>)| (out.0, out.1.len());
        for (at, value) in [(25, 12), (25, 7), (6, (MF >> 8) as u8), (7, 1), (0, 0x44)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(told(run("SetUDPChecksum", &bad)), (None, 1), "{at}");
        }
        let config = "give :: Give -> MarkIPHeader -> s :: SetUDPChecksum -> take :: Take; s[1] -> bad :: Take";
        let mut harness = Harness::new(config);
        harness.give_bytes("give", &good[..27]);
        assert_eq!((harness.take_bytes("bad"), harness.said().len()), (vec![good[..27].to_vec()], 0));
    }

    #[test]
    fn a_udp_checksum_is_never_zero() {
        let mut packet = udp_packet(([1; 4], 1), ([2; 4], 2), &[0, 0]);
        let rest = checksum::transport([1; 4].into(), [2; 4].into(), 17, &{
            let mut segment = packet[20..].to_vec();
            segment[6..8].fill(0);
            segment
        });
        packet[28..30].copy_from_slice(&rest.to_be_bytes());
        assert_eq!(run("SetUDPChecksum", &packet).0.unwrap()[26..28], [0xff, 0xff]);
    }

    #[test]
    fn the_checksum_of_tcp_is_set() {
        let mut segment = [3; 30];
        segment[12] = 0x50;
        let packet = ip(6, [1; 4], [2; 4], &segment);
        let sum = |out: &[u8]| checksum::transport([1; 4].into(), [2; 4].into(), 6, &out[20..]);
        let out = run("SetTCPChecksum", &packet).0.unwrap();
        assert_eq!(sum(&out), 0);
        for (offset, fixed) in [(0x40, 0x50), (0x00, 0x50), (0x80, 0x70), (0x70, 0x70)] {
            let mut packet = packet.clone();
            packet[32] = offset;
            let out = run("SetTCPChecksum(true)", &packet).0.unwrap();
            assert_eq!((out[32], sum(&out)), (fixed, 0));
            assert_eq!(run("SetTCPChecksum", &packet).0.unwrap()[32], offset);
        }
        let short = ip(6, [1; 4], [2; 4], &[0; 19]);
        assert_eq!(run("SetTCPChecksum", &short), (None, vec!["SetTCPChecksum: bad lengths".to_owned()]));
        assert_eq!(run("SetTCPChecksum", &packet[..49]).0, None);
    }

    #[test]
    fn wrong_configurations_and_any_packet() {
        for config in ["SetIPChecksum(1)", "SetUDPChecksum(1)", "SetTCPChecksum(true, 1)"] {
            assert!(Harness::errors(&format!("Give -> {config} -> Take")).contains("too many arguments"));
        }
        assert!(Harness::errors("Give -> SetTCPChecksum(x) -> Take").contains("FIXOFF: type mismatch"));
        fuzz("give :: Give -> s :: SetUDPChecksum -> take :: Take; s[1] -> SetTCPChecksum(true) -> take", &["take"]);
        fuzz("give :: Give -> SetIPChecksum -> SetTCPChecksum -> take :: Take", &["take"]);
    }
}
