//! GetIPAddress, SetIPAddress: set the destination address annotation. StoreIPAddress: writes it into the packet.
//!
//! All are agnostic, with an input and an output.
//!
//! `GetIPAddress(OFFSET [, ANNO, IP])`: from 4 bytes of the packet at OFFSET; or, with `IP src` or `IP dst` instead, from the
//! known IP header's source or destination. What is not there leaves the annotation as it is (Click reads what lies there).
//!
//! `SetIPAddress(IPADDR [, ANNO])`: to IPADDR. Handler: `addr` (r/w). Takes a new configuration while it runs.
//!
//! ANNO: another annotation of 4 bytes than that of the destination address.
//!
//! `StoreIPAddress([ADDR,] OFFSET)`: writes ADDR, or the annotation unless it is 0.0.0.0, to the packet at OFFSET. An OFFSET of
//! `src` or `dst` stands for that address of the known IP header; then checksums of IP, TCP and UDP are adjusted. A packet
//! that is too short passes as it is.

use crate::Packet;
use crate::args::{AnnoArg, Arg, Args, Failed, Word};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::ip::{LEN, PROTOCOL_TCP, PROTOCOL_UDP};
use crate::headers::{Ip, IpMut, Tcp, TcpMut, Udp, UdpMut, checksum};
use crate::packet::anno;
use crate::router::Cx;
use std::net::Ipv4Addr;

/// Where an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// So many bytes after the packet's beginning.
    Offset(usize),
    Source,
    Destination,
}

impl Default for Place {
    fn default() -> Self {
        Self::Offset(0)
    }
}

fn set_anno(packet: &mut Packet, at: usize, octets: [u8; 4]) {
    packet.anno_mut()[at..at + 4].copy_from_slice(&octets);
}

/// Sets the annotation from the packet.
#[derive(Default)]
pub(super) struct GetIpAddress {
    place: Place,
    anno: usize,
}

impl GetIpAddress {
    #[inline]
    fn annotate(&self, packet: &mut Packet) {
        let ip = || packet.network_header().and_then(Ip::new);
        let octets = match self.place {
            Place::Offset(at) => packet.bytes().get(at..).and_then(|bytes| bytes.first_chunk()).copied(),
            Place::Source => ip().map(|ip| ip.source().octets()),
            Place::Destination => ip().map(|ip| ip.destination().octets()),
        };
        if let Some(octets) = octets {
            set_anno(packet, self.anno, octets);
        }
    }
}

impl Element for GetIpAddress {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut offset, mut word) = (None::<usize>, String::new());
        let mut anno = AnnoArg::<4>(anno::DST_IP);
        args.may("OFFSET", &mut offset).may("ANNO", &mut anno).key("IP", &mut word).finish()?;
        self.anno = anno.0;
        self.place = match (offset, word.as_str()) {
            (Some(offset), "") => Place::Offset(offset),
            (Some(_), _) | (None, "") => return Err(args.error("set one of OFFSET, IP")),
            (None, "src") => Place::Source,
            (None, "dst") => Place::Destination,
            (None, _) => return Err(args.error("bad IP")),
        };
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        self.annotate(&mut packet);
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            self.annotate(packet);
        }
        cx.emit_batch(0, batch);
    }
}

/// Sets the annotation to a fixed address.
pub(super) struct SetIpAddress {
    address: Ipv4Addr,
    anno: usize,
}

impl Default for SetIpAddress {
    fn default() -> Self {
        Self { address: Ipv4Addr::UNSPECIFIED, anno: anno::DST_IP }
    }
}

impl Element for SetIpAddress {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut address, mut anno) = (Ipv4Addr::UNSPECIFIED, AnnoArg::<4>(anno::DST_IP));
        args.must("IPADDR", &mut address).key("ANNO", &mut anno).finish()?;
        (self.address, self.anno) = (address, anno.0);
        Ok(())
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        set_anno(&mut packet, self.anno, self.address.octets());
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("addr", |set: &mut Self| &mut set.address);
    }
}

/// Writes the annotation, or a fixed address, into the packet.
#[derive(Default)]
pub(super) struct StoreIpAddress {
    address: Option<Ipv4Addr>,
    place: Place,
}

impl Element for StoreIpAddress {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut offset = Word::default();
        if args.left() > 1 {
            args.must("ADDR", &mut self.address);
        }
        args.must("OFFSET", &mut offset).finish()?;
        self.place = match offset.0.to_ascii_lowercase().as_str() {
            "src" => Place::Source,
            "dst" => Place::Destination,
            number => match u32::parse(number, args.cx()) {
                Ok(offset) => Place::Offset(offset as usize),
                Err(_) => return Err(args.error("type mismatch: OFFSET requires integer")),
            },
        };
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let address = self.address.unwrap_or_else(|| packet.dst_ip());
        if self.address.is_none() && address.is_unspecified() {
            return Some(packet);
        }
        match self.place {
            Place::Offset(at) if packet.len().checked_sub(4).is_some_and(|last| at <= last) => {
                packet.bytes_mut()[at..at + 4].copy_from_slice(&address.octets());
            }
            Place::Offset(_) => {}
            place => store(&mut packet, place == Place::Source, address),
        }
        Some(packet)
    }
}

/// Writes an address of the IP header, and adjusts what sums it up.
fn store(packet: &mut Packet, is_source: bool, address: Ipv4Addr) {
    let is_there = packet.network_header().is_some_and(|header| header.len() >= LEN);
    let Some(header) = packet.network_header_mut().filter(|_| is_there) else { return };
    let Some(mut ip) = IpMut::new(header) else { return };
    let old = if is_source { ip.get().source() } else { ip.get().destination() };
    let protocol = if ip.get().is_first_fragment() { ip.get().protocol() } else { 0 };
    let segment = ip.get().header_len().max(LEN);
    if is_source {
        ip.change_source(address);
    } else {
        ip.change_destination(address);
    }
    let Some(segment) = header.get_mut(segment..) else { return };
    let adjusted = |sum| checksum::adjust32(sum, old.to_bits(), address.to_bits());
    match protocol {
        PROTOCOL_TCP => {
            let sum = Tcp::new(segment).map(Tcp::checksum);
            if let (Some(mut tcp), Some(sum)) = (TcpMut::new(segment), sum) {
                tcp.set_checksum(adjusted(sum));
            }
        }
        PROTOCOL_UDP => {
            let sum = Udp::new(segment).map(Udp::checksum).filter(|sum| *sum != 0);
            if let (Some(mut udp), Some(sum)) = (UdpMut::new(segment), sum) {
                udp.set_checksum(match adjusted(sum) {
                    0 => 0xffff,
                    sum => sum,
                });
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, ip, udp};
    use crate::headers::{Ip, checksum};

    fn annotated(config: &str, bytes: &[u8]) -> [u8; 4] {
        let mut harness = Harness::new(&format!("give :: Give -> {config} -> take :: Take"));
        harness.give_bytes("give", bytes);
        harness.take("take")[0].dst_ip().octets()
    }

    #[test]
    fn an_address_is_got_from_the_packet() {
        let packet = ip(17, [1, 2, 3, 4], [5, 6, 7, 8], &[]);
        assert_eq!(annotated("GetIPAddress(16)", &packet), [5, 6, 7, 8]);
        assert_eq!(annotated("GetIPAddress(OFFSET 12)", &packet), [1, 2, 3, 4]);
        assert_eq!(annotated("MarkIPHeader -> GetIPAddress(IP src)", &packet), [1, 2, 3, 4]);
        assert_eq!(annotated("MarkIPHeader -> GetIPAddress(IP dst)", &packet), [5, 6, 7, 8]);
        assert_eq!(annotated("SetIPAddress(9.9.9.9) -> GetIPAddress(17)", &packet), [9; 4]);
        assert_eq!(annotated("SetIPAddress(9.9.9.9) -> GetIPAddress(IP dst)", &packet), [9; 4]);
    }

    #[test]
    fn another_annotation_is_set() {
        let mut harness =
            Harness::new("give :: Give -> GetIPAddress(0, 24) -> SetIPAddress(8.7.6.5, ANNO 8) -> take :: Take");
        harness.give_bytes("give", &[1, 2, 3, 4]);
        let packet = &harness.take("take")[0];
        assert_eq!((&packet.anno()[24..28], &packet.anno()[8..12]), (&[1, 2, 3, 4][..], &[8, 7, 6, 5][..]));
        assert_eq!(packet.dst_ip().octets(), [0; 4]);
    }

    #[test]
    fn the_address_is_read_and_written_while_packets_run() {
        let mut harness = Harness::new("give :: Give -> s :: SetIPAddress(1.2.3.4) -> take :: Take");
        assert_eq!(harness.read("s.addr"), "1.2.3.4");
        harness.write("s.addr", "4.3.2.1").unwrap();
        assert!(harness.write("s.addr", "x").is_err());
        harness.give_bytes("give", &[0]);
        assert_eq!(harness.take("take")[0].dst_ip().octets(), [4, 3, 2, 1]);
    }

    /// Bytes after a row of elements, in hexadecimal digits by words.
    fn stored(row: &str) -> String {
        let mut harness = Harness::new(&format!("give :: Give -> MarkIPHeader(0) -> {row} -> take :: Take"));
        let mut packet = Packet::from_slice(&[0x99; 20]);
        packet.set_dst_ip([1, 0, 0, 2].into());
        harness.give("give", [packet]);
        let words = harness.take_bytes("take").concat();
        words
            .chunks(4)
            .map(|word| format!("{:08x}", u32::from_be_bytes(word.try_into().unwrap())))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn an_address_is_stored_in_the_packet() {
        let same = "99999999 99999999 99999999 99999999 99999999";
        assert_eq!(stored("StoreIPAddress(0)"), "01000002 99999999 99999999 99999999 99999999");
        assert_eq!(stored("StoreIPAddress(1.0.0.3, 4)"), "99999999 01000003 99999999 99999999 99999999");
        assert_eq!(stored("StoreIPAddress(src)"), "99999999 99999999 9999cbca 01000002 99999999");
        assert_eq!(stored("StoreIPAddress(DST)"), "99999999 99999999 9999cbca 99999999 01000002");
        assert_eq!(stored("StoreIPAddress(1.0.0.4, dst)"), "99999999 99999999 9999cbc8 99999999 01000004");
        assert_eq!(stored("StoreIPAddress(16)"), "99999999 99999999 99999999 99999999 01000002");
        assert_eq!(stored("StoreIPAddress(17)"), same);
        assert_eq!(stored("StoreIPAddress(4294967295)"), same);
        assert_eq!(stored("SetIPAddress(0.0.0.0) -> StoreIPAddress(0)"), same);
        assert_eq!(stored("SetIPAddress(0.0.0.0) -> StoreIPAddress(src)"), same);
        assert_eq!(stored("StoreIPAddress(0.0.0.0, 0)"), "00000000 99999999 99999999 99999999 99999999");
    }

    #[test]
    fn checksums_stay_right() {
        let tcp = {
            let mut segment = [0x11; 24];
            segment[12] = 0x60;
            segment[16..18].fill(0);
            let sum = checksum::transport([1, 2, 3, 4].into(), [5, 6, 7, 8].into(), 6, &segment);
            segment[16..18].copy_from_slice(&sum.to_be_bytes());
            ip(6, [1, 2, 3, 4], [5, 6, 7, 8], &segment)
        };
        for packet in [udp(([1, 2, 3, 4], 5), ([5, 6, 7, 8], 6), b"odd"), tcp] {
            for place in ["src", "dst"] {
                let mut harness = Harness::new(&format!(
                    "give :: Give -> CheckIPHeader -> StoreIPAddress(200.100.50.25, {place}) -> take :: Take"
                ));
                harness.give_bytes("give", &packet);
                let out = &harness.take_bytes("take")[0];
                let ip = Ip::checked(out).unwrap();
                assert!(ip.is_checksum_valid());
                assert_eq!(
                    checksum::transport(ip.source(), ip.destination(), ip.protocol(), ip.payload()),
                    0,
                    "{place}"
                );
                assert_ne!(out, &packet);
            }
        }
    }

    #[test]
    fn configurations_that_are_wrong() {
        for (config, told) in [
            ("GetIPAddress", "set one of OFFSET, IP"),
            ("GetIPAddress(3, IP src)", "set one of OFFSET, IP"),
            ("GetIPAddress(IP both)", "bad IP"),
            ("GetIPAddress(0, 46)", "ANNO: annotation out of range"),
            ("SetIPAddress", "IPADDR: required argument missing"),
            ("SetIPAddress(1.2.3)", "IPADDR: type mismatch"),
            ("StoreIPAddress", "OFFSET: required argument missing"),
            ("StoreIPAddress(x)", "type mismatch: OFFSET requires integer"),
            ("StoreIPAddress(-1)", "type mismatch: OFFSET requires integer"),
            ("StoreIPAddress(x, 3)", "ADDR: type mismatch"),
            ("StoreIPAddress(1.2.3.4, 3, 4)", "too many arguments"),
        ] {
            let log = Harness::errors(&format!("Give -> {config} -> Take"));
            assert!(log.contains(told), "{config}: {log}");
        }
    }

    #[test]
    fn any_packet_is_survived() {
        let row = "GetIPAddress(30) -> GetIPAddress(IP src) -> StoreIPAddress(40) -> StoreIPAddress(1.2.3.4, src)
                   -> MarkIPHeader(5) -> StoreIPAddress(dst)";
        fuzz(&format!("give :: Give -> {row} -> take :: Take"), &["take"]);
    }
}
