//! The fields of a packet, as eight words.

use crate::headers::ether::{Ether, TYPE_IP, TYPE_QINQ, TYPE_VLAN};
use crate::headers::ip::Ip;

/// How many words a key has.
pub(super) const WORDS: usize = 8;

/// IPv4 source address.
pub(super) const SOURCE: usize = 0;
/// IPv4 destination address.
pub(super) const DESTINATION: usize = 1;
/// Source port, destination port, 16 bits each.
pub(super) const PORTS: usize = 2;
/// IP protocol, type of service, 8 bits each; 16 bits of TCP flags (the upper 8), or of ICMP type and code.
pub(super) const PROTOCOL: usize = 3;
/// Ethernet type behind VLAN tags, 16 bits; number of the VLAN, 12 bits; which headers there are, 4 bits.
pub(super) const LINK: usize = 4;
/// Lower 32 bits of the Ethernet source.
pub(super) const ETHER_SOURCE: usize = 5;
/// Lower 32 bits of the Ethernet destination.
pub(super) const ETHER_DESTINATION: usize = 6;
/// Upper 16 bits of the Ethernet source, and of the destination.
pub(super) const ETHER_UPPER: usize = 7;

/// In the word `LINK`: an Ethernet header was there.
pub(super) const HAS_ETHER: u32 = 1;
/// An IPv4 header.
pub(super) const HAS_IP: u32 = 2;
/// Ports: of TCP, UDP, UDP-Lite, SCTP or DCCP, in a first fragment.
pub(super) const HAS_PORTS: u32 = 4;
/// TCP flags, or ICMP type and code.
pub(super) const HAS_DETAIL: u32 = 8;
/// All of these.
pub(super) const HAS: u32 = 15;

/// Protocol numbers.
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;

/// The fields of a packet that rules look at. Fields that a packet does not have are zero, and marked as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Key(pub(super) [u32; WORDS]);

impl Key {
    /// The fields of an Ethernet frame, with up to two VLAN tags.
    #[inline]
    pub fn of_frame(frame: &[u8]) -> Self {
        let mut key = Self::default();
        if let Some(packet) = key.read_link(frame) {
            key.read_ip(packet);
        }
        key
    }

    /// The fields of a packet whose IP header is known, and perhaps its link header: what begins with them.
    #[inline]
    pub fn of_packet(mac: Option<&[u8]>, network: &[u8]) -> Self {
        let mut key = Self::default();
        if let Some(frame) = mac {
            key.read_link(frame);
        }
        key.read_ip(network);
        key
    }

    /// The fields of a packet of which only slices are there: of the Ethernet frame's beginning, the first 20 bytes of the IP
    /// header of a packet of so many bytes, and of the transport header the first 4 bytes and byte 13, which are zero
    /// where they are not there.
    #[inline]
    pub fn of_slices(
        link: Option<&[u8]>,
        network: Option<&[u8; 20]>,
        captured: usize,
        transport: [u8; 4],
        byte_13: u8,
    ) -> Self {
        let mut key = Self::default();
        if let Some(frame) = link {
            key.read_link(frame);
        }
        let Some(ip) = network.and_then(|header| Ip::new(header)).filter(|ip| ip.version() == 4) else { return key };
        let (header_len, len) = (ip.header_len(), usize::from(ip.total_len()).min(captured));
        if !(20..=captured).contains(&header_len) {
            return key;
        }
        key.read_addresses(ip);
        if let Some(len) = len.checked_sub(header_len).filter(|_| ip.fragment_offset() == 0) {
            let mut header = [0; 14];
            header[..4].copy_from_slice(&transport);
            header[13] = byte_13;
            key.read_transport(ip.protocol(), &header[..len.min(14)]);
        }
        key
    }

    #[inline]
    fn read_addresses(&mut self, ip: Ip<'_>) {
        self.0[SOURCE] = ip.source().to_bits();
        self.0[DESTINATION] = ip.destination().to_bits();
        self.0[PROTOCOL] = u32::from(ip.protocol()) << 24 | u32::from(ip.tos()) << 16;
        self.0[LINK] |= HAS_IP;
    }

    /// Reads the Ethernet header; returns what follows it, if it says that this is IP.
    #[inline]
    fn read_link<'a>(&mut self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let ether = Ether::new(frame)?;
        let (kind, len) = ether.inner(2);
        let is_tagged = matches!(ether.kind(), TYPE_VLAN | TYPE_QINQ);
        let tag =
            frame.get(14..16).filter(|_| is_tagged).map_or(0, |tag| u32::from(tag[0] & 15) << 8 | u32::from(tag[1]));
        self.0[LINK] |= u32::from(kind) << 16 | tag << 4 | HAS_ETHER;
        let (source, destination) = (ether.source().to_bits(), ether.destination().to_bits());
        self.0[ETHER_SOURCE] = source as u32;
        self.0[ETHER_DESTINATION] = destination as u32;
        self.0[ETHER_UPPER] = ((source >> 32) as u32) << 16 | (destination >> 32) as u32;
        frame.get(len..).filter(|_| kind == TYPE_IP)
    }

    /// Reads the IP header and the ports, where lengths are true.
    #[inline]
    fn read_ip(&mut self, packet: &[u8]) {
        let Some(ip) = Ip::new(packet).filter(|ip| ip.version() == 4) else { return };
        let (header_len, len) = (ip.header_len(), usize::from(ip.total_len()).min(packet.len()));
        if !(20..=packet.len()).contains(&header_len) {
            return;
        }
        self.read_addresses(ip);
        if let Some(transport) = packet.get(header_len..len).filter(|_| ip.fragment_offset() == 0) {
            self.read_transport(ip.protocol(), transport);
        }
    }

    #[inline]
    fn read_transport(&mut self, protocol: u8, header: &[u8]) {
        if let (ICMP, [kind, code, ..]) = (protocol, header) {
            self.0[PROTOCOL] |= u32::from(*kind) << 8 | u32::from(*code);
            self.0[LINK] |= HAS_DETAIL;
        }
        if let (TCP | 17 | 33 | 132 | 136, Some(ports)) = (protocol, header.first_chunk()) {
            self.0[PORTS] = u32::from_be_bytes(*ports);
            self.0[LINK] |= HAS_PORTS;
        }
        if let (TCP, Some(flags)) = (protocol, header.get(13)) {
            self.0[PROTOCOL] |= u32::from(*flags) << 8;
            self.0[LINK] |= HAS_DETAIL;
        }
    }
}
