//! Packets as bytes, built of their headers.

use bifolio_net::headers::checksum;
use std::net::Ipv4Addr;

pub(crate) type Ip = [u8; 4];
pub(crate) type Ether = [u8; 6];

/// An Ethernet frame.
pub(crate) fn frame(dst: Ether, src: Ether, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&dst[..], &src, &kind.to_be_bytes(), payload].concat()
}

/// What an IP header says beside the addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Header {
    pub(crate) tos: u8,
    pub(crate) id: u16,
    /// Flags and the fragment's offset, as they stand there.
    pub(crate) fragment: u16,
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
    /// Padded with zeros to a multiple of four.
    pub(crate) options: Vec<u8>,
}

/// An IP packet whose header is right.
pub(crate) fn ip(header: &Header, src: Ip, dst: Ip, payload: &[u8]) -> Vec<u8> {
    let mut options = header.options.clone();
    options.resize(options.len().next_multiple_of(4), 0);
    let header_len = 20 + options.len();
    let mut packet = vec![0x40 | (header_len / 4) as u8, header.tos, 0, 0];
    packet.extend(header.id.to_be_bytes());
    packet.extend(header.fragment.to_be_bytes());
    packet.extend([header.ttl, header.protocol, 0, 0]);
    packet.extend([src, dst].concat());
    packet.extend(options);
    packet.extend(payload);
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    sum_header(&mut packet);
    packet
}

/// Makes the checksum of a packet's IP header right.
pub(crate) fn sum_header(packet: &mut [u8]) {
    let len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = checksum::internet(&packet[..len]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// A UDP datagram.
pub(crate) fn udp(src: Ip, dst: Ip, ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let len = (8 + data.len()) as u16;
    let mut datagram =
        [&ports[0].to_be_bytes()[..], &ports[1].to_be_bytes(), &len.to_be_bytes(), &[0, 0], data].concat();
    let sum = checksum::udp(Ipv4Addr::from(src), Ipv4Addr::from(dst), &datagram);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

/// A TCP segment without options.
pub(crate) fn tcp(src: Ip, dst: Ip, ports: [u16; 2], flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = [&ports[0].to_be_bytes()[..], &ports[1].to_be_bytes(), &[0, 0, 1, 0, 0, 0, 2, 0]].concat();
    segment.extend([0x50, flags, 0x10, 0, 0, 0, 0, 0]);
    segment.extend(data);
    let sum = checksum::transport(Ipv4Addr::from(src), Ipv4Addr::from(dst), 6, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// An ICMP message.
pub(crate) fn icmp(kind: u8, code: u8, rest: [u8; 4], data: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &rest, data].concat();
    let sum = checksum::internet(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// An ARP message.
pub(crate) fn arp(op: u16, from: (Ether, Ip), to: (Ether, Ip)) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4][..], &op.to_be_bytes(), &from.0, &from.1, &to.0, &to.1].concat()
}
